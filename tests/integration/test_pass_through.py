"""Paths that the gateway does not read: they pass as they are, to the least loaded replica, guarded and measured."""

import asyncio
import gzip
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from fake_engine import FakeEngine, Script, Seen, answer_of, die, stream_of, whole
from guard_kit import ALICE, bearer, two_tenants
from harness import SECRET, Harness, until

from trimtab.core.tenants import salt_of
from trimtab.core.types import ErrorClass
from trimtab.policies.loadstate import LoadState
from trimtab.runtime.guard import Guard
from trimtab.runtime.isolation import SALT_PURPOSE

EMBEDDED = b'{"data":[{"embedding":[0.25,1e-3]}],"usage":{"prompt_tokens":7,"total_tokens":7}}'
SALT = salt_of("alice", SECRET.derive(SALT_PURPOSE))
JSON = {"content-type": "application/json"}


def keyed(load: LoadState) -> Guard:
    """Make a guard with two tenants' keys."""
    return Guard(places=100, load=load, secret=SECRET, ring=two_tenants())


async def test_an_embedding_passes_byte_for_byte_and_its_usage_is_recorded() -> None:
    """Body, query and answer are as they were; the record has path, replica, status and prompt tokens."""
    engine = FakeEngine(script=answer_of(whole(200, EMBEDDED)))
    body = b'{ "input": ["a",  "b"],\n"model":"x" }'
    async with Harness(engine) as fleet:
        reply = await fleet.post(body, path="/v1/embeddings?api-version=1", **JSON)
        record = await fleet.record()
        load = fleet.load.view(0.0)
    assert (reply.status, reply.body, reply.headers["x-trimtab-replica"]) == (200, EMBEDDED, "r0")
    assert (engine.requests[0].path, engine.requests[0].body) == (
        "/v1/embeddings?api-version=1",
        body,
    )
    assert (record.endpoint, record.ok, record.replica) == ("/v1/embeddings", True, "r0")
    assert (record.tokens.prompt, record.policy, record.lever) == (7, "least_loaded", None)
    assert [replica.in_flight for replica in load.replicas] == [0]


@pytest.mark.parametrize("method", ["GET", "DELETE", "PUT", "POST"])
async def test_any_method_and_any_answer_pass(method: str) -> None:
    """A file that is fetched, deleted or put: method, status, type and bytes are the server's."""

    async def script(seen: Seen) -> AsyncIterator[bytes]:
        yield b"HTTP/1.1 201 X\r\nContent-Type: audio/wav\r\nContent-Length: 4\r\n\r\n\x00\xff\r\n"

    engine = FakeEngine(script=script)
    async with (
        Harness(engine) as fleet,
        fleet.client.request(method, fleet.url + "/v1/files/f-1") as response,
    ):
        data = await response.read()
    assert (response.status, response.headers["Content-Type"], data) == (
        201,
        "audio/wav",
        b"\x00\xff\r\n",
    )
    assert engine.requests[0].method == method


@pytest.mark.parametrize("cut", [False, True])
async def test_a_stream_of_events_passes_and_a_cut_one_ends_with_one_error(cut: bool) -> None:
    """Events of the responses API are not known here; a connection that breaks is told once."""
    parts = [b'event: response.created\ndata: {"a":1}\n\n', b"event: x\ndata: {}\n\n"]
    engine = FakeEngine(script=stream_of(parts, ends=not cut))
    async with Harness(engine) as fleet:
        reply = await fleet.post(b'{"stream":true}', path="/v1/responses", **JSON)
        record = await fleet.record()
    assert reply.body.startswith(b"".join(parts))
    assert reply.headers["x-accel-buffering"] == "no"
    assert reply.body.count(b'"error"') == int(cut)
    assert record.error is (ErrorClass.STREAM_TRUNCATED if cut else ErrorClass.NONE)


async def test_they_go_to_the_least_loaded_replica() -> None:
    """While one is busy with a chat the next three find the other."""
    one, two = FakeEngine(pause_s=0.3), FakeEngine(pause_s=0.3)
    async with Harness(one, two) as fleet:
        running = asyncio.create_task(fleet.post())
        await until(lambda: len(one.requests) + len(two.requests) == 1)
        chatting, other = (one, two) if one.requests else (two, one)
        other.script = answer_of(whole(200, EMBEDDED))
        for _ in range(3):
            await fleet.post(b"{}", path="/v1/embeddings", **JSON)
        assert (len(chatting.requests), len(other.requests)) == (1, 3)
        await running


