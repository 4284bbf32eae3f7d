"""The client side of the gateway: pooled connections to all replicas, raw bytes, and a certain end.

Leaving `Upstream.send` before a body was read to its end closes the connection, and closing it is what makes an
engine stop: there is no other way to cancel a request.

A connection that carries a stream to llama.cpp is used once: its server says keep-alive and closes after every stream
all the same. Those of other engines are used again.
"""

import asyncio
import math
import re
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final

import msgspec

from trimtab.core.config import GatewayConfig
from trimtab.runtime.access import OPEN, Access
from trimtab.runtime.upstream_connection import (
    OpenLane,
    Sink,
    UpstreamBrokenError,
    UpstreamConnectError,
    UpstreamConnection,
    UpstreamError,
    UpstreamTimeoutError,
)
from trimtab.runtime.wire import Headers, Pairs, request_head

SWEEP_EVERY_S: Final = 1.0
IDLE_MAX: Final = 64
RESPONSE_BYTES_MAX: Final = 256 * 1024 * 1024
_TIMEOUT_HINT = re.compile(rb"timeout\s*=\s*(\d+)", re.IGNORECASE)


class Address(msgspec.Struct, frozen=True):
    """Where a replica listens."""

    host: str
    port: int
    secure: bool
    prefix: str = ""

    @property
    def authority(self) -> bytes:
        """What the Host header says."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}".encode()


_URL = re.compile(
    r"(?P<scheme>https?)://(?:\[(?P<v6>[0-9a-fA-F:.]+)\]|(?P<host>[^\s/:?#@\[\]]+))"
    r"(?::(?P<port>\d{1,5}))?(?P<prefix>/[^\s?#]*)?$"
)


def address_of(url: str) -> Address:
    """Read a replica's base URL; raises `UpstreamConnectError` for what is none."""
    found = _URL.match(url)
    if found is None:
        raise UpstreamConnectError(f"{url!r} is no http address", reachable=False)
    secure = found["scheme"] == "https"
    return Address(
        found["v6"] or found["host"],
        int(found["port"] or (443 if secure else 80)),
        secure,
        (found["prefix"] or "").rstrip("/"),
    )


