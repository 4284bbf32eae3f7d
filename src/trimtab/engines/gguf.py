"""The header of a GGUF file: what a model is, and whether its file is whole.

Layout (little endian): magic `GGUF`, version, number of tensors, number of fields; the fields (name, type, value);
per tensor name, dimensions, type, offset; then, aligned, the tensors' data. A file that was cut off has a good header
and tensors that end behind its end, so both are checked. Source: the GGUF specification of ggml.
"""

import math
import struct
from collections.abc import Mapping

import msgspec

from trimtab.core.ports import EngineFormatError

MAGIC = b"GGUF"
VERSIONS = (2, 3)

# Field types: name in struct's language. 8 is a string, 9 an array.
_NUMBERS = {
    0: "B",
    1: "b",
    2: "H",
    3: "h",
    4: "I",
    5: "i",
    6: "f",
    7: "?",
    10: "Q",
    11: "q",
    12: "d",
}
_STRING, _ARRAY = 8, 9
_DIMENSIONS_MAX = 8
_COUNT_MAX = 1_000_000
# Tensor type: (values per block, bytes per block). Types that are not listed are checked by offset alone.
_BLOCKS = {
    0: (1, 4),
    1: (1, 2),
    2: (32, 18),
    3: (32, 20),
    6: (32, 22),
    7: (32, 24),
    8: (32, 34),
    9: (32, 36),
    10: (256, 84),
    11: (256, 110),
    12: (256, 144),
    13: (256, 176),
    14: (256, 210),
    15: (256, 292),
    24: (1, 1),
    25: (1, 2),
    26: (1, 4),
    27: (1, 8),
    28: (1, 8),
    30: (1, 2),
}

Value = int | float | bool | str


class GGUFError(EngineFormatError):
    """A file that is no GGUF, is corrupt, or was cut off."""


class GGUFHeader(msgspec.Struct, frozen=True, kw_only=True):
    """What the header says. `fields` are the single values; of arrays only `counts` are kept.

    `values`: how many values each tensor has, by the tensor's name.
    """

    version: int
    tensors: int
    fields: Mapping[str, Value]
    counts: Mapping[str, int]
    data_start: int
    data_end: int
    values: Mapping[str, int] = {}

    @property
    def architecture(self) -> str:
        """The model's architecture, which prefixes its own fields."""
        return str(self.fields.get("general.architecture", ""))

    def number(self, name: str) -> int | None:
        """Return a whole number from the architecture's fields, such as `block_count`."""
        value = self.fields.get(f"{self.architecture}.{name}")
        return value if isinstance(value, int) and not isinstance(value, bool) else None

    @property
    def kv_values_per_token(self) -> int | None:
        """Values in keys plus values of one token over all layers; None where the header does not tell."""
        layers, heads = self.number("block_count"), self.number("attention.head_count")
        width = self.number("embedding_length")
        if not layers or not heads or not width:
            return None
        kv_heads = self.number("attention.head_count_kv") or heads
        key = self.number("attention.key_length") or width // heads
        value = self.number("attention.value_length") or width // heads
        return layers * kv_heads * (key + value)

    @property
    def context_tokens(self) -> int | None:
        """The context the model was trained with."""
        return self.number("context_length")

    @property
    def vocabulary(self) -> int | None:
        """Number of tokens."""
        return self.number("vocab_size") or self.counts.get("tokenizer.ggml.tokens")


class _Reader:
    """Reads on from a place in the bytes; running out of them is an error."""

    def __init__(self, data: bytes | memoryview) -> None:
        self._data = data
        self.at = 0

    def number(self, form: str) -> int | float | bool:
        try:
            (value,) = struct.unpack_from(f"<{form}", self._data, self.at)
        except struct.error as error:
            raise GGUFError("its header is cut off") from error
        self.at += struct.calcsize(f"<{form}")
        assert isinstance(value, int | float)
        return value

    def count(self, what: str, maximum: int = _COUNT_MAX) -> int:
        value = int(self.number("Q"))
        if value > maximum:
            raise GGUFError(f"it claims {value} {what}")
        return value

    def text(self) -> str:
        length = self.count("bytes in one text", len(self._data))
        found = bytes(self._data[self.at : self.at + length])
        if len(found) < length:
            raise GGUFError("its header is cut off")
        self.at += length
        return found.decode("utf-8", "replace")

    def skip(self, length: int) -> None:
        self.at += length
        if self.at > len(self._data):
            raise GGUFError("its header is cut off")

    def skip_array(self) -> int:
        """Step over an array and return its length."""
        kind, length = int(self.number("I")), self.count("items in one array", len(self._data))
        if kind == _STRING:
            for _ in range(length):
                self.skip(self.count("bytes in one text", len(self._data)))
        elif kind in _NUMBERS:
            self.skip(length * struct.calcsize(_NUMBERS[kind]))
        else:
            raise GGUFError(f"it holds an array of unknown type {kind}")
        return length


