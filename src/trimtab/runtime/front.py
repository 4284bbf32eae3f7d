"""The client side of the data path: HTTP/1.1 of untrusted clients, parsed by llhttp in its strict mode.

Requests for /v1 are answered here. Any other connection is handed to the server of the pages with every byte read so
far, and stays there. What the parser refuses (two lengths, a length beside chunks, folded or bare lines, a broken
chunk) is answered with 400 and the connection is closed: nothing behind it is read as a request.

A connection is read while its request is served, for only so is a client seen leaving. Requests sent ahead are parsed
and wait their turn; beyond the first, reading stops until it is taken.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Final, TypeAlias, cast

import httptools

from trimtab.runtime.exchange import Exchange
from trimtab.runtime.front_rules import (
    AHEAD_MAX,
    FAILED,
    HEADERS_MAX,
    LINGER_S,
    FrontLimits,
    body_too_large,
    head_too_large,
    is_page,
    malformed,
    path_of,
    too_slow,
    wrong_head,
)
from trimtab.runtime.wire import ApiError, Headers, Pairs, error_body, error_headers, response_head

Serve: TypeAlias = Callable[[Exchange], Coroutine[object, object, None]]
Pages: TypeAlias = Callable[[], asyncio.Protocol]

_LOG = logging.getLogger(__name__)
_GONE: Final = (OSError, RuntimeError)
"""What a transport raises whose client has gone while nobody has told us yet; uvloop's own is the second."""

_CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"


