"""Depth by batch and break-even come from the same intervals: whatever was measured, they say the same."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trimtab.core.stats import Interval
from trimtab.levers.speculation_depths import (
    DepthPlan,
    PointFigures,
    best_drafting,
    bound,
    depth_ranges,
    gains_of,
    plan_depths,
)
from trimtab.quality.ladder import Ratio, ratio_of


def point(
    batch: int, depth: int, predicted: float, measured: float, half: float = 0.02
) -> PointFigures:
    """A point beside one without drafts that takes 10 ms a token, predicted and measured."""
    gain = 10.0 / measured
    bounds = Interval(low=gain - half, high=gain + half, level=0.95)
    told = Ratio(n=3, ratio=gain, interval=bounds, base=1.0, rung=gain)
    return PointFigures(
        batch=batch,
        depth=depth,
        predicted_tpot_ms=predicted,
        measured_tpot_ms=measured,
        tokens_per_s=told if depth else None,
    )


def plain(batch: int) -> PointFigures:
    """A point without drafts."""
    return point(batch, 0, 10.0, 10.0)


def gains(**by_batch: float) -> list[PointFigures]:
    """Points of depth 8 whose gain is as said, predicted and measured."""
    found: list[PointFigures] = []
    for name, gain in by_batch.items():
        batch = int(name.removeprefix("b"))
        found += [plain(batch), point(batch, 8, 10.0 / gain, 10.0 / gain)]
    return found


def in_rounds(
    batch: int, none: tuple[float, ...], **by_depth: tuple[float, ...]
) -> list[PointFigures]:
    """Points of tokens per second round by round, without drafts and by depth; predicted as measured."""
    told = {0: none} | {int(name.removeprefix("d")): rates for name, rates in by_depth.items()}
    return [
        PointFigures(
            batch=batch,
            depth=depth,
            predicted_tpot_ms=1000.0 * batch * len(rates) / sum(rates),
            measured_tpot_ms=1000.0 * batch * len(rates) / sum(rates),
            tokens_per_s=ratio_of(none, rates) if depth else None,
            rounds=rates,
        )
        for depth, rates in told.items()
    ]


def check_one_answer(plan: DepthPlan) -> None:
    """Every depth of the table is drafted below the lower end of the break-even and nothing from it on."""
    even, rows = plan.break_even, depth_ranges(plan)
    assert rows[0][0] == 1
    assert rows[-1][1:] == (256, 0)
    assert all(after[0] == before[1] + 1 for before, after in pairwise(rows))
    for one in plan.choices:
        (depth,) = [row[2] for row in rows if row[0] <= one.batch <= row[1]]
        assert depth == one.depth
        assert (one.depth > 0) is (even.low is None or one.batch < even.low)
    off_from = rows[-1][0]
    assert off_from == plan.shown_to + 1
    if even.low is None:
        assert plan.shown_to == even.measured_to
    else:
        assert off_from - 1 < max(even.low, 1.0)


def test_noisy_run_drafts_nowhere_and_says_how_little_it_knows() -> None:
    """Predicted to gain everywhere and measured at 0.95 within wide bounds: no gain is shown, and none is taken."""
    noisy = [each for at in (1, 4, 8) for each in (plain(at), point(at, 8, 7.0, 10.5, half=0.5))]
    plan = plan_depths(noisy, alone=8)
    assert [one.depth for one in plan.choices] == [0, 0, 0]
    assert depth_ranges(plan) == ((1, 256, 0),)
    assert plan.break_even.batch is None
    assert plan.break_even.told == (
        "not reached up to batch 8 measured, may lie as low as 0.0 (95%)"
    )
    check_one_answer(plan)


def test_noisiest_depth_does_not_win() -> None:
    """16 is predicted to gain most, and its interval is so wide that nothing excludes that; 4 is shown to gain."""
    points = [plain(1), point(1, 4, 8.2, 8.2), point(1, 16, 5.0, 7.5, half=1.5)]
    plan = plan_depths(points, alone=4)
    assert gains_of(points, 1)[16].ratio > gains_of(points, 1)[4].ratio
    assert best_drafting(points, 1) == 4
    assert [(one.depth, one.equals) for one in plan.choices] == [(4, ())]


def test_of_depths_that_are_not_told_apart_the_shallowest_is_taken() -> None:
    """More drafts must show that they give more; which ones did not is kept."""
    points = [
        *(plain(1), point(1, 4, 8.0, 8.0, 0.1), point(1, 8, 7.0, 7.6, 0.1)),
        point(1, 16, 6.0, 7.5, 0.2),
    ]
    (found,) = plan_depths(points, alone=4).choices
    assert (found.depth, found.best_measured, found.equals) == (4, 16, (8, 16))


def test_depths_are_compared_by_the_difference_of_each_round() -> None:
    """Both gain 10 to 50%, so their intervals overlap; 8 gives a tenth more in every round."""
    none, four = (100.0, 100.0, 100.0, 100.0), (150.0, 110.0, 130.0, 120.0)
    more = in_rounds(1, none, d4=four, d8=tuple(1.1 * each for each in four))
    lows = [bound(one.tokens_per_s, low=True) for one in more[1:]]
    highs = [bound(one.tokens_per_s, low=False) for one in more[1:]]
    assert lows[1] < highs[0]
    assert [one.depth for one in plan_depths(more, alone=8).choices] == [8]
    # The same rates in other rounds tell nothing.
    mixed = in_rounds(1, none, d4=four, d8=(121.0, 165.0, 132.0, 143.0))
    assert [(one.depth, one.equals) for one in plan_depths(mixed, alone=4).choices] == [(4, (8,))]


def test_depth_whose_own_gain_is_not_shown_is_not_taken_for_being_shallow() -> None:
    """4 may lose, 8 gains for sure, and neither is shown to beat the other: 8."""
    points = [plain(1), point(1, 4, 8.0, 8.4, 0.3), point(1, 8, 8.0, 8.0, 0.1)]
    assert [(one.depth, one.equals) for one in plan_depths(points, alone=8).choices] == [(8, ())]


def test_gain_of_too_few_rounds_is_not_shown() -> None:
    """One round has no interval."""
    once = in_rounds(1, (100.0,), d4=(180.0,))
    plan = plan_depths(once, alone=4)
    assert [one.depth for one in plan.choices] == [0]
    check_one_answer(plan)


def test_measurement_that_excludes_a_prediction_corrects_both() -> None:
    """Predicted to gain by 43% and measured to lose for sure: nothing is drafted, and the break-even says so."""
    lost = [each for at in (1, 4) for each in (plain(at), point(at, 8, 7.0, 12.5))]
    plan = plan_depths(lost, alone=8)
    assert [one.depth for one in plan.choices] == [0, 0]
    assert plan.break_even.told == "no gain at the smallest batch [0.0, 0.0]"
    assert gains_of(lost, 1)[8].ratio == pytest.approx(0.82)
    check_one_answer(plan)


def test_gain_that_comes_back_above_the_break_even_is_not_used() -> None:
    """8 at 1 and 4, none at 8 and at 32: the last row ends where its gain is no more shown, and nothing follows it."""
    plan = plan_depths(gains(b1=1.3, b4=1.2, b8=0.9, b32=1.9), alone=8)
    assert [one.depth for one in plan.choices] == [8, 8, 0, 0]
    assert plan.break_even.batch == pytest.approx(4 + 4 * 0.2 / 0.3)
    assert depth_ranges(plan) == ((1, 6, 8), (7, 256, 0))
    check_one_answer(plan)


def test_one_depth_alone_breaks_even_no_later_than_the_best_by_batch() -> None:
    """A shallower draft still pays where the deep one has stopped to."""
    points = [
        *(plain(1), point(1, 4, 8.0, 8.0), point(1, 8, 6.0, 6.0)),
        *(plain(8), point(8, 4, 9.0, 9.0), point(8, 8, 11.0, 11.0)),
    ]
    plan = plan_depths(points, alone=best_drafting(points, 1))
    assert [one.depth for one in plan.choices] == [8, 4]
    assert depth_ranges(plan) == ((1, 1, 8), (2, 8, 4), (9, 256, 0))
    assert (plan.break_even.batch, plan.break_even.off_at) == (None, 8.0)
    assert plan.alone.batch is not None
    assert plan.alone.low is not None
    assert plan.alone.off_at <= plan.alone.low <= plan.alone.batch < 8.0


def test_chosen_depth_holds_within_five_percent_of_the_best_measured() -> None:
    """Predicted best 4, measured best 8 by 3%, told apart: holds; nothing above a break-even, gaining for sure: not."""
    near = [plain(1), point(1, 4, 7.0, 7.2), point(1, 8, 7.2, 7.0, 0.1)]
    (found,) = plan_depths(near, alone=4).choices
    assert (found.best_measured, found.holds) == (8, True)
    cut = [plain(1), point(1, 8, 12.0, 12.0), plain(4), point(4, 8, 7.0, 7.0)]
    found = plan_depths(cut, alone=8).choices[1]
    assert (found.depth, found.best_measured, found.holds) == (0, 8, False)
    assert found.loss == pytest.approx(1 - 7.0 / 10.0)


def test_depth_that_is_measured_to_be_better_for_sure_is_taken() -> None:
    """Predicted best 4; measured, 8 gives a half more beyond noise."""
    far = [plain(1), point(1, 4, 7.0, 9.5, 0.4), point(1, 8, 7.1, 6.0, 0.1)]
    (found,) = plan_depths(far, alone=8).choices
    assert (found.depth, found.best_measured, found.holds) == (8, 8, True)


def test_chosen_depth_holds_where_the_best_measured_is_not_shown_to_give_more() -> None:
    """Wide intervals: nobody can say that the other depth is better."""
    wide = [plain(1), point(1, 4, 7.0, 8.0, 0.2), point(1, 8, 7.1, 7.0, 0.4)]
    (found,) = plan_depths(wide, alone=4).choices
    assert (found.depth, found.best_measured, found.holds) == (4, 8, True)
    assert found.loss > 0.05


def test_no_drafts_are_chosen_of_equals() -> None:
    """Nothing is switched on for nothing."""
    (found,) = plan_depths([plain(4), point(4, 4, 10.0, 10.0)], alone=4).choices
    assert found.depth == 0


def test_rows_of_depth_are_those_of_the_larger_batch() -> None:
    """Between 2 streams and 4 the depth for 4 holds."""
    points = [
        *(plain(1), point(1, 4, 8.0, 8.0), point(1, 8, 7.0, 7.0)),
        *(plain(2), point(2, 4, 8.0, 8.0), point(2, 8, 7.0, 7.0)),
        *(plain(4), point(4, 4, 8.0, 8.0), point(4, 8, 9.0, 9.0)),
    ]
    assert depth_ranges(plan_depths(points, alone=8)) == ((1, 2, 8), (3, 4, 4), (5, 256, 0))


def test_last_row_ends_where_the_gain_of_its_own_depth_is_no_more_shown() -> None:
    """At 2 streams 4 is taken and its lower end is 1.02; that 8 has a higher one there buys 4 no longer row."""
    points = [
        *(plain(2), point(2, 4, 9.0, 9.0, 0.09), point(2, 8, 8.5, 8.5, 0.05)),
        *(plain(12), point(12, 4, 10.5, 10.5, 0.03), point(12, 8, 10.2, 10.2, 0.02)),
    ]
    plan = plan_depths(points, alone=8)
    assert [one.depth for one in plan.choices] == [4, 0]
    assert plan.alone.low == pytest.approx(2 + 10 * 0.1265 / (0.1265 + 0.0396), abs=0.01)
    # 2 + 10 * 0.0211 / (0.0211 + 0.0776) is 4.1.
    assert depth_ranges(plan) == ((1, 4, 4), (5, 256, 0))
    check_one_answer(plan)


FIGURES = st.floats(min_value=2.0, max_value=30.0)


@given(
    st.lists(st.tuples(FIGURES, FIGURES, FIGURES, FIGURES), min_size=1, max_size=6),
    st.floats(min_value=0.0, max_value=3.0),
)
def test_table_and_break_even_never_contradict_each_other(
    times: list[tuple[float, float, float, float]], half: float
) -> None:
    """Whatever noise predicts and measures; and the break-even lies within its own range."""
    points: list[PointFigures] = []
    for at, (p4, m4, p8, m8) in enumerate(times):
        points += [plain(2**at), point(2**at, 4, p4, m4, half), point(2**at, 8, p8, m8, half)]
    plan = plan_depths(points, alone=best_drafting(points, 1))
    check_one_answer(plan)
    for even in (plan.break_even, plan.alone):
        inf = float("inf")
        low, batch, high = (
            inf if end is None else end for end in (even.low, even.batch, even.high)
        )
        assert low <= batch <= high
        assert even.off_at <= low
    alone, any_depth = plan.alone.batch, plan.break_even.batch
    assert any_depth is None or (alone is not None and alone <= any_depth)


RATES = st.tuples(*[st.floats(min_value=50.0, max_value=200.0)] * 3)


@given(RATES, RATES, RATES, RATES)
def test_what_is_drafted_is_shown_to_gain_and_no_shallower_one_would_do(
    none: tuple[float, ...],
    two: tuple[float, ...],
    four: tuple[float, ...],
    eight: tuple[float, ...],
) -> None:
    """By the intervals of the rounds alone, of every depth with every other."""
    points = in_rounds(1, none, d2=two, d4=four, d8=eight)
    told = {one.depth: one.rounds for one in points}

    def over(one: int, other: int) -> bool:
        low = bound(ratio_of(told[other], told[one]), low=True)
        return low is not None and low > 1.0

    (found,) = plan_depths(points, alone=2).choices
    shown = [depth for depth in (2, 4, 8) if over(depth, 0)]
    assert (found.depth > 0) is bool(shown)
    if found.depth:
        assert found.depth in shown
        assert not any(over(other, found.depth) for other in shown)
        shallower = [depth for depth in shown if depth < found.depth]
        assert all(any(over(other, depth) for other in shown) for depth in shallower)
        assert set(found.equals) <= {depth for depth in shown if depth > found.depth}
