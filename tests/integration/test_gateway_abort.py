"""Who leaves, and when: clients, and the gateway itself."""

import asyncio
import json
from collections.abc import AsyncIterator

import pytest
from fake_engine import FakeEngine, Seen, hang
from harness import CHAT, Harness, as_body, chat, until

from trimtab.core.types import ErrorClass

ABORT_WITHIN_S = 1.0


async def leave(fleet: Harness, body: bytes, *, after_bytes: int) -> float:
    """Send a request, read at least so many bytes of its answer, hang up; return the time of it."""
    reader, writer = await asyncio.open_connection("127.0.0.1", fleet.port)
    head = f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
    writer.write(head.encode() + body)
    await writer.drain()
    got = 0
    while got < after_bytes:
        data = await reader.read(65536)
        got = after_bytes if b"[DONE]" in data else got + len(data)
    if not after_bytes:
        await until(lambda: any(engine.requests for engine in fleet.engines))
    writer.close()
    await writer.wait_closed()
    return asyncio.get_running_loop().time()


@pytest.mark.parametrize("stream", [True, False])
async def test_client_that_leaves_frees_the_engine_within_a_second(stream: bool) -> None:
    """The engine's connection is closed, the load is given back, and the record says client abort."""
    engine = FakeEngine(words=("word",) * 500, pause_s=0.02)
    async with Harness(engine) as fleet:
        left_at_s = await leave(fleet, as_body({"stream": stream}), after_bytes=1000 * stream)
        await until(lambda: engine.aborted_at_s)
        record = await fleet.record()
        load = fleet.load.view(0.0).replicas[0]
    assert engine.aborted_at_s[0] - left_at_s < ABORT_WITHIN_S
    assert (
        record.status,
        record.error,
        record.client_aborted,
        record.ok,
    ) == (499, ErrorClass.CLIENT_ABORT, True, False)
    assert (
        load.in_flight,
        load.prefill_tokens_outstanding,
        load.decode_tokens_outstanding,
    ) == (0, 0, 0)
    expected = (record.chunks, True) if stream else (None, False)
    assert expected == (record.tokens.output, record.tokens.output_estimated)
    assert (
        record.tokens.prompt,
        record.unknown["tokens.prompt"],
    ) == (None, "the request ended: client_abort")


async def test_client_that_leaves_at_the_end_mark_has_its_answer() -> None:
    """Clients hang up at [DONE]: that is no abort, and what the engine still holds back costs no latency."""
    engine = FakeEngine()

    async def late_end(seen: Seen) -> AsyncIterator[bytes]:
        async for piece in engine.completion(seen):
            if piece == b"0\r\n\r\n":
                await asyncio.sleep(0.5)
            yield piece

    engine.script = late_end
    async with Harness(engine) as fleet:
        await leave(fleet, as_body(None), after_bytes=1_000_000)
        record = await fleet.record()
    assert (record.ok, record.status, record.tokens.output) == (True, 200, 4)
    assert (record.e2e_ms or 0.0) < 400


async def test_client_that_leaves_in_the_queue_frees_the_engine() -> None:
    """A request that waits for its first byte is let go like any other."""
    engine = FakeEngine(script=hang)
    async with Harness(engine) as fleet:
        left_at_s = await leave(fleet, as_body(None), after_bytes=0)
        await until(lambda: engine.aborted_at_s)
        record = await fleet.record()
    assert engine.aborted_at_s[0] - left_at_s < ABORT_WITHIN_S
    assert (record.status, record.chunks, record.tokens.output) == (499, 0, None)


