"""Reads the metrics of servers that somebody else runs: addresses, saved scrapes, a Prometheus API.

It only ever reads. Every read has a limit in bytes and in seconds; a source that cannot be read is a `Failure` beside
what the others said, never a zero. A name before a source (`blue=http://...`) says which server it speaks of, so that
scrapes saved at different times become one server's window.
"""

import asyncio
import re
from collections.abc import Callable, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Final

import aiohttp
import msgspec
from yarl import URL

from trimtab.core.ports import Clock, EngineFormatError
from trimtab.core.served import EngineKind, ServerSample
from trimtab.engines.prom_api import read_api, window_query
from trimtab.engines.served import read_samples

BODY_BYTES_MAX: Final = 64 * 1024 * 1024
SOURCES_MAX: Final = 128
SCRAPES_MAX: Final = 10_000
READ_TIMEOUT_S: Final = 10.0
REDIRECTS_MAX: Final = 3
_CHUNK_BYTES: Final = 256 * 1024
_NAMED: Final = re.compile(r"([A-Za-z0-9_.-]{1,64})=(.+)", re.DOTALL)
_HOST_PORT: Final = re.compile(r"[A-Za-z0-9_.-]+:\d+(/.*)?")


class SourceError(ValueError):
    """A source that is none: neither an address nor a file; the message says what was meant and the fix."""


class SourceKind(StrEnum):
    """How a source is read."""

    URL = "url"
    FILE = "file"
    PROMETHEUS = "prometheus"


class Source(msgspec.Struct, frozen=True, kw_only=True):
    """One place to read. `server`: the name that the caller gave, empty if none; `selector`: for a Prometheus API."""

    kind: SourceKind
    place: str
    server: str = ""
    selector: str = ""

    @property
    def label(self) -> str:
        """How the source is called in answers: without user, password and query, which may hold secrets."""
        if self.kind is SourceKind.FILE:
            return self.place
        url = URL(self.place)
        bare = str(url.with_user(None).with_query(None).with_fragment(None))
        return f"{bare} {self.selector}" if self.selector else bare


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """A source that could not be read, and why."""

    source: str
    reason: str


class Scrape(msgspec.Struct, frozen=True, kw_only=True):
    """What one source said: its samples, oldest first (a Prometheus API holds several times and servers)."""

    source: Source
    samples: tuple[ServerSample, ...]


def parse_source(text: str) -> Source:
    """Return the source that an argument means; raises `SourceError`."""
    if "://" not in text and Path(text).is_file():
        return Source(kind=SourceKind.FILE, place=text)
    named = _NAMED.fullmatch(text)
    server, place = (named[1], named[2]) if named else ("", text)
    if place.startswith(("http://", "https://")):
        return Source(kind=SourceKind.URL, place=_metrics_url(place), server=server)
    if Path(place).is_file():
        return Source(kind=SourceKind.FILE, place=place, server=server)
    if Path(place).is_dir():
        raise SourceError(f"{place} is a folder; name the scrapes in it")
    if _HOST_PORT.fullmatch(place):
        raise SourceError(f"{place} is no file; for an address write http://{place}")
    raise SourceError(f"{place} is neither a file nor an address that begins with http://")


def prometheus_source(url: str, selector: str) -> Source:
    """Return the source that is a Prometheus API; raises `SourceError`."""
    if not url.startswith(("http://", "https://")):
        raise SourceError(f"{url} is no address; write http://HOST:9090")
    _checked(url)
    try:
        window_query(selector, 1.0)
    except EngineFormatError as error:
        raise SourceError(str(error)) from error
    return Source(kind=SourceKind.PROMETHEUS, place=url.rstrip("/"), selector=selector)


def _metrics_url(text: str) -> str:
    url = _checked(text)
    return str(url.with_path("/metrics")) if url.path in {"", "/"} and not url.query else text


def _checked(text: str) -> URL:
    try:
        url = URL(text)
    except ValueError as error:
        raise SourceError(f"{text} is no address: {error}") from error
    if not url.host:
        raise SourceError(f"{text} is no address: it names no host")
    return url


def read_file(source: Source) -> Scrape | Failure:
    """Read a saved scrape; its time is that of the file's last change."""
    path = Path(source.place)
    try:
        size = path.stat().st_size
        if size > BODY_BYTES_MAX:
            return _failed(source, f"it has {size:,} bytes, more than {BODY_BYTES_MAX:,}")
        body, at_s = path.read_bytes(), path.stat().st_mtime
    except OSError as error:
        return _failed(source, error.strerror or str(error))
    return _read(source, lambda: _page(body, source, at_s))


