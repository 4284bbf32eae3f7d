"""What speaks for and against a claimed bottleneck of a server of others; each check stands on readings of its own.

A check whose readings are unknown says nothing. The odds are those of the diagnosis of our own records.
"""

from trimtab.core.evidence import Evidence, Readings
from trimtab.core.findings import Finding
from trimtab.core.types import Phase, Resource
from trimtab.diagnosis.binding import KV_FULL_SHARE, KV_TIGHT_SHARE
from trimtab.diagnosis.corroboration import Checked, weighed
from trimtab.diagnosis.served_facts import ServedFacts
from trimtab.diagnosis.served_names import ServedName
from trimtab.diagnosis.served_rules_cache import DIFFERS_SHARE as HITS_DIFFER_SHARE
from trimtab.diagnosis.served_rules_costs import Costs
from trimtab.diagnosis.served_rules_phases import (
    kv_used,
    preempts,
    preempts_now,
    reuse_lost,
    slots_full,
)
from trimtab.diagnosis.served_rules_time import Times, waiting_part

AGREES_WITHIN = 0.25
"""Two ways to tell a share agree if they differ by no more than this."""

PREDICTION_AGREES_WITHIN = 3.0
"""A roofline is a lower bound: an observed time up to this many times the predicted one agrees with it."""


def corroborate_served(
    phase: Phase,
    resource: Resource,
    readings: Readings,
    facts: ServedFacts,
    times: Times,
    costs: Costs,
) -> tuple[tuple[Finding, ...], tuple[Finding, ...]]:
    """Return (supports, contradicts) of one claimed bottleneck."""
    checks: list[Checked] = [_share(phase, readings, times), _broken(readings)]
    checks.append(_accounted(readings))
    match phase:
        case Phase.QUEUE if resource is Resource.MEMORY_CAPACITY:
            checks += [_kv(readings), _preempted(readings), _gauges(readings, times)]
        case Phase.QUEUE:
            checks += [_gauges(readings, times), _slots(readings, facts), _kv_free(readings)]
            checks += [_first_token(readings), _idle_device(readings)]
        case Phase.PREFILL:
            checks += [_prefill_work(readings, costs), _prefill_speed(readings, costs)]
            checks += [_lengths(readings), _reuse(resource, readings, facts)]
            checks.append(_proxy(readings, facts))
        case Phase.DECODE:
            checks += [_decode_work(readings, costs), _decode_speed(readings, costs)]
            checks += [_not_queued(readings)]
        case Phase.TRANSFER:
            checks += [_failures(readings)]
    return weighed(checks, readings)


def _found(speaks_for: bool, text: str, readings: Readings, *names: str) -> Checked:
    return speaks_for, Finding(text=text, evidence=readings.ids(*names))


def _share(phase: Phase, readings: Readings, times: Times) -> Checked:
    share = {
        Phase.QUEUE: times.queue,
        Phase.PREFILL: times.by_prefill,
        Phase.TRANSFER: times.transfer,
        Phase.DECODE: times.by_decode,
    }[phase]
    if share is None:
        return None
    own = f"{phase.value}_share"
    return _found(
        True,
        f"{phase.value} takes {share:.0%} of request time by {times.basis}",
        readings,
        own,
        *times.names,
    )


def _broken(readings: Readings) -> Checked:
    lost, restarts = (
        readings.value(ServedName.RANKS_LOST) or 0.0,
        readings.value(ServedName.RESTARTS) or 0.0,
    )
    if lost + restarts <= 0:
        return None
    text = f"{lost:.0f} ranks vanished and {restarts:.0f} restarts fell into the window: it is not of one kind"
    return _found(False, text, readings, ServedName.RANKS_LOST, ServedName.RESTARTS)


def _accounted(readings: Readings) -> Checked:
    missing = readings.value(ServedName.UNACCOUNTED_SHARE)
    if missing is None or missing < 0.1:
        return None
    text = f"{missing:.0%} of end-to-end time is in no phase: the shares may blame the wrong one"
    return _found(False, text, readings, ServedName.UNACCOUNTED_SHARE)


