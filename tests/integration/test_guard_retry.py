"""A request is sent a second time only while nothing reached the client, and only as often as the budget allows."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from fake_engine import (
    STREAM_HEAD,
    DiesError,
    FakeEngine,
    Script,
    Seen,
    die,
    hang,
    stream_of,
    whole,
)
from harness import SECRET, Harness, until

from trimtab.core.config import GuardConfig
from trimtab.core.types import ErrorClass
from trimtab.policies.loadstate import LoadState
from trimtab.runtime.guard import Guard

FIRST = b'data: {"choices":[{"index":0,"delta":{"content":"one"}}]}\n\n'


def guard(**settings: Any) -> Callable[[LoadState], Guard]:
    """Return what makes a guard that leaves nobody out, so that retries alone are seen."""
    config = GuardConfig(**({"eject": False} | settings))
    return lambda load: Guard(places=100, load=load, secret=SECRET, guard=config)


async def dies_after_head(seen: Seen) -> AsyncIterator[bytes]:
    """Say that a stream comes, and break off before its first byte."""
    yield STREAM_HEAD
    raise DiesError


def answers(status: int) -> Script:
    """Return a script that answers with a status."""

    async def script(seen: Seen) -> AsyncIterator[bytes]:
        yield whole(status, json.dumps({"error": {"message": "no", "code": status}}).encode())

    return script


async def served_by(
    script: Script, *, stream: bool, **settings: Any
) -> tuple[int, bytes, int, int]:
    """Return status, body, retries and the good replica's requests, of the request that met the broken replica."""
    bad, good = FakeEngine(script=script), FakeEngine()
    async with Harness(bad, good, guard=guard(), **settings) as fleet:
        # Round robin: of two requests one is sent to the broken replica first.
        for number in (1, 2):
            before = len(good.requests)
            reply = await fleet.post({"stream": stream})
            record = await fleet.record(of=number)
            if bad.requests:
                break
    assert len(bad.requests) == 1
    return reply.status, reply.body, record.retries, len(good.requests) - before


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("script", [die, dies_after_head, *map(answers, (502, 503, 504))])
async def test_what_broke_before_any_content_is_answered_by_another_replica(
    script: Script, stream: bool
) -> None:
    """A death before the answer or before its first byte, and "not now": the client sees one whole answer."""
    status, body, retries, served = await served_by(script, stream=stream)
    assert (status, retries, served) == (200, 1, 1)
    assert body.count(b"Hello") == 1
    assert b"error" not in body


@pytest.mark.parametrize("status", [400, 404, 422, 429, 500, 501])
async def test_an_answer_that_another_replica_would_give_too_is_passed_on(status: int) -> None:
    """The request is wrong, or broke the replica: nobody else is made to try it."""
    seen, body, retries, served = await served_by(answers(status), stream=False)
    assert (seen, retries, served) == (status, 0, 0)
    assert json.loads(body)["error"]["code"] == status


async def test_a_stream_that_broke_after_content_is_never_sent_again() -> None:
    """The client has a part of it: it gets exactly one error event, and no second beginning."""
    _, body, retries, served = await served_by(stream_of([FIRST], ends=False), stream=True)
    assert body.startswith(FIRST)
    assert body.count(b'"error"') == 1
    assert (body.count(b'"content"'), retries, served) == (1, 0, 0)


async def test_a_replica_that_was_silent_for_too_long_is_not_replaced() -> None:
    """The time is spent; a second replica would take as long, and the fleet twice the work."""
    status, _, retries, served = await served_by(hang, stream=True, first_byte_timeout_s=0.2)
    assert (status, retries, served) == (504, 0, 0)


async def test_a_request_is_sent_three_times_at_most() -> None:
    """Five replicas that all die: two retries, then one error."""
    engines = [FakeEngine(script=die) for _ in range(5)]
    async with Harness(*engines, guard=guard()) as fleet:
        reply = await fleet.post()
        record = await fleet.record()
    assert (reply.status, record.retries, record.error) == (502, 2, ErrorClass.UPSTREAM_CONNECT)
    assert sum(len(engine.requests) for engine in engines) == 3


async def test_an_empty_budget_ends_retries_while_requests_go_on() -> None:
    """Two free retries and no share: two requests are saved, what comes after them is told of its failure."""
    bad, good = FakeEngine(script=die), FakeEngine()
    async with Harness(bad, good, guard=guard(retry_free=2, retry_share=0.0)) as fleet:
        statuses = [(await fleet.post({"stream": False})).status for _ in range(12)]
        await fleet.record(of=12)
        retries = sum(record.retries for record in fleet.records)
    assert retries == 2
    assert len(bad.requests) == 2 + statuses.count(502)
    assert statuses.count(200) == len(good.requests)
    assert statuses.count(502) >= 3


async def test_a_shed_request_is_never_retried() -> None:
    """The gateway's own 503 goes to the client at once; no replica hears of it."""
    engines = FakeEngine(pause_s=0.2), FakeEngine(pause_s=0.2)

    def one_place(load: LoadState) -> Guard:
        return Guard(places=1, load=load, secret=SECRET)

    async with Harness(*engines, guard=one_place) as fleet:
        running = asyncio.create_task(fleet.post())
        await until(lambda: sum(len(engine.requests) for engine in engines) == 1)
        reply = await fleet.post()
        assert (await running).status == 200
    assert (reply.status, reply.headers["retry-after"]) == (503, "1")
    assert sum(len(engine.requests) for engine in engines) == 1
