"""Pages of metrics as engines write them, made from one description of a load: any engine can tell any case.

A field that is None is not on the page: that is how an engine says nothing of it.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from click.testing import CliRunner, Result

from trimtab.interfaces.cli import main

SECONDS = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5)
SECONDS += (10.0, 15.0, 20.0, 30.0, 60.0)
STEPS = (0.001, 0.0025, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.025, 0.03, 0.04, 0.05, 0.075, 0.1, 0.15)
STEPS += (0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5)
LENGTHS = (1, 10, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000, 50000, 100000)


@dataclass(frozen=True)
class Hist:
    """`count` observations, all of them at `mean` (in the bucket that holds it); `at`: another value for the bucket."""

    count: float
    mean: float
    at: float | None = None

    def lines(self, name: str, edges: Sequence[float], labels: str) -> list[str]:
        """The series of a Prometheus histogram."""
        where = self.mean if self.at is None else self.at
        inner = f"{labels}," if labels else ""
        found = [f"# TYPE {name} histogram"]
        found += [
            f'{name}_bucket{{{inner}le="{edge}"}} {self.count if where <= edge else 0.0}'
            for edge in edges
        ]
        found.append(f'{name}_bucket{{{inner}le="+Inf"}} {self.count}')
        outer = f"{{{labels}}}" if labels else ""
        found.append(f"{name}_count{outer} {self.count}")
        found.append(f"{name}_sum{outer} {self.count * self.mean}")
        return found


@dataclass(frozen=True)
class Load:
    """What one rank of a server says. Times in seconds, sizes in tokens."""

    running: float | None = None
    waiting: float | None = None
    kv: float | None = None
    preemptions: float | None = None
    queries: float | None = None
    hits: float | None = None
    prompt_tokens: float | None = None
    output_tokens: float | None = None
    finished: float | None = None
    ttft: Hist | None = None
    queue: Hist | None = None
    prefill: Hist | None = None
    decode: Hist | None = None
    e2e: Hist | None = None
    tpot: Hist | None = None
    chunk_gap: Hist | None = None
    drafts: float | None = None
    drafted: float | None = None
    accepted: float | None = None
    transfer: Hist | None = None
    post: Hist | None = None
    transfer_bytes: Hist | None = None
    descriptors: Hist | None = None
    failures: float | None = None
    expired: float | None = None
    external_queries: float | None = None
    external_hits: float | None = None
    output_gauge: float | None = None
    prompt_length: Hist | None = None
    output_length: Hist | None = None

    def without(self, *names: str) -> "Load":
        """The same load, with nothing said of these fields."""
        return replace(self, **dict.fromkeys(names))

    def but(self, **changed: Any) -> "Load":
        """The same load with other values."""
        return replace(self, **changed)


VLLM = {
    "running": ("gauge", "vllm:num_requests_running"),
    "waiting": ("gauge", "vllm:num_requests_waiting"),
    "kv": ("gauge", "vllm:kv_cache_usage_perc"),
    "preemptions": ("counter", "vllm:num_preemptions_total"),
    "queries": ("counter", "vllm:prefix_cache_queries_total"),
    "hits": ("counter", "vllm:prefix_cache_hits_total"),
    "prompt_tokens": ("counter", "vllm:prompt_tokens_total"),
    "output_tokens": ("counter", "vllm:generation_tokens_total"),
    "finished": ("counter", 'vllm:request_success_total{finished_reason="stop"}'),
    "ttft": (SECONDS, "vllm:time_to_first_token_seconds"),
    "queue": (SECONDS, "vllm:request_queue_time_seconds"),
    "prefill": (SECONDS, "vllm:request_prefill_time_seconds"),
    "decode": (SECONDS, "vllm:request_decode_time_seconds"),
    "e2e": (SECONDS, "vllm:e2e_request_latency_seconds"),
    "tpot": (STEPS, "vllm:request_time_per_output_token_seconds"),
    "chunk_gap": (STEPS, "vllm:inter_token_latency_seconds"),
    "drafts": ("counter", "vllm:spec_decode_num_drafts_total"),
    "drafted": ("counter", "vllm:spec_decode_num_draft_tokens_total"),
    "accepted": ("counter", "vllm:spec_decode_num_accepted_tokens_total"),
    "transfer": (SECONDS, "vllm:nixl_xfer_time_seconds"),
    "post": (SECONDS, "vllm:nixl_post_time_seconds"),
    "transfer_bytes": ((2.0**20, 2.0**25, 2.0**30), "vllm:nixl_bytes_transferred"),
    "descriptors": ((10, 100, 1000, 10000, 100000), "vllm:nixl_num_descriptors"),
    "failures": ("counter", "vllm:nixl_num_failed_transfers_total"),
    "expired": ("counter", "vllm:nixl_num_kv_expired_reqs_total"),
    "external_queries": ("counter", "vllm:external_prefix_cache_queries_total"),
    "external_hits": ("counter", "vllm:external_prefix_cache_hits_total"),
    "prompt_length": (LENGTHS, "vllm:request_prompt_tokens"),
    "output_length": (LENGTHS, "vllm:request_generation_tokens"),
}
SGLANG = {
    "running": ("gauge", "sglang:num_running_reqs"),
    "waiting": ("gauge", "sglang:num_queue_reqs"),
    "kv": ("gauge", "sglang:token_usage"),
    "preemptions": ("counter", "sglang:num_retracted_requests_total"),
    "hits": ("counter", "sglang:cached_tokens_total"),
    "prompt_tokens": ("counter", "sglang:prompt_tokens_total"),
    "output_tokens": ("counter", "sglang:generation_tokens_total"),
    "finished": ("counter", "sglang:num_requests_total"),
    "ttft": (SECONDS, "sglang:time_to_first_token_seconds"),
    "queue": (SECONDS, "sglang:queue_time_seconds"),
    "e2e": (SECONDS, "sglang:e2e_request_latency_seconds"),
    "tpot": (STEPS, "sglang:time_per_output_token_seconds"),
    "chunk_gap": (STEPS, "sglang:inter_token_latency_seconds"),
    "output_gauge": ("gauge", "sglang:gen_throughput"),
    "failures": ("counter", "sglang:num_transfer_failed_reqs_total"),
    "prompt_length": (LENGTHS, "sglang:prompt_tokens_histogram"),
    "output_length": (LENGTHS, "sglang:generation_tokens_histogram"),
}
LLAMACPP = {
    "running": ("gauge", "llamacpp:requests_processing"),
    "waiting": ("gauge", "llamacpp:requests_deferred"),
    "prompt_tokens": ("counter", "llamacpp:prompt_tokens_total"),
    "hits": ("counter", "llamacpp:prompt_tokens_cached_total"),
    "output_tokens": ("counter", "llamacpp:tokens_predicted_total"),
    "drafts": ("counter", "llamacpp:spec_decode_num_drafts_total"),
    "drafted": ("counter", "llamacpp:spec_decode_num_draft_tokens_total"),
    "accepted": ("counter", "llamacpp:spec_decode_num_accepted_tokens_total"),
}


def vllm(*ranks: Load, started_s: float | None = None) -> str:
    """A page of vLLM V1: one `engine` label a rank."""
    labels = [f'engine="{rank}",model_name="m"' for rank in range(len(ranks))]
    return page_of(VLLM, list(zip(labels, ranks, strict=True)), started_s)


def sglang(*ranks: Load, started_s: float | None = None) -> str:
    """A page of SGLang; several ranks carry `dp_rank`."""
    several = len(ranks) > 1
    labels = [
        f'dp_rank="{rank}",model_name="m"' if several else 'model_name="m"'
        for rank in range(len(ranks))
    ]
    return page_of(SGLANG, list(zip(labels, ranks, strict=True)), started_s)


def llamacpp(load: Load) -> str:
    """A page of llama.cpp's server, which labels nothing."""
    return page_of(LLAMACPP, [("", load)])