def _gauges(readings: Readings, times: Times) -> Checked:
    """Compare the queue by gauges with that by times; where gauges alone tell it they corroborate nothing."""
    part = waiting_part(readings)
    names = (ServedName.WAITING_MEAN, ServedName.RUNNING_MEAN, ServedName.QUEUE_SHARE)
    if part is None or times.queue is None or times.by_gauges:
        return None
    waiting, running = (
        readings.value(ServedName.WAITING_MEAN),
        readings.value(ServedName.RUNNING_MEAN),
    )
    text = f"{waiting:.0f} requests wait and {running:.0f} run, {part:.0%}, against {times.queue:.0%} by times"
    return _found(abs(part - times.queue) <= AGREES_WITHIN, text, readings, *names)


def _slots(readings: Readings, facts: ServedFacts) -> Checked:
    full = slots_full(readings, facts)
    if full is None or 0.7 <= full < 0.95:
        return None
    return _found(full >= 0.95, f"{full:.0%} of the slots run", readings, ServedName.RUNNING_MEAN)


def _kv_free(readings: Readings) -> Checked:
    used = kv_used(readings)
    if used is None or used > KV_FULL_SHARE / 2.0:
        return None
    text = f"only {used:.0%} of the KV cache is in use: requests do not wait for memory"
    return _found(True, text, readings, ServedName.KV_USED_SHARE_MAX, ServedName.KV_USED_SHARE_MEAN)


def _kv(readings: Readings) -> Checked:
    used = kv_used(readings)
    if used is None:
        return None
    text = f"up to {used:.0%} of the KV cache is in use"
    names = (ServedName.KV_USED_SHARE_MAX, ServedName.KV_USED_SHARE_MEAN)
    return _found(used > KV_FULL_SHARE / 2.0, text, readings, *names)


def _preempted(readings: Readings) -> Checked:
    if not preempts(readings):
        return None
    names = (ServedName.PREEMPTIONS_PER_S, ServedName.PREEMPTIONS)
    return _found(True, "running requests are preempted for memory", readings, *names)


def _first_token(readings: Readings) -> Checked:
    first, queue = (
        readings.value(ServedName.TTFT_MS_MEAN),
        readings.value(ServedName.TPOT_MS_MEAN),
    )
    if first is None or not queue or first < 100.0 * queue:
        return None
    text = (
        f"a first token takes {first / 1000.0:.1f} s where the next ones take {queue:.0f} ms each"
    )
    return _found(True, text, readings, ServedName.TTFT_MS_MEAN, ServedName.TPOT_MS_MEAN)


def _idle_device(readings: Readings) -> Checked:
    busy = readings.value(ServedName.GPU_BUSY_SHARE)
    if busy is None or busy >= 0.3:
        return None
    text = f"the accelerators are busy only {busy:.0%} of the time: more of them would not shorten the queue"
    return _found(False, text, readings, ServedName.GPU_BUSY_SHARE)


def _prefill_work(readings: Readings, costs: Costs) -> Checked:
    busy = costs.prefill_busy_share
    if busy is None or 0.15 <= busy < 0.4:
        return None
    text = f"the prompt tokens computed would keep a rank busy {busy:.0%} of the time by {costs.source}"
    return _found(busy >= 0.4, text, readings, ServedName.COMPUTED_PROMPT_TOKENS_PER_S)


def _prefill_speed(readings: Readings, costs: Costs) -> Checked:
    observed, length = (
        readings.value(ServedName.PREFILL_MS_MEAN),
        readings.value(ServedName.PROMPT_LENGTH_MEAN),
    )
    hits = readings.value(ServedName.PREFIX_HIT_SHARE) or 0.0
    if not costs.prefill_ms_per_token or observed is None or not length or hits >= 1.0:
        return None
    ratio = observed / (costs.prefill_ms_per_token * length * (1.0 - hits))
    text = (
        f"a prefill takes {ratio:.1f} times what its computed tokens should cost by {costs.source}"
    )
    names = (ServedName.PREFILL_MS_MEAN, ServedName.PROMPT_LENGTH_MEAN, ServedName.PREFIX_HIT_SHARE)
    if PREDICTION_AGREES_WITHIN <= ratio < 10.0:
        return None
    return _found(ratio < PREDICTION_AGREES_WITHIN, text, readings, *names)


def _lengths(readings: Readings) -> Checked:
    prompt, output = (
        readings.value(ServedName.PROMPT_LENGTH_MEAN),
        readings.value(ServedName.OUTPUT_LENGTH_MEAN),
    )
    if prompt is None or not output or prompt < 10.0 * output:
        return None
    text = f"{prompt:.0f} tokens go in for {output:.0f} that come out"
    names = (ServedName.PROMPT_LENGTH_MEAN, ServedName.OUTPUT_LENGTH_MEAN)
    return _found(True, text, readings, *names)


