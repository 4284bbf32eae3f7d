"""The ladder, the verdict of a rung, and the choice among rungs."""

import math

import msgspec
import pytest

from trimtab.core.stats import Interval
from trimtab.core.types import Verdict
from trimtab.engines.gguf_tensors import ATTENTION, FEED_FORWARD, LINEAR, Group, TensorKind
from trimtab.quality.ladder import (
    Bar,
    Ratio,
    Rung,
    RungResult,
    Speed,
    Stage,
    bar_of,
    choose,
    is_shown_faster,
    llamacpp_ladder,
    ratio_of,
    verdict_of,
    why_not_faster,
)
from trimtab.quality.paired import Direction, Margin, PairedResult

MARGIN = Margin(value=0.02, unit="nats", direction=Direction.LOWER_IS_BETTER)


def gate(verdict: Verdict, harm: float = 0.0) -> PairedResult:
    return PairedResult(
        verdict=verdict,
        because=f"made {verdict.value}",
        n=20,
        harm=harm,
        interval=Interval(low=harm - 0.01, high=harm + 0.01, level=0.95),
        margin=MARGIN,
        base=2.0,
        candidate=2.0 + harm,
    )


def ratio(value: float, width: float = 0.02) -> Ratio:
    return Ratio(
        n=6,
        ratio=value,
        interval=Interval(low=value - width, high=value + width, level=0.95),
        base=1.0,
        rung=value,
    )


def result(
    name: str,
    bits: float,
    score: float,
    kinds: dict[str, Verdict],
    *,
    verdict: Verdict | None = None,
    kv: str = "f16",
    shipped: bool = False,
    width: float = 0.02,
    elsewhere: Verdict = Verdict.PASS,
    kv_bytes: float | None = None,
) -> RungResult:
    original = name == "f16"
    rung = Rung(
        name=name,
        stages=(Stage.ORIGINAL,) if original and kv == "f16" else (Stage.WEIGHTS,),
        kinds={} if original else {Group.FFN_UP: TensorKind.Q8_0},
        kv_type=kv,
        shipped=shipped,
    )
    worst = Verdict.FAIL if Verdict.FAIL in kinds.values() else Verdict.PASS
    speed = Speed(
        ttft_ms=ratio(score),
        tpot_ms=ratio(score, width),
        tokens_per_s={4: ratio(1.0 / score)},
        score=ratio(score, width),
    )
    return RungResult(
        rung=rung,
        verdict=verdict or worst,
        because="measured",
        kinds=kinds,
        elsewhere=elsewhere,
        quality={},
        speed=speed,
        effective={},
        bits_per_weight=bits,
        file_bytes=int(bits * 1e7),
        resident_bytes=None,
        kv_bytes_per_token=kv_bytes,
    )


BOTH_PASS = {"code": Verdict.PASS, "prose": Verdict.PASS}
ORIGINAL = result("f16", 16, 1.0, BOTH_PASS)


def test_kv_is_lowered_on_top_of_weights_that_have_not_failed() -> None:
    """Each rung with lowered KV names the one with the same weights."""
    ladder = llamacpp_ladder(FEED_FORWARD, kv_types=("f16", "q8_0"))
    names = {rung.label for rung in ladder}
    assert all(rung.after == "" for rung in ladder if rung.kv_type == "f16")
    lowered = [rung for rung in ladder if rung.kv_type != "f16"]
    assert [rung.after for rung in lowered] == [rung.name for rung in lowered]
    assert {rung.after for rung in lowered} <= names


def test_ladder_has_the_original_first_and_every_kv_type() -> None:
    """Nine weights by two KV types, nothing lowered in the first."""
    ladder = llamacpp_ladder(None, shipped="q4_1")
    assert len(ladder) == 18
    assert ladder[0].is_original
    assert {rung.kv_type for rung in ladder} == {"f16", "q8_0"}
    assert len({rung.label for rung in ladder}) == 18


