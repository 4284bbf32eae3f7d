"""One connection to a replica: a request out, an answer in, as bytes come and without a task of its own."""

import asyncio
from collections.abc import Callable
from typing import Final, TypeAlias, cast

import httptools

from trimtab.runtime.wire import Headers, Pairs

HEAD_BYTES_MAX: Final = 256 * 1024
Sink: TypeAlias = Callable[[bytes, bytes | None], None]
"""Takes a part of a body, and where it came as exactly one chunk, that chunk with its frame.

It may raise an `UpstreamError`, with which the answer ends as if the replica had broken it off.
"""

Lane: TypeAlias = Callable[[bytes], bool]
"""Takes what came if it is whole chunks, frames included, of a form that it knows; False: nothing was taken."""

OpenLane: TypeAlias = Callable[[], Lane | None]
"""Returns the lane for what comes next, None for none; asked where a chunk begins, after all else that was taken."""


class UpstreamError(RuntimeError):
    """A replica did not answer as it must; the message says which and how."""


class UpstreamConnectError(UpstreamError):
    """No byte of an answer came and the request may be sent to another replica.

    `reachable`: the replica accepted the connection, then dropped it.
    """

    def __init__(self, message: str, *, reachable: bool) -> None:
        super().__init__(message)
        self.reachable = reachable


class UpstreamTimeoutError(UpstreamError):
    """A replica was silent for longer than the configuration allows."""


class UpstreamBrokenError(UpstreamError):
    """A replica's connection ended in the middle of an answer, or what came is no HTTP."""


class UpstreamRefusedError(UpstreamBrokenError):
    """A replica began a stream and said an error in it before it said anything of the answer."""


