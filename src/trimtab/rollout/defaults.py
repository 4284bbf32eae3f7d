"""The gates a lever declares unless it has reasons of its own, with constants that fit small and large traffic.

Law: exposure is small at first, so the first share is asked for gross harm only; margins tighten as the slice
grows; the gain is asked once, before adoption, over all shares. Minima are floors that bind where traffic is
thin; where it is not, the peak cycle decides how much evidence there is.

    state    question  margin  requests per arm  units  alpha
    canary   veto      0.50    4                 2      0.05
    ramping  veto      0.25    5                 2      0.05
    proving  veto      0.10    20                4      0.05
    proving  gain      0.10    20                6      0.05

Why vetoes: to exclude harm at alpha = 0.05 takes at least six units that all agree, at every share; with six
units to spend in all they go into the gain. A veto also holds while its estimate lies beyond the margin. Why six:
fewer units cannot show anything at alpha = 0.05 (`core.stats_betting`). A wrong adoption is bounded by the gain's
alpha alone, whatever the other gates let through.
"""

from trimtab.core.cuts import Cut
from trimtab.core.gate import GateSpec, Metric, Question, Statistic
from trimtab.core.types import RolloutState

ALPHA = 0.05
GAIN_MARGIN = 0.10
GAIN_REQUESTS_MIN = 20
GAIN_UNITS_MIN = 6

HARM_STAGES: tuple[tuple[RolloutState, float, int, int], ...] = (
    (RolloutState.CANARY, 0.50, 4, 2),
    (RolloutState.RAMPING, 0.25, 5, 2),
    (RolloutState.PROVING, 0.10, 20, 4),
)
"""State, margin, requests per arm, units."""

ERROR_MARGIN = 0.02
MEMORY_MARGIN = 0.10
OUTPUT_MARGIN = 0.05
TAIL_MARGIN = 0.50


def gain_gate(
    metric: Metric,
    *,
    margin: float = GAIN_MARGIN,
    cut: Cut | None = None,
    matched_batch: bool = False,
    required: bool = True,
) -> GateSpec:
    """Return the gate that asks for a lever's effect before adoption."""
    return GateSpec(
        name=f"{metric.value} gain{_in(cut)}",
        metric=metric,
        question=Question.GAIN,
        margin=margin,
        cut=cut,
        alpha=ALPHA,
        min_requests=GAIN_REQUESTS_MIN,
        min_units=GAIN_UNITS_MIN,
        matched_batch=matched_batch,
        during=(RolloutState.PROVING,),
        required=required,
    )


def harm_gates(
    metric: Metric,
    *,
    cut: Cut | None = None,
    matched_batch: bool = False,
    slack: float = 1.0,
    required: bool = True,
) -> tuple[GateSpec, ...]:
    """Return one veto per state with tightening margins; `slack` multiplies the margins."""
    return tuple(
        GateSpec(
            name=f"{metric.value} {state.value}{_in(cut)}",
            metric=metric,
            question=Question.VETO,
            margin=margin * slack,
            cut=cut,
            alpha=ALPHA,
            min_requests=requests,
            min_units=units,
            matched_batch=matched_batch,
            during=(state,),
            required=required,
        )
        for state, margin, requests, units in HARM_STAGES
    )


def safety_gates() -> tuple[GateSpec, ...]:
    """Return the vetoes that every lever carries in every state: errors, memory, outputs, the tail of TTFT."""
    return (
        _safety("errors", Metric.ERROR_RATE, ERROR_MARGIN),
        _safety("memory", Metric.MEMORY_BYTES, MEMORY_MARGIN),
        _safety("outputs", Metric.OUTPUT_DIFFERENCE, OUTPUT_MARGIN),
        _safety("ttft tail", Metric.TTFT_MS, TAIL_MARGIN, Statistic.TAIL_P95),
    )


def _safety(
    name: str, metric: Metric, margin: float, statistic: Statistic = Statistic.TYPICAL
) -> GateSpec:
    _, _, requests, _ = HARM_STAGES[0]
    return GateSpec(
        name=name,
        metric=metric,
        question=Question.VETO,
        margin=margin,
        statistic=statistic,
        alpha=ALPHA,
        min_requests=requests,
        min_units=1,
    )


def _in(cut: Cut | None) -> str:
    return "" if cut is None else f" in {cut}"
