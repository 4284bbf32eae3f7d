"""What binds each phase, decided one phase at a time from measured readings."""

from trimtab.core.cost import CostModel
from trimtab.core.evidence import Evidence, Readings, Unknown
from trimtab.core.findings import PhaseFinding
from trimtab.core.types import Phase, Resource
from trimtab.diagnosis.causes import Causes, step_batch
from trimtab.diagnosis.names import Name

KV_FULL_SHARE = 0.90
"""From this used share on KV capacity binds."""

KV_TIGHT_SHARE = 0.80
"""From this used share on KV capacity binds if requests are being preempted."""

DELIVERED_LOW_SHARE = 0.50
"""Below this part of the promised tokens delivered, what was held has been evicted."""

PROMISED_MIN_SHARE = 0.10
"""Evictions are judged only if at least this part of the prompt tokens was promised."""

BEHIND_PREFILL_MIN_SHARE = 0.50
"""From this part of the queued time behind a prefill on, the queue is the prefill's symptom."""

BANDWIDTH_MIN_SHARE = 0.50
"""From this part of a step that does not grow with the batch on, decode is bound by memory bandwidth."""

SET_UP_BINDS_PART = 0.50
"""From this part of a hand-over on, what does not grow with the bytes binds it."""


def kv_binds(readings: Readings) -> str | None:
    """Say why KV capacity binds; None if it does not, or nobody can tell."""
    used = readings.value(Name.KV_RUNNING_SHARE_P95)
    preemptions = readings.value(Name.PREEMPTIONS_PER_S)
    if used is not None and used > KV_FULL_SHARE:
        return f"{used:.0%} of the KV cache is in use by running requests"
    if used is not None and used > KV_TIGHT_SHARE and preemptions:
        return (
            f"{used:.0%} of the KV cache is in use and {preemptions:.2f} requests/s are preempted"
        )
    return None


def evictions_bind(readings: Readings) -> str | None:
    """Say why evicted prefixes bind prefill: far fewer tokens delivered than promised; None if not."""
    delivered = readings.value(Name.DELIVERED_OVER_PREDICTED)
    promised, prompt = readings.value(Name.PREDICTED_TOKENS), readings.value(Name.PROMPT_TOKENS)
    if delivered is None or promised is None or not prompt:
        return None
    if promised / prompt < PROMISED_MIN_SHARE or delivered >= DELIVERED_LOW_SHARE:
        return None
    return (
        f"only {delivered:.0%} of the tokens that replicas had held were delivered: "
        "the rest was evicted in between"
    )


def bind_phases(
    readings: Readings, causes: Causes | None, cost: CostModel | None
) -> tuple[PhaseFinding, ...]:
    """Return queue, prefill, transfer and decode with what binds each."""
    return (
        _queue(readings, causes),
        _prefill(readings, causes, cost),
        _transfer(readings, causes),
        _decode(readings, causes, cost),
    )


def _finding(
    readings: Readings,
    phase: Phase,
    share: float | None,
    mean: Name,
    resource: Resource | None,
    because: str,
    used: float | None = None,
) -> PhaseFinding:
    requests = readings.value(Name.REQUESTS)
    return PhaseFinding(
        phase=phase,
        resource=resource,
        share=share,
        mean_ms=readings.value(mean),
        used_share=used,
        samples=0 if requests is None else int(requests),
        because=because,
    )


def _queue(readings: Readings, causes: Causes | None) -> PhaseFinding:
    resource, because = _queue_resource(readings, causes)
    return _finding(
        readings,
        Phase.QUEUE,
        None if causes is None else causes.queue,
        Name.QUEUE_MS_MEAN,
        resource,
        because,
        readings.value(Name.SLOTS_BUSY_SHARE),
    )


def _queue_resource(readings: Readings, causes: Causes | None) -> tuple[Resource | None, str]:
    if causes is None:
        return None, "time by phase is unknown"
    if causes.queue < 0.01:
        return None, f"requests hardly queue ({causes.queue:.1%} of their time)"
    kv = kv_binds(readings)
    if kv is not None:
        return Resource.MEMORY_CAPACITY, kv
    behind = readings.value(Name.QUEUE_BEHIND_PREFILL_SHARE)
    full = readings.value(Name.QUEUE_SLOTS_FULL_SHARE)
    if behind is not None and behind >= BEHIND_PREFILL_MIN_SHARE:
        return Resource.ADMISSION, (
            f"{behind:.0%} of the queued time another prefill ran on the same replica: the queue is "
            "the symptom of prefill compute, one prefill is admitted at a time"
        )
    if full is not None and full >= BEHIND_PREFILL_MIN_SHARE:
        return (
            Resource.ADMISSION,
            f"{full:.0%} of the queued time every slot of the replica was taken",
        )
    if behind is None and full is None:
        return None, "requests queue, but what ran meanwhile is unknown"
    queued = f"requests queue for {causes.queue:.1%} of their time, neither behind prefills nor for slots"
    transfer = readings.get(Name.TRANSFER_SHARE)
    if isinstance(transfer, Unknown) and moves(readings):
        return None, f"{queued}; part of it may be transfer: {transfer.reason}"
    return Resource.ADMISSION, f"{queued}: limits or replicas"