class UpstreamConnection(asyncio.Protocol):
    """Carries one exchange at a time. `name`: the replica's address, for messages.

    The answer's parts are kept until somebody listens.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._loop = asyncio.get_running_loop()
        self._parser = httptools.HttpResponseParser(self)
        self._pairs: Pairs = []
        self._head: asyncio.Future[None] | None = None
        self._parts: list[bytes] = []
        self._is_sized = False
        self._is_head_only = False
        self._got_bytes = False
        self._got_head = False
        self._keep_alive = False
        self._head_bytes = 0
        self.status = 0
        self.headers = Headers([])
        self.is_whole = False
        """Whether the whole answer has come."""
        self.is_lost = False
        self.error: UpstreamError | None = None
        self.seen_s = 0.0
        """When something came last that no lane took, by the loop's clock."""
        self._sink: Sink | None = None
        self._open_lane: OpenLane | None = None
        self._lane: Lane | None = None
        self._chunk_ended = False
        self._is_at_chunk = False
        self._on_end: Callable[[UpstreamError | None], None] | None = None
        self.on_lost: Callable[[UpstreamConnection], None] | None = None

    @property
    def is_reusable(self) -> bool:
        """Whether the connection may carry another request."""
        return self.is_whole and self._keep_alive and not self.is_lost

    @property
    def _is_asked(self) -> bool:
        return self._head is not None and not self.is_whole

    def request(
        self, head: bytes, body: bytes, *, is_head_only: bool = False
    ) -> "asyncio.Future[None]":
        """Send a request; the future is done when the head of the answer is there, or fails with `UpstreamError`."""
        self._pairs, self._parts = [], []
        self._is_sized = self._got_bytes = self._got_head = self.is_whole = False
        self._is_at_chunk = False
        self._is_head_only = is_head_only
        self._head_bytes = 0
        self.status, self.error = 0, None
        self._sink = self._on_end = self._lane = self._open_lane = None
        self.seen_s = self._loop.time()
        self._head = self._loop.create_future()
        if self.is_lost:
            self._fail(self._dropped())
        elif len(body) < 65536:
            self._transport.write(head + body)
        else:
            self._transport.writelines([head, body])
        return self._head

    def listen(self, sink: Sink, on_end: Callable[[UpstreamError | None], None]) -> None:
        """Hand over what has come of the body and what will; `on_end` hears once: None, or what broke it."""
        parts, self._parts = self._parts, []
        if parts:
            sink(b"".join(parts), None)
        if self.is_whole or self.error is not None:
            on_end(self.error)
            return
        self._sink, self._on_end = sink, on_end

    def redirect(self, sink: Sink, open_lane: OpenLane | None) -> None:
        """Let the rest of the body go to another sink, and past it what the open lane takes."""
        if self._sink is not None:
            self._sink, self._open_lane = sink, open_lane

    def pause(self) -> None:
        """Take no more from the replica until `resume`."""
        if not self._transport.is_closing():
            self._transport.pause_reading()

    def resume(self) -> None:
        """Go on after `pause`."""
        if not self._transport.is_closing():
            self.seen_s = self._loop.time()
            self._transport.resume_reading()

    def close(self) -> None:
        """Close at once: an engine stops working on a request whose connection is gone."""
        self._sink = self._on_end = self._lane = self._open_lane = None
        if not self.is_lost:
            self._transport.abort()

    def fail(self, error: UpstreamError) -> None:
        """End the answer with an error, as when it takes too long."""
        self._fail(error)
        if not self.is_lost:
            self._transport.abort()

    # The loop's calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_lost = True
        if self.on_lost is not None:
            self.on_lost(self)
        if self._head is None or self.is_whole or self.error is not None:
            return
        if not self._got_bytes:
            self._fail(self._dropped())
        elif self._got_head and not self._is_sized and exc is None:
            self._complete()
        else:
            self._fail(UpstreamBrokenError(f"{self.name} broke off its answer: {exc or 'closed'}"))

    def eof_received(self) -> bool:
        return False

    def data_received(self, data: bytes) -> None:
        lane = self._lane
        if lane is not None and lane(data):
            return
        self._lane = None
        self.seen_s = self._loop.time()
        if self._is_at_chunk and self._sink is not None:
            # What streams are made of: one read, one whole chunk, said the one way that needs no parser.
            start = data.find(b"\r\n", 1, 10) + 2
            size = len(data) - start - 2
            if size > 0 and data[: start - 2] == b"%x" % size and data[-2:] == b"\r\n":
                self._give(self._sink, data[start:-2], data)
                self._open()
                return
        self._parse(data)

    def _parse(self, data: bytes) -> None:
        self._got_bytes = True
        self._chunk_ended = False
        if not self._is_asked:
            # Nothing was asked: whatever this is, it must not be taken for the next answer.
            self._transport.abort()
            return
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            if not self.is_whole:
                self._flush()
                self.fail(UpstreamBrokenError(f"{self.name} does not speak HTTP: {error}"))
                return
            self._keep_alive = False
        if not self._got_head:
            self._head_bytes += len(data)
            if self._head_bytes > HEAD_BYTES_MAX:
                self.fail(UpstreamBrokenError(f"{self.name} sent a head without end"))
            return
        self._is_at_chunk = self._chunk_ended and data[-2:] == b"\r\n" and not self.is_whole
        self._flush()
        if self.is_whole:
            self._end(None)
        else:
            self._open()

    # The parser's calls

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._got_head:
            self._pairs.append((name, value))

    def on_headers_complete(self) -> None:
        self.status = self._parser.get_status_code()
        if self.status < 200:
            return
        self._got_head = True
        headers = self.headers = Headers(self._pairs)
        self._is_sized = (
            headers.raw(b"content-length") is not None
            or headers.raw(b"transfer-encoding") is not None
        )
        self._keep_alive = self._parser.should_keep_alive()
        if self._is_head_only:
            self.is_whole, self._keep_alive = True, False
        if self._head is not None and not self._head.done():
            self._head.set_result(None)

    def on_body(self, data: bytes) -> None:
        self._parts.append(data)

    def on_chunk_header(self) -> None:
        self._chunk_ended = False

    def on_chunk_complete(self) -> None:
        self._chunk_ended = True

    def on_message_complete(self) -> None:
        if self.status < 200:
            self._pairs = []
            return
        self.is_whole = True

    # Inside

    def _open(self) -> None:
        if self._is_at_chunk and self._open_lane is not None:
            self._lane = self._open_lane()

    def _flush(self) -> None:
        parts = self._parts
        if parts and self._sink is not None:
            data = parts[0] if len(parts) == 1 else b"".join(parts)
            parts.clear()
            self._give(self._sink, data, None)

    def _give(self, sink: Sink, data: bytes, framed: bytes | None) -> None:
        """Hand a part over; an answer that is refused has not come, however much of it is there."""
        try:
            sink(data, framed)
        except UpstreamError as error:
            self.is_whole = self._keep_alive = False
            self.fail(error)

    def _complete(self) -> None:
        self.is_whole, self._keep_alive = True, False
        self._flush()
        self._end(None)

    def _end(self, error: UpstreamError | None) -> None:
        on_end = self._on_end
        self._sink = self._on_end = self._lane = self._open_lane = None
        if on_end is not None:
            on_end(error)

    def _fail(self, error: UpstreamError) -> None:
        if self.error is not None or self.is_whole:
            return
        self.error = error
        if self._head is not None and not self._head.done():
            self._head.set_exception(error)
        self._end(error)

    def _dropped(self) -> UpstreamConnectError:
        return UpstreamConnectError(f"{self.name} dropped the request", reachable=True)
