"""The OpenAI-compatible front: HTTP in, one record per request out.

A request's walk: read and bounded here, its facts taken by the engine's format, routed (`router`), relayed (`relay`),
recorded (`recorder`). The /v1 routes are open to whoever can reach the port; /metrics and /debug answer loopback
only, or the admin token.
"""

import asyncio
from collections.abc import Callable, Iterable
from typing import Final

import msgspec
from aiohttp import web

from trimtab.core.config import GatewayConfig
from trimtab.core.ports import Clock, EngineFormat, EngineFormatError, LedgerSink
from trimtab.core.prefix import BlockHasher
from trimtab.core.record import RequestRecord, Segment
from trimtab.core.types import ErrorClass
from trimtab.policies.router import RouteQuery, Router
from trimtab.runtime import prompt as prompts
from trimtab.runtime.access import OPEN, Access
from trimtab.runtime.coding import decoded_body
from trimtab.runtime.debug_route import DebugRoute
from trimtab.runtime.exchange import ClientGoneError, Exchange
from trimtab.runtime.fleetpage import models_page
from trimtab.runtime.front_rules import FrontLimits
from trimtab.runtime.front_server import FrontServer
from trimtab.runtime.gateway_pages import GatewayPages
from trimtab.runtime.guard import Guard
from trimtab.runtime.handovers import HandOvers
from trimtab.runtime.isolation import tested_through
from trimtab.runtime.metrics import GatewayMetrics
from trimtab.runtime.pass_through import PassThrough
from trimtab.runtime.record_parts import Prompt
from trimtab.runtime.recorder import Measurement, served_event
from trimtab.runtime.relay import Relay
from trimtab.runtime.secret import Secret
from trimtab.runtime.serving_tls import TlsError, serving_tls
from trimtab.runtime.upstream import Upstream
from trimtab.runtime.watch import RequestWatch
from trimtab.runtime.wire import (
    AT_THE_DOOR,
    JSON_TYPE,
    LABEL_HEADER,
    SESSION_HEADER,
    ApiError,
    class_of_error,
    random_id,
    stopping,
    too_long,
)

