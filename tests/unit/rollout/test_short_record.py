"""A short TOML record becomes a whole one, or is refused with the path of what is wrong."""

import functools

import msgspec
import pytest
from events_kit import REVISION

from trimtab.core.cuts import Cut, Dimension, hidden
from trimtab.core.gate import Metric, Question
from trimtab.core.lever import (
    Actuation,
    Comparison,
    LeverRecord,
    LeverRecordError,
    QualityExposure,
    check_record,
)
from trimtab.core.revision import Model, Revision
from trimtab.core.types import Mode, RolloutState
from trimtab.engines.kv_types import KvDevice
from trimtab.engines.vllm_checks import GARBAGE_KV_TYPES
from trimtab.rollout.score_file import read_scores
from trimtab.rollout.short_record import Known, complete, parse_cut, parse_record
from trimtab.rollout.short_shapes import SHARES

ROUTING = """
name = "affine-for-chat"
technique = "prefix_caching"
policy = "prefix_affine"
owner = "ada"
premise = "62% of computed prompt tokens were held by another replica"
condition = "sessions that come back"
failure_modes = ["one prefix draws everything to one replica"]
slice = ["label=chat"]

[bottleneck]
phase = "prefill"
resource = "compute"
diagnosis = "trimtab diagnose, Monday 10:00"

[[moves]]
budget = "compute"
spends = false
delta_share = -0.2
because = "tokens held are not computed again"

[[moves]]
budget = "memory"
spends = true
because = "prefixes are kept where they are asked for"

[expected.ttft_ms]
ratio = 0.7
low = 0.5
high = 0.9
because = "prefill is two thirds of TTFT"

[[triggers]]
signal = "load_over_bound"
off_at = 0.95
on_at = 0.6
off_when_above = true
because = "a replica is over its bound nearly all the time"
"""
CHUNK = (
    ROUTING.replace('policy = "prefix_affine"\n', "")
    .replace('"prefix_caching"', '"prefill_chunking"')
    .replace("[bottleneck]", "[revision]\nchunk_tokens = 128\n\n[bottleneck]")
)


def made(text: str) -> LeverRecord:
    return complete(parse_record(text, source="lever.toml"), baseline=REVISION, now_s=1000.0)


def refused(text: str) -> str:
    with pytest.raises(LeverRecordError) as error:
        made(text)
    return str(error.value)


def test_routing_lever_is_completed() -> None:
    """Live, by switchback, through the default shares, with a gain gate on what is expected to get better."""
    record = made(ROUTING)
    assert check_record(record) == record
    assert (record.policy, record.revision) == ("prefix_affine", None)
    assert (record.ramp.shares, record.ramp.peak_cycle_s) == (SHARES, 86_400.0)
    assert record.ramp.comparison is Comparison.SWITCHBACK
    assert record.narrowness.actuation is Actuation.LIVE
    assert record.cuts == (Cut(Dimension.LABEL, "chat"),)
    gains = [gate.metric for gate in record.gates if gate.question is Question.GAIN]
    assert gains == [Metric.TTFT_MS]
    assert record.expires_at_s - record.created_at_s == 30 * 86_400.0
    assert record.mode is Mode.ADVISE


def test_engine_lever_is_the_baseline_with_what_it_changes() -> None:
    """Side by side on a replica of its own, which restarts."""
    record = made(CHUNK)
    assert record.revision == REVISION.replace(chunk_tokens=128)
    assert record.ramp.comparison is Comparison.SIDE_BY_SIDE
    assert record.narrowness.actuation is Actuation.RESTART
    assert "restart" in record.reverse


def test_every_latency_is_watched_for_harm_in_every_state() -> None:
    """Whatever the writer asks for: the slice never grows without a veto on TTFT and TPOT."""
    for state in (RolloutState.CANARY, RolloutState.RAMPING, RolloutState.PROVING):
        watched = {
            gate.metric
            for gate in made(ROUTING).gates
            if gate.question is Question.VETO and state in gate.during
        }
        assert {Metric.TTFT_MS, Metric.TPOT_MS, Metric.ERROR_RATE} <= watched


def test_written_gate_takes_the_place_of_the_gain_that_would_be_asked() -> None:
    """Its metric, cut and margin are those of the file."""
    gate = """
[[gates]]
metric = "e2e_ms"
question = "gain"
margin = 0.2
cut = "input_tokens=4096-16384"
"""
    gains = [each for each in made(ROUTING + gate).gates if each.question is Question.GAIN]
    assert [(each.metric, each.margin, str(each.cut)) for each in gains] == [
        (Metric.E2E_MS, 0.2, "input_tokens=4096-16384")
    ]


