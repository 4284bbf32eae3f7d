"""Reads profiler traces made by hand: every microsecond belongs to one kind of work, whatever overlaps."""

import gzip
import json

import pytest

from trimtab.core.ports import EngineFormatError
from trimtab.engines.chrome_trace import TraceTimes, read_trace


def event(
    name: str, ts: float, dur: float, *, cat: str = "kernel", tid: int = 7
) -> dict[str, object]:
    return {"ph": "X", "name": name, "cat": cat, "ts": ts, "dur": dur, "pid": 1, "tid": tid}


def read(*events: dict[str, object]) -> TraceTimes:
    return read_trace(json.dumps({"traceEvents": events}).encode())


def test_kinds_sum_to_the_time_traced() -> None:
    """Compute 4 ms, a collective of 3 ms with 1 ms of it beside computation, a copy, and a gap."""
    found = read(
        event("gemm", 0, 4000),
        event("ncclDevKernel_AllReduce", 3000, 3000, tid=8),
        event("Memcpy HtoD", 6000, 500, cat="gpu_memcpy"),
        event("gemm", 7500, 500),
    )
    assert (found.compute_ms, found.collective_ms, found.copy_ms) == (4.5, 2.0, 0.5)
    assert (found.overlapped_ms, found.idle_ms, found.total_ms) == (1.0, 1.0, 8.0)
    assert found.communication_share == pytest.approx(0.25)


def test_operators_count_where_there_are_no_kernels() -> None:
    """On a CPU the innermost operators are the work, and the operator around them is not counted again."""
    found = read(
        event("aten::linear", 0, 1000, cat="cpu_op"),
        event("aten::addmm", 100, 800, cat="cpu_op"),
        event("c10d::allreduce_", 1000, 600, cat="cpu_op"),
        event("aten::copy_", 1100, 100, cat="cpu_op"),
    )
    assert (found.on_device, found.events) == (False, 2)
    assert (found.compute_ms, found.collective_ms) == (0.8, pytest.approx(0.6))


def test_kernels_hide_the_operators_that_launched_them() -> None:
    """A device's time is its kernels; the host's operators ran beside them."""
    found = read(event("aten::mm", 0, 9000, cat="cpu_op"), event("gemm", 500, 1000))
    assert (found.on_device, found.total_ms) == (True, 1.0)


@pytest.mark.parametrize(
    "name",
    [
        "ncclDevKernel_AllGather_RING_LL",
        "gloo:all_reduce",
        "c10d::allreduce_",
        "vllm::all_reduce",
        "_C::shm_allreduce",
        "reduce_scatter_tensor",
        "all_to_all_single",
        "gloo:recv",
        "gloo:send",
        "c10d::send",
        "c10d::recv_",
        "_C::shm_recv_tensor_list",
        "_C::shm_send_tensor_list",
        "isend",
    ],
)
def test_collectives_are_known_by_their_names(name: str) -> None:
    """Each library's own name for meeting other ranks."""
    assert read(event(name, 0, 1000), event("gemm", 1000, 1000)).communication_share == 0.5


@pytest.mark.parametrize(
    "name", ["aten::mm", "flash_fwd_kernel", "paged_attention", "reduce_kernel", "sendfile"]
)
def test_computation_is_no_collective(name: str) -> None:
    """A reduction inside a device meets nobody."""
    assert read(event(name, 0, 1000)).collective_ms == 0.0


def test_gzip_reads_as_the_plain_file() -> None:
    """Engines write either."""
    plain = json.dumps({"traceEvents": [event("gemm", 0, 10)]}).encode()
    assert read_trace(gzip.compress(plain, mtime=0)) == read_trace(plain)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"[]",
        b"\x1f\x8bgarbage",
        gzip.compress(b"{}" * 50, mtime=0)[:-9],
        b'{"traceEvents": 3}',
        b'{"traceEvents": []}',
        b'{"traceEvents": [{"ph": "M", "name": "process_name"}]}',
        b"\xff\xfe\x00",
        b"[" * 100_000,
    ],
)
def test_what_is_no_trace_is_said(data: bytes) -> None:
    """Nothing but the typed error comes out of bytes that are no trace, and no time is made up."""
    with pytest.raises(EngineFormatError):
        read_trace(data)
