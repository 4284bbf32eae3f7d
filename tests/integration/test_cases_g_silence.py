"""Idle connections that the engine closed, silence inside a stream, and streams without an end."""

import asyncio
import re
from collections.abc import AsyncIterator

import pytest
from fake_engine import DiesError, FakeEngine, Seen, chunk, sse, stream_of, whole
from harness import Harness, until

from trimtab.core.types import ErrorClass
from trimtab.policies.idle_failures import FailureCause, Share, explain_failures

SAID = sse(chunk({"content": "one"}))
DONE = b"data: [DONE]\n\n"


class Forgetful(FakeEngine):
    """Answers the first request of each connection; at the second it is gone without a byte."""

    async def completion(self, seen: Seen) -> AsyncIterator[bytes]:
        on_connection = [one for one in self.requests if one.connection == seen.connection]
        if len(on_connection) > 1:
            raise DiesError
        async for piece in super().completion(seen):
            yield piece


@pytest.mark.parametrize("stream", [False, True])
async def test_stale_connection_costs_the_client_nothing(stream: bool) -> None:
    """A kept connection that the engine drops at the next request: it is sent again, and nobody sees an error."""
    engine = Forgetful()
    async with Harness(engine) as fleet:
        replies = [await fleet.post({"stream": stream}) for _ in range(6)]
        await fleet.record(of=6)
        load = fleet.load.view(0.0).replicas[0]
    assert {reply.status for reply in replies} == {200}
    assert {record.error for record in fleet.records} == {ErrorClass.NONE}
    assert load.in_flight == 0


@pytest.mark.parametrize("idle_s", [0.05, 0.2, 0.5])
async def test_connection_that_the_engine_closed_while_idle_is_not_used(idle_s: float) -> None:
    """Engines close idle connections; requests after such a pause all succeed."""
    engine = FakeEngine()
    async with Harness(engine) as fleet:
        for _ in range(3):
            assert (await fleet.post({"stream": False})).status == 200
            await asyncio.sleep(idle_s)
            port = engine.port
            await engine.stop()
            await engine.start(port)
        await fleet.record(of=3)
    assert {record.status for record in fleet.records} == {200}


@pytest.mark.parametrize("events", [1, 3])
async def test_request_is_not_sent_again_once_its_answer_reached_the_client(events: int) -> None:
    """What breaks behind the first event is told to the client, not tried a second time elsewhere."""
    script = stream_of([SAID] * events, gap_s=0.02, ends=False)
    engines = (FakeEngine(script=script), FakeEngine(script=script))
    async with Harness(*engines) as fleet:
        reply = await fleet.post()
        await fleet.record()
    assert sum(len(engine.requests) for engine in engines) == 1
    assert reply.body.startswith(SAID * events)
    assert reply.body.count(b'"error"') == 1


@pytest.mark.parametrize(
    "parts",
    [
        [SAID],
        [SAID, sse(chunk({"content": ""}))],
        [SAID, b": ping\n\n"],
        [SAID, SAID[:-5]],
    ],
)
@pytest.mark.parametrize("ends", [True, False])
async def test_stream_without_its_end_is_a_failure_for_client_and_record(
    parts: list[bytes], ends: bool
) -> None:
    """A 200 that just stops, cleanly or not: exactly one error event, last; the record fails, so gates see it."""
    script = stream_of(parts, gap_s=0.01, ends=ends)
    async with Harness(FakeEngine(script=script)) as fleet:
        reply = await fleet.post()
        record = await fleet.record()
    events = reply.body.removesuffix(b"\n\n").split(b"\n\n")
    assert [number for number, event in enumerate(events) if b'"error"' in event] == [
        len(events) - 1
    ]
    assert (record.status, record.error, record.ok) == (200, ErrorClass.STREAM_TRUNCATED, False)


@pytest.mark.parametrize("gap_s", [0.3, 0.6])
async def test_engine_is_told_apart_from_its_silence(gap_s: float) -> None:
    """Silence under the limit passes, however often; nothing is lost or put in its place."""
    parts = [SAID[:20], SAID[20:], DONE]
    engine = FakeEngine(script=stream_of(parts, gap_s=gap_s))
    async with Harness(engine, idle_timeout_s=2.0) as fleet:
        reply = await fleet.post()
        await until(lambda: engine.open_connections == 0)
    assert reply.body == SAID + DONE


COMMENT = b": keep-alive\n\n"