def page_of(
    names: Mapping[str, tuple[Any, str]],
    ranks: Sequence[tuple[str, Load]],
    started_s: float | None = None,
) -> str:
    """A page of an engine that writes each field under the name given for it; `ranks`: labels and load of each."""
    lines: list[str] = []
    for field, (kind, name) in names.items():
        told = [(labels, getattr(load, field)) for labels, load in ranks]
        for labels, value in told:
            lines += _series(name, kind, labels, value)
    if started_s is not None:
        lines += [
            "# TYPE process_start_time_seconds gauge",
            f"process_start_time_seconds {started_s}",
        ]
    return "\n".join(lines) + "\n"


def _series(name: str, kind: Any, labels: str, value: float | Hist | None) -> list[str]:
    if value is None:
        return []
    if isinstance(value, Hist):
        return value.lines(name, kind, labels)
    bare, _, own = name.rstrip("}").partition("{")
    inner = ",".join(part for part in (labels, own) if part)
    series = f"{bare}{{{inner}}}" if inner else bare
    return [f"# TYPE {bare} {kind}", f"{series} {value}"]


@dataclass(frozen=True)
class Told:
    """What the command answered."""

    code: int
    answer: Mapping[str, Any]
    text: str

    @property
    def binding(self) -> tuple[str, str] | None:
        """The dominant (phase, resource), None if it cannot tell."""
        found = self.answer["binding"]
        return None if found is None else (found["phase"], found["resource"])

    def said(self, *parts: str) -> str:
        """Everything in these parts of the answer, as one text."""
        return json.dumps([self.answer[part] for part in parts], ensure_ascii=False)

    def reading(self, name: str) -> Any:
        """The value of a reading, None if it is unknown."""
        found = self.answer["readings"].get(name)
        return None if found is None else found.get("value")


