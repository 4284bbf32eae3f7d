"""What passes through the gateway in streams, byte for byte, and what is recorded of it."""

import asyncio
import json
import time

import msgspec
import pytest
from fake_engine import FakeEngine, Seen, chunk, sse, stream_of
from harness import CHAT, SECRET, Harness, as_body, chat, until

from trimtab.core.types import ErrorClass

WORDS = ("Grüße, 世界。", "👩‍👩‍👧‍👦🛶", "∑\n\n")
WITH_USAGE = {"stream_options": {"include_usage": True}}


def whole_stream(engine: FakeEngine) -> tuple[bytes, bytes]:
    """Return a stream of the engine with usage, and the same without its usage chunk."""
    seen = Seen("POST", CHAT, {}, as_body(chat() | WITH_USAGE), 0)
    events = engine.events(seen)
    return b"".join(events), b"".join(events[:-2] + events[-1:])


async def test_stream_passes_with_a_complete_record() -> None:
    """A stream arrives as the engine sent it, and its record has what the engine reported."""
    engine = FakeEngine(cached_tokens=5, pause_s=0.01)
    async with Harness(engine) as fleet:
        reply = await fleet.post({"temperature": 0, "max_tokens": 9}, X_Trimtab_Label="edit")
        record = await fleet.record()
    sent = b"".join(engine.events(engine.requests[0])[:-2]) + b"data: [DONE]\n\n"
    assert (200, sent) == (reply.status, reply.body)
    assert (
        record.ok,
        record.chunks,
        record.label,
        record.replica,
        record.revision,
        record.temperature,
        record.max_tokens,
    ) == (True, 4, "edit", "r0", "fake-1", 0.0, 9)
    assert (
        record.tokens.output,
        record.tokens.delivered,
        record.tokens.output_estimated,
        record.finish_reason,
    ) == (4, 5, False, "stop")
    assert SECRET.digest(b"Hello, world!") == record.output_hash
    assert (
        [segment.kind for segment in record.segments],
        record.batch_at_admission,
        record.concurrency_at_admission,
    ) == (["system", "user"], 1, 1)
    assert {"drafting.accepted", "drafting.drafts"} == set(record.unknown)


@pytest.mark.parametrize("wants_usage", [True, False])
async def test_any_split_of_the_stream_gives_the_client_the_same_bytes(wants_usage: bool) -> None:
    """Wherever the network cuts the stream, in the middle of an emoji too, the bytes arrive unchanged.

    Only the usage chunk that the client did not ask for is missing, and nothing beside it.
    """
    engine = FakeEngine(words=WORDS)
    full, without = whole_stream(engine)
    expected = full if wants_usage else without
    async with Harness(engine) as fleet:

        async def ask(at: int) -> bytes:
            body = chat(f"cut at {at}") | (WITH_USAGE if wants_usage else {})
            return (await fleet.post(body)).body

        def script(seen: Seen) -> object:
            at = int(seen.json["messages"][-1]["content"].rpartition(" ")[2])
            return stream_of([full[:at], full[at:]], gap_s=0.002)(seen)

        engine.script = script  # type: ignore[assignment]
        for first in range(0, len(full), 50):
            cuts = range(first, min(first + 50, len(full)))
            replies = await asyncio.gather(*(ask(at) for at in cuts))
            wrong = [at for at, reply in zip(cuts, replies, strict=True) if reply != expected]
            assert [(at, replies[at - first][-200:]) for at in wrong] == []
        await fleet.record(of=len(full))
    assert {(True, len(WORDS), SECRET.digest("".join(WORDS).encode()))} == {
        (record.ok, record.tokens.output, record.output_hash) for record in fleet.records
    }


async def test_single_bytes_and_other_line_ends_pass_unchanged() -> None:
    """CR LF lines, comments and unknown fields pass, even byte by byte."""
    engine = FakeEngine(words=WORDS)
    _, without = whole_stream(engine)
    odd = b": ping\r\n\r\n" + without.replace(b"\n", b"\r\n").replace(
        b"data: [DONE]", b"id: 7\r\ndata: [DONE]"
    )
    engine.script = stream_of([odd[at : at + 1] for at in range(len(odd))])
    async with Harness(engine) as fleet:
        reply = await fleet.post()
        record = await fleet.record()
    assert (odd, True, len(WORDS)) == (reply.body, record.ok, record.chunks)


async def test_usage_is_asked_of_the_engine_and_nothing_else_changes() -> None:
    """The engine gets the client's body with include_usage; a body that has it already is not touched."""
    engine = FakeEngine()
    odd = b'{ "messages":[{"role":"user","content":"caf\\u00e9 \xf0\x9f\x9b\xb6"}], "stream":true,"x":1.50 }'
    async with Harness(engine) as fleet:
        await fleet.post(odd)
        asked = as_body(chat() | WITH_USAGE)
        await fleet.post(asked)
        plain = as_body(chat(stream=False))
        await fleet.post(plain)
    sent = engine.requests[0]
    assert json.loads(odd) | {"stream_options": {"include_usage": True}} == sent.json
    assert b'"caf\\u00e9 \xf0\x9f\x9b\xb6"' in sent.body
    assert b"1.50" in sent.body
    assert [asked, plain] == [seen.body for seen in engine.requests[1:]]


