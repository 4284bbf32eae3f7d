"""What binds each phase of a server of others, from readings that anybody's metrics give.

Laws: the queue is bound by KV memory where the cache is full, or nearly full while requests are preempted; else by
admission, but only if KV is known not to be full (nor nearly full with preemptions untold) or every slot is known to
be taken. Prefill computes its tokens in one pass over the weights, so compute binds it, unless what it computes had
been held and was evicted or preempted. Decode is bound by whichever side of the roofline its step lies on. Transfer
is communication, and its own rules say which part of it.
"""

from trimtab.core.evidence import Evidence, Readings
from trimtab.core.findings import PhaseFinding
from trimtab.core.served import EngineKind
from trimtab.core.types import Phase, Resource
from trimtab.diagnosis.binding import BANDWIDTH_MIN_SHARE, KV_FULL_SHARE, KV_TIGHT_SHARE
from trimtab.diagnosis.roofline import CEILING_BROKEN_SHARE, CEILING_NEAR_SHARE
from trimtab.diagnosis.served_facts import ServedFacts
from trimtab.diagnosis.served_names import ServedName
from trimtab.diagnosis.served_rules_costs import Costs, tokens_per_step_of
from trimtab.diagnosis.served_rules_time import Times, decode_ms_of, prefill_ms_of, waiting_part

QUEUE_MIN_SHARE = 0.05
"""Below this part of request time (or of requests in flight) nothing is called queued."""

SLOTS_FULL_SHARE = 0.95
"""From this part of the slots running on, slots are taken."""

SLOTS_WRONG_SHARE = 1.1
"""Where more requests run than this part of the slots, the slots were told wrong."""

REUSE_LOST_PART = 0.5
"""Below this part of the reuse that the prompts allow, what was held is lost."""

REUSE_MIN_SHARE = 0.2
"""Lost reuse is judged only where the prompts allow at least this much."""

_PREEMPTS_UNTOLD = (
    "whether requests are preempted now is unknown: their counter over a window would tell"
)


def kv_full(readings: Readings) -> str | None:
    """Say why KV capacity binds; None if it does not, or nobody can tell."""
    used = readings.value(ServedName.KV_USED_SHARE_MAX)
    if used is None:
        used = readings.value(ServedName.KV_USED_SHARE_MEAN)
    if used is None:
        return None
    if used > KV_TIGHT_SHARE and preempts_now(readings):
        return f"{used:.0%} of the KV cache is in use and requests are preempted"
    if used > KV_FULL_SHARE and is_queued(readings):
        return f"{used:.0%} of the KV cache is in use and requests wait"
    return None


def preempts(readings: Readings) -> bool:
    """Say whether requests were preempted in the window."""
    return any(
        (readings.value(name) or 0.0) > 0
        for name in (ServedName.PREEMPTIONS_PER_S, ServedName.PREEMPTIONS)
    )


def preempts_now(readings: Readings) -> bool | None:
    """Say whether requests are being preempted; None if nobody tells, or if some were at some time since the start."""
    told = [
        reading
        for name in (ServedName.PREEMPTIONS_PER_S, ServedName.PREEMPTIONS)
        if isinstance(reading := readings.get(name), Evidence)
    ]
    if not told:
        return None
    if not any(reading.value > 0 for reading in told):
        return False
    return None if all("since start" in reading.note for reading in told) else True


def is_queued(readings: Readings) -> bool:
    """Say whether a part of the requests worth naming waits."""
    part, share = waiting_part(readings), readings.value(ServedName.QUEUE_SHARE)
    told = [value for value in (part, share) if value is not None]
    return any(value >= QUEUE_MIN_SHARE for value in told)


def kv_used(readings: Readings) -> float | None:
    """Return the largest known share of the KV cache in use, None if nobody tells."""
    told = [
        readings.value(name)
        for name in (ServedName.KV_USED_SHARE_MAX, ServedName.KV_USED_SHARE_MEAN)
    ]
    return max((value for value in told if value is not None), default=None)


def kv_is_slots(facts: ServedFacts) -> bool:
    """Say whether the engine gives each slot its KV at the start, so that a request waits for a slot and not for KV."""
    return facts.effective.get("engine") == EngineKind.LLAMACPP


def slots_of(facts: ServedFacts) -> float | None:
    """Return how many requests a rank may run at once, as told or as the effective configuration says."""
    if facts.slots is not None:
        return float(facts.slots)
    for key in ("max_num_seqs", "max_running_requests", "n_parallel", "requests_max"):
        text = facts.effective.get(key, "")
        if text.isdigit() and int(text) > 0:
            return float(text)
    return None


def slots_full(readings: Readings, facts: ServedFacts) -> float | None:
    """Return running requests over slots (0 to 1); None if either is unknown, or if more run than there are."""
    told = slots_running(readings, facts)
    return None if told is None or told > SLOTS_WRONG_SHARE else min(1.0, told)


