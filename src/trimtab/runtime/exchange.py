"""One request of a client with the way to answer it: what the gateway sees of the front."""

import asyncio
from collections.abc import Callable
from typing import Protocol

from trimtab.runtime.wire import (
    ApiError,
    Headers,
    Pairs,
    error_body,
    error_event,
    error_headers,
    response_head,
)


class ClientGoneError(ConnectionError):
    """The client left before its whole request had come."""


class Line(Protocol):
    """The connection an exchange goes over."""

    is_full: bool
    """Whether the client takes less than it is sent."""

    send: Callable[[bytes], None]
    """Queues bytes for the client."""

    def abort(self) -> None:
        """Close at once, whatever is unsent."""
        ...

    def wanted(self, exchange: "Exchange") -> None:
        """Hear that the rest of a body is waited for."""
        ...


def _nothing() -> None:
    return


class Exchange:
    """A request and its answer.

    The answer is either whole (`answer`) or begun, written to and ended. Writing never waits: `on_pause` and
    `on_resume` tell the writer when the client takes less than it is given.
    """

    def __init__(
        self,
        line: Line,
        *,
        method: bytes,
        target: bytes,
        headers: Headers,
        version: bytes,
        keep_alive: bool,
        peer: str | None = None,
    ) -> None:
        self._line = line
        self.put: Callable[[bytes], None] = line.send
        """Queues bytes as they are: whole HTTP chunks, where `is_chunked` and the answer is not over.

        Raises RuntimeError in the moment between the end of a client's connection and the word of it, under uvloop.
        """
        self._is_shut = False
        self.method = method
        self.target = target
        """Path and query as they came."""
        self.headers = headers
        self.version = version
        self.keep_alive = keep_alive
        self.peer = peer
        """Address of the client, None where there is none."""
        self.refused: ApiError | None = None
        """Why the front would not take the whole request."""
        self.on_pause: Callable[[], None] = _nothing
        self.on_resume: Callable[[], None] = _nothing
        self.begun = False
        self.is_events = False
        """Whether the answer is a stream of events, in which an error can be told after it has begun."""
        self.is_over = False
        self.is_read = False
        self.is_gone = False
        self._parts: list[bytes] = []
        self.size = 0
        """Bytes of the body that have come."""
        self._waiter: asyncio.Future[None] | None = None
        self._chunked = False
        self._bodiless = method == b"HEAD"

    @property
    def is_full(self) -> bool:
        """Whether the client takes less than it is sent."""
        return self._line.is_full

    @property
    def path(self) -> str:
        """The path without its query."""
        return self.target.partition(b"?")[0].decode("latin-1")

    async def read(self) -> bytes:
        """Return the body once it is there; raises the error of a front that refused it, `ClientGoneError`."""
        if not self.is_read and self.refused is None and not self.is_gone:
            self._line.wanted(self)
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        if self.refused is not None:
            raise self.refused
        if self.is_gone and not self.is_read:
            raise ClientGoneError("the client left while it sent its request")
        parts, self._parts = self._parts, []
        return b"".join(parts)

    def fed(self, data: bytes) -> None:
        """Take in a part of the body; what comes after the end of the answer is dropped."""
        self.size += len(data)
        if not self.is_over:
            self._parts.append(data)

    def all_read(self) -> None:
        """Hear that the body is complete."""
        self.is_read = True
        self._wake()

    def refuse(self, error: ApiError) -> None:
        """End the reading: the request is answered with this error."""
        if self.refused is None and not self.is_read:
            self.refused = error
            self.keep_alive = False
            self._wake()

    def gone(self) -> None:
        """Hear that the client left."""
        self.is_gone = self._is_shut = True
        self._parts.clear()
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def answer(self, status: int, headers: Pairs, body: bytes) -> None:
        """Send a whole answer. HEAD gets the head alone."""
        self.begun = True
        said = [*headers, (b"Content-Length", b"%d" % len(body)), *self._connection()]
        head = response_head(status, said, version=self.version)
        self._send(head if self._bodiless else head + body)
        self._over()

    def begin(self, status: int, headers: Pairs) -> None:
        """Send the head of an answer of unknown length; for HTTP/1.0 it ends with the connection."""
        self.begun = True
        self._chunked = self.version == b"1.1" and not self._bodiless
        said = list(headers)
        if self._chunked:
            said.append((b"Transfer-Encoding", b"chunked"))
        elif not self._bodiless:
            self.keep_alive = False
        self._send(response_head(status, said + self._connection(), version=self.version))

    def write(self, data: bytes, framed: bytes | None = None) -> None:
        """Send a part of a body; not empty. `framed`: the same as one HTTP chunk, where it came so."""
        if self._chunked:
            self._send(framed or b"%x\r\n%b\r\n" % (len(data), data))
        elif not self._bodiless:
            self._send(data)

    @property
    def is_chunked(self) -> bool:
        """Whether the answer has begun and goes out as HTTP chunks."""
        return self._chunked

    def end(self) -> None:
        """Send the end of a begun answer."""
        if self._chunked:
            self._send(b"0\r\n\r\n")
        self._over()

    def tell(self, error: ApiError, request_id: str | None = None) -> None:
        """Say an error: as the answer or the last event of a stream; other answers are cut off by the front."""
        if not self.begun:
            self.answer(error.status, error_headers(error, request_id), error_body(error))
        elif self.is_events and not self.is_over:
            self.write(error_event(error))
            self.end()

    def drop(self) -> None:
        """Close the connection: the client takes nothing of what it asked for."""
        self._line.abort()

    def _send(self, data: bytes) -> None:
        if self._is_shut:
            return
        try:
            self.put(data)
        except RuntimeError:
            self._is_shut = True

    def _over(self) -> None:
        if not self.is_over:
            self.is_over = self._is_shut = True
            self._parts.clear()

    def _connection(self) -> Pairs:
        if not self.keep_alive:
            return [(b"Connection", b"close")]
        return [(b"Connection", b"keep-alive")] if self.version == b"1.0" else []
