"""Takes one request to a replica and its answer back, byte for byte, and measures what passes.

Who may end it: the client by leaving (the handler's task is cancelled), the replica by failing, the gateway by
stopping. Every way out closes the connection to the replica unless its answer was read to the end.
"""

import asyncio
import contextlib
from collections.abc import Callable, Iterable
from typing import Final

from aiohttp import web
from multidict import CIMultiDict

from trimtab.core.ports import Clock, EngineFormat, EngineFormatError, StreamEvent
from trimtab.core.types import ErrorClass
from trimtab.engines.sse import SSEEvent, SSEParser, SSETooLargeError, parse_event
from trimtab.policies.router import Router
from trimtab.runtime.recorder import Measurement
from trimtab.runtime.secret import Secret
from trimtab.runtime.upstream import (
    Upstream,
    UpstreamConnectError,
    UpstreamError,
    UpstreamResponse,
    UpstreamTimeoutError,
)
from trimtab.runtime.wire import (
    REQUEST_ID_HEADER,
    ApiError,
    error_event,
    error_response,
    request_headers,
    response_headers,
    stopping,
)

LAST_WORDS_S: Final = 1.0
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

    async def run(self, request: web.Request, body: bytes, seen: Measurement) -> web.StreamResponse:
        """Serve a routed request; a replica that gives no byte of an answer is replaced at most once."""
        try:
            return await self._attempt(request, body, seen)
        except UpstreamConnectError as error:
            if not self._route_around(error, seen):
                return self._refuse(error, seen)
        except UpstreamError as error:
            return self._refuse(error, seen)
        try:
            return await self._attempt(request, body, seen)
        except UpstreamError as error:
            return self._refuse(error, seen)

    def _route_around(self, error: UpstreamConnectError, seen: Measurement) -> bool:
        """Route again without the replica that failed; False if there is nowhere else to go."""
        assert seen.routed is not None
        again = self._router.reroute(seen.routed, may_repeat=error.reachable)
        if again.replica is None:
            self._router.finished(seen.routed, captured=None, delivered=None, output_tokens=None)
            return False
        seen.routed, seen.captured = again, None
        return True

    def _refuse(self, error: UpstreamError, seen: Measurement) -> web.Response:
        error_class, said = _explain(error, seen)
        seen.failed(said.status, error_class)
        return error_response(said, {REQUEST_ID_HEADER: seen.request_id})

    async def _attempt(
        self, request: web.Request, body: bytes, seen: Measurement
    ) -> web.StreamResponse:
        routed = seen.routed
        assert routed is not None
        if routed.replica is None:
            seen.failed(NO_REPLICA.status, ErrorClass.NO_REPLICA)
            return error_response(NO_REPLICA, {REQUEST_ID_HEADER: seen.request_id})
        headers = request_headers(request.headers.items(), request.headers.get("Connection", ""))
        seen.captured = self._router.dispatched(routed)
        url, path = routed.replica.url, request.rel_url.raw_path_qs
        stream = routed.query.facts.stream
        async with self._upstream.send(url, path, body, headers, stream=stream) as answer:
            if answer.status < 400 and answer.is_event_stream:
                return await self._stream(request, answer, seen)
            return await self._whole(answer, seen)

    async def _whole(self, answer: UpstreamResponse, seen: Measurement) -> web.Response:
        body = await answer.read()
        seen.status = answer.status
        if answer.status >= 400:
            seen.failed(answer.status, self._engine.classify_error(answer.status, body))
        else:
            self._read(lambda: self._engine.read_response(body), seen)
        return web.Response(status=answer.status, body=body, headers=_passed(answer, seen))

    async def _stream(
        self, request: web.Request, answer: UpstreamResponse, seen: Measurement
    ) -> web.StreamResponse:
        headers = _passed(answer, seen)
        headers["X-Accel-Buffering"] = "no"
        response = web.StreamResponse(status=answer.status, headers=headers)
        seen.status = answer.status
        try:
            await response.prepare(request)
            await self._pump(answer, response, seen)
        except ConnectionResetError:
            seen.aborted()
        except asyncio.CancelledError:
            if not self._is_stopping():
                raise
            await self._end_at_stop(response, seen)
        return response

    async def _pump(
        self, answer: UpstreamResponse, response: web.StreamResponse, seen: Measurement
    ) -> None:
        """Pass the stream on event by event, so that what is sent last is never half an event."""
        parser = SSEParser()
        failure: tuple[ErrorClass, ApiError] | None = None
        try:
            async for chunk in answer.chunks():
                await _write(response, self._pass(parser.feed(chunk), seen))
            await _write(response, self._pass(self._last_events(parser, seen), seen))
        except UpstreamError as error:
            failure = _explain(error, seen)
        except SSETooLargeError as error:
            await _write(response, self._pass(error.events, seen))
            failure = ErrorClass.STREAM_TRUNCATED, _said(502, "upstream_broken", str(error))
        if failure is None and not seen.done and seen.error is ErrorClass.NONE:
            failure = ErrorClass.STREAM_TRUNCATED, TRUNCATED
        if failure is not None:
            seen.failed(answer.status, failure[0])
            await response.write(error_event(failure[1]))
        await response.write_eof()

    async def _end_at_stop(self, response: web.StreamResponse, seen: Measurement) -> None:
        """End a stream that the stopping gateway cuts: the client is told, and not waited for."""
        task = asyncio.current_task()
        assert task is not None
        task.uncancel()
        seen.failed(response.status, ErrorClass.STREAM_TRUNCATED)
        with contextlib.suppress(ConnectionResetError, TimeoutError):
            async with asyncio.timeout(LAST_WORDS_S):
                await response.write(error_event(stopping()))
                await response.write_eof()

    def _pass(self, events: Iterable[SSEEvent], seen: Measurement) -> bytes:
        """Measure events and return the bytes that the client gets: all, but for usage it did not ask for."""
        assert seen.facts is not None
        passed: list[bytes] = []
        for event in events:
            data = event.data
            read = None if data is None else self._read_event(data, seen)
            is_ours = read is not None and read.usage_only and not seen.facts.wants_usage
            if not is_ours:
                passed.append(event.raw)
        return b"".join(passed)

    def _last_events(self, parser: SSEParser, seen: Measurement) -> list[SSEEvent]:
        """Return what a stream's clean end leaves and the client may have.

        An event without its empty line is dropped, as clients do with it, but for an end mark.
        """
        rest = parser.finish()
        read = [
            event if event.complete else parse_event(event.raw, raw=event.raw) for event in rest
        ]
        return [
            event
            for event, was in zip(read, rest, strict=True)
            if was.complete or seen.done or self._is_end_mark(event.data)
        ]

    def _is_end_mark(self, data: bytes | None) -> bool:
        try:
            return data is not None and self._engine.read_stream_event(data).done
        except EngineFormatError:
            return False

    def _read_event(self, data: bytes, seen: Measurement) -> StreamEvent | None:
        read = self._read(lambda: self._engine.read_stream_event(data), seen)
        if read is not None and read.text:
            self._router.load.prefill_done(seen.request_id)
            self._router.load.chunk_delivered(seen.request_id)
        return read

    def _read(self, read: Callable[[], StreamEvent], seen: Measurement) -> StreamEvent | None:
        """Read and measure; what cannot be read still passes, and the record says so."""
        try:
            event = read()
        except EngineFormatError:
            seen.unreadable += 1
            return None
        seen.saw(event, mono_s=self._clock.mono_s(), secret=self._secret)
        return event


async def _write(response: web.StreamResponse, data: bytes) -> None:
    if data:
        await response.write(data)


def _passed(answer: UpstreamResponse, seen: Measurement) -> CIMultiDict[str]:
    assert seen.routed is not None
    assert seen.routed.replica is not None
    return response_headers(
        answer.headers.items(),
        answer.headers.get("Connection", ""),
        request_id=seen.request_id,
        replica=seen.routed.replica.id,
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