def slots_running(readings: Readings, facts: ServedFacts) -> float | None:
    """Return running requests over slots as told, above 1 where the slots told cannot be right; None if unknown."""
    slots, running = slots_of(facts), readings.value(ServedName.RUNNING_MEAN)
    ranks = max(1.0, readings.value(ServedName.RANKS) or 1.0)
    return None if not slots or running is None else running / ranks / slots


def reuse_lost(readings: Readings, facts: ServedFacts) -> str | None:
    """Say that prompts allow far more reuse than happens; None if not, where caching is off, or if nobody can tell.

    Engines keep whole blocks, so a prompt's last one is not expected to be reused where its size is told.
    """
    ceiling, hits = (
        facts.cache.reuse_ceiling_share,
        readings.value(ServedName.PREFIX_HIT_SHARE),
    )
    if ceiling is None or hits is None or facts.cache.enabled is False:
        return None
    block, length = facts.block_tokens, readings.value(ServedName.PROMPT_LENGTH_MEAN)
    reachable = ceiling - block / length if block and length else ceiling
    if reachable < REUSE_MIN_SHARE or hits >= REUSE_LOST_PART * reachable:
        return None
    return f"the prompts allow {ceiling:.0%} of their tokens to be reused and {hits:.0%} are"


def is_one_server(readings: Readings) -> bool:
    """Say whether a single rank serves everything, so that no other can hold a prefix."""
    return (readings.value(ServedName.RANKS) or 1.0) <= 1.0


def bind_served(
    readings: Readings, facts: ServedFacts, times: Times, costs: Costs
) -> tuple[PhaseFinding, ...]:
    """Return queue, prefill, transfer and decode with what binds each."""
    samples = samples_of(readings)
    queue, queue_because = _queue(readings, facts, times)
    prefill, prefill_because = _prefill(readings, facts, costs)
    decode, decode_because = _decode(readings, costs)
    moves = times.transfer > 0 or bool(readings.value(ServedName.TRANSFER_MS_MEAN))
    return (
        PhaseFinding(
            phase=Phase.QUEUE,
            resource=queue,
            share=times.queue,
            mean_ms=readings.value(ServedName.QUEUE_MS_MEAN),
            used_share=slots_full(readings, facts),
            samples=samples,
            because=queue_because,
        ),
        PhaseFinding(
            phase=Phase.PREFILL,
            resource=prefill,
            share=times.prefill,
            mean_ms=prefill_ms_of(readings),
            used_share=costs.prefill_busy_share,
            samples=samples,
            because=prefill_because,
        ),
        PhaseFinding(
            phase=Phase.TRANSFER,
            resource=Resource.COMMUNICATION if moves else None,
            share=times.transfer if moves else None,
            mean_ms=readings.value(ServedName.TRANSFER_MS_MEAN),
            samples=samples,
            because="KV moves between servers" if moves else "no transfer of KV is reported",
        ),
        PhaseFinding(
            phase=Phase.DECODE,
            resource=decode,
            share=times.decode,
            mean_ms=decode_ms_of(readings),
            used_share=costs.decode_busy_share,
            samples=samples,
            because=decode_because,
        ),
    )


_COUNTED = (
    ServedName.TTFT_MS_MEAN,
    ServedName.E2E_MS_MEAN,
    ServedName.QUEUE_MS_MEAN,
)


def requests_counted(readings: Readings) -> int | None:
    """Return the requests that the server's histograms or counters counted, None if it counts none."""
    told = [reading for name in _COUNTED if isinstance(reading := readings.get(name), Evidence)]
    counted = [reading.samples for reading in told if reading.samples is not None]
    rate = readings.get(ServedName.REQUESTS_FINISHED_PER_S)
    if isinstance(rate, Evidence):
        counted.append(round(rate.value * rate.window.length_s))
    return max(counted, default=None)


def samples_of(readings: Readings) -> int:
    """Return the requests that a diagnosis rests on: those counted, else those in flight at all scrapes."""
    counted = requests_counted(readings)
    return requests_seen(readings) if counted is None else counted


def requests_seen(readings: Readings) -> int:
    """Return the requests in flight at all scrapes together, on which a claim from gauges rests."""
    running = readings.get(ServedName.RUNNING_MEAN)
    scrapes = running.samples or 1 if isinstance(running, Evidence) else 1
    names = (ServedName.RUNNING_MEAN, ServedName.WAITING_MEAN)
    return int(scrapes * sum(readings.value(name) or 0.0 for name in names))


