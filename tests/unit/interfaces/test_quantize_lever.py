"""What a walk over precisions writes: a lever record that can be proposed, scores, a table and a page."""

import json
import tomllib
from pathlib import Path

import msgspec
import pytest

from trimtab.core.stats import Interval
from trimtab.core.types import Technique, Verdict
from trimtab.engines.gguf_tensors import Group, TensorKind
from trimtab.interfaces.quantize_html import held_rows, page
from trimtab.interfaces.quantize_lever import floor_words, lever_record, scores
from trimtab.interfaces.quantize_picture import figures_of, quality_picture
from trimtab.interfaces.quantize_view import noise_floor_words, rows_of
from trimtab.quality.eval_scores import EvalAnswer, EvalOutcome
from trimtab.quality.ladder import Ratio, Rung, RungChoice, RungResult, Speed, Stage
from trimtab.quality.paired import Direction, Margin, PairedResult
from trimtab.quality.quantized import Plan, Quantized
from trimtab.rollout.short_record import parse_record

MARGIN = Margin(value=0.02, unit="nats a token", direction=Direction.LOWER_IS_BETTER)


def ratio(value: float) -> Ratio:
    bounds = Interval(low=value - 0.02, high=value + 0.02, level=0.95)
    return Ratio(n=4, ratio=value, interval=bounds, base=20.0, rung=20.0 * value)


def result(name: str, tpot: float, kinds: dict[str, Verdict], kv: str = "f16") -> RungResult:
    gate = PairedResult(
        verdict=Verdict.PASS,
        because="within",
        n=16,
        harm=0.002,
        interval=Interval(low=-0.003, high=0.007, level=0.95),
        margin=MARGIN,
        base=2.0,
        candidate=2.002,
    )
    original = name == "f16"
    return RungResult(
        rung=Rung(
            name=name,
            stages=(Stage.ORIGINAL,) if original else (Stage.WEIGHTS,),
            kinds={} if original else {Group.FFN_UP: TensorKind.Q8_0},
            kv_type=kv,
        ),
        verdict=Verdict.PASS,
        because="log loss, code: within",
        kinds=kinds,
        elsewhere=Verdict.PASS,
        quality={f"log loss, {kind}": gate for kind in kinds},
        speed=Speed(
            ttft_ms=ratio(0.8), tpot_ms=ratio(tpot), tokens_per_s={4: ratio(1.3)}, score=ratio(tpot)
        ),
        effective={"ffn_up": {"q8_0": 30}},
        bits_per_weight=16.0 if original else 8.6,
        file_bytes=270_000_000 if original else 145_000_000,
        resident_bytes=300_000_000,
        kv_bytes_per_token=23_040.0,
        items=(
            EvalOutcome("a", "support", EvalAnswer((True,), 300)),
            EvalOutcome("b", "support", EvalAnswer((False, True))),
        ),
    )


BOTH = {"code": Verdict.PASS, "prose": Verdict.PASS}


def found(
    chosen: RungResult, *, refused: tuple[str, ...] = (), artifact: str | None = "m.gguf"
) -> Quantized:
    return Quantized(
        engine="llamacpp/1",
        model="model.gguf",
        model_sha256="0" * 64,
        original="f16.gguf",
        original_note="the file as it was given",
        plan=Plan(
            positions={"code": 512, "prose": 512},
            blocks={"code": 16, "prose": 16},
            block_tokens=32,
            margin_nats=0.02,
            spread_max={"code": 0.025, "prose": 0.025},
            free_prompts=12,
            eval_items=2,
            eval_items_total=2,
            rounds=4,
            concurrencies=(2, 4),
        ),
        repeats_exactly=True,
        repeat_spread=0.0,
        sensitivity=None,
        results=(result("f16", 1.0, BOTH), chosen),
        choice=RungChoice(rung=chosen.rung.label, because="faster", refused_for=refused),
        confirmation=None,
        artifact=artifact,
        lever_record=None,
        kv_binds=False,
        notes=(),
        machine="here",
        took_s=1.0,
        items=(
            EvalOutcome("a", "support", EvalAnswer((True,), 300)),
            EvalOutcome("b", "support", EvalAnswer((True, True))),
        ),
    )


def test_record_can_be_proposed_as_it_is() -> None:
    """The parser of lever records takes it; the model is an absolute path; what was measured is in it."""
    text = lever_record(found(result("q8_0", 0.7, BOTH)))
    assert text is not None
    short = parse_record(text, source="lever.toml")
    assert short.technique is Technique.QUANTIZATION
    assert short.revision is not None
    assert short.revision.model == str(Path("m.gguf").resolve())
    assert tomllib.loads(text)["expected"]["tpot_ms"]["ratio"] == pytest.approx(0.7)


