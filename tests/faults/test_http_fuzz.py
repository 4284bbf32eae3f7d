"""Whatever bytes come, from clients or from engines, what goes out is well-formed, ends, and harms nobody else.

The invariant is the one that h11 is fuzzed with: garbage gives an error of ours or a closed connection, never anything
else. Bytes are valid messages that were damaged: a slice lost, doubled, swapped or strange, a header that smuggles.
"""

import asyncio
import contextlib
import itertools
import json
import logging
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

import httptools
import pytest
import uvloop
from fake_engine import FakeEngine, Seen
from harness import CHAT, Harness, as_body, chat, until
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

BODY = as_body(chat("fuzz"))
INNER = b"GET /v1/smuggled HTTP/1.1\r\nHost: x\r\n\r\n"
WAIT_S = 5.0
SETTINGS = settings(max_examples=150, suppress_health_check=list(HealthCheck), deadline=None)

HEADERS = (
    b"Content-Length: 3\r\n",
    b"Content-Length: +5\r\n",
    b"Content-Length: 5, 5\r\n",
    b"Transfer-Encoding: chunked\r\n",
    b"Transfer-Encoding: identity\r\n",
    b"Transfer-Encoding: chunked, identity\r\n",
    b"Transfer-Encoding:\x0bchunked\r\n",
    b"Transfer-Encoding : chunked\r\n",
    b" folded: yes\r\n",
    b"X: a\r\n b\r\n",
    b"X: a\nContent-Length: 0\r\n",
    b"X: \x00\r\n",
    b"Host: y\r\n",
    b"Connection: close, content-length\r\n",
    b"Connection: transfer-encoding\r\n",
    b"Expect: 100-continue\r\n",
    b"Upgrade: h2c\r\nConnection: upgrade\r\n",
    b": nameless\r\n",
    b"X" * 70_000 + b": 1\r\n",
)


@dataclass
class Answers:
    """Reads everything that came back as HTTP responses."""

    statuses: list[int] = field(default_factory=list)
    bodies: list[bytes] = field(default_factory=list)
    types: list[bytes] = field(default_factory=list)
    open: bool = False

    def read(self, data: bytes) -> None:
        """Parse; raises `httptools.HttpParserError` where it is no HTTP."""
        self._parser = httptools.HttpResponseParser(self)
        self._parser.feed_data(data)

    def on_message_begin(self) -> None:
        self.open = True
        self.bodies.append(b"")
        self.types.append(b"")

    def on_header(self, name: bytes, value: bytes) -> None:
        if name.lower() == b"content-type":
            self.types[-1] = value

    def on_headers_complete(self) -> None:
        self.statuses.append(self._parser.get_status_code())

    def on_body(self, data: bytes) -> None:
        self.bodies[-1] += data

    def on_message_complete(self) -> None:
        self.open = False


