"""Reads each replica's own numbers again and again, and keeps the latest with its age: stale is not idle.

An engine answers /metrics and /slots between two batches, so an answer may take as long as a prefill chunk. Each
replica is read on its own, with one read at a time: a slow one grows old and holds up nobody.
"""

import asyncio
from collections.abc import Callable, Mapping
from typing import Final, Protocol

import aiohttp
import msgspec

from trimtab.core.evidence import Evidence, Reading, Readings, Unknown, Window
from trimtab.core.ports import Clock, EngineFormatError
from trimtab.engines.base import reading
from trimtab.engines.llamacpp import METRIC_NAMES, LlamaCppFormat

PROBE_TIMEOUT_S: Final = 30.0
# A reading is stale when this many reads should have come since.
_STALE_AFTER: Final = 3.0
KV_NAMES: Final = ("kv_tokens_held", "kv_tokens_capacity", "kv_used_share")
SLOT_NAMES: Final = ("slots_busy", "slots_busy_share")
PROCESS_NAMES: Final = ("memory_resident_bytes", "cpu_s_total", "cpu_busy_share")


class ProcessReader(Protocol):
    """What the probes ask of the launcher."""

    def pid(self, replica: str) -> int | None:
        """A replica's process id."""
        ...

    def memory_bytes(self, replica: str) -> int | None:
        """A replica's resident memory in bytes."""
        ...

    def cpu_s(self, replica: str) -> float | None:
        """CPU seconds a replica has used."""
        ...


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """A replica to read."""

    url: str
    threads: int


class Probe(msgspec.Struct, frozen=True, kw_only=True):
    """What one read gave. `pid` tells restarts apart: counters begin anew with another one."""

    replica: str
    pid: int | None
    at_mono_s: float
    cpu_s: float | None
    readings: Readings


