"""What all levers share: how they quote readings, their common vetoes, and how one that is not moved answers."""

import msgspec

from trimtab.core.budgets import BudgetMove
from trimtab.core.evidence import Evidence
from trimtab.core.gate import GateSpec, Metric, Question, Statistic
from trimtab.core.lever import (
    Assessment,
    LeverRecord,
    LeverRecordError,
    Narrowness,
    Situation,
)
from trimtab.core.types import RolloutState, Technique

EXPIRES_AFTER_S = 30 * 86_400.0
"""A lever must prove itself again after 30 days."""

RATIO_MIN = 0.05
"""No prediction promises more than a twentieth of a latency to be left."""

TPOT_HARM_MARGIN = 0.25
E2E_HARM_MARGIN = 0.25
THROUGHPUT_HARM_MARGIN = 0.15
CHUNK_GAP_HARM_MARGIN = 0.25
MEMORY_HARM_MARGIN = 0.10
ERROR_HARM_MARGIN = 0.02
DIFFERENCE_HARM_MARGIN = 0.20
TAIL_HARM_MARGIN = 0.10

EARLY = (RolloutState.CANARY, RolloutState.RAMPING)
"""The states in which few requests meet the candidate."""

EARLY_HARM_MARGIN = 0.50
EARLY_REQUESTS_MIN = 3
"""A small slice cannot show small harm; it is there to catch what is broken while few requests can be hurt."""

GAIN_REQUESTS_MIN = 10
"""Requests per arm beside the six units that a gain takes anyway."""

VETO_ALPHA = 0.10
"""A veto errs on the side of stopping: half the evidence that a gain needs is enough for it."""

VETO_REQUESTS_MIN = 10
VETO_UNITS_MIN = 5
"""Five units are the fewest that can show harm at VETO_ALPHA; with fewer a veto would always pass."""

OUTPUTS_MIN = 6

QUALITY_GATE = (
    "outputs at temperature 0 are compared request by request with those of the baseline; the share that differs "
    f"may exceed the share that differs between two runs of the baseline by at most {DIFFERENCE_HARM_MARGIN:.0%}"
)


def quote(situation: Situation, name: str, spec: str = ".1%") -> str:
    """Return a reading as text with its interval and n, or why it is unknown."""
    reading = situation.readings.get(name)
    if not isinstance(reading, Evidence):
        return f"{name} unknown ({reading.reason})"
    text = format(reading.value, spec)
    if reading.interval is not None:
        text += f" [{format(reading.interval.low, spec)}, {format(reading.interval.high, spec)}]"
    return text if reading.samples is None else f"{text} of n={reading.samples}"


def veto(
    metric: Metric,
    margin: float,
    *,
    statistic: Statistic = Statistic.TYPICAL,
    matched_batch: bool = False,
) -> GateSpec:
    """Return a gate on all traffic of the slice that fails when harm beyond the margin is shown."""
    tail = "-tail" if statistic is Statistic.TAIL_P95 else ""
    return GateSpec(
        name=f"{metric.value.replace('_', '-')}{tail}-veto",
        metric=metric,
        question=Question.VETO,
        margin=margin,
        statistic=statistic,
        matched_batch=matched_batch,
        alpha=VETO_ALPHA,
        min_requests=VETO_REQUESTS_MIN,
        min_units=VETO_UNITS_MIN,
        during=(RolloutState.PROVING,),
    )


def early_veto(metric: Metric, *, matched_batch: bool = False) -> GateSpec:
    """Return the gate that a small slice can answer: is something broken?"""
    return GateSpec(
        name=f"{metric.value.replace('_', '-')}-early",
        metric=metric,
        question=Question.VETO,
        margin=EARLY_HARM_MARGIN,
        matched_batch=matched_batch,
        alpha=VETO_ALPHA,
        min_requests=EARLY_REQUESTS_MIN,
        min_units=1,
        during=EARLY,
    )


def _always(metric: Metric, margin: float, min_requests: int) -> GateSpec:
    return GateSpec(
        name=f"{metric.value.replace('_', '-')}-veto",
        metric=metric,
        question=Question.VETO,
        margin=margin,
        alpha=VETO_ALPHA,
        min_requests=min_requests,
        min_units=1,
    )


def common_vetoes(*, matched_batch: bool) -> tuple[GateSpec, ...]:
    """Return the vetoes that every lever carries: end to end, throughput, errors, memory, outputs."""
    outputs = _always(Metric.OUTPUT_DIFFERENCE, DIFFERENCE_HARM_MARGIN, OUTPUTS_MIN)
    return (
        early_veto(Metric.TTFT_MS),
        early_veto(Metric.TPOT_MS, matched_batch=matched_batch),
        veto(Metric.E2E_MS, E2E_HARM_MARGIN, matched_batch=matched_batch),
        veto(Metric.OUTPUT_TOKENS_PER_S, THROUGHPUT_HARM_MARGIN, matched_batch=matched_batch),
        _always(Metric.ERROR_RATE, ERROR_HARM_MARGIN, EARLY_REQUESTS_MIN),
        _always(Metric.MEMORY_BYTES, MEMORY_HARM_MARGIN, EARLY_REQUESTS_MIN),
        msgspec.structs.replace(outputs, during=(RolloutState.PROVING,)),
    )


def clamp_ratio(ratio: float) -> float:
    """Return a predicted ratio kept at or above `RATIO_MIN`."""
    return max(RATIO_MIN, ratio)


def status_of(name: str, situation: Situation) -> str:
    """Return why a lever is not open any more (adopted or refused), or an empty text."""
    if name in situation.adopted:
        return "already adopted"
    if name in situation.refused:
        return "already tried and not adopted"
    return ""


def not_moved(
    situation: Situation,
    *,
    name: str,
    technique: Technique,
    premise: str,
    premise_holds: bool,
    moves: tuple[BudgetMove, ...],
    narrowness: Narrowness,
    because: str,
) -> Assessment:
    """Return the assessment of a technique that is judged but that this version cannot move."""
    ceiling = situation.diagnosis.ceiling(technique)
    reason = because
    if ceiling is not None and ceiling.gain_share is not None:
        reason = f"{because}; ceiling {ceiling.gain_share:.1%}: {ceiling.because}"
    return Assessment(
        lever=name,
        technique=technique,
        premise=premise,
        premise_holds=premise_holds,
        gain_share=None if ceiling is None else ceiling.gain_share,
        moves=moves,
        narrowness=narrowness,
        available=False,
        because=reason,
    )


def refuse_to_propose(name: str, assessment: Assessment) -> LeverRecord:
    """Raise `LeverRecordError`: a lever that cannot be moved has no record."""
    raise LeverRecordError(f"{name} cannot be proposed: {assessment.because}")
