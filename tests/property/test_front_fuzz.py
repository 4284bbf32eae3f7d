"""Laws of the client's side: however requests are cut they get the same answers; only errors of ours are said."""

import asyncio
import itertools
import logging
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trimtab.runtime.exchange import ClientGoneError, Exchange
from trimtab.runtime.front import Front
from trimtab.runtime.front_rules import FrontLimits
from trimtab.runtime.wire import ApiError

LIMITS = FrontLimits(
    head_bytes_max=2048, body_bytes_max=500, head_s=9, body_idle_s=9, keep_alive_s=9
)


class Wire:
    """A transport without a socket that keeps what is written."""

    def __init__(self) -> None:
        self.said = b""
        self.is_closed = False
        self.pages = 0

    def write(self, data: bytes) -> None:
        assert not self.is_closed
        self.said += data

    def get_extra_info(self, name: str) -> None:
        return None

    def can_write_eof(self) -> bool:
        return False

    def pause_reading(self) -> None:
        return

    def resume_reading(self) -> None:
        return

    def set_protocol(self, protocol: object) -> None:
        self.pages += 1

    def close(self) -> None:
        self.is_closed = True

    abort = close


async def echo(exchange: Exchange) -> None:
    """Answer with method, target and body; errors as the gateway says them."""
    try:
        body = await exchange.read()
    except ClientGoneError:
        return
    except ApiError as error:
        exchange.tell(error)
        return
    exchange.answer(200, [], exchange.method + b" " + exchange.target + b" " + body)


class LostWire(Wire):
    """A transport whose client has gone, as uvloop's are before their protocol is told of it."""

    def __init__(self, lost: str) -> None:
        super().__init__()
        self._lost = lost

    def write(self, data: bytes) -> None:
        if self._lost == "write":
            raise RuntimeError("the handler is closed")
        super().write(data)

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        raise RuntimeError("the handler is closed")


def said_to(pieces: list[bytes], given_wire: Wire | None = None) -> Wire:
    """Return what is said to a client that sends these pieces."""

    async def run() -> Wire:
        wire, fronts = given_wire or Wire(), set[Front]()
        front = Front(echo, asyncio.Protocol, LIMITS, fronts)
        front.connection_made(cast(asyncio.Transport, wire))
        for piece in filter(None, pieces):
            if not wire.is_closed and not wire.pages:
                front.data_received(piece)
                for _ in range(4):
                    await asyncio.sleep(0)
        for _ in range(60):
            await asyncio.sleep(0)
        front.connection_lost(None)
        await asyncio.sleep(0)
        assert (fronts, len(asyncio.all_tasks())) == (set(), 1)
        return wire

    return asyncio.run(run())


def cut(stream: bytes, cuts: list[int]) -> list[bytes]:
    places = [0, *sorted(at % (len(stream) + 1) for at in cuts), len(stream)]
    return [stream[a:b] for a, b in itertools.pairwise(places)]


def sized(body: bytes) -> bytes:
    return b"POST /v1/x HTTP/1.1\r\nHost: h\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)


def chunked(body: bytes) -> bytes:
    framed = b"".join(b"1\r\n%c\r\n" % byte for byte in body)
    return (
        b"PUT /v1/y?z HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n%b0\r\n\r\n" % framed
    )


BODIES = st.binary(max_size=12)
CUTS = st.lists(st.integers(min_value=0), max_size=8)


@given(st.lists(st.tuples(BODIES, st.sampled_from([sized, chunked])), max_size=5), CUTS)
def test_any_cut_of_requests_gets_the_same_answers(
    asked: list[tuple[bytes, object]], cuts: list[int]
) -> None:
    """All at once, byte by byte, or any other way: every request is answered, in order, once."""
    stream = b"".join(frame(body) for body, frame in asked)  # type: ignore[operator]
    expected = b""
    for body, frame in asked:
        said = (b"POST /v1/x " if frame is sized else b"PUT /v1/y?z ") + body
        expected += b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(said), said)
    for pieces in ([stream], cut(stream, cuts), [stream[at : at + 1] for at in range(len(stream))]):
        assert said_to(pieces).said == expected


@given(
    st.lists(
        st.one_of(
            st.binary(max_size=20),
            st.sampled_from(
                [
                    b"POST /v1/x HTTP/1.1\r\nHost: h\r\n",
                    b"GET /metrics HTTP/1.1\r\nHost: h\r\n",
                    b"CONNECT h:1 HTTP/1.1\r\nHost: h\r\n",
                    b"Content-Length: 3\r\n",
                    b"Transfer-Encoding: chunked\r\n",
                    b"Upgrade: h2c\r\nConnection: Upgrade\r\n",
                    b"Expect: 100-continue\r\n",
                    b"\r\n",
                    b"abc",
                    b"3\r\nabc\r\n0\r\n\r\n",
                    b"X: " + b"a" * 3000,
                    b"ffffffffffff\r\n",
                ]
            ),
        ),
        max_size=10,
    )
)
def test_whatever_a_client_sends_there_is_no_failure_of_ours(pieces: list[bytes]) -> None:
    """At most one error, it is the last thing said, and it is the client's own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(logging.getLogger("trimtab.runtime.front"), "error", fail)
        answers = said_to(pieces).said.split(b"HTTP/1.1 ")[1:]
    codes = [int(answer[:3]) for answer in answers]
    errors = [code for code in codes if code >= 400]
    assert errors == [code for code in codes[-1:] if code >= 400]
    assert set(errors) <= {400, 408, 413, 431, 505}


@pytest.mark.parametrize("lost", ["write", "write_eof"])
def test_refused_client_that_has_gone_meanwhile_is_no_failure_of_ours(lost: str) -> None:
    """An error can no longer be said, or its connection not be half closed: it is closed, and that is all."""
    wire = said_to([b"no request at all\r\n\r\n"], LostWire(lost))
    assert wire.is_closed
    assert bool(wire.said) is (lost == "write_eof")


def fail(*what: object, **how: object) -> None:
    raise AssertionError(what)
