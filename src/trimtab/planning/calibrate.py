"""Corrects what is expected of a server by what was measured on it, with the interval that then holds.

Measured rows of the same hardware, engine and model fit one correction for each phase (see `correction`); every
expectation of that group goes through it. Without rows it still does: the prior's bias and interval apply.
"""

import math
from collections.abc import Mapping, Sequence

import msgspec

from trimtab.core.layout import Demand, EstimateSource, Expected, Layout, Span
from trimtab.planning.correction import (
    Correction,
    Observation,
    Phase,
    Prior,
    fit_correction,
)
from trimtab.planning.intervals import Widths, span
from trimtab.planning.measured import Load, MeasuredLayout
from trimtab.planning.measured_errors import PRIORS, WIDTHS


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """One measured row with what was expected of it, milliseconds."""

    row: MeasuredLayout
    tpot_ms: float
    ttft_ms: float

    def expected_ms(self, phase: Phase) -> float:
        """Return what was expected of a phase."""
        return self.tpot_ms if phase is Phase.DECODE else self.ttft_ms

    def measured_ms(self, phase: Phase) -> float:
        """Return what was measured of a phase."""
        return self.row.tpot_ms if phase is Phase.DECODE else self.row.ttft_ms

    def observation(self, phase: Phase) -> Observation:
        """Return this run as an observation of one phase."""
        return Observation(
            load=self.row.load,
            expected_ms=self.expected_ms(phase),
            measured_ms=self.measured_ms(phase),
        )


class Calibration(msgspec.Struct, frozen=True, kw_only=True):
    """A correction and an interval width for each phase of one hardware, engine and model; `rows` calibrate it."""

    corrections: Mapping[Phase, Correction]
    width: Mapping[Phase, float]
    rows: int

    def span(self, phase: Phase, load: Load, expected_ms: float) -> Span:
        """Return the corrected time with its interval, milliseconds."""
        factor = self.corrections[phase].at(load, expected_ms)
        return span(expected_ms, factor, self.width[phase])

    def pegged(self, phase: Phase, load: Load, expected_ms: float) -> bool:
        """Say whether a bound cuts the correction."""
        return self.corrections[phase].at(load, expected_ms).pegged

    def correct(self, load: Load, expected: Expected) -> Expected:
        """Return an expectation with corrected times and intervals; one that never ends (overload) stays as it is.

        Throughput of a closed loop follows the corrected times. With calibrating rows the source becomes measured.
        """
        tpot = self._finite(Phase.DECODE, load, expected.tpot_ms)
        ttft = self._finite(Phase.FIRST_TOKEN, load, expected.ttft_ms)
        before = _request_ms(expected.ttft_ms.value, expected.tpot_ms.value, load)
        after = _request_ms(ttft.value, tpot.value, load)
        scaled = before / after if math.isfinite(after) and after > 0.0 else 1.0
        return msgspec.structs.replace(
            expected,
            tpot_ms=tpot,
            ttft_ms=ttft,
            output_tokens_per_s=expected.output_tokens_per_s * scaled,
            source=EstimateSource.MEASURED if self.rows else expected.source,
        )

    def _finite(self, phase: Phase, load: Load, expected: Span) -> Span:
        usable = math.isfinite(expected.value) and expected.value > 0.0
        return self.span(phase, load, expected.value) if usable else expected


def calibrate(
    system: str,
    engine: str,
    runs: Sequence[Run] = (),
    *,
    priors: Mapping[Phase, Prior] = PRIORS,
    widths: Widths = WIDTHS,
) -> Calibration:
    """Calibrate by measured rows of one hardware, engine and model; none leaves the prior."""
    return Calibration(
        corrections={
            phase: fit_correction(phase, priors[phase], [run.observation(phase) for run in runs])
            for phase in Phase
        },
        width={phase: widths.of(phase, system, engine, len(runs)) for phase in Phase},
        rows=len(runs),
    )


def load_of(layout: Layout, demand: Demand, expected: Expected, precision: str = "") -> Load:
    """Return what a replica runs under a demand: its clients, or the batch expected where arrivals are a rate."""
    clients = demand.concurrency if demand.concurrency is not None else expected.batch
    return Load(
        layout=msgspec.structs.replace(layout, replicas=1),
        clients=max(clients, 1.0),
        input_tokens=demand.input_tokens,
        output_tokens=demand.output_tokens,
        precision=precision,
        prefix_share=demand.prefix_share,
    )


def _request_ms(ttft_ms: float, tpot_ms: float, load: Load) -> float:
    return ttft_ms + tpot_ms * max(load.output_tokens - 1, 1)
