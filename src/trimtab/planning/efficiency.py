"""What each added accelerator does: parallel efficiency, the share of communication, and where to stop.

Two layouts of one model under one load are compared, the smaller one with n accelerators and the larger one with m:

    efficiency           (work per second of the larger / m) / (work per second of the smaller / n)
    ideal step           step of the smaller * n / m
    excess               (step of the larger - ideal step) / step of the larger

The excess holds everything that did not divide: collectives, waiting for the slowest rank, work that every rank
repeats, the host. The share of communication by an engine's trace is another reading of the same thing (time in
collectives that no computation overlaps, over the time traced). Both are shown: where they differ by much, the rest
is imbalance or host.

A gain needs its interval above 1, else more runs are asked for. Replicas are the yardstick: m / n copies of the
smaller layout serve m / n times the work at the smaller one's latency, so a larger layout is worth it for throughput
only with an efficiency of at least 1, and for latency only if a target needs it.

Source: efficiency as in Amdahl, 1967; interval of a ratio of medians by the runs' own spread (order statistics).
"""

import itertools
from collections.abc import Sequence
from enum import StrEnum
from statistics import median
from typing import Final

import msgspec

from trimtab.core.layout import Layout, PlanInputError, Span
from trimtab.planning.rank_signs import Ranks, Transfers, signs_of

EFFICIENCY_FLOOR: Final = 0.7
"""Below this an added accelerator is not worth its price for latency either, unless a target cannot be met without."""


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """One measured run of a layout under a load. Milliseconds are means of the run's requests.

    `accelerators`: how many it used; `tokens_per_s`: output tokens of all requests; `communication_share`: part (0 to
    1) of traced time in collectives that nothing overlaps, None without a trace; `input_tokens`: mean that the server
    counted of a request, None where it does not say. `ranks`: how busy each rank was, `transfers`: KV moved; None where
    nobody said.
    """

    layout: Layout
    accelerators: int
    ttft_ms: float
    tpot_ms: float
    tokens_per_s: float
    requests: int
    communication_share: float | None = None
    input_tokens: float | None = None
    ranks: Ranks | None = None
    transfers: Transfers | None = None


class Verdict(StrEnum):
    """What to do about a larger layout."""

    KEEP = "keep"
    ADD_REPLICA = "add_replica"
    GO_BACK = "go_back"
    MEASURE_MORE = "measure_more"


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """A larger layout against a smaller one. Ratios are larger over smaller; spans hold the runs' own spread.

    `excess_share`: part of its decode step that did not divide; `traced_share`: the same by the engine's trace.
    `pairs`: pairs of interleaved runs behind the ratios. `signs`: what ranks and transfers say of the larger one.
    """

    smaller: Layout
    larger: Layout
    accelerators: tuple[int, int]
    throughput_ratio: Span
    tpot_ratio: Span
    ttft_ratio: Span
    efficiency: Span
    excess_share: Span
    traced_share: float | None
    pairs: int
    verdict: Verdict
    because: str
    signs: tuple[str, ...] = ()


class EfficiencyReport(msgspec.Struct, frozen=True, kw_only=True):
    """Every step from a smaller to a larger layout. `reverses_at`: accelerators from which on more make it slower."""

    steps: tuple[Step, ...]
    reverses_at: int | None
    because: str


def efficiency_report(runs: Sequence[Run], *, tpot_ms: float | None = None) -> EfficiencyReport:
    """Compare each layout with the smallest one that was measured; raises `PlanInputError` with fewer than two layouts.

    `tpot_ms`: the target that users need, None: none.
    """
    by_size: dict[tuple[int, Layout], list[Run]] = {}
    for run in runs:
        by_size.setdefault((run.accelerators, run.layout), []).append(run)
    ordered = [found for _, found in sorted(by_size.items())]
    if len(ordered) < 2:
        raise PlanInputError(
            "runs", f"{len(ordered)} layouts were measured; efficiency compares at least two"
        )
    smallest = ordered[0]
    steps = tuple(_step(smallest, larger, tpot_ms) for larger in ordered[1:])
    return EfficiencyReport(
        steps=steps, reverses_at=_reverses_at(smallest, steps), because=_curve(ordered)
    )


def _step(smaller: Sequence[Run], larger: Sequence[Run], tpot_ms: float | None) -> Step:
    pairs = list(zip(smaller, larger, strict=False))
    n, m = smaller[0].accelerators, larger[0].accelerators
    throughput = _span([b.tokens_per_s / a.tokens_per_s for a, b in pairs])
    tpot = _span([b.tpot_ms / a.tpot_ms for a, b in pairs])
    efficiency = _scaled(throughput, n / m)
    excess = _span([1.0 - a.tpot_ms * n / m / b.tpot_ms for a, b in pairs])
    traced = [run.communication_share for run in larger if run.communication_share is not None]
    made = Step(
        smaller=smaller[0].layout,
        larger=larger[0].layout,
        accelerators=(n, m),
        throughput_ratio=throughput,
        tpot_ratio=tpot,
        ttft_ratio=_span([b.ttft_ms / a.ttft_ms for a, b in pairs]),
        efficiency=efficiency,
        excess_share=excess,
        traced_share=median(traced) if traced else None,
        pairs=len(pairs),
        verdict=Verdict.KEEP,
        because="",
    )
    verdict, because = _judge(made, smaller, larger, tpot_ms)
    return msgspec.structs.replace(made, verdict=verdict, because=because, signs=_signs(larger))


