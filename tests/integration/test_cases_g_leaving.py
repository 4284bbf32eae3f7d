"""A client that leaves, in every way it can: the engine stops within a second, and it is told apart from an error."""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable

import pytest
from fake_engine import FakeEngine, Seen, hang, reset
from harness import CHAT, Harness, as_body, until

from trimtab.core.types import ErrorClass

WITHIN_S = 1.0
Leave = Callable[[asyncio.StreamWriter], None]


def close(writer: asyncio.StreamWriter) -> None:
    """Hang up as a client does that is done."""
    writer.close()


def shut(writer: asyncio.StreamWriter) -> None:
    """Hang up from below: the socket is shut both ways."""
    found: socket.socket = writer.get_extra_info("socket")
    # uvloop's object has no shutdown of its own
    with socket.socket(fileno=found.fileno()) as again:
        again.shutdown(socket.SHUT_RDWR)
        again.detach()


LEAVES = (close, reset, shut)


async def ask(
    fleet: Harness, path: str, body: bytes
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Send a request over a connection of its own."""
    reader, writer = await asyncio.open_connection("127.0.0.1", fleet.port)
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
    writer.write(head.encode() + body)
    await writer.drain()
    return reader, writer


async def assert_let_go(fleet: Harness, engine: FakeEngine, leave: Leave, writer: object) -> None:
    """Leave, and check that the engine's connection, the slot and the load are free within a second."""
    assert isinstance(writer, asyncio.StreamWriter)
    left_at_s = asyncio.get_running_loop().time()
    leave(writer)
    await until(lambda: engine.aborted_at_s)
    record = await fleet.record()
    await until(lambda: engine.open_connections == 0)
    load = fleet.load.view(0.0).replicas[0]
    assert engine.aborted_at_s[0] - left_at_s < WITHIN_S
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
    page = (await fleet.get("/metrics")).body.decode()
    assert 'error="client_abort",replica="r0",status="499"} 1.0' in page
    writer.close()


@pytest.mark.parametrize("leave", LEAVES)
@pytest.mark.parametrize("path", [CHAT, "/v1/completions"])
async def test_stream_is_let_go_after_three_chunks(path: str, leave: Leave) -> None:
    """A client that has read three chunks leaves: what it got is the estimate, marked as one."""
    engine = FakeEngine(words=("word ",) * 1000, pause_s=0.02)
    body = as_body({"prompt": "once"})
    async with Harness(engine) as fleet:
        reader, writer = await ask(fleet, path, body)
        for _ in range(4):
            await reader.readuntil(b"\n\n")
        await assert_let_go(fleet, engine, leave, writer)
        record = await fleet.record()
    # the first event has a role and no text
    assert record.chunks >= 3
    assert (record.chunks, True, None) == (
        record.tokens.output,
        record.tokens.output_estimated,
        record.tpot_ms,
    )


@pytest.mark.parametrize("leave", LEAVES)
async def test_answer_in_one_piece_is_let_go_in_the_middle(leave: Leave) -> None:
    """A client that does not stream leaves at one second of twenty: the engine does not work to the end."""
    engine = FakeEngine(words=("word",) * 20, pause_s=1.0)
    async with Harness(engine) as fleet:
        _, writer = await ask(fleet, CHAT, as_body({"stream": False}))
        await until(lambda: engine.requests)
        await asyncio.sleep(1.0)
        await assert_let_go(fleet, engine, leave, writer)
        record = await fleet.record()
    assert (record.stream, record.tokens.output, engine.served) == (False, None, 0)


@pytest.mark.parametrize("leave", LEAVES)
@pytest.mark.parametrize("stream", [True, False])
async def test_client_is_let_go_before_the_head(leave: Leave, stream: bool) -> None:
    """A client that leaves while its request waits in the engine's queue is let go too, streaming or not."""
    engine = FakeEngine(script=hang)
    async with Harness(engine) as fleet:
        _, writer = await ask(fleet, CHAT, as_body({"stream": stream}))
        await until(lambda: engine.requests)
        await assert_let_go(fleet, engine, leave, writer)
        record = await fleet.record()
    assert (record.tokens.output, record.chunks) == (None, 0)


@pytest.mark.parametrize("leave", LEAVES)
async def test_client_is_let_go_between_head_and_body(leave: Leave) -> None:
    """The engine has said its status and nothing more when the client leaves."""

    async def head_only(seen: Seen) -> AsyncIterator[bytes]:
        yield b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 90\r\n\r\n{"
        await asyncio.sleep(3600)

    engine = FakeEngine(script=head_only)
    async with Harness(engine) as fleet:
        _, writer = await ask(fleet, CHAT, as_body({"stream": False}))
        await until(lambda: engine.requests)
        await asyncio.sleep(0.05)
        await assert_let_go(fleet, engine, leave, writer)


@pytest.mark.parametrize("leave", LEAVES)
async def test_second_request_of_a_kept_connection_is_let_go(leave: Leave) -> None:
    """A connection that has had an answer already is watched just as well."""
    engine = FakeEngine()
    body = as_body({"stream": False})
    async with Harness(engine) as fleet:
        reader, writer = await ask(fleet, CHAT, body)
        head = (await reader.readuntil(b"\r\n\r\n")).lower()
        length = int(head.partition(b"content-length: ")[2].partition(b"\r\n")[0])
        await reader.readexactly(length)
        await fleet.record(of=1)
        engine.script = hang
        writer.write(b"POST %b HTTP/1.1\r\nHost: x\r\n" % CHAT.encode())
        writer.write(b"Content-Length: %d\r\n\r\n%b" % (len(body), body))
        await until(lambda: len(engine.requests) == 2)
        left_at_s = asyncio.get_running_loop().time()
        leave(writer)
        await until(lambda: engine.aborted_at_s)
        record = await fleet.record(of=2)
        writer.close()
    assert engine.aborted_at_s[0] - left_at_s < WITHIN_S
    assert (record.status, record.client_aborted) == (499, True)


@pytest.mark.parametrize("stream", [True, False])
async def test_many_clients_that_leave_at_once_free_every_slot(stream: bool) -> None:
    """Slots are counted back for all of them, and the next request is served."""
    engine = FakeEngine(words=("word",) * 1000, pause_s=0.02)
    async with Harness(engine, streams_max=16) as fleet:
        asked = [await ask(fleet, CHAT, as_body({"stream": stream})) for _ in range(16)]
        await until(lambda: len(engine.requests) == 16)
        for number, (_, writer) in enumerate(asked):
            LEAVES[number % 3](writer)
        await fleet.record(of=16)
        engine.words, engine.pause_s = ("ok",), 0.0
        reply = await fleet.post({"stream": stream})
        load = fleet.load.view(0.0).replicas[0]
        for _, writer in asked:
            writer.close()
    assert (reply.status, load.in_flight) == (200, 0)
    assert {499} == {record.status for record in fleet.records[:16]}
