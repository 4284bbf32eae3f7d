"""The usage chunk: always asked for, shown to those who asked, read in every shape, estimated where it never came."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from fake_engine import FakeEngine, Seen, chunk, sse, stream_of
from harness import CHAT, Harness, as_body, chat

from trimtab.core.types import ErrorClass

DONE = b"data: [DONE]\n\n"
SAID = sse(chunk({"content": "word"}))
STOP = sse(chunk({}, finish="stop"))
USAGE = {"prompt_tokens": 31, "completion_tokens": 17, "total_tokens": 48}


@pytest.mark.parametrize(
    ("asked", "shows"),
    [
        ({}, False),
        ({"stream_options": None}, False),
        ({"stream_options": {}}, False),
        ({"stream_options": {"include_usage": False}}, False),
        ({"stream_options": {"include_usage": True}}, True),
        ({"stream_options": {"include_usage": True, "chunk_include_usage": True}}, True),
    ],
)
async def test_engine_is_always_asked_and_the_client_sees_what_it_asked_for(
    asked: dict[str, Any], shows: bool
) -> None:
    """The flag goes upstream in any case; a usage chunk goes to the client that set it itself, and to no other."""
    engine = FakeEngine()
    async with Harness(engine) as fleet:
        reply = await fleet.post(asked)
        record = await fleet.record()
    sent = engine.requests[0].json["stream_options"]
    assert sent == (asked.get("stream_options") or {}) | {"include_usage": True}
    assert (b'"usage"' in reply.body) == shows
    assert (record.tokens.output, record.tokens.output_estimated) == (4, False)


@pytest.mark.parametrize(
    "choices",
    [
        [],
        [{"delta": {}}],
        [{"index": 0, "delta": {}, "finish_reason": None}],
        [{"index": 0, "delta": {"content": ""}, "finish_reason": "stop"}],
    ],
)
@pytest.mark.parametrize("place", ["last", "before_stop"])
async def test_usage_is_read_in_every_shape(choices: list[Any], place: str) -> None:
    """With choices, empty or not: the tokens are the engine's, and nothing is counted anew."""
    told = sse(chunk({}, choices=choices) | {"usage": USAGE})
    parts = [SAID, SAID, STOP, told, DONE] if place == "last" else [SAID, SAID, told, STOP, DONE]
    async with Harness(FakeEngine(script=stream_of(parts))) as fleet:
        reply = await fleet.post()
        record = await fleet.record()
    tokens = record.tokens
    assert (tokens.prompt, tokens.output, tokens.output_estimated) == (31, 17, False)
    assert (record.chunks, record.ok) == (2, True)
    # what says more than usage passes as it is
    says_more = any(choice.get("finish_reason") for choice in choices)
    expected = b"".join(part for part in parts if part is not told or says_more)
    assert reply.body == expected


@pytest.mark.parametrize(
    "early", [{"usage": None}, {"usage": None, "timings": None}, {"usage": None, "x": "usage"}]
)
async def test_usage_that_is_null_on_early_chunks_is_ignored(early: dict[str, Any]) -> None:
    """Null says nothing: those chunks pass, and the last one's numbers count."""
    words = [sse(chunk({"content": f"w{number}"}) | early) for number in range(40)]
    told = sse(chunk({}, choices=[]) | {"usage": USAGE})
    parts = [*words, STOP, told, DONE]
    async with Harness(FakeEngine(script=stream_of(parts))) as fleet:
        reply = await fleet.post()
        record = await fleet.record()
    assert reply.body == b"".join([*words, STOP, DONE])
    assert (record.tokens.output, record.tokens.prompt, record.chunks) == (17, 31, 40)


@pytest.mark.parametrize("usage_so_far", [False, True])
@pytest.mark.parametrize("text", [212, 3, 1])
async def test_abort_before_the_last_chunk_records_an_estimate(
    text: int, usage_so_far: bool
) -> None:
    """Whoever takes the text and leaves before the usage is counted by what passed, marked as an estimate."""
    words = [sse(chunk({"content": "w "}) | ({"usage": None} if usage_so_far else {}))] * text

    async def script(seen: Seen) -> AsyncIterator[bytes]:
        async for part in stream_of(words)(seen):
            if part == b"0\r\n\r\n":
                await asyncio.sleep(3600)
            yield part

    body = as_body(chat())
    async with Harness(FakeEngine(script=script)) as fleet:
        reader, writer = await asyncio.open_connection("127.0.0.1", fleet.port)
        writer.write(f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n".encode())
        writer.write(b"\r\n" + body)
        for _ in range(text):
            await reader.readuntil(b"\n\n")
        writer.close()
        await writer.wait_closed()
        record = await fleet.record()
    tokens = record.tokens
    assert (record.status, record.error) == (499, ErrorClass.CLIENT_ABORT)
    assert (tokens.output, tokens.output_estimated) == (text, True)
    assert (record.tpot_ms, record.unknown["tpot_ms"]) == (
        None,
        "the request ended: client_abort",
    )