@pytest.mark.parametrize(
    ("line", "path"),
    [
        ('premise = "62% of computed prompt tokens were held by another replica"\n', "premise"),
        ('condition = "sessions that come back"\n', "condition"),
        ('failure_modes = ["one prefix draws everything to one replica"]\n', "failure_modes"),
        ('owner = "ada"\n', "owner"),
        ('diagnosis = "trimtab diagnose, Monday 10:00"\n', "diagnosis"),
        ('because = "prefill is two thirds of TTFT"\n', "because"),
    ],
)
def test_record_that_leaves_a_field_unsaid_is_refused(line: str, path: str) -> None:
    """Complete or refused, with the field's name."""
    assert line in ROUTING
    assert f"`{path}`" in refused(ROUTING.replace(line, "", 1))


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        ('owner = "ada"', 'owner = "ada"\ncolour = "red"', "unknown field `colour`"),
        ("off_at = 0.95", "off_att = 0.95", "$.triggers[0]"),
        ("spends = false", "spends = false\nmuch = 1", "$.moves[0]"),
        ('"label=chat"', '"colour=red"', "$.slice[0]: 'colour=red' is no cut"),
        ("spends = true", "spends = false", "no budget that pays"),
        ("on_at = 0.6", "on_at = 0.96", "no hysteresis"),
        ('policy = "prefix_affine"\n', "", "either `policy` (routing) or `[revision]`"),
        ("ratio = 0.7", "ratio = 0.95", "outside [low, high]"),
        ('owner = "ada"', 'owner = "ada"\nexpires_after = "soon"', "$.expires_after"),
        ("[bottleneck]", '[ramp]\npeak_cycle = "0h"\n\n[bottleneck]', "$.ramp.peak_cycle"),
        ("[bottleneck]", "[ramp]\nshares = [0.5, 0.99]\n\n[bottleneck]", "at most 0.95"),
        ("[bottleneck]", "[revision]\nslots = 8\n\n[bottleneck]", "not both"),
    ],
)
def test_wrong_record_is_refused_with_its_path(before: str, after: str, words: str) -> None:
    """Unknown keys, contradictions, nonsense: each names where."""
    assert before in ROUTING
    assert words in refused(ROUTING.replace(before, after, 1))


def test_revision_that_changes_nothing_is_refused() -> None:
    """There would be nothing to prove."""
    same = CHUNK.replace("chunk_tokens = 128", f"chunk_tokens = {REVISION.chunk_tokens}")
    assert "changes nothing" in refused(same)


def test_lossy_lever_must_say_how_quality_is_held() -> None:
    """KV precision can change outputs: no default stands for that judgement."""
    lossy = CHUNK.replace("chunk_tokens = 128", 'kv_type = "q8_0"')
    assert "$.quality_gate is missing" in refused(lossy)
    said = lossy.replace(
        'owner = "ada"', 'owner = "ada"\nquality_gate = "paired items within noise"'
    )
    assert made(said).narrowness.quality is QualityExposure.LOSSY


def test_broken_toml_names_the_file_and_the_place() -> None:
    """So that an editor can go there."""
    message = refused("name = \n")
    assert message.startswith("lever.toml is not valid TOML")
    assert "line 1" in message


def test_completed_record_survives_the_ledger() -> None:
    """Encoded and decoded it is the same."""
    record = made(CHUNK)
    assert msgspec.json.decode(msgspec.json.encode(record), type=LeverRecord) == record


def test_cut_is_read_from_its_own_text() -> None:
    """What `show` prints can be typed again."""
    cut = Cut(Dimension.INPUT_TOKENS, "256-1024")
    assert parse_cut(str(cut)) == cut


def known(text: str, **what: object) -> LeverRecord:
    """The record in a fleet that knows something."""
    return complete(
        parse_record(text, source="lever.toml"),
        baseline=REVISION,
        now_s=1000.0,
        known=Known(**what),  # type: ignore[arg-type]
    )


