"""Reading a gateway's access log as measured runs."""

import json

import msgspec
import pytest

from trimtab.core.record import RequestRecord, Tokens
from trimtab.core.types import ErrorClass
from trimtab.runtime.access_log import line_of
from trimtab.workloads.bench_files import read_bench_text
from trimtab.workloads.bench_run import BenchFileError

START_S = 1_800_000_000.0


TOKENS = Tokens(prompt=200, output=91, delivered=50)


def record(
    start_s: float,
    replica: str = "one",
    tpot_ms: float | None = 10.0,
    status: int = 200,
    tokens: Tokens = TOKENS,
) -> RequestRecord:
    return RequestRecord(
        request_id=f"{replica}-{start_s}",
        arrived_at_s=START_S + start_s,
        finished_at_s=START_S + start_s + 1.0,
        endpoint="/v1/completions",
        stream=True,
        replica=replica,
        ttft_ms=100.0,
        tpot_ms=tpot_ms,
        e2e_ms=1000.0,
        tokens=tokens,
        status=status,
        error=ErrorClass.NONE if status == 200 else ErrorClass.UPSTREAM_STATUS,
    )


def log_of(records: list[RequestRecord]) -> str:
    return b"".join(line_of(each, None) for each in records).decode()


def test_requests_of_a_replica_are_one_run() -> None:
    """Ten requests of a second each over a span of five and a half are 1.8 clients in flight; reuse is kept."""
    (run,) = read_bench_text(log_of([record(number * 0.5) for number in range(10)]))
    assert (run.tool, run.requests) == ("gateway", 10)
    assert run.clients == pytest.approx(10.0 / 5.5)
    assert (run.input_tokens, run.output_tokens, run.ttft_ms, run.tpot_ms) == (200, 91, 100.0, 10.0)
    assert run.prefix_share == 0.25


def test_replicas_and_stretches_are_runs_of_their_own() -> None:
    """Two replicas, one of them served for a second stretch of ten minutes: three runs, each with its own load."""
    records = [record(number * 0.5, name) for name in ("a", "b") for number in range(10)]
    records += [record(600.0 + number * 0.25, "a", tpot_ms=20.0) for number in range(12)]
    runs = read_bench_text(log_of(records))
    assert [(run.requests, run.tpot_ms) for run in runs] == [(10, 10.0), (12, 20.0), (10, 10.0)]
    assert runs[0].clients == pytest.approx(10.0 / 5.5)
    assert runs[1].clients == pytest.approx(12.0 / 3.75)


def test_failed_requests_load_a_replica_and_have_no_times() -> None:
    """They count among those in flight, not among the means."""
    records = [record(number * 0.5) for number in range(10)]
    failed = [record(number * 0.5 + 0.1, status=500, tpot_ms=99.0) for number in range(9)]
    (run,) = read_bench_text(log_of(records + failed))
    assert (run.requests, run.tpot_ms) == (10, 10.0)
    assert run.clients == pytest.approx(19.0 / 5.5)


@pytest.mark.parametrize(
    "records",
    [
        [record(number * 0.5) for number in range(9)],
        [record(number * 0.5, tpot_ms=None) for number in range(20)],
        [record(number * 0.5, tokens=Tokens(prompt=200, output=91)) for number in range(20)],
        [
            record(number * 0.5, tokens=msgspec.structs.replace(TOKENS, output_estimated=True))
            for number in range(20)
        ],
    ],
    ids=["few", "no times", "cached tokens untold", "tokens estimated"],
)
def test_log_that_says_too_little_is_refused(records: list[RequestRecord]) -> None:
    """Few requests, or none whose times are known: unknown is not zero."""
    with pytest.raises(BenchFileError, match="no replica has 10 streamed requests"):
        read_bench_text(log_of(records))


def test_cached_tokens_that_are_left_out_are_none_where_others_are_told() -> None:
    """Half the requests had 50 of 200 cached and the others none, which the engine left out: an eighth in all."""
    untold = msgspec.structs.replace(TOKENS, delivered=None)
    records = [
        record(number * 0.5, tokens=untold if number % 2 else TOKENS) for number in range(10)
    ]
    (run,) = read_bench_text(log_of(records))
    assert (run.requests, run.prefix_share) == (10, 0.125)


def test_time_in_which_a_replica_was_idle_has_no_clients() -> None:
    """Ten requests with long pauses between them: one at a time is one client."""
    records = [record(number * 50.0) for number in range(10)]
    (run,) = read_bench_text(log_of(records))
    assert run.clients == pytest.approx(1.0)


def test_broken_line_is_named() -> None:
    """The message says which line it is and which field."""
    lines = [json.loads(line) for line in log_of([record(0.0), record(1.0)]).splitlines()]
    lines[1]["ttft_ms"] = "soon"
    with pytest.raises(BenchFileError, match=r"line 2 of the access log: .*ttft_ms"):
        read_bench_text("\n".join(json.dumps(line) for line in lines))
