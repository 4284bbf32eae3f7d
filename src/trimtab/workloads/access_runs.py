"""A gateway's access log as measured runs: for each replica and stretch of time, the means of what it served there.

Clients in flight are Little's law over all requests of a replica, ended well or not: what they stayed, over the time
in which at least one was there, since the means are of requests and an idle replica serves none. Times are those of
streamed requests that ended well and whose tokens the engine told: an estimate is no measurement. A log over a day
holds many loads, so it is cut into stretches, each a run of its own; one with few requests says little and is left out.

Engines may leave out that no token was cached (vLLM does). So a request without that figure had none cached where its
replica told the figure of others; where it never does, what was cached is unknown, and the replica has no run.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Final

import msgspec

from trimtab.workloads.bench_run import BenchFileError, BenchRun

TOOL: Final = "gateway"
STRETCH_S: Final = 600.0
REQUESTS_MIN: Final = 10
"""Requests with known tokens and times that a stretch needs."""

_OK: Final = 200
_NO_ERROR: Final = "none"


class _Line(msgspec.Struct, frozen=True, kw_only=True):
    """What is read of a line; the log leaves out what is unknown."""

    time: datetime
    endpoint: str
    status: int
    error: str
    replica: str = ""
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    output_tokens: int | None = None
    usage_estimated: bool = False
    ttft_ms: float | None = None
    tpot_ms: float | None = None
    e2e_ms: float | None = None

    @property
    def arrived_s(self) -> float:
        return self.time.timestamp()

    @property
    def finished_s(self) -> float:
        return self.arrived_s + (self.e2e_ms or 0.0) / 1e3

    @property
    def usable(self) -> bool:
        """Whether it ended well with times and tokens that were told."""
        known = (self.prompt_tokens, self.output_tokens, self.ttft_ms, self.tpot_ms, self.e2e_ms)
        ended = self.status == _OK and self.error == _NO_ERROR
        told = not self.usage_estimated
        return ended and told and all(value is not None and value > 0 for value in known)


def is_access_line(document: Mapping[str, object]) -> bool:
    """Say whether an object is a line of a gateway's access log."""
    return {"request_id", "endpoint", "status", "time"} <= document.keys()


def runs_of_log(documents: Sequence[Mapping[str, object]]) -> tuple[BenchRun, ...]:
    """Read the lines of an access log as runs; raises `BenchFileError` naming the line, or where nothing is usable."""
    by_replica: dict[str, list[_Line]] = {}
    for number, document in enumerate(documents, start=1):
        line = _line(document, number)
        if line.e2e_ms is not None:
            by_replica.setdefault(line.replica, []).append(line)
    runs = [run for name in sorted(by_replica) for run in _of_replica(by_replica[name])]
    if not runs:
        raise BenchFileError(
            f"no replica has {REQUESTS_MIN} streamed requests with known tokens (cached ones too) "
            f"and times within {STRETCH_S / 60.0:.0f} minutes"
        )
    return tuple(runs)


def _line(document: Mapping[str, object], number: int) -> _Line:
    try:
        return msgspec.convert(document, _Line)
    except msgspec.ValidationError as error:
        raise BenchFileError(f"line {number} of the access log: {error}") from error


def _of_replica(lines: Sequence[_Line]) -> Iterable[BenchRun]:
    if all(line.cached_tokens is None for line in lines):
        return
    first_s = min(line.arrived_s for line in lines)
    stretches: dict[int, list[_Line]] = {}
    for line in lines:
        stretches.setdefault(int((line.arrived_s - first_s) / STRETCH_S), []).append(line)
    for place in sorted(stretches):
        known = [line for line in stretches[place] if line.usable]
        if len(known) >= REQUESTS_MIN:
            yield _run(known, stretches[place])


def _busy_s(lines: Sequence[_Line]) -> float:
    """Return how long at least one of the requests was in flight, in seconds."""
    busy_s, until_s = 0.0, -math.inf
    for line in sorted(lines, key=lambda each: each.arrived_s):
        busy_s += max(0.0, line.finished_s - max(line.arrived_s, until_s))
        until_s = max(until_s, line.finished_s)
    return busy_s


def _run(known: Sequence[_Line], all_lines: Sequence[_Line]) -> BenchRun:
    def mean(values: Iterable[float | None]) -> float:
        return math.fsum(value or 0.0 for value in values) / len(known)

    busy_s = _busy_s(all_lines)
    stayed_s = math.fsum(line.e2e_ms or 0.0 for line in all_lines) / 1e3
    prompt = mean(line.prompt_tokens for line in known)
    cached = mean(min(line.cached_tokens or 0, line.prompt_tokens or 0) for line in known)
    return BenchRun(
        tool=TOOL,
        model=None,
        clients=stayed_s / busy_s if busy_s > 0.0 else 1.0,
        input_tokens=prompt,
        output_tokens=mean(line.output_tokens for line in known),
        ttft_ms=mean(line.ttft_ms for line in known),
        tpot_ms=mean(line.tpot_ms for line in known),
        requests=len(known),
        prefix_share=cached / prompt,
    )
