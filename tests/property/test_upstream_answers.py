"""Laws of the replica's side: however an answer is cut it is the same answer; whatever comes, only typed errors."""

import asyncio
import itertools
from typing import TypeVar, cast

from hypothesis import given
from hypothesis import strategies as st

from trimtab.runtime.upstream_connection import (
    UpstreamConnectError,
    UpstreamConnection,
    UpstreamError,
    UpstreamRefusedError,
)


class Wire:
    """A transport without a socket: what is written is dropped, an abort ends the connection."""

    def __init__(self, connection: UpstreamConnection) -> None:
        self._connection = connection
        self.closed = False

    def write(self, data: bytes) -> None:
        assert not self.closed

    def is_closing(self) -> bool:
        return self.closed

    def abort(self) -> None:
        self.lose()

    def lose(self) -> None:
        if not self.closed:
            self.closed = True
            self._connection.connection_lost(None)


class Heard:
    """What a listener hears of one answer."""

    def __init__(self) -> None:
        self.body = b""
        self.ends: list[UpstreamError | None] = []
        self.head: BaseException | None = None
        self.status = 0

    def take(self, data: bytes, framed: bytes | None) -> None:
        assert not self.ends
        assert framed is None or framed == b"%x\r\n%b\r\n" % (len(data), data)
        self.body += data


class Refuses(Heard):
    """Wants none of it."""

    refusal = UpstreamRefusedError("no")

    def take(self, data: bytes, framed: bytes | None) -> None:
        assert not self.ends
        raise self.refusal


H = TypeVar("H", bound=Heard)


def read_by(heard: H, pieces: list[bytes], *, closes: bool) -> H:
    """Feed pieces to a listener, then let the replica close or not."""

    async def fed() -> H:
        connection = UpstreamConnection("replica")
        wire = Wire(connection)
        connection.connection_made(cast(asyncio.Transport, wire))
        head = connection.request(b"GET / HTTP/1.1\r\n\r\n", b"")
        listens = False
        for piece in filter(None, pieces):
            if not wire.closed:
                connection.data_received(piece)
            if not listens and head.done() and head.exception() is None:
                listens = True
                connection.listen(heard.take, heard.ends.append)
        if closes:
            wire.lose()
        if head.done():
            heard.head = head.exception()
        head.cancel()
        heard.status = connection.status
        wire.lose()
        return heard

    return asyncio.run(fed())


def read(pieces: list[bytes], *, closes: bool) -> Heard:
    return read_by(Heard(), pieces, closes=closes)


def cut(stream: bytes, cuts: list[int]) -> list[bytes]:
    places = [0, *sorted(at % (len(stream) + 1) for at in cuts), len(stream)]
    return [stream[a:b] for a, b in itertools.pairwise(places)]


PARTS = st.lists(
    st.one_of(
        st.binary(min_size=1, max_size=40), st.sampled_from([b"\r\n", b"0\r\n\r\n", b"5\r\n"])
    ),
    max_size=6,
)
CUTS = st.lists(st.integers(min_value=0), max_size=8)


def sized(parts: list[bytes]) -> bytes:
    body = b"".join(parts)
    return b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)


def chunked(parts: list[bytes]) -> bytes:
    framed = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts)
    return b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + framed + b"0\r\n\r\n"


def closing(parts: list[bytes]) -> bytes:
    return b"HTTP/1.1 200 OK\r\n\r\n" + b"".join(parts)


@given(PARTS, CUTS, st.sampled_from([sized, chunked, closing]), st.booleans())
def test_any_cut_of_an_answer_is_the_same_answer(
    parts: list[bytes], cuts: list[int], frame: object, early: bool
) -> None:
    """The body arrives whole and in order, its end is heard once, whatever an interim answer said before."""
    answer = frame(parts)  # type: ignore[operator]
    stream = b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" * early + answer
    for pieces in (cut(stream, cuts), [stream], [stream[at : at + 1] for at in range(len(stream))]):
        heard = read(pieces, closes=frame is closing)
        assert (heard.status, heard.body, heard.ends) == (200, b"".join(parts), [None])


@given(PARTS, st.integers(min_value=0), st.sampled_from([sized, chunked]))
def test_answer_that_breaks_off_is_a_typed_failure(
    parts: list[bytes], at: int, frame: object
) -> None:
    """Not a byte: it may be asked again elsewhere. Some: it broke. Never a shorter answer that looks whole."""
    answer = frame(parts)  # type: ignore[operator]
    heard = read([answer[: at % len(answer)]], closes=True)
    failure = heard.head or (heard.ends[0] if heard.ends else None)
    assert isinstance(failure, UpstreamError)
    assert isinstance(failure, UpstreamConnectError) == (at % len(answer) == 0)


@given(
    st.lists(
        st.one_of(
            st.binary(max_size=30),
            st.sampled_from(
                [
                    b"HTTP/1.1 200 OK\r\n",
                    b"HTTP/1.1 101 Switching\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n",
                    b"HTTP/1.0 204 No\r\n\r\n",
                    b"Content-Length: 5\r\n",
                    b"Transfer-Encoding: chunked\r\n",
                    b"\r\n",
                    b"5\r\nabcde\r\n",
                    b"ffffffff\r\n",
                    b"-1\r\n\r\n",
                ]
            ),
        ),
        max_size=10,
    )
)
def test_whatever_a_replica_sends_only_typed_errors_come(pieces: list[bytes]) -> None:
    """No other exception, no second end."""
    heard = read(pieces, closes=True)
    assert heard.head is None or isinstance(heard.head, UpstreamError)
    assert len(heard.ends) <= 1


@given(PARTS, CUTS, st.sampled_from([sized, chunked, closing]))
def test_answer_that_its_listener_refuses_ends_with_the_refusal(
    parts: list[bytes], cuts: list[int], frame: object
) -> None:
    """Also where the rest came in one piece with what was refused: the end is heard once, and nothing is raised."""
    head, gap, body = frame([b"refused", *parts]).partition(b"\r\n\r\n")  # type: ignore[operator]
    for pieces in ([body], cut(body, cuts)):
        heard = read_by(Refuses(), [head + gap, *pieces], closes=frame is closing)
        assert heard.ends == [heard.refusal]