def invoke(*arguments: str) -> Result:
    """Run `trimtab diagnose` in this process."""
    return CliRunner().invoke(main, ["diagnose", *arguments])


def diagnose(folder: Path, *pages: str | bytes, options: Sequence[str] = ()) -> Told:
    """Save pages as files, diagnose them in that order, return the answer as JSON."""
    paths = []
    for number, page in enumerate(pages):
        path = folder / f"scrape-{number}.prom"
        path.write_bytes(page.encode() if isinstance(page, str) else page)
        paths.append(str(path))
    ran = invoke(*paths, *options, "--json")
    assert ran.exception is None or isinstance(ran.exception, SystemExit), ran.exception
    assert ran.stdout.startswith("{"), ran.output
    return Told(ran.exit_code, json.loads(ran.stdout), ran.stdout)


def facts(folder: Path, text: str) -> tuple[str, str]:
    """Options that hand a file of facts to the command."""
    path = folder / "facts.toml"
    path.write_text(text)
    return ("--facts", str(path))


def apart(folder: Path, first: str, last: str, *options: str) -> Told:
    """Diagnose two scrapes of one server, a minute apart."""
    return diagnose(folder, first, last, options=("--between", "60", *options))


def kinds(told: Told) -> set[str]:
    """The kinds of its warnings."""
    return {each["kind"] for each in told.answer["warnings"]}


def lever(told: Told, name: str) -> Mapping[str, Any]:
    """What it says of one lever."""
    found = [each for each in told.answer["levers"] if each["lever"] == name]
    assert len(found) == 1, [each["lever"] for each in told.answer["levers"]]
    return found[0]


def proposed(told: Told) -> set[str]:
    """The levers that it proposes."""
    return {each["lever"] for each in told.answer["levers"] if each["proposed"]}


def judgement(told: Told, subject: str) -> Mapping[str, Any]:
    """What it judges of one subject."""
    found = [each for each in told.answer["judgements"] if each["subject"] == subject]
    assert len(found) == 1, told.answer["judgements"]
    return found[0]
