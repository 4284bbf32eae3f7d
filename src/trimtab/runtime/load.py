"""Open-loop load: each request of a workload is sent at its intended time, however slow the server is.

The one exception keeps conversations real: a user's next request waits for the end of the one before it. It is late
then, and its lateness is reported, never hidden: a slow server would otherwise look better than it is.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Final

import aiohttp
import msgspec

from trimtab.core.ports import Clock, EngineFormatError
from trimtab.engines.openai import DONE, edit_request, event_of_chunk, read_chunk, report_of_usage
from trimtab.engines.sse import SSEEvent, SSEParser
from trimtab.runtime.clock import SystemClock
from trimtab.runtime.load_result import LoadResult, SentRequest, summarise
from trimtab.runtime.wire import (
    LABEL_HEADER,
    REPLICA_HEADER,
    REQUEST_ID_HEADER,
    SESSION_HEADER,
)
from trimtab.workloads.base import PlannedRequest, Workload

CONNECT_TIMEOUT_S: Final = 10.0
SILENCE_TIMEOUT_S: Final = 600.0


class LoadProgress(msgspec.Struct, frozen=True, kw_only=True):
    """How far a run is, after a request was sent or has ended; `last` is the one that ended."""

    total: int
    sent: int
    finished: int
    errors: int
    elapsed_s: float
    last: SentRequest | None = None


class _Answer(msgspec.Struct, kw_only=True):
    """What is seen of an answer while it comes."""

    status: int = 0
    first_s: float | None = None
    chunks: int = 0
    done: bool = False
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    output_tokens: int | None = None
    replica: str | None = None
    request_id: str | None = None
    error: str | None = None


async def run_load(
    url: str,
    workload: Workload,
    *,
    on_progress: Callable[[LoadProgress], None] = lambda _: None,
    on_text: Callable[[PlannedRequest, str], None] = lambda *_: None,
    stop: asyncio.Event | None = None,
    headers: Mapping[str, str] | None = None,
    clock: Clock | None = None,
) -> LoadResult:
    """Send a workload to a gateway or server and return what came of it.

    `stop`, once set, ends the run: what is not sent stays unsent, what runs is waited for. `on_text` is told of every
    piece of every answer; the result keeps none. Failed requests are rows
    with an error, never exceptions.
    """
    run = _Run(
        url, workload, on_progress, stop or asyncio.Event(), headers or {}, clock or SystemClock()
    )
    run.on_text = on_text
    return await run.run()


class _Run:
    def __init__(
        self,
        url: str,
        workload: Workload,
        on_progress: Callable[[LoadProgress], None],
        stop: asyncio.Event,
        headers: Mapping[str, str],
        clock: Clock,
    ) -> None:
        self._url = url.rstrip("/")
        self._workload = workload
        self._on_progress = on_progress
        self._stop = stop
        self._headers = dict(headers)
        self._clock = clock
        self._began_s = clock.mono_s()
        self._rows: list[SentRequest] = []
        self._sent = 0
        self._errors = 0
        self.on_text: Callable[[PlannedRequest, str], None] = lambda *_: None

    async def run(self) -> LoadResult:
        sessions: dict[str, list[PlannedRequest]] = {}
        for planned in self._workload.requests:
            sessions.setdefault(planned.user or planned.session, []).append(planned)
        timeout = aiohttp.ClientTimeout(
            total=None, sock_connect=CONNECT_TIMEOUT_S, sock_read=SILENCE_TIMEOUT_S
        )
        # Some servers close a connection silently after a stream: a request must not meet one of those.
        connector = aiohttp.TCPConnector(limit=0, force_close=True)
        started_at_s = self._clock.wall_s()
        self._began_s = self._clock.mono_s()
        async with (
            aiohttp.ClientSession(timeout=timeout, connector=connector) as client,
            asyncio.TaskGroup() as group,
        ):
            for turns in sessions.values():
                group.create_task(self._session(client, turns))
        rows = tuple(sorted(self._rows, key=lambda row: row.index))
        return LoadResult(
            workload=self._workload.name,
            seed=self._workload.seed,
            started_at_s=started_at_s,
            requests=rows,
            summary=summarise(rows, unsent=len(self._workload.requests) - len(rows)),
        )

    async def _session(
        self, client: aiohttp.ClientSession, turns: Sequence[PlannedRequest]
    ) -> None:
        for planned in sorted(turns, key=lambda turn: turn.index):
            if not await self._due(planned.send_at_s):
                return
            row = await self._request(client, planned)
            self._rows.append(row)
            self._errors += row.error is not None
            self._report(row)

    async def _due(self, send_at_s: float) -> bool:
        """Wait for an intended time; False when the run was stopped before it.

        A timer may fire a clock tick early, and a request before its time would not be open loop: look again.
        """
        while not self._stop.is_set() and (wait_s := send_at_s - self._elapsed_s()) > 0:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await self._stop.wait()
        return not self._stop.is_set()

    async def _request(self, client: aiohttp.ClientSession, planned: PlannedRequest) -> SentRequest:
        body = edit_request(planned.body, include_usage=True, id_slot=None)
        headers = {
            "Content-Type": "application/json",
            LABEL_HEADER: planned.label,
            SESSION_HEADER: planned.session,
        } | self._headers
        seen = _Answer()
        sent_s = self._elapsed_s()
        self._sent += 1
        self._report(None)
        try:
            async with client.post(
                self._url + planned.endpoint, data=body, headers=headers
            ) as response:
                await self._receive(planned, response, seen)
        except (aiohttp.ClientError, OSError, EngineFormatError) as error:
            seen.error = type(error).__name__
        return self._row(planned, seen, sent_s, self._elapsed_s())

    async def _receive(
        self, planned: PlannedRequest, response: aiohttp.ClientResponse, seen: _Answer
    ) -> None:
        seen.status = response.status
        seen.replica = response.headers.get(REPLICA_HEADER)
        seen.request_id = response.headers.get(REQUEST_ID_HEADER)
        if response.status != 200:
            seen.error = f"status {response.status}"
            await response.read()
            return
        if response.content_type != "text/event-stream":
            self._read(planned, await response.read(), seen)
            seen.done = True
            return
        async for event in _events(response):
            self._read_event(planned, event, seen)
        if not seen.done and seen.error is None:
            seen.error = "stream ended before its end mark"

    def _read_event(self, planned: PlannedRequest, event: SSEEvent, seen: _Answer) -> None:
        if event.data == DONE:
            seen.done = True
        elif event.data is not None:
            self._read(planned, event.data, seen)

    def _read(self, planned: PlannedRequest, data: bytes, seen: _Answer) -> None:
        chunk = read_chunk(data)
        event = event_of_chunk(chunk, report_of_usage(chunk.usage, finish_reason=None))
        if event.text:
            seen.chunks += 1
            self.on_text(planned, event.text)
            seen.first_s = self._elapsed_s() if seen.first_s is None else seen.first_s
        if event.error is not None:
            seen.error = "error in the stream"
        if event.report is not None:
            seen.prompt_tokens = event.report.prompt_tokens
            seen.cached_tokens = event.report.cached_tokens
            seen.output_tokens = event.report.output_tokens

    def _row(
        self, planned: PlannedRequest, seen: _Answer, sent_s: float, finished_s: float
    ) -> SentRequest:
        e2e_ms = (finished_s - sent_s) * 1000.0
        ttft_ms = None if seen.first_s is None else (seen.first_s - sent_s) * 1000.0
        output = seen.output_tokens
        tpot_ms = None
        if seen.error is None and ttft_ms is not None and output is not None and output > 1:
            tpot_ms = (e2e_ms - ttft_ms) / (output - 1)
        return SentRequest(
            index=planned.index,
            session=planned.session,
            turn=planned.turn,
            label=planned.label,
            intended_s=planned.send_at_s,
            sent_s=sent_s,
            lateness_ms=max(0.0, sent_s - planned.send_at_s) * 1000.0,
            finished_s=finished_s,
            status=seen.status,
            ttft_ms=ttft_ms,
            e2e_ms=e2e_ms,
            tpot_ms=tpot_ms,
            chunks=seen.chunks,
            prompt_tokens=seen.prompt_tokens,
            cached_tokens=seen.cached_tokens,
            output_tokens=output,
            replica=seen.replica,
            request_id=seen.request_id,
            error=seen.error,
        )

    def _report(self, last: SentRequest | None) -> None:
        self._on_progress(
            LoadProgress(
                total=len(self._workload.requests),
                sent=self._sent,
                finished=len(self._rows),
                errors=self._errors,
                elapsed_s=self._elapsed_s(),
                last=last,
            )
        )

    def _elapsed_s(self) -> float:
        return self._clock.mono_s() - self._began_s


async def _events(response: aiohttp.ClientResponse) -> AsyncIterator[SSEEvent]:
    parser = SSEParser()
    async for data in response.content.iter_any():
        for event in parser.feed(data):
            yield event
    for event in parser.finish():
        yield event
