"""A short TOML record becomes a whole one, or is refused with the path of what is wrong."""

import msgspec
import pytest
from events_kit import REVISION

from trimtab.core.cuts import Cut, Dimension
from trimtab.core.gate import Metric, Question
from trimtab.core.lever import (
    Actuation,
    Comparison,
    LeverRecord,
    LeverRecordError,
    QualityExposure,
    check_record,
)
from trimtab.core.types import Mode, RolloutState
from trimtab.rollout.short_record import complete, parse_cut, parse_record
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