class UpstreamResponse:
    """An answer whose head has arrived."""

    def __init__(self, connection: UpstreamConnection, config: GatewayConfig, url: str) -> None:
        self._connection = connection
        self._config = config
        self._url = url
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._paused_s: float | None = None
        self.on_stuck: Callable[[], None] = lambda: None
        """Hears that the client has taken nothing for the longest silence."""
        self._got_body = False
        self._sink: Sink = lambda *_: None
        self._open_lane: OpenLane | None = None
        self._lane_silent_s: Callable[[], float] = lambda: math.inf
        self.status = connection.status
        self.headers: Headers = connection.headers

    @property
    def config(self) -> GatewayConfig:
        """The limits that this answer is taken under."""
        return self._config

    @property
    def seen_s(self) -> float:
        """When something came last, by the loop's clock."""
        return max(self._connection.seen_s, self._loop.time() - self._lane_silent_s())

    @property
    def is_event_stream(self) -> bool:
        """Whether the body is a stream of server-sent events."""
        kind = self.headers.raw(b"content-type") or b""
        return kind.partition(b";")[0].strip().lower() == b"text/event-stream"

    async def pump(
        self,
        sink: Sink,
        open_lane: OpenLane | None = None,
        lane_silent_s: Callable[[], float] = lambda: math.inf,
    ) -> None:
        """Give the body's bytes to `sink` as they arrive, at once and in the loop's own call.

        What `open_lane` opens is asked first, once the body has begun and where a chunk begins; `lane_silent_s` says
        how many seconds ago it took something.
        Raises `UpstreamBrokenError`, `UpstreamTimeoutError`, and what `sink` raises as an `UpstreamError`.
        """
        done: asyncio.Future[None] = self._loop.create_future()

        def ended(error: UpstreamError | None) -> None:
            if done.done():
                return
            if error is None:
                done.set_result(None)
            else:
                done.set_exception(error)

        self._sink, self._open_lane, self._lane_silent_s = sink, open_lane, lane_silent_s
        self._connection.listen(self._first, ended)
        self._watch()
        try:
            await done
        finally:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None

    def _first(self, data: bytes, framed: bytes | None) -> None:
        self._got_body = True
        self._connection.redirect(self._sink, self._open_lane)
        self._sink(data, framed)

    async def read(self) -> bytes:
        """Return the whole body; raises like `pump`, and `UpstreamBrokenError` beyond 256 MiB."""
        parts: list[bytes] = []
        size = 0

        def take(data: bytes, _: bytes | None) -> None:
            nonlocal size
            parts.append(data)
            size += len(data)
            if size > RESPONSE_BYTES_MAX:
                parts.clear()
                self.fail(
                    UpstreamBrokenError(f"{self._url} answered more than {RESPONSE_BYTES_MAX} B")
                )

        await self.pump(take)
        return b"".join(parts)

    def pause(self) -> None:
        """Take no more from the replica; its silence is not its own then."""
        self._paused_s = self._loop.time()
        self._connection.pause()

    def resume(self) -> None:
        """Go on after `pause`."""
        self._paused_s = None
        self._connection.resume()

    def fail(self, error: UpstreamError) -> None:
        """End the answer with an error."""
        self._connection.fail(error)

    def _watch(self) -> None:
        """Look again when the replica may have been silent for too long: one timer, not one for each part."""
        config = self._config
        wait_s = config.idle_timeout_s if self._got_body else config.first_byte_timeout_s
        now_s = self._loop.time()
        left_s = self.seen_s + wait_s - now_s
        if self._paused_s is not None:
            # The silence is the client's.
            left_s = self._paused_s + config.idle_timeout_s - now_s
        if left_s <= 0 and self._paused_s is not None:
            self.on_stuck()
        elif left_s <= 0:
            self.fail(UpstreamTimeoutError(f"{self._url} was silent for {wait_s:g} s"))
        else:
            # Until the body begins the other limit may come to apply, which can be shorter.
            left_s = left_s if self._got_body else min(left_s, config.idle_timeout_s)
            self._timer = self._loop.call_later(left_s, self._watch)


