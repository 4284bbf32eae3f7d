"""Rounds: every proxy meets the same streams, one after the other, in an order drawn anew for every round."""

import asyncio
import contextlib
import os
import random
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bench.proxy.client import Clients, Shape
from bench.proxy.peers import Start, start_of
from bench.proxy.processes import Process
from bench.proxy.results import Row, quantile
from trimtab.runtime.launcher import free_ports

DIRECT: Final = "direct"
READY_S: Final = 90.0
QUIET_SHARE: Final = 0.05
QUIET_S_MAX: Final = 4.0
PROXY_CORE: Final = 0
LOAD_CORE: Final = 1


@dataclass(frozen=True)
class Target:
    """A proxy that runs, or the engine itself, which has no process to blame."""

    name: str
    port: int
    process: Process | None


@contextlib.contextmanager
def running(names: Sequence[str], folder: Path) -> Iterator[list[Target]]:
    """Start an engine and the proxies in front of it, and end all at the end."""
    processes: list[Process] = []
    try:
        yield _start(names, folder, processes)
    finally:
        for process in reversed(processes):
            process.end()


def _start(names: Sequence[str], folder: Path, processes: list[Process]) -> list[Target]:
    engine_port, *ports = free_ports(1 + 2 * len(names))
    command = (sys.executable, "-m", "bench.proxy.engine", str(engine_port))
    engine = Process("engine", command, core=LOAD_CORE, log=folder / "engine.log")
    processes.append(engine)
    url = f"http://127.0.0.1:{engine_port}"
    engine.wait_ready(url, READY_S)
    targets, waiting = [], []
    for at, name in enumerate(name for name in names if name != DIRECT):
        port, spare = ports[2 * at : 2 * at + 2]
        start: Start = start_of(name, [url], port, spare, folder / name.replace(":", "-"))
        process = Process(
            name,
            start.command,
            core=PROXY_CORE,
            log=folder / f"{name}.log",
            environment=start.environment,
        )
        processes.append(process)
        waiting.append((process, f"http://127.0.0.1:{port}{start.ready}"))
        targets.append(Target(name, port, process))
    for process, ready in waiting:
        process.wait_ready(ready, READY_S)
    if DIRECT in names:
        targets.append(Target(DIRECT, engine_port, None))
    return targets


async def one(target: Target, number: int, shape: Shape, window_s: float) -> Row:
    """Measure one proxy once: streams begin over the length of one, then a window, then they hang up."""
    clients = Clients(target.port, shape)
    await clients.begin()
    counted, process = clients.counted, target.process
    events, completed, failed = counted.events, counted.completed, counted.failed
    counted.added_ns.clear()
    cpu_ns, began_s = process.cpu_ns() if process else 0, time.monotonic()
    await asyncio.sleep(window_s)
    took_s = time.monotonic() - began_s
    cpu_ns = (process.cpu_ns() if process else 0) - cpu_ns
    events = counted.events - events
    added_ms = [added / 1e6 for added in counted.added_ns]
    row = Row(
        proxy=target.name,
        round=number,
        streams=shape.streams,
        offered_per_s=shape.offered_per_s,
        events_per_s=events / took_s,
        cpu_us_per_event=cpu_ns / 1e3 / events if process and events else None,
        cpu_share=cpu_ns / 1e9 / took_s if process else None,
        added_ms_p50=quantile(added_ms, 0.5),
        added_ms_p99=quantile(added_ms, 0.99),
        resident_mib=process.resident_bytes() / 2**20 if process else None,
        completed=counted.completed - completed,
        failed=counted.failed - failed,
        samples=len(added_ms),
    )
    await clients.end()
    await _quiet(process)
    return row


async def _quiet(process: Process | None) -> None:
    """Wait until a proxy has let go of what the clients left, or seconds have passed."""
    for _ in range(int(QUIET_S_MAX / 0.2) if process else 1):
        before = process.cpu_ns() if process else 0
        await asyncio.sleep(0.2)
        if process is None or process.cpu_ns() - before < 0.2e9 * QUIET_SHARE:
            return


async def measure(
    targets: Sequence[Target],
    shapes: Sequence[Shape],
    rounds: range,
    window_s: float,
) -> list[Row]:
    """Run rounds; what is measured is said as it comes."""
    os.sched_setaffinity(0, {LOAD_CORE} & os.sched_getaffinity(0) or os.sched_getaffinity(0))
    rows = []
    for number in rounds:
        for shape in shapes:
            order = list(targets)
            random.Random(number * 10_007 + shape.streams).shuffle(order)
            for target in order:
                row = await one(target, number, shape, window_s)
                rows.append(row)
                print(_said(row), flush=True)
    return rows


def _said(row: Row) -> str:
    cost = "" if row.cpu_us_per_event is None else f"{row.cpu_us_per_event:6.1f} us/event"
    p50, p99 = row.added_ms_p50 or 0.0, row.added_ms_p99 or 0.0
    return (
        f"round {row.round}  {row.streams:5d} streams  {row.proxy:15s} {cost:>16s}"
        f"  {row.events_per_s:8.0f}/s  added {p50:7.2f} / {p99:7.1f} ms"
        f"  {row.completed} ended, {row.failed} failed"
    )
