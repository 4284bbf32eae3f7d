"""Readings of what is in flight: requests running and waiting, KV, ranks, devices.

Law: requests are summed over ranks; KV is a mean and a maximum, for one full rank stops its own requests however
empty the others are. A rank is saturated if it cannot take another request: its KV is full, or it makes requests wait
at a high KV share or at its limit of requests.
"""

import math
from collections.abc import Iterator, Sequence

from trimtab.core.evidence import Evidence, Reading, Unknown
from trimtab.core.served import Counter, Gauge, RankSample, ServerWindow
from trimtab.diagnosis.served_names import ServedName, of_rank
from trimtab.diagnosis.served_readings_pool import FRONT_ENDS, Origin, Pool, serving_ranks

KV_FULL_SHARE = 0.95
"""A rank's KV counts as full from this used share on."""

KV_HIGH_SHARE = 0.90
"""A rank that makes requests wait is held by its KV from this used share on."""

_IN_FLIGHT = (
    (Gauge.RUNNING, ServedName.RUNNING_MEAN, ServedName.RUNNING_MAX),
    (Gauge.WAITING, ServedName.WAITING_MEAN, ServedName.WAITING_MAX),
)
_SUMMED = (
    (Gauge.SWAPPED, ServedName.SWAPPED_MEAN, "requests"),
    (Gauge.REQUESTS_MAX, ServedName.REQUESTS_MAX, "requests"),
    (Gauge.OUTPUT_TOKENS_PER_S, ServedName.OUTPUT_GAUGE_TOKENS_PER_S, "tokens/s"),
)
_OF_ONE_RANK = (
    (Gauge.CONTEXT_TOKENS_MAX, ServedName.CONTEXT_TOKENS_MAX, "tokens"),
    (Gauge.BATCH_TOKENS_MAX, ServedName.BATCH_TOKENS_MAX, "tokens"),
    (Gauge.SLOTS_BUSY_PER_STEP, ServedName.SLOTS_BUSY_PER_STEP, "requests"),
)
_BY_RANK = (
    (Gauge.RUNNING, ServedName.RUNNING_MEAN, "requests"),
    (Gauge.WAITING, ServedName.WAITING_MEAN, "requests"),
    (Gauge.KV_USED_SHARE, ServedName.KV_USED_SHARE_MEAN, "share"),
)


def load_readings(pool: Pool) -> Iterator[Reading]:
    """Give the readings of gauges and ranks."""
    for gauge, mean, peak in _IN_FLIGHT:
        yield _summed(pool, gauge, mean, "requests")
        yield _summed(pool, gauge, peak, "requests", peak=True)
    yield _least_waiting(pool)
    yield from _kv(pool)
    yield from _ranks(pool)
    yield from _by_rank(pool)
    yield from _devices(pool)
    for gauge, name, unit in _SUMMED:
        yield _summed(pool, gauge, name, unit)
    for gauge, name, unit in _OF_ONE_RANK:
        yield _of_one_rank(pool, gauge, name, unit)


def _summed(pool: Pool, gauge: Gauge, name: str, unit: str, *, peak: bool = False) -> Reading:
    told = pool.gauges(gauge, peak=peak)
    if told is None:
        return Unknown(name, pool.absent(gauge))
    values, origin = told
    if origin.lost:
        text = f"rank {', '.join(origin.lost)} vanished; the ranks that remain say {_sum(values)}"
        return Unknown(name, text)
    if untold := pool.untold(gauge):
        return Unknown(name, f"{untold}; they say {_sum(values)}")
    note = f"sum over {len(values)} ranks" if len(values) > 1 else ""
    if peak and len(values) > 1:
        note = f"{note}, whose peaks need not fall together"
    moment = f"peak of {origin.scrapes} scrapes" if peak and origin.scrapes > 1 else origin.moment
    note = "; ".join(part for part in (moment, note) if part)
    return pool.evidence(
        name, math.fsum(values), unit, origin, samples=origin.scrapes, note=note, of_gauge=True
    )


