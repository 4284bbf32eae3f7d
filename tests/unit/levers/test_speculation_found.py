"""What is said of measured drafting: the depth by batch, cuts that gain, validity before every gain."""

import pytest

from trimtab.core.stats import Interval
from trimtab.levers.speculation_depths import DepthChoice, PointFigures
from trimtab.levers.speculation_found import (
    Pays,
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


def test_verdict_names_the_depth_whose_figures_it_gives() -> None:
    """Chosen for a neighbouring batch was 8, measured at this one was 4: the gain told is that of 4."""
    even = BreakEven(batch=None, low=None, high=None, measured_to=8)
    pays, because = verdict(choice(1, 8), point(1, 4, 7.0, 7.0), ("edit",), even)
    assert pays
    assert "depth 4 gives 1.43" in because


def test_nothing_is_drafted_above_the_break_even_and_the_verdict_says_so() -> None:
    """A gain that comes back at a larger batch is not used."""
    even = BreakEven(batch=3.0, low=1.0, high=5.0, measured_to=8)
    pays, because = verdict(choice(8, 0), point(8, 4, 7.0, 7.0), ("edit",), even)
    assert not pays
    assert because == "at 8 streams nothing is drafted: the break-even is 3.0 streams"
