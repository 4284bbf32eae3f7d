"""Takes one request to a replica and its answer back, byte for byte, and measures what passes.

Who may end it: the client by leaving (the handler's task is cancelled), the replica by failing, the gateway by
stopping. Every way out closes the connection to the replica unless its answer was read to the end.
"""

import asyncio
from collections.abc import Callable, Iterable
from typing import Final

from trimtab.core.ports import Clock, EngineFormat, EngineFormatError
from trimtab.core.types import ErrorClass
from trimtab.policies.router import Router
from trimtab.runtime.exchange import Exchange
from trimtab.runtime.recorder import Measurement
from trimtab.runtime.relay_stream import StreamPump
from trimtab.runtime.secret import Secret
from trimtab.runtime.upstream import Upstream, UpstreamResponse
from trimtab.runtime.upstream_connection import (
    UpstreamBrokenError,
    UpstreamConnectError,
    UpstreamError,
    UpstreamTimeoutError,
)
from trimtab.runtime.wire import (
    ApiError,
    Pairs,
    error_body,
    error_event,
    error_headers,
    request_headers,
    response_headers,
    stopping,
)

NO_REPLICA: Final = ApiError(503, "server_error", "no_replica", "no replica is ready")


class Relay:
    """The way of requests through the gateway, once they are read and routed."""

    def __init__(
        self,
        router: Router,
        upstream: Upstream,
        engine: EngineFormat,
        clock: Clock,
        secret: Secret,
        is_stopping: Callable[[], bool],
    ) -> None:
        self._router = router
        self._upstream = upstream
        self._engine = engine
        self._clock = clock
        self._secret = secret
        self._is_stopping = is_stopping

    async def run(self, exchange: Exchange, body: bytes, seen: Measurement) -> None:
        """Serve a routed request; a replica that gives no byte of an answer is replaced at most once."""
        try:
            await self._attempt(exchange, body, seen)
        except UpstreamConnectError as error:
            if self._route_around(error, seen):
                await self._last_attempt(exchange, body, seen)
            else:
                _refuse(error, exchange, seen)
        except UpstreamError as error:
            _refuse(error, exchange, seen)

    async def _last_attempt(self, exchange: Exchange, body: bytes, seen: Measurement) -> None:
        try:
            await self._attempt(exchange, body, seen)
        except UpstreamError as error:
            _refuse(error, exchange, seen)

    def _route_around(self, error: UpstreamConnectError, seen: Measurement) -> bool:
        """Route again without the replica that failed; False if there is nowhere else to go."""
        assert seen.routed is not None
        again = self._router.reroute(seen.routed, may_repeat=error.reachable)
        seen.captured = None
        if again.replica is None:
            return False
        seen.routed = again
        return True

    async def _attempt(self, exchange: Exchange, body: bytes, seen: Measurement) -> None:
        routed = seen.routed
        assert routed is not None
        if routed.replica is None:
            seen.failed(NO_REPLICA.status, ErrorClass.NO_REPLICA)
            _say(NO_REPLICA, exchange, seen)
            return
        headers = request_headers(exchange.headers, drop=map(str.encode, seen.told_upstream))
        headers += [(name.encode(), value.encode()) for name, value in seen.told_upstream.items()]
        seen.captured = self._router.dispatched(routed)
        stream = routed.query.facts.stream
        async with self._upstream.send(
            routed.replica.url, exchange.target, body, headers, stream=stream
        ) as answer:
            if answer.status < 400 and answer.is_event_stream:
                await self._stream(exchange, answer, seen)
            else:
                await self._whole(exchange, answer, seen)

    async def _whole(self, exchange: Exchange, answer: UpstreamResponse, seen: Measurement) -> None:
        body = await answer.read()
        seen.status = answer.status
        if answer.status >= 400:
            seen.failed(answer.status, self._engine.classify_error(answer.status, body))
        else:
            self._measure(body, seen)
        exchange.answer(answer.status, _passed(answer, seen), body)

    def _measure(self, body: bytes, seen: Measurement) -> None:
        try:
            event = self._engine.read_response(body)
        except EngineFormatError:
            seen.unreadable += 1
            return
        seen.saw(event, mono_s=self._clock.mono_s(), secret=self._secret)

    async def _stream(
        self, exchange: Exchange, answer: UpstreamResponse, seen: Measurement
    ) -> None:
        head = [*_passed(answer, seen, drop=(b"x-accel-buffering",)), (b"X-Accel-Buffering", b"no")]

        def begin() -> None:
            exchange.begin(answer.status, head)

        pump = StreamPump(
            exchange,
            seen,
            self._engine,
            self._router.load,
            self._clock,
            self._secret,
            lambda why: answer.fail(UpstreamBrokenError(why)),
            begin,
        )
        seen.status = answer.status
        exchange.on_pause, exchange.on_resume = answer.pause, answer.resume
        if exchange.is_full:
            answer.pause()
        failure: tuple[ErrorClass, ApiError] | None = None
        try:
            await answer.pump(pump.take)
            pump.finish()
        except UpstreamError as error:
            failure = _explain(error, seen)
        except asyncio.CancelledError:
            if not self._is_stopping() or exchange.is_gone:
                raise
            # A stream that the stopping gateway cuts: the client is told.
            _uncancel()
            failure = ErrorClass.STREAM_TRUNCATED, stopping()
        finally:
            pump.digest()
        if pump.too_large is not None:
            failure = (
                ErrorClass.STREAM_TRUNCATED,
                _said(502, "upstream_broken", str(pump.too_large)),
            )
        if not exchange.begun:
            begin()
        _end(exchange, seen, failure)