def _least_waiting(pool: Pool) -> Reading:
    """Return the fewest requests that waited at any scrape: above zero, there was a queue all the time."""
    name, origin = ServedName.WAITING_MIN, pool.origin(Gauge.WAITING)
    if origin is None:
        return Unknown(name, pool.absent(Gauge.WAITING))
    if untold := pool.untold(Gauge.WAITING):
        return Unknown(name, untold)
    seen = [
        [each[Gauge.WAITING] for each in window.moments if Gauge.WAITING in each]
        for window in origin.windows
    ]
    if origin.lost or not all(seen):
        return Unknown(name, "a rank is absent from every scrape but the last: no sum over all")
    # Servers are scraped at moments of their own: the sum of their minima is a lower bound.
    note = f"least of {min(len(told) for told in seen)} scrapes"
    least = math.fsum(min(told) for told in seen)
    samples = min(len(told) for told in seen)
    return pool.evidence(name, least, "requests", origin, samples=samples, note=note, of_gauge=True)


def _of_one_rank(pool: Pool, gauge: Gauge, name: str, unit: str) -> Reading:
    """Return what each rank has for itself, as the mean of the ranks."""
    told = pool.gauges(gauge)
    if told is None:
        return Unknown(name, pool.absent(gauge))
    values, origin = told
    spread = "" if min(values) == max(values) else f", {min(values):g} to {max(values):g}"
    note = f"{origin.moment}; of one rank{spread}"
    mean = math.fsum(values) / len(values)
    return pool.evidence(name, mean, unit, origin, samples=origin.scrapes, note=note, of_gauge=True)


def _sum(values: tuple[float, ...]) -> str:
    return f"{math.fsum(values):g}"


def _kv(pool: Pool) -> Iterator[Reading]:
    used, peaks = pool.gauges(Gauge.KV_USED_SHARE), pool.gauges(Gauge.KV_USED_SHARE, peak=True)
    if used is None or peaks is None:
        for name in (ServedName.KV_USED_SHARE_MEAN, ServedName.KV_USED_SHARE_MAX):
            yield Unknown(name, pool.absent(Gauge.KV_USED_SHARE))
    else:
        yield _kv_mean(pool, *used)
        yield _kv_max(pool, *peaks)
    yield _summed(pool, Gauge.KV_CAPACITY_TOKENS, ServedName.KV_CAPACITY_TOKENS, "tokens")


def _kv_mean(pool: Pool, values: tuple[float, ...], origin: Origin) -> Reading:
    name, mean = ServedName.KV_USED_SHARE_MEAN, math.fsum(values) / len(values)
    if origin.lost:
        text = f"rank {', '.join(origin.lost)} vanished; the ranks that remain say {mean:.3g}"
        return Unknown(name, text)
    if untold := pool.untold(Gauge.KV_USED_SHARE):
        return Unknown(name, f"{untold}; they say {mean:.3g}")
    note = f"{origin.moment}; mean over {len(values)} ranks" if len(values) > 1 else origin.moment
    return pool.evidence(
        name, mean, "share", origin, samples=origin.scrapes, note=note, of_gauge=True
    )


def _kv_max(pool: Pool, values: tuple[float, ...], origin: Origin) -> Reading:
    """Return the fullest rank's KV; a full one is full whatever ranks that tell nothing have."""
    name, most = ServedName.KV_USED_SHARE_MAX, max(values)
    untold = pool.untold(Gauge.KV_USED_SHARE)
    if untold and most < KV_HIGH_SHARE:
        return Unknown(name, f"{untold}; the fullest of them says {most:.3g}")
    note = f"highest of {len(values)} ranks and {origin.scrapes} scrapes"
    note = "; ".join(part for part in (note, untold) if part)
    return pool.evidence(
        name, most, "share", origin, samples=origin.scrapes, note=note, of_gauge=True
    )


def _engines(pool: Pool) -> tuple[ServerWindow, ...]:
    """Return the windows that have ranks which serve requests."""
    return tuple(
        window
        for window in pool.windows
        if window.engine not in FRONT_ENDS and (window.lost_ranks or serving_ranks(window))
    )


