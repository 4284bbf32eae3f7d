"""The gates that levers declare, and the only place of their constants, which fit small and large traffic.

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

A technique knows where its own harm would show and how much of it is bearable (`technique_vetoes`): it asks that of the
whole, in its proof, and gross harm alone before (`early_veto`), as most of them are proven in minutes by a tune.
"""

import msgspec

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
OUTPUT_MARGIN = 0.20
"""A dozen prompts are asked again: one that differs is no sign."""

TAIL_MARGIN, TAIL_PROVEN_MARGIN = 0.50, 0.10
"""While the slice is small, and in a technique's own proof."""

TPOT_MARGIN = 0.25
E2E_MARGIN = 0.25
THROUGHPUT_MARGIN = 0.15
CHUNK_GAP_MARGIN = 0.25
"""What a technique's own proof bears; whoever expects a gain of one of them asks for the gain."""

OUTPUTS_MIN = 6
EARLY = (RolloutState.CANARY, RolloutState.RAMPING)
"""The states in which few requests meet the candidate."""

EARLY_REQUESTS_MIN = 3
PROVEN_REQUESTS_MIN = 10
"""Requests per arm in a technique's own proof, beside the six units that a gain takes anyway."""


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
        msgspec.structs.replace(
            _safety("outputs", Metric.OUTPUT_DIFFERENCE, OUTPUT_MARGIN), min_requests=OUTPUTS_MIN
        ),
        _safety("ttft tail", Metric.TTFT_MS, TAIL_MARGIN, Statistic.TAIL_P95),
    )


def veto(
    metric: Metric,
    margin: float,
    *,
    statistic: Statistic = Statistic.TYPICAL,
    matched_batch: bool = False,
) -> GateSpec:
    """Return a gate on all traffic of the slice that fails when harm beyond the margin is shown in the proof."""
    tail = "-tail" if statistic is Statistic.TAIL_P95 else ""
    return GateSpec(
        name=f"{metric.value.replace('_', '-')}{tail}-veto",
        metric=metric,
        question=Question.VETO,
        margin=margin,
        statistic=statistic,
        matched_batch=matched_batch,
        alpha=ALPHA,
        min_requests=PROVEN_REQUESTS_MIN,
        min_units=GAIN_UNITS_MIN,
        during=(RolloutState.PROVING,),
    )


def technique_gain(
    name: str,
    metric: Metric,
    margin: float,
    *,
    cut: Cut | None = None,
    matched_batch: bool = False,
    required: bool = True,
) -> GateSpec:
    """Return the gate that asks for a technique's own effect in its proof."""
    return GateSpec(
        name=name,
        metric=metric,
        question=Question.GAIN,
        margin=margin,
        cut=cut,
        matched_batch=matched_batch,
        min_requests=PROVEN_REQUESTS_MIN,
        during=(RolloutState.PROVING,),
        required=required,
    )


def early_veto(metric: Metric, *, matched_batch: bool = False) -> GateSpec:
    """Return the gate that a small slice can answer: is something broken?"""
    _, margin, _, _ = HARM_STAGES[0]
    return GateSpec(
        name=f"{metric.value.replace('_', '-')}-early",
        metric=metric,
        question=Question.VETO,
        margin=margin,
        matched_batch=matched_batch,
        alpha=ALPHA,
        min_requests=EARLY_REQUESTS_MIN,
        min_units=1,
        during=EARLY,
    )


def technique_vetoes(*, matched_batch: bool) -> tuple[GateSpec, ...]:
    """Return the vetoes that every technique carries: end to end, throughput, errors, memory, outputs."""
    return (
        early_veto(Metric.TTFT_MS),
        early_veto(Metric.TPOT_MS, matched_batch=matched_batch),
        veto(Metric.E2E_MS, E2E_MARGIN, matched_batch=matched_batch),
        veto(Metric.OUTPUT_TOKENS_PER_S, THROUGHPUT_MARGIN, matched_batch=matched_batch),
        _always(Metric.ERROR_RATE, ERROR_MARGIN),
        _always(Metric.MEMORY_BYTES, MEMORY_MARGIN),
        msgspec.structs.replace(
            _always(Metric.OUTPUT_DIFFERENCE, OUTPUT_MARGIN),
            min_requests=OUTPUTS_MIN,
            during=(RolloutState.PROVING,),
        ),
    )


def _always(metric: Metric, margin: float) -> GateSpec:
    name = f"{metric.value.replace('_', '-')}-veto"
    return msgspec.structs.replace(_safety(name, metric, margin), min_requests=EARLY_REQUESTS_MIN)


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