def test_groups_that_stay_high_are_never_below_eight_bits_but_in_the_last_rung() -> None:
    """Sensitive layers are held where the others go down."""
    ladder = llamacpp_ladder(FEED_FORWARD, kv_types=("f16",))
    mixed = [rung for rung in ladder if "rest q8_0" in rung.name]
    assert len(mixed) == 3
    for rung in mixed:
        assert {rung.kinds[group] for group in ATTENTION} == {TensorKind.Q8_0}


def test_sensitivity_decides_which_groups_go_first() -> None:
    """What is shown harmless is lowered, whatever its kind."""
    lowered = (Group.ATTENTION_Q, Group.FFN_UP)
    ladder = llamacpp_ladder(lowered, kv_types=("f16",))
    four = next(rung for rung in ladder if rung.name.endswith("q4_0, rest q8_0"))
    low = {group for group, kind in four.kinds.items() if kind is TensorKind.Q4_0}
    assert low == set(lowered)


def test_sensitivity_that_allows_nothing_lowers_nothing_first() -> None:
    """Shown harmful everywhere: only whole rungs are left, and none has a name without a file of its own."""
    ladder = llamacpp_ladder((), kv_types=("f16",))
    assert [rung.name for rung in ladder] == ["f16", "bf16", "q8_0", "q4_0"]
    assert all(rung.kinds for rung in ladder[1:])


def test_no_rung_is_there_twice() -> None:
    """All linear groups harmless: what goes first is everything."""
    ladder = llamacpp_ladder(LINEAR, kv_types=("f16",))
    assert len({tuple(rung.kinds.items()) for rung in ladder}) == len(ladder)


def test_fewer_kv_bytes_count_where_kv_binds() -> None:
    """Half the KV at equal speed is worth it then, unless it is shown to be slower."""
    plain = result("q8", 8, 0.7, BOTH_PASS, kv_bytes=200.0)
    equal = result("q8", 8, 0.71, BOTH_PASS, kv="q8_0", kv_bytes=100.0)
    slower = result("q8", 8, 0.9, BOTH_PASS, kv="q8_0", kv_bytes=100.0)
    assert choose([ORIGINAL, plain, equal], kv_binds=True).rung == "q8, KV q8_0"
    assert choose([ORIGINAL, plain, slower], kv_binds=True).rung == "q8"
    assert choose([ORIGINAL, plain, equal], kv_binds=False).rung == "q8"


def test_verdict_needs_every_required_gate() -> None:
    """A missing one holds, a fail anywhere fails, a hold outside of the required ones does not."""
    passed, held, failed = gate(Verdict.PASS), gate(Verdict.HOLD), gate(Verdict.FAIL)
    assert verdict_of({"a": passed, "b": held}, required=["a"])[0] is Verdict.PASS
    assert verdict_of({"a": passed}, required=["a", "b"])[0] is Verdict.HOLD
    assert verdict_of({"a": passed, "b": failed}, required=["a"])[0] is Verdict.FAIL
    assert verdict_of({}, required=[])[0] is Verdict.HOLD


def test_choice_is_not_the_fewest_bits() -> None:
    """Four bits that are no faster than eight lose to eight."""
    eight, four = result("q8", 8, 0.7, BOTH_PASS), result("q4", 4, 0.69, BOTH_PASS)
    assert choose([ORIGINAL, eight, four], kv_binds=False).rung == "q8"


def test_choice_takes_fewer_bits_where_they_are_told_apart() -> None:
    """Clearly faster and of passing quality."""
    eight, four = result("q8", 8, 0.7, BOTH_PASS), result("q4", 4, 0.5, BOTH_PASS)
    assert choose([ORIGINAL, eight, four], kv_binds=False).rung == "q4"