class Live:
    """A gateway that serves over many examples of one test."""

    def __init__(self, engine: FakeEngine) -> None:
        self.engine = engine
        self.fleet = Harness(engine, first_byte_timeout_s=0.3, idle_timeout_s=0.3)

    def __enter__(self) -> "Live":
        self._runner = asyncio.Runner(loop_factory=uvloop.new_event_loop)
        self.run(self.fleet.__aenter__())
        return self

    def __exit__(self, *exc: object) -> None:
        self.run(self.fleet.__aexit__())
        self._runner.close()

    def run(self, what: Coroutine[Any, Any, Any]) -> Any:
        """Run a coroutine to its end, within bounds."""
        return self._runner.run(asyncio.wait_for(what, WAIT_S))

    async def talk(self, pieces: list[bytes]) -> bytes:
        """Send pieces over one connection, say that nothing more comes, and read to the end."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.fleet.port)
        got = b""
        with contextlib.suppress(ConnectionError, TimeoutError):
            for piece in pieces:
                writer.write(piece)
                await writer.drain()
                await asyncio.sleep(0)
            # the answer to whatever was whole; then the connection ends from here
            async with asyncio.timeout(0.05):
                while data := await reader.read(65536):
                    got += data
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()
        return got

    async def assert_unharmed(self) -> None:
        """Nobody else is touched: a request over another connection is served, and nothing stays in flight."""
        self.engine.script = None
        reply = await self.fleet.post()
        assert (reply.status, reply.body.endswith(b"[DONE]\n\n")) == (200, True)
        await until(lambda: self.fleet.load.view(0.0).replicas[0].in_flight == 0)


@pytest.fixture(autouse=True)
def assert_nothing_failed_inside(caplog: pytest.LogCaptureFixture) -> Any:
    """An error of ours that was not meant is logged; there is none. aiohttp logs what it refuses."""
    with caplog.at_level(logging.ERROR):
        yield
    own = [record for record in caplog.records if not record.name.startswith("aiohttp")]
    assert [record.getMessage() for record in own] == []


@st.composite
def damaged(draw: st.DrawFn, whole: bytes) -> bytes:
    """Return a message of which slices were lost, doubled, swapped for strange bytes, or had some put in."""
    data = whole
    for _ in range(draw(st.integers(0, 3))):
        start = draw(st.integers(0, len(data)))
        end = min(len(data), start + draw(st.integers(0, 40)))
        odd = draw(
            st.one_of(st.binary(max_size=12), st.sampled_from([b"\n", b"\r", b"\r\n", b" "]))
        )
        how = draw(st.sampled_from(["lose", "double", "swap", "put in"]))
        kept = {"lose": b"", "double": data[start:end] * 2, "swap": odd}.get(
            how, odd + data[start:end]
        )
        data = data[:start] + kept + data[end:]
    return data


@st.composite
def cut(draw: st.DrawFn, data: bytes) -> list[bytes]:
    """Return data in up to three pieces."""
    at = sorted(draw(st.lists(st.integers(0, len(data)), max_size=2)))
    edges = [0, *at, len(data)]
    return [data[a:b] for a, b in itertools.pairwise(edges)]


def request(extra: bytes, body: bytes = BODY) -> bytes:
    head = b"POST %b HTTP/1.1\r\nHost: x\r\n%bContent-Length: %d\r\n\r\n"
    return head % (CHAT.encode(), extra, len(body)) + body


@st.composite
def requests(draw: st.DrawFn) -> list[bytes]:
    """Return what a client may send: one or two requests, damaged, with a header that smuggles, or chunked wrongly."""
    extra = draw(st.sampled_from([b"", *HEADERS]))
    chunked = b"POST %b HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n" % CHAT.encode()
    size = draw(
        st.sampled_from(
            [b"%x" % len(BODY), b"0%x" % len(BODY), b"-5", b"fffffffffffffffff", b"5;x"]
        )
    )
    one = draw(
        st.sampled_from(
            [
                request(extra),
                request(extra, INNER + BODY),
                chunked + size + b"\r\n" + BODY + b"\r\n0\r\n\r\n",
                request(b"Transfer-Encoding: chunked\r\n", b"0\r\n\r\n" + INNER),
            ]
        )
    )
    two = draw(st.sampled_from([b"", request(b"")]))
    return draw(cut(draw(damaged(one)) + two))


def test_no_client_gets_anything_but_well_formed_answers() -> None:
    """What comes back is HTTP; what was inside of a body never became a request; the next client is served."""
    engine = FakeEngine()
    with Live(engine) as live:

        @SETTINGS
        @given(requests())
        def law(pieces: list[bytes]) -> None:
            live.run(check_client(live, pieces))

        law()


async def check_client(live: Live, pieces: list[bytes]) -> None:
    live.engine.requests.clear()
    answers = Answers()
    answers.read(await live.talk(pieces))
    for seen in live.engine.requests:
        if seen.path == CHAT:
            json.loads(seen.body)
    served = [status for status in answers.statuses if status == 200]
    assert len(live.engine.requests) >= len(served)
    await live.assert_unharmed()


CARRIERS = {
    "in the body": request(b"%b", as_body(chat(INNER.decode()))),
    "behind an end of chunks": request(b"%b", b"0\r\n\r\n" + INNER),
    "behind a chunked body": b"POST %b HTTP/1.1\r\nHost: x\r\n" % CHAT.encode()
    + b"%b"
    + b"Transfer-Encoding: chunked\r\nContent-Length: 4\r\n\r\n0\r\n\r\n"
    + INNER,
}


@pytest.mark.parametrize("carrier", CARRIERS)
@pytest.mark.parametrize("extra", [b"", *HEADERS], ids=lambda extra: repr(extra[:40]))
async def test_request_inside_of_another_never_reaches_an_engine(
    carrier: str, extra: bytes
) -> None:
    """However lengths are said, a message is taken whole as one or refused with a 4xx: no second one hides in it."""
    engine = FakeEngine()
    async with Harness(engine) as fleet:
        reader, writer = await asyncio.open_connection("127.0.0.1", fleet.port)
        writer.write(CARRIERS[carrier].replace(b"%b", extra, 1))
        got = b""
        with contextlib.suppress(ConnectionError, TimeoutError):
            async with asyncio.timeout(0.2):
                while data := await reader.read(65536):
                    got += data
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()
    answers = Answers()
    answers.read(got)
    paths = [seen.path for seen in engine.requests]
    assert paths == [CHAT] * answers.statuses.count(200)
    assert len(answers.statuses) == 1
    assert answers.statuses[0] == 200 or 400 <= answers.statuses[0] < 500


def stream() -> bytes:
    """Return a whole answer of an engine as it is on the wire."""
    engine = FakeEngine(words=("a", "世界", "🛶"))
    seen = Seen("POST", CHAT, {}, BODY, 0)
    body = b"".join(b"%x\r\n%b\r\n" % (len(event), event) for event in engine.events(seen))
    head = (
        b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
    )
    return head + body + b"0\r\n\r\n"


def writes(pieces: list[bytes]) -> Callable[[Seen], AsyncIterator[bytes]]:
    """Return a script that sends pieces and ends the connection."""

    async def script(seen: Seen) -> AsyncIterator[bytes]:
        for piece in pieces:
            yield piece

    return script


def test_no_engine_makes_the_gateway_answer_anything_but_well_formed_ends() -> None:
    """A client's stream ends with its end mark or exactly one error event, whatever the engine sent."""
    engine = FakeEngine()
    with Live(engine) as live:

        @SETTINGS
        @given(damaged(stream()).flatmap(cut))
        def law(pieces: list[bytes]) -> None:
            live.run(check_engine(live, pieces))

        law()


async def check_engine(live: Live, pieces: list[bytes]) -> None:
    live.engine.script = writes(pieces)
    reply = await live.fleet.post()
    kind = reply.headers.get("content-type", "")
    if reply.status == 200 and kind.startswith("text/event-stream"):
        errors = reply.body.count(b'"type":"upstream_error"')
        is_done = b"data: [DONE]" in reply.body or b"data:[DONE]" in reply.body
        assert errors == (0 if is_done and not errors else 1), reply.body[-300:]
        assert not errors or reply.body.rstrip(b"\n").rpartition(b"\n")[2].count(b'"error"') == 1
    elif reply.status >= 500:
        assert set(reply.json) == {"error"}
    await live.assert_unharmed()