def _ranks(pool: Pool) -> Iterator[Reading]:
    windows = _engines(pool)
    if not windows:
        for name in (
            ServedName.RANKS,
            ServedName.RANKS_SATURATED,
            ServedName.RANKS_LOST,
            ServedName.RESTARTS,
            ServedName.COUNTERS_GROWN,
        ):
            yield Unknown(name, "no source is an engine's own page")
        return
    origin = Origin(windows, ())
    here = [rank for window in windows for rank in serving_ranks(window)]
    yield pool.evidence(
        ServedName.RANKS, len(here), "ranks", origin, note="in the last scrape", of_gauge=True
    )
    yield _saturated(pool, origin, here)
    if origin.scrapes == len(windows):
        reason = "one scrape cannot tell: a second scrape shows what vanished or restarted"
        for name in (ServedName.RANKS_LOST, ServedName.RESTARTS, ServedName.COUNTERS_GROWN):
            yield Unknown(name, reason)
        return
    lost, restarts = (
        sum(len(one.lost_ranks) for one in windows),
        sum(one.restarts for one in windows),
    )
    note = f"not in the last scrape: {', '.join(origin.lost)}" if lost else ""
    yield pool.evidence(
        ServedName.RANKS_LOST, lost, "ranks", origin, samples=origin.scrapes, note=note
    )
    yield pool.evidence(
        ServedName.RESTARTS,
        restarts,
        "restarts",
        origin,
        samples=origin.scrapes,
        note="counters that went back between scrapes",
    )
    yield _counters_grown(pool, windows)


def _saturated(pool: Pool, origin: Origin, here: Sequence[RankSample]) -> Reading:
    """Count the ranks that can take no more; that none is may only be said where each can be judged."""
    name = ServedName.RANKS_SATURATED
    judged = [(rank, held) for rank in here if (held := saturated_by(rank)) is not None]
    if not judged:
        reason = f"{pool.absent(Gauge.KV_USED_SHARE)}; nor is a limit of requests known"
        return Unknown(name, reason)
    full = [f"rank {rank.rank}: {held}" if rank.rank else held for rank, held in judged if held]
    told = f"{len(judged)} of {len(here)} ranks can be judged"
    if not full and len(judged) < len(here):
        return Unknown(name, f"{told}: KV usage of the others is not told, nor a limit of requests")
    note = "; ".join([told, *full])
    return pool.evidence(
        name, len(full), "ranks", origin, samples=len(judged), note=note, of_gauge=True
    )


def _counters_grown(pool: Pool, windows: tuple[ServerWindow, ...]) -> Reading:
    """Tell idle or stuck from stale: what runs and counts nothing is not read anew, or does not move."""
    told = [window for window in windows if not window.lifetime]
    if not told:
        return Unknown(
            ServedName.COUNTERS_GROWN, "no stretch without a restart: a further scrape tells"
        )
    grown = {
        key.value
        for window in told
        for rank in window.ranks
        for key, value in (
            *rank.counters.items(),
            *((key, one.total) for key, one in rank.distributions.items()),
        )
        if value > 0
    }
    return pool.evidence(
        ServedName.COUNTERS_GROWN,
        len(grown),
        "counters",
        Origin(tuple(told), ()),
        note="counters and histograms that moved in the window",
    )


def saturated_by(rank: RankSample) -> str | None:
    """Return what keeps a rank from taking another request, "" if nothing does, None if it cannot be told."""
    kv, waiting = rank.gauges.get(Gauge.KV_USED_SHARE), rank.gauges.get(Gauge.WAITING)
    running, limit = rank.gauges.get(Gauge.RUNNING), rank.gauges.get(Gauge.REQUESTS_MAX)
    waits = waiting is not None and waiting >= 1.0
    if kv is not None and kv >= (KV_HIGH_SHARE if waits else KV_FULL_SHARE):
        return f"KV {kv:.0%} used" + (f", {waiting:g} waiting" if waits else "")
    if waits and limit and running is not None and running >= limit:
        return f"{running:g} of {limit:g} requests run, {waiting:g} waiting"
    return None if kv is None and not limit else ""