def read_header(data: bytes | memoryview, *, file_bytes: int) -> GGUFHeader:
    """Read and check a header. `data` begins the file; `file_bytes` is the file's whole size.

    Raises `GGUFError`; its message continues a sentence that names the file.
    """
    if bytes(data[:4]) != MAGIC:
        raise GGUFError("it does not begin with GGUF")
    reader = _Reader(data)
    reader.skip(4)
    version = int(reader.number("I"))
    if version not in VERSIONS:
        raise GGUFError(f"its version {version} is not one of {VERSIONS}")
    tensors, entries = reader.count("tensors"), reader.count("fields")
    fields: dict[str, Value] = {}
    counts: dict[str, int] = {}
    for _ in range(entries):
        _read_field(reader, fields, counts)
    read = [_read_tensor(reader) for _ in range(tensors)]
    alignment = fields.get("general.alignment", 32)
    if not isinstance(alignment, int) or alignment < 1:
        raise GGUFError("its alignment is not a positive number")
    data_start = -(-reader.at // alignment) * alignment
    data_end = data_start + max((end for _, _, end in read), default=0)
    if data_end > file_bytes:
        raise GGUFError(
            f"it is cut off: its tensors end at byte {data_end}, the file at {file_bytes}"
        )
    return GGUFHeader(
        version=version,
        tensors=tensors,
        fields=fields,
        counts=counts,
        data_start=data_start,
        data_end=data_end,
        values={name: values for name, values, _ in read},
    )


def _read_field(reader: _Reader, fields: dict[str, Value], counts: dict[str, int]) -> None:
    name, kind = reader.text(), int(reader.number("I"))
    if kind == _ARRAY:
        counts[name] = reader.skip_array()
    elif kind == _STRING:
        fields[name] = reader.text()
    elif kind in _NUMBERS:
        fields[name] = reader.number(_NUMBERS[kind])
    else:
        raise GGUFError(f"its field {name!r} has the unknown type {kind}")


def _read_tensor(reader: _Reader) -> tuple[str, int, int]:
    """Return a tensor's name, its number of values and where it ends, counted from the start of the data."""
    name = reader.text()
    dimensions = int(reader.number("I"))
    if dimensions > _DIMENSIONS_MAX:
        raise GGUFError(f"its tensor {name!r} claims {dimensions} dimensions")
    values = 1
    for _ in range(dimensions):
        values *= int(reader.number("Q"))
    kind, offset = int(reader.number("I")), int(reader.number("Q"))
    if kind not in _BLOCKS:
        return name, values, offset
    per_block, block_bytes = _BLOCKS[kind]
    return name, values, offset + -(-values // per_block) * block_bytes


class Tensor(msgspec.Struct, frozen=True, kw_only=True):
    """One tensor's entry: its type and where its bytes lie in the file."""

    name: str
    shape: tuple[int, ...]
    kind: int
    start: int
    size: int


class TensorTable(msgspec.Struct, frozen=True, kw_only=True):
    """Where the table of tensors begins, how their data is aligned, and the tensors in the table's order."""

    table_start: int
    alignment: int
    tensors: tuple[Tensor, ...]


def read_tensors(data: bytes | memoryview) -> TensorTable:
    """Read the table of a whole file; raises `GGUFError`, also for a tensor type of unknown size."""
    header = read_header(data, file_bytes=len(data))
    reader = _Reader(data)
    reader.skip(8)
    reader.skip(8)
    for _ in range(reader.count("fields")):
        _read_field(reader, {}, {})
    table_start = reader.at
    tensors = tuple(_tensor_at(reader, header.data_start) for _ in range(header.tensors))
    alignment = header.fields.get("general.alignment", 32)
    return TensorTable(table_start=table_start, alignment=int(alignment), tensors=tensors)


def _tensor_at(reader: _Reader, data_start: int) -> Tensor:
    name = reader.text()
    shape = tuple(int(reader.number("Q")) for _ in range(int(reader.number("I"))))
    kind, offset = int(reader.number("I")), int(reader.number("Q"))
    if kind not in _BLOCKS:
        raise GGUFError(f"its tensor {name!r} has the unknown type {kind}")
    per_block, block_bytes = _BLOCKS[kind]
    size = -(-math.prod(shape) // per_block) * block_bytes
    return Tensor(name=name, shape=shape, kind=kind, start=data_start + offset, size=size)
