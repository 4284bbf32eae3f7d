"""Whatever was measured, a record of drafting is written only where it would draft at the batch asked about."""

import asyncio
from collections.abc import Iterator

import msgspec
import pytest
from draft_kit import REVISION, FakeStage, Law, ask_of
from hypothesis import given
from hypothesis import strategies as st

from trimtab.core.lever import TriggerSignal
from trimtab.core.stats import Interval
from trimtab.interfaces.speculate_lever import lever_record
from trimtab.levers.speculation_depths import PointFigures, best_drafting
from trimtab.quality.ladder import Ratio
from trimtab.rollout.short_record import complete, parse_record
from trimtab.runtime.clock import SystemClock
from trimtab.runtime.speculate import Speculator
from trimtab.runtime.speculate_answer import Measured, answer_of

BATCHES, DEPTHS = (1, 4, 8, 10), (4, 8)
GAINS = st.sampled_from((0.8, 0.95, 0.9999, 1.0, 1.0001, 1.05, 1.2, 1.4))
TABLES = st.lists(GAINS, min_size=len(BATCHES) * len(DEPTHS), max_size=len(BATCHES) * len(DEPTHS))


@pytest.fixture(scope="module")
def measured() -> Measured:
    """A measurement whose edits gain alone."""
    ask = ask_of()
    speculator = Speculator(ask, SystemClock(), lambda *_: None)
    return asyncio.run(speculator.measure(FakeStage(Law(base=10.0, token=0.6))))  # type: ignore[arg-type]


def points_of(gains: list[float], half: float) -> tuple[PointFigures, ...]:
    """Points of every batch and depth with these gains, batch by batch."""
    left = iter(gains)
    return tuple(_point(batch, depth, left, half) for batch in BATCHES for depth in (0, *DEPTHS))


def _point(batch: int, depth: int, left: Iterator[float], half: float) -> PointFigures:
    gain = next(left) if depth else 1.0
    bounds = Interval(low=gain - half, high=gain + half, level=0.95)
    told = Ratio(n=3, ratio=gain, interval=bounds, base=1.0, rung=gain)
    return PointFigures(
        batch=batch,
        depth=depth,
        predicted_tpot_ms=10.0 / gain,
        measured_tpot_ms=10.0 / gain,
        tokens_per_s=told if depth else None,
    )


def record_of(measured: Measured, points: tuple[PointFigures, ...], batch: int) -> str | None:
    """What is written of points at a batch."""
    seen = msgspec.structs.replace(measured, points=points, depth=best_drafting(points, batch))
    ask = ask_of(batches=BATCHES, batch=batch)
    return lever_record(answer_of(seen, ask, REVISION, machine="here", took_s=1.0))


@given(gains=TABLES, batch=st.sampled_from(BATCHES), half=st.sampled_from((0.00001, 0.02)))
def test_every_record_that_is_written_completes_and_drafts_at_the_batch_asked_about(
    measured: Measured, gains: list[float], batch: int, half: float
) -> None:
    """It goes off above that batch, with room to come back below."""
    text = record_of(measured, points_of(gains, half), batch)
    if text is None:
        return
    record = complete(parse_record(text, source="lever.toml"), baseline=REVISION, now_s=0.0)
    (spec,) = [one for one in record.triggers if one.signal is TriggerSignal.BATCH]
    assert spec.off_at > batch
    assert spec.on_at is not None
    assert spec.on_at < spec.off_at


def test_depth_that_gains_at_the_batch_and_loses_below_is_not_written(measured: Measured) -> None:
    """Depth 4 is best at one stream, 8 at eight; written as 8 it would be off at every batch."""
    gains = [1.2, 0.95, 1.1, 1.05, 1.05, 1.3, 1.0, 1.2]
    assert record_of(measured, points_of(gains, 0.02), 8) is None
    assert record_of(measured, points_of(gains, 0.02), 1) is not None