ENDPOINTS: Final = ("/v1/chat/completions", "/v1/completions")
STOP_WAIT_S: Final = 2.0
MODELS: Final = "/v1/models"


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
        new_id: Callable[[], str] = random_id,
        extra_routes: Iterable[web.AbstractRouteDef] = (),
        admin_token: str | None = None,
        hardware: str = "",
        topology: str = "",
        models: Callable[[], tuple[str, ...]] | None = None,
        access: Callable[[str], Access] = lambda _: OPEN,
        watch: RequestWatch | None = None,
        guard: Guard | None = None,
    ) -> None:
        """Serve as `config` says; `models` where those may change, else `model`; no `guard` asks nobody for a key."""
        self._config = config
        self._router = router
        self._engine = engine
        self._sink = sink
        self._clock = clock
        self._hasher = hasher
        self._secret = secret
        self._models = models or (lambda: (model,))
        self._watch = watch
        self._on_record = on_record
        self._new_id = new_id
        self._hardware = hardware
        self.topology = topology
        """What serves, in words, for the records of requests from now on."""
        self._upstream = Upstream(config, access=access)
        self.guard = guard or Guard(places=config.streams_max, load=router.load, secret=secret)
        self._relay = Relay(
            router, self._upstream, engine, clock, secret, self.guard, lambda: self._is_stopping
        )
        self._pass_through = PassThrough(
            router, self._upstream, engine, clock, secret, self.guard, self._relay
        )
        self.metrics = GatewayMetrics(lambda: float(len(self._serving)))
        self.metrics.guard.counts = lambda: self.guard.counts
        self.metrics.index.stats = router.index.stats
        self.on_body: Callable[[RequestRecord, str, bytes], None] = lambda *_: None
        """Hears every finished request with its path and body, which it must not store."""
        self.pages = self._made_pages(extra_routes, admin_token)
        self.hand_overs: HandOvers | None = None
        self._front = FrontServer(self._serve, _limits(config))
        self._serving: set[asyncio.Task[object]] = set()
        self._idle = asyncio.Event()
        self._idle.set()
        self._is_draining = False
        self._is_stopping = False
        self.stopped = asyncio.Event()
        """Set when the gateway begins to stop: endless answers of extra routes end then by themselves."""

    def _made_pages(
        self, extra_routes: Iterable[web.AbstractRouteDef], admin_token: str | None
    ) -> GatewayPages:
        router, engine, secret = self._router, self._engine, self._secret
        debug = DebugRoute(
            router, engine, self._clock, self._hasher, secret, self._models, self.check_admin
        )
        return GatewayPages(
            router,
            self.metrics,
            self._clock,
            (*extra_routes, *debug.routes()),
            admin_token,
            is_draining=lambda: self._is_draining,
            check_admin=lambda request: self.check_admin(request),
            isolation=tested_through(
                router.load, lambda: self._models()[0], engine, secret, self._upstream
            ),
        )

    def hand_over(self, make: Callable[[Upstream, Guard], HandOvers]) -> HandOvers:
        """Have prompts' KV handed over from the next request on, by what `make` returns."""
        made = self.hand_overs = self._relay.hand_overs = make(self._upstream, self.guard)
        made.books.listen(self.metrics.observe_hand_over)
        return made

    @property
    def is_draining(self) -> bool:
        """Whether new requests are refused."""
        return self._is_draining

    async def start(self) -> int:
        """Listen and return the port; raises `GatewayError` where that cannot be had."""
        await self._upstream.start()
        await self.pages.start()
        try:
            return await self._front.start(
                self._config.host,
                self._config.port,
                self.pages.connection,
                tls=serving_tls(self._config),
            )
        except TlsError as error:
            await self.stop()
            raise GatewayError(str(error)) from error
        except OSError as error:
            await self.stop()
            raise self._cannot_listen(error) from error

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

    def use_config(self, config: GatewayConfig) -> None:
        """Serve by other limits and timeouts from the next request on; where it listens stays."""
        self._config = config
        self._upstream.use_config(config)
        self._front.use_limits(_limits(config))

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
        self._front.stop_listening()
        await self.pages.stop()
        await self._front.stop(STOP_WAIT_S)
        if self.hand_overs is not None:
            await self.hand_overs.books.close()
        await self._upstream.close()

    async def _serve(self, exchange: Exchange) -> None:
        if exchange.path == MODELS and exchange.method == b"GET":
            self._list_models(exchange)
            return
        seen = Measurement(
            self._new_id(),
            exchange.path,
            at_s=self._clock.wall_s(),
            mono_s=self._clock.mono_s(),
        )
        task = asyncio.current_task()
        assert task is not None
        if self._watch is not None:
            seen.told_upstream = self._watch.begin(
                seen.request_id, exchange.method.decode(), exchange.path, exchange.headers
            )
        try:
            self._admit(task, exchange, seen)
            async with asyncio.timeout(self._config.total_timeout_s):
                await self._answer(exchange, seen)
        except TimeoutError:
            seen.failed(seen.status or 504, ErrorClass.UPSTREAM_TIMEOUT)
            exchange.tell(too_long(self._config.total_timeout_s), seen.request_id)
        except ApiError as error:
            seen.failed(error.status, class_of_error(error))
            exchange.tell(error, seen.request_id)
        except ClientGoneError:
            seen.aborted()
        except asyncio.CancelledError:
            if not self._is_stopping or exchange.is_gone:
                seen.aborted()
                raise
            task.uncancel()
            seen.failed(503, ErrorClass.OVERLOADED)
            exchange.tell(stopping(), seen.request_id)
        finally:
            self._serving.discard(task)
            if not self._serving:
                self._idle.set()
            try:
                self._finish(seen)
            finally:
                self._let_out(seen)

    def _list_models(self, exchange: Exchange) -> None:
        try:
            self.guard.check_key(exchange.headers, self._clock.mono_s())
        except ApiError as error:
            exchange.tell(error)
            return
        exchange.answer(200, [JSON_TYPE], msgspec.json.encode(models_page(self._models())))

    def _let_out(self, seen: Measurement) -> None:
        if seen.caller is not None:
            used = (seen.report.prompt_tokens or 0) + (seen.report.output_tokens or 0)
            self.guard.release(seen.caller, self._clock.mono_s(), tokens=used)

    def _admit(self, task: "asyncio.Task[object]", exchange: Exchange, seen: Measurement) -> None:
        if self._is_draining:
            raise stopping()
        seen.caller = self.guard.admit(exchange.headers, self._clock.mono_s())
        self._serving.add(task)
        self._idle.clear()

    async def _answer(self, exchange: Exchange, seen: Measurement) -> None:
        path = exchange.path
        if path not in ENDPOINTS:
            bytes_max = self._config.body_bytes_max
            await self._pass_through.run(exchange, seen, body_bytes_max=bytes_max)
            return
        if exchange.method != b"POST":
            raise ApiError(405, "invalid_request_error", "not_found", "Method Not Allowed")
        body = decoded_body(
            await exchange.read(), exchange.headers, bytes_max=self._config.body_bytes_max
        )
        caller = seen.caller
        assert caller is not None, "admitted before"
        now_s = self._clock.mono_s()
        seen.arrived(at_s=self._clock.wall_s(), mono_s=now_s)
        try:
            facts = self._engine.read_request(path, body)
            edited = self._engine.edit_request(
                body, include_usage=facts.stream, id_slot=None, cache_salt=caller.salt
            )
        except EngineFormatError as error:
            raise ApiError(400, "invalid_request_error", "bad_request", str(error)) from error
        seen.salt_ignored = self.guard.ignored_salt(caller, facts.cache_salt)
        scope = prompts.scope_of(facts, self._models(), caller.salt)
        prompt = prompts.read_prompt(facts.segments, self._secret)
        label = prompts.label_of(exchange.headers.get(LABEL_HEADER))
        seen.facts = facts
        seen.body = body
        seen.stage = self._router.plan.stage
        named = exchange.headers.get(SESSION_HEADER) or facts.user
        seen.prompt = Prompt(
            session=prompts.session_of(named, prompt, self._secret, salt=scope.salt),
            label=label,
            repetition=prompts.repetition_of(prompt.data),
            hash=prompts.hash_of(prompt, self._secret),
            size=len(prompt.data),
            parts=prompt.parts,
        )
        seen.marks = prompts.marks_of(exchange.headers, self._router.plan, self._secret)
        query = RouteQuery(
            request_id=seen.request_id,
            facts=facts,
            blocks=self._hasher.blocks(prompt.data, scope.space),
            key_class=scope.key_class,
            salt=scope.salt,
            prompt_size=seen.prompt.size,
            session=seen.prompt.session,
            label=label,
            repetition=seen.prompt.repetition,
            now_s=now_s,
            tenant=caller.tenant,
            marks=seen.marks,
        )
        self.guard.before_route(now_s)
        seen.routed = self._router.route(query)
        await self._relay.run(exchange, edited, seen)

    def _finish(self, seen: Measurement) -> None:
        """Fold a request back into what routes the next ones, and hand its record on."""
        report, ratio = seen.report, self._router.ratio
        segments: tuple[Segment, ...] = ()
        if seen.prompt is not None:
            ratio.learn(seen.prompt.size, report.prompt_tokens)
            segments = prompts.segments_of(seen.prompt.parts, ratio)
        record = seen.record(
            mono_s=self._clock.mono_s(),
            segments=segments,
            hardware=self._hardware,
            topology=self.topology,
        )
        routed = seen.routed
        if routed is not None and not seen.settled:
            self._router.finished(
                routed,
                captured=seen.captured,
                delivered=report.cached_tokens,
                output_tokens=report.output_tokens if record.ok else None,
            )
        decision = routed.decision if routed else None
        self.metrics.observe(record, decision)
        if self._watch is not None:
            self._watch.end(record, decision)
        if seen.caller is None and record.error in AT_THE_DOOR:
            # Strangers must not be able to fill the ledger.
            return
        if self.hand_overs is not None:
            self.hand_overs.ended(seen, record)
        event = self._sink.append(served_event(record, routed, seen.prefill), cause_id=None)
        if self.hand_overs is not None:
            self.hand_overs.tell(seen, event)
        self._on_record(record)
        self.on_body(record, seen.endpoint, seen.body)
        seen.body = b""

    def check_admin(self, request: web.Request) -> None:
        """Let loopback and the holder of the admin token pass; raises `ApiError` for others."""
        self.pages.check_admin(request)


def _limits(config: GatewayConfig) -> FrontLimits:
    return FrontLimits(
        head_bytes_max=config.head_bytes_max,
        body_bytes_max=config.body_bytes_max,
        head_s=config.head_timeout_s,
        body_idle_s=config.idle_timeout_s,
        keep_alive_s=config.client_keepalive_s,
    )