def _prefill(readings: Readings, causes: Causes | None, cost: CostModel | None) -> PhaseFinding:
    evicted = evictions_bind(readings)
    if evicted is not None:
        resource, because = Resource.MEMORY_CAPACITY, evicted
    elif cost is not None:
        resource, because = (
            Resource.COMPUTE,
            (
                f"time grows with uncached tokens at {cost.prefill_ms_per_token:.2f} ms per token "
                f"({1000.0 / cost.prefill_ms_per_token:.0f} tokens/s) at any length measured"
                if cost.prefill_ms_per_token > 0
                else "prefill takes no measurable time per token"
            ),
        )
    else:
        resource, because = (
            Resource.COMPUTE,
            (
                "prefill batches all its tokens into one pass over the weights; its cost is not calibrated"
            ),
        )
    return _finding(
        readings,
        Phase.PREFILL,
        None if causes is None else causes.prefill,
        Name.PREFILL_MS_MEAN,
        resource,
        because,
        readings.value(Name.PREFILL_RUNNING_SHARE),
    )


def _transfer(readings: Readings, causes: Causes | None) -> PhaseFinding:
    shared = causes is not None and causes.transfer > 0
    is_told = isinstance(readings.get(Name.TRANSFER_SHARE), Evidence) or not moves(readings)
    resource, because = None, "prefill and decode share a replica: nothing moves"
    if shared or moves(readings):
        resource, because = Resource.COMMUNICATION, _moving(readings)
    return _finding(
        readings,
        Phase.TRANSFER,
        causes.transfer if causes is not None and is_told else None,
        Name.TRANSFER_MS_MEAN,
        resource,
        because,
    )


def moves(readings: Readings) -> bool:
    """Say whether KV was handed over in the window, however long that took."""
    return bool(readings.value(Name.HAND_OVERS))


def _moving(readings: Readings) -> str:
    """Say what a hand-over takes and whether its set-up or its bytes do, as far as anybody told."""
    mean, setup = (
        readings.value(Name.HAND_OVER_MS_MEAN),
        readings.value(Name.HAND_OVER_SETUP_MS_MEAN),
    )
    if mean is None:
        untold = "" if readings.value(Name.TRANSFER_SHARE) else "; how long that takes is unknown"
        return f"KV moves between replicas{untold}"
    words = f"KV moves between replicas, {mean:.1f} ms a hand-over"
    if setup is not None and setup >= SET_UP_BINDS_PART * mean:
        return (
            f"{words}, {setup:.1f} ms of it set-up, which does not grow with the bytes: an engine in the middle of a "
            "step comes to it only after that, or many small pieces are posted"
        )
    size, rate = (
        readings.value(Name.HAND_OVER_BYTES_MEAN),
        readings.value(Name.HAND_OVER_BYTES_PER_S),
    )
    if size is None or rate is None:
        return f"{words}; of how many bytes is unknown"
    return f"{words}: {size / 1e6:.1f} MB at {rate / 1e6:.0f} MB/s, so that the bytes bind and not the set-up"


def _decode(readings: Readings, causes: Causes | None, cost: CostModel | None) -> PhaseFinding:
    batch = step_batch(readings)
    resource: Resource | None = None
    if cost is None:
        because = "how a step grows with the batch was not calibrated"
    elif batch is None:
        because = "the decode batch is unknown"
    else:
        read = cost.bandwidth_share_of_step(batch)
        bandwidth = read > BANDWIDTH_MIN_SHARE
        resource = Resource.MEMORY_BANDWIDTH if bandwidth else Resource.COMPUTE
        because = (
            f"at batch {batch:.1f} {read:.0%} of a step ({cost.whole_step_ms(batch):.1f} ms) does not grow with "
            f"the batch: {'reading weights' if bandwidth else 'work per stream'} dominates"
        )
    return _finding(
        readings,
        Phase.DECODE,
        None if causes is None else causes.decode,
        Name.DECODE_MS_MEAN,
        resource,
        because,
        readings.value(Name.DECODE_RUNNING_SHARE),
    )
