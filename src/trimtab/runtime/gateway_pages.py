"""Everything the gateway serves beside /v1: health, metrics, debug pages and what the page adds.

An aiohttp application, handed each connection whose first request is not for /v1. Every answer closes its connection,
so that the next request may be for /v1 again.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable

import msgspec
from aiohttp import web
from aiohttp.typedefs import Handler

from trimtab.core.ports import Clock
from trimtab.policies.router import Router
from trimtab.runtime.admin import AdminDoor
from trimtab.runtime.fleetpage import fleet_page
from trimtab.runtime.isolation import ROUTE as ISOLATION
from trimtab.runtime.isolation import IsolationReport
from trimtab.runtime.metrics import CONTENT_TYPE, GatewayMetrics
from trimtab.runtime.wire import ApiError, error_response

BODY_BYTES_MAX = 32 * 1024 * 1024
STOP_WAIT_S = 2.0


class GatewayPages:
    """The pages of one gateway. `check_admin` is asked before a page that is not for everybody."""

    def __init__(
        self,
        router: Router,
        metrics: GatewayMetrics,
        clock: Clock,
        extra_routes: Iterable[web.AbstractRouteDef],
        admin_token: str | None,
        *,
        is_draining: Callable[[], bool],
        check_admin: Callable[[web.Request], None],
        isolation: Callable[[], Awaitable[IsolationReport]] | None = None,
    ) -> None:
        self._router = router
        self._metrics = metrics
        self._clock = clock
        self._extra_routes = tuple(extra_routes)
        self._door = AdminDoor(admin_token)
        self._isolation = isolation
        self._testing = asyncio.Lock()
        self._is_draining = is_draining
        self._check_admin = check_admin
        self._runner: web.AppRunner | None = None

    async def start(self) -> None:
        """Get ready for connections."""
        app = web.Application(client_max_size=BODY_BYTES_MAX, middlewares=[_errors_as_json])
        app.on_response_prepare.append(_close_after)
        app.add_routes(
            [
                web.get("/healthz", self.health),
                web.get("/metrics", self.metrics_page),
                web.get("/debug/fleet", self.fleet),
                web.post(ISOLATION, self.isolation),
            ]
        )
        app.add_routes(self._extra_routes)
        self._runner = web.AppRunner(
            app, handler_cancellation=True, access_log=None, shutdown_timeout=STOP_WAIT_S
        )
        await self._runner.setup()

    def connection(self) -> asyncio.Protocol:
        """Return what takes a connection over."""
        server = None if self._runner is None else self._runner.server
        assert server is not None, "start() comes first"
        return server()

    async def stop(self) -> None:
        """End every answer and close the connections."""
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    async def health(self, request: web.Request) -> web.Response:
        """Say whether requests are served: 200, or 503 with the reason."""
        ready = len(self._router.load.ready())
        is_draining = self._is_draining()
        is_serving = ready > 0 and not is_draining
        said = "ok" if is_serving else "draining" if is_draining else "no replica is ready"
        return _json({"status": said, "ready": ready}, status=200 if is_serving else 503)

    async def metrics_page(self, request: web.Request) -> web.Response:
        """Return the counters and histograms."""
        self._check_admin(request)
        return web.Response(body=self._metrics.page(), headers={"Content-Type": CONTENT_TYPE})

    async def fleet(self, request: web.Request) -> web.Response:
        """Return every replica with its load, and the traffic plan."""
        self._check_admin(request)
        return _json(fleet_page(self._router.load.view(self._clock.mono_s()), self._router.plan))

    async def isolation(self, request: web.Request) -> web.Response:
        """Test on every replica whether tenants' caches are apart, one test at a time: it costs three prefills each."""
        self._check_admin(request)
        if self._isolation is None:
            raise ApiError(404, "invalid_request_error", "not_found", "Not Found")
        if self._testing.locked():
            raise ApiError(
                409, "invalid_request_error", "busy", "a test of the isolation is running already"
            )
        async with self._testing:
            return _json(await self._isolation())

    def check_admin(self, request: web.Request) -> None:
        """Let loopback and the holder of the admin token pass; raises `ApiError` for others."""
        self._door.check(request.remote, request.headers)


def _json(value: object, *, status: int = 200) -> web.Response:
    return web.Response(
        status=status, body=msgspec.json.encode(value), content_type="application/json"
    )


async def _close_after(request: web.Request, response: web.StreamResponse) -> None:
    response.headers["Connection"] = "close"
    response.force_close()


@web.middleware
async def _errors_as_json(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Say errors of routing (404, 405) and of access the way all others are said."""
    try:
        return await handler(request)
    except ApiError as error:
        return error_response(error)
    except web.HTTPError as error:
        said = ApiError(error.status, "invalid_request_error", "not_found", error.reason)
        return error_response(
            said, {"Allow": error.headers["Allow"]} if "Allow" in error.headers else None
        )