class Upstream:
    """Sends requests to replicas."""

    def __init__(
        self, config: GatewayConfig, *, access: Callable[[str], Access] = lambda _: OPEN
    ) -> None:
        """Send as `config` says. `access`: how a replica is reached, by its base URL."""
        self._config = config
        self._access = access
        self._tls: ssl.SSLContext | None = None
        self._idle: dict[Address, list[tuple[float, UpstreamConnection]]] = {}
        self._open: set[UpstreamConnection] = set()
        self._addresses: dict[str, Address] = {}
        self._timer: asyncio.TimerHandle | None = None

    def use_config(self, config: GatewayConfig) -> None:
        """Send by other timeouts from the next request on."""
        self._config = config

    async def start(self) -> None:
        """Begin to close connections that nobody uses."""
        self._sweep()

    async def close(self) -> None:
        """Close every connection."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for connection in tuple(self._open):
            connection.close()
        self._idle.clear()
        # The loop tells the transports of their end in its next round.
        await asyncio.sleep(0)

    @property
    def connections(self) -> int:
        """Connections to replicas that are open."""
        return len(self._open)

    @asynccontextmanager
    async def send(
        self,
        base_url: str,
        target: bytes,
        body: bytes,
        headers: Pairs,
        *,
        stream: bool,
        method: bytes = b"POST",
        fresh: bool = False,
    ) -> AsyncIterator[UpstreamResponse]:
        """Send a request and yield its answer once the head is there. `stream`: it asks for a stream.

        `fresh`: over a new connection, so that it is sent once: one that lay idle may turn out to be closed.
        Raises `UpstreamConnectError` where not a byte of an answer came, `UpstreamTimeoutError` where that took
        too long, `UpstreamBrokenError` for what is no HTTP.
        """
        address, access = self._address(base_url), self._access(base_url)
        said = [*access.over(headers), (b"Content-Length", b"%d" % len(body))]
        is_single = stream and not access.keeps_streams
        if is_single:
            said.append((b"Connection", b"close"))
        head = request_head(method, address.prefix.encode() + target, address.authority, said)
        connection = None if is_single or fresh else self._pooled(address)
        if connection is not None:
            try:
                await self._asked(connection, head, body, method)
            except UpstreamConnectError:
                # The replica closed it while it lay idle: nothing came, so a fresh one may ask.
                connection.close()
                connection = None
            except BaseException:
                connection.close()
                raise
        if connection is None:
            connection = await self._connect(address, base_url, access)
            try:
                await self._asked(connection, head, body, method)
            except BaseException:
                connection.close()
                raise
        try:
            yield UpstreamResponse(connection, self._config, base_url)
        finally:
            self._release(address, connection, may_keep=not is_single)

    async def _asked(
        self, connection: UpstreamConnection, head: bytes, body: bytes, method: bytes
    ) -> None:
        wait_s = self._config.first_byte_timeout_s
        answered = connection.request(head, body, is_head_only=method == b"HEAD")
        if answered.done():
            await answered
            return
        silent = UpstreamTimeoutError(f"{connection.name} sent nothing for {wait_s:g} s")
        timer = asyncio.get_running_loop().call_later(wait_s, connection.fail, silent)
        try:
            await answered
        finally:
            timer.cancel()

    async def _connect(self, address: Address, base_url: str, access: Access) -> UpstreamConnection:
        loop, wait_s = asyncio.get_running_loop(), self._config.connect_timeout_s
        try:
            async with asyncio.timeout(wait_s):
                _, connection = await loop.create_connection(
                    lambda: UpstreamConnection(base_url),
                    address.host,
                    address.port,
                    ssl=(access.tls or self._tls_context()) if address.secure else None,
                )
        except TimeoutError as error:
            raise UpstreamConnectError(
                f"{base_url} did not accept within {wait_s:g} s", reachable=False
            ) from error
        except OSError as error:
            raise UpstreamConnectError(
                f"{base_url} cannot be reached: {error}", reachable=False
            ) from error
        connection.on_lost = self._open.discard
        self._open.add(connection)
        return connection

    def _tls_context(self) -> ssl.SSLContext:
        if self._tls is None:
            self._tls = ssl.create_default_context()
        return self._tls

    def _address(self, url: str) -> Address:
        found = self._addresses.get(url)
        if found is None:
            if len(self._addresses) > 4096:
                self._addresses.clear()
            found = self._addresses[url] = address_of(url)
        return found

    def _pooled(self, address: Address) -> UpstreamConnection | None:
        """Return the connection that lay idle for the shortest time, None where none is good."""
        now_s, idle = asyncio.get_running_loop().time(), self._idle.get(address, [])
        while idle:
            until_s, connection = idle.pop()
            if until_s > now_s and connection.is_reusable:
                return connection
            connection.close()
        return None

    def _release(self, address: Address, connection: UpstreamConnection, *, may_keep: bool) -> None:
        """Give a connection back that was read to its end, close any other."""
        idle = self._idle.setdefault(address, [])
        if not may_keep or not connection.is_reusable or len(idle) >= IDLE_MAX:
            connection.close()
            return
        keep_s = self._config.upstream_keepalive_s
        hint = _TIMEOUT_HINT.search(connection.headers.raw(b"keep-alive") or b"")
        if hint is not None:
            keep_s = min(keep_s, max(0.0, int(hint[1]) - 1.0))
        idle.append((asyncio.get_running_loop().time() + keep_s, connection))

    def _sweep(self) -> None:
        """Close what lay idle for too long; replicas that are gone leave nothing behind."""
        loop = asyncio.get_running_loop()
        now_s = loop.time()
        for address, idle in tuple(self._idle.items()):
            for until_s, connection in idle:
                if until_s <= now_s:
                    connection.close()
            self._idle[address] = [one for one in idle if one[0] > now_s and not one[1].is_lost]
            if not self._idle[address]:
                del self._idle[address]
        self._timer = loop.call_later(SWEEP_EVERY_S, self._sweep)
