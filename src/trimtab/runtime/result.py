"""The result of a tune as values: what `result.json` holds and what the report draws.

Latencies in milliseconds, times of events in seconds since the run began. None is unknown. Every figure comes
from request records, probes or the ledger; nothing here is computed for show.
"""

from collections import Counter
from collections.abc import Sequence

import msgspec

from trimtab.core.budgets import BudgetMove, BudgetUse
from trimtab.core.cuts import Cut, Dimension, cuts_of
from trimtab.core.findings import Diagnosis
from trimtab.core.gate import GateResult
from trimtab.core.record import RequestRecord
from trimtab.core.stats import Interval, mean_interval, percentile

BLOCK_S = 10.0
"""Requests that arrived in one such window are taken as one block for the interval of a mean."""


class Latency(msgspec.Struct, frozen=True, kw_only=True):
    """Mean, median and 95th percentile of one latency in milliseconds, with the interval of the mean."""

    n: int
    mean: float | None
    p50: float | None
    p95: float | None
    mean_interval: Interval | None = None


class RunSummary(msgspec.Struct, frozen=True, kw_only=True):
    """One run of the workload. `makespan_s`: first arrival to last answer; rates are over it."""

    name: str
    n: int
    errors: int
    window_s: float
    makespan_s: float
    ttft_ms: Latency
    tpot_ms: Latency
    e2e_ms: Latency
    chunk_gap_ms: Latency
    output_tokens: int
    output_tokens_per_s: float | None
    prompt_tokens: int
    cached_tokens: int
    computed_tokens: int
    accepted_per_step: float | None
    draft_acceptance: float | None
    output_share_by_replica: dict[str, float]
    lateness_ms_p95: float | None = None


class Distribution(msgspec.Struct, frozen=True, kw_only=True):
    """Values of one metric in one cut before and after, for drawing. `cut` "all" is every request."""

    metric: str
    cut: str
    baseline: tuple[float, ...]
    final: tuple[float, ...]


class BudgetsAt(msgspec.Struct, frozen=True, kw_only=True):
    """The four budgets at one moment: "before", "predicted" for a lever, or "after" it."""

    when: str
    lever: str | None
    uses: tuple[BudgetUse, ...]


class ScopedDiagnosis(msgspec.Struct, frozen=True, kw_only=True):
    """A diagnosis and what it was made of."""

    scope: str
    diagnosis: Diagnosis


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """A measured effect: candidate over baseline, with interval and counts, beside its prediction."""

    metric: str
    cut: str
    ratio: float | None
    interval: Interval | None
    n_baseline: int
    n_candidate: int
    n_units: int
    predicted_ratio: float | None = None
    predicted_low: float | None = None
    predicted_high: float | None = None


class LeverResult(msgspec.Struct, frozen=True, kw_only=True):
    """What became of one lever. `verdict`: adopted, adopted for cuts, rolled back, not chosen, not available."""

    name: str
    technique: str
    premise: str
    premise_holds: bool
    predicted_gain_share: float | None
    verdict: str
    because: str
    moves: tuple[BudgetMove, ...] = ()
    measured: tuple[Measured, ...] = ()
    gates: tuple[GateResult, ...] = ()
    cuts_kept: tuple[str, ...] = ()
    cuts_refused: dict[str, str] = {}
    chain: tuple[str, ...] = ()


class TriggerResult(msgspec.Struct, frozen=True, kw_only=True):
    """A trigger that moved. The held shares are cached over all prompt tokens around the switch.

    `kv_tokens_*`: what the slots of restarted replicas held at the switch, and what they got back after it; None
    where nothing restarted.
    """

    lever: str
    trigger: str
    because: str
    value: float
    threshold: float
    fired_at_s: float
    action: str
    recovered_at_s: float | None = None
    held_share_before: float | None = None
    held_share_after: float | None = None
    n_before: int = 0
    n_after: int = 0
    kv_tokens_saved: int | None = None
    kv_tokens_restored: int | None = None


class TimelinePoint(msgspec.Struct, frozen=True, kw_only=True):
    """Something that happened to a lever: a move of its rollout, a trigger, or a stage of the tune."""

    at_s: float
    lane: str
    what: str
    share: float | None = None
    verdict: str | None = None
    detail: str = ""


class LedgerInfo(msgspec.Struct, frozen=True, kw_only=True):
    """Where the causal record lies and whether its chain verified."""

    path: str
    events: int
    head_hash: str
    verified: bool


class TuneResult(msgspec.Struct, frozen=True, kw_only=True):
    """Everything a tune found, in one value."""

    version: str
    started_at_s: float
    duration_s: float
    machine: str
    workload: str
    settings: dict[str, str | int | float | bool]
    baseline: RunSummary
    final: RunSummary
    diagnoses: tuple[ScopedDiagnosis, ...]
    budgets: tuple[BudgetsAt, ...]
    levers: tuple[LeverResult, ...]
    triggers: tuple[TriggerResult, ...]
    timeline: tuple[TimelinePoint, ...]
    distributions: tuple[Distribution, ...]
    ledger: LedgerInfo
    notes: tuple[str, ...] = ()


