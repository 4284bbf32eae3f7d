"""The most each technique could gain on a server of others: the part of request time that would vanish at best.

A hit share is not a gain: what caching can still save is at most what prefill still takes.
"""

from trimtab.core.evidence import Readings
from trimtab.core.findings import Ceiling
from trimtab.core.types import Technique
from trimtab.diagnosis.served_facts import ServedFacts
from trimtab.diagnosis.served_names import ServedName
from trimtab.diagnosis.served_rules_costs import Costs
from trimtab.diagnosis.served_rules_time import Times

LITTLE_SHARE = 0.10
"""Below this ceiling there is little left to gain."""

Found = tuple[float | None, str]


def ceilings_served(
    readings: Readings, facts: ServedFacts, times: Times, costs: Costs
) -> tuple[Ceiling, ...]:
    """Return one ceiling per technique in the order of `Technique`; None where its phase's time is unknown."""
    found: dict[Technique, Found] = {
        Technique.PREFIX_CACHING: _prefix_caching(readings, facts, times),
        Technique.SPECULATION: _speculation(times, costs),
        Technique.QUANTIZATION: _quantization(times, costs),
        Technique.PREFILL_CHUNKING: _stalled(times, "smaller chunks spread the stall"),
        Technique.DISAGGREGATION: _stalled(times, "separate servers would end it, before transfer"),
        Technique.PARALLEL_LAYOUT: _layout(times),
        Technique.REPLICAS: _replicas(times),
    }
    return tuple(
        Ceiling(technique=technique, gain_share=found[technique][0], because=found[technique][1])
        for technique in Technique
    )


def _prefix_caching(readings: Readings, facts: ServedFacts, times: Times) -> Found:
    if facts.shares_no_prefix:
        return 0.0, "the prompts share no prefix: there is nothing to reuse"
    if times.by_prefill is None:
        return None, "prefill's part of request time is unknown"
    share, text = times.by_prefill, f"prefill causes {times.by_prefill:.1%} of request time"
    hits, allowed = readings.value(ServedName.PREFIX_HIT_SHARE), facts.cache.reuse_ceiling_share
    if hits is not None and allowed is not None and hits < 1.0:
        part = min(1.0, max(0.0, (allowed - hits) / (1.0 - hits)))
        share *= part
        text += f", and {part:.0%} of the tokens computed could be reused"
    if share < LITTLE_SHARE:
        text += "; little left to gain from caching"
    return share, text


def _speculation(times: Times, costs: Costs) -> Found:
    own = times.by_decode
    if own is None:
        return None, "decode's part of request time is unknown"
    if costs.bandwidth_part is None:
        return (
            own,
            f"at most all of decode ({own:.1%}); whether a step has compute to spare is unknown",
        )
    share = own * costs.bandwidth_part
    return share, (
        f"decode takes {own:.1%} of request time and {costs.bandwidth_part:.0%} of a step is reading memory, "
        "which drafts could share"
    )


def _quantization(times: Times, costs: Costs) -> Found:
    own = times.by_decode
    if own is None:
        return None, "decode's part of request time is unknown"
    if costs.weights_part is None:
        return (
            own,
            f"at most all of decode ({own:.1%}); what of a step is reading weights is unknown",
        )
    return own * costs.weights_part, (
        f"{costs.weights_part:.0%} of a step is reading weights; decode takes {own:.1%} of request time"
    )


def _stalled(times: Times, how: str) -> Found:
    share = times.stalled_decode
    if share is None:
        return None, "how long prefills stall decodes is unknown"
    return share, f"prefills stall decodes for {share:.1%} of request time; {how}"


def _layout(times: Times) -> Found:
    if times.prefill is None or times.by_decode is None:
        return None, "the time of prefill and decode is unknown"
    busy = times.prefill + times.by_decode
    return busy / 2.0, (
        f"twice the accelerators could at best halve prefill and decode ({busy:.1%}), before communication"
    )


def _replicas(times: Times) -> Found:
    if times.queue is None:
        return None, "the queue's part of request time is unknown"
    return times.queue, f"requests queue for {times.queue:.1%} of their time"