def test_rung_inside_the_noise_of_a_better_one_of_more_bits_is_not_taken() -> None:
    """0.85 [0.83, 0.87] lies below the 0.90 of more bits, which may be anything from 0.80 to 1.00 itself."""
    original = result("f16", 16.0, 1.0, BOTH_PASS)
    wide = result("q8_0", 8.5, 0.89, BOTH_PASS, width=0.10)
    narrow = result("q5_0", 5.5, 0.85, BOTH_PASS, width=0.02)
    assert choose([original, wide, narrow], kv_binds=False).rung == "q8_0"
    faster = result("q5_0", 5.5, 0.70, BOTH_PASS, width=0.02)
    assert choose([original, wide, faster], kv_binds=False).rung == "q5_0"


def test_two_rungs_are_told_apart_by_the_noise_of_both() -> None:
    """An interval against a point would forget that the point was measured, too."""
    assert not is_shown_faster(ratio(0.85), ratio(0.87))
    assert is_shown_faster(ratio(0.80), ratio(0.87))
    assert not is_shown_faster(ratio(0.87), ratio(0.80))
    unknown = msgspec.structs.replace(ratio(0.1), interval=None)
    assert not is_shown_faster(unknown, ratio(0.87))


def test_rung_that_fails_everywhere_is_never_chosen() -> None:
    """However fast."""
    bad = result("q4", 4, 0.3, {"code": Verdict.FAIL, "prose": Verdict.FAIL})
    assert choose([ORIGINAL, bad], kv_binds=False).rung == "f16"


def test_rung_that_harms_code_is_refused_for_code_only() -> None:
    """Prose may have it, and the choice says what must stay."""
    mixed = result("q4", 4, 0.5, {"code": Verdict.FAIL, "prose": Verdict.PASS})
    choice = choose([ORIGINAL, mixed], kv_binds=False)
    assert (choice.rung, choice.refused_for) == ("q4", ("code",))


def test_rung_that_serves_all_kinds_is_not_given_up_for_a_faster_one_that_does_not() -> None:
    """Narrower use is no gain."""
    whole = result("q8", 8, 0.7, BOTH_PASS)
    part = result("q4", 4, 0.5, {"code": Verdict.FAIL, "prose": Verdict.PASS})
    assert choose([ORIGINAL, whole, part], kv_binds=False).rung == "q8"


def test_held_rung_is_not_chosen() -> None:
    """An inconclusive benchmark is no pass."""
    held = result("q8", 8, 0.5, {"code": Verdict.HOLD, "prose": Verdict.PASS}, verdict=Verdict.HOLD)
    assert choose([ORIGINAL, held], kv_binds=False).rung == "f16"


def test_rung_held_for_its_evals_is_not_chosen() -> None:
    """Texts passed, a required benchmark was inconclusive."""
    held = result("q8", 8, 0.5, BOTH_PASS, verdict=Verdict.HOLD)
    assert choose([ORIGINAL, held], kv_binds=False).rung == "f16"


def test_rung_that_harms_elsewhere_is_not_saved_by_one_kind() -> None:
    """Its own writing decays: no kind of text makes up for that."""
    kinds = {"code": Verdict.FAIL, "prose": Verdict.PASS}
    bad = result("q4", 4, 0.5, kinds, elsewhere=Verdict.FAIL)
    assert choose([ORIGINAL, bad], kv_binds=False).rung == "f16"


def test_rung_exact_by_construction_is_no_evidence() -> None:
    """The file that the original was expanded from is never the answer."""
    shipped = result("q4_1 as shipped", 5, 0.4, BOTH_PASS, shipped=True)
    assert choose([ORIGINAL, shipped], kv_binds=False).rung == "f16"


def test_kv_precision_is_recommended_only_where_kv_binds() -> None:
    """Measured always, taken only for a reason."""
    kv = result("f16", 16, 0.8, BOTH_PASS, kv="q8_0")
    assert choose([ORIGINAL, kv], kv_binds=False).rung == "f16"
    assert choose([ORIGINAL, kv], kv_binds=True).rung == "f16, KV q8_0"


def test_rung_that_may_be_slower_is_not_taken() -> None:
    """Its interval reaches beyond the original."""
    unsure = result("q8", 8, 0.95, BOTH_PASS, width=0.1)
    assert choose([ORIGINAL, unsure], kv_binds=False).rung == "f16"


def test_ratio_is_of_rounds_in_pairs() -> None:
    """A machine that slows down for both changes nothing."""
    found = ratio_of([10.0, 20.0, 40.0], [5.0, 10.0, 20.0])
    assert found.ratio == pytest.approx(0.5)
    assert found.interval is not None
    assert math.isclose(found.interval.low, found.interval.high)


def test_rung_no_faster_than_the_original_beside_itself_is_not_chosen() -> None:
    """Where the original beside itself is shown to differ, so much is no gain of a rung."""
    biased = result("f16", 16, 0.92, BOTH_PASS)
    near, far = result("near", 9, 0.91, BOTH_PASS), result("far", 8, 0.8, BOTH_PASS)
    assert choose([ORIGINAL, near], kv_binds=False).rung == "near"
    assert choose([biased, near], kv_binds=False).rung == "f16"
    assert choose([biased, near, far], kv_binds=False).rung == "far"
    slower = result("f16", 16, 1.1, BOTH_PASS)
    assert choose([slower, near], kv_binds=False).rung == "near"


def test_rung_inside_the_bounds_of_the_original_beside_itself_is_not_chosen() -> None:
    """Its own interval may lie below 1: the original came out that far from itself, too."""
    noisy = result("f16", 16, 0.98, BOTH_PASS, width=0.1)
    inside, below = result("inside", 9, 0.92, BOTH_PASS), result("below", 9, 0.87, BOTH_PASS)
    assert choose([noisy, inside], kv_binds=False).rung == "f16"
    assert choose([noisy, below], kv_binds=False).rung == "below"
    wide = result("below", 9, 0.87, BOTH_PASS, width=0.14)
    assert choose([noisy, wide], kv_binds=False).rung == "f16"


def test_rung_that_does_not_lower_kv_is_held_to_the_bar_after_one_that_does() -> None:
    """KV may be best without being faster; weights that are lowered after it have to be."""
    noisy = result("f16", 16, 1.0, BOTH_PASS, width=0.1, kv_bytes=200.0)
    kv = result("f16", 16, 0.99, BOTH_PASS, kv="q8_0", kv_bytes=100.0)
    inside = result("q8", 8, 0.95, BOTH_PASS, kv_bytes=200.0)
    below = result("q8", 8, 0.85, BOTH_PASS, kv_bytes=200.0)
    assert choose([noisy, kv, inside], kv_binds=True).rung == "f16, KV q8_0"
    assert choose([noisy, kv, below], kv_binds=True).rung == "q8"


def test_kv_type_of_as_many_bytes_is_no_gain_where_kv_binds() -> None:
    """bf16 in the place of f16 spares nothing: it has to be faster as any other rung."""
    original = result("f16", 16, 1.0, BOTH_PASS, kv_bytes=200.0)
    other = result("f16", 16, 0.99, BOTH_PASS, kv="bf16", kv_bytes=200.0)
    assert choose([original, other], kv_binds=True).rung == "f16"


def test_why_a_rung_is_not_faster_has_its_interval_and_the_bar() -> None:
    """Both conditions say what they hold a rung to."""
    bar = bar_of(result("f16", 16, 1.0, BOTH_PASS, width=0.1))
    assert (bar.high, bar.ratio) == (1.0, 0.9)
    assert why_not_faster(ratio(0.85), bar) == ""
    assert (
        why_not_faster(ratio(0.99), bar) == "0.990 [0.970, 1.010] does not lie below the bar 1.000"
    )
    inside = why_not_faster(ratio(0.93), bar)
    assert inside.startswith("0.930 [0.910, 0.950] lies below 1.000, but its ratio is not below")
    assert "the bar 0.900, the low end of the original beside itself" in inside
    assert bar_of(msgspec.structs.replace(ORIGINAL, speed=None)) == Bar()