def _signs(runs: Sequence[Run]) -> tuple[str, ...]:
    return tuple(
        signs_of(
            [run.ranks for run in runs if run.ranks is not None],
            [run.transfers for run in runs if run.transfers is not None],
            median([run.ttft_ms for run in runs]),
            sum(run.requests for run in runs if run.transfers is not None),
        )
    )


def _judge(
    step: Step, smaller: Sequence[Run], larger: Sequence[Run], tpot_ms: float | None
) -> tuple[Verdict, str]:
    n, m = step.accelerators
    told = (
        f"{step.larger.label} on {m} gives {step.throughput_ratio.value:.2f} times the work of {step.smaller.label} on "
        f"{n}, {step.efficiency.value:.0%} for each accelerator, at {step.tpot_ratio.value:.2f} times the TPOT"
    )
    before, after = (
        median([run.tpot_ms for run in smaller]),
        median([run.tpot_ms for run in larger]),
    )
    if tpot_ms is not None and before > tpot_ms >= after:
        return (
            Verdict.KEEP,
            f"{told}; only it meets {tpot_ms:g} ms (TPOT {after:.1f} against {before:.1f} ms)",
        )
    if step.tpot_ratio.low is None or step.throughput_ratio.low is None:
        return Verdict.MEASURE_MORE, f"{told}; {step.pairs} pair of runs tells no spread: repeat it"
    slower = step.tpot_ratio.low > 1.0
    less = step.throughput_ratio.high is not None and step.throughput_ratio.high < 1.0
    if slower and less:
        return (
            Verdict.GO_BACK,
            f"{told}: it is slower and does less; go back to {step.smaller.label}, "
            f"and add a replica of it if more work is needed ({m // n} of them give {m / n:.1f} times)",
        )
    if step.efficiency.high is not None and step.efficiency.high < 1.0:
        return (
            Verdict.ADD_REPLICA,
            f"{told}; {m // n} replicas of {step.smaller.label} on the same {m} would give {m / n:.1f} times the work "
            f"at the same TPOT, so add a replica instead{_latency(step)}",
        )
    if step.efficiency.value >= 1.0:
        return Verdict.KEEP, f"{told}; no less than a replica would bring"
    return (
        Verdict.MEASURE_MORE,
        f"{told}; the interval of the efficiency reaches 100%: more pairs of runs would tell",
    )


def _latency(step: Step) -> str:
    if step.tpot_ratio.high is None or step.tpot_ratio.high >= 1.0:
        return ""
    fair = step.efficiency.value >= EFFICIENCY_FLOOR
    return (
        ", unless a latency target needs the shorter TPOT"
        if fair
        else f", unless a target cannot be met without (an efficiency under {EFFICIENCY_FLOOR:.0%} is a dear way to it)"
    )


def _reverses_at(smallest: Sequence[Run], steps: Sequence[Step]) -> int | None:
    """Return the accelerators from which on a larger layout is slower than the one before, both in TPOT and in work."""
    points = [(smallest[0].accelerators, 1.0, 1.0)]
    points += [
        (one.accelerators[1], one.throughput_ratio.value, one.tpot_ratio.value) for one in steps
    ]
    best: dict[int, tuple[float, float]] = {}
    for count, work, tpot in points:
        old = best.get(count)
        best[count] = (work, tpot) if old is None else (max(work, old[0]), min(tpot, old[1]))
    for (_, before), (count, after) in itertools.pairwise(sorted(best.items())):
        if after[0] < before[0] and after[1] > before[1]:
            return count
    return None


def _curve(ordered: Sequence[Sequence[Run]]) -> str:
    parts = (
        f"{found[0].layout.label} on {found[0].accelerators}: "
        f"{median([run.tokens_per_s for run in found]):.1f} tok/s (n={len(found)})"
        for found in ordered
    )
    return "; ".join(parts)


def _span(values: Sequence[float]) -> Span:
    """Return the median with the range of the runs, which covers (n - 1) / (n + 1) of runs to come."""
    count = len(values)
    if count < 2:
        return Span(value=median(values))
    return Span(
        value=median(values),
        low=min(values),
        high=max(values),
        cover=(count - 1) / (count + 1),
    )


def _scaled(span: Span, factor: float) -> Span:
    return msgspec.structs.replace(
        span,
        value=span.value * factor,
        low=None if span.low is None else span.low * factor,
        high=None if span.high is None else span.high * factor,
    )
