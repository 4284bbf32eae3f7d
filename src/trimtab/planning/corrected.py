"""An estimator that was corrected by measurements of the same hardware, engine and model, with honest intervals.

The inner estimate is asked for each measured run too; what it was off by corrects it everywhere, the more the nearer
(see `calibrate`), apart by what an estimate rests on (see `measured_errors`): what no server measured is the less sure.
A run that was measured as it is asked for is not estimated: its time is taken, and its interval is that of runs that
are repeated.
"""

import math
from collections.abc import Sequence
from typing import Final

import msgspec

from trimtab.core.layout import Demand, EstimateSource, Expected, Layout, MemoryFit, Span
from trimtab.planning.calibrate import Calibration, Run, calibrate, load_of
from trimtab.planning.correction import Phase
from trimtab.planning.measured import Load, MeasuredLayout
from trimtab.planning.measured_errors import ERRORS
from trimtab.planning.plan_ports import Estimator

SAME_SHARE: Final = 0.02
"""Loads within this share of each other were measured as they are asked for."""


class CorrectedEstimator:
    """Corrects another estimator by measured rows of its hardware, engine and model; memory is passed through."""

    def __init__(
        self,
        inner: Estimator,
        system: str,
        engine: str,
        rows: Sequence[MeasuredLayout] = (),
        *,
        precision: str = "",
    ) -> None:
        self._inner = inner
        self._precision = precision
        self._rows = tuple(rows)
        runs = [self._run(row) for row in rows]
        # What a source was off by says nothing of another's error.
        self._calibrations = {
            each: calibrate(
                system,
                engine,
                [run for source, run in runs if source is each],
                priors=priors,
                widths=widths,
            )
            for each, (priors, widths) in ERRORS.items()
        }

    def fit(self, layout: Layout, demand: Demand) -> MemoryFit:
        """Account for every byte of the fullest rank."""
        return self._inner.fit(layout, demand)

    def expected(self, layout: Layout, demand: Demand) -> Expected:
        """Return corrected times with their intervals; measured ones where that very run was measured."""
        found = self._inner.expected(layout, demand)
        load = load_of(layout, demand, found, self._precision)
        calibration = self._calibrations[found.source]
        same = [row for row in self._rows if _same(row.load, load)]
        ttft = _corrected(
            calibration, Phase.FIRST_TOKEN, load, found.ttft_ms, [row.ttft_ms for row in same]
        )
        tpot = _corrected(
            calibration, Phase.DECODE, load, found.tpot_ms, [row.tpot_ms for row in same]
        )
        return msgspec.structs.replace(
            found,
            ttft_ms=ttft,
            tpot_ms=tpot,
            queue_ms=found.queue_ms * _ratio(ttft, found.ttft_ms),
            prefill_ms=found.prefill_ms * _ratio(ttft, found.ttft_ms),
            step_ms=found.step_ms * _ratio(tpot, found.tpot_ms),
            output_tokens_per_s=_tokens_per_s(found, demand, ttft, tpot),
            source=EstimateSource.MEASURED if same else found.source,
            notes=(*found.notes, *self._told(same)),
        )

    def _told(self, same: Sequence[MeasuredLayout]) -> tuple[str, ...]:
        if same:
            return tuple(f"measured: {row.id}" for row in same)
        return (f"corrected by {len(self._rows)} measured runs",) if self._rows else ()

    def _run(self, row: MeasuredLayout) -> tuple[EstimateSource, Run]:
        demand = Demand(
            input_tokens=row.load.input_tokens,
            output_tokens=row.load.output_tokens,
            concurrency=row.load.clients,
            prefix_share=row.load.prefix_share,
        )
        found = self._inner.expected(msgspec.structs.replace(row.load.layout, replicas=1), demand)
        run = Run(row=row, tpot_ms=found.tpot_ms.value, ttft_ms=found.ttft_ms.value)
        return found.source, run


def _corrected(
    calibration: Calibration, phase: Phase, load: Load, time: Span, measured: Sequence[float]
) -> Span:
    if not (math.isfinite(time.value) and time.value > 0.0):
        return time
    found = calibration.span(phase, load, time.value)
    if not measured:
        return found
    value = math.exp(sum(math.log(each) for each in measured) / len(measured))
    scale = value / found.value
    return msgspec.structs.replace(
        found,
        value=value,
        low=None if found.low is None else found.low * scale,
        high=None if found.high is None else found.high * scale,
    )


def _ratio(new: Span, old: Span) -> float:
    return new.value / old.value if old.value > 0.0 and math.isfinite(old.value) else 1.0


def _tokens_per_s(found: Expected, demand: Demand, ttft: Span, tpot: Span) -> float:
    """Scale what streams make by how much sooner or later they end; arrivals make what arrives."""
    if demand.rate_per_s is not None or not math.isfinite(ttft.value):
        return found.output_tokens_per_s
    rest = demand.output_tokens - 1
    before = found.ttft_ms.value + rest * found.tpot_ms.value
    after = ttft.value + rest * tpot.value
    return found.output_tokens_per_s * before / after if after > 0.0 else found.output_tokens_per_s


def _same(one: Load, other: Load) -> bool:
    """Say whether two loads differ by no more than a benchmark does from itself."""
    pairs = (
        (one.clients, other.clients),
        (one.input_tokens, other.input_tokens),
        (one.output_tokens, other.output_tokens),
    )
    near = all(abs(math.log(a / b)) <= SAME_SHARE for a, b in pairs)
    reused = abs(one.prefix_share - other.prefix_share) <= SAME_SHARE
    return near and reused and one.layout == other.layout