def summarise(
    name: str, records: Sequence[RequestRecord], *, lateness_ms_p95: float | None = None
) -> RunSummary:
    """Summarise the records of one run; errors are counted and kept out of the latencies."""
    good = [record for record in records if record.ok]
    start = min((record.arrived_at_s for record in records), default=0.0)
    end = max((record.finished_at_s for record in records), default=0.0)
    last_arrival = max((record.arrived_at_s for record in records), default=0.0)
    output = sum(record.tokens.output or 0 for record in good)
    prompt = sum(record.tokens.prompt or 0 for record in good)
    cached = sum(record.tokens.delivered or 0 for record in good)
    makespan = end - start
    return RunSummary(
        name=name,
        n=len(good),
        errors=len(records) - len(good),
        window_s=last_arrival - start,
        makespan_s=makespan,
        ttft_ms=_latency(good, "ttft_ms"),
        tpot_ms=_latency(good, "tpot_ms"),
        e2e_ms=_latency(good, "e2e_ms"),
        chunk_gap_ms=_latency(good, "chunk_gap_ms_max"),
        output_tokens=output,
        output_tokens_per_s=output / makespan if makespan > 0 else None,
        prompt_tokens=prompt,
        cached_tokens=cached,
        computed_tokens=prompt - cached,
        accepted_per_step=_accepted_per_step(good),
        draft_acceptance=_acceptance(good),
        output_share_by_replica=_shares(good, output),
        lateness_ms_p95=lateness_ms_p95,
    )


def distributions(
    baseline: Sequence[RequestRecord], final: Sequence[RequestRecord], *, least: int = 5
) -> tuple[Distribution, ...]:
    """Pair the TTFT and TPOT values of two runs by cut; cuts with fewer than `least` on a side are left out."""
    found: list[Distribution] = []
    cuts: tuple[Cut | None, ...] = (None, *_cuts_to_draw([*baseline, *final]))
    for metric in ("ttft_ms", "tpot_ms"):
        for cut in cuts:
            sides = [_values(records, metric, cut) for records in (baseline, final)]
            if min(len(side) for side in sides) < least:
                continue
            label = "all" if cut is None else str(cut)
            found.append(
                Distribution(
                    metric=metric, cut=label, baseline=tuple(sides[0]), final=tuple(sides[1])
                )
            )
    return tuple(found)


def _cuts_to_draw(records: Sequence[RequestRecord]) -> list[Cut]:
    wanted = {
        Dimension.LABEL,
        Dimension.CACHE,
        Dimension.INPUT_TOKENS,
        Dimension.BATCH,
        Dimension.TEMPERATURE,
    }
    return sorted({cut for record in records for cut in cuts_of(record) if cut.dimension in wanted})


def _values(records: Sequence[RequestRecord], metric: str, cut: Cut | None) -> list[float]:
    chosen = (record for record in records if record.ok and (cut is None or cut in cuts_of(record)))
    return [value for record in chosen if (value := getattr(record, metric)) is not None]


def _latency(records: Sequence[RequestRecord], metric: str) -> Latency:
    pairs = [
        (getattr(r, metric), int(r.arrived_at_s // BLOCK_S))
        for r in records
        if getattr(r, metric) is not None
    ]
    values = [value for value, _ in pairs]
    if not values:
        return Latency(n=0, mean=None, p50=None, p95=None)
    return Latency(
        n=len(values),
        mean=sum(values) / len(values),
        p50=percentile(values, 0.50),
        p95=percentile(values, 0.95),
        mean_interval=mean_interval(values, blocks=[block for _, block in pairs]),
    )


def _accepted_per_step(records: Sequence[RequestRecord]) -> float | None:
    known = [r for r in records if r.tokens.output and r.drafting.accepted is not None]
    output = sum(r.tokens.output or 0 for r in known)
    steps = output - sum(r.drafting.accepted or 0 for r in known)
    return output / steps if steps > 0 else None


def _acceptance(records: Sequence[RequestRecord]) -> float | None:
    drafted = sum(r.drafting.drafted or 0 for r in records)
    accepted = sum(r.drafting.accepted or 0 for r in records)
    return accepted / drafted if drafted else None


def _shares(records: Sequence[RequestRecord], output: int) -> dict[str, float]:
    counts: Counter[str] = Counter()
    for record in records:
        if record.replica is not None:
            counts[record.replica] += record.tokens.output or 0
    return (
        {replica: tokens / output for replica, tokens in sorted(counts.items())} if output else {}
    )
