"""Rounding to few bits: to the nearest, ties to even, no value further off than half a step."""

import numpy as np
import pytest

from trimtab.engines.low_precision import (
    Floats,
    fp8_rows,
    from_bf16,
    from_e4m3,
    int4_groups,
    int8_rows,
    packed_int4,
    rounded_int4,
    rounded_int8,
    to_bf16,
)

VALUES: Floats = np.random.default_rng(7).standard_normal((16, 64)).astype(np.float32)


def test_bf16_rounds_to_the_nearest_and_ties_to_even() -> None:
    """1 + 2^-8 lies in the middle of two: the even one is 1; three halves of a step go up."""
    values = np.array([[1.0, 1.0 + 2**-8, 1.0 + 3 * 2**-8, -2.5]], dtype=np.float32)
    found = from_bf16(to_bf16(values), values.shape)
    assert found.tolist() == [[1.0, 1.0, 1.0 + 2**-6, -2.5]]


def test_int8_is_never_further_off_than_its_step_allows() -> None:
    """Half a step everywhere, one step at a positive peak, which the highest value cuts."""
    _, scales = int8_rows(VALUES)
    off = np.abs(rounded_int8(VALUES) - VALUES) / scales
    assert off.max() <= 0.5001
    assert scales.shape == (16, 1)


def test_int4_has_a_scale_for_each_group_and_all_sixteen_values() -> None:
    """Groups of 32; a group's step is a fifteenth of twice its peak, stored in bf16."""
    found, scales = int4_groups(VALUES)
    assert scales.shape == (16, 2)
    assert (found.min(), found.max()) == (-8, 7)
    off = np.abs(rounded_int4(VALUES) - VALUES) / np.repeat(scales, 32, axis=1)
    assert off.max() <= 0.55


def test_packed_int4_has_the_first_value_in_the_lowest_bits() -> None:
    """Eight to a number, each with 8 added."""
    row = np.array([[-8, 7, 0, 1, 2, 3, 4, 5]], dtype=np.int8)
    assert packed_int4(row).view(np.uint32)[0, 0] == 0xDCBA98F0


@pytest.mark.parametrize("byte", range(127))
def test_every_fp8_value_is_its_own_nearest(byte: int) -> None:
    """Each of the 127 magnitudes comes back as the same byte, with either sign."""
    largest, value = 448.0, float(from_e4m3(np.array([byte], dtype=np.uint8))[0])
    rows = np.array([[largest, value, -value]], dtype=np.float32)
    found, scales = fp8_rows(rows)
    assert scales.tolist() == [[1.0]]
    assert (int(found[0, 1]), int(found[0, 2])) == (byte, byte | 0x80)


def test_fp8_ties_go_to_the_even_byte() -> None:
    """Between 16 and 18 lies 17, whose even neighbour is 16; between 18 and 20 lies 19, whose is 20."""
    found, _ = fp8_rows(np.array([[448.0, 17.0, 19.0]], dtype=np.float32))
    assert from_e4m3(found).tolist() == [[448.0, 16.0, 20.0]]


def test_row_of_zeros_stays_zero() -> None:
    """It has no peak to make a scale of."""
    zeros = np.zeros((2, 32), dtype=np.float32)
    assert not rounded_int8(zeros).any()
    assert not rounded_int4(zeros).any()