def _end(
    exchange: Exchange, seen: Measurement, failure: tuple[ErrorClass, ApiError] | None
) -> None:
    """End a stream; one that did not come to its end mark is told so in one event, unless the engine said it."""
    if failure is None and not seen.done and seen.error is ErrorClass.NONE:
        failure = ErrorClass.STREAM_TRUNCATED, TRUNCATED
    if failure is not None:
        seen.failed(seen.status, failure[0])
        exchange.write(error_event(failure[1]))
    exchange.end()


def _uncancel() -> None:
    task = asyncio.current_task()
    assert task is not None
    task.uncancel()


def _refuse(error: UpstreamError, exchange: Exchange, seen: Measurement) -> None:
    error_class, said = _explain(error, seen)
    seen.failed(said.status, error_class)
    _say(said, exchange, seen)


def _say(error: ApiError, exchange: Exchange, seen: Measurement) -> None:
    exchange.answer(error.status, error_headers(error, seen.request_id), error_body(error))


def _passed(answer: UpstreamResponse, seen: Measurement, *, drop: Iterable[bytes] = ()) -> Pairs:
    assert seen.routed is not None
    assert seen.routed.replica is not None
    return response_headers(
        answer.headers, request_id=seen.request_id, replica=seen.routed.replica.id, drop=drop
    )


def _explain(error: UpstreamError, seen: Measurement) -> tuple[ErrorClass, ApiError]:
    """Return an upstream's failure as a class and as what the client is told: no address, no internals."""
    replica = seen.routed.decision.replica if seen.routed else None
    match error:
        case UpstreamConnectError():
            return ErrorClass.UPSTREAM_CONNECT, _said(
                502, "upstream_connect", f"replica {replica} could not be reached"
            )
        case UpstreamTimeoutError():
            return ErrorClass.UPSTREAM_TIMEOUT, _said(
                504, "upstream_timeout", f"replica {replica} was silent for too long"
            )
        case _:
            return ErrorClass.STREAM_TRUNCATED, _said(
                502, "upstream_broken", f"replica {replica} broke off its answer"
            )


def _said(status: int, code: str, message: str) -> ApiError:
    return ApiError(status, "upstream_error", code, message)


TRUNCATED: Final = _said(502, "stream_truncated", "the replica's stream ended before its end mark")
