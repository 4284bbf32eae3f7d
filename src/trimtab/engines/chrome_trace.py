"""A torch profiler's chrome trace as time by kind of work: compute, collective, copy, idle.

Each rank writes one file. Of its complete events ("ph": "X", times in microseconds) those are kept that do work:
device kernels and copies (categories `kernel`, `gpu_memcpy`, `gpu_memset`) where there are any, else, on a CPU, the
operators that have no operator inside them. Time is counted once: where a collective runs beside computation, it is
computation; what is left of collectives is exposed communication. Idle is what lies between the first and the last of
them with nothing in it.

A collective is recognised by name: nccl, rccl, c10d, gloo, all_reduce, all_gather, reduce_scatter, all_to_all, send,
recv, shm_allreduce, shm_recv_tensor_list and their kin. A name that is none of them is computation, so an unknown
collective hides in it.

Source: trace format, Chromium's "Trace Event Format"; categories as PyTorch's Kineto writes them.
"""

import gzip
import re
import zlib
from collections.abc import Sequence
from typing import Final

import msgspec

from trimtab.core.ports import EngineFormatError

TRACE_BYTES_MAX: Final = 1024 * 1024 * 1024
_COLLECTIVE: Final = re.compile(
    r"nccl|rccl|c10d|gloo|all_?reduce|all_?gather|reduce_?scatter|all_?to_?all"
    r"|shm_\w*(reduce|gather|send|recv)|(?<![a-z])i?(send|recv)(?![a-z])",
    re.IGNORECASE,
)
_DEVICE: Final = frozenset({"kernel", "gpu_memcpy", "gpu_memset"})
_COPY: Final = re.compile(r"memcpy|memset|\bcopy_\b", re.IGNORECASE)


class _Event(msgspec.Struct):
    ph: str = ""
    name: str = ""
    cat: str = ""
    ts: float = 0.0
    dur: float = 0.0
    tid: int | str = 0


class _Trace(msgspec.Struct):
    traceEvents: list[_Event]  # noqa: N815 - the format's own name


class TraceTimes(msgspec.Struct, frozen=True, kw_only=True):
    """Milliseconds of one rank: four kinds that sum to `total_ms`. `on_device`: of kernels, else of operators.

    `overlapped_ms`: time of collectives that computation ran beside; it is part of `compute_ms`.
    """

    total_ms: float
    compute_ms: float
    collective_ms: float
    copy_ms: float
    idle_ms: float
    overlapped_ms: float
    events: int
    on_device: bool

    @property
    def communication_share(self) -> float:
        """Part (0 to 1) of the time in collectives that nothing overlaps."""
        return self.collective_ms / self.total_ms if self.total_ms > 0.0 else 0.0


def read_trace(data: bytes) -> TraceTimes:
    """Read a trace, plain or gzip; raises `EngineFormatError`, whose message continues a sentence on the file."""
    if data[:2] == b"\x1f\x8b":
        data = _inflated(data)
    if len(data) > TRACE_BYTES_MAX:
        raise EngineFormatError(f"it has {len(data)} bytes; at most {TRACE_BYTES_MAX} are read")
    try:
        found = msgspec.json.decode(data, type=_Trace, strict=False)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise EngineFormatError(f"it is no chrome trace ({error})") from error
    whole = [one for one in found.traceEvents if one.ph == "X" and one.dur > 0.0]
    device = [one for one in whole if one.cat.lower() in _DEVICE]
    work = device or _innermost([one for one in whole if one.cat.lower() == "cpu_op"])
    if not work:
        raise EngineFormatError("it has neither kernels nor operators")
    return _times(work, on_device=bool(device))


def _inflated(data: bytes) -> bytes:
    try:
        return gzip.decompress(data)
    except (OSError, EOFError, zlib.error) as error:
        raise EngineFormatError(f"it is no whole gzip file ({error})") from error


def _innermost(events: Sequence[_Event]) -> list[_Event]:
    """Return the operators of each thread that have no other inside them, and collectives whole."""
    made: list[_Event] = []
    by_thread: dict[int | str, list[_Event]] = {}
    for one in events:
        by_thread.setdefault(one.tid, []).append(one)
    for thread in by_thread.values():
        thread.sort(key=lambda one: (one.ts, -one.dur))
        covered_until = float("-inf")
        for at, one in enumerate(thread):
            if one.ts < covered_until:
                continue
            end = one.ts + one.dur
            if _COLLECTIVE.search(one.name):
                made.append(one)
                covered_until = end
                continue
            following = thread[at + 1] if at + 1 < len(thread) else None
            if following is None or following.ts >= end:
                made.append(one)
    return made


def _times(work: Sequence[_Event], *, on_device: bool) -> TraceTimes:
    kinds: dict[str, list[tuple[float, float]]] = {"collective": [], "copy": [], "compute": []}
    for one in work:
        kind = (
            "collective"
            if _COLLECTIVE.search(one.name)
            else "copy"
            if _COPY.search(one.name)
            else "compute"
        )
        kinds[kind].append((one.ts, one.ts + one.dur))
    compute = _union(kinds["compute"])
    collective, copy = _union(kinds["collective"]), _union(kinds["copy"])
    exposed = _length(_union([*compute, *collective])) - _length(compute)
    busy = _length(_union([*compute, *collective, *copy]))
    copies = busy - _length(compute) - exposed
    start, end = min(one.ts for one in work), max(one.ts + one.dur for one in work)
    return TraceTimes(
        total_ms=(end - start) / 1000.0,
        compute_ms=_length(compute) / 1000.0,
        collective_ms=exposed / 1000.0,
        copy_ms=copies / 1000.0,
        idle_ms=(end - start - busy) / 1000.0,
        overlapped_ms=(_length(collective) - exposed) / 1000.0,
        events=len(work),
        on_device=on_device,
    )


def _union(spans: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    merged: list[tuple[float, float]] = []
    for start, end in sorted(spans):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        else:
            merged.append((start, end))
    return merged


def _length(spans: Sequence[tuple[float, float]]) -> float:
    return sum(end - start for start, end in spans)
