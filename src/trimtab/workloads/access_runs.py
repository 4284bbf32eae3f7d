"""A gateway's access log as measured runs: for each replica and stretch of time, the means of what it served there.

Clients in flight are Little's law over all requests of a replica, ended well or not: what they stayed, over the
stretch. Times are those of streamed requests that ended well. A log over a day holds many loads, so it is cut into
stretches, each a run of its own; one with few requests says little and is left out.
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
    cached_tokens: int = 0
    output_tokens: int | None = None
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
        """Whether it ended well with known tokens and times."""
        known = (self.prompt_tokens, self.output_tokens, self.ttft_ms, self.tpot_ms, self.e2e_ms)
        ended = self.status == _OK and self.error == _NO_ERROR
        return ended and all(value is not None and value > 0 for value in known)


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
            f"no replica has {REQUESTS_MIN} streamed requests with known tokens and times within "
            f"{STRETCH_S / 60.0:.0f} minutes"
        )
    return tuple(runs)


def _line(document: Mapping[str, object], number: int) -> _Line:
    try:
        return msgspec.convert(document, _Line)
    except msgspec.ValidationError as error:
        raise BenchFileError(f"line {number} of the access log: {error}") from error


def _of_replica(lines: Sequence[_Line]) -> Iterable[BenchRun]:
    first_s = min(line.arrived_s for line in lines)
    last_s = max(line.finished_s for line in lines)
    stretches: dict[int, list[_Line]] = {}
    for line in lines:
        stretches.setdefault(int((line.arrived_s - first_s) / STRETCH_S), []).append(line)
    for place in sorted(stretches):
        start_s = first_s + place * STRETCH_S
        known = [line for line in stretches[place] if line.usable]
        if len(known) >= REQUESTS_MIN:
            yield _run(known, stretches[place], min(STRETCH_S, last_s - start_s))


def _run(known: Sequence[_Line], all_lines: Sequence[_Line], span_s: float) -> BenchRun:
    def mean(values: Iterable[float | None]) -> float:
        return math.fsum(value or 0.0 for value in values) / len(known)

    stayed_s = math.fsum(line.e2e_ms or 0.0 for line in all_lines) / 1e3
    prompt = mean(line.prompt_tokens for line in known)
    cached = mean(min(line.cached_tokens, line.prompt_tokens or 0) for line in known)
    return BenchRun(
        tool=TOOL,
        model=None,
        clients=stayed_s / span_s if span_s > 0.0 else 1.0,
        input_tokens=prompt,
        output_tokens=mean(line.output_tokens for line in known),
        ttft_ms=mean(line.ttft_ms for line in known),
        tpot_ms=mean(line.tpot_ms for line in known),
        requests=len(known),
        prefix_share=cached / prompt,
    )