async def test_headers_pass_but_for_those_that_end_here() -> None:
    """Ours, hop-by-hop ones and keys stay here; a stream is neither buffered, sized nor compressed."""
    engine = FakeEngine()
    async with Harness(engine) as fleet:
        reply = await fleet.post(
            None,
            X_Trimtab_Label="chat",
            X_Trimtab_Session="s1",
            Authorization="Bearer k",
            Traceparent="00-a",
            Connection="keep-alive, X-Private",
            X_Private="1",
            TE="trailers",
            Accept_Encoding="gzip, br",
        )
    got = engine.requests[0].headers
    assert (got["traceparent"], got["accept-encoding"]) == ("00-a", "identity")
    ended = {"authorization", "x-trimtab-label", "x-trimtab-session", "x-private", "te"}
    assert set() == ended & set(got)
    assert (
        reply.headers["x-accel-buffering"],
        reply.headers["content-type"],
        reply.headers["x-trimtab-replica"],
        reply.headers["server"],
    ) == ("no", "text/event-stream", "r0", "llama.cpp")
    assert set() == {"content-length", "content-encoding"} & set(reply.headers)
    assert reply.headers["x-trimtab-request-id"] == fleet.records[0].request_id


async def test_query_of_the_address_passes() -> None:
    """What stands behind the question mark reaches the engine as it is."""
    engine = FakeEngine()
    async with Harness(engine) as fleet:
        await fleet.post(path=f"{CHAT}?api-version=a%2Fb&x")
    assert engine.requests[0].path == f"{CHAT}?api-version=a%2Fb&x"


async def test_first_chunk_arrives_before_the_second_is_made() -> None:
    """Nothing is held back: each event is with the client before the engine makes the next."""
    engine = FakeEngine(words=("a", "b", "c"), pause_s=0.15)
    async with Harness(engine) as fleet:
        seen_at: list[float] = []
        async with fleet.client.post(fleet.url + CHAT, data=as_body(None)) as response:
            async for _ in response.content.iter_any():
                seen_at.append(time.monotonic())
        record = await fleet.record()
    # role, three words, finish, [DONE]; the usage chunk costs a pause of its own
    after = [at - seen_at[0] for at in seen_at]
    assert pytest.approx(after, abs=0.1) == [0.0, 0.15, 0.3, 0.45, 0.6, 0.9]
    assert (
        pytest.approx(record.ttft_ms, abs=150),
        pytest.approx(record.chunk_gap_ms_mean, abs=60),
    ) == (300.0, 150.0)


async def test_phases_add_up_and_tpot_counts_server_tokens() -> None:
    """Queue is what is left before the first token; TPOT divides by the engine's tokens, not by chunks."""
    engine = FakeEngine(words=("four tokens in one chunk", "and four more"), pause_s=0.03)
    usage = {"prompt_tokens": 40, "completion_tokens": 8}
    timings = {"prompt_ms": 10.0, "predicted_ms": 30.0, "draft_n": 7, "draft_n_accepted": 6}

    def usage_chunk(seen: Seen) -> dict[str, object]:
        return chunk({}, choices=[]) | {"usage": usage, "timings": timings}

    engine.usage_chunk = usage_chunk  # type: ignore[method-assign]
    async with Harness(engine) as fleet:
        await fleet.post()
        record = await fleet.record()
    phases = record.phases
    assert None not in (record.ttft_ms, record.e2e_ms, phases.queue_ms, phases.decode_ms)
    assert pytest.approx(record.e2e_ms) == phases.queue_ms + 10.0 + phases.decode_ms  # type: ignore[operator]
    assert pytest.approx((record.e2e_ms - record.ttft_ms) / 7) == record.tpot_ms  # type: ignore[operator]
    assert (
        record.chunks,
        record.tokens.output,
        record.drafting.drafted,
        record.drafting.accepted,
        record.drafting.accepted_per_step,
    ) == (2, 8, 7, 6, 4.0)


async def test_what_cannot_be_read_passes_and_is_said() -> None:
    """An event that is no completion reaches the client; the record says that something was not understood."""
    engine = FakeEngine(words=("ok",))
    _, without = whole_stream(engine)
    odd = b"data: {not json\n\n" + without
    engine.script = stream_of([odd])
    async with Harness(engine) as fleet:
        reply = await fleet.post()
        record = await fleet.record()
    assert (odd, True, "1 events of the stream could not be read") == (
        reply.body,
        record.ok,
        record.unknown["chunks"],
    )


