"""Make another model of the packaged one: every Q4_1 tensor written out as F16, so that the file is larger and the
weights are equal up to rounding."""

import struct
from pathlib import Path

import numpy as np

_SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
_STRING, _ARRAY = 8, 9
_F16, _Q4_1 = 1, 3
_ALIGNMENT = 32


class _Reader:
    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def number(self, form: str) -> int:
        (value,) = struct.unpack_from(f"<{form}", self.data, self.at)
        self.at += struct.calcsize(f"<{form}")
        return int(value)

    def text(self) -> bytes:
        length = self.number("Q")
        self.at += length
        return self.data[self.at - length : self.at]

    def skip_value(self, kind: int) -> None:
        if kind == _STRING:
            self.text()
        elif kind == _ARRAY:
            inner, count = self.number("I"), self.number("Q")
            for _ in range(count):
                self.skip_value(inner)
        else:
            self.at += _SIZES[kind]


def expand(source: Path, target: Path) -> int:
    """Write the larger file and return how many tensors were expanded."""
    data = source.read_bytes()
    reader = _Reader(data)
    reader.at = 8
    tensors, fields = reader.number("Q"), reader.number("Q")
    for _ in range(fields):
        reader.text()
        reader.skip_value(reader.number("I"))
    head = data[: reader.at]
    infos = []
    for _ in range(tensors):
        name = reader.text()
        shape = [reader.number("Q") for _ in range(reader.number("I"))]
        infos.append((name, shape, reader.number("I"), reader.number("Q")))
    start = -(-reader.at // _ALIGNMENT) * _ALIGNMENT
    ends = sorted([offset for *_, offset in infos] + [len(data) - start])
    table, blob, expanded = b"", bytearray(), 0
    for name, shape, kind, offset in infos:
        size = ends[ends.index(offset) + 1] - offset
        raw = data[start + offset : start + offset + size]
        if kind == _Q4_1:
            raw, kind, expanded = _as_f16(raw, int(np.prod(shape))), _F16, expanded + 1
        table += struct.pack("<Q", len(name)) + name + struct.pack("<I", len(shape))
        table += struct.pack(f"<{len(shape)}QIQ", *shape, kind, len(blob))
        blob += raw + bytes(-len(raw) % _ALIGNMENT)
    whole = head + table
    target.write_bytes(whole + bytes(-len(whole) % _ALIGNMENT) + bytes(blob))
    return expanded


def _as_f16(raw: bytes, values: int) -> bytes:
    """Blocks of 32: scale, minimum (both F16), then the low nibbles of 16 values and the high ones of the next 16."""
    blocks = np.frombuffer(raw[: values // 32 * 20], dtype=np.uint8).reshape(-1, 20)
    scale, least = blocks[:, :4].copy().view(np.float16).astype(np.float32).T
    nibbles = np.concatenate([blocks[:, 4:] & 15, blocks[:, 4:] >> 4], axis=1)
    return (nibbles * scale[:, None] + least[:, None]).astype(np.float16).tobytes()
