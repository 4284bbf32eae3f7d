"""Loaders of recorded requests: lines of a file in, a workload out.

Traces are read by `trace_files` and given text by `traces`; request bodies are sent as they are.
"""

import random
from collections.abc import Iterable
from typing import Any, Final

import msgspec

from trimtab.workloads.base import (
    CHAT_ENDPOINT,
    COMPLETIONS_ENDPOINT,
    MODEL_NAME,
    PeakShape,
    PlannedRequest,
    Workload,
    WorkloadError,
    first_arrivals,
)
from trimtab.workloads.trace_files import (
    AZURE_BLOCK_TOKENS,
    MOONCAKE_BLOCK_TOKENS,
    azure_records,
    coding_records,
    decode_line,
    mooncake_records,
    numbered,
)
from trimtab.workloads.traces import TraceParams, flat_peak, render_trace

FILE_LABEL: Final = "file"


def from_mooncake(lines: Iterable[str], params: TraceParams, *, file: str) -> Workload:
    """Load a Mooncake trace as a workload."""
    return render_trace(
        "mooncake",
        file,
        mooncake_records(lines, file=file),
        params,
        block_tokens=MOONCAKE_BLOCK_TOKENS,
        description=f"{file}: recorded times, lengths and shared blocks; made text",
    )


def from_azure_csv(lines: Iterable[str], params: TraceParams, *, file: str) -> Workload:
    """Load an Azure LLM inference trace as a workload."""
    return render_trace(
        "azure",
        file,
        azure_records(lines, file=file),
        params,
        block_tokens=AZURE_BLOCK_TOKENS,
        description=f"{file}: recorded times and lengths; made text, nothing shared",
    )


def from_coding_sessions(
    lines: Iterable[str], params: TraceParams, rng: random.Random, *, file: str
) -> Workload:
    """Load coding-agent sessions as a workload."""
    records, block_tokens = coding_records(
        lines, rng, file=file, session_gap_s=params.session_gap_s
    )
    return render_trace(
        "coding-sessions",
        file,
        records,
        params,
        block_tokens=block_tokens,
        description=f"{file}: recorded think times, lengths and shared blocks; made text",
    )


def from_jsonl(
    lines: Iterable[str], params: TraceParams, rng: random.Random, *, file: str
) -> Workload:
    """Load OpenAI request bodies, one JSON object per line, with optional timestamp and session.

    `timestamp` (seconds, any origin), `session` and `label` are taken out of the body; the rest is
    sent as it is, with model "default" where none is named. Either every line has a timestamp or
    none has; without, arrivals are Poisson at `rate_per_s`. Bodies are never scaled.
    """
    parsed = [(line, _decode_body(text, file, line)) for line, text in numbered(lines)]
    parsed = parsed[: params.requests_max]
    if not parsed:
        raise WorkloadError(f"{file}: no request in it; give a file with at least one")
    times = _jsonl_times(parsed, params, rng, file)
    turns: dict[str, int] = {}
    requests: list[PlannedRequest] = []
    for index, ((line, body), at_s) in enumerate(zip(parsed, times, strict=True)):
        body.pop("timestamp", None)
        session = _take_text(body, "session", f"line-{line}", file, line)
        label = _take_text(body, "label", FILE_LABEL, file, line)
        body.setdefault("model", MODEL_NAME)
        turns[session] = turns.get(session, -1) + 1
        requests.append(
            PlannedRequest(
                index=index,
                session=session,
                turn=turns[session],
                send_at_s=at_s,
                endpoint=CHAT_ENDPOINT if "messages" in body else COMPLETIONS_ENDPOINT,
                body=msgspec.json.encode(body),
                label=label,
            )
        )
    return Workload(
        name="file",
        seed=params.seed,
        requests=tuple(requests),
        description=f"{file}: {len(requests)} recorded bodies, sent as they are",
        scale={"input_factor": 1.0, "output_factor": 1.0, "time_factor": params.time_factor},
        peak=flat_peak(requests),
    )


def _decode_body(text: str, file: str, line: int) -> dict[str, Any]:
    body = decode_line(msgspec.json.Decoder(dict[str, Any]), text, file, line)
    if ("messages" in body) == ("prompt" in body):
        raise WorkloadError(
            f"{file}, line {line}, messages: a body needs exactly one of messages (chat) and prompt"
        )
    field, kinds = ("messages", list) if "messages" in body else ("prompt", (str, list))
    if not isinstance(body[field], kinds) or not body[field]:
        raise WorkloadError(
            f"{file}, line {line}, {field}: empty or of a wrong type; give its text"
        )
    return body


def _jsonl_times(
    parsed: list[tuple[int, dict[str, Any]]], params: TraceParams, rng: random.Random, file: str
) -> tuple[float, ...]:
    timed = [line for line, body in parsed if "timestamp" in body]
    if not timed:
        flat = PeakShape(low=1.0, high=1.0)
        return first_arrivals(params.rate_per_s, len(parsed), flat, rng)
    times: list[float] = []
    for line, body in parsed:
        stamp = body.get("timestamp")
        if isinstance(stamp, bool) or not isinstance(stamp, int | float):
            raise WorkloadError(
                f"{file}, line {line}, timestamp: {stamp!r} is no number of seconds; give every line"
                " one, or none"
            )
        if times and stamp < times[-1]:
            raise WorkloadError(
                f"{file}, line {line}, timestamp: {stamp} comes after {times[-1]}; sort the lines by time"
            )
        times.append(float(stamp))
    return tuple((at_s - times[0]) * params.time_factor for at_s in times)


def _take_text(body: dict[str, Any], field: str, default: str, file: str, line: int) -> str:
    value = body.pop(field, default)
    if not isinstance(value, str) or not value:
        raise WorkloadError(
            f"{file}, line {line}, {field}: {value!r} is no text; give a name or leave it out"
        )
    return value
