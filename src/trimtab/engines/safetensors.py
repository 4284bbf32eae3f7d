"""Files of the safetensors format, read and written without its package: a header of JSON, then the tensors' bytes.

    8 bytes   length of the header, little-endian
    header    {"name": {"dtype": "BF16", "shape": [...], "data_offsets": [begin, end]}, ..., "__metadata__": {...}}
    data      tensors without gaps; offsets count from its begin

Bounds: a header of at most 100 MB, as in the format's own library.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from trimtab.core.ports import EngineFormatError

HEADER_BYTES_MAX: Final = 100_000_000
_LENGTH_BYTES: Final = 8
_ALIGNMENT: Final = 8
DTYPE_BYTES: Final[Mapping[str, int]] = {
    "F64": 8,
    "F32": 4,
    "F16": 2,
    "BF16": 2,
    "F8_E4M3": 1,
    "F8_E5M2": 1,
    "I64": 8,
    "I32": 4,
    "I16": 2,
    "I8": 1,
    "U8": 1,
    "BOOL": 1,
}


class SafetensorsError(EngineFormatError):
    """A file that is no whole safetensors file; the message says where it breaks off."""


class StoredTensor(msgspec.Struct, frozen=True, kw_only=True):
    """One tensor. `start`: where its bytes begin in the file; rows come first in `shape`."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    start: int = 0

    @property
    def values(self) -> int:
        """How many numbers it holds."""
        return math.prod(self.shape)

    @property
    def size(self) -> int:
        """Its bytes."""
        return self.values * DTYPE_BYTES[self.dtype]


class _Entry(msgspec.Struct):
    dtype: str
    shape: list[int]
    data_offsets: tuple[int, int]


def read_tensors(data: bytes | memoryview, *, file_bytes: int) -> tuple[StoredTensor, ...]:
    """Return the tensors in the order of their bytes; raises `SafetensorsError` for a file that is not whole.

    `data`: the file, or as much of its begin as holds the header.
    """
    if len(data) < _LENGTH_BYTES:
        raise SafetensorsError(f"it has {file_bytes} bytes: no header")
    length = int.from_bytes(data[:_LENGTH_BYTES], "little")
    begin = _LENGTH_BYTES + length
    if length > HEADER_BYTES_MAX or begin > len(data):
        raise SafetensorsError(f"its header of {length:,} bytes is not in its {file_bytes:,} bytes")
    try:
        raw = msgspec.json.decode(bytes(data[_LENGTH_BYTES:begin]), type=dict[str, msgspec.Raw])
        found = {
            name: msgspec.json.decode(entry, type=_Entry)
            for name, entry in raw.items()
            if name != "__metadata__"
        }
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise SafetensorsError(f"its header cannot be read: {error}") from error
    ordered = sorted(found.items(), key=lambda item: item[1].data_offsets)
    return _checked(ordered, begin, file_bytes)


def _checked(
    ordered: Sequence[tuple[str, _Entry]], begin: int, file_bytes: int
) -> tuple[StoredTensor, ...]:
    tensors: list[StoredTensor] = []
    at = 0
    for name, entry in ordered:
        if entry.dtype not in DTYPE_BYTES:
            raise SafetensorsError(f"its tensor {name} has the type {entry.dtype}, not known here")
        tensor = StoredTensor(
            name=name, dtype=entry.dtype, shape=tuple(entry.shape), start=begin + at
        )
        if entry.data_offsets != (at, at + tensor.size):
            raise SafetensorsError(
                f"its tensor {name} of {tensor.size:,} bytes lies at {entry.data_offsets}, not at {at:,}"
            )
        tensors.append(tensor)
        at += tensor.size
    if begin + at != file_bytes:
        raise SafetensorsError(f"it has {file_bytes:,} bytes and its tensors end at {begin + at:,}")
    return tuple(tensors)


def header_of(tensors: Sequence[StoredTensor]) -> bytes:
    """Return what stands before the tensors' bytes, which follow in this order."""
    entries: dict[str, object] = {"__metadata__": {"format": "pt"}}
    at = 0
    for tensor in tensors:
        entries[tensor.name] = {
            "dtype": tensor.dtype,
            "shape": list(tensor.shape),
            "data_offsets": [at, at + tensor.size],
        }
        at += tensor.size
    header = msgspec.json.encode(entries)
    header += b" " * (-len(header) % _ALIGNMENT)
    return len(header).to_bytes(_LENGTH_BYTES, "little") + header