def test_record_leaves_out_what_was_refused() -> None:
    """Harmful on code, fine on prose: the slice is prose."""
    mixed = result("q4_0", 0.6, {"code": Verdict.FAIL, "prose": Verdict.PASS})
    text = lever_record(found(mixed, refused=("code",)))
    assert text is not None
    record = tomllib.loads(text)
    assert record["slice"] == ["label=prose"]
    assert record["condition"] == "requests labelled prose; code must stay with the original"
    assert "(prose)" in record["quality_gate"]


def test_record_claims_no_share_of_a_memory_that_was_not_measured() -> None:
    """A file of half the size is not half of a machine's memory: the size is told, the share is not known."""
    text = lever_record(found(result("q8_0", 0.7, BOTH)))
    assert text is not None
    (memory,) = [each for each in tomllib.loads(text)["moves"] if each["budget"] == "memory"]
    assert "delta_share" not in memory
    assert memory["because"] == "weights of 8.6 bits: a file of 145 MB instead of 270 MB"
    (move,) = [
        each for each in parse_record(text, source="x").moves if each.budget.value == "memory"
    ]
    assert move.delta_share is None


def test_record_names_the_kv_precision_where_it_is_another() -> None:
    """KV belongs to the revision."""
    text = lever_record(found(result("q8_0", 0.7, BOTH, kv="q8_0")))
    assert text is not None
    assert tomllib.loads(text)["revision"]["kv_type"] == "q8_0"


def test_record_is_toml_whatever_stands_in_kinds_and_paths() -> None:
    """Quotes, an end of line, a sign beyond 16 bits: they are read back as they were."""
    odd, bad = 'say "so" \U0001f600', "two\nlines"
    mixed = result("q8_0", 0.7, {odd: Verdict.PASS, bad: Verdict.FAIL})
    answer = found(mixed, refused=(bad,), artifact='a "model" \U0001f600.gguf')
    chosen = msgspec.structs.replace(mixed, because=f"log loss, {bad}: within")
    text = lever_record(msgspec.structs.replace(answer, results=(answer.results[0], chosen)))
    assert text is not None
    record = tomllib.loads(text)
    assert record["slice"] == [f"label={odd}"]
    assert record["condition"] == (f"requests labelled {odd}; {bad} must stay with the original")
    assert record["revision"]["model"] == str(Path('a "model" \U0001f600.gguf').resolve())
    assert odd in record["quality_gate"]


def test_record_asks_of_scores_what_the_walk_asked() -> None:
    """The margin of its evals, and also where lm-eval alone gave the items."""
    answer = found(result("q8_0", 0.7, BOTH))
    plan = msgspec.structs.replace(answer.plan, eval_items=0, eval_margin=0.05)
    text = lever_record(msgspec.structs.replace(answer, plan=plan))
    assert text is not None
    assert [gate["margin"] for gate in tomllib.loads(text)["gates"]] == [0.05]
    without = lever_record(msgspec.structs.replace(answer, items=()))
    assert without is not None
    assert "gates" not in tomllib.loads(without)


def test_original_needs_no_record() -> None:
    """Nothing is moved."""
    stays = found(result("q8_0", 0.7, BOTH), artifact=None)
    assert lever_record(stays) is None


def test_scores_pair_the_items_of_both_arms() -> None:
    """One line an item and seeded run, with the length of its prompt, as `rollout score` reads them."""
    lines = scores(found(result("q8_0", 0.7, BOTH)))
    assert lines is not None
    cuts = {"cuts": ["label=support"]}
    assert [json.loads(line) for line in lines.splitlines()] == [
        {"item": "a", "baseline": 1, "candidate": 1, "input_tokens": 300, **cuts},
        {"item": "b#1", "baseline": 1, "candidate": 0, **cuts},
        {"item": "b#2", "baseline": 1, "candidate": 1, **cuts},
    ]


def test_noise_floor_is_handed_on_as_options() -> None:
    """The largest floor of all kinds, and of how many runs; nothing where nothing was sampled."""
    answer = found(result("q8_0", 0.7, BOTH))
    assert floor_words(answer) == ""
    plan = msgspec.structs.replace(answer.plan, eval_runs=3)
    noisy = msgspec.structs.replace(answer, plan=plan, floors={"a": 0.01, "b": 0.025})
    assert floor_words(noisy) == " --floor 0.0250 --floor-runs 3"


