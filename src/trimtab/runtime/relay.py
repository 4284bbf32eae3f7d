"""Takes one request to a replica and its answer back, byte for byte, and measures what passes.

Who may end it: the client by leaving (the handler's task is cancelled), the replica by failing, the gateway by
stopping. Every way out closes the connection to the replica unless its answer was read to the end.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Final, TypeAlias

from trimtab.core.handover import HandOverCause, HandOverError
from trimtab.core.ports import Clock, EngineFormat, EngineFormatError
from trimtab.core.types import ErrorClass
from trimtab.policies.outliers import Outcome
from trimtab.policies.router import Router
from trimtab.runtime.exchange import Exchange
from trimtab.runtime.guard import RETRIED_STATUSES, Guard
from trimtab.runtime.handovers import HandOvers
from trimtab.runtime.heartbeat import Heartbeat
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
    request_headers,
    response_headers,
    stopping,
)

Attempt: TypeAlias = Callable[[Exchange, bytes, Measurement], Awaitable[None]]
"""Sends a routed request once. Raises an `UpstreamError` or `NotNowError` before anything reached the client."""

Measure: TypeAlias = Callable[[bytes, Measurement], None]
"""Reads what a good answer says of itself."""

_SAYS_NOTHING: Final = frozenset({ErrorClass.CLIENT_ABORT, ErrorClass.NO_REPLICA})
_REPLICA_FAILED: Final = frozenset(
    {ErrorClass.STREAM_TRUNCATED, ErrorClass.UPSTREAM_TIMEOUT, ErrorClass.UPSTREAM_CONNECT}
)


class NotNowError(Exception):
    """A replica said that it cannot serve now; another may."""

    def __init__(self, answer: UpstreamResponse, body: bytes) -> None:
        super().__init__()
        self.answer = answer
        self.body = body


def _may_try_again(error: UpstreamError, exchange: Exchange, *, repeatable: bool) -> bool:
    """Whether nothing has reached the client, and the replica did not simply take too long."""
    if exchange.begun or isinstance(error, UpstreamTimeoutError):
        return False
    return repeatable or (isinstance(error, UpstreamConnectError) and not error.reachable)


def _outcome(seen: Measurement) -> Outcome:
    """Return what an attempt that ran to its end says about the replica."""
    if seen.error in _SAYS_NOTHING or seen.status == 429:
        return Outcome.NEUTRAL
    if seen.status >= 500 or seen.error in _REPLICA_FAILED:
        return Outcome.FAILED
    return Outcome.OK


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
        guard: Guard,
        is_stopping: Callable[[], bool],
    ) -> None:
        self._router = router
        self._upstream = upstream
        self._engine = engine
        self._clock = clock
        self._secret = secret
        self._guard = guard
        self._is_stopping = is_stopping
        self.hand_overs: HandOvers | None = None
        """Brings KV from other replicas; None where none may prefill for others."""

    async def run(
        self,
        exchange: Exchange,
        body: bytes,
        seen: Measurement,
        *,
        attempt: Attempt | None = None,
        repeatable: bool = True,
    ) -> None:
        """Serve a routed request; what failed before any content is sent to another replica, within the budget.

        `attempt`: how it is sent, as a completion unless said otherwise. Not `repeatable`: it is sent again only if
        no replica can have had it.
        """
        once = attempt or self._attempt
        while True:
            try:
                await self._watched(once, exchange, body, seen)
            except NotNowError as error:
                if not repeatable or not self._route_around(seen, may_repeat=False):
                    self._pass_on(exchange, error.answer, error.body, seen, self._measure)
                    return
            except UpstreamError as error:
                reachable = isinstance(error, UpstreamConnectError) and error.reachable
                again = _may_try_again(error, exchange, repeatable=repeatable)
                repeat = reachable and not seen.retries
                if not again or not self._route_around(seen, may_repeat=repeat):
                    _refuse(error, exchange, seen)
                    return
            else:
                return

    async def _watched(
        self, once: Attempt, exchange: Exchange, body: bytes, seen: Measurement
    ) -> None:
        """Make one attempt and tell the guard how it ended."""
        assert seen.routed is not None
        if seen.routed.replica is None:
            seen.failed(NO_REPLICA.status, ErrorClass.NO_REPLICA)
            exchange.tell(NO_REPLICA, seen.request_id)
            return
        replica = seen.routed.replica.id
        outcome = Outcome.NEUTRAL
        self._guard.sent(replica, self._clock.mono_s())
        try:
            await once(exchange, body, seen)
            outcome = _outcome(seen)
        except (UpstreamError, NotNowError):
            outcome = Outcome.FAILED
            raise
        finally:
            self._guard.saw(replica, outcome, self._clock.mono_s())

    def _route_around(self, seen: Measurement, *, may_repeat: bool) -> bool:
        """Route again without the replica that failed; False if there is nowhere else to go, or no retry left.

        `may_repeat`: a dropped connection may have been a stale one, so the only replica is asked once more.
        """
        now_s = self._clock.mono_s()
        if not self._guard.may_retry(now_s, attempt=seen.retries + 1):
            return False
        assert seen.routed is not None
        assert seen.routed.replica is not None
        seen.tried.add(seen.routed.replica.id)
        self._guard.before_route(now_s)
        again = self._router.reroute(seen.routed, may_repeat=may_repeat, tried=seen.tried)
        seen.captured = None
        if again.replica is None:
            seen.settled = True
            return False
        seen.routed = again
        seen.retries += 1
        return True

    async def _attempt(self, exchange: Exchange, body: bytes, seen: Measurement) -> None:
        routed = seen.routed
        assert routed is not None
        assert routed.replica is not None
        headers = upstream_headers(exchange, seen, drop=(b"content-encoding",))
        if self.hand_overs is None:
            seen.captured = self._router.dispatched(routed)
            await self._send(exchange, body, headers, seen)
            return
        is_handed = False
        try:
            async with self.hand_overs.carried(exchange, body, headers, seen) as sent:
                is_handed = sent is not body
                seen.captured = self._router.dispatched(routed)
                await self._send(exchange, sent, headers, seen, is_handed=is_handed)
        except (HandOverError, UpstreamBrokenError, UpstreamConnectError) as error:
            away = isinstance(error, UpstreamConnectError) and not error.reachable
            if exchange.begun and isinstance(error, HandOverError):
                raise UpstreamBrokenError(str(error)) from error
            if exchange.begun or away or not is_handed:
                raise
            # What was refused may have been the KV: the decode side gets the request as it came, once.
            await self._send(exchange, body, headers, seen)

    async def _send(
        self,
        exchange: Exchange,
        body: bytes,
        headers: Pairs,
        seen: Measurement,
        *,
        is_handed: bool = False,
    ) -> None:
        """Send a request to where it was routed. `is_handed`: with KV; raises `HandOverError` where that is refused."""
        routed = seen.routed
        assert routed is not None
        assert routed.replica is not None
        stream = routed.query.facts.stream
        async with self._upstream.send(
            routed.replica.url, exchange.target, body, headers, stream=stream, fresh=is_handed
        ) as answer:
            if is_handed and answer.status >= 400:
                await answer.read()
                raise HandOverError(
                    HandOverCause.DECODE_REFUSED, f"the decode side answered {answer.status}"
                )
            if answer.status < 400 and answer.is_event_stream:
                await self._stream(exchange, answer, seen, is_handed=is_handed)
            else:
                await self.whole(exchange, answer, seen, self._measure)

    async def whole(
        self,
        exchange: Exchange,
        answer: UpstreamResponse,
        seen: Measurement,
        measure: Measure,
    ) -> None:
        """Read an answer to its end and pass it on; `measure` reads what a good one says.

        Raises `NotNowError` for one that another replica may answer better.
        """
        body = await answer.read()
        if answer.status in RETRIED_STATUSES:
            raise NotNowError(answer, body)
        self._pass_on(exchange, answer, body, seen, measure)

    def _pass_on(
        self,
        exchange: Exchange,
        answer: UpstreamResponse,
        body: bytes,
        seen: Measurement,
        measure: Measure,
    ) -> None:
        seen.status = answer.status
        if answer.status >= 400:
            seen.failed(answer.status, self._engine.classify_error(answer.status, body))
        else:
            measure(body, seen)
        exchange.answer(answer.status, passed_headers(answer, seen), body)

    def _measure(self, body: bytes, seen: Measurement) -> None:
        try:
            event = self._engine.read_response(body)
        except EngineFormatError:
            seen.unreadable += 1
            return
        seen.saw(event, mono_s=self._clock.mono_s(), secret=self._secret)

    async def _stream(
        self, exchange: Exchange, answer: UpstreamResponse, seen: Measurement, *, is_handed: bool
    ) -> None:
        head = stream_head(answer, seen)

        def begin() -> None:
            exchange.is_events = True
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
            holds=is_handed,
            event_bytes_max=answer.config.event_bytes_max,
        )
        heart = Heartbeat(
            answer.config.heartbeat_s,
            seen_s=lambda: answer.seen_s,
            may_beat=lambda: pump.is_between and not exchange.is_full and not seen.done,
            beat=pump.write,
        )
        seen.status = answer.status
        press_back(exchange, answer)
        failure: tuple[ErrorClass, ApiError] | None = None
        try:
            await answer.pump(pump.take, pump.lane, lambda: pump.silent_s)
            pump.finish()
        except UpstreamError as error:
            if not exchange.begun and pump.too_large is None:
                raise
            failure = _explain(error, seen)
        except asyncio.CancelledError:
            if not self._is_stopping() or exchange.is_gone:
                raise
            # A stream that the stopping gateway cuts: the client is told.
            _uncancel()
            failure = ErrorClass.STREAM_TRUNCATED, stopping()
        finally:
            heart.stop()
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
        exchange.tell(failure[1])
        return
    exchange.end()


def _uncancel() -> None:
    task = asyncio.current_task()
    assert task is not None
    task.uncancel()


def _refuse(error: UpstreamError, exchange: Exchange, seen: Measurement) -> None:
    error_class, said = _explain(error, seen)
    seen.failed(said.status, error_class)
    exchange.tell(said, seen.request_id)


def press_back(exchange: Exchange, answer: UpstreamResponse) -> None:
    """Let a client that reads slowly slow its replica down, and one that is stuck be dropped."""
    exchange.on_pause, exchange.on_resume = answer.pause, answer.resume
    answer.on_stuck = exchange.drop
    if exchange.is_full:
        answer.pause()


def stream_head(answer: UpstreamResponse, seen: Measurement) -> Pairs:
    """Return the headers of a stream: the replica's, and one that tells proxies on the way not to hold it back."""
    passed = passed_headers(answer, seen, drop=(b"x-accel-buffering",))
    return [*passed, (b"X-Accel-Buffering", b"no")]


def upstream_headers(exchange: Exchange, seen: Measurement, *, drop: Iterable[bytes] = ()) -> Pairs:
    """Return what a replica is told: the client's headers but for `drop`, and over them what watches add."""
    added = seen.told_upstream
    passed = request_headers(exchange.headers, drop=(*drop, *map(str.encode, added)))
    return passed + [(name.encode(), value.encode()) for name, value in added.items()]


def passed_headers(
    answer: UpstreamResponse, seen: Measurement, *, drop: Iterable[bytes] = ()
) -> Pairs:
    """Return the headers of an answer that go to the client, with the request's id and the replica."""
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
