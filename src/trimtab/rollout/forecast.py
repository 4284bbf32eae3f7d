"""How much evidence a rollout will take, said before its first request.

A unit is one log ratio, candidate over baseline. With an expected ratio r and a spread s of the log ratios (both arms'
means of at least three requests, values taken as independent), a unit lies beyond the margin with probability

    p = Phi((log(1 - margin) - log r) / s),   s = sqrt(2 / 3) * sd(log value)

and `core.stats_betting.units_needed` gives the units for which a test that may look at any time shows it in nine of
ten rollouts. Load that wanders makes units less alike than that; the peak cycles are a floor either way.
"""

import math
import statistics
from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from trimtab.core.cuts import belongs
from trimtab.core.gate import GateSpec, Metric, Question
from trimtab.core.lever import Comparison, LeverRecord
from trimtab.core.record import RequestRecord
from trimtab.core.stats_betting import units_needed
from trimtab.core.stats_types import StatsError
from trimtab.rollout.comparison import UNIT_REQUESTS_MIN, request_value
from trimtab.rollout.machine import BLOCKS_PER_STEP_MIN

POWER: Final = 0.9
VALUES_MIN: Final = 30
"""With fewer requests a spread is not estimated."""


class Forecast(msgspec.Struct, frozen=True, kw_only=True):
    """What one gain gate will take. `units` None: unknown, and `because` says why; seconds at the record's blocks."""

    gate: str
    units: int | None
    takes_s: float | None
    because: str


def forecast(record: LeverRecord, recent: Iterable[RequestRecord]) -> tuple[Forecast, ...]:
    """Return a forecast for each gate that asks for a gain; `recent`: requests served without the lever."""
    kept = [each for each in recent if each.ok]
    gains = [gate for gate in record.gates if gate.question is Question.GAIN]
    return tuple(_of_gate(record, gate, kept) for gate in gains)


def floor_s(record: LeverRecord) -> float:
    """Return the seconds that a rollout takes if every look passes: two peak cycles and the steps between."""
    ramp = record.ramp
    between = max(0, len(ramp.shares) - 2) * BLOCKS_PER_STEP_MIN * ramp.block_s
    return 2.0 * ramp.peak_cycle_s + between


def _of_gate(record: LeverRecord, gate: GateSpec, kept: Sequence[RequestRecord]) -> Forecast:
    ratio = _expected(record, gate)
    if ratio is None:
        return _unknown(gate, f"the record expects nothing of {gate.metric.value}")
    if ratio >= 1.0 - gate.margin:
        said = f"the expected {ratio:.2f}x does not reach the margin of {gate.margin:.0%}"
        return _unknown(gate, f"{said}: it is not likely to pass")
    values = _values(gate, kept)
    if len(values) < VALUES_MIN:
        return _unknown(
            gate, f"{len(values)} of {VALUES_MIN} recent requests to tell the spread by"
        )
    spread = math.sqrt(2.0 / UNIT_REQUESTS_MIN) * statistics.stdev(
        math.log(value) for value in values
    )
    wins = _win_probability(ratio, gate.margin, spread)
    try:
        units = max(gate.min_units, units_needed(wins, gate.alpha, POWER))
    except StatsError as error:
        return _unknown(gate, f"it is not likely to pass: {error}")
    unit_s = record.ramp.block_s * (2.0 if record.ramp.comparison is Comparison.SWITCHBACK else 1.0)
    because = (
        f"if {ratio:.2f}x holds, {wins:.0%} of the units lie beyond the margin (spread {spread:.2f} in the log, "
        f"n = {len(values)} recent requests); {POWER:.0%} power"
    )
    return Forecast(gate=gate.name, units=units, takes_s=units * unit_s, because=because)


def _unknown(gate: GateSpec, because: str) -> Forecast:
    return Forecast(gate=gate.name, units=None, takes_s=None, because=because)


def _expected(record: LeverRecord, gate: GateSpec) -> float | None:
    found = (each.ratio for each in record.expected if each.metric is gate.metric)
    ratio = next(found, None)
    higher_is_better = gate.metric is Metric.OUTPUT_TOKENS_PER_S
    return 1.0 / ratio if ratio is not None and higher_is_better else ratio


def _values(gate: GateSpec, kept: Sequence[RequestRecord]) -> list[float]:
    of = request_value(gate.metric)
    found = [] if of is None else [of(each) for each in kept if belongs(each, gate.cut)]
    return [value for value in found if value is not None and value > 0.0]


def _win_probability(ratio: float, margin: float, spread: float) -> float:
    if spread <= 0.0:
        return 1.0
    return statistics.NormalDist().cdf((math.log(1.0 - margin) - math.log(ratio)) / spread)
