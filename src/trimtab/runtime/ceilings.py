"""What this machine's CPU can do, measured for a moment instead of assumed: the bandwidth of its memory.

A working set is read again and again as a matrix that is multiplied with a vector, which is what decoding one stream
does, on all cores the linear algebra library takes; and it is copied by as many threads as cores may be used. The
faster of the two in bytes moved per second is the ceiling. A working set that fits into a cache shows the cache's
bandwidth, which is the right ceiling for a model of that size and for no other: give the size of the model's weights
where it is known. The fastest of all rounds counts: whatever else the machine does can only make a round slower.

Rates of 16-bit and 8-bit products depend on instructions that this process cannot reach without an engine's kernels, so
they stay unknown. Products of 32-bit numbers are timed and told in words, as a hint and not as a ceiling.
"""

import itertools
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from trimtab.core.served import Accelerator
from trimtab.runtime.hardware import memory_available, read_hardware

WORKING_SET_BYTES: Final = 512 * 1024 * 1024
"""What is read where the size of the weights is not known."""

WORKING_SET_BYTES_MIN: Final = 1024 * 1024
MEMORY_SHARE_MAX: Final = 0.125
"""No more than this part of the memory that is free is taken for measuring."""

BUDGET_S: Final = 0.6
ROUNDS_MIN: Final = 2
_PRODUCT_SIDE: Final = 768
_ROW: Final = 4096

Floats = NDArray[np.float32]


class Speed(msgspec.Struct, frozen=True, kw_only=True):
    """What was measured: bytes per second read, bytes per second copied (read and written), 32-bit operations."""

    working_set_bytes: int
    read_bytes_per_s: float
    copy_bytes_per_s: float
    float32_operations_per_s: float
    threads: int


def measured_cpu(
    working_set_bytes: float | None = None, *, budget_s: float = BUDGET_S
) -> Accelerator:
    """Measure this machine's CPU for about `budget_s` seconds; its 16-bit and 8-bit rates stay unknown.

    `working_set_bytes`: the size of the weights that an engine reads; it is cut to a part of the free memory, and the
    source then says what was measured. Raises ValueError on sizes and budgets that are not above 0.
    """
    hardware = read_hardware()
    speed = measure_speed(
        working_set_bytes or WORKING_SET_BYTES, threads=hardware.cores, budget_s=budget_s
    )
    best = max(speed.read_bytes_per_s, speed.copy_bytes_per_s)
    size = speed.working_set_bytes / 2**20
    return Accelerator(
        name=hardware.label,
        flops_16bit=None,
        flops_8bit=None,
        memory_bytes=float(hardware.memory_bytes),
        memory_bytes_per_s=best,
        link_bytes_per_s=None,
        source=(
            f"measured on this machine: {size:,.0f} MiB read at {speed.read_bytes_per_s / 1e9:.1f} GB/s and "
            f"copied at {speed.copy_bytes_per_s / 1e9:.1f} GB/s by {speed.threads} threads; "
            f"32-bit products reach {speed.float32_operations_per_s / 1e9:,.0f} Gflop/s, which says nothing of "
            "16 and 8 bit"
        ),
        measured=True,
    )


def measure_speed(working_set_bytes: float, *, threads: int, budget_s: float = BUDGET_S) -> Speed:
    """Time reading, copying and multiplying, each for a third of the budget and at least two rounds."""
    if working_set_bytes <= 0 or budget_s <= 0 or threads < 1:
        raise ValueError(
            f"needs bytes, seconds and threads: {working_set_bytes}, {budget_s}, {threads}"
        )
    room = memory_available()
    most = working_set_bytes if room is None else min(working_set_bytes, MEMORY_SHARE_MAX * room)
    size = max(WORKING_SET_BYTES_MIN, int(most)) // 4 // _ROW * _ROW
    # Ones and not zeros: pages of zeros that were never written may all be one page.
    data = np.ones(size, dtype=np.float32)
    each_s = budget_s / 3.0
    matrix, vector = data.reshape(-1, _ROW), np.ones(_ROW, dtype=np.float32)
    read_s = _fastest(lambda: matrix @ vector, each_s)
    copy_s = _copying(data, threads, each_s)
    square = np.ones((_PRODUCT_SIDE, _PRODUCT_SIDE), dtype=np.float32)
    product_s = _fastest(lambda: np.matmul(square, square), each_s)
    return Speed(
        working_set_bytes=data.nbytes,
        read_bytes_per_s=data.nbytes / read_s,
        copy_bytes_per_s=2.0 * (data.nbytes // 2) / copy_s,
        float32_operations_per_s=2.0 * _PRODUCT_SIDE**3 / product_s,
        threads=threads,
    )


def _copying(data: Floats, threads: int, budget_s: float) -> float:
    """Seconds to copy the first half of the data over the second, a part by each thread."""
    half = data.size // 2
    edges = [half * at // threads for at in range(threads + 1)]
    parts = [
        (data[half + low : half + high], data[low:high]) for low, high in itertools.pairwise(edges)
    ]
    with ThreadPoolExecutor(threads) as pool:
        return _fastest(lambda: list(pool.map(_copy, parts)), budget_s)


def _copy(part: tuple[Floats, Floats]) -> None:
    np.copyto(*part)


def _fastest(work: Callable[[], Any], budget_s: float) -> float:
    """Seconds of the fastest round within a budget; the first one only warms up."""
    work()
    best, begun = float("inf"), time.perf_counter()
    rounds = 0
    while rounds < ROUNDS_MIN or time.perf_counter() - begun < budget_s:
        start = time.perf_counter()
        work()
        best = min(best, time.perf_counter() - start)
        rounds += 1
    return best
