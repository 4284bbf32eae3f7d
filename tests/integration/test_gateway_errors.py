"""What clients get, and what is recorded, when a request cannot be served as it should be."""

import asyncio
import json
from typing import Any

import pytest
from fake_engine import (
    DiesError,
    FakeEngine,
    Seen,
    answer_of,
    chunk,
    die,
    hang,
    sse,
    stream_of,
    whole,
)
from harness import CHAT, SECRET, Harness, Reply, as_body, until

from trimtab.core.config import GuardConfig
from trimtab.core.lever import Comparison
from trimtab.core.traffic import CandidatePlan, TrafficPlan
from trimtab.core.types import Arm, ErrorClass, ReplicaState
from trimtab.policies.loadstate import LoadState
from trimtab.runtime.gateway import GatewayError
from trimtab.runtime.guard import Guard

OVERFLOW = json.dumps(
    {
        "error": {
            "code": 400,
            "message": "the request exceeds the available context size, try increasing it",
            "type": "exceed_context_size_error",
            "n_prompt_tokens": 3000,
            "n_ctx": 2048,
        }
    }
).encode()
HALF = [sse(chunk({"content": "one"})), sse(chunk({"content": "two"})) + b'data: {"choi']


def patient(load: LoadState) -> Guard:
    """Make a guard that leaves no replica out."""
    return Guard(places=100, load=load, secret=SECRET, guard=GuardConfig(eject=False))


def said(reply: Reply) -> tuple[int, str]:
    error = reply.json["error"]
    assert {"message", "type", "code"} == set(error)
    return reply.status, error["code"]


def events_of(body: bytes) -> list[Any]:
    """Return the values of a stream's events; fails on half an event."""
    assert body.endswith(b"\n\n")
    return [json.loads(event.removeprefix(b"data: ")) for event in body[:-2].split(b"\n\n")]


async def test_context_overflow_reaches_the_client_as_the_engine_said_it() -> None:
    """The engine's 400 passes byte for byte, with its content type, and is recorded as what it is."""
    async with Harness(FakeEngine(script=answer_of(whole(400, OVERFLOW)))) as fleet:
        reply = await fleet.post()
        record = await fleet.record()
    assert (
        reply.status,
        reply.body,
        reply.headers["content-type"],
    ) == (400, OVERFLOW, "application/json")
    assert (record.status, record.error, record.ok) == (400, ErrorClass.CONTEXT_OVERFLOW, False)


@pytest.mark.parametrize(
    ("body", "path"),
    [
        (b"{", CHAT),
        (b"[]", CHAT),
        (b'{"messages":"x"}', CHAT),
        (b"{}", "/v1/completions"),
        (b'{"messages":[],"stream":true,"stream_options":7}', CHAT),
        (b"\xff\xfe", CHAT),
    ],
)
async def test_unreadable_body_is_refused_without_asking_an_engine(body: bytes, path: str) -> None:
    """A body that cannot be read gets 400 in OpenAI's form and never leaves the gateway."""
    engine = FakeEngine()
    async with Harness(engine) as fleet:
        reply = await fleet.post(body, path)
        record = await fleet.record()
    assert (said(reply), engine.requests) == ((400, "bad_request"), [])
    assert (record.status, record.error, record.replica) == (400, ErrorClass.BAD_REQUEST, None)


async def test_body_over_the_limit_is_refused() -> None:
    """A body one byte over the limit gets 413, one at the limit passes."""
    engine = FakeEngine()
    async with Harness(engine, body_bytes_max=2048) as fleet:
        room = 2048 - len(as_body({"pad": ""}))
        fits = await fleet.post({"pad": "x" * room})
        over = await fleet.post({"pad": "x" * (room + 1)})
        await fleet.record(of=2)
    assert (fits.status, said(over)) == (200, (413, "request_too_large"))
    assert (
        len(engine.requests),
        fleet.records[1].status,
        fleet.records[1].error,
    ) == (1, 413, ErrorClass.BAD_REQUEST)


async def test_stream_over_the_most_at_once_is_told_to_come_back() -> None:
    """The request over the limit gets 503 with Retry-After at once; running ones are not touched."""
    engine = FakeEngine(pause_s=0.1)
    async with Harness(engine, streams_max=2) as fleet:
        running = [asyncio.create_task(fleet.post()) for _ in range(2)]
        await until(lambda: len(engine.requests) == 2)
        refused = await fleet.post()
        served = await asyncio.gather(*running)
        again = await fleet.post()
    assert (said(refused), refused.headers["retry-after"]) == ((503, "overloaded"), "1")
    assert [reply.status for reply in (*served, again)] == [200, 200, 200]
    assert [r.error for r in fleet.records if not r.ok] == [ErrorClass.OVERLOADED]


