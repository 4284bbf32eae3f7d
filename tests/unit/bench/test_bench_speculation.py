"""What the benchmark of drafting judges by can fail: a gain that was measured above the break-even is found."""

import asyncio
import sys
from pathlib import Path

import msgspec
import pytest
from draft_kit import REVISION, FakeStage, Law, ask_of, stumble

sys.path.append(str(Path(__file__).resolve().parents[3]))
from bench.bench_speculation import judged
from trimtab.core.stats import Interval
from trimtab.levers.speculation_depths import PointFigures
from trimtab.levers.speculation_found import Speculated
from trimtab.quality.ladder import Ratio
from trimtab.runtime.clock import SystemClock
from trimtab.runtime.speculate import Speculator
from trimtab.runtime.speculate_answer import answer_of


@pytest.fixture(scope="module")
def found() -> Speculated:
    """Drafts that pay alone and lose with eight streams."""
    ask = ask_of(depths=(8,))
    speculator = Speculator(ask, SystemClock(), lambda *_: None)
    stage = FakeStage(Law(base=10.0, token=2.0), say=stumble)
    measured = asyncio.run(speculator.measure(stage))  # type: ignore[arg-type]
    return answer_of(measured, ask, REVISION, machine="here", took_s=1.0)


def above(found: Speculated) -> tuple[bool, str]:
    """The line about what is drafted where."""
    (line,) = [each for each in judged(found) if "where no gain is shown" in each[1]]
    return line


def bounded(one: PointFigures, low: float) -> PointFigures:
    """The same point with another low end of its interval."""
    bounds = Interval(low=low, high=1.5, level=0.95)
    told = Ratio(n=3, ratio=1.2, interval=bounds, base=1.0, rung=1.2)
    return msgspec.structs.replace(one, tokens_per_s=told)


def with_low(found: Speculated, batch: int, low: float) -> Speculated:
    """The same answer, with another interval at one batch than the plan was made of."""
    points = tuple(
        bounded(one, low) if (one.batch, one.depth) == (batch, 8) else one for one in found.points
    )
    return msgspec.structs.replace(found, points=points)


@pytest.mark.parametrize(("low", "holds"), [(1.1, False), (0.9, True)])
def test_gain_beyond_noise_where_drafts_are_off_does_not_hold(
    found: Speculated, low: float, holds: bool
) -> None:
    """With eight streams nothing is drafted: what was measured to gain there contradicts that, if beyond noise."""
    assert above(found)[0]
    assert above(with_low(found, 8, low))[0] is holds


@pytest.mark.parametrize(("low", "holds"), [(1.1, True), (0.9, False)])
def test_drafting_whose_gain_is_within_its_noise_does_not_hold(
    found: Speculated, low: float, holds: bool
) -> None:
    """Alone drafts are on: that needs a gain whose interval lies above 1, and not only a ratio that does."""
    smallest = found.plan.choices[0]
    assert (smallest.batch, smallest.depth) == (1, 8)
    assert above(with_low(found, 1, low))[0] is holds


def test_range_below_the_point_break_even_is_off_too(found: Speculated) -> None:
    """Between the lower end of the range and its middle a gain is not shown, so nothing that is drafted is above it."""
    even = found.plan.break_even
    assert even.low is not None
    assert even.batch is not None
    assert even.low <= even.batch
    assert f"above batch {even.off_at:.1f}" in above(found)[1]
