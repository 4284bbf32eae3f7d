"""Asks attached servers how they are: are they well, who are they, how loaded. It only ever reads.

Every answer has a limit in bytes and in seconds, and no redirect is followed: a key goes to the address that was named
and to no other.
"""

from collections.abc import Mapping
from typing import Final

import aiohttp
import msgspec
from yarl import URL

from trimtab.core.ports import Clock, EngineFormatError
from trimtab.core.served import EngineKind, ServerSample
from trimtab.engines.attached import (
    METRICS_PAGE,
    MODELS_PAGE,
    OWN_PAGES,
    Identity,
    identity_of,
    kind_of_server,
)
from trimtab.engines.served import read_sample
from trimtab.runtime.access import Access

PAGE_BYTES_MAX: Final = 16 * 1024 * 1024
HEALTH_PAGE: Final = "/health"
_CHUNK_BYTES: Final = 64 * 1024
_NO_SUCH_PAGE: Final = frozenset({404, 405, 501})
_KEY_REFUSED: Final = frozenset({401, 403})


class ReadError(RuntimeError):
    """A server did not give a page; the message says why, without its address.

    `status`: that of its answer, None if there was none.
    """

    def __init__(self, message: str, *, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status


class Seen(msgspec.Struct, frozen=True, kw_only=True):
    """One look at a server that is well. `sample`: its metrics, None with `because` where they cannot be read."""

    at_mono_s: float
    sample: ServerSample | None
    because: str = ""


class ServerReader:
    """Reads pages over one session. `close` it in the end."""

    def __init__(self, clock: Clock, *, timeout_s: float) -> None:
        self._clock = clock
        self._timeout_s = timeout_s
        self._session: aiohttp.ClientSession | None = None

    async def close(self) -> None:
        """Close every connection."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def look(self, url: str, access: Access, *, source: str) -> Seen:
        """Say how a server is; raises `ReadError` if it is not well or not there."""
        await self._well(url, access)
        try:
            sample = await self._sample(url, access, source)
        except ReadError as error:
            return Seen(at_mono_s=self._clock.mono_s(), sample=None, because=str(error))
        return Seen(at_mono_s=self._clock.mono_s(), sample=sample)

    async def identify(self, url: str, access: Access, *, source: str) -> Identity:
        """Say who a server is; raises `ReadError` where it cannot be told or is no OpenAI-compatible server."""
        models = await self._page_or_none(url, access, MODELS_PAGE)
        try:
            sample: ServerSample | None = await self._sample(url, access, source)
        except ReadError:
            sample = None
        try:
            engine = kind_of_server(sample, models)
            own = OWN_PAGES.get(engine)
            told = None if own is None else await self._page_or_none(url, access, own)
            return identity_of(engine, models=models, sample=sample, own=told)
        except EngineFormatError as error:
            raise ReadError(str(error)) from error

    async def _well(self, url: str, access: Access) -> None:
        try:
            await self._page(url, access, HEALTH_PAGE)
        except ReadError as error:
            if error.status not in _NO_SUCH_PAGE:
                raise
            await self._page(url, access, MODELS_PAGE)

    async def _sample(self, url: str, access: Access, source: str) -> ServerSample:
        body = await self._page(url, access, METRICS_PAGE)
        try:
            sample = read_sample(body, source=source, at_s=self._clock.wall_s())
        except EngineFormatError as error:
            raise ReadError(f"{METRICS_PAGE}: {error}") from error
        if sample.engine is EngineKind.UNKNOWN:
            raise ReadError(f"{METRICS_PAGE}: no metric on it is known, of any engine")
        return sample

    async def _page_or_none(self, url: str, access: Access, page: str) -> bytes | None:
        try:
            return await self._page(url, access, page)
        except ReadError as error:
            if error.status in _NO_SUCH_PAGE:
                return None
            raise

    async def _page(self, url: str, access: Access, page: str) -> bytes:
        """Return a page; raises `ReadError`."""
        try:
            return await self._fetch(URL(url + page, encoded=True), access.headers, access)
        except ReadError as error:
            raise ReadError(f"{page}: {error}", status=error.status) from error
        except TimeoutError as error:
            raise ReadError(f"{page}: no whole answer within {self._timeout_s:g} s") from error
        except aiohttp.ClientConnectorError as error:
            raise ReadError(f"no connection ({error.strerror or 'refused'})") from error
        except (aiohttp.ClientError, OSError) as error:
            raise ReadError(f"{page}: {type(error).__name__}") from error

    async def _fetch(self, url: URL, headers: Mapping[str, str], access: Access) -> bytes:
        session = self._open()
        tls = True if access.tls is None else access.tls
        async with session.get(url, headers=headers, ssl=tls, allow_redirects=False) as answer:
            if answer.status in _KEY_REFUSED:
                raise ReadError(
                    f"status {answer.status}: it wants another key than api_key names",
                    status=answer.status,
                )
            if answer.status != 200:
                raise ReadError(f"status {answer.status}", status=answer.status)
            found = bytearray()
            async for chunk in answer.content.iter_chunked(_CHUNK_BYTES):
                found += chunk
                if len(found) > PAGE_BYTES_MAX:
                    raise ReadError(f"its answer is longer than {PAGE_BYTES_MAX:,} bytes")
            return bytes(found)

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None:
            # Not kept alive: an idle connection would be one more that the server closes in our hands.
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0, force_close=True),
                timeout=aiohttp.ClientTimeout(total=self._timeout_s),
                cookie_jar=aiohttp.DummyCookieJar(),
            )
        return self._session