@pytest.mark.parametrize("state", [s for s in ReplicaState if s is not ReplicaState.READY])
async def test_without_a_ready_replica_the_answer_is_503(state: ReplicaState) -> None:
    """No replica that is not ready gets a request; the client is told to come back."""
    engine = FakeEngine()
    async with Harness(engine) as fleet:
        fleet.set_replica("r0", engine.url, state)
        reply = await fleet.post()
        record = await fleet.record()
    assert (
        said(reply),
        reply.headers["retry-after"],
        engine.requests,
    ) == ((503, "no_replica"), "1", [])
    assert (
        record.error,
        fleet.served[0].decision.reason.value,  # type: ignore[union-attr]
    ) == (ErrorClass.NO_REPLICA, "none_ready")


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("how", ["refuses", "drops"])
async def test_request_moves_on_when_a_replica_gives_no_answer(how: str, stream: bool) -> None:
    """A replica that refuses, or dies before any byte, is passed over once; the client sees one good answer."""
    bad, good = FakeEngine(script=die), FakeEngine()
    async with Harness(bad, good) as fleet:
        if how == "refuses":
            await bad.stop()
        replies = [await fleet.post({"stream": stream}) for _ in range(2)]
        await fleet.record(of=2)
        load = fleet.load.view(0.0)
    assert [(reply.status, reply.headers["x-trimtab-replica"]) for reply in replies] == [
        (200, "r1"),
        (200, "r1"),
    ]
    assert [(r.replica, r.ok) for r in fleet.records] == [("r1", True), ("r1", True)]
    assert [replica.in_flight for replica in load.replicas] == [0, 0]


async def test_request_that_moved_on_leaves_the_comparison() -> None:
    """A request that was served elsewhere than its arm wanted counts for no arm's block."""
    bad, good = FakeEngine(script=die), FakeEngine()
    async with Harness(bad, good, guard=patient) as fleet:
        fleet.router.plan = TrafficPlan(
            policy="round_robin",
            candidate=CandidatePlan(
                lever="speculation",
                share=0.95,
                policy=None,
                replicas=("r0",),
                comparison=Comparison.SIDE_BY_SIDE,
                started_at_s=0.0,
                block_s=1e9,
                edge_s=0.0,
            ),
        )
        for number in range(8):
            await fleet.post(None, X_Trimtab_Session=f"s{number}")
        await fleet.record(of=8)
    assert sum(record.ok for record in fleet.records) == 8
    assert {(Arm.BASELINE, None)} == {
        (record.arm, record.block) for record in fleet.records if record.block is None
    }
    # whoever was meant for the candidate reached the dead replica first
    assert len(bad.requests) == sum(record.block is None for record in fleet.records) > 0


async def test_dead_replicas_give_one_clean_error() -> None:
    """A request is moved twice at most; then the client gets 502 and nothing stays counted."""
    engines = (FakeEngine(script=die), FakeEngine(script=die), FakeEngine(script=die))
    async with Harness(*engines) as fleet:
        reply = await fleet.post()
        record = await fleet.record()
        load = fleet.load.view(0.0)
    assert (
        said(reply),
        sum(len(engine.requests) for engine in engines),
    ) == ((502, "upstream_connect"), 3)
    assert (record.status, record.error) == (502, ErrorClass.UPSTREAM_CONNECT)
    assert [replica.in_flight for replica in load.replicas] == [0, 0, 0]


async def test_only_replica_gets_a_second_chance_when_it_drops_a_request() -> None:
    """A dropped connection may have been a stale one: the only replica is asked once more."""
    engine = FakeEngine()

    def first_dies(seen: Seen) -> object:
        return die(seen) if len(engine.requests) == 1 else engine.completion(seen)

    async with Harness(engine) as fleet:
        engine.script = first_dies  # type: ignore[assignment]
        reply = await fleet.post()
        record = await fleet.record()
    assert (reply.status, len(engine.requests), record.ok) == (200, 2, True)


async def test_only_replica_that_refuses_gives_502() -> None:
    """Nobody listens: one attempt, one error."""
    engine = FakeEngine()
    async with Harness(engine) as fleet:
        await engine.stop()
        reply = await fleet.post()
        record = await fleet.record()
    assert (said(reply), record.error) == ((502, "upstream_connect"), ErrorClass.UPSTREAM_CONNECT)


async def test_replica_that_dies_in_mid_stream_ends_in_one_error_event() -> None:
    """The client gets every whole event, then one error event, then the end: never half an event, no retry."""
    script = stream_of(HALF, gap_s=0.02, ends=False)
    engines = (FakeEngine(script=script), FakeEngine(script=script))
    async with Harness(*engines) as fleet:
        reply = await fleet.post()
        record = await fleet.record()
    *events, last = events_of(reply.body)
    assert [event["choices"][0]["delta"]["content"] for event in events] == ["one", "two"]
    assert sum(len(engine.requests) for engine in engines) == 1
    assert last["error"]["code"] == "upstream_broken"
    assert (
        record.status,
        record.error,
        record.tokens.output,
        record.tokens.output_estimated,
    ) == (200, ErrorClass.STREAM_TRUNCATED, 2, True)


