"""Pages of vLLM at any time of a recorded run: its requests' own times as histograms, its time series as gauges."""

import csv
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from scrape_kit import LENGTHS, SECONDS, STEPS

EDGES = {
    "time_to_first_token_seconds": SECONDS,
    "request_queue_time_seconds": SECONDS,
    "request_prefill_time_seconds": SECONDS,
    "request_decode_time_seconds": SECONDS,
    "e2e_request_latency_seconds": SECONDS,
    "request_time_per_output_token_seconds": STEPS,
    "request_prompt_tokens": LENGTHS,
    "request_generation_tokens": LENGTHS,
}


@dataclass(frozen=True)
class Request:
    """Times in seconds since the first request; lengths in tokens."""

    prompt: int
    output: int
    queued: float
    scheduled: float
    first: float
    last: float

    def output_at(self, t: float) -> float:
        """Output tokens made until t, evenly between first and last token."""
        if t < self.first:
            return 0.0
        span = max(1e-9, self.last - self.first)
        return 1 + (self.output - 1) * min(1.0, (t - self.first) / span)


class Run:
    """A recorded run of vLLM: requests.jsonl and timeseries.csv of one folder."""

    def __init__(self, folder: Path) -> None:
        rows = [json.loads(line) for line in (folder / "requests.jsonl").read_text().splitlines()]
        begin = min(row["queued_ts"] for row in rows)
        self.requests = [
            Request(
                prompt=row["input_toks"],
                output=row["output_toks"],
                queued=row["queued_ts"] - begin,
                scheduled=row["scheduled_ts"] - begin,
                first=row["first_token_ts"] - begin,
                last=row["last_token_ts"] - begin,
            )
            for row in rows
        ]
        with (folder / "timeseries.csv").open() as opened:
            self.moments = list(csv.DictReader(opened))

    def page(self, t: float, *, kv: bool = True) -> str:
        """What vLLM's page would have said at t. `kv`: whether it has the gauge of KV usage."""
        moment = min(self.moments, key=lambda each: abs(float(each["t"]) - t))
        lines = [
            f'vllm:num_requests_running{{engine="0",model_name="m"}} {moment["running"]}',
            f'vllm:num_requests_waiting{{engine="0",model_name="m"}} {moment["waiting"]}',
        ]
        if kv:
            used = float(moment["kv_cache_pct"]) / 100.0
            lines.append(f'vllm:kv_cache_usage_perc{{engine="0",model_name="m"}} {used}')
        prompt = sum(each.prompt for each in self.requests if each.first <= t)
        output = sum(each.output_at(t) for each in self.requests)
        ended = [each for each in self.requests if each.last <= t]
        for name, value in (
            ("prompt_tokens_total", prompt),
            ("generation_tokens_total", output),
            ("prefix_cache_queries_total", prompt),
            ("prefix_cache_hits_total", 0),
            ("request_success_total", len(ended)),
        ):
            lines.append(f'vllm:{name}{{engine="0",model_name="m"}} {value}')
        begun = [each.first - each.queued for each in self.requests if each.first <= t]
        observed = {
            "time_to_first_token_seconds": begun,
            "request_queue_time_seconds": [each.scheduled - each.queued for each in ended],
            "request_prefill_time_seconds": [each.first - each.scheduled for each in ended],
            "request_decode_time_seconds": [each.last - each.first for each in ended],
            "e2e_request_latency_seconds": [each.last - each.queued for each in ended],
            "request_time_per_output_token_seconds": [
                (each.last - each.first) / (each.output - 1) for each in ended if each.output > 1
            ],
            "request_prompt_tokens": [float(each.prompt) for each in ended],
            "request_generation_tokens": [float(each.output) for each in ended],
        }
        for name, values in observed.items():
            lines += _histogram(name, values)
        return "\n".join(lines) + "\n"


def _histogram(name: str, values: Sequence[float]) -> list[str]:
    labels = 'engine="0",model_name="m"'
    lines = [f"# TYPE vllm:{name} histogram"]
    for edge in EDGES[name]:
        count = sum(value <= edge for value in values)
        lines.append(f'vllm:{name}_bucket{{{labels},le="{edge}"}} {count}')
    lines.append(f'vllm:{name}_bucket{{{labels},le="+Inf"}} {len(values)}')
    lines.append(f"vllm:{name}_count{{{labels}}} {len(values)}")
    lines.append(f"vllm:{name}_sum{{{labels}}} {sum(values)}")
    return lines