async def test_client_that_leaves_while_sending_reaches_no_engine() -> None:
    """Half a body is no request: nothing is routed, and the record says who left."""
    engine = FakeEngine()
    async with Harness(engine) as fleet:
        _, writer = await asyncio.open_connection("127.0.0.1", fleet.port)
        writer.write(f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nContent-Length: 99\r\n\r\n{{".encode())
        await writer.drain()
        await asyncio.sleep(0.05)
        writer.close()
        await writer.wait_closed()
        record = await fleet.record()
    assert (engine.requests, record.replica, record.ok) == ([], None, False)


async def test_slow_reader_stops_the_reading_from_the_engine() -> None:
    """A client that does not read fills a bounded buffer; the engine is held, not the memory."""
    big = "x" * 60_000
    engine = FakeEngine(words=(big,) * 700)
    async with Harness(engine) as fleet:
        body = as_body(None)
        reader, writer = await asyncio.open_connection("127.0.0.1", fleet.port, limit=2**16)
        head = f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
        writer.write(head.encode() + body)
        await until(lambda: len(engine.requests) == 1)
        await asyncio.sleep(0.5)
        held = engine.served
        load = fleet.load.view(0.0).replicas[0]
        writer.close()
        await writer.wait_closed()
        await until(lambda: engine.aborted_at_s)
        record = await fleet.record()
    assert (held, load.in_flight) == (0, 1)
    assert (record.client_aborted, record.chunks < 700) == (True, True)
    assert not reader.at_eof()


async def test_keep_alive_of_a_client_survives_its_requests() -> None:
    """One client connection carries stream, answer and error one after the other."""
    engine = FakeEngine()
    bodies = (as_body(None), as_body({"stream": False}), b"{", as_body(None))
    async with Harness(engine) as fleet:
        reader, writer = await asyncio.open_connection("127.0.0.1", fleet.port)
        statuses = []
        for body in bodies:
            head = f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
            writer.write(head.encode() + body)
            statuses.append(await read_answer(reader))
        writer.close()
        await writer.wait_closed()
    assert statuses == [200, 200, 400, 200]


async def read_answer(reader: asyncio.StreamReader) -> int:
    """Read one response, chunked or not, and return its status."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
    if "transfer-encoding: chunked" in head:
        size = 1
        while size:
            size = int(await reader.readline(), 16)
            await reader.readexactly(size + 2)
    else:
        [length] = [x for x in head.split("\r\n") if x.startswith("content-length:")]
        await reader.readexactly(int(length.partition(":")[2]))
    return int(head.split(" ")[1])


async def test_drain_lets_running_requests_end_and_refuses_new_ones() -> None:
    """Draining waits for what runs, tells health checks, and sends new requests away."""
    engine = FakeEngine(pause_s=0.1)
    async with Harness(engine) as fleet:
        running = asyncio.create_task(fleet.post())
        await until(lambda: engine.requests)
        draining = asyncio.create_task(fleet.gateway.drain(5.0))
        await asyncio.sleep(0.02)
        refused, health = await fleet.post(), await fleet.get("/healthz")
        left, served = await draining, await running
    assert (left, served.status, served.body.endswith(b"[DONE]\n\n")) == (0, 200, True)
    assert (
        refused.status,
        refused.json["error"]["code"],
        health.status,
        health.json["status"],
    ) == (503, "stopping", 503, "draining")


async def test_drain_says_what_is_left_when_its_time_is_up() -> None:
    """A drain does not wait longer than it was given."""
    engine = FakeEngine(script=hang)
    async with Harness(engine) as fleet:
        running = asyncio.create_task(fleet.post())
        await until(lambda: engine.requests)
        assert await fleet.gateway.drain(0.05) == 1
        await fleet.gateway.stop()
        reply = await running
    assert (reply.status, reply.json["error"]["code"]) == (503, "stopping")


async def test_stopping_gateway_ends_streams_with_one_error_event() -> None:
    """A stream that the stop cuts is told so and ends cleanly; the record calls it truncated, not aborted."""
    engine = FakeEngine(words=("word",) * 500, pause_s=0.02)
    async with Harness(engine) as fleet:
        running = asyncio.create_task(fleet.post(chat()))
        await until(lambda: fleet.load.view(0.0).replicas[0].running == 1)
        await fleet.gateway.stop()
        reply = await running
        record = await fleet.record()
        await until(lambda: engine.aborted_at_s)
    last = json.loads(reply.body.rstrip().rpartition(b"data: ")[2])
    assert (
        last["error"]["code"],
        record.error,
        record.client_aborted,
    ) == ("stopping", ErrorClass.STREAM_TRUNCATED, False)