@pytest.mark.parametrize("cut", [1, 8, len(SAID) - 1])
@pytest.mark.parametrize("end", [b"\n", b"\r\n"])
async def test_no_comment_falls_into_an_event(cut: int, end: bytes) -> None:
    """An engine that is silent in the middle of an event gets no comment until its end, however long it takes."""
    event = SAID.replace(b"\n", end)
    parts = [event, event[:cut], event[cut:], DONE]
    script = stream_of(parts, gap_s=0.35)
    async with Harness(FakeEngine(script=script), heartbeat_s=0.1) as fleet:
        reply = await fleet.post()
        record = await fleet.record()
    assert reply.body.replace(COMMENT, b"") == event * 2 + DONE
    # nothing but whole events and comments, one after the other, and nothing behind the end mark
    whole = b"(?:%b|%b)*%b" % (re.escape(event), re.escape(COMMENT), re.escape(DONE))
    assert re.fullmatch(whole, reply.body)
    assert COMMENT in reply.body
    assert (record.ok, record.chunks) == (True, 2)


@pytest.mark.parametrize("heartbeat_s", [0.05, 0.1, 0.2])
async def test_silence_between_events_is_bridged_with_comments(heartbeat_s: float) -> None:
    """At a boundary each silence of the configured length gets one comment, and none is counted as an event."""
    script = stream_of([SAID, SAID, DONE], gap_s=0.5)
    async with Harness(FakeEngine(script=script), heartbeat_s=heartbeat_s) as fleet:
        reply = await fleet.post()
        record = await fleet.record()
    assert reply.body.replace(COMMENT, b"") == SAID + SAID + DONE
    between = reply.body.partition(SAID)[2].partition(SAID)[0]
    assert 1 <= between.count(COMMENT) <= 0.6 / heartbeat_s
    assert (record.ok, record.chunks) == (True, 2)


async def test_no_comment_is_sent_unless_it_is_asked_for() -> None:
    """By default silence stays silence."""
    script = stream_of([SAID, DONE], gap_s=0.6)
    async with Harness(FakeEngine(script=script)) as fleet:
        reply = await fleet.post()
    assert reply.body == SAID + DONE


async def test_comments_do_not_hide_that_a_replica_is_silent_for_too_long() -> None:
    """The limit on silence counts what the replica says, not what the gateway says in its place."""
    script = stream_of([SAID, DONE], gap_s=2.0)
    async with Harness(FakeEngine(script=script), heartbeat_s=0.1, idle_timeout_s=0.5) as fleet:
        reply = await fleet.post()
        record = await fleet.record()
    assert reply.body.startswith(SAID + COMMENT)
    assert reply.body.count(b"upstream_timeout") == 1
    assert record.error is ErrorClass.UPSTREAM_TIMEOUT


class Impatient(FakeEngine):
    """Stands for a proxy before an engine that keeps connections longer than the engine: after a pause it says 502."""

    async def completion(self, seen: Seen) -> AsyncIterator[bytes]:
        if "x-paused" in seen.headers:
            yield whole(502, b"bad gateway")
            return
        async for piece in super().completion(seen):
            yield piece


@pytest.mark.parametrize(("pause_s", "stream"), [(0.3, False), (0.3, True), (0.6, False)])
async def test_502_after_pauses_alone_is_told_to_be_the_keep_alive(
    pause_s: float, stream: bool
) -> None:
    """Agents of whom some pause for longer than idle connections are kept: the pause is the cause, no revision is."""
    async with Harness(Impatient()) as fleet:

        async def agent(number: int) -> None:
            for turn in range(12):
                pauses = number % 2 == 1 and turn == 5
                await asyncio.sleep(pause_s if pauses else 0.0)
                said = {"X_Paused": "1"} if pauses else {}
                await fleet.post({"stream": stream, "user": f"agent {number}"}, **said)

        for number in range(16):
            # One after the other, so that nobody's requests wait for those of others.
            await agent(number)
        await fleet.record(of=16 * 12)
    said = explain_failures(fleet.records)
    assert said.cause is FailureCause.KEEP_ALIVE_MISMATCH
    assert said.all == Share(failed=8, n=192)
    assert said.others is not None
    assert said.others.failed == 0
    assert said.pause_s_min is not None
    assert said.pause_s_min >= pause_s - 0.01


@pytest.mark.parametrize("text", ["one", ""])
async def test_stream_whose_events_pass_unread_is_not_silent(text: str) -> None:
    """Events that go on as they came, with or without text, are signs of life: no cut, and no comment in between."""
    again = sse(chunk({"content": text}))
    script = stream_of([SAID, *[again] * 30, DONE], gap_s=0.05)
    async with Harness(FakeEngine(script=script), idle_timeout_s=0.7, heartbeat_s=0.6) as fleet:
        reply = await fleet.post()
        record = await fleet.record()
    assert record.error is ErrorClass.NONE
    assert reply.body == SAID + again * 30 + DONE
