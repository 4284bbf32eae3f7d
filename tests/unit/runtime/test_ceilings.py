"""Ceilings of the machine at hand: measured, named as measured, and unknown where nothing was measured."""

import pytest

from trimtab.runtime.ceilings import WORKING_SET_BYTES_MIN, measure_speed, measured_cpu


def test_measured_device_says_how_and_leaves_the_rest_unknown() -> None:
    """Bandwidth is measured; 16-bit and 8-bit rates are not, so they are unknown."""
    found = measured_cpu(WORKING_SET_BYTES_MIN, budget_s=0.01)
    assert found.measured
    assert (found.flops_16bit, found.flops_8bit, found.link_bytes_per_s) == (None, None, None)
    assert found.memory_bytes_per_s > 1e8
    assert found.memory_bytes > 2**28
    assert "measured on this machine: 1 MiB read" in found.source


def test_working_set_is_that_of_the_weights_within_bounds() -> None:
    """The size that was asked for, in whole rows; never less than what a timer can see."""
    asked, tiny = (measure_speed(size, threads=1, budget_s=0.01) for size in (4 * 2**20, 1))
    assert (asked.working_set_bytes, tiny.working_set_bytes) == (4 * 2**20, WORKING_SET_BYTES_MIN)
    assert min(asked.read_bytes_per_s, asked.copy_bytes_per_s, asked.float32_operations_per_s) > 0


@pytest.mark.parametrize(("size", "threads", "budget_s"), [(0, 1, 1), (1, 0, 1), (1, 1, 0)])
def test_nothing_to_measure_is_refused(size: float, threads: int, budget_s: float) -> None:
    """A caller's mistake is no measurement."""
    with pytest.raises(ValueError, match="needs bytes, seconds and threads"):
        measure_speed(size, threads=threads, budget_s=budget_s)
