"""Weights rounded to fewer bits, to the nearest, as kernels for compressed-tensors checkpoints read them.

Law: a row (or a group of a row) has one scale, s = peak / top, and its values are round(w / s) with ties to even.
    int8     top 127.5, values -128 to 127, a scale for each row
    int4     top 7.5, values -8 to 7, a scale for each group of a row
    fp8      top 448 (the largest of e4m3), a scale for each row
Tops of 127.5 and 7.5 are those of llm-compressor's symmetric observers: half of the range of the type, so that the
lowest value is used, and a peak that is positive is cut by half a step.

Failure modes: one far outlier sets the step of its whole row or group; that is what the count of outliers tells.
"""

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]

INT4_GROUP: Final = 32
FP8_MAX: Final = 448.0
_PACKED_VALUES: Final = 8


def from_bf16(raw: bytes | memoryview, shape: tuple[int, ...]) -> Floats:
    """Return bf16 values as 32-bit floats."""
    bits = np.frombuffer(raw, dtype=np.uint16).astype(np.uint32) << 16
    return bits.view(np.float32).reshape(shape)


def to_bf16(values: Floats) -> bytes:
    """Return values rounded to bf16, ties to even."""
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    # Half of what is cut off, less one unless the last bit that stays is odd.
    rounded = bits + (np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1)))
    return (rounded >> np.uint32(16)).astype(np.uint16).tobytes()


def int8_rows(values: Floats) -> tuple[NDArray[np.int8], Floats]:
    """Return rows as int8 with a scale for each, shaped [rows, 1]."""
    scales = _scales(np.abs(values).max(axis=1, keepdims=True), 127.5)
    return np.clip(np.rint(values / scales), -128, 127).astype(np.int8), scales


def int4_groups(values: Floats, group: int = INT4_GROUP) -> tuple[NDArray[np.int8], Floats]:
    """Return values in -8 to 7 with a scale for each `group` of a row, shaped [rows, groups].

    `group` must divide the rows; scales are rounded to bf16, as they are stored, before they are used.
    """
    rows, width = values.shape
    grouped = values.reshape(rows, width // group, group)
    peaks = _scales(np.abs(grouped).max(axis=2, keepdims=True), 7.5)
    scales = from_bf16(to_bf16(peaks), peaks.shape)
    found = np.clip(np.rint(grouped / scales), -8, 7).astype(np.int8)
    return found.reshape(rows, width), scales.reshape(rows, width // group)


def fp8_rows(values: Floats) -> tuple[NDArray[np.uint8], Floats]:
    """Return rows as e4m3 bytes with a scale for each, shaped [rows, 1]."""
    scales = _scales(np.abs(values).max(axis=1, keepdims=True), FP8_MAX)
    return _to_e4m3(values / scales), scales


def packed_int4(values: NDArray[np.int8]) -> NDArray[np.int32]:
    """Pack eight values of a row into one number, the first in the lowest bits, each as value + 8."""
    rows, width = values.shape
    offset = (values.astype(np.int32) + 8).astype(np.uint32)
    eights = offset.reshape(rows, width // _PACKED_VALUES, _PACKED_VALUES)
    packed = np.zeros(eights.shape[:2], dtype=np.uint32)
    for place in range(_PACKED_VALUES):
        packed |= eights[:, :, place] << np.uint32(4 * place)
    return packed.view(np.int32)


def rounded_int8(values: Floats) -> Floats:
    """Return values as int8 rows give them back."""
    found, scales = int8_rows(values)
    return found.astype(np.float32) * scales


def rounded_int4(values: Floats, group: int = INT4_GROUP) -> Floats:
    """Return values as int4 groups give them back."""
    found, scales = int4_groups(values, group)
    return found.astype(np.float32) * np.repeat(scales, group, axis=1)


def _scales(peaks: Floats, top: float) -> Floats:
    # A row of zeros has no peak; any scale gives it back.
    return np.where(peaks > 0.0, peaks / np.float32(top), np.float32(1.0)).astype(np.float32)


def _e4m3_values() -> Floats:
    """The 127 finite values of e4m3 that are not negative, in the order of their bytes."""
    byte = np.arange(127)
    exponent, mantissa = byte >> 3, byte & 7
    normal = (1.0 + mantissa / 8.0) * 2.0 ** (exponent - 7.0)
    return np.where(exponent > 0, normal, mantissa / 8.0 * 2.0**-6).astype(np.float32)


def _to_e4m3(values: Floats) -> NDArray[np.uint8]:
    table = _e4m3_values()
    middles: Any = (table[1:] + table[:-1]) / 2.0
    size = np.minimum(np.abs(values), np.float32(FP8_MAX))
    low = np.searchsorted(middles, size, side="left")
    # Exactly in the middle of two: the even one.
    tie = (
        (low < len(middles)) & (middles[np.minimum(low, len(middles) - 1)] == size) & (low % 2 == 1)
    )
    byte = (low + tie).astype(np.uint8)
    sign: NDArray[np.uint8] = np.signbit(values).astype(np.uint8) << np.uint8(7)
    return np.asarray(byte | sign, dtype=np.uint8)


def from_e4m3(found: NDArray[np.uint8]) -> Floats:
    """Return e4m3 bytes as 32-bit floats; those of no number are taken for the largest."""
    size = _e4m3_values()[np.minimum(found & np.uint8(0x7F), 126)]
    return np.asarray(np.where(found & np.uint8(0x80), -size, size), dtype=np.float32)
