"""The mathematics of calibration: timings of short probes in, cost model and speculation table out.

Costs are fitted to the fastest timing of each point: whatever else a machine does can only add time, and a mean
would carry that into every prediction. Throughput is pooled over all runs, because there both sides met the same.
"""

import itertools
from collections import defaultdict
from collections.abc import Iterable, Sequence

import msgspec

from trimtab.core.cost import TOLD_SHARE_MIN, CostModel, SpeculationTable, StepPoint, fit_line
from trimtab.core.revision import Speculation


class CalibrationError(ValueError):
    """Timings from which nothing can be fitted; the message says which are missing."""


class PrefillTiming(msgspec.Struct, frozen=True):
    """One prefill: uncached prompt tokens and milliseconds."""

    tokens: int
    ms: float


class StepTiming(msgspec.Struct, frozen=True):
    """Decoding `batch` streams at once: milliseconds per token of one of them, and tokens it got per step, if known."""

    batch: int
    ms_per_token: float
    tokens_per_step: float | None = 1.0


class BatchRun(msgspec.Struct, frozen=True, kw_only=True):
    """`batch` streams decoded at once: output tokens of all, wall seconds, and draft counts.

    `round`: both sides of a round decode the same prompt, one soon after the other, and are compared with each other.
    """

    batch: int
    round: int
    speculating: bool
    output_tokens: int
    wall_s: float
    accepted_tokens: int | None = None


def fit_cost(
    prefills: Sequence[PrefillTiming], steps: Sequence[StepTiming], *, source: str
) -> CostModel:
    """Fit a cost model; raises `CalibrationError` without at least one prefill and one step.

    With one prompt size (or one batch) its line goes through the origin, as `fit_line` says. So does that of prefills
    where noise was larger than the cost of the added tokens: tokens are never free. Where drafts gave steps several
    tokens the line is that of whole steps over their mean tokens; where fewer than half of the timings know how many,
    that of tokens as they came.
    """
    if not prefills:
        raise CalibrationError("no prefill was timed: the cost of a prompt token is unknown")
    if not steps:
        raise CalibrationError("no decode step was timed: the cost of an output token is unknown")
    points = _fastest((float(p.tokens), p.ms) for p in prefills)
    base_ms, per_token_ms = fit_line(points)
    if per_token_ms <= 0.0:
        base_ms, per_token_ms = fit_line(points[-1:])
    per_step = _tokens_per_step(steps)
    timed = _comparable(steps, per_step)
    step_ms, per_stream_ms = fit_line(_fastest((float(s.batch), _ms(s, per_step)) for s in timed))
    return CostModel(
        prefill_base_ms=base_ms,
        prefill_ms_per_token=per_token_ms,
        step_base_ms=step_ms,
        step_ms_per_stream=per_stream_ms,
        prefill_samples=len(prefills),
        step_samples=len(timed),
        source=source,
        tokens_per_step=per_step,
    )


def _tokens_per_step(steps: Sequence[StepTiming]) -> float | None:
    """Return the mean over the timings that know, None where fewer than half of them do."""
    told = [step.tokens_per_step for step in steps if step.tokens_per_step is not None]
    return sum(told) / len(told) if told and len(told) >= TOLD_SHARE_MIN * len(steps) else None


def _comparable(steps: Sequence[StepTiming], per_step: float | None) -> Sequence[StepTiming]:
    """Leave out timings of unknown tokens per step at batches where others know: the fastest may be a lucky draft."""
    if per_step is None:
        return steps
    known = {step.batch for step in steps if step.tokens_per_step is not None}
    return [step for step in steps if step.tokens_per_step is not None or step.batch not in known]


def _ms(step: StepTiming, per_step: float | None) -> float:
    """Return milliseconds of a token in a step that gives the mean, so that a lucky draft is no fast machine."""
    if per_step is None or step.tokens_per_step is None:
        return step.ms_per_token
    return step.ms_per_token * step.tokens_per_step / per_step


def _fastest(points: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    by_x: dict[float, float] = {}
    for x, y in points:
        by_x[x] = min(y, by_x.get(x, y))
    return sorted(by_x.items())


def speculation_table(
    runs: Sequence[BatchRun], *, speculation: Speculation, content: str
) -> SpeculationTable:
    """Pool interleaved runs by batch and side; rounds without time or tokens on either side are left out.

    Pooled rate: all output tokens of a point over all its wall time. Raises `CalibrationError` if no batch was
    measured on both sides, because then nothing says whether drafting pays.
    """
    usable = [run for run in runs if run.wall_s > 0 and run.output_tokens > 0]
    sides = {True: set[tuple[int, int]](), False: set[tuple[int, int]]()}
    for run in usable:
        sides[run.speculating].add((run.batch, run.round))
    # A rate of rounds that the other side lacks would compare unequal prompts.
    both = [run for run in usable if (run.batch, run.round) in sides[True] & sides[False]]
    if not both:
        raise CalibrationError("no batch was measured both with and without speculation")
    off = _points([run for run in both if not run.speculating])
    on = _points([run for run in both if run.speculating])
    return SpeculationTable(speculation=speculation, off=off, on=on, content=content)


def _points(runs: Sequence[BatchRun]) -> tuple[StepPoint, ...]:
    by_batch: dict[int, list[BatchRun]] = defaultdict(list)
    for run in sorted(runs, key=lambda one: one.round):
        by_batch[run.batch].append(run)
    return tuple(
        StepPoint(
            batch=batch,
            tokens_per_s=sum(run.output_tokens for run in theirs)
            / sum(run.wall_s for run in theirs),
            samples=len(theirs),
            accepted_per_step=_accepted_per_step(theirs),
            rounds=tuple(run.output_tokens / run.wall_s for run in theirs),
        )
        for batch, theirs in sorted(by_batch.items())
    )


def _accepted_per_step(runs: Sequence[BatchRun]) -> float | None:
    told = [run for run in runs if run.accepted_tokens is not None]
    output = sum(run.output_tokens for run in told)
    steps = output - sum(run.accepted_tokens or 0 for run in told)
    return output / steps if steps > 0 else None


def speedup_at(table: SpeculationTable, batch: float) -> float | None:
    """Return aggregate throughput with over without speculation at a batch; None without a common point.

    Linear between measured batches, the nearest one beyond them: nothing is promised outside what was measured
    that was not measured at its edge.
    """
    ratios = table.ratios()
    if not ratios:
        return None
    if batch <= ratios[0][0]:
        return ratios[0][1]
    for (low, ratio_low), (high, ratio_high) in itertools.pairwise(ratios):
        if batch <= high:
            return ratio_low + (ratio_high - ratio_low) * (batch - low) / (high - low)
    return ratios[-1][1]