@pytest.mark.parametrize(
    ("path", "script", "served"),
    [
        ("/v1/embeddings", die, 200),
        ("/v1/embeddings", answer_of(whole(503, b"{}")), 200),
        ("/v1/batches", die, 502),
        ("/v1/batches", answer_of(whole(503, b"{}")), 503),
    ],
)
async def test_only_what_may_be_done_twice_is_sent_again(
    path: str, script: Script, served: int
) -> None:
    """An embedding is computed elsewhere; a batch that a replica may have taken is not created twice."""
    engines = FakeEngine(script=script), FakeEngine(script=answer_of(whole(200, EMBEDDED)))
    async with Harness(*engines) as fleet:
        # Equals are chosen among by chance: sooner or later the broken one is asked first.
        for _ in range(50):
            reply = await fleet.post(b"{}", path=path, **JSON)
            if engines[0].requests:
                break
    assert (reply.status, len(engines[0].requests)) == (served, 1)


async def test_what_never_reached_a_replica_is_sent_to_another() -> None:
    """Nobody listens there: nothing can have been done, so even a batch moves on."""
    gone, good = FakeEngine(), FakeEngine(script=answer_of(whole(200, EMBEDDED)))
    async with Harness(gone, good) as fleet:
        await gone.stop()
        statuses = {(await fleet.post(b"{}", path="/v1/batches", **JSON)).status for _ in range(4)}
        await fleet.record(of=4)
    assert statuses == {200}
    assert {record.replica for record in fleet.records} == {"r1"}


async def test_a_client_that_leaves_ends_the_work() -> None:
    """The connection to the replica is closed, the record says 499."""

    async def slow(seen: Seen) -> AsyncIterator[bytes]:
        await asyncio.sleep(30)
        yield b""

    engine = FakeEngine(script=slow)
    async with Harness(engine) as fleet:
        asking = asyncio.create_task(fleet.post(b"{}", path="/v1/embeddings", **JSON))
        await until(lambda: len(engine.requests) == 1)
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        await until(lambda: len(engine.aborted_at_s) == 1)
        record = await fleet.record()
    assert (record.status, record.error) == (499, ErrorClass.CLIENT_ABORT)


async def test_without_a_key_nothing_passes() -> None:
    """A path that is not known here is closed like all others."""
    engine = FakeEngine()
    async with Harness(engine, guard=keyed) as fleet:
        reply = await fleet.post(b"{}", path="/v1/anything/else", **JSON)
    assert (reply.status, len(engine.requests)) == (401, 0)


Body = Callable[[], tuple[bytes, dict[str, str]]]


def plain(**fields: Any) -> Body:
    """Return a JSON body."""
    return lambda: (json.dumps(fields).encode(), JSON)


def hidden() -> tuple[bytes, dict[str, str]]:
    """Return a body whose salt is spelled in another way."""
    return b'{"input":"x","cache_\\u0073alt":"stolen"}', JSON


def packed() -> tuple[bytes, dict[str, str]]:
    """Return a compressed body with a salt."""
    return gzip.compress(b'{"input":"x","cache_salt":"stolen"}'), JSON | {
        "content-encoding": "gzip"
    }


@pytest.mark.parametrize(
    ("path", "body", "salt", "ignored"),
    [
        ("/v1/responses", plain(input="x"), SALT, False),
        ("/v1/responses", plain(input="x", cache_salt="stolen"), SALT, True),
        ("/v1/embeddings", plain(input="x"), None, False),
        ("/v1/embeddings", plain(input="x", cache_salt="stolen"), SALT, True),
        ("/v1/embeddings", hidden, SALT, True),
        ("/v1/embeddings", packed, SALT, True),
    ],
)
async def test_a_tenants_salt_goes_over_one_in_any_body(
    path: str, body: Body, salt: str | None, ignored: bool
) -> None:
    """However it is written or packed; where no salt is known to belong, none is added."""
    engine = FakeEngine(script=answer_of(whole(200, EMBEDDED)))
    data, headers = body()
    async with Harness(engine, guard=keyed) as fleet:
        reply = await fleet.post(data, path=path, **headers, **bearer(ALICE))
        record = await fleet.record()
    seen = engine.requests[0]
    assert (reply.status, seen.json.get("cache_salt")) == (200, salt)
    assert "content-encoding" not in seen.headers
    assert (record.salt_ignored, record.tenant) == (ignored, "alice")


async def test_without_tenants_a_compressed_body_passes_as_it_came() -> None:
    """Nothing is looked at, so nothing is unpacked."""
    engine = FakeEngine(script=answer_of(whole(200, EMBEDDED)))
    data, headers = packed()
    async with Harness(engine) as fleet:
        await fleet.post(data, path="/v1/embeddings", **headers)
    assert (engine.requests[0].body, engine.requests[0].headers["content-encoding"]) == (
        data,
        "gzip",
    )
