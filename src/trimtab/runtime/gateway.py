"""The OpenAI-compatible front: HTTP in, one record per request out.

A request's walk: read and bounded here, its facts taken by the engine's format, routed (`router`), relayed (`relay`),
recorded (`recorder`). The /v1 routes are open to whoever can reach the port; /metrics and /debug answer loopback
only, or the admin token.
"""

import asyncio
import hmac
import ipaddress
import os
from collections.abc import Callable, Iterable
from typing import Final

import msgspec
from aiohttp import web
from aiohttp.typedefs import Handler

from trimtab.core.config import GatewayConfig
from trimtab.core.ports import Clock, EngineFormat, EngineFormatError, LedgerSink
from trimtab.core.prefix import BlockHasher
from trimtab.core.record import RequestRecord
from trimtab.core.types import ErrorClass
from trimtab.policies.router import RouteQuery, Router
from trimtab.runtime.fleetpage import fleet_page, models_page
from trimtab.runtime.metrics import CONTENT_TYPE, GatewayMetrics
from trimtab.runtime.prompt import prompt_bytes, repetition_of, segments_of, session_of
from trimtab.runtime.recorder import Measurement, Prompt, served_event
from trimtab.runtime.relay import Relay
from trimtab.runtime.secret import Secret
from trimtab.runtime.upstream import Upstream
from trimtab.runtime.wire import (
    LABEL_HEADER,
    REQUEST_ID_HEADER,
    SESSION_HEADER,
    ApiError,
    error_response,
    stopping,
)

ENDPOINTS: Final = ("/v1/chat/completions", "/v1/completions")
LABEL_CHARS_MAX: Final = 64
CLIENT_KEEPALIVE_S: Final = 75.0
STOP_WAIT_S: Final = 2.0


def _random_id() -> str:
    return os.urandom(8).hex()


class GatewayError(RuntimeError):
    """The gateway cannot listen; the message says where and why."""