def test_metric_that_cannot_be_read_is_declared_absent_and_not_asked() -> None:
    """What the fleet cannot read and what the writer says: both are in the record, and no gate asks about them."""
    text = CHUNK.replace("failure_modes", 'absent = { ttft_ms = "no streams here" }\nfailure_modes')
    record = known(
        text.replace("[expected.ttft_ms]", "[expected.tpot_ms]"),
        absent={Metric.MEMORY_BYTES: "not ours"},
    )
    assert record.absent == {Metric.TTFT_MS: "no streams here", Metric.MEMORY_BYTES: "not ours"}
    asked = {gate.metric for gate in record.gates}
    assert not asked & set(record.absent)
    assert Metric.TPOT_MS in asked


def test_written_gate_on_an_absent_metric_is_refused() -> None:
    """A gate that could never be answered is no gate."""
    gate = '\n[[gates]]\nmetric = "memory_bytes"\nquestion = "veto"\nmargin = 0.1\n'
    with pytest.raises(LeverRecordError, match=r"\$\.gates\[0\] asks about memory_bytes.*not ours"):
        known(CHUNK + gate, absent={Metric.MEMORY_BYTES: "not ours"})


def test_unit_cost_is_asked_where_a_price_is_known() -> None:
    """From the fleet, or the record where the candidate's replicas cost something else; a written gate needs one."""
    assert Metric.UNIT_COST not in {gate.metric for gate in made(CHUNK).gates}
    fleets = known(CHUNK, price_per_replica_hour=2.0)
    assert fleets.price_per_replica_hour == 2.0
    assert Metric.UNIT_COST in {gate.metric for gate in fleets.gates}
    own = known("price_per_replica_hour = 3.5\n" + CHUNK, price_per_replica_hour=2.0)
    assert own.price_per_replica_hour == 3.5
    gate = '\n[[gates]]\nmetric = "unit_cost"\nquestion = "gain"\nmargin = 0.1\n'
    assert "no price is known" in refused(CHUNK + gate)


def test_slice_of_what_is_known_only_afterwards_is_refused() -> None:
    """A request cannot be kept in or out by how long its answer will be."""
    said = refused(ROUTING.replace('slice = ["label=chat"]', 'slice = ["output_tokens=16-64"]'))
    assert "$.slice[0]: output_tokens=16-64 is known only when a request has been served" in said
    said = refused('without = ["cache=hit"]\n' + ROUTING)
    assert "$.without[0]" in said


def test_header_in_a_slice_is_kept_hashed() -> None:
    """The value that was written is nowhere in the record."""
    text = ROUTING.replace('slice = ["label=chat"]', 'slice = ["header=X-Team:alpha-secret"]')
    record = known(text, hide=lambda cut: hidden(cut, lambda data: "f" * 32))
    assert [str(cut) for cut in record.cuts] == [f"header=x-team:{'f' * 16}"]
    assert "alpha-secret" not in msgspec.json.encode(record).decode()
    with pytest.raises(LeverRecordError, match=r"write header=NAME:VALUE"):
        known(text.replace(":alpha-secret", ""), hide=lambda cut: hidden(cut, lambda data: "f"))


def test_header_of_a_gate_or_a_trigger_is_kept_hashed() -> None:
    """What requests are told by is hashed as well, so only then does the cut meet them."""
    cut = 'cut = "header=X-Team:alpha-secret"'
    gate = f'\n[[gates]]\nmetric = "tpot_ms"\nquestion = "veto"\nmargin = 0.1\n{cut}\n'
    trigger = f"""
[[triggers]]
signal = "invalid_output_rate"
off_at = 0.1
off_when_above = true
action = "disable_cut"
because = "errors of one team"
{cut}
"""
    text = ROUTING.partition("[[triggers]]")[0] + trigger + gate
    with pytest.raises(LeverRecordError, match=r"gates\[0\].cut: no request is told by 'x-team'"):
        known(text, hide=lambda cut: hidden(cut, lambda data: "f" * 32))
    text = 'without = ["header=X-Team:alpha-secret"]\n' + text
    record = known(text, hide=lambda cut: hidden(cut, lambda data: "f" * 32))
    kept = Cut(Dimension.HEADER, f"x-team:{'f' * 16}")
    assert [each.cut for each in record.gates if each.cut is not None] == [kept]
    assert [each.cut for each in record.triggers if each.cut is not None] == [kept]
    assert "alpha-secret" not in msgspec.json.encode(record).decode()


SCORED = [
    '{"item": "q1", "baseline": 1, "candidate": 1, "cuts": ["header=X-Team:alpha-secret"]}',
    '{"cut": "header=X-Team:alpha-secret", "n": 1, "baseline_passed": 1, "candidate_passed": 1}',
]