def _reuse(resource: Resource, readings: Readings, facts: ServedFacts) -> Checked:
    hits = readings.value(ServedName.PREFIX_HIT_SHARE)
    if hits is None:
        return None
    lost = reuse_lost(readings, facts)
    if resource is Resource.MEMORY_CAPACITY:
        return None if lost is None else _found(True, lost, readings, ServedName.PREFIX_HIT_SHARE)
    if 0.3 <= hits < 0.9:
        return None
    text = f"{hits:.0%} of the prompt tokens come from the cache"
    return _found(hits < 0.3, text, readings, ServedName.PREFIX_HIT_SHARE)


def _proxy(readings: Readings, facts: ServedFacts) -> Checked:
    """Hold the hits that a proxy counts against the engine's, on which the prefill's work rests."""
    hits, proxy = readings.value(ServedName.PREFIX_HIT_SHARE), facts.cache.proxy_hit_share
    if hits is None or proxy is None or abs(proxy - hits) <= HITS_DIFFER_SHARE:
        return None
    text = f"two sources of the hits disagree: {hits:.0%} by the engine, {proxy:.0%} by a proxy"
    return _found(False, text, readings, ServedName.PREFIX_HIT_SHARE)


def _decode_work(readings: Readings, costs: Costs) -> Checked:
    busy = costs.decode_busy_share
    if busy is None or 0.05 <= busy < 0.4:
        return None
    text = f"the steps observed would keep a rank busy {busy:.0%} of the time by {costs.source}"
    return _found(busy >= 0.4, text, readings, ServedName.OUTPUT_TOKENS_PER_S)


def _decode_speed(readings: Readings, costs: Costs) -> Checked:
    observed = readings.value(ServedName.TPOT_MS_MEAN)
    if costs.token_ms is None or observed is None or costs.token_ms <= 0:
        return None
    ratio = observed / costs.token_ms
    if PREDICTION_AGREES_WITHIN <= ratio < 6.0:
        return None
    text = f"a token takes {observed:.3g} ms against {costs.token_ms:.3g} ms by {costs.source}"
    agrees = 0.7 < ratio < PREDICTION_AGREES_WITHIN
    return _found(agrees, text, readings, ServedName.TPOT_MS_MEAN, ServedName.RUNNING_MEAN)


def _not_queued(readings: Readings) -> Checked:
    part = waiting_part(readings)
    if part is None or part >= 0.05:
        return None
    names = (ServedName.WAITING_MEAN, ServedName.RUNNING_MEAN)
    return _found(True, "hardly a request waits while others decode", readings, *names)


def _failures(readings: Readings) -> Checked:
    failed = readings.value(ServedName.TRANSFER_FAILURES)
    if not failed:
        return None
    return _found(True, f"{failed:.0f} transfers failed", readings, ServedName.TRANSFER_FAILURES)


def ruled_out_served(readings: Readings, times: Times) -> tuple[Finding, ...]:
    """Return what the readings exclude as a bottleneck."""
    found: list[Finding] = []
    used = kv_used(readings)
    clear = KV_TIGHT_SHARE if preempts_now(readings) is None else KV_FULL_SHARE
    if used is not None and used <= clear and not preempts(readings):
        names = (ServedName.KV_USED_SHARE_MAX, ServedName.KV_USED_SHARE_MEAN)
        found.append(
            Finding(text=f"KV capacity: {used:.0%} is in use", evidence=readings.ids(*names))
        )
    if times.queue is not None and times.queue < 0.05:
        found.append(
            Finding(
                text=f"queueing: {times.queue:.1%} of request time",
                evidence=readings.ids(ServedName.QUEUE_SHARE, *times.names),
            )
        )
    if times.prefill is not None and times.prefill < 0.05:
        found.append(
            Finding(
                text=f"prefill: {times.prefill:.1%} of request time",
                evidence=readings.ids(ServedName.PREFILL_SHARE, *times.names),
            )
        )
    transfer = readings.get(ServedName.TRANSFER_SHARE)
    if isinstance(transfer, Evidence) and transfer.value < 0.01:
        text = f"communication: {transfer.value:.1%} of request time is transfer"
        found.append(Finding(text=text, evidence=(transfer.id,)))
    return tuple(found)
