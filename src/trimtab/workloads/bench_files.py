"""Results of benchmark tools as measured runs: guidellm, aiperf, vLLM's or SGLang's own client; and gateways' logs.

Only successful requests count. Every tool has its own words for the same times: guidellm's `time_per_output_token_ms`
holds the first token too, so `inter_token_latency_ms` is what is read; aiperf's `inter_token_latency` is the mean over
requests of (latency - TTFT) / (tokens - 1), which is TPOT here. Clients in flight are what a tool measured where it
did, else what it was told. Formats read: guidellm 0.3 to 0.8 (`benchmarks.json`), aiperf 0.5 to 0.13
(`profile_export_aiperf.json`), vLLM `bench serve --save-result` and SGLang `bench_serving` (JSON or JSON lines).
"""

from collections.abc import Mapping
from typing import Final

import msgspec

from trimtab.workloads.access_runs import is_access_line, runs_of_log
from trimtab.workloads.bench_run import BenchFileError, BenchRun

RESULTS_MAX: Final = 1_000


def read_bench_text(text: str) -> tuple[BenchRun, ...]:
    """Read the runs of a benchmark file, whichever tool wrote it; raises `BenchFileError`."""
    documents = _documents(text)
    if documents and all(is_access_line(document) for document in documents):
        return runs_of_log(documents)
    runs: list[BenchRun] = []
    for document in documents:
        if isinstance(document.get("benchmarks"), list):
            runs.extend(_guidellm(document))
        elif "time_to_first_token" in _aiperf_records(document):
            runs.append(_aiperf(document))
        elif "mean_ttft_ms" in document:
            runs.append(_vllm(document))
        else:
            raise BenchFileError(
                "not a benchmark result of guidellm (benchmarks), aiperf (time_to_first_token) "
                "or vLLM and SGLang (mean_ttft_ms), nor a gateway's access log (request_id, endpoint)"
            )
        if len(runs) > RESULTS_MAX:
            raise BenchFileError(f"more than {RESULTS_MAX} runs in one file")
    if not runs:
        raise BenchFileError("no run in the file")
    return tuple(runs)


def _documents(text: str) -> list[Mapping[str, object]]:
    """Return the objects of a text: one JSON object, a list of them, or one on each line."""
    try:
        found = msgspec.json.decode(text)
    except msgspec.DecodeError:
        try:
            found = [msgspec.json.decode(line) for line in text.splitlines() if line.strip()]
        except msgspec.DecodeError as error:
            raise BenchFileError(f"not JSON: {error}") from error
    objects = found if isinstance(found, list) else [found]
    if not all(isinstance(one, dict) for one in objects):
        raise BenchFileError("not a JSON object, a list of them, or one on each line")
    return objects


def _guidellm(document: Mapping[str, object]) -> list[BenchRun]:
    runs: list[BenchRun] = []
    benchmarks = document["benchmarks"]
    assert isinstance(benchmarks, list)
    model = _text(document.get("args"), "model")
    for number, benchmark in enumerate(benchmarks):
        metrics = _inside(benchmark, "metrics")

        def mean(name: str, metrics: Mapping[str, object] = metrics, number: int = number) -> float:
            return _number(
                _inside(_inside(metrics, name), "successful"), "mean", f"benchmark {number} {name}"
            )

        counts = _inside(_inside(metrics, "output_token_count"), "successful")
        count = counts.get("count")
        runs.append(
            BenchRun(
                tool="guidellm",
                model=model,
                clients=mean("request_concurrency"),
                input_tokens=mean("prompt_token_count"),
                output_tokens=mean("output_token_count"),
                ttft_ms=mean("time_to_first_token_ms"),
                tpot_ms=mean("inter_token_latency_ms"),
                requests=count if isinstance(count, int) else None,
            )
        )
    return runs


def _aiperf_records(document: Mapping[str, object]) -> Mapping[str, object]:
    records = document.get("records")
    return records if isinstance(records, dict) else document


def _aiperf(document: Mapping[str, object]) -> BenchRun:
    records = _aiperf_records(document)

    def mean(name: str, unit_ms: bool = False) -> float:
        found = _inside(records, name)
        value = _number(found, "avg", name)
        return value * 1e3 if unit_ms and found.get("unit") in ("s", "sec", "seconds") else value

    config = _inside(document, "input_config")
    latency_ms = mean("request_latency", unit_ms=True)
    count = _inside(records, "request_count").get("avg")
    told = _inside(config, "loadgen").get("concurrency")
    clients = (
        float(told)
        if isinstance(told, int | float) and not isinstance(told, bool)
        else mean("request_throughput") * latency_ms / 1e3
    )
    names = _inside(config, "endpoint").get("model_names")
    return BenchRun(
        tool="aiperf",
        model=str(names[0]) if isinstance(names, list) and names else None,
        clients=clients,
        input_tokens=mean("input_sequence_length"),
        output_tokens=mean("output_sequence_length"),
        ttft_ms=mean("time_to_first_token", unit_ms=True),
        tpot_ms=mean("inter_token_latency", unit_ms=True),
        requests=int(count) if isinstance(count, int | float) else None,
    )


def _vllm(document: Mapping[str, object]) -> BenchRun:
    completed = _number(document, "completed", "completed")
    told = document.get("max_concurrency")
    if isinstance(told, int | float) and not isinstance(told, bool):
        clients = float(told)
    else:
        request_ms = _number(document, "mean_ttft_ms", "mean_ttft_ms") + _number(
            document, "mean_tpot_ms", "mean_tpot_ms"
        ) * (_number(document, "total_output_tokens", "total_output_tokens") / completed - 1.0)
        clients = _number(document, "request_throughput", "request_throughput") * request_ms / 1e3
    return BenchRun(
        tool="vllm",
        model=_text(document, "model_id"),
        clients=clients,
        input_tokens=_number(document, "total_input_tokens", "total_input_tokens") / completed,
        output_tokens=_number(document, "total_output_tokens", "total_output_tokens") / completed,
        ttft_ms=_number(document, "mean_ttft_ms", "mean_ttft_ms"),
        tpot_ms=_number(document, "mean_tpot_ms", "mean_tpot_ms"),
        requests=int(completed),
    )


def _inside(document: object, name: str) -> Mapping[str, object]:
    """Return an object inside another one; an empty one where it is absent."""
    found = document.get(name) if isinstance(document, dict) else None
    return found if isinstance(found, dict) else {}


def _number(document: Mapping[str, object], name: str, called: str) -> float:
    found = document.get(name)
    if isinstance(found, bool) or not isinstance(found, int | float) or not 0.0 < found < 1e12:
        raise BenchFileError(f"{called}: no figure above zero")
    return float(found)


def _text(document: object, name: str) -> str | None:
    found = document.get(name) if isinstance(document, dict) else None
    return found if isinstance(found, str) else None