class Front(asyncio.Protocol):
    """One connection of a client."""

    def __init__(
        self, serve: Serve, pages: Pages, limits: FrontLimits, connections: "set[Front]"
    ) -> None:
        self._serve = serve
        self._pages = pages
        self._limits = limits
        self._connections = connections
        self._loop = asyncio.get_running_loop()
        self._parser = httptools.HttpRequestParser(self)
        self._held = b""
        self._reading: Exchange | None = None
        self._serving: Exchange | None = None
        self._task: asyncio.Task[None] | None = None
        self._ahead: deque[Exchange] = deque()
        self._in_head = False
        self._url = b""
        self._pairs: Pairs = []
        self._head_bytes = 0
        self._broken: ApiError | None = None
        self._is_closing = False
        self._is_paused = False
        self.is_full = False
        """Whether the client takes less than it is sent."""
        self._since_s = self._loop.time()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self.send: Callable[[bytes], None] = self._transport.write
        self._connections.add(self)
        peer = transport.get_extra_info("peername")
        self._peer = peer[0] if isinstance(peer, tuple) else None

    def connection_lost(self, exc: Exception | None) -> None:
        self._connections.discard(self)
        self._is_closing = True
        for exchange in (self._reading, self._serving, *self._ahead):
            if exchange is not None:
                exchange.gone()
        self._ahead.clear()
        if self._task is not None:
            self._task.cancel()

    def eof_received(self) -> bool:
        """Take the end of what a client sends as its leaving, as proxies do."""
        return False

    def pause_writing(self) -> None:
        self.is_full = True
        if self._serving is not None:
            self._serving.on_pause()

    def resume_writing(self) -> None:
        self.is_full = False
        if self._serving is not None:
            self._serving.on_resume()

    # What comes

    def data_received(self, data: bytes) -> None:
        if self._is_closing or self._broken is not None:
            return
        if self._reading is not None:
            self._since_s = self._loop.time()
        elif self._is_between:
            if not self._held:
                self._since_s = self._loop.time()
            ours = self._claim(self._held + data)
            if ours is None:
                return
            data = ours
        self._feed(data)

    @property
    def _is_between(self) -> bool:
        """Whether the next byte begins a request and none is being served."""
        return not self._in_head and self._reading is None and self._serving is None

    def _claim(self, data: bytes) -> bytes | None:
        """Return what is ours to parse, None when a line is not complete or the connection was handed over."""
        data = data.lstrip(b"\r\n")
        if b"\n" not in data and len(data) < self._limits.head_bytes_max:
            self._held = data
            return None
        self._held = b""
        if is_page(data):
            self._hand_over(data)
            return None
        return data

    def _hand_over(self, data: bytes) -> None:
        self._connections.discard(self)
        self._is_closing = True
        pages = self._pages()
        self._transport.set_protocol(pages)
        pages.connection_made(self._transport)
        pages.data_received(data)

    def _feed(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            self._without_upgrade(data[upgrade.args[0] :])
            return
        except httptools.HttpParserError as error:
            self._refuse_rest(self._broken or malformed(str(error)))
            return
        if self._in_head:
            self._head_bytes += len(data)
            if self._head_bytes > 2 * self._limits.head_bytes_max:
                self._refuse_rest(head_too_large(self._limits))
        elif self._broken is not None:
            self._refuse_rest(self._broken)

    def _without_upgrade(self, rest: bytes) -> None:
        """Parse a request again without its wish to speak another protocol, which a server may ignore."""
        exchange = self._reading
        self._reading = None
        if exchange is None or exchange.method == b"CONNECT":
            self._refuse_rest(malformed("this is no tunnel"))
            return
        dropped = (b"upgrade", b"http2-settings", b"connection")
        lines = [b"%b %b HTTP/1.1\r\n" % (exchange.method, exchange.target)]
        lines += [
            b"%b: %b\r\n" % pair
            for pair in exchange.headers.pairs
            if pair[0].lower() not in dropped
        ]
        self._parser = httptools.HttpRequestParser(self)
        self._feed(b"".join(lines) + b"\r\n" + rest)

    # The parser's calls

    def on_message_begin(self) -> None:
        self._in_head = True
        self._url = b""
        self._pairs = []
        self._head_bytes = 0

    def on_url(self, url: bytes) -> None:
        self._url += url
        self._counted(len(url))

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._in_head:
            self._pairs.append((name, value))
            self._counted(len(name) + len(value) + 4)

    def _counted(self, size: int) -> None:
        self._head_bytes += size
        if self._head_bytes > self._limits.head_bytes_max or len(self._pairs) > HEADERS_MAX:
            self._stop_parsing(head_too_large(self._limits))

    def _stop_parsing(self, error: ApiError) -> None:
        self._broken = error
        raise error

    def on_headers_complete(self) -> None:
        self._in_head = False
        version = self._parser.get_http_version().encode()
        headers = Headers(self._pairs)
        target = path_of(self._url)
        error = wrong_head(version, headers, target)
        if error is not None:
            self._stop_parsing(error)
        exchange = Exchange(
            self,
            method=self._parser.get_method(),
            target=target,
            headers=headers,
            version=version,
            keep_alive=self._parser.should_keep_alive(),
            peer=self._peer,
        )
        self._reading = exchange
        if self._parser.should_upgrade():
            return
        length = headers.raw(b"content-length")
        if length is not None and int(length) > self._limits.body_bytes_max:
            exchange.refuse(body_too_large(self._limits))
        self._queue(exchange)

    def _queue(self, exchange: Exchange) -> None:
        if self._serving is None:
            self._start(exchange)
            return
        self._ahead.append(exchange)
        if len(self._ahead) > AHEAD_MAX:
            self._ahead.pop()
            self._stop_parsing(malformed(f"more than {AHEAD_MAX} requests are sent ahead"))
        self._pause_reading()

    def on_body(self, data: bytes) -> None:
        exchange = self._reading
        if exchange is None or exchange.refused is not None:
            return
        exchange.fed(data)
        if exchange.size > self._limits.body_bytes_max:
            exchange.refuse(body_too_large(self._limits))

    def on_message_complete(self) -> None:
        exchange = self._reading
        if exchange is None or self._parser.should_upgrade():
            return
        self._reading = None
        exchange.all_read()

    # The exchange's calls

    def wanted(self, exchange: Exchange) -> None:
        """See `Line`."""
        if exchange.headers.raw(b"expect") == b"100-continue" and not exchange.size:
            self.send(_CONTINUE)
        self._resume_reading()

    # Serving

    def _start(self, exchange: Exchange) -> None:
        self._serving = exchange
        if not self._ahead:
            self._resume_reading()
        self._task = self._loop.create_task(self._serve(exchange))
        self._task.add_done_callback(self._served)

    def _served(self, task: "asyncio.Task[None]") -> None:
        exchange, self._serving, self._task = self._serving, None, None
        assert exchange is not None
        self._since_s = self._loop.time()
        if not task.cancelled() and task.exception() is not None:
            _LOG.error("serving %s failed", exchange.path, exc_info=task.exception())
        if self._is_closing or exchange.is_gone:
            return
        if not exchange.begun:
            exchange.answer(500, error_headers(FAILED), error_body(FAILED))
        if not exchange.is_over:
            self._transport.abort()
        elif not exchange.keep_alive or not exchange.is_read:
            self._close(linger=not exchange.is_read)
        elif self._ahead:
            self._start(self._ahead.popleft())
        elif self._broken is not None:
            self._say(self._broken)
        else:
            self._resume_reading()

    def _refuse_rest(self, error: ApiError) -> None:
        """Read no more of a connection: what is being served ends, then the client is told and the rest dropped."""
        self._broken = error
        self._in_head = False
        reading, self._reading = self._reading, None
        if reading is not None and not reading.is_read:
            reading.refuse(error)
        elif self._serving is None:
            self._say(error)

    def _say(self, error: ApiError) -> None:
        said = [
            *error_headers(error),
            (b"Content-Length", b"%d" % len(error_body(error))),
            (b"Connection", b"close"),
        ]
        try:
            self.send(response_head(error.status, said) + error_body(error))
        except _GONE:
            self.abort()
            return
        self._close(linger=True)

    def _close(self, *, linger: bool = False) -> None:
        """Close once all is sent. `linger`: read what still comes, or a reset would overtake the answer."""
        self._is_closing = True
        if not linger:
            self._transport.close()
            return
        self._since_s = self._loop.time()
        try:
            if self._transport.can_write_eof():
                self._transport.write_eof()
        except _GONE:
            self._transport.abort()
            return
        self._resume_reading()

    def close_when_idle(self) -> None:
        """Take no further request; a connection without one is closed."""
        if self._serving is not None:
            self._serving.keep_alive = False
        else:
            self._close()

    def abort(self) -> None:
        """Close at once, whatever is unsent."""
        self._is_closing = True
        if self._serving is not None:
            self._serving.gone()
        self._transport.abort()

    # Reading and time

    def _pause_reading(self) -> None:
        if not self._is_paused and not self._is_closing:
            self._is_paused = True
            self._transport.pause_reading()

    def _resume_reading(self) -> None:
        if self._is_paused:
            self._is_paused = False
            self._transport.resume_reading()

    def look(self, now_s: float) -> None:
        """See whether the client has been too slow; called every now and then."""
        limits, waited_s = self._limits, now_s - self._since_s
        if self._is_closing:
            if waited_s > LINGER_S:
                self._transport.abort()
        elif self._is_between and not self._held:
            if waited_s > limits.keep_alive_s:
                self._close()
        elif self._in_head or self._is_between:
            if waited_s > limits.head_s and self._serving is None:
                self._refuse_rest(too_slow("head", limits.head_s))
        elif self._reading is not None and waited_s > limits.body_idle_s:
            self._refuse_rest(too_slow("body", limits.body_idle_s))
