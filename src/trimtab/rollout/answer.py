"""From what was measured to a verdict with its reason; the law is in `rollout.gates`."""

import math
from typing import assert_never

import msgspec

from trimtab.core.gate import GateResult, GateSpec, Metric, Question
from trimtab.core.quality_scores import Scores
from trimtab.core.stats import Interval
from trimtab.core.stats_betting import units_that_show
from trimtab.core.types import RolloutState, Verdict

ALL_TRAFFIC = "all"

RATES = frozenset(
    {
        Metric.ERROR_RATE,
        Metric.OUTPUT_DIFFERENCE,
        Metric.MEMORY_BYTES,
        Metric.INVALID_OUTPUT_RATE,
        Metric.QUALITY_LOSS,
        Metric.SLICE_SHARE,
    }
)
"""Counted or read, not compared in units: what looks like harm there holds until it does not."""


class ArmExtras(msgspec.Struct, frozen=True, kw_only=True):
    """What gates need beside request records; None is unknown.

    Harm is judged from `fresh_from_block` on, the first block at the present share; blocks from
    `complete_before_block` on are not over yet (None: all are). Before `warm_from_block` the candidate was cold.

    Memory: peak resident bytes of a replica of each arm. Outputs: of `outputs_n` prompts asked again at
    temperature 0, `outputs_differ` gave another text with the candidate; `floor_*`: baseline against itself. Prices
    are of a replica's hour; `scores`: the evaluations of the lever.
    """

    fresh_from_block: int = 0
    complete_before_block: int | None = None
    warm_from_block: int = 0
    memory_bytes_baseline: float | None = None
    memory_bytes_candidate: float | None = None
    outputs_differ: int = 0
    outputs_n: int = 0
    floor_differs: int = 0
    floor_n: int = 0
    price_baseline: float | None = None
    price_candidate: float | None = None
    scores: tuple[Scores, ...] = ()


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """One metric of one cut in both arms. `harm_*`: above 0 is worse; infinite where nothing bounds it.

    `n_units` None: the metric has no units. `unmeasured`: requests that lacked a value. `may_stop`: that there is any
    harm at all is shown at the rollout's bound for stopping (`rollout.bounds`), or it has none.
    """

    n_baseline: int
    n_candidate: int
    n_units: int | None
    value: float | None
    interval: Interval | None
    harm_low: float
    harm_high: float
    harm_now: float | None
    may_stop: bool = True
    drifted: bool = False
    unmeasured: int = 0
    note: str = ""


def judge(
    spec: GateSpec, measured: Measured, stop_alpha: float | None = None
) -> tuple[Verdict, str]:
    """Return the verdict and why; a fail comes before all, a lack of samples before a pass."""
    low, high, margin = measured.harm_low, measured.harm_high, spec.margin
    limit = 0.0 if spec.question is Question.GAIN else margin
    if low > limit:
        if not measured.may_stop:
            return (
                Verdict.HOLD,
                f"worse by more than {limit:.0%} is likely, but not shown at {stop_alpha:.2g}",
            )
        return Verdict.FAIL, f"worse by more than {limit:.0%} is shown"
    if _unmeasurable(spec, measured):
        return Verdict.ERROR, f"none of {measured.unmeasured} requests could be measured"
    lacking = _lacking(spec, measured)
    if lacking:
        return Verdict.HOLD, lacking
    match spec.question:
        case Question.GAIN:
            shown, target = high <= -margin, -margin
            words = f"a gain of at least {margin:.0%}"
        case Question.NO_HARM:
            shown, target = high <= margin, margin
            words = f"the absence of harm beyond {margin:.0%}"
        case Question.VETO:
            likely = measured.harm_now is not None and measured.harm_now > margin
            if likely and _holds_while_likely(spec, measured, stop_alpha):
                return Verdict.HOLD, f"harm beyond {margin:.0%} is likely, but not shown"
            return Verdict.PASS, f"harm beyond {margin:.0%} is not shown"
        case _:
            assert_never(spec.question)
    if not shown:
        return Verdict.HOLD, f"{words} is not shown yet"
    if measured.drifted and (measured.harm_now is None or measured.harm_now > target):
        return Verdict.HOLD, "the ratio moved while it was measured"
    return Verdict.PASS, f"{words} is shown"


def result_of(
    spec: GateSpec, measured: Measured, verdict_and_reason: tuple[Verdict, str]
) -> GateResult:
    """Return the answer with everything needed to believe it."""
    verdict, reason = verdict_and_reason
    parts = [reason]
    if measured.drifted and verdict is not Verdict.HOLD:
        parts.append("the ratio moved while it was measured")
    if measured.note:
        parts.append(measured.note)
    return GateResult(
        gate=spec.name,
        metric=spec.metric,
        question=spec.question,
        cut=ALL_TRAFFIC if spec.cut is None else str(spec.cut),
        verdict=verdict,
        n_baseline=measured.n_baseline,
        n_candidate=measured.n_candidate,
        n_units=measured.n_units or 0,
        value=measured.value,
        interval=measured.interval,
        margin=spec.margin,
        reason="; ".join(parts),
        required=spec.required,
    )


def _holds_while_likely(spec: GateSpec, measured: Measured, stop_alpha: float | None) -> bool:
    """Whether likely harm is enough to wait.

    While the slice is small it is: the gate is there to catch what is broken. So it is where harm could not be shown
    even if all the evidence spoke for it. Before adoption, with units enough, silence counts.
    """
    early = RolloutState.PROVING not in spec.during
    showing = units_that_show(spec.alpha if stop_alpha is None else min(spec.alpha, stop_alpha))
    return early or spec.metric in RATES or (measured.n_units or 0) < showing


def _unmeasurable(spec: GateSpec, measured: Measured) -> bool:
    nothing = measured.n_baseline + measured.n_candidate == 0 or (
        measured.value is None and math.isinf(measured.harm_high)
    )
    return nothing and measured.unmeasured >= 2 * spec.min_requests


def _lacking(spec: GateSpec, measured: Measured) -> str:
    parts = []
    if measured.n_baseline < spec.min_requests:
        parts.append(f"{measured.n_baseline} of {spec.min_requests} baseline requests")
    if measured.n_candidate < spec.min_requests:
        parts.append(f"{measured.n_candidate} of {spec.min_requests} candidate requests")
    if measured.n_units is not None and measured.n_units < spec.min_units:
        parts.append(f"{measured.n_units} of {spec.min_units} units")
    return ", ".join(parts)
