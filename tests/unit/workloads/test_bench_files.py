"""Reading results of benchmark tools."""

import json

import pytest

from trimtab.workloads.bench_files import read_bench_text
from trimtab.workloads.bench_run import BenchFileError

VLLM = {
    "backend": "vllm",
    "model_id": "m",
    "max_concurrency": 16,
    "completed": 100,
    "total_input_tokens": 102400,
    "total_output_tokens": 25600,
    "request_throughput": 4.0,
    "mean_ttft_ms": 120.0,
    "mean_tpot_ms": 14.0,
}


def mean(value: float) -> dict[str, object]:
    return {"successful": {"mean": value, "count": 40}, "errored": {"mean": 1e9}}


GUIDELLM = {
    "args": {"model": "m"},
    "benchmarks": [
        {
            "metrics": {
                "request_concurrency": mean(7.8),
                "prompt_token_count": mean(512.0),
                "output_token_count": mean(128.0),
                "time_to_first_token_ms": mean(90.0),
                "time_per_output_token_ms": mean(99.0),
                "inter_token_latency_ms": mean(11.0),
            }
        }
    ],
}
AIPERF = {
    "input_config": {"loadgen": {"concurrency": 8}, "endpoint": {"model_names": ["m"]}},
    "request_count": {"unit": "requests", "avg": 50},
    "request_throughput": {"unit": "requests/sec", "avg": 2.0},
    "request_latency": {"unit": "ms", "avg": 3900.0},
    "time_to_first_token": {"unit": "ms", "avg": 75.0},
    "inter_token_latency": {"unit": "ms", "avg": 15.0},
    "input_sequence_length": {"unit": "tokens", "avg": 1000.0},
    "output_sequence_length": {"unit": "tokens", "avg": 256.0},
}


def test_vllm_result_is_read() -> None:
    """Means, clients as told, and tokens of a request from the totals."""
    (run,) = read_bench_text(json.dumps(VLLM))
    assert (run.tool, run.model, run.clients, run.requests) == ("vllm", "m", 16.0, 100)
    assert (run.input_tokens, run.output_tokens) == (1024.0, 256.0)
    assert (run.ttft_ms, run.tpot_ms) == (120.0, 14.0)


def test_open_loop_clients_follow_from_littles_law() -> None:
    """Without a limit on clients, those in flight are the rate times a request's time."""
    (run,) = read_bench_text(json.dumps(VLLM | {"max_concurrency": None}))
    assert run.clients == pytest.approx(4.0 * (120.0 + 14.0 * 255.0) / 1e3)


def test_json_lines_hold_several_runs() -> None:
    """One object on each line, as SGLang's client appends them."""
    lines = "\n".join(json.dumps(VLLM | {"max_concurrency": many}) for many in (1, 4))
    assert [run.clients for run in read_bench_text(lines)] == [1.0, 4.0]


def test_guidellm_result_is_read() -> None:
    """TPOT is the inter-token latency, not guidellm's time per token that holds the first one; errors do not count."""
    (run,) = read_bench_text(json.dumps(GUIDELLM))
    assert (run.clients, run.ttft_ms, run.tpot_ms, run.requests) == (7.8, 90.0, 11.0, 40)


def test_aiperf_result_is_read() -> None:
    """The averages of a profile export."""
    (run,) = read_bench_text(json.dumps(AIPERF))
    assert (run.clients, run.ttft_ms, run.tpot_ms, run.model) == (8.0, 75.0, 15.0, "m")


def test_aiperf_without_a_concurrency_uses_what_was_measured() -> None:
    """Requests per second times their latency."""
    (run,) = read_bench_text(json.dumps(AIPERF | {"input_config": {}}))
    assert run.clients == pytest.approx(7.8)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "not json",
        "[1, 2]",
        "{}",
        '{"benchmarks": []}',
        '{"benchmarks": [{"metrics": {}}]}',
        json.dumps(VLLM | {"mean_tpot_ms": 0}),
        json.dumps(VLLM | {"completed": None}),
        json.dumps({"time_to_first_token": 3}),
    ],
)
def test_garbage_is_a_typed_error(text: str) -> None:
    """Whatever is not a usable result says so, and nothing else is raised."""
    with pytest.raises(BenchFileError):
        read_bench_text(text)
