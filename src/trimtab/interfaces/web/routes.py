"""The routes of the page: its files on `/`, what it shows under `/page/`.

The files hold nothing of the fleet and are open; everything under `/page/` answers loopback only, or the admin token.
State is made at most once a second, whoever asks, in a thread: reading the ledger never holds up traffic.
"""

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Final, TypeVar

import msgspec
from aiohttp import web

from trimtab import __version__
from trimtab.core.decision import FleetView
from trimtab.core.record import RequestRecord
from trimtab.core.state import EMPTY, State
from trimtab.interfaces.web.history import chain_of, happened, number_asked, state_asked
from trimtab.interfaces.web.levers import ROWS_MAX, LeverPart, lever_counts, lever_parts, lever_rows
from trimtab.interfaces.web.page import (
    LedgerPart,
    PageState,
    RunPart,
    diagnosis_part,
    replica_parts,
    traffic_part,
)
from trimtab.interfaces.web.recent import Recent, Reused, recent, reused_by_replica
from trimtab.runtime.ledger_reader import SqliteReader
from trimtab.runtime.ledger_rows import LedgerError
from trimtab.runtime.recent import RECORDS_MAX
from trimtab.runtime.supervisor import System
from trimtab.runtime.wire import ApiError

T = TypeVar("T")

EVERY_S: Final = 1.0
"""Time between two states of a live page, and the longest a state is used again."""

WAIT_S: Final = 2.0
"""Silence after which a page that waits for its first state is told that it is being made."""

LISTENERS_MAX: Final = 16
"""Pages that may listen at once; the next one is told to come back."""

SEND_S_MAX: Final = 10.0
"""A listener that takes longer to accept one state is let go."""

STATIC: Final = {
    "actions.js": "text/javascript",
    "app.js": "text/javascript",
    "chains.js": "text/javascript",
    "charts.js": "text/javascript",
    "dom.js": "text/javascript",
    "history.js": "text/javascript",
    "plots.js": "text/javascript",
    "sections.js": "text/javascript",
    "style.css": "text/css",
    "uPlot.LICENSE.txt": "text/plain",
    "uPlot.iife.min.js": "text/javascript",
    "uPlot.min.css": "text/css",
}
HEADERS: Final = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}


def page_routes(system: System) -> Iterable[web.AbstractRouteDef]:
    """Return the routes of the page. `system` may still be being built: it is first used by a request."""
    page = _Page(system)
    return (
        web.get("/", page.index),
        web.get("/static/{name}", page.file),
        web.get("/page/state", page.state),
        web.get("/page/events", page.events, allow_head=False),
        web.get("/page/chain/{lever}", page.chain),
        web.get("/page/levers", page.levers),
        web.get("/page/happened", page.happened),
    )