@pytest.mark.parametrize("line", SCORED)
def test_header_of_a_scored_cut_is_kept_hashed_or_refused(line: str) -> None:
    """Scores go to the ledger: what the header says does not, whoever reads the file."""
    read = functools.partial(
        read_scores, line, source="items.jsonl", evaluation="eval", revision="x"
    )
    scores = read(hide=lambda cut: hidden(cut, lambda data: "f" * 32))
    assert [each.cut for each in scores.cuts] == ["all", f"header=x-team:{'f' * 16}"]
    with pytest.raises(LeverRecordError, match=r"items.jsonl, line 1: header cuts"):
        read()


def test_restarted_replica_gets_time_to_warm_up() -> None:
    """15 minutes of a day, a quarter of a shorter cycle, none for what swaps live, or what is written."""
    assert made(CHUNK).ramp.warm_up_s == 900.0
    assert made(CHUNK + '\n[ramp]\npeak_cycle = "20min"\n').ramp.warm_up_s == 300.0
    assert made(CHUNK + '\n[ramp]\nwarm_up = "2min"\n').ramp.warm_up_s == 120.0
    assert made(CHUNK + '\n[ramp]\nwarm_up = "0s"\n').ramp.warm_up_s == 0.0
    assert made(ROUTING).ramp.warm_up_s == 0.0


def test_another_artifact_is_looked_for_and_is_lossy() -> None:
    """The same name for clients, another file and checksum; without a quality gate it is refused."""
    text = CHUNK.replace("chunk_tokens = 128", 'model = "/models/q8.gguf"')
    text = text.replace('"prefill_chunking"', '"quantization"')
    found = Model(path="/models/q8.gguf", sha256="ab" * 32, name="q8")
    with pytest.raises(LeverRecordError, match=r"\$\.quality_gate is missing"):
        known(text, find_model=lambda path: found)
    record = known('quality_gate = "scored items"\n' + text, find_model=lambda path: found)
    assert record.revision is not None
    assert record.revision.model.sha256 == "ab" * 32
    assert record.revision.model.name == REVISION.model.name
    assert record.narrowness.quality is QualityExposure.LOSSY
    assert "$.revision.model '/models/q8.gguf' cannot be looked for" in refused(
        'quality_gate = "scored items"\n' + text
    )


@pytest.mark.parametrize(("asked", "found"), [("64", 64), ('"recorded"', 37)])
def test_peak_concurrency_is_written_or_taken_from_what_is_recorded(asked: str, found: int) -> None:
    """Of the last peak cycle, as long as the record says that is."""
    seen: list[float] = []

    def busiest(last_s: float) -> int:
        seen.append(last_s)
        return 37

    text = f'{ROUTING}[ramp]\npeak_cycle = "12h"\npeak_concurrency = {asked}\n'
    short = parse_record(text, source="lever.toml")
    known = Known(peak_concurrency=busiest)
    record = complete(short, baseline=REVISION, now_s=1000.0, known=known)
    assert record.ramp.peak_concurrency == found
    assert seen == ([] if found == 64 else [12 * 3600.0])


def test_peak_that_nobody_recorded_is_refused() -> None:
    """A cycle that waits for an unknown peak would never end by it."""
    text = f'{ROUTING}[ramp]\npeak_concurrency = "recorded"\n'
    said = refused(text)
    assert "$.ramp.peak_concurrency: no request of the last peak cycle" in said
    assert "the ledger does not reach back so far (ledger.keep_events)" in said


VLLM = REVISION.replace(engine="vllm", engine_version="0.32.0", kv_type="unknown")
LOSSY_KV = CHUNK.replace("chunk_tokens = 128", 'kv_type = "{kv}"').replace(
    'owner = "ada"', 'owner = "ada"\nquality_gate = "paired items within noise"'
)


def with_kv(kv_type: str, baseline: Revision, device: KvDevice = KvDevice.UNKNOWN) -> LeverRecord:
    """A record that lowers KV, in a fleet of some engine on some device."""
    short = parse_record(LOSSY_KV.replace("{kv}", kv_type), source="lever.toml")
    return complete(short, baseline=baseline, now_s=1000.0, known=Known(kv_device=device))


