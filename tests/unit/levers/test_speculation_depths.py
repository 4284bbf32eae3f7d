"""Depth by batch and break-even come from one fit: whatever was measured, they say the same."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trimtab.core.stats import Interval
from trimtab.levers.speculation_depths import (
    DepthPlan,
    PointFigures,
    best_drafting,
    depth_ranges,
    gains_of,
    plan_depths,
)
from trimtab.quality.ladder import Ratio


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
    """Points of depth 8 whose predicted gain is as said, measured with intervals that exclude nothing."""
    found: list[PointFigures] = []
    for name, gain in by_batch.items():
        batch = int(name.removeprefix("b"))
        found += [plain(batch), point(batch, 8, 10.0 / gain, 10.0, half=0.9)]
    return found


def check_one_answer(plan: DepthPlan) -> None:
    """Every depth of the table is drafted below the break-even and nothing from it on."""
    even, rows = plan.break_even, depth_ranges(plan)
    assert rows[0][0] == 1
    assert rows[-1][1:] == (256, 0)
    assert all(after[0] == before[1] + 1 for before, after in pairwise(rows))
    for one in plan.choices:
        (depth,) = [row[2] for row in rows if row[0] <= one.batch <= row[1]]
        assert depth == one.depth
        assert (one.depth > 0) is (even.batch is None or one.batch < even.batch)
    off_from = rows[-1][0]
    if even.batch is None:
        assert off_from == even.measured_to + 1
    else:
        assert off_from - 1 < max(even.batch, 1.0) <= max(off_from, 1)


def test_noisy_run_cannot_draft_everywhere_beside_a_break_even_of_nothing() -> None:
    """Predicted to gain everywhere and measured at 0.95 within wide bounds: not reached, though it may be at once."""
    noisy = [each for at in (1, 4, 8) for each in (plain(at), point(at, 8, 7.0, 10.5, half=0.5))]
    plan = plan_depths(noisy, alone=8)
    assert [one.depth for one in plan.choices] == [8, 8, 8]
    assert plan.break_even.batch is None
    assert plan.break_even.told == (
        "not reached up to batch 8 measured, may lie as low as 0.0 (95%)"
    )
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
    """8 at 1 and 4, none at 8 and at 32: the last row ends below the crossing, and nothing follows it."""
    plan = plan_depths(gains(b1=1.3, b4=1.2, b8=0.9, b32=1.9), alone=8)
    assert [one.depth for one in plan.choices] == [8, 8, 0, 0]
    assert plan.break_even.batch == pytest.approx(4 + 4 * 0.2 / 0.3)
    assert depth_ranges(plan) == ((1, 6, 8), (7, 256, 0))
    check_one_answer(plan)


def test_one_depth_alone_breaks_even_no_later_than_the_best_by_batch() -> None:
    """A shallower draft still pays where the deep one has stopped to."""
    points = [
        *(plain(1), point(1, 4, 8.0, 8.0, 0.5), point(1, 8, 6.0, 6.0, 0.9)),
        *(plain(8), point(8, 4, 9.0, 9.0, 0.5), point(8, 8, 11.0, 11.0, 0.5)),
    ]
    plan = plan_depths(points, alone=best_drafting(points, 1))
    assert [one.depth for one in plan.choices] == [8, 4]
    assert depth_ranges(plan) == ((1, 1, 8), (2, 8, 4), (9, 256, 0))
    assert plan.break_even.batch is None
    assert plan.alone.batch is not None
    assert plan.alone.low is not None
    assert plan.alone.low <= plan.alone.batch < 8.0


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


def test_chosen_depth_holds_where_intervals_do_not_tell_it_from_the_best() -> None:
    """Wide intervals: nobody can say that the other depth is better."""
    wide = [plain(1), point(1, 4, 7.0, 8.0, 0.4), point(1, 8, 7.1, 7.0, 0.4)]
    (found,) = plan_depths(wide, alone=4).choices
    assert (found.depth, found.best_measured, found.holds) == (4, 8, True)


def test_no_drafts_are_chosen_of_equals() -> None:
    """Nothing is switched on for nothing."""
    (found,) = plan_depths([plain(4), point(4, 4, 10.0, 10.0)], alone=4).choices
    assert found.depth == 0


def test_rows_of_depth_are_those_of_the_larger_batch() -> None:
    """Between 2 streams and 4 the depth for 4 holds."""
    points = [
        *(plain(1), point(1, 4, 8.0, 8.0, 0.9), point(1, 8, 7.0, 7.0, 0.9)),
        *(plain(2), point(2, 4, 8.0, 8.0, 0.9), point(2, 8, 7.0, 7.0, 0.9)),
        *(plain(4), point(4, 4, 8.0, 8.0, 0.9), point(4, 8, 9.0, 9.0, 0.9)),
    ]
    assert depth_ranges(plan_depths(points, alone=8)) == ((1, 2, 8), (3, 4, 4), (5, 256, 0))


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
    for one in plan.choices:
        gains = gains_of(points, one.batch)
        assert one.depth == 0 or gains[one.depth].ratio == max(
            each.ratio for each in gains.values()
        )
    for even in (plan.break_even, plan.alone):
        inf = float("inf")
        low, batch, high = (
            inf if end is None else end for end in (even.low, even.batch, even.high)
        )
        assert low <= batch <= high
    alone, any_depth = plan.alone.batch, plan.break_even.batch
    assert any_depth is None or (alone is not None and alone <= any_depth)
