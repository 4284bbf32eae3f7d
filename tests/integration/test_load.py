"""The load generator keeps intended times, reports what was late, and tells what came back."""

import asyncio

import pytest
from fake_engine import FakeEngine, answer_of, die, hang, stream_of, whole
from harness import CHAT, Harness, as_body, chat, until

from trimtab.core.stats import percentile
from trimtab.runtime.load import LoadProgress, run_load
from trimtab.runtime.load_result import LoadResult
from trimtab.workloads.base import PeakShape, PlannedRequest, Workload


def workload(*planned: tuple[str, int, float], label: str = "chat", **fields: object) -> Workload:
    """Return a workload of (session, turn, intended time)."""
    return Workload(
        name="test",
        seed=3,
        requests=tuple(
            PlannedRequest(
                index=index,
                session=session,
                turn=turn,
                send_at_s=send_at_s,
                endpoint=CHAT,
                body=as_body(chat(f"{session} {turn}") | fields),
                label=label,
            )
            for index, (session, turn, send_at_s) in enumerate(planned)
        ),
        description="",
        scale={},
        peak=PeakShape(),
    )


async def test_each_request_is_sent_at_its_intended_time() -> None:
    """Slow answers delay nobody else: 20 sessions at 20 ms distance on an engine that takes much longer for each."""
    engine = FakeEngine(words=("a", "b"), pause_s=0.3)
    async with Harness(engine) as fleet:
        load = workload(*((f"s{n}", 0, 0.02 * n) for n in range(20)))
        result = await run_load(fleet.url, load)
    assert [row.index for row in result.requests] == list(range(20))
    # Requests that waited for answers would be late by the answers before them; these are late by less than one.
    one_answer_ms = min(row.e2e_ms for row in result.requests)
    assert one_answer_ms > 500
    assert max(row.lateness_ms for row in result.requests) < one_answer_ms
    assert all(row.sent_s >= row.intended_s for row in result.requests)
    assert (result.summary.n, result.summary.ok, result.summary.unsent) == (20, 20, 0)


async def test_turn_waits_for_the_turn_before_it_and_is_reported_late() -> None:
    """Turns of a session go in order; the wait shows as lateness, and other sessions do not wait."""
    engine = FakeEngine(words=("a",), pause_s=0.1)
    async with Harness(engine) as fleet:
        load = workload(("a", 0, 0.0), ("a", 1, 0.1), ("b", 0, 0.1), ("a", 2, 5.0))
        stop = asyncio.Event()

        def enough(progress: LoadProgress) -> None:
            if progress.finished == 3:
                stop.set()

        result = await run_load(fleet.url, load, stop=stop, on_progress=enough)
    first, second, other = result.requests
    assert second.sent_s >= first.finished_s
    assert second.lateness_ms == pytest.approx((first.finished_s - 0.1) * 1000, abs=60)
    assert other.lateness_ms < 60
    assert result.summary.unsent == 1


async def test_rows_have_what_the_server_said() -> None:
    """Tokens, TTFT, TPOT by the server's counts, label, replica and the gateway's id."""
    engine = FakeEngine(words=("a", "b", "c"), pause_s=0.02, cached_tokens=4)
    async with Harness(engine) as fleet:
        result = await run_load(fleet.url, workload(("s", 0, 0.0), label="edit"))
        record = await fleet.record()
    [row] = result.requests
    assert (row.status, row.error, row.chunks, row.output_tokens, row.cached_tokens) == (
        200,
        None,
        3,
        3,
        4,
    )
    assert (row.label, row.replica, row.request_id) == ("edit", "r0", record.request_id)
    assert (record.label, record.tokens.prompt) == ("edit", row.prompt_tokens)
    assert row.ttft_ms is not None
    assert row.tpot_ms == pytest.approx((row.e2e_ms - row.ttft_ms) / 2)
    assert row.ttft_ms == pytest.approx(record.ttft_ms, abs=25)


async def test_sessions_of_the_workload_are_sessions_of_the_gateway() -> None:
    """The session's name is sent along: turns share one session, sessions do not."""
    async with Harness(FakeEngine()) as fleet:
        await run_load(fleet.url, workload(("a", 0, 0.0), ("b", 0, 0.0), ("a", 1, 0.01)))
        await fleet.record(of=3)
    assert len({record.session for record in fleet.records}) == 2