@pytest.mark.parametrize(
    ("baseline", "kv_type"),
    [
        (VLLM, "fp8"),
        (VLLM, "fp8_e4m3"),
        (VLLM, "fp8_e5m2"),
        (VLLM, "auto"),
        (VLLM.replace(engine="sglang"), "fp8_e5m2"),
        (REVISION, "q8_0"),
        (REVISION, "q4_0"),
    ],
)
def test_kv_type_that_the_engine_of_the_fleet_can_hold_is_taken(
    baseline: Revision, kv_type: str
) -> None:
    """Each engine has names of its own for its KV precisions."""
    record = with_kv(kv_type, baseline)
    assert record.revision is not None
    assert record.revision.kv_type == kv_type


@pytest.mark.parametrize(
    ("baseline", "kv_type", "words"),
    [
        (VLLM, "q8_0", "vllm does not hold its KV cache in 'q8_0': use one of auto, fp8, fp8_e4m3"),
        (REVISION, "fp8", "llamacpp does not hold its KV cache in 'fp8': use one of f16, bf16"),
        (VLLM, "int8_per_token_head", "without a word and answers with garbage"),
        (VLLM, "fp8_per_token_head", "without a word and answers with garbage"),
        (
            VLLM,
            "turboquant_4bit_nc",
            "is not told: use one of auto, fp8, fp8_e4m3, fp8_e5m2, or name",
        ),
        (VLLM.replace(engine="unknown"), "fp8", "is known of llamacpp, sglang, vllm"),
    ],
)
def test_kv_type_that_the_engine_cannot_hold_is_refused_with_its_choices(
    baseline: Revision, kv_type: str, words: str
) -> None:
    """Also one that would start without a word; the key is named."""
    with pytest.raises(LeverRecordError) as error:
        with_kv(kv_type, baseline)
    assert str(error.value).startswith("$.revision.kv_type: ")
    assert words in str(error.value)


@pytest.mark.parametrize("kv_type", sorted(GARBAGE_KV_TYPES))
def test_kv_type_that_is_garbage_on_cpus_is_judged_by_the_device(kv_type: str) -> None:
    """Refused on CPUs with what was seen there; on an accelerator taken, and what is not known stands in the record."""
    with pytest.raises(LeverRecordError, match=r"on CPUs starts with .* answers with garbage: use"):
        with_kv(kv_type, VLLM, KvDevice.CPU)
    record = with_kv(kv_type, VLLM, KvDevice.ACCELERATOR)
    assert record.failure_modes[-1] == (
        f"KV in {kv_type} was not tried on an accelerator with vllm: it may be refused, idle or garbage there; vllm on "
        f"CPUs starts with {kv_type} without a word and answers with garbage"
    )


@pytest.mark.parametrize("kv_type", ["bfloat16", "nvfp4", "fp8_ds_mla"])
def test_kv_type_that_vllm_names_is_refused_only_where_its_cpus_do_not_hold_it(
    kv_type: str,
) -> None:
    """What CPUs take says nothing of accelerators; what vLLM does not name is refused everywhere."""
    with pytest.raises(LeverRecordError, match="vllm on CPUs does not hold its KV cache in"):
        with_kv(kv_type, VLLM, KvDevice.CPU)
    for device in (KvDevice.ACCELERATOR, KvDevice.UNKNOWN):
        record = with_kv(kv_type, VLLM, device)
        assert f"KV in {kv_type} was not tried on" in record.failure_modes[-1]
        with pytest.raises(LeverRecordError, match="vllm does not hold its KV cache in 'q8_0'"):
            with_kv("q8_0", VLLM, device)


def test_kv_type_that_was_seen_to_work_adds_no_failure_mode() -> None:
    """On the device it was seen on; elsewhere that is said."""
    plain = parse_record(LOSSY_KV.replace("{kv}", "fp8"), source="lever.toml").failure_modes
    assert with_kv("fp8", VLLM, KvDevice.CPU).failure_modes == plain
    assert with_kv("q8_0", REVISION, KvDevice.CPU).failure_modes == plain
    (said,) = with_kv("fp8", VLLM, KvDevice.ACCELERATOR).failure_modes[len(plain) :]
    assert said.startswith(
        "KV in fp8 was not tried on an accelerator with vllm, only on CPUs, where"
    )
    (said,) = with_kv(
        "fp8_e5m2", VLLM.replace(engine="sglang"), KvDevice.ACCELERATOR
    ).failure_modes[len(plain) :]
    assert "with sglang: it may be refused" in said
