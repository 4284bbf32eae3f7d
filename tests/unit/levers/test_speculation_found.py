"""What is said of measured drafting: the depth by batch, cuts that gain, validity before every gain."""

import pytest

from trimtab.core.stats import Interval
from trimtab.levers.speculation_found import (
    DepthChoice,
    Pays,
    PointFigures,
    choose_by_batch,
    depth_ranges,
    judge_cut,
    verdict,
)
from trimtab.policies.speculation_model import BreakEven
from trimtab.quality.ladder import Ratio


def ratio(value: float, half: float = 0.02) -> Ratio:
    bounds = Interval(low=value - half, high=value + half, level=0.95)
    return Ratio(n=3, ratio=value, interval=bounds, base=1.0, rung=value)


def choice(batch: int, depth: int) -> DepthChoice:
    return DepthChoice(batch=batch, depth=depth, best_measured=depth, loss=0.0, holds=True)


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


def test_chosen_depth_holds_within_five_percent_of_the_best_measured() -> None:
    """Predicted best 4, measured best 8 by 3%: holds; by a third, told apart: does not."""
    near = [point(1, 0, 10, 10), point(1, 4, 7.0, 7.2), point(1, 8, 7.1, 7.0)]
    (found,) = choose_by_batch(near)
    assert (found.depth, found.best_measured, found.holds) == (4, 8, True)
    far = [point(1, 0, 10, 10), point(1, 4, 7.0, 9.5), point(1, 8, 7.1, 6.0)]
    (found,) = choose_by_batch(far)
    assert not found.holds
    assert found.loss == pytest.approx(1 - 6.0 / 9.5)


def test_chosen_depth_holds_where_intervals_do_not_tell_it_from_the_best() -> None:
    """Wide intervals: nobody can say that the other depth is better."""
    wide = [point(1, 0, 10, 10), point(1, 4, 7.0, 8.0, 0.4), point(1, 8, 7.1, 7.0, 0.4)]
    (found,) = choose_by_batch(wide)
    assert found.holds


def test_no_drafts_are_chosen_of_equals() -> None:
    """Nothing is switched on for nothing."""
    (found,) = choose_by_batch([point(4, 0, 10, 10), point(4, 4, 10.0, 10.0)])
    assert found.depth == 0


def test_rows_of_depth_are_those_of_the_larger_batch_and_end_in_none() -> None:
    """Between 4 streams and 8 the depth for 8 holds; beyond what was measured nothing is drafted."""
    rows = depth_ranges([choice(1, 8), choice(2, 8), choice(4, 4), choice(8, 0)])
    assert rows == ((1, 2, 8), (3, 4, 4), (5, 256, 0))
    assert depth_ranges([choice(1, 8), choice(4, 8)]) == ((1, 4, 8), (5, 256, 0))
    assert depth_ranges([]) == ((1, 256, 0),)


def test_verdict_names_the_depth_whose_figures_it_gives() -> None:
    """Chosen for a neighbouring batch was 8, measured at this one was 4: the gain told is that of 4."""
    even = BreakEven(batch=None, low=None, high=None, measured_to=8)
    pays, because = verdict(choice(1, 8), point(1, 4, 7.0, 7.0), ("edit",), even)
    assert pays
    assert "depth 4 gives 1.43" in because
