"""Ten thousand connections that go wrong, on either side: afterwards nothing of them is left."""

import asyncio
import contextlib
import gc
import os
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable

import msgspec
import pytest
from chaos_proxy import ChaosProxy, Fault, FaultKind
from fake_engine import FakeEngine, Seen, reset, whole
from harness import CHAT, Harness, as_body, chat, until

CONNECTIONS = 10_000
AT_ONCE = 64
FIT = int(0.9 * AT_ONCE)
BODY = as_body(chat("fault"))
WHOLE = as_body(chat("fault", stream=False))
PATIENCE_S = 10.0


class Engine(FakeEngine):
    """Answers completions, and says of every other path that it has none."""

    async def completion(self, seen: Seen) -> AsyncIterator[bytes]:
        if seen.path != CHAT:
            yield whole(404, b"{}")
            return
        async for piece in super().completion(seen):
            yield piece


def head(length: int, *lines: str) -> bytes:
    said = "".join(f"{line}\r\n" for line in lines)
    return f"POST {CHAT} HTTP/1.1\r\nHost: x\r\n{said}Content-Length: {length}\r\n\r\n".encode()


WHAT: dict[str, bytes] = {
    "nothing": b"",
    "half a line": b"POST /v1/ch",
    "half a head": head(9)[:-2],
    "half a body": head(len(BODY)) + BODY[:20],
    "garbage": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" * 20,
    "two lengths": head(5, "Content-Length: 7") + b"hello",
    "no JSON": head(5) + b"{'a':",
    "no such page": b"GET /nothing HTTP/1.1\r\nHost: x\r\n\r\n",
    "another path": b"GET /v1/nothing HTTP/1.1\r\nHost: x\r\n\r\n",
    "a stream": head(len(BODY)) + BODY,
    "a stream again": head(len(BODY)) + BODY + head(len(BODY)) + BODY,
    "an answer": head(len(WHOLE)) + WHOLE,
}
"""What a client sends."""

THEN: dict[str, Callable[[asyncio.StreamWriter], None]] = {
    "closes": lambda writer: writer.close(),
    "resets": reset,
    "half closes": lambda writer: writer.write_eof(),
}
"""How it leaves, at once or when it has read something."""


def fault_of(rng: random.Random) -> Fault:
    """Return what happens between gateway and engine."""
    return Fault(
        rng.choice([kind for kind in FaultKind if kind is not FaultKind.DRIP]),
        after_bytes=rng.choice([0, 1, 20, 150, 400, 900]),
        in_event=rng.choice([None, None, 1, 2]),
        up=rng.random() < 0.2,
        seconds=0.01,
    )


async def one(port: int, rng: random.Random) -> str:
    """Open a connection, do something wrong with it, and let it go."""
    what, then = rng.choice(list(WHAT)), rng.choice(list(THEN))
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    with contextlib.suppress(ConnectionError, TimeoutError):
        writer.write(WHAT[what])
        await writer.drain()
        if rng.random() < 0.6:
            async with asyncio.timeout(rng.choice([0.005, 0.05, 1.0])):
                await reader.read(rng.choice([1, 300, 10_000]))
        THEN[then](writer)
        if then == "half closes":
            async with asyncio.timeout(0.05):
                await reader.read()
    writer.close()
    with contextlib.suppress(ConnectionError):
        await writer.wait_closed()
    return f"{what}, {then}"


async def ask_wrongly(port: int, count: int, seed: int) -> Counter[str]:
    """Open so many connections, a bounded number at once."""
    done: Counter[str] = Counter()

    async def worker(number: int) -> None:
        rng = random.Random(seed * 1_000 + number)
        for _ in range(count // AT_ONCE + (number < count % AT_ONCE)):
            done[await one(port, rng)] += 1

    async with asyncio.TaskGroup() as group:
        for number in range(AT_ONCE):
            group.create_task(worker(number))
    return done


def descriptors() -> Counter[str]:
    """Count what the process has open, sockets by their kind."""
    found: Counter[str] = Counter()
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            found[os.readlink(f"/proc/self/fd/{name}").partition(":")[0]] += 1
    return found


@pytest.mark.timeout(400)
async def test_ten_thousand_faulty_connections_leave_nothing_behind() -> None:
    """No task, no socket and no slot is left, by the gateway's counters and by the kernel's; it serves on as before."""
    before_tasks, before = len(asyncio.all_tasks()), descriptors()
    engine = Engine(words=("word",) * 20, pause_s=0.002)
    await engine.start()
    rng = random.Random(11)
    async with ChaosProxy(engine.port, lambda _: fault_of(rng)) as proxy:
        fleet = Harness(
            first_byte_timeout_s=0.2, idle_timeout_s=0.2, streams_max=AT_ONCE, connect_timeout_s=2.0
        )
        async with fleet:
            fleet.set_replica("r0", f"http://127.0.0.1:{proxy.port}")
            warm = len(asyncio.all_tasks())
            done = await ask_wrongly(fleet.port, CONNECTIONS, seed=5)
            await until(lambda: fleet.load.in_flight == 0, PATIENCE_S)
            await until(lambda: not proxy.open_connections, PATIENCE_S)
            await until(lambda: len(asyncio.all_tasks()) <= warm, PATIENCE_S)
            proxy.choose = lambda _: Fault()
            page = (await fleet.get("/metrics")).body.decode()
            # Whoever was slow was cut off above; now a busy machine may take its time.
            patient = msgspec.structs.replace(
                fleet.config, first_byte_timeout_s=PATIENCE_S, idle_timeout_s=PATIENCE_S
            )
            fleet.gateway.use_config(patient)
            # every place is free: as many as fit before the last are kept for priority are served at once
            replies = await asyncio.gather(*(fleet.post() for _ in range(FIT)))
            errors = Counter(record.error.value for record in fleet.records)
    await engine.stop()
    gc.collect()
    await until(lambda: len(asyncio.all_tasks()) <= before_tasks, PATIENCE_S)
    await until(lambda: descriptors()["socket"] <= before["socket"], PATIENCE_S)
    assert sum(done.values()) == CONNECTIONS
    assert set(proxy.struck) == set(FaultKind) - {FaultKind.NONE, FaultKind.DRIP}
    assert {"client_abort", "stream_truncated", "upstream_connect", "upstream_timeout"} <= set(
        errors
    )
    assert "trimtab_requests_in_flight 0.0" in page
    assert [reply.status for reply in replies] == [200] * FIT
    assert {reply.body.endswith(b"[DONE]\n\n") for reply in replies} == {True}
    assert descriptors()["socket"] == before["socket"]
