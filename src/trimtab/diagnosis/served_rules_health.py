"""Whether a server does well, what not to do about it, and what would tell what is unknown."""

import math
from collections.abc import Iterator

from trimtab.core.evidence import Evidence, Readings
from trimtab.core.findings import Finding
from trimtab.core.types import Phase, Resource, Technique
from trimtab.diagnosis.binding import KV_FULL_SHARE
from trimtab.diagnosis.served_advice import Activity, Binding, Outcome
from trimtab.diagnosis.served_facts import ServedFacts
from trimtab.diagnosis.served_names import ServedName
from trimtab.diagnosis.served_rules_budgets import work_share
from trimtab.diagnosis.served_rules_ceilings import LITTLE_SHARE
from trimtab.diagnosis.served_rules_costs import Costs
from trimtab.diagnosis.served_rules_phases import (
    QUEUE_MIN_SHARE,
    is_one_server,
    kv_full,
    kv_is_slots,
    kv_used,
    reuse_lost,
)
from trimtab.diagnosis.served_rules_proposals import Weighed
from trimtab.diagnosis.served_rules_time import Times
from trimtab.diagnosis.served_rules_warnings import (
    FAILED_SHARE,
    bounds_of,
    hits_untrusted,
    is_since_start,
)

CEILING_SHARE = 0.85
"""Above this part of a ceiling a phase is not well, even where nothing queues."""

MOMENTS_MIN = 3
"""Scrapes from which on a gauge alone says how calm a server is."""


def outcome_of(healthy: bool | None, binding: Binding | None) -> Outcome:
    """Return what an exit code says; a bottleneck always has a binding.

    Where health is unknown, time that yields nothing (waiting, computing again, moving) is a bottleneck if it
    dominates. Prefill and decode are the work itself: one of them always has the most time, on a calm server too.
    """
    if healthy:
        return Outcome.HEALTHY
    if binding is None:
        return Outcome.CANNOT_TELL
    yields_nothing = (
        binding.phase in (Phase.QUEUE, Phase.TRANSFER)
        or binding.resource is Resource.MEMORY_CAPACITY
    )
    return Outcome.BOTTLENECK if healthy is False or yields_nothing else Outcome.CANNOT_TELL


def health_of(
    readings: Readings,
    facts: ServedFacts,
    times: Times,
    costs: Costs,
    activity: Activity,
    binding: Binding | None,
) -> tuple[bool | None, str]:
    """Say whether all targets are met or, without targets, nothing queues and no ceiling is near; None: cannot tell."""
    if activity is Activity.STALE:
        return None, "the readings are stale"
    failed = readings.value(ServedName.REQUESTS_FAILED_SHARE)
    if failed is not None and failed > FAILED_SHARE:
        return False, f"{failed:.1%} of the requests fail"
    if facts.ttft_ms_target is not None or facts.tpot_ms_target is not None:
        return _targets(readings, facts)
    if activity is Activity.IDLE:
        queued = times.queue is not None and times.queue >= QUEUE_MIN_SHARE
        if queued:
            return (
                None,
                f"idle now, but since start requests queued for {times.queue:.0%} of their time",
            )
        return True, "nothing runs or waits"
    if binding is not None and binding.resource is Resource.MEMORY_CAPACITY:
        # What evicts is full: that is a ceiling reached, however little the other resources do.
        return False, binding.because
    return _ceilings(readings, facts, times, costs)


def _targets(readings: Readings, facts: ServedFacts) -> tuple[bool | None, str]:
    asked = (
        ("TTFT", facts.ttft_ms_target, ServedName.TTFT_MS_P99, ServedName.TTFT_MS_MEAN),
        ("TPOT", facts.tpot_ms_target, ServedName.TPOT_MS_P99, ServedName.TPOT_MS_MEAN),
    )
    found = [
        _met(word, target, readings, tail, mean)
        for word, target, tail, mean in asked
        if target is not None
    ]
    front, target = readings.value(ServedName.FRONT_TTFT_MS_MEAN), facts.ttft_ms_target
    if target is not None and front is not None and front > target:
        found.append((False, f"mean TTFT {front:,.1f} ms at the front end"))
    text = "; ".join(text for _, text in found)
    if any(met is False for met, _ in found):
        return False, text
    return (None if any(met is None for met, _ in found) else True), text


def _met(
    word: str, target: float, readings: Readings, tail: str, mean: str
) -> tuple[bool | None, str]:
    """Judge the p99; a target inside its bucket cannot be judged, and a mean alone only where it misses the target."""
    bounds = bounds_of(readings, tail)
    if bounds is None:
        value = readings.value(mean)
        if value is None:
            return None, f"{word} is unknown"
        text = f"mean {word} {value:,.1f} ms against {target:,.1f} ms (p99 is unknown)"
        return (None if value <= target else False), text
    low, high = bounds
    between = f"between {_ms(low)} and {_ms(high)} ms"
    told = f"> {low:,.0f} ms" if math.isinf(high) else between
    text = f"{word} p99 {told}, target {_ms(target)} ms"
    if high <= target:
        return True, text
    return (False, text) if low >= target else (None, f"{text}: the histogram cannot tell")


def _ms(value: float) -> str:
    # Four digits of a large number would be told as a power of ten.
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"


