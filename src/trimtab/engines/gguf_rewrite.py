"""A GGUF written out again with other tensor types: the same fields, tokenizer and order, new blocks.

Only tensors whose type changes are decoded and encoded; all others are copied byte for byte. The encoding itself is a
port (`BlockCodec`), because its formats are the engine's. What comes out is told tensor by tensor, so that nothing
larger than one tensor is held.
"""

import math
import struct
from collections.abc import Iterator, Mapping
from typing import Final, Protocol

import msgspec
import numpy as np
import numpy.typing as npt

from trimtab.engines.gguf import GGUFError, GGUFHeader, Tensor, block_of, read_header
from trimtab.engines.gguf_tensors import KIND_NAMES, NUMBERS, Group, TensorKind, can_be, place_of

ALIGNMENT: Final = 32

Floats = npt.NDArray[np.float32]


class BlockCodec(Protocol):
    """Decodes and encodes the blocks of tensor types, by ggml's numbers."""

    def decode(self, raw: bytes, kind: int, shape: tuple[int, ...]) -> Floats:
        """Return the values, rows first; raises `GGUFError` for a type that cannot be read."""
        ...

    def encode(self, values: Floats, kind: int) -> bytes:
        """Return the blocks of values."""
        ...


class TensorChange(msgspec.Struct, frozen=True, kw_only=True):
    """What one tensor becomes, or why it stays: `kept` is empty where it changes."""

    name: str
    group: Group
    layer: int | None
    before: str
    after: str
    kept: str = ""


class Conversion(msgspec.Struct, frozen=True, kw_only=True):
    """What a whole file becomes."""

    changes: tuple[TensorChange, ...]
    bytes: int

    @property
    def converted(self) -> tuple[TensorChange, ...]:
        """Tensors whose type changes."""
        return tuple(one for one in self.changes if not one.kept)


def plan_conversion(
    header: GGUFHeader, wanted: Mapping[Group, TensorKind], keep: frozenset[str] = frozenset()
) -> Conversion:
    """Say what each tensor becomes under `wanted`, but for those named in `keep`.

    Raises `GGUFError` where a group that is to be lowered has no tensor, where a name in `keep` is no tensor of the
    file, or where the alignment cannot be written.
    """
    if header.alignment != ALIGNMENT:
        raise GGUFError(
            f"its tensors are aligned to {header.alignment} bytes, and only {ALIGNMENT} can be written"
        )
    if odd := [tensor for tensor in header.table if block_of(tensor.kind) is None]:
        raise GGUFError(
            f"its tensor {odd[0].name!r} has type {odd[0].kind}, whose size is not known: give the model in F16, or "
            "quantized as Q4_0 to Q8_0 or a K-quant"
        )
    names = {tensor.name for tensor in header.table}
    if unknown := sorted(keep - names):
        raise GGUFError(
            f"it has no tensor {unknown[0]!r}, which is to be kept: a rule that matches nothing protects nothing"
        )
    changes = tuple(_change(tensor, wanted, keep) for tensor in header.table)
    present = {change.group for change in changes}
    if missing := [group.value for group in wanted if group not in present]:
        raise GGUFError(
            f"it has no tensors of {', '.join(missing)} under names that are known "
            f"(architecture {header.architecture or 'unnamed'!r})"
        )
    size = sum(
        _padded(_size(tensor, change)) for tensor, change in zip(header.table, changes, strict=True)
    )
    return Conversion(changes=changes, bytes=header.data_start + size)


def rewritten(
    data: bytes | memoryview, conversion: Conversion, codec: BlockCodec
) -> Iterator[bytes]:
    """Yield the parts of the new file: its head, then each tensor's bytes.

    Raises `GGUFError` that names the tensor with a value that is not finite, or one that cannot be decoded.
    """
    header = read_header(data, file_bytes=len(data))
    head = bytearray(data[: header.table_start])
    at = 0
    for tensor, change in zip(header.table, conversion.changes, strict=True):
        name, shape = tensor.name.encode(), tensor.shape
        head += struct.pack("<Q", len(name)) + name
        kind = tensor.kind if change.kept else NUMBERS[TensorKind(change.after)]
        head += struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, kind, at)
        at += _padded(_size(tensor, change))
    yield bytes(head) + bytes(-len(head) % ALIGNMENT)
    for tensor, change in zip(header.table, conversion.changes, strict=True):
        raw = bytes(data[tensor.start : tensor.start + tensor.size])
        if not change.kept:
            raw = codec.encode(decoded(tensor, raw, codec), NUMBERS[TensorKind(change.after)])
        yield raw + bytes(-len(raw) % ALIGNMENT)


def decoded(tensor: Tensor, raw: bytes, codec: BlockCodec) -> Floats:
    """Return a tensor's values; raises `GGUFError` where one is not finite."""
    values = codec.decode(raw, tensor.kind, tensor.shape)
    if not np.isfinite(values).all():
        count = int((~np.isfinite(values)).sum())
        raise GGUFError(
            f"its tensor {tensor.name!r} holds {count} values that are not finite: the file is damaged, or was "
            "made from a run that diverged"
        )
    return values


def _change(
    tensor: Tensor, wanted: Mapping[Group, TensorKind], keep: frozenset[str]
) -> TensorChange:
    place = place_of(tensor.name)
    before = KIND_NAMES.get(tensor.kind, f"type {tensor.kind}")
    target = wanted.get(place.group)
    after, kept = before, ""
    if target is None:
        kept = "its group is not lowered"
    elif tensor.name in keep:
        kept = "held back by name"
    elif NUMBERS[target] == tensor.kind:
        kept = "has this type already"
    elif not can_be(tensor, target):
        kept = f"its rows of {tensor.shape[0]} do not divide into blocks of {target.value}"
    else:
        after = target.value
    return TensorChange(
        name=tensor.name,
        group=place.group,
        layer=place.layer,
        before=before,
        after=after,
        kept=kept,
    )


def _size(tensor: Tensor, change: TensorChange) -> int:
    if change.kept:
        return tensor.size
    block = block_of(NUMBERS[TensorKind(change.after)])
    assert block is not None
    return math.prod(tensor.shape) // block[0] * block[1]


def _padded(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT
