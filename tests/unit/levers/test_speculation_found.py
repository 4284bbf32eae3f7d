"""What is said of measured drafting: the depth by batch, cuts that gain, validity before every gain."""

import pytest

from trimtab.core.stats import Interval
from trimtab.levers.speculation_depths import DepthPlan, PointFigures, plan_depths
from trimtab.levers.speculation_found import (
    CutFigures,
    Pays,
    judge_cut,
    schema_combinable,
    verdict,
)
from trimtab.policies.ngram_drafts import DraftCounts
from trimtab.quality.ladder import Ratio


def ratio(value: float, half: float = 0.02) -> Ratio:
    bounds = Interval(low=value - half, high=value + half, level=0.95)
    return Ratio(n=3, ratio=value, interval=bounds, base=1.0, rung=value)


def point(
    batch: int, depth: int, predicted: float, measured: float, half: float = 0.02
) -> PointFigures:
    gain = None if depth == 0 else ratio(10.0 / measured, half)
    return PointFigures(
        batch=batch,
        depth=depth,
        predicted_tpot_ms=predicted,
        measured_tpot_ms=measured,
        tokens_per_s=gain,
    )


def measured(*gains: tuple[int, int, float], half: float = 0.02) -> list[PointFigures]:
    """Points of (batch, depth, gain), predicted as measured, and one without drafts at each of their batches."""
    batches = dict.fromkeys(batch for batch, _, _ in gains)
    return [
        *(point(batch, 0, 10.0, 10.0) for batch in batches),
        *(point(batch, depth, 10.0 / gain, 10.0 / gain, half) for batch, depth, gain in gains),
    ]


def said(
    points: list[PointFigures], batch: int, depth: int, gaining: tuple[str, ...] = ("edit",)
) -> tuple[bool, str, DepthPlan]:
    """The verdict at a batch for the depth that a replica would run, and the plan it is of."""
    plan = plan_depths(points, depth)
    chosen = next(one for one in plan.choices if one.batch == batch)
    pays, because = verdict(chosen, depth, points, gaining, plan)
    return pays, because, plan


@pytest.mark.parametrize(
    ("found", "off", "on", "pays"),
    [
        (ratio(0.7), None, None, Pays.GAINS),
        (ratio(1.2), None, None, Pays.LOSES),
        (ratio(0.99), None, None, Pays.NOT_SHOWN),
        (ratio(0.5), 8, 7, Pays.INVALID),
        (ratio(0.5), 8, 8, Pays.GAINS),
        (Ratio(n=1, ratio=0.5, interval=None, base=1.0, rung=0.5), None, None, Pays.NOT_SHOWN),
    ],
)
def test_cut_gains_only_beyond_noise_and_only_while_answers_stay_valid(
    found: Ratio, off: int | None, on: int | None, pays: Pays
) -> None:
    """One answer fewer that fits its schema outweighs half the time."""
    assert judge_cut(found, off, on) is pays


def test_verdict_names_the_depth_whose_figures_it_gives() -> None:
    """Best by the fit at this batch was 8, run by a replica is 4: the gain told is that of 4."""
    pays, because, _ = said(measured((1, 4, 1.43), (1, 8, 1.6), (2, 4, 1.4), (2, 8, 1.5)), 1, 4)
    assert pays
    assert "depth 4 gives 1.43" in because


def test_verdict_names_deeper_drafts_that_are_not_shown_to_give_more() -> None:
    """Why the shallower one is taken though a deeper one measured a little better."""
    points = measured((1, 4, 1.43), (1, 8, 1.45), (2, 4, 1.4), (2, 8, 1.41))
    pays, because, plan = said(points, 1, 4)
    assert (pays, plan.choices[0].best_measured) == (True, 8)
    assert "no other is shown to beat: 8 is not shown to give more than 4; it gains on" in because


def test_nothing_is_drafted_above_the_break_even_and_the_verdict_says_so() -> None:
    """A gain that comes back at a larger batch is not used."""
    points = measured((1, 4, 1.2), (3, 4, 1.0), (4, 4, 0.9), (8, 4, 1.4))
    pays, because, _ = said(points, 8, 4)
    assert not pays
    assert because == (
        "at 8 streams nothing is drafted: at batch 3 no depth is shown to give more tokens per second than none "
        "(depth 4 gives 1.00 of the tokens per second [0.98, 1.02] in 3 rounds; break-even: 3.0 streams [2.8, 3.2]); "
        "a gain above that is not used: depth 4 gives 1.40 of the tokens per second [1.38, 1.42] in 3 rounds"
    )


