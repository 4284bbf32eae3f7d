"""Bytes are no characters and chunks are no events: what passes, and what is counted of it, wherever it is cut."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from fake_engine import FakeEngine, Seen, chunk, sse, stream_of
from harness import SECRET, Harness, chat

from trimtab.core.types import ErrorClass

sys.path.append(str(Path(__file__).resolve().parents[1] / "faults"))
from chaos_proxy import ChaosProxy, Fault, FaultKind

TEXTS = ("世界。", "👩‍👩‍👧‍👦🛶", "é\n\n")
DONE = b"data: [DONE]\n\n"
MIB = 1024 * 1024


def short(text: str) -> bytes:
    """Return an event as small as an engine can make it, so that every cut can be tried."""
    value = {"choices": [{"index": 0, "delta": {"content": text}}]}
    return b"data: " + json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


USAGE = b'data: {"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":9}}'
EVENTS = (*map(short, TEXTS), USAGE, b"data: [DONE]")
WANTS = chat("cut") | {"stream_options": {"include_usage": True}}


def with_ends(end: bytes) -> bytes:
    return b"".join(event + end + end for event in EVENTS)


STREAMS = {
    "lf": with_ends(b"\n"),
    "crlf": with_ends(b"\r\n"),
    "cr": with_ends(b"\r"),
    "lf_no_space": with_ends(b"\n").replace(b"data: ", b"data:"),
    "crlf_no_space": with_ends(b"\r\n").replace(b"data: ", b"data:"),
    "comments_and_mixed_ends": with_ends(b"\n").replace(
        b"data: {", b": ping\r\n\r\nid: 7\r\ndata: {"
    ),
}


@pytest.mark.parametrize("name", STREAMS)
async def test_every_cut_of_a_stream_gives_the_same_bytes_and_counts(name: str) -> None:
    """At every byte, inside of characters and line ends too: bytes out are bytes in, tokens are counted alike."""
    full = STREAMS[name]
    async with Harness(FakeEngine()) as fleet:

        def script(seen: Seen) -> AsyncIterator[bytes]:
            at = int(seen.headers["x-cut"])
            return stream_of([full[:at], full[at:]], gap_s=0.001)(seen)

        fleet.engines[0].script = script

        async def ask(at: int) -> bytes:
            return (await fleet.post(WANTS, X_Cut=str(at))).body

        for first in range(0, len(full), 40):
            cuts = range(first, min(first + 40, len(full)))
            replies = await asyncio.gather(*(ask(at) for at in cuts))
            assert [at for at, body in zip(cuts, replies, strict=True) if body != full] == []
        await fleet.record(of=len(full))
    assert {(True, 3, 9, 7, SECRET.digest("".join(TEXTS).encode()))} == {
        (r.ok, r.chunks, r.tokens.output, r.tokens.prompt, r.output_hash) for r in fleet.records
    }


async def test_every_cut_of_a_connection_gives_the_same_bytes_and_counts() -> None:
    """The cut falls anywhere in what the network carries: in the status line, in headers, in sizes of chunks."""
    full = STREAMS["crlf"]
    engine = FakeEngine(script=stream_of([full[:50], full[50:51], full[51:]]))
    await engine.start()
    size = len(full) + 200
    async with (
        ChaosProxy(
            engine.port, lambda at: Fault(FaultKind.DELAY, after_bytes=at % size, seconds=0.001)
        ) as proxy,
        Harness() as fleet,
    ):
        fleet.set_replica("r0", f"http://127.0.0.1:{proxy.port}")
        for _ in range(0, size, 40):
            replies = await asyncio.gather(*(fleet.post(WANTS) for _ in range(40)))
            assert {full} == {reply.body for reply in replies}
    await engine.stop()
    # each cut was tried but for those behind the answer's end
    assert proxy.struck[FaultKind.DELAY] > len(full)
    assert {(True, 3, 9)} == {(r.ok, r.chunks, r.tokens.output) for r in fleet.records}


@pytest.mark.parametrize("size", [40_000, 200_000, 900_000])
async def test_long_event_passes_whole(size: int) -> None:
    """An event that comes over many reads is one event."""
    event = sse(chunk({"content": "世" * (size // 3)}))
    parts = [event[at : at + 9_999] for at in range(0, len(event), 9_999)]
    async with Harness(FakeEngine(script=stream_of([*parts, DONE]))) as fleet:
        reply = await fleet.post()
        record = await fleet.record()
    assert (event + DONE, True, 1) == (reply.body, record.ok, record.chunks)


@pytest.mark.parametrize("size", [2 * MIB, 5 * MIB, 64 * MIB])
async def test_event_over_the_limit_fails_clearly_and_in_bounds(size: int) -> None:
    """An event of 2 MB or more ends the stream with one error that names the limit; it is not collected."""
    start = sse(chunk({"content": "first"}))
    piece = b"x" * 65_536
    sent = 0

    async def script(seen: Seen) -> AsyncIterator[bytes]:
        nonlocal sent
        async for part in stream_of([start, b'data: {"x":"', *[piece] * (size // 65_536)])(seen):
            yield part
            sent += len(part)

    async with Harness(FakeEngine(script=script)) as fleet:
        reply = await fleet.post()
        record = await fleet.record()
    assert reply.body.startswith(start)
    [last] = reply.body.removeprefix(start).removesuffix(b"\n\n").split(b"\n\n")
    error = json.loads(last.removeprefix(b"data: "))["error"]
    assert (error["code"], str(MIB) in error["message"]) == ("upstream_broken", True)
    assert (record.status, record.error, record.chunks) == (200, ErrorClass.STREAM_TRUNCATED, 1)
    # what lies in the sockets' buffers beside the limit
    assert sent < 8 * MIB


@pytest.mark.parametrize("odd", [b"\xff", b"\xe4\xb8", b"\xc0\xaf", b"\xed\xa0\x80"])
@pytest.mark.parametrize("at", [0, 1, 2])
async def test_byte_that_is_no_utf8_passes_untouched_and_is_flagged(odd: bytes, at: int) -> None:
    """A lone byte, half a character, an overlong one, a surrogate: the client gets them, the record says so."""
    events = [sse(chunk({"content": f"text {number}"})) for number in range(3)]
    events[at] = events[at].replace(b"text", b"te" + odd + b"xt")
    full = b"".join(events) + DONE
    async with Harness(FakeEngine(script=stream_of([full]))) as fleet:
        reply = await fleet.post()
        record = await fleet.record()
    assert (full, True) == (reply.body, record.ok)
    assert "could not be read" in record.unknown["chunks"]


@pytest.mark.parametrize(
    "said",
    [
        [],
        ["Cache-Control: no-cache", "X-Accel-Buffering: yes"],
        ["Vary: Accept-Encoding", "x-accel-buffering: no"],
    ],
)
@pytest.mark.parametrize("accepts", ["gzip, br", "identity", "*"])
async def test_stream_is_neither_buffered_nor_sized_nor_compressed(
    said: list[str], accepts: str
) -> None:
    """Proxies behind are told once not to hold the stream back, whatever the engine or the client say."""
    head = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\n"
    head += "".join(f"{line}\r\n" for line in said) + "Transfer-Encoding: chunked\r\n\r\n"

    async def script(seen: Seen) -> AsyncIterator[bytes]:
        async for part in stream_of([DONE])(seen):
            yield head.encode() if part.startswith(b"HTTP/") else part

    engine = FakeEngine(script=script)
    async with Harness(engine) as fleet:
        reply = await fleet.post(None, Accept_Encoding=accepts)
        raw = await raw_head(fleet)
    assert reply.headers["x-accel-buffering"] == "no"
    assert raw.lower().count(b"x-accel-buffering") == 1
    assert set() == {"content-length", "content-encoding"} & set(reply.headers)
    assert engine.requests[0].headers["accept-encoding"] == "identity"


async def raw_head(fleet: Harness) -> bytes:
    """Return the head of an answer as it is on the wire."""
    body = json.dumps(chat()).encode()
    reader, writer = await asyncio.open_connection("127.0.0.1", fleet.port)
    writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: ")
    writer.write(b"%d\r\n\r\n%b" % (len(body), body))
    head = await reader.readuntil(b"\r\n\r\n")
    writer.close()
    await writer.wait_closed()
    return head


def test_streams_of_this_suite_hold_what_they_are_cut_in() -> None:
    """The cuts above fall into characters of three and four bytes, and into joined emoji."""
    text: Any = "".join(TEXTS)
    assert {2, 3, 4} <= {len(letter.encode()) for letter in text}
    assert "\u200d" in text