@pytest.mark.parametrize("parts", [HALF[:1], HALF, []])
async def test_stream_without_its_end_mark_is_a_failure(parts: list[bytes]) -> None:
    """A stream that ends cleanly but without [DONE] is told to the client and recorded as truncated."""
    async with Harness(FakeEngine(script=stream_of(parts))) as fleet:
        reply = await fleet.post()
        record = await fleet.record()
    *_, last = events_of(reply.body)
    assert (
        last["error"]["code"],
        record.error,
        record.ok,
    ) == ("stream_truncated", ErrorClass.STREAM_TRUNCATED, False)


async def test_end_mark_without_its_empty_line_still_ends_the_stream() -> None:
    """A server that stops right after [DONE] has said all."""
    parts = [sse(chunk({"content": "one"})), b"data: [DONE]"]
    async with Harness(FakeEngine(script=stream_of(parts))) as fleet:
        reply = await fleet.post()
        record = await fleet.record()
    assert (b"".join(parts), True) == (reply.body, record.ok)


async def test_error_event_of_the_engine_passes_and_is_the_only_one() -> None:
    """An engine that says itself what went wrong is not spoken over."""
    parts = [HALF[0], b'data: {"error":{"code":500,"message":"boom","type":"server_error"}}\n\n']
    async with Harness(FakeEngine(script=stream_of(parts))) as fleet:
        reply = await fleet.post()
        record = await fleet.record()
    assert (b"".join(parts), ErrorClass.UPSTREAM_STATUS) == (reply.body, record.error)


async def test_event_without_an_end_is_cut_off() -> None:
    """A replica that sends an endless event does not fill the gateway's memory."""
    endless = [b"data: " + b"x" * 65536] * 40
    async with Harness(FakeEngine(script=stream_of(endless))) as fleet:
        reply = await fleet.post()
        record = await fleet.record()
    [last] = events_of(reply.body)
    assert (last["error"]["code"], record.error) == ("upstream_broken", ErrorClass.STREAM_TRUNCATED)


async def test_silent_replica_times_out_before_its_first_byte() -> None:
    """No head within the limit is 504; the request is not sent again, and the engine is let go."""
    engines = (FakeEngine(script=hang), FakeEngine(script=hang))
    async with Harness(*engines, first_byte_timeout_s=0.15) as fleet:
        reply = await fleet.post()
        record = await fleet.record()
        await until(lambda: not any(engine.open_connections for engine in engines))
    assert sum(len(engine.requests) for engine in engines) == 1
    assert (said(reply), record.error) == ((504, "upstream_timeout"), ErrorClass.UPSTREAM_TIMEOUT)


async def test_stream_that_falls_silent_ends_in_one_error_event() -> None:
    """Silence inside a stream longer than the limit ends it; shorter silence does not."""

    async def then_silent(seen: Seen) -> Any:
        async for piece in stream_of([HALF[0], HALF[0], HALF[0]], gap_s=0.1)(seen):
            if piece == b"0\r\n\r\n":
                await asyncio.sleep(3600)
            yield piece

    engine = FakeEngine(script=then_silent)
    async with Harness(engine, idle_timeout_s=0.3) as fleet:
        reply = await fleet.post()
        record = await fleet.record()
        await until(lambda: engine.open_connections == 0)
    events = events_of(reply.body)
    assert (
        len(events),
        events[-1]["error"]["code"],
        record.error,
    ) == (4, "upstream_timeout", ErrorClass.UPSTREAM_TIMEOUT)


@pytest.mark.parametrize(
    "head", [b"nonsense\r\n\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n{}"]
)
async def test_broken_answer_is_502(head: bytes) -> None:
    """What is no HTTP, or a body shorter than announced, is one clean error for the client."""

    async def script(seen: Seen) -> Any:
        yield head
        raise DiesError

    async with Harness(FakeEngine(script=script)) as fleet:
        reply = await fleet.post({"stream": False})
        record = await fleet.record()
    assert (said(reply), record.ok) == ((502, "upstream_broken"), False)


async def test_engine_error_status_in_a_stream_request_passes() -> None:
    """A 503 of the engine passes with its body and its Retry-After, and counts as overload."""
    body = b'{"error":{"code":503,"message":"Loading model","type":"unavailable_error"}}'
    answer = answer_of(whole(503, body, ["Retry-After: 7"]))
    async with Harness(FakeEngine(script=answer)) as fleet:
        reply = await fleet.post()
        record = await fleet.record()
    assert (503, body, "7", ErrorClass.OVERLOADED) == (
        reply.status,
        reply.body,
        reply.headers["retry-after"],
        record.error,
    )


@pytest.mark.parametrize(("path", "status"), [("/nothing", 404), (CHAT, 405)])
async def test_wrong_address_is_an_error_in_openai_form(path: str, status: int) -> None:
    """Unknown paths and methods are answered like every other error."""
    async with Harness() as fleet:
        reply = await fleet.get(path)
    assert (status, "not_found") == said(reply)


async def test_port_in_use_is_a_clear_error() -> None:
    """A second gateway on the port says which port, and leaves nothing open."""
    async with Harness() as fleet:
        second = Harness(port=fleet.port)
        with pytest.raises(GatewayError, match=rf"127\.0\.0\.1:{fleet.port}: .*in use"):
            await second.gateway.start()
