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
    """The line about what lies above the break-even."""
    (line,) = [each for each in judged(found) if "above the break-even" in each[1]]
    return line


def gaining(one: PointFigures, low: float) -> PointFigures:
    """The same point, measured to gain."""
    bounds = Interval(low=low, high=1.5, level=0.95)
    told = Ratio(n=3, ratio=1.2, interval=bounds, base=1.0, rung=1.2)
    return msgspec.structs.replace(one, tokens_per_s=told)


@pytest.mark.parametrize(("low", "holds"), [(1.1, False), (0.9, True)])
def test_gain_beyond_noise_above_the_break_even_does_not_hold(
    found: Speculated, low: float, holds: bool
) -> None:
    """With eight streams nothing is drafted: what was measured to gain there contradicts that, if beyond noise."""
    assert above(found)[0]
    points = tuple(
        gaining(one, low) if (one.batch, one.depth) == (8, 8) else one for one in found.points
    )
    assert above(msgspec.structs.replace(found, points=points))[0] is holds


def test_nothing_lies_above_a_break_even_that_was_not_reached(found: Speculated) -> None:
    """Gains at every batch measured are no contradiction."""
    even = msgspec.structs.replace(found.plan.break_even, batch=None)
    plan = msgspec.structs.replace(found.plan, break_even=even)
    assert above(msgspec.structs.replace(found, plan=plan))[0]
