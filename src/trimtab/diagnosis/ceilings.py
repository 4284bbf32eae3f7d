"""The ceiling of gain per technique: the part of all requests' time that would vanish at the very best."""

from trimtab.core.cost import CostModel, SpeculationTable
from trimtab.core.evidence import Readings
from trimtab.core.findings import Ceiling
from trimtab.core.types import Technique
from trimtab.diagnosis.calibration import speedup_at
from trimtab.diagnosis.causes import Causes, step_batch
from trimtab.diagnosis.names import FleetFacts, Name


def ceilings_of(
    readings: Readings,
    causes: Causes | None,
    cost: CostModel | None,
    fleet: FleetFacts,
    speculation: SpeculationTable | None,
) -> tuple[Ceiling, ...]:
    """Return one ceiling per technique, in the order of `Technique`; unknown where time by phase is unknown."""
    if causes is None:
        reason = "time by phase is unknown"
        return tuple(Ceiling(technique=t, gain_share=None, because=reason) for t in Technique)
    found = {
        Technique.PREFIX_CACHING: _prefix_caching(readings, causes, cost),
        Technique.SPECULATION: _speculation(readings, causes, speculation),
        Technique.QUANTIZATION: _quantization(readings, causes, cost),
        Technique.PREFILL_CHUNKING: _chunking(causes),
        Technique.DISAGGREGATION: _disaggregation(readings, causes),
        Technique.PARALLEL_LAYOUT: _layout(causes, fleet),
        Technique.REPLICAS: _replicas(causes),
    }
    return tuple(
        Ceiling(technique=technique, gain_share=found[technique][0], because=found[technique][1])
        for technique in Technique
    )


Found = tuple[float | None, str]


def lost_part(readings: Readings) -> float | None:
    """Return the part (0 to 1) of computed prompt tokens that some replica held; None if unknown."""
    lost = readings.value(Name.SKIPPED_TOKENS_LOST)
    computed = readings.value(Name.COMPUTED_TOKENS)
    if lost is None or computed is None:
        return None
    return min(1.0, lost / computed) if computed > 0 else 0.0


def _prefix_caching(readings: Readings, causes: Causes, cost: CostModel | None) -> Found:
    part = lost_part(readings)
    around = causes.queued_behind_prefill + causes.stalled_decode
    if part is None:
        share = min(1.0, causes.prefill + around)
        return share, (
            f"tokens lost are unknown; at most all prefill time ({causes.prefill:.1%}) "
            f"and the time spent behind prefills ({around:.1%})"
        )
    own = causes.prefill * part
    total_ms, lost = readings.value(Name.REQUEST_MS_TOTAL), readings.value(Name.SKIPPED_TOKENS_LOST)
    if cost is not None and total_ms and lost is not None:
        own = min(causes.prefill, max(own, lost * cost.prefill_ms_per_token / total_ms))
    share = min(1.0, own + part * around)
    text = (
        f"{part:.0%} of the computed prompt tokens were held by some replica: {own:.1%} of request "
        f"time to compute them, {part * around:.1%} waiting behind them"
    )
    if causes.by_prefill < 0.10:
        text += f"; little left to gain from caching: prefill causes only {causes.by_prefill:.1%}"
    return share, text


def _speculation(readings: Readings, causes: Causes, table: SpeculationTable | None) -> Found:
    batch = step_batch(readings)
    own = causes.by_decode
    if table is None or batch is None:
        missing = "no table of speculation" if table is None else "the decode batch is unknown"
        return own, f"{missing}; at most all decode time that no prefill stalls ({own:.1%})"
    speedup = speedup_at(table, batch)
    if speedup is None or speedup <= 1.0:
        shown = "unknown" if speedup is None else f"{speedup:.2f}x"
        return (
            0.0,
            f"aggregate speed with drafting at batch {batch:.1f} is {shown}: nothing to gain",
        )
    return own * (1.0 - 1.0 / speedup), (
        f"decode takes {own:.1%} of request time and drafting gives {speedup:.2f}x "
        f"at batch {batch:.1f} on {table.content}"
    )


def _quantization(readings: Readings, causes: Causes, cost: CostModel | None) -> Found:
    batch = step_batch(readings)
    if cost is None or batch is None:
        return causes.by_decode, (
            f"how a step grows with the batch is unknown; at most all of decode ({causes.by_decode:.1%})"
        )
    read = cost.bandwidth_share_of_step(batch)
    return causes.by_decode * read, (
        f"{read:.0%} of a step at batch {batch:.1f} is reading weights; "
        f"decode takes {causes.by_decode:.1%} of request time"
    )


def _chunking(causes: Causes) -> Found:
    return causes.stalled_decode, (
        f"prefills stall running streams for {causes.stalled_decode:.1%} of request time; "
        "smaller chunks spread the stall, they remove none of the work"
    )


def _disaggregation(readings: Readings, causes: Causes) -> Found:
    """Return the stall of prompts that could travel: by the share of uncached tokens that are theirs."""
    long = readings.value(Name.LONG_UNCACHED_SHARE)
    share = causes.stalled_decode
    text = (
        f"prefill and decode on different replicas would end the {share:.1%} of request time "
        "that prefills stall decode, before any cost of transfer"
    )
    if long is None:
        return (
            share,
            f"{text}; how many of them are long enough to be computed elsewhere is unknown",
        )
    return share * long, (
        f"{text}, as far as prompts are long enough to be computed elsewhere: {long:.0%} of uncached tokens are of such"
    )


def _layout(causes: Causes, fleet: FleetFacts) -> Found:
    busy = causes.prefill + causes.by_decode
    share = busy * (1.0 - 1.0 / fleet.replicas)
    return share, (
        f"one model spread over the hardware of {fleet.replicas} replicas could at best divide "
        f"prefill and decode ({busy:.1%}) by {fleet.replicas}, before any communication"
    )


def _replicas(causes: Causes) -> Found:
    return causes.queue, f"requests queue for {causes.queue:.1%} of their time"