def test_table_and_page_tell_every_rung_and_gate() -> None:
    """Each number with its interval; the chosen rung is marked; nothing is fetched from elsewhere."""
    answer = found(result("q8_0", 0.7, BOTH))
    rows = rows_of(answer)
    assert [row[0] for row in rows] == ["f16, beside itself", "q8_0 \u2190"]
    assert "n=16" in rows[1][6]
    shown = page(answer)
    assert shown.count("log loss, code") >= 2
    assert "http://" not in shown.replace("http://www.w3.org/2000/svg", "")


def test_picture_has_a_numbered_mark_whiskers_and_a_line_in_the_legend_for_each_rung() -> None:
    """Both intervals are drawn, the margin too; the chosen rung is pointed at; verdicts stand in words."""
    drawn = quality_picture(found(result("q8_0", 0.7, BOTH)), "code")
    assert drawn.count("<circle") == 2
    assert drawn.count('class="whisker final"') == 4
    assert drawn.count('class="limit"') == 1
    assert "1  f16: \u2713 pass<" in drawn
    assert "2  q8_0: \u2713 pass \u2190<" in drawn
    [_, figures] = figures_of(found(result("q8_0", 0.7, BOTH)), "code")
    assert figures[:3] == ("2", "q8_0", "\u2713 pass")
    assert figures[4] == "0.70 [0.68, 0.72]"


def test_page_tells_what_was_read_back_of_every_file() -> None:
    """Rungs that hold the same are told once; a KV precision that the engine tells is another row."""
    one, other = result("q8_0", 0.7, BOTH), result("q8_0", 0.7, BOTH, kv="q8_0")
    answer = found(one)
    both = msgspec.structs.replace(answer, results=(*answer.results, other))
    assert held_rows(both) == [("f16", "ffn_up", "30 q8_0"), ("q8_0", "ffn_up", "30 q8_0")]
    told = msgspec.structs.replace(other, effective={**other.effective, "kv": {"fp8": 1}})
    assert held_rows(msgspec.structs.replace(answer, results=(one, told)))[1:] == [
        ("q8_0, KV q8_0", "ffn_up", "30 q8_0"),
        ("q8_0, KV q8_0", "kv", "1 fp8"),
    ]


def test_answer_survives_json() -> None:
    """What scripts read is what was found."""
    answer = found(result("q8_0", 0.7, BOTH))
    assert msgspec.json.decode(msgspec.json.encode(answer), type=Quantized) == answer


def test_record_for_vllm_says_how_its_servers_are_started() -> None:
    """The folder that was measured, with its KV type; the parser takes the rest as any record."""
    chosen = result("w8a8", 0.8, BOTH, kv="fp8")
    text = lever_record(
        msgspec.structs.replace(found(chosen, artifact="out/m w8a8"), engine="vllm/0.32.0")
    )
    assert text is not None
    folder = Path("out/m w8a8").resolve()
    assert f"trimtab engine vllm --model '{folder}' --kv-dtype fp8" in text
    assert tomllib.loads(text)["revision"]["kv_type"] == "fp8"


def test_original_beside_itself_is_shown_as_the_noise_floor() -> None:
    """Its own line has its intervals, and words say below what a rung is faster."""
    walk = found(result("q8", 0.8, BOTH))
    assert [row[0] for row in rows_of(walk)] == ["f16, beside itself", "q8 \u2190"]
    floor = noise_floor_words(walk)[0]
    assert "f16 beside itself in 4 rounds" in floor
    assert "TPOT 1.00 [0.98, 1.02]" in floor
    assert "are below 0.980 and all of their interval is below 1.000" in floor
    assert floor in page(walk)


def test_original_that_differs_from_itself_is_said_to() -> None:
    """Then its two arms are not alike, and such a difference is no rung's gain."""
    biased = result("f16", 0.92, BOTH)
    walk = msgspec.structs.replace(
        found(result("q8", 0.8, BOTH)), results=(biased, result("q8", 0.8, BOTH))
    )
    assert "differs from itself beyond noise" in noise_floor_words(walk)[1]
    assert "TPOT" in noise_floor_words(walk)[1]
    unmeasured = msgspec.structs.replace(biased, speed=None)
    assert noise_floor_words(msgspec.structs.replace(walk, results=(unmeasured,))) == ()