class _Page:
    """Serves one system's page."""

    def __init__(self, system: System) -> None:
        self._system = system
        self._since_s = system.clock.wall_s()
        self._files = {name: _file(name) for name in ("index.html", *STATIC)}
        self._making = asyncio.Lock()
        self._made: bytes = b""
        self._made_at_s = float("-inf")
        self._folded: State = EMPTY
        self._reading: asyncio.Task[tuple[State, str | None]] | None = None
        self._listeners = 0

    async def index(self, request: web.Request) -> web.Response:
        return self._answer("index.html", "text/html")

    async def file(self, request: web.Request) -> web.Response:
        name = request.match_info["name"]
        if name not in STATIC:
            raise web.HTTPNotFound
        return self._answer(name, STATIC[name])

    def _answer(self, name: str, content_type: str) -> web.Response:
        return web.Response(
            body=self._files[name], content_type=content_type, charset="utf-8", headers=HEADERS
        )

    async def state(self, request: web.Request) -> web.Response:
        self._system.gateway.check_admin(request)
        return _json(await self._current())

    async def chain(self, request: web.Request) -> web.Response:
        self._system.gateway.check_admin(request)
        lever, before = request.match_info["lever"], number_asked(request, "before")
        told = await _read(lambda: chain_of(self._path, lever, before))
        if not told.total:
            raise ApiError(
                404, "invalid_request_error", "not_found", f"no lever {lever!r} was proposed"
            )
        return _json(msgspec.json.encode(told))

    async def levers(self, request: web.Request) -> web.Response:
        self._system.gateway.check_admin(request)
        wanted, offset = state_asked(request), number_asked(request, "offset") or 0
        name = request.query.get("name", "")
        await self._current()
        state = self._folded
        found = await asyncio.to_thread(
            lever_rows, state, wanted=wanted, name=name, offset=offset, limit=ROWS_MAX
        )
        return _json(msgspec.json.encode(found))

    async def happened(self, request: web.Request) -> web.Response:
        self._system.gateway.check_admin(request)
        before = number_asked(request, "before")
        return _json(msgspec.json.encode(await _read(lambda: happened(self._path, before))))

    async def events(self, request: web.Request) -> web.StreamResponse:
        self._system.gateway.check_admin(request)
        if self._listeners >= LISTENERS_MAX:
            raise ApiError(
                503, "server_error", "overloaded", f"{LISTENERS_MAX} pages are listening already"
            )
        self._listeners += 1
        try:
            return await self._stream(request)
        finally:
            self._listeners -= 1

    async def _stream(self, request: web.Request) -> web.StreamResponse:
        stopped = self._system.gateway.stopped
        response = web.StreamResponse(
            headers={"Content-Type": "text/event-stream", "Cache-Control": "no-store"}
        )
        try:
            async with asyncio.timeout(SEND_S_MAX):
                await response.prepare(request)
            while not stopped.is_set():
                made = await self._made_while_saying_so(response)
                async with asyncio.timeout(SEND_S_MAX):
                    await response.write(b"event: state\ndata: " + made + b"\n\n")
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(stopped.wait(), EVERY_S)
            await response.write(b"event: end\ndata: {}\n\n")
        except TimeoutError:
            if request.transport is not None:
                request.transport.abort()
        except ConnectionResetError:
            # The page was closed; there is nobody left to tell.
            return response
        return response

    async def _made_while_saying_so(self, response: web.StreamResponse) -> bytes:
        """Return the state; a page that waits for a long ledger to be read hears that somebody is there."""
        making = asyncio.create_task(self._current())
        try:
            while True:
                done, _ = await asyncio.wait((making,), timeout=WAIT_S)
                if done:
                    return making.result()
                async with asyncio.timeout(SEND_S_MAX):
                    await response.write(b": reading the ledger\n\n")
        finally:
            making.cancel()

    async def _current(self) -> bytes:
        """Return the state as JSON, made anew if the last one is older than a second."""
        async with self._making:
            now_s = self._system.clock.mono_s()
            if now_s - self._made_at_s >= 0.9 * EVERY_S:
                self._made = msgspec.json.encode(await self._make())
                self._made_at_s = now_s
            return self._made

    async def _make(self) -> PageState:
        system = self._system
        now_s = system.clock.wall_s()
        view: FleetView = system.load.view(system.clock.mono_s())
        infos, records, plan = tuple(system.fleet.infos()), system.records, system.router.plan
        state, read_error = await self._catch_up()
        requests, reused = await asyncio.to_thread(_recently, records, now_s, self._since_s)
        levers, counts = await asyncio.to_thread(_levers, state)
        kv_used = {each.replica: each.kv_used_share for each in system.figures()}
        return PageState(
            at_s=now_s,
            run=RunPart(
                id=system.run_id,
                version=__version__,
                model=system.baseline.model.name,
                machine=system.hardware.label,
                up_s=max(0.0, now_s - self._since_s),
                stage=plan.stage,
                draining=system.gateway.is_draining,
            ),
            fleet=replica_parts(infos, view, kv_used, reused),
            traffic=traffic_part(plan, state),
            diagnosis=diagnosis_part(state, now_s),
            levers=levers,
            lever_counts=counts,
            requests=requests,
            ledger=LedgerPart(
                path=str(self._path),
                events=None if read_error else state.seq,
                lost=None if read_error else state.lost,
                healthy=system.ledger.healthy,
                unhealthy_reason=system.ledger.unhealthy_reason,
                read_error=read_error,
            ),
        )

    async def _catch_up(self) -> tuple[State, str | None]:
        """Fold what is new. A first fold of a long ledger goes on if whoever asked has left, and is not begun anew."""
        if self._reading is None:
            self._reading = asyncio.create_task(
                asyncio.to_thread(_caught_up, self._path, self._folded)
            )
        reading = self._reading
        try:
            self._folded, error = await asyncio.shield(reading)
        finally:
            if reading.done():
                self._reading = None
        return self._folded, error

    @property
    def _path(self) -> Path:
        return Path(self._system.config.ledger.path)


def _file(name: str) -> bytes:
    return (files("trimtab.interfaces.web") / "static" / name).read_bytes()


def _caught_up(path: Path, state: State) -> tuple[State, str | None]:
    """Fold what the ledger got since `state`; if it cannot be read, return `state` and why."""
    try:
        with SqliteReader(path) as reader:
            return reader.catch_up(state), None
    except LedgerError as error:
        return state, str(error)


def _recently(
    records: Sequence[RequestRecord], now_s: float, since_s: float
) -> tuple[Recent, dict[str, Reused]]:
    found = recent(records, now_s=now_s, since_s=since_s, records_max=RECORDS_MAX)
    return found, reused_by_replica(records, now_s=now_s)


def _levers(state: State) -> tuple[tuple[LeverPart, ...], dict[str, int]]:
    return lever_parts(state), lever_counts(state)


async def _read(work: Callable[[], T]) -> T:
    """Read the ledger in a thread; raises `ApiError` where it cannot be read."""
    try:
        return await asyncio.to_thread(work)
    except LedgerError as error:
        raise ApiError(503, "server_error", "ledger_unreadable", str(error)) from error


def _json(body: bytes) -> web.Response:
    return web.Response(
        body=body, content_type="application/json", headers={"Cache-Control": "no-store"}
    )