def _ceilings(
    readings: Readings, facts: ServedFacts, times: Times, costs: Costs
) -> tuple[bool | None, str]:
    kv = kv_full(readings)
    if kv is not None:
        return False, kv
    if times.queue is not None and times.queue >= QUEUE_MIN_SHARE:
        return False, f"requests queue for {times.queue:.0%} of their time"
    used, work = kv_used(readings), work_share(costs)
    needs_kv = used is None and not kv_is_slots(facts)
    if work is not None and work > CEILING_SHARE:
        return False, f"the work observed takes {work:.0%} of what {costs.source} allows"
    in_flight = in_flight_of(readings) if work is None else None
    calm = in_flight is not None and in_flight <= CEILING_SHARE
    missing = [
        text
        for text, value in (
            ("waiting requests or queue time", times.queue),
            ("KV usage", None if needs_kv else 1.0),
            (costs.missing or "token rates of a window", in_flight if calm else work),
        )
        if value is None
    ]
    if missing:
        return None, f"without targets it takes {'; '.join(missing)}"
    kv_text = "" if used is None else f"{used:.0%} of the KV cache and "
    if work is None:
        return True, (
            f"nothing queues, and {kv_text}at most {in_flight:.0%} of any ceiling is in use: for the rest of the "
            "time no request is there"
        )
    return True, f"nothing queues, {kv_text}{work:.0%} of the other ceilings is in use"


def in_flight_of(readings: Readings) -> float | None:
    """Return the mean requests in flight over a window: the larger of gauges and, by Little's law, of times.

    No resource of any rank can be used for a larger part of the time than requests are there, whatever its ceiling.
    None where neither is told of a window.
    """
    running, waiting = (
        readings.get(ServedName.RUNNING_MEAN),
        readings.value(ServedName.WAITING_MEAN),
    )
    whole, rate = (
        readings.get(ServedName.E2E_MS_MEAN),
        readings.value(ServedName.REQUESTS_FINISHED_PER_S),
    )
    seen = running.value + (waiting or 0.0) if isinstance(running, Evidence) else 0.0
    if isinstance(whole, Evidence) and rate is not None and not is_since_start(whole):
        return max(seen, whole.value / 1000.0 * rate)
    enough = isinstance(running, Evidence) and (running.samples or 0) >= MOMENTS_MIN
    return seen if enough else None


def not_to_do(at: Weighed) -> tuple[Finding, ...]:
    """Return what the readings speak against, although it is often done."""
    return tuple(_against(at))


def _against(at: Weighed) -> Iterator[Finding]:
    readings, binding = at.readings, at.binding
    untrusted = hits_untrusted(readings, at.facts)
    hit_ids = readings.ids(ServedName.PREFIX_HIT_SHARE)
    if untrusted is not None:
        yield Finding(text=f"do not build on the hit share: {untrusted}", evidence=hit_ids)
    caching = at.ceilings[Technique.PREFIX_CACHING].gain_share
    if caching is not None and caching < LITTLE_SHARE:
        why = at.ceilings[Technique.PREFIX_CACHING].because
        yield Finding(
            text=f"do not tune prefix caching, at most {caching:.1%}: {why}", evidence=hit_ids
        )
    used = kv_used(readings)
    if used is not None and used < KV_FULL_SHARE / 2.0:
        names = (ServedName.KV_USED_SHARE_MAX, ServedName.KV_USED_SHARE_MEAN)
        text = (
            f"do not buy memory or quantize KV for capacity: {used:.0%} of the KV cache is in use"
        )
        yield Finding(text=text, evidence=readings.ids(*names))
    if binding is None:
        return
    if binding.phase is Phase.QUEUE:
        text = "do not turn speculation on: requests wait, and verifying drafts takes compute from them"
        yield Finding(text=text, evidence=readings.ids(ServedName.WAITING_MEAN))
    if binding.phase is not Phase.QUEUE and (at.times.queue or 0.0) < QUEUE_MIN_SHARE:
        yield Finding(
            text=f"do not add replicas for latency: requests hardly queue, {binding.phase.value} takes the time",
            evidence=readings.ids(ServedName.QUEUE_SHARE, ServedName.WAITING_MEAN),
        )
    if binding.resource is Resource.COMPUTE:
        text = "do not quantize weights alone to four bits: compute binds, and unpacking them adds to it"
        yield Finding(text=text)
    if binding.phase is Phase.QUEUE and binding.resource is Resource.ADMISSION:
        text = (
            "do not change kernels, precision or layout first: requests wait before any of it runs"
        )
        yield Finding(text=text)


_TOLD_BY: tuple[tuple[str, str], ...] = (
    (ServedName.WAITING_MEAN, "the engine's gauge of waiting requests"),
    (ServedName.RUNNING_MEAN, "the engine's gauge of running requests"),
    (ServedName.KV_USED_SHARE_MAX, "the engine's gauge of KV usage"),
    (ServedName.OUTPUT_TOKENS_PER_S, "a second scrape (--window)"),
    (ServedName.GPU_MEMORY_USED_SHARE, "a DCGM exporter for device memory"),
)


def would_tell(
    readings: Readings, facts: ServedFacts, times: Times, costs: Costs
) -> tuple[str, ...]:
    """Return the flags, scrapes and metrics that would tell what is unknown, most useful first, each once."""
    found: list[str] = []
    if costs.missing:
        found.append(costs.missing)
    if times.queue is None or times.prefill is None or times.decode is None:
        found.append("the engine's histograms of queue, prefill and decode time")
    apart = not is_one_server(readings)
    if apart and facts.cache.sessions_stay is None and reuse_lost(readings, facts) is not None:
        found.append("whether sessions stay on their server, as cache.sessions_stay in --facts")
    found += [text for name, text in _TOLD_BY if readings.value(name) is None]
    if facts.ttft_ms_target is None and facts.tpot_ms_target is None:
        found.append("--ttft-ms and --tpot-ms say what is good enough")
    return tuple(dict.fromkeys(found))
