"""Reads what servers and devices say while a layout is measured: transfer counters, how busy devices are, their power.

A server's own page is read before and after a run; pages of device exporters every second of it. A page that is not
there, or says nothing of it, is no reading and stops nothing.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from statistics import mean
from typing import Final

import aiohttp

from trimtab.core.ports import EngineFormatError
from trimtab.core.served import Counter, Distribution, Gauge, RankSample
from trimtab.engines.served import read_samples
from trimtab.planning.rank_signs import Ranks, Transfers

PAGE_S_MAX: Final = 5.0
EVERY_S: Final = 1.0


class Readings:
    """What was read around one run; whole once the run is over."""

    def __init__(self) -> None:
        self.transfers: Transfers | None = None
        self.ranks: Ranks | None = None


@asynccontextmanager
async def readings(url: str, devices: str = "") -> AsyncIterator[Readings]:
    """Read around what is done inside. `devices`: the page of an exporter of the devices, empty: none."""
    found = Readings()
    timeout = aiohttp.ClientTimeout(total=PAGE_S_MAX)
    async with aiohttp.ClientSession(timeout=timeout) as session:
        before = await _ranks(session, f"{url}/metrics")
        async with _watched(session, devices) as seen:
            yield found
        after = await _ranks(session, f"{url}/metrics")
    found.transfers = _grown(before, after)
    found.ranks = _ranks_of(seen, devices)


@asynccontextmanager
async def _watched(
    session: aiohttp.ClientSession, page: str
) -> AsyncIterator[list[Sequence[RankSample]]]:
    """Read a page again and again while something is done inside; none for no page."""
    seen: list[Sequence[RankSample]] = []
    if not page:
        yield seen
        return
    watch = asyncio.ensure_future(_watch(session, page, seen))
    try:
        yield seen
    finally:
        watch.cancel()
        with suppress(asyncio.CancelledError):
            await watch


async def _watch(
    session: aiohttp.ClientSession, page: str, seen: list[Sequence[RankSample]]
) -> None:
    while True:
        found = await _ranks(session, page)
        if found:
            seen.append(found)
        await asyncio.sleep(EVERY_S)


async def _ranks(session: aiohttp.ClientSession, page: str) -> Sequence[RankSample]:
    """Return what a page says of each rank; nothing where it cannot be read."""
    try:
        async with session.get(page) as response:
            body = await response.read()
            if response.status != 200:
                return ()
        samples = read_samples(body, source=page, at_s=0.0)
    except (aiohttp.ClientError, TimeoutError, EngineFormatError):
        return ()
    return [rank for sample in samples for rank in sample.ranks]


def _grown(before: Sequence[RankSample], after: Sequence[RankSample]) -> Transfers | None:
    first, last = _transfers(before), _transfers(after)
    if last is None:
        return None
    first = first or (0.0, 0.0, 0.0)
    count, seconds, moved = (new - old for old, new in zip(first, last, strict=True))
    return Transfers(count=count, seconds=seconds, bytes=moved) if count > 0.0 else None


def _transfers(ranks: Sequence[RankSample]) -> tuple[float, float, float] | None:
    """Return (count, seconds, bytes) of all ranks that count transfers."""
    times = [
        rank.distributions[Distribution.TRANSFER_TIME]
        for rank in ranks
        if Distribution.TRANSFER_TIME in rank.distributions
    ]
    if not times:
        return None
    moved = sum(rank.counters.get(Counter.TRANSFER_BYTES, 0.0) for rank in ranks)
    return sum(each.total for each in times), sum(each.sum or 0.0 for each in times), moved


def _ranks_of(seen: Sequence[Sequence[RankSample]], source: str) -> Ranks | None:
    """Return the mean of each device's gauges over the pages that were read."""
    if not seen:
        return None
    found = {
        gauge: _each_mean(seen, gauge)
        for gauge in (Gauge.GPU_BUSY_SHARE, Gauge.GPU_POWER_W, Gauge.GPU_POWER_LIMIT_W)
    }
    if not any(found.values()):
        return None
    return Ranks(
        source=source,
        busy_shares=found[Gauge.GPU_BUSY_SHARE],
        power_w=found[Gauge.GPU_POWER_W],
        power_limit_w=found[Gauge.GPU_POWER_LIMIT_W],
    )


def _each_mean(seen: Sequence[Sequence[RankSample]], gauge: Gauge) -> tuple[float, ...]:
    by_rank: dict[str, list[float]] = {}
    for page in seen:
        for rank in page:
            if gauge in rank.gauges:
                by_rank.setdefault(rank.rank, []).append(rank.gauges[gauge])
    return tuple(mean(values) for _, values in sorted(by_rank.items()))