def _queue(readings: Readings, facts: ServedFacts, times: Times) -> tuple[Resource | None, str]:
    if times.queue is None:
        return None, "neither queue time nor waiting requests are told"
    kv = kv_full(readings)
    if kv is not None:
        return Resource.MEMORY_CAPACITY, kv
    if times.queue < QUEUE_MIN_SHARE:
        return None, f"requests hardly queue ({times.queue:.1%} of their time)"
    used, full = kv_used(readings), slots_full(readings, facts)
    limited = readings.value(ServedName.RANKS_SATURATED)
    queued = f"requests queue for {times.queue:.0%} of their time"
    if full is not None and full >= SLOTS_FULL_SHARE:
        return Resource.ADMISSION, f"{queued} and {full:.0%} of the slots run"
    if used is None and kv_is_slots(facts):
        return Resource.ADMISSION, f"{queued}, and this engine makes a request wait for a slot only"
    if used is None and limited:
        return Resource.ADMISSION, f"{queued} and {limited:.0f} ranks run as many as they may"
    if used is not None and used > KV_TIGHT_SHARE and preempts_now(readings) is None:
        return None, f"{queued} with {used:.0%} of the KV cache in use; {_PREEMPTS_UNTOLD}"
    if used is not None and used <= KV_FULL_SHARE:
        return Resource.ADMISSION, (
            f"{queued} while only {used:.0%} of the KV cache is in use: slots, limits or replicas"
        )
    return None, (
        f"{queued}, but whether for KV memory or for slots is unknown: neither KV usage nor slots are told"
        if used is None
        else f"{queued} with {used:.0%} of the KV cache in use, and nobody tells the slots"
    )


def _prefill(readings: Readings, facts: ServedFacts, costs: Costs) -> tuple[Resource | None, str]:
    lost = reuse_lost(readings, facts)
    if lost is not None and (kv_full(readings) or (kv_used(readings) or 0.0) > KV_TIGHT_SHARE):
        return Resource.MEMORY_CAPACITY, f"{lost}: the rest was evicted in between"
    if lost is not None:
        # A low gauge rules nothing out: it counts what runs, and what no request holds is evicted first.
        return _lost_untold(lost, readings, facts)
    if costs.prefill_ms_per_token:
        return Resource.COMPUTE, (
            f"a computed prompt token costs {costs.prefill_ms_per_token:.3g} ms by {costs.source}"
        )
    return Resource.COMPUTE, "prefill computes all its tokens in one pass over the weights"


def _lost_untold(lost: str, readings: Readings, facts: ServedFacts) -> tuple[Resource | None, str]:
    """Say what lost reuse comes from where no gauge says that the KV caches are full."""
    if is_one_server(readings):
        return Resource.MEMORY_CAPACITY, f"{lost}: on a single server the rest was evicted"
    match facts.cache.sessions_stay:
        case True:
            return Resource.MEMORY_CAPACITY, f"{lost}: each session's own server evicted the rest"
        case False:
            return Resource.COMPUTE, f"{lost}: the rest was evicted or lies on another server"
        case None:
            return (
                None,
                f"{lost}: whether the rest was evicted or lies on another server is unknown",
            )


def _decode(readings: Readings, costs: Costs) -> tuple[Resource | None, str]:
    if costs.missing:
        return None, f"how a step grows with the batch is unknown: {costs.missing}"
    if costs.bandwidth_part is None and costs.memory_ms is not None:
        return _by_memory_alone(readings, costs, costs.memory_ms)
    if costs.bandwidth_part is None or costs.step_ms is None or costs.batch is None:
        return None, "the decode batch is unknown: the gauge of running requests would tell"
    if costs.communication_ms is not None and costs.communication_ms >= costs.step_ms:
        return Resource.COMMUNICATION, (
            f"the collectives of a step take at least {costs.communication_ms:.3g} ms by {costs.source}, "
            "longer than its memory and compute"
        )
    bandwidth = costs.bandwidth_part > BANDWIDTH_MIN_SHARE
    side = "reading memory" if bandwidth else "computing"
    return (
        Resource.MEMORY_BANDWIDTH if bandwidth else Resource.COMPUTE,
        f"at batch {costs.batch:.1f} {costs.bandwidth_part:.0%} of a step of {costs.step_ms:.3g} ms "
        f"is reading memory by {costs.source}: {side} dominates",
    )


def _by_memory_alone(
    readings: Readings, costs: Costs, memory_ms: float
) -> tuple[Resource | None, str]:
    """Judge a step whose compute ceiling is unknown: near the memory's floor memory binds; else nobody can tell."""
    observed = readings.value(ServedName.TPOT_MS_MEAN)
    if not observed:
        return (
            None,
            f"the time per token is unknown, and so is what computes at most by {costs.source}",
        )
    share = memory_ms / (observed * tokens_per_step_of(readings))
    text = f"reading memory takes {share:.0%} of a step at least by {costs.source}"
    if CEILING_NEAR_SHARE <= share <= CEILING_BROKEN_SHARE:
        return Resource.MEMORY_BANDWIDTH, text
    if share > CEILING_BROKEN_SHARE:
        return None, f"{text}, which cannot be: --model, --hardware or the batch is wrong"
    return (
        None,
        f"{text}; whether the rest computes is unknown: the ceiling of compute is not known",
    )