class Probes:
    """Keeps the latest probe of each replica. `run` reads for as long as it is awaited.

    `targets`: the replicas to read at the moment. Readings' windows are in seconds of the wall clock.
    """

    def __init__(
        self,
        targets: Callable[[], Mapping[str, Target]],
        processes: ProcessReader,
        clock: Clock,
        *,
        every_s: float,
        timeout_s: float = PROBE_TIMEOUT_S,
    ) -> None:
        self._targets = targets
        self._processes = processes
        self._clock = clock
        self.every_s = every_s
        """Time between two reads; may be changed while reading."""
        self._timeout_s = timeout_s
        self._format = LlamaCppFormat()
        self._latest: dict[str, Probe] = {}
        self._reading: set[str] = set()

    async def run(self) -> None:
        """Read all replicas every `every_s` until cancelled."""
        async with self._session() as session, asyncio.TaskGroup() as group:
            while True:
                self._read_all(session, group)
                await asyncio.sleep(self.every_s)

    async def read_once(self) -> None:
        """Read all replicas once and return when all have answered or timed out."""
        async with self._session() as session, asyncio.TaskGroup() as group:
            self._read_all(session, group)

    def _read_all(self, session: aiohttp.ClientSession, group: asyncio.TaskGroup) -> None:
        targets = self._targets()
        for replica in self._latest.keys() - targets.keys():
            del self._latest[replica]
        for replica, target in targets.items():
            if replica not in self._reading:
                self._reading.add(replica)
                group.create_task(self._read(session, replica, target))

    def latest(self, replica: str) -> Probe | None:
        """Return the latest probe of a replica as it was taken, None before the first."""
        return self._latest.get(replica)

    def age_s(self, replica: str) -> float | None:
        """Return the age of the latest probe in seconds, None before the first."""
        probe = self._latest.get(replica)
        return None if probe is None else self._clock.mono_s() - probe.at_mono_s

    def readings(self, replica: str) -> Readings:
        """Return a replica's readings; unknown, with the age, once they are stale."""
        probe = self._latest.get(replica)
        if probe is None:
            return Readings()
        age_s = self._clock.mono_s() - probe.at_mono_s
        if age_s <= _STALE_AFTER * self.every_s:
            return probe.readings
        reason = f"stale: last read {age_s:.1f} s ago"
        return Readings(tuple(Unknown(item.name, reason) for item in probe.readings.items))

    def _session(self) -> aiohttp.ClientSession:
        return aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(force_close=True),
            timeout=aiohttp.ClientTimeout(total=self._timeout_s),
        )

    async def _read(self, session: aiohttp.ClientSession, replica: str, target: Target) -> None:
        try:
            metrics = await self._metrics(session, replica, target.url)
            slots = await self._slots(session, replica, target.url)
        finally:
            self._reading.discard(replica)
        cpu_s = self._processes.cpu_s(replica)
        at_mono_s, at_s = self._clock.mono_s(), self._clock.wall_s()
        process = self._process(replica, cpu_s, at_mono_s, at_s, target.threads)
        self._latest[replica] = Probe(
            replica=replica,
            pid=self._processes.pid(replica),
            at_mono_s=at_mono_s,
            cpu_s=cpu_s,
            readings=Readings((*metrics, *slots, *process)),
        )

    async def _metrics(
        self, session: aiohttp.ClientSession, replica: str, url: str
    ) -> tuple[Reading, ...]:
        try:
            text = (await _get(session, f"{url}/metrics")).decode("utf-8", "replace")
            return self._format.read_metrics(text, source=replica, at_s=self._clock.wall_s())
        except (ProbeError, EngineFormatError) as error:
            return tuple(Unknown(name, f"probe failed: {error}") for name in METRIC_NAMES)

    async def _slots(
        self, session: aiohttp.ClientSession, replica: str, url: str
    ) -> tuple[Reading, ...]:
        try:
            body = await _get(session, f"{url}/slots")
            return self._format.read_slots(body, source=replica, at_s=self._clock.wall_s())
        except (ProbeError, EngineFormatError) as error:
            reason = f"probe failed: {error}"
            return tuple(Unknown(name, reason) for name in (*KV_NAMES, *SLOT_NAMES))

    def _process(
        self, replica: str, cpu_s: float | None, at_mono_s: float, at_s: float, threads: int
    ) -> tuple[Reading, ...]:
        memory = self._processes.memory_bytes(replica)
        gone = "its process cannot be read"
        return (
            reading(
                "memory_resident_bytes",
                None if memory is None else float(memory),
                unit="bytes",
                source=replica,
                at_s=at_s,
                reason=gone,
            ),
            reading("cpu_s_total", cpu_s, unit="s", source=replica, at_s=at_s, reason=gone),
            self._cpu_busy(replica, cpu_s, at_mono_s, at_s, threads),
        )

    def _cpu_busy(
        self, replica: str, cpu_s: float | None, at_mono_s: float, at_s: float, threads: int
    ) -> Reading:
        """Return the share of its threads' time that a replica computed since the probe before."""
        name, before = "cpu_busy_share", self._latest.get(replica)
        if cpu_s is None or before is None or before.cpu_s is None or cpu_s < before.cpu_s:
            return Unknown(name, "needs two reads of the same process")
        length_s = at_mono_s - before.at_mono_s
        if length_s <= 0:
            return Unknown(name, "no time between two reads")
        return Evidence(
            id=f"{replica}/{name}@{at_s:.3f}",
            name=name,
            value=(cpu_s - before.cpu_s) / (length_s * threads),
            unit="share",
            source=replica,
            window=Window(at_s - length_s, at_s),
        )


class ProbeError(RuntimeError):
    """A replica did not give a page; the message says why."""


async def _get(session: aiohttp.ClientSession, url: str) -> bytes:
    """Return a page; raises `ProbeError`."""
    try:
        async with session.get(url) as response:
            if response.status != 200:
                raise ProbeError(f"status {response.status}")
            return await response.read()
    except TimeoutError as error:
        raise ProbeError("no answer in time") from error
    except aiohttp.ClientError as error:
        raise ProbeError(type(error).__name__) from error
