"""The client side of the gateway: one pooled session to all replicas, raw bytes, and a certain end.

Leaving `Upstream.send` before a body was read to its end closes the connection, and closing it is what makes an
engine stop: there is no other way to cancel a request.

A connection that carries a stream is used once. llama.cpp's server says keep-alive and closes after every stream all
the same; a request that met the closing connection would be sent to another replica, away from its cached prefix.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Final

import aiohttp
from yarl import URL

from trimtab.core.config import GatewayConfig

POOL_KEEPALIVE_S: Final = 3.0
"""Shorter than the 5 s of llama.cpp's server: a pooled connection is dropped by us first."""

RESPONSE_BYTES_MAX: Final = 256 * 1024 * 1024


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
    """A replica's connection ended in the middle of an answer."""


class UpstreamResponse:
    """An answer whose head has arrived."""

    def __init__(self, response: aiohttp.ClientResponse, config: GatewayConfig, url: str) -> None:
        self._response = response
        self._config = config
        self._url = url
        self.status = response.status
        self.headers = response.headers

    @property
    def is_event_stream(self) -> bool:
        """Whether the body is a stream of server-sent events."""
        return self._response.content_type == "text/event-stream"

    async def chunks(self) -> AsyncIterator[bytes]:
        """Yield the body's bytes as they arrive; raises `UpstreamBrokenError`, `UpstreamTimeoutError`."""
        wait_s = self._config.first_byte_timeout_s
        while True:
            chunk = await self._next(wait_s)
            if not chunk:
                return
            yield chunk
            wait_s = self._config.idle_timeout_s

    async def read(self) -> bytes:
        """Return the whole body; raises like `chunks`, and `UpstreamBrokenError` beyond 256 MiB."""
        parts: list[bytes] = []
        size = 0
        async for chunk in self.chunks():
            parts.append(chunk)
            size += len(chunk)
            if size > RESPONSE_BYTES_MAX:
                raise UpstreamBrokenError(f"{self._url} answered more than {RESPONSE_BYTES_MAX} B")
        return b"".join(parts)

    async def _next(self, wait_s: float) -> bytes:
        try:
            async with asyncio.timeout(wait_s):
                return await self._response.content.readany()
        except TimeoutError as error:
            raise UpstreamTimeoutError(f"{self._url} was silent for {wait_s:g} s") from error
        except (aiohttp.ClientError, OSError) as error:
            raise UpstreamBrokenError(f"{self._url} broke off its answer: {error}") from error


class Upstream:
    """Sends requests to replicas."""

    def __init__(self, config: GatewayConfig) -> None:
        self._config = config
        self._pooled: aiohttp.ClientSession | None = None
        self._single: aiohttp.ClientSession | None = None

    async def start(self) -> None:
        """Open the pool."""
        self._pooled = self._session(
            aiohttp.TCPConnector(limit=0, keepalive_timeout=POOL_KEEPALIVE_S)
        )
        self._single = self._session(aiohttp.TCPConnector(limit=0, force_close=True))

    def _session(self, connector: aiohttp.TCPConnector) -> aiohttp.ClientSession:
        return aiohttp.ClientSession(
            connector=connector,
            timeout=aiohttp.ClientTimeout(
                total=None, sock_connect=self._config.connect_timeout_s, sock_read=None
            ),
            # The bytes pass as they are: nothing is decoded, and no cookie of one client meets another.
            auto_decompress=False,
            cookie_jar=aiohttp.DummyCookieJar(),
            skip_auto_headers=("User-Agent", "Accept", "Accept-Encoding", "Content-Type"),
        )

    async def close(self) -> None:
        """Close every connection."""
        for session in (self._pooled, self._single):
            if session is not None:
                await session.close()
        self._pooled = self._single = None

    @asynccontextmanager
    async def send(
        self, base_url: str, path: str, body: bytes, headers: Mapping[str, str], *, stream: bool
    ) -> AsyncIterator[UpstreamResponse]:
        """Send a request and yield its answer once the head is there. `stream`: it asks for a stream.

        Raises `UpstreamConnectError` where not a byte of an answer came, `UpstreamTimeoutError` where that took
        too long.
        """
        session = self._single if stream else self._pooled
        assert session is not None, "start() comes first"
        response = await self._head(session, f"{base_url.rstrip('/')}{path}", body, headers)
        try:
            yield UpstreamResponse(response, self._config, base_url)
        finally:
            # Gives a connection back that was read to its end, closes any other.
            if not response.content.at_eof():
                response.close()
            response.release()

    async def _head(
        self, session: aiohttp.ClientSession, url: str, body: bytes, headers: Mapping[str, str]
    ) -> aiohttp.ClientResponse:
        wait_s = self._config.first_byte_timeout_s
        try:
            async with asyncio.timeout(wait_s):
                return await session.post(
                    URL(url, encoded=True), data=body, headers=dict(headers), allow_redirects=False
                )
        except aiohttp.ConnectionTimeoutError as error:
            raise UpstreamConnectError(
                f"{url} did not accept within {self._config.connect_timeout_s:g} s", reachable=False
            ) from error
        except TimeoutError as error:
            raise UpstreamTimeoutError(f"{url} sent nothing for {wait_s:g} s") from error
        except aiohttp.ClientConnectorError as error:
            raise UpstreamConnectError(
                f"{url} cannot be reached: {error}", reachable=False
            ) from error
        except (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError) as error:
            raise UpstreamConnectError(
                f"{url} dropped the request: {error}", reachable=True
            ) from error
        except aiohttp.ClientError as error:
            raise UpstreamBrokenError(f"{url} does not speak HTTP: {error}") from error