class Gateway:
    """Serves /v1 from the fleet and measures every request."""

    def __init__(
        self,
        config: GatewayConfig,
        router: Router,
        engine: EngineFormat,
        sink: LedgerSink,
        clock: Clock,
        *,
        hasher: BlockHasher,
        secret: Secret,
        model: str,
        on_record: Callable[[RequestRecord], None],
        new_id: Callable[[], str] = _random_id,
        extra_routes: Iterable[web.AbstractRouteDef] = (),
        admin_token: str | None = None,
        hardware: str = "",
        topology: str = "",
    ) -> None:
        self._config = config
        self._router = router
        self._engine = engine
        self._sink = sink
        self._clock = clock
        self._hasher = hasher
        self._secret = secret
        self._model = model
        self._on_record = on_record
        self._new_id = new_id
        self._extra_routes = tuple(extra_routes)
        self._admin_token = admin_token
        self._hardware = hardware
        self.topology = topology
        """What serves, in words, for the records of requests from now on."""
        self._upstream = Upstream(config)
        self._relay = Relay(
            router, self._upstream, engine, clock, secret, lambda: self._is_stopping
        )
        self.metrics = GatewayMetrics(lambda: float(len(self._serving)))
        self.on_body: Callable[[RequestRecord, str, bytes], None] = lambda *_: None
        """Hears every finished request with its path and body, which it must not store."""
        self._runner: web.AppRunner | None = None
        self._serving: set[asyncio.Task[object]] = set()
        self._idle = asyncio.Event()
        self._idle.set()
        self._is_draining = False
        self._is_stopping = False
        self.stopped = asyncio.Event()
        """Set when the gateway begins to stop: endless answers of extra routes end then by themselves."""

    @property
    def is_draining(self) -> bool:
        """Whether new requests are refused."""
        return self._is_draining

    async def start(self) -> int:
        """Listen and return the port; raises `GatewayError` where that cannot be had."""
        await self._upstream.start()
        self._runner = web.AppRunner(
            self._app(),
            handler_cancellation=True,
            access_log=None,
            keepalive_timeout=CLIENT_KEEPALIVE_S,
            shutdown_timeout=STOP_WAIT_S,
        )
        await self._runner.setup()
        site = web.TCPSite(self._runner, self._config.host, self._config.port)
        try:
            await site.start()
        except OSError as error:
            await self.stop()
            raise self._cannot_listen(error) from error
        port: int = self._runner.addresses[0][1]
        return port

    async def check_address(self) -> None:
        """Raise what `start` would raise for the address, before anything slow is started for nothing."""
        loop, config = asyncio.get_running_loop(), self._config
        try:
            trial = await loop.create_server(asyncio.Protocol, config.host, config.port)
        except OSError as error:
            raise self._cannot_listen(error) from error
        trial.close()
        await trial.wait_closed()

    def _cannot_listen(self, error: OSError) -> GatewayError:
        return GatewayError(
            f"cannot listen on {self._config.host}:{self._config.port}: {error.strerror};"
            " is another server running there? --port chooses another"
        )

    async def drain(self, timeout_s: float) -> int:
        """Refuse new requests, wait for running ones; return how many were left when time was up."""
        self._is_draining = True
        try:
            async with asyncio.timeout(timeout_s):
                await self._idle.wait()
        except TimeoutError:
            pass
        return len(self._serving)

    async def stop(self) -> None:
        """End everything: running streams are told in one event. Nothing is left open."""
        self._is_draining = self._is_stopping = True
        self.stopped.set()
        serving = tuple(self._serving)
        for task in serving:
            task.cancel()
        if serving:
            await asyncio.wait(serving, timeout=STOP_WAIT_S)
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None
        await self._upstream.close()

    def _app(self) -> web.Application:
        app = web.Application(
            client_max_size=self._config.body_bytes_max, middlewares=[_errors_as_json]
        )
        app.add_routes([web.post(endpoint, self._serve) for endpoint in ENDPOINTS])
        app.add_routes(
            [
                web.get("/v1/models", self._models),
                web.get("/healthz", self._health),
                web.get("/metrics", self._metrics_page),
                web.get("/debug/fleet", self._fleet),
            ]
        )
        app.add_routes(self._extra_routes)
        return app

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        seen = Measurement(
            self._new_id(),
            request.path,
            at_s=self._clock.wall_s(),
            mono_s=self._clock.mono_s(),
        )
        task = asyncio.current_task()
        assert task is not None
        try:
            self._admit(task)
            return await self._answer(request, seen)
        except ApiError as error:
            seen.failed(error.status, _class_of(error))
            return error_response(error, {REQUEST_ID_HEADER: seen.request_id})
        except (asyncio.CancelledError, ConnectionResetError):
            if not self._is_stopping:
                seen.aborted()
                raise
            task.uncancel()
            seen.failed(503, ErrorClass.OVERLOADED)
            return error_response(stopping(), {REQUEST_ID_HEADER: seen.request_id})
        finally:
            self._serving.discard(task)
            if not self._serving:
                self._idle.set()
            self._finish(seen)

    def _admit(self, task: "asyncio.Task[object]") -> None:
        if self._is_draining:
            raise stopping()
        if len(self._serving) >= self._config.streams_max:
            raise ApiError(
                503,
                "server_error",
                "overloaded",
                f"{self._config.streams_max} requests are in flight already",
            )
        self._serving.add(task)
        self._idle.clear()

    async def _answer(self, request: web.Request, seen: Measurement) -> web.StreamResponse:
        body = await self._body(request)
        now_s = self._clock.mono_s()
        seen.arrived(at_s=self._clock.wall_s(), mono_s=now_s)
        try:
            facts = self._engine.read_request(request.path, body)
            edited = self._engine.edit_request(body, include_usage=facts.stream, id_slot=None)
        except EngineFormatError as error:
            raise ApiError(400, "invalid_request_error", "bad_request", str(error)) from error
        prompt = prompt_bytes(facts.segments)
        label = request.headers.get(LABEL_HEADER, "")[:LABEL_CHARS_MAX] or None
        seen.facts = facts
        seen.body = body
        seen.stage = self._router.plan.stage
        seen.prompt = Prompt(
            session=session_of(request.headers.get(SESSION_HEADER), body, facts, self._secret),
            label=label,
            repetition=repetition_of(prompt),
            hash=self._secret.digest(prompt),
            size=len(prompt),
        )
        query = RouteQuery(
            request_id=seen.request_id,
            facts=facts,
            blocks=self._hasher.blocks(prompt),
            prompt_size=len(prompt),
            session=seen.prompt.session,
            label=label,
            repetition=seen.prompt.repetition,
            now_s=now_s,
        )
        seen.routed = self._router.route(query)
        return await self._relay.run(request, edited, seen)

    async def _body(self, request: web.Request) -> bytes:
        try:
            return await request.read()
        except web.HTTPRequestEntityTooLarge as error:
            raise ApiError(
                413,
                "invalid_request_error",
                "request_too_large",
                f"the request body is longer than {self._config.body_bytes_max} bytes",
            ) from error
        except web.RequestPayloadError as error:
            raise ApiError(
                400, "invalid_request_error", "bad_request", "the request body is broken"
            ) from error

    def _finish(self, seen: Measurement) -> None:
        """Fold a request back into what routes the next ones, and hand its record on."""
        facts, report = seen.facts, seen.report
        if seen.prompt is not None:
            self._router.ratio.learn(seen.prompt.size, report.prompt_tokens)
        record = seen.record(
            mono_s=self._clock.mono_s(),
            segments=segments_of(facts.segments, self._secret, self._router.ratio) if facts else (),
            hardware=self._hardware,
            topology=self.topology,
        )
        routed = seen.routed
        if routed is not None:
            self._router.finished(
                routed,
                captured=seen.captured,
                delivered=report.cached_tokens,
                output_tokens=report.output_tokens if record.ok else None,
            )
        decision = routed.decision if routed else None
        self.metrics.observe(record, decision)
        self._sink.append(
            served_event(record, routed),
            cause_id=None,
        )
        self._on_record(record)
        self.on_body(record, seen.endpoint, seen.body)
        seen.body = b""

    async def _models(self, request: web.Request) -> web.Response:
        return _json(models_page(self._model))

    async def _health(self, request: web.Request) -> web.Response:
        ready = len(self._router.load.ready())
        is_serving = ready > 0 and not self._is_draining
        said = "ok" if is_serving else "draining" if self._is_draining else "no replica is ready"
        return _json({"status": said, "ready": ready}, status=200 if is_serving else 503)

    async def _metrics_page(self, request: web.Request) -> web.Response:
        self.check_admin(request)
        return web.Response(body=self.metrics.page(), headers={"Content-Type": CONTENT_TYPE})

    async def _fleet(self, request: web.Request) -> web.Response:
        self.check_admin(request)
        return _json(fleet_page(self._router.load.view(self._clock.mono_s()), self._router.plan))

    def check_admin(self, request: web.Request) -> None:
        """Let loopback and the holder of the admin token pass; raises `ApiError` for others."""
        if request.remote and ipaddress.ip_address(request.remote).is_loopback:
            return
        said = request.headers.get("Authorization", "").removeprefix("Bearer ")
        token = self._admin_token
        if token is None or not hmac.compare_digest(said.encode(), token.encode()):
            raise ApiError(403, "permission_error", "admin_only", "this page needs the admin token")


def _class_of(error: ApiError) -> ErrorClass:
    return ErrorClass.OVERLOADED if error.status == 503 else ErrorClass.BAD_REQUEST


def _json(value: object, *, status: int = 200) -> web.Response:
    return web.Response(
        status=status, body=msgspec.json.encode(value), content_type="application/json"
    )


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
