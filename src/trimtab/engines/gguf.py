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


def block_of(kind: int) -> tuple[int, int] | None:
    """Return how many values a block of a tensor type holds and how many bytes it takes; None for unknown types."""
    return _BLOCKS.get(kind)


class GGUFError(EngineFormatError):
    """A file that is no GGUF, is corrupt, or was cut off."""


class Tensor(msgspec.Struct, frozen=True, kw_only=True):
    """One tensor's entry: its type and where its bytes lie in the file; `size` is 0 for a type of unknown size."""

    name: str
    shape: tuple[int, ...]
    kind: int
    start: int
    size: int


class GGUFHeader(msgspec.Struct, frozen=True, kw_only=True):
    """What the header says. `fields` are the single values; of arrays only `counts` are kept.

    `table`: the tensors in the order of the table, which begins at `table_start`.
    """

    version: int
    tensors: int
    fields: Mapping[str, Value]
    counts: Mapping[str, int]
    data_start: int
    data_end: int
    table_start: int = 0
    alignment: int = 32
    table: tuple[Tensor, ...] = ()

    @property
    def values(self) -> Mapping[str, int]:
        """How many values each tensor has, by the tensor's name."""
        return {tensor.name: math.prod(tensor.shape) for tensor in self.table}

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
    table_start = reader.at
    read = [_read_tensor(reader) for _ in range(tensors)]
    alignment = fields.get("general.alignment", 32)
    if not isinstance(alignment, int) or alignment < 1:
        raise GGUFError("its alignment is not a positive number")
    data_start = -(-reader.at // alignment) * alignment
    table = tuple(
        msgspec.structs.replace(tensor, start=data_start + tensor.start) for tensor in read
    )
    data_end = max((tensor.start + tensor.size for tensor in table), default=data_start)
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
        table_start=table_start,
        alignment=alignment,
        table=table,
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


def _read_tensor(reader: _Reader) -> Tensor:
    """Return a tensor's entry; its start is counted from the start of the data."""
    name = reader.text()
    dimensions = int(reader.number("I"))
    if dimensions > _DIMENSIONS_MAX:
        raise GGUFError(f"its tensor {name!r} claims {dimensions} dimensions")
    shape = tuple(int(reader.number("Q")) for _ in range(dimensions))
    kind, offset = int(reader.number("I")), int(reader.number("Q"))
    per_block, block_bytes = _BLOCKS.get(kind, (1, 0))
    size = -(-math.prod(shape) // per_block) * block_bytes
    return Tensor(name=name, shape=shape, kind=kind, start=offset, size=size)


class TensorTable(msgspec.Struct, frozen=True, kw_only=True):
    """Where the table of tensors begins, how their data is aligned, and the tensors in the table's order."""

    table_start: int
    alignment: int
    tensors: tuple[Tensor, ...]


def read_tensors(data: bytes | memoryview) -> TensorTable:
    """Read the table of a whole file; raises `GGUFError`, also for a tensor type of unknown size."""
    header = read_header(data, file_bytes=len(data))
    for tensor in header.table:
        if tensor.kind not in _BLOCKS:
            raise GGUFError(f"its tensor {tensor.name!r} has the unknown type {tensor.kind}")
    return TensorTable(
        table_start=header.table_start, alignment=header.alignment, tensors=header.table
    )
