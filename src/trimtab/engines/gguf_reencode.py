"""Q4_1 weights written out again as Q8_0, for engines with blocked kernels for the one and none for the other.

A blocked kernel reads a weight once for many tokens, so prefill and the verification of drafts cost far less per token
than a decode step; without one every token pays the whole step. The values stay what they were but for rounding
to 8 bits: at most 1/254 of the largest value of a block of 32.

Q4_1: blocks of 32 values; scale and minimum as F16, then the low nibbles of 16 values and the high ones of the next 16.
Q8_0: blocks of 32 values; scale as F16, then 32 signed bytes. Source: the block formats of ggml.
"""

import struct
from typing import Final

import numpy as np
import numpy.typing as npt

from trimtab.engines.gguf import GGUFError, read_tensors

Q4_1: Final = 3
Q8_0: Final = 8
ALIGNMENT: Final = 32

_VALUES = 32
_Q4_1_BYTES = 20


def reencode(data: bytes) -> bytes:
    """Return the file with every Q4_1 tensor as Q8_0, all else as it is; raises `GGUFError`.

    A file with another alignment than 32 is refused.
    """
    table = read_tensors(data)
    if table.alignment != ALIGNMENT:
        raise GGUFError(
            f"tensors are aligned to {table.alignment} bytes, {ALIGNMENT} can be written"
        )
    head = bytearray(data[: table.table_start])
    blob = bytearray()
    for tensor in table.tensors:
        raw = data[tensor.start : tensor.start + tensor.size]
        kind = tensor.kind
        if kind == Q4_1:
            raw, kind = as_q8_0(raw), Q8_0
        name, shape = tensor.name.encode(), tensor.shape
        head += struct.pack("<Q", len(name)) + name
        head += struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, kind, len(blob))
        blob += raw + bytes(-len(raw) % ALIGNMENT)
    return bytes(head) + bytes(-len(head) % ALIGNMENT) + bytes(blob)


def as_q8_0(raw: bytes) -> bytes:
    """Return the blocks of a Q4_1 tensor as blocks of Q8_0."""
    blocks = np.frombuffer(raw, dtype=np.uint8).reshape(-1, _Q4_1_BYTES)
    scale, least = blocks[:, :4].copy().view(np.float16).astype(np.float32).T
    nibbles = np.concatenate([blocks[:, 4:] & 15, blocks[:, 4:] >> 4], axis=1)
    values: npt.NDArray[np.float32] = nibbles.astype(np.float32) * scale[:, None] + least[:, None]
    step = (np.abs(values).max(axis=1) / 127.0).astype(np.float16)
    wide = step.astype(np.float32)[:, None]
    with np.errstate(divide="ignore", invalid="ignore"):
        levels = np.where(wide > 0, np.rint(values / wide), 0.0)
    packed = np.clip(levels, -127, 127).astype(np.int8)
    parts = [step.view(np.uint8).reshape(-1, 2), packed.view(np.uint8)]
    return np.concatenate(parts, axis=1).tobytes()
