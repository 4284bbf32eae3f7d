"""Readings of where the time of requests goes, as the server counted it; nothing is inferred here.

Law: share of a phase = its mean time over the mean end-to-end time. Requests that wait, prefill and end within one
window are not the same requests; where their phases add up to more than the end-to-end time, the sum of the phases
is the whole, so that shares stay shares, and the note says so. A server that counts seconds of prefill and decode only
gives both as shares of the time in slots; its queue is not in it.
"""

import math
from collections.abc import Iterator

from trimtab.core.evidence import Reading, Unknown
from trimtab.core.served import Counter, Distribution
from trimtab.diagnosis.served_names import ServedName
from trimtab.diagnosis.served_readings_pool import Origin, Pool
from trimtab.diagnosis.served_readings_times import leaves_out_waiting, mean_s, population_text

_PHASES = (
    (ServedName.QUEUE_SHARE, Distribution.QUEUE_TIME),
    (ServedName.PREFILL_SHARE, Distribution.PREFILL_TIME),
    (ServedName.DECODE_SHARE, Distribution.DECODE_TIME),
    (ServedName.TRANSFER_SHARE, Distribution.TRANSFER_TIME),
)


def share_readings(pool: Pool) -> Iterator[Reading]:
    """Give the shares of request time by phase."""
    times = {name: _per_request_s(pool, key) for name, key in _PHASES}
    if times[ServedName.PREFILL_SHARE] is None and leaves_out_waiting(pool):
        times[ServedName.PREFILL_SHARE] = mean_s(pool, Distribution.TTFT)
    told = {name: value for name, value in times.items() if value is not None}
    whole = mean_s(pool, Distribution.E2E)
    counted = math.fsum(told.values())
    if whole is None and _is_complete(told):
        whole, note = counted, "no end-to-end time is told: the phases are the whole"
    elif whole is not None and counted > whole:
        note = "the phases add up to more than the end-to-end time: they are of different requests"
        whole = counted
    else:
        note = population_text(pool)
    if not whole:
        yield from _of_slots(pool)
        return
    for name, key in _PHASES:
        if name in told:
            yield _share(pool, name, told[name] / whole, key, note)
        else:
            yield Unknown(name, pool.absent(key))
    yield _unaccounted(pool, told, whole, note)
    yield _first_token(pool)


def _is_complete(told: dict[ServedName, float]) -> bool:
    return {ServedName.QUEUE_SHARE, ServedName.PREFILL_SHARE, ServedName.DECODE_SHARE} <= set(told)


def _per_request_s(pool: Pool, key: Distribution) -> float | None:
    """Return mean seconds a request spends in a phase; transfers are spread over all requests."""
    if key is not Distribution.TRANSFER_TIME:
        return mean_s(pool, key)
    moved, ended = pool.buckets(key), pool.buckets(Distribution.E2E)
    if moved is None or ended is None or ended[0].total <= 0 or moved[0].sum is None:
        return None
    return moved[0].sum / ended[0].total


def _share(pool: Pool, name: str, share: float, key: Distribution, note: str) -> Reading:
    found = pool.buckets(key) or pool.buckets(Distribution.TTFT)
    assert found is not None, name
    buckets, origin, _ = found
    text = "; ".join(part for part in (note, origin.growth) if part)
    value = min(1.0, share)
    return pool.evidence(name, value, "share", origin, samples=buckets.total, note=text)


def _unaccounted(pool: Pool, told: dict[ServedName, float], whole: float, note: str) -> Reading:
    name = ServedName.UNACCOUNTED_SHARE
    ended = pool.buckets(Distribution.E2E)
    if ended is None or not _is_complete(told):
        return Unknown(name, "not all of queue, prefill, decode and end-to-end time are told")
    origin = ended[1]
    left = max(0.0, 1.0 - math.fsum(told.values()) / whole)
    text = "; ".join(
        part for part in ("end-to-end time that no phase tells", note, origin.growth) if part
    )
    return pool.evidence(name, left, "share", origin, samples=ended[0].total, note=text)


def _first_token(pool: Pool) -> Reading:
    """Return the part of request time before the first token: what queue, prefill and transfer share at most."""
    name = ServedName.FIRST_TOKEN_SHARE
    found, ended = pool.buckets(Distribution.TTFT), pool.buckets(Distribution.E2E)
    first, whole = mean_s(pool, Distribution.TTFT), mean_s(pool, Distribution.E2E)
    if found is None or ended is None or first is None or not whole:
        return Unknown(name, pool.absent(Distribution.TTFT, Distribution.E2E))
    if leaves_out_waiting(pool):
        first += mean_s(pool, Distribution.QUEUE_TIME) or 0.0
    if first > whole:
        text = (
            "first tokens came later than the requests that ended took: they are of other requests"
        )
        return Unknown(name, text)
    note = "; ".join(part for part in (population_text(pool), ended[1].growth) if part)
    return pool.evidence(name, first / whole, "share", ended[1], samples=ended[0].total, note=note)


def _of_slots(pool: Pool) -> Iterator[Reading]:
    """Give shares of the time in slots from counters of seconds, where there are no histograms."""
    keys = (Counter.PROMPT_SECONDS, Counter.DECODE_SECONDS)
    prompt, decode = (pool.grown(key, *keys) for key in keys)
    for name, key in _PHASES:
        part = {ServedName.PREFILL_SHARE: prompt, ServedName.DECODE_SHARE: decode}.get(name)
        if part is None or prompt is None or decode is None:
            yield Unknown(name, pool.absent(key, Distribution.E2E))
        elif prompt.value + decode.value <= 0:
            yield Unknown(name, f"nothing was served ({part.origin.growth})")
        else:
            yield _slot_share(pool, name, part.value / (prompt.value + decode.value), part.origin)
    yield Unknown(ServedName.UNACCOUNTED_SHARE, pool.absent(Distribution.E2E))
    yield _first_token(pool)


def _slot_share(pool: Pool, name: str, share: float, origin: Origin) -> Reading:
    note = f"of the time in slots; the queue is not in it; {origin.growth}"
    return pool.evidence(name, share, "share", origin, note=note)