def _by_rank(pool: Pool) -> Iterator[Reading]:
    """Give each rank's own load, where there are several or one vanished; a rank that vanished is unknown."""
    windows = _engines(pool)
    if sum(len(serving_ranks(window)) + len(window.lost_ranks) for window in windows) < 2:
        return
    for window in windows:
        for rank in serving_ranks(window):
            yield from _one_rank(pool, window, rank, _label(windows, window, rank.rank))
        for lost in window.lost_ranks:
            label = _label(windows, window, lost)
            for _, name, _ in _BY_RANK:
                yield Unknown(
                    of_rank(name, label),
                    "the rank is not in the last scrape: it may be idle or dead",
                )


def _label(windows: tuple[ServerWindow, ...], window: ServerWindow, rank: str) -> str:
    return f"{window.source}/{rank}" if len(windows) > 1 else rank


def _one_rank(pool: Pool, window: ServerWindow, rank: RankSample, label: str) -> Iterator[Evidence]:
    for gauge, name, unit in _BY_RANK:
        if gauge in rank.gauges:
            origin = Origin((window,), (window.names.get(gauge.value, gauge.value),))
            value = rank.gauges[gauge]
            yield pool.evidence(
                of_rank(name, label),
                value,
                unit,
                origin,
                samples=window.scrapes,
                note=origin.moment,
                of_gauge=True,
            )
    if Counter.PREEMPTIONS in rank.counters:
        origin = Origin((window,), (window.names.get(Counter.PREEMPTIONS.value, "preemptions"),))
        yield pool.evidence(
            of_rank(ServedName.PREEMPTIONS, label),
            rank.counters[Counter.PREEMPTIONS],
            "preemptions",
            origin,
            note=origin.growth,
        )


_MEMORIES = (
    (
        ServedName.GPU_MEMORY_USED_SHARE,
        Gauge.GPU_MEMORY_USED_BYTES,
        Gauge.GPU_MEMORY_TOTAL_BYTES,
        "devices",
    ),
    (
        ServedName.HOST_MEMORY_USED_SHARE,
        Gauge.HOST_MEMORY_USED_BYTES,
        Gauge.HOST_MEMORY_TOTAL_BYTES,
        "hosts",
    ),
)


def _devices(pool: Pool) -> Iterator[Reading]:
    for name, used, total, places in _MEMORIES:
        yield _memory(pool, name, used, total, places)
    busy = pool.gauges(Gauge.GPU_BUSY_SHARE)
    if busy is None:
        yield Unknown(ServedName.GPU_BUSY_SHARE, pool.absent(Gauge.GPU_BUSY_SHARE))
        return
    values, origin = busy
    note = (
        f"{origin.moment}; {len(values)} devices, {min(values):.0%} to {max(values):.0%}; "
        "time with any work on the device, however little"
    )
    mean = math.fsum(values) / len(values)
    yield pool.evidence(
        ServedName.GPU_BUSY_SHARE,
        mean,
        "share",
        origin,
        samples=origin.scrapes,
        note=note,
        of_gauge=True,
    )


def _memory(pool: Pool, name: str, used: Gauge, total: Gauge, places: str) -> Reading:
    both = pool.origin(used, total)
    shares = [
        rank.gauges[used] / rank.gauges[total]
        for window in (both.windows if both else ())
        for rank in window.ranks
        if used in rank.gauges and rank.gauges.get(total, 0.0) > 0
    ]
    if both is None or not shares:
        return Unknown(name, pool.absent(used, total))
    if max(shares) > 1.0 or min(shares) < 0.0:
        return Unknown(name, f"{max(shares):.3g} of the memory there is: units differ")
    note = f"{both.moment}; mean over {len(shares)} {places}, highest {max(shares):.0%}"
    mean = math.fsum(shares) / len(shares)
    return pool.evidence(name, mean, "share", both, samples=both.scrapes, note=note, of_gauge=True)