@pytest.mark.parametrize(
    ("script", "error"),
    [
        (answer_of(whole(503, b"{}")), "status 503"),
        (stream_of([b'data: {"choices":[]}\n\n']), "stream ended before its end mark"),
        (stream_of([b"data: {\n\n"]), "EngineFormatError"),
        (
            stream_of([b'data: {"error":{"message":"x"}}\n\ndata: [DONE]\n\n']),
            "error in the stream",
        ),
        (die, "ServerDisconnectedError"),
    ],
)
async def test_failures_are_rows_with_an_error(script: object, error: str) -> None:
    """Nothing that a server does ends a run; a failure is counted under its name and gives no latency figure."""
    engine = FakeEngine(script=script)  # type: ignore[arg-type]
    url = await engine.start()
    result = await run_load(url, workload(("s", 0, 0.0)))
    await engine.stop()
    kinds = {error} if error != "ServerDisconnectedError" else {error, "ClientOSError"}
    assert set(result.summary.errors) <= kinds
    assert (result.summary.n, result.summary.ok, result.summary.ttft_ms) == (1, 0, None)
    assert sum(result.summary.errors.values()) == 1


async def test_turns_sent_right_after_each_other_reach_the_engine() -> None:
    """An engine without a gateway closes the connection after each stream: the next turn does not meet it."""
    engine = FakeEngine()
    url = await engine.start()
    result = await run_load(url, workload(*(("s", turn, 0.0) for turn in range(10))))
    await engine.stop()
    assert (result.summary.ok, result.summary.errors) == (10, {})


async def test_nobody_listening_is_an_error_of_every_request() -> None:
    """A server that is not there gives rows, not an exception."""
    engine = FakeEngine()
    url = await engine.start()
    await engine.stop()
    result = await run_load(url, workload(("s", 0, 0.0), ("t", 0, 0.0)))
    assert result.summary.errors == {"ClientConnectorError": 2}


async def test_answers_that_are_not_streamed_are_read_too() -> None:
    """A body that asks for no stream is sent as it is."""
    engine = FakeEngine()
    async with Harness(engine) as fleet:
        result = await run_load(fleet.url, workload(("s", 0, 0.0), stream=False))
    [row] = result.requests
    assert (row.error, row.output_tokens) == (None, 4)
    assert "stream_options" not in engine.requests[0].json


async def test_stop_sends_nothing_more_and_waits_for_what_runs() -> None:
    """A stopped run ends with its running requests complete and says how many were not sent."""
    engine = FakeEngine(words=("a", "b"), pause_s=0.05)
    async with Harness(engine) as fleet:
        stop = asyncio.Event()
        load = workload(("a", 0, 0.0), ("b", 0, 60.0), ("c", 0, 90.0), ("a", 1, 0.01))
        run = asyncio.create_task(run_load(fleet.url, load, stop=stop))
        await until(lambda: engine.requests)
        stop.set()
        result = await run
    assert [(row.session, row.error) for row in result.requests] == [("a", None)]
    assert result.summary.unsent == 3


async def test_cancelled_run_leaves_nothing_behind() -> None:
    """A cancelled run closes its connections, so the engines stop."""
    engine = FakeEngine(script=hang)
    async with Harness(engine) as fleet:
        run = asyncio.create_task(run_load(fleet.url, workload(("a", 0, 0.0), ("b", 0, 60.0))))
        await until(lambda: engine.requests)
        run.cancel()
        with pytest.raises(asyncio.CancelledError):
            await run
        await until(lambda: engine.aborted_at_s)
        record = await fleet.record()
    assert record.client_aborted


async def test_progress_is_told_at_each_send_and_each_end() -> None:
    """The callback sees every request go out and come back."""
    seen: list[LoadProgress] = []
    async with Harness(FakeEngine()) as fleet:
        load = workload(("a", 0, 0.0), ("b", 0, 0.0))
        await run_load(fleet.url, load, on_progress=seen.append)
    assert [(p.total, p.sent + p.finished) for p in seen] == [(2, n) for n in (1, 2, 3, 4)]
    assert [p.last is not None for p in seen] == [False, False, True, True]


async def test_summary_is_over_the_rows() -> None:
    """Figures come from complete answers; output per second is over the makespan."""
    engine = FakeEngine(words=("a", "b"), pause_s=0.01, cached_tokens=1)
    async with Harness(engine) as fleet:
        load = workload(*((f"s{n}", 0, 0.01 * n) for n in range(10)))
        result: LoadResult = await run_load(fleet.url, load)
    rows, summary = result.requests, result.summary
    ttft = [row.ttft_ms for row in rows if row.ttft_ms is not None]
    assert summary.ttft_ms is not None
    assert (summary.ttft_ms.n, summary.ttft_ms.p95) == (10, percentile(ttft, 0.95))
    assert summary.makespan_s == max(r.finished_s for r in rows) - min(r.sent_s for r in rows)
    assert summary.output_tokens_per_s == pytest.approx(20 / summary.makespan_s)
    assert (summary.output_tokens, summary.cached_tokens) == (20, 10)