async def test_completions_endpoint_streams_too() -> None:
    """A usage object beside output is no chunk of its own and passes."""
    events = [
        sse({"choices": [{"index": 0, "text": "ab", "finish_reason": None}]}),
        sse(
            {
                "choices": [{"index": 0, "text": "", "finish_reason": "length"}],
                "usage": {"prompt_tokens": 3, "completion_tokens": 2},
            }
        ),
        b"data: [DONE]\n\n",
    ]
    engine = FakeEngine(script=stream_of(events))
    async with Harness(engine) as fleet:
        reply = await fleet.post(b'{"prompt":"one two","stream":true}', "/v1/completions")
        record = await fleet.record()
    assert (b"".join(events), "/v1/completions", 2, "length") == (
        reply.body,
        record.endpoint,
        record.tokens.output,
        record.finish_reason,
    )


async def test_sixty_four_streams_at_once_keep_apart() -> None:
    """Each of 64 concurrent clients gets its own bytes; batch and concurrency are those at admission."""
    engines = (FakeEngine(pause_s=0.02), FakeEngine(pause_s=0.02))

    def script(seen: Seen) -> object:
        word = seen.json["messages"][-1]["content"]
        events = [sse(chunk({"content": f"{word}-{n}"})) for n in range(5)]
        return stream_of([*events, b"data: [DONE]\n\n"], gap_s=0.3)(seen)

    async with Harness(*engines) as fleet:
        for engine in engines:
            engine.script = script  # type: ignore[assignment]
        replies = await asyncio.gather(*(fleet.post(chat(f"user {n}")) for n in range(64)))
        await fleet.record(of=64)
        left = fleet.load.view(0.0).replicas
    for number, reply in enumerate(replies):
        events = [sse(chunk({"content": f"user {number}-{n}"})) for n in range(5)]
        assert b"".join(events) + b"data: [DONE]\n\n" == reply.body
    assert list(range(1, 65)) == sorted(r.concurrency_at_admission or 0 for r in fleet.records)
    assert sorted([*range(1, 33), *range(1, 33)]) == sorted(
        r.batch_at_admission or 0 for r in fleet.records
    )
    assert [
        (r.running, r.waiting, r.prefill_tokens_outstanding, r.decode_tokens_outstanding)
        for r in left
    ] == [(0, 0, 0, 0), (0, 0, 0, 0)]


async def test_connection_that_carried_a_stream_is_not_used_again() -> None:
    """The engine closes it without saying so: a turn sent right after the last one stays with its replica."""
    engines = (FakeEngine(), FakeEngine())
    text = "A trim tab is a small surface. " * 40
    async with Harness(*engines) as fleet:
        fleet.router.plan = msgspec.structs.replace(fleet.router.plan, policy="prefix_affine")
        for _ in range(20):
            reply = await fleet.post(chat(text))
            assert reply.status == 200
    assert sorted(len(engine.requests) for engine in engines) == [0, 20]
    assert sum(engine.connections for engine in engines) == 20


async def test_connections_to_a_replica_are_used_again() -> None:
    """Answers in one piece share one connection."""
    engine = FakeEngine()
    async with Harness(engine) as fleet:
        for _ in range(6):
            reply = await fleet.post({"stream": False})
            assert reply.status == 200
    assert (engine.connections, len(engine.requests)) == (1, 6)


async def test_pooled_connection_is_dropped_before_the_engine_drops_it() -> None:
    """After the keep-alive time the next request opens a new connection instead of meeting a closed one."""
    engine = FakeEngine()
    async with Harness(engine, upstream_keepalive_s=0.1) as fleet:
        await fleet.post({"stream": False})
        await until(lambda: engine.open_connections == 0)
        reply = await fleet.post({"stream": False})
    assert (reply.status, engine.connections) == (200, 2)


async def test_answer_that_is_not_streamed_passes_unchanged() -> None:
    """A JSON answer arrives byte for byte with its length; the decode time is the engine's own."""
    engine = FakeEngine(words=WORDS, cached_tokens=3)
    async with Harness(engine) as fleet:
        reply = await fleet.post({"stream": False, "temperature": 0.7})
        record = await fleet.record()
    body = engine.body(engine.requests[0])
    assert (200, body, str(len(body))) == (
        reply.status,
        reply.body,
        reply.headers["content-length"],
    )
    assert (True, False, None, 9.0 / (len(WORDS) - 1), 9.0, 2.0, len(WORDS), 3) == (
        record.ok,
        record.stream,
        record.ttft_ms,
        pytest.approx(record.tpot_ms),
        record.phases.decode_ms,
        record.phases.prefill_ms,
        record.tokens.output,
        record.tokens.delivered,
    )
    assert record.unknown["ttft_ms"] == "not a stream"
    assert SECRET.digest("".join(WORDS).encode()) == record.output_hash


async def test_engine_that_answers_a_stream_with_json_is_passed_on() -> None:
    """The answer decides how it is relayed, not the question."""
    engine = FakeEngine()

    async def script(seen: Seen) -> object:  # type: ignore[misc]
        plain = Seen(seen.method, seen.path, seen.headers, as_body(chat(stream=False)), 1)
        async for piece in engine.completion(plain):
            yield piece

    async with Harness(engine) as fleet:
        engine.script = script  # type: ignore[assignment]
        reply = await fleet.post()
        record = await fleet.record()
    assert (
        reply.status,
        reply.headers["content-type"],
        record.error,
    ) == (200, "application/json", ErrorClass.NONE)