class Scraper:
    """Reads sources again and again over one session. Use as an async context manager."""

    def __init__(self, sources: Sequence[Source], clock: Clock, *, window_s: float) -> None:
        self._sources = tuple(sources)
        self._clock = clock
        self._window_s = window_s
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> "Scraper":
        self._session = aiohttp.ClientSession(
            timeout=aiohttp.ClientTimeout(total=READ_TIMEOUT_S),
            headers={"Accept": "text/plain;version=0.0.4, */*;q=0.5"},
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._session is not None:
            await self._session.close()

    async def scrape(self) -> tuple[Scrape | Failure, ...]:
        """Read every source once, all at the same time, in the order in which they were given."""
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(self._one(source)) for source in self._sources]
        return tuple(task.result() for task in tasks)

    async def _one(self, source: Source) -> Scrape | Failure:
        assert self._session is not None, "a scraper is used inside its context"
        url, params = source.place, None
        if source.kind is SourceKind.PROMETHEUS:
            url = f"{source.place}/api/v1/query"
            params = {"query": window_query(source.selector, self._window_s)}
        try:
            body = await self._fetch(self._session, url, params)
        except TimeoutError:
            return _failed(source, f"no whole answer within {READ_TIMEOUT_S:g} s")
        except aiohttp.ClientConnectorError as error:
            return _failed(source, f"no connection ({error.strerror or error})")
        except aiohttp.ClientError as error:
            return _failed(source, f"it cannot be read ({str(error) or type(error).__name__})")
        except EngineFormatError as error:
            return _failed(source, str(error))
        at_s = self._clock.wall_s()
        if source.kind is SourceKind.PROMETHEUS:
            return _read(source, lambda: _api(body, source, at_s))
        return _read(source, lambda: _page(body, source, at_s))

    async def _fetch(
        self, session: aiohttp.ClientSession, url: str, params: dict[str, str] | None
    ) -> bytes:
        async with session.get(url, params=params, max_redirects=REDIRECTS_MAX) as answer:
            found = bytearray()
            async for chunk in answer.content.iter_chunked(_CHUNK_BYTES):
                found += chunk
                if len(found) > BODY_BYTES_MAX:
                    raise EngineFormatError(f"its answer is longer than {BODY_BYTES_MAX:,} bytes")
            # An API explains a refusal in its body; a page of metrics does not.
            explains = params is not None and answer.status in {400, 422, 503}
            if answer.status >= 400 and not explains:
                raise EngineFormatError(f"it answered with status {answer.status}")
            return bytes(found)


async def watch_window(
    sources: Sequence[Source],
    *,
    clock: Clock,
    window_s: float,
    scrapes: int,
    on_progress: Callable[[int, int], None] | None = None,
) -> tuple[Scrape | Failure, ...]:
    """Read files once and addresses `scrapes` times over `window_s` seconds; a Prometheus API remembers by itself.

    Returns one entry for every read, in order of time for each source.
    """
    found = [read_file(source) for source in sources if source.kind is SourceKind.FILE]
    remote = [source for source in sources if source.kind is not SourceKind.FILE]
    live = [source for source in remote if source.kind is SourceKind.URL]
    rounds = scrapes if live and window_s > 0 else 1
    started_s = clock.mono_s()
    async with Scraper(remote, clock, window_s=window_s) as scraper:
        for number in range(rounds if remote else 0):
            due_s = started_s + window_s * number / max(1, rounds - 1)
            await asyncio.sleep(max(0.0, due_s - clock.mono_s()))
            seen = await scraper.scrape()
            found += seen if number == rounds - 1 else _only(seen, SourceKind.URL)
            if on_progress is not None:
                on_progress(number + 1, rounds)
    return tuple(found)


def _only(seen: Sequence[Scrape | Failure], kind: SourceKind) -> list[Scrape | Failure]:
    return [each for each in seen if isinstance(each, Failure) or each.source.kind is kind]


def _api(body: bytes, source: Source, at_s: float) -> tuple[ServerSample, ...]:
    samples = read_api(body, source=source.label, at_s=at_s)
    if not samples:
        raise EngineFormatError("no series of a known metric matches the selector in the window")
    return samples


def _page(body: bytes, source: Source, at_s: float) -> tuple[ServerSample, ...]:
    samples = read_samples(body, source=source.label, at_s=at_s)
    if samples[0].engine is EngineKind.UNKNOWN:
        raise EngineFormatError("no metric on it is known, of any engine")
    return samples


def _read(source: Source, read: Callable[[], Sequence[ServerSample]]) -> Scrape | Failure:
    try:
        return Scrape(source=source, samples=tuple(read()))
    except EngineFormatError as error:
        return _failed(source, str(error))


def _failed(source: Source, reason: str) -> Failure:
    return Failure(source=source.label, reason=reason)