def test_gain_at_one_batch_of_a_depth_that_loses_at_the_smallest_does_not_pay() -> None:
    """Another depth is best there, but a replica runs one: it would be off at every batch, and why is said."""
    points = measured((1, 4, 1.2), (1, 8, 0.95), (8, 4, 1.05), (8, 8, 1.3))
    pays, because, plan = said(points, 8, 8)
    assert (pays, plan.alone.off_at) == (False, 0.0)
    assert because == (
        "at 8 streams depth 8 gives 1.30 of the tokens per second [1.28, 1.32] in 3 rounds, but a replica runs one "
        "depth at every batch, and with this one none is shown at batch 1 (depth 8 gives 0.95 of the tokens per second "
        "[0.93, 0.97] in 3 rounds; break-even: no gain at the smallest batch [0.0, 0.0]): it would be off at "
        "every batch"
    )


@pytest.mark.parametrize(
    "points",
    [
        measured((1, 4, 1.2), (1, 8, 1.3), (4, 4, 1.1), (4, 8, 0.95), (8, 4, 1.05), (8, 8, 1.4)),
        measured((1, 8, 1.3), (8, 8, 1.0005), (9, 8, 0.9), half=0.0001),
    ],
    ids=["lost on the way", "lost a hair above"],
)
def test_depth_whose_gain_is_shown_to_no_higher_than_the_batch_does_not_pay(
    points: list[PointFigures],
) -> None:
    """A record says to a tenth of a stream up to where it is on: that has to lie above the batch asked about."""
    pays, because, plan = said(points, 8, 8)
    assert not pays
    assert plan.alone.batch is not None
    assert f"(break-even: {plan.alone.told}): it would go off above" in because


def test_gain_at_the_largest_batch_measured_does_not_pay_there() -> None:
    """What it does above that is not known, so nothing says where it must go off."""
    pays, because, _ = said(measured((1, 8, 1.3), (8, 8, 1.2)), 8, 8)
    assert not pays
    assert "nothing was measured above batch 8" in because


def test_gain_that_is_not_used_because_the_smallest_batch_has_none_is_told() -> None:
    """A break-even of 0 is one: what is measured at this batch is not denied."""
    pays, because, plan = said(measured((1, 8, 0.97), (8, 8, 1.4), half=0.05), 8, 8)
    assert (pays, plan.break_even.batch) == (False, 0.0)
    assert because == (
        "at 8 streams nothing is drafted: at batch 1 no depth is shown to give more tokens per second than none "
        "(depth 8 gives 0.97 of the tokens per second [0.92, 1.02] in 3 rounds; break-even: no gain at the "
        "smallest batch [0.0, over 8]); a gain above that is not used: depth 8 gives 1.40 of the tokens per "
        "second [1.35, 1.45] in 3 rounds"
    )


def test_no_gain_at_the_smallest_batch_is_said_of_that_batch_alone() -> None:
    """Asked about it, there is no other batch to speak of."""
    pays, because, _ = said(measured((1, 8, 0.97), (8, 8, 0.9)), 1, 8)
    assert not pays
    assert because == (
        "at 1 streams no depth is shown to give more tokens per second than none: depth 8 gives 0.97 of the tokens per "
        "second [0.95, 0.99] in 3 rounds; break-even: no gain at the smallest batch [0.0, 0.0]"
    )


def test_predicted_gain_that_is_not_shown_does_not_pay() -> None:
    """Predicted to gain by half, measured to gain by a fifth or to lose by a fifth: nothing is switched on for that."""
    points = [point(1, 0, 10.0, 10.0), point(1, 8, 6.7, 9.9, half=0.2)]
    pays, because, plan = said(points, 1, 8)
    assert (pays, plan.choices[0].depth, plan.break_even.batch) == (False, 0, None)
    assert (
        "[0.81, 1.21] in 3 rounds; break-even: not reached up to batch 1 measured, may lie"
        in because
    )


def bound_to_schema(off: int | None, on: int | None) -> CutFigures:
    """A cut of eight answers, so many of them valid without and with drafts."""
    return CutFigures(
        label="record",
        constraint="json_schema",
        temperature=0.0,
        repetition="",
        requests=8,
        looping=0,
        counts=DraftCounts(),
        drafted=0,
        accepted=0,
        tpot_ms=ratio(0.9),
        pays=judge_cut(ratio(0.9), off, on),
        valid_off=off,
        valid_on=on,
    )


@pytest.mark.parametrize(
    ("cuts", "combinable"),
    [
        ([(8, 8)], True),
        ([(8, 7)], False),
        ([(0, 0)], None),
        ([(0, 0), (3, 3)], True),
        ([(None, None)], None),
        ([], None),
    ],
)
def test_answers_that_were_valid_in_none_show_no_validity(
    cuts: list[tuple[int | None, int | None]], combinable: bool | None
) -> None:
    """Where nothing was valid without drafts nothing could become invalid: that is unknown and not as valid."""
    assert schema_combinable([bound_to_schema(*each) for each in cuts]) is combinable
