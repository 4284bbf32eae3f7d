"""Probes on scripted servers: what is slow, broken or gone is unknown, and never zero."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
from aiohttp import web

from trimtab.core.evidence import Evidence, Unknown
from trimtab.engines.llamacpp import METRIC_NAMES
from trimtab.runtime.probes import Probes, Target

METRICS = "llamacpp:requests_processing 3\n"
SLOTS = '[{"id":0,"n_ctx":100,"is_processing":true,"n_prompt_tokens":25}]'
Handler = Callable[[web.Request], Awaitable[web.Response]]


class Clock:
    """Stands still until moved."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def wall_s(self) -> float:
        return 1_000_000.0 + self.now_s

    def mono_s(self) -> float:
        return self.now_s


class Processes:
    """One process whose CPU time is set by the test."""

    def __init__(self) -> None:
        self.cpu: float | None = 1.0

    def pid(self, replica: str) -> int | None:
        return 7

    def memory_bytes(self, replica: str) -> int | None:
        return 1000

    def cpu_s(self, replica: str) -> float | None:
        return self.cpu


async def good(request: web.Request) -> web.Response:
    return web.Response(text=METRICS if request.path == "/metrics" else SLOTS)


async def broken(request: web.Request) -> web.Response:
    return web.Response(text="<html>" if request.path == "/metrics" else "{}")


async def failing(request: web.Request) -> web.Response:
    return web.Response(status=500)


async def slow(request: web.Request) -> web.Response:
    await asyncio.sleep(30)
    return web.Response()


@asynccontextmanager
async def serve(handler: Handler) -> AsyncIterator[Target]:
    """A server that answers everything with one handler."""
    server = web.Application()
    server.router.add_get("/{page}", handler)
    runner = web.AppRunner(server, shutdown_timeout=0.1, handler_cancellation=True)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    yield Target(url=f"http://127.0.0.1:{runner.addresses[0][1]}", threads=2)
    await runner.cleanup()


def value(probes: Probes, name: str) -> float | None:
    return probes.readings("r0").value(name)


def probes_of(targets: dict[str, Target], **more: float) -> tuple[Probes, Clock, Processes]:
    clock, processes = Clock(), Processes()
    return Probes(lambda: targets, processes, clock, every_s=1.0, **more), clock, processes


async def test_good_replica_is_read() -> None:
    """Metrics, slots and the process give readings under trimtab's names."""
    async with serve(good) as target:
        probes, _, _ = probes_of({"r0": target})
        await probes.read_once()
    assert value(probes, "requests_processing") == 3.0
    assert value(probes, "kv_used_share") == 0.25
    assert value(probes, "memory_resident_bytes") == 1000.0
    assert isinstance(probes.readings("r0").get("drafts_total"), Unknown)


async def test_cpu_share_is_of_the_threads_over_the_time_between_reads() -> None:
    """Three CPU seconds in two seconds on two threads are 0.75; the first read cannot tell."""
    async with serve(good) as target:
        probes, clock, processes = probes_of({"r0": target})
        await probes.read_once()
        first = value(probes, "cpu_busy_share")
        clock.now_s, processes.cpu = clock.now_s + 2.0, 4.0
        await probes.read_once()
    assert (first, value(probes, "cpu_busy_share")) == (None, 0.75)


@pytest.mark.parametrize(
    ("handler", "reason"),
    [
        (broken, "not a page"),
        (failing, "status 500"),
        (slow, "no answer in time"),
    ],
)
async def test_failed_probe_is_unknown_with_its_reason(handler: Handler, reason: str) -> None:
    """Every name is there, none has a value, and the process is read all the same."""
    async with serve(handler) as target:
        probes, _, _ = probes_of({"r0": target}, timeout_s=0.2)
        await probes.read_once()
    readings = probes.readings("r0")
    found = [readings.get(name) for name in METRIC_NAMES]
    assert {type(reading) for reading in found} == {Unknown}
    assert all(reason in reading.reason for reading in found if isinstance(reading, Unknown))
    assert isinstance(readings.get("kv_used_share"), Unknown)
    assert isinstance(readings.get("memory_resident_bytes"), Evidence)


async def test_unreachable_replica_is_unknown() -> None:
    """Nobody listens: that is no idle engine."""
    probes, _, _ = probes_of({"r0": Target(url="http://127.0.0.1:1", threads=1)})
    await probes.read_once()
    assert isinstance(probes.readings("r0").get("requests_processing"), Unknown)


async def test_old_readings_are_stale_and_not_idle() -> None:
    """Three periods without a new read make every reading unknown, with its age."""
    async with serve(good) as target:
        probes, clock, _ = probes_of({"r0": target})
        await probes.read_once()
    clock.now_s += 2.9
    assert value(probes, "requests_processing") == 3.0
    clock.now_s += 0.2
    stale = probes.readings("r0").get("requests_processing")
    assert stale == Unknown("requests_processing", "stale: last read 3.1 s ago")


async def test_slow_replica_does_not_hold_up_the_others() -> None:
    """One hangs, the other is read again and again, and the hanging one is asked once at a time."""
    asked = 0

    async def hanging(request: web.Request) -> web.Response:
        nonlocal asked
        asked += 1
        return await slow(request)

    async with serve(good) as fast, serve(hanging) as hung:
        clock, processes = Clock(), Processes()
        targets = {"r0": fast, "r1": hung}
        probes = Probes(lambda: targets, processes, clock, every_s=0.02)
        running = asyncio.create_task(probes.run())
        await asyncio.sleep(0.3)
        first = probes.latest("r0")
        clock.now_s += 1.0
        await asyncio.sleep(0.2)
        second = probes.latest("r0")
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    assert first is not None
    assert second is not None
    assert (second.at_mono_s - first.at_mono_s, asked) == (1.0, 1)
    assert probes.latest("r1") is None


async def test_replica_that_left_is_forgotten() -> None:
    """A removed replica's last numbers do not linger."""
    async with serve(good) as target:
        targets = {"r0": target}
        probes, _, _ = probes_of(targets)
        await probes.read_once()
        targets.clear()
        await probes.read_once()
    assert probes.latest("r0") is None
    assert probes.readings("r0").value("requests_processing") is None
