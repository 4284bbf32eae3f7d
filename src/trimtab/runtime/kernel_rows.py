"""Writes the rows of a kernel table that a model can ask for, in their order.

Tables are read column by column, as they lie in memory, and only columns that decide which rows stay are held: what a
column took serves the next, where a whole table at once is new memory, which takes as long to get as to fill.
"""

import importlib
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

from trimtab.runtime.kernel_matrices import kept_sizes
from trimtab.runtime.kernel_wanted import SHAPE, Wanted

_UNREAD: Final = ("framework", "version", "device", "op_name")
"""Columns that say who measured; the package reads none of them out of these tables."""

_UNREAD_OF_OWN: Final = {"gemm_perf.parquet": ("kernel_source",)}
"""Columns that it reads only to tell which rows of another engine's table may be used; these are the engine's own."""

_EXPERTS_OF: Final = ("moe_dtype", "distribution", "kernel_source")
_WINDOW: Final = "window_size"
_WHOLE: Final = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
_NUMBERS: Final = {name: name for name in _WHOLE} | {"float": "float32", "double": "float64"}
"""By a column's type in words: numpy's name of it."""


class _Columns:
    """A table's columns, each read when it is asked for."""

    def __init__(self, file: Any, names: Sequence[str]) -> None:
        """`file`: of pyarrow; `names`: the columns that are read."""
        self.column_names = names
        self.num_rows = int(file.metadata.num_rows)
        self._reader = file.reader
        self._places = {name: place for place, name in enumerate(file.schema_arrow.names)}
        self._held: dict[str, Any] = {}

    def column(self, name: str) -> Any:
        """Return a column as one array, and hold it; raises IndexError for one without rows."""
        if name not in self._held:
            self._held[name] = self._read(name)
        return self._held[name]

    def taken(self, pyarrow: Any, name: str, places: Any) -> Any:
        """Return some rows of a column, and let it go; raises ValueError for one with gaps."""
        column = self._held.pop(name) if name in self._held else self._read(name)
        return _taken(pyarrow, column, places)

    def _read(self, name: str) -> Any:
        chunks = self._reader.read_column(self._places[name])
        return chunks.combine_chunks() if chunks.num_chunks > 1 else chunks.chunk(0)


def _taken(pyarrow: Any, column: Any, places: Any) -> Any:
    """Return some rows of a column: pyarrow's own way imports all of what it computes with, a tenth of a second.

    Raises ValueError for one with gaps.
    """
    if pyarrow.types.is_dictionary(column.type):
        codes = _taken(pyarrow, column.indices, places)
        return pyarrow.DictionaryArray.from_arrays(codes, column.dictionary)
    values = pyarrow.py_buffer(_values(column)[places])
    return pyarrow.Array.from_buffers(column.type, len(places), [None, values])


def _numbers(rows: _Columns, name: str) -> Any:
    column = rows.column(name)
    if str(column.type) not in _WHOLE:
        raise ValueError(f"a column of a kernel table is of {column.type}")
    return _values(column)


def _values(column: Any) -> Any:
    """Return an array of numbers as it lies in memory: pyarrow's own way imports pandas, a third of a second.

    Raises ValueError for anything else, and for one with gaps.
    """
    import numpy

    kind = _NUMBERS.get(str(column.type))
    if column.null_count or kind is None:
        raise ValueError(
            f"a column of a kernel table is of {column.type} with {column.null_count} gaps"
        )
    values = numpy.frombuffer(column.buffers()[1], dtype=kind)
    return values[column.offset : column.offset + len(column)]


def _codes(rows: _Columns, name: str) -> Any:
    """Return a column of text as numbers, with the texts that they stand for."""
    column = rows.column(name)
    return _values(column.indices), column.dictionary.to_pylist()


def _are_among(numbers: Any, few: Sequence[int]) -> Any:
    import numpy

    found = numpy.zeros(len(numbers), dtype=bool)
    for each in few:
        found |= numbers == each
    return found


def _among(rows: _Columns, name: str, texts: Sequence[str]) -> Any:
    return _coded(rows, name, lambda text: text in texts)


def _coded(rows: _Columns, name: str, wanted: Callable[[str], bool]) -> Any:
    """Return which rows have a text that is wanted."""
    import numpy

    codes, known = _codes(rows, name)
    return numpy.array([wanted(text) for text in known], dtype=bool)[codes]


def _matrices(rows: _Columns, wanted: Wanted) -> Any:
    """Rows of the widths; of each only sizes that a time can come from, and one where none is asked for."""
    import numpy

    kept = _among(rows, "gemm_dtype", wanted.widths)
    if not wanted.matrices:
        return kept
    codes, known = _codes(rows, "gemm_dtype")
    tokens, columns, depth = (_numbers(rows, name) for name in ("m", "n", "k"))
    for place, width in enumerate(known):
        of_width = numpy.flatnonzero(kept & (codes == place))
        asked = [(n, k) for each, n, k in wanted.matrices if each == width]
        stay = kept_sizes(tokens[of_width], columns[of_width], depth[of_width], asked)
        stay[:1] = True
        kept[of_width] = stay
    return kept


def _prompts(rows: _Columns, wanted: Wanted) -> Any:
    return _answers(rows, wanted) & _among(rows, "attn_dtype", wanted.widths)


def _answers(rows: _Columns, wanted: Wanted) -> Any:
    kept = _among(rows, "kv_cache_dtype", wanted.widths)
    kept &= _are_among(_numbers(rows, "head_dim"), wanted.head_sizes)
    if _WINDOW in rows.column_names:
        kept &= _are_among(_numbers(rows, _WINDOW), wanted.windows)
    if not wanted.copied_heads:
        kept &= _numbers(rows, "num_heads") != _numbers(rows, "num_key_value_heads")
    return kept


def _experts(rows: _Columns, wanted: Wanted) -> Any:
    """Rows of the shapes, and one of each width and choice of experts: whether those were measured at all is asked."""
    import numpy

    shapes = [_numbers(rows, name) for name in SHAPE]
    kept = numpy.zeros(rows.num_rows, dtype=bool)
    for width, *shape in wanted.experts:
        widths = (width,) if width else wanted.widths
        # the package tells some kernels of one width apart by a longer name
        alike = _coded(rows, _EXPERTS_OF[0], partial(_begins_one_of, widths))
        for column, size in zip(shapes, shape, strict=True):
            alike &= column == size
        kept |= alike
    kinds, count = numpy.zeros(rows.num_rows, dtype=numpy.int32), 1
    for name in _EXPERTS_OF:
        if name in rows.column_names:
            codes, known = _codes(rows, name)
            kinds *= len(known)
            kinds += codes
            count *= len(known)
    first = numpy.zeros(count, dtype=numpy.int32)
    places = numpy.arange(rows.num_rows, dtype=numpy.int32)
    first[kinds[::-1]] = places[::-1]  # of several the last one written stays
    kept[first[numpy.bincount(kinds, minlength=count) > 0]] = True
    return kept


def _begins_one_of(widths: Sequence[str], text: str) -> bool:
    return any(width.startswith(text) for width in widths)


def _modules(rows: _Columns, wanted: Wanted) -> Any:
    import numpy

    pairs = [
        _among(rows, "kv_cache_dtype", [cache]) & _among(rows, "gemm_type", [matrix])
        for cache, matrix in wanted.modules
    ]
    return numpy.logical_or.reduce(pairs)


_KEPT: Final = {
    "gemm_perf.parquet": _matrices,
    "context_attention_perf.parquet": _prompts,
    "generation_attention_perf.parquet": _answers,
    "moe_perf.parquet": _experts,
    "mla_context_module_perf.parquet": _modules,
    "mla_generation_module_perf.parquet": _modules,
}
"""By table: which of its rows are kept."""


def is_cut(name: str, wanted: Wanted) -> bool:
    """Say whether a table of that name is one that is large and asked: an excerpt has only the wanted rows of it."""
    keep = _KEPT.get(name)
    if keep is _modules:
        return bool(wanted.modules)
    if keep is _experts:
        return bool(wanted.experts)
    return keep is _matrices or (keep is not None and bool(wanted.head_sizes))


def write_rows(source: Path, target: Path, wanted: Wanted) -> None:
    """Write the rows of one table that are wanted; a file that cannot be read so is linked."""
    pyarrow: Any = importlib.import_module("pyarrow")  # with the package of the tables, as numpy
    parquet: Any = importlib.import_module("pyarrow.parquet")
    try:
        told = parquet.ParquetFile(source)
        schema = told.schema_arrow
        unread = (*_UNREAD, *_UNREAD_OF_OWN.get(source.name, ()))
        names = [name for name in schema.names if name not in unread]
        texts = [name for name in names if not pyarrow.types.is_primitive(schema.field(name).type)]
        file = parquet.ParquetFile(source, metadata=told.metadata, read_dictionary=texts)
        rows = _Columns(file, names)
        kept = _KEPT[source.name](rows, wanted).nonzero()[0]
        parquet.write_table(
            pyarrow.Table.from_arrays([rows.taken(pyarrow, name, kept) for name in names], names),
            target,
            compression="none",
            use_dictionary=texts,
            write_statistics=False,
            store_schema=False,
        )
    except (pyarrow.ArrowException, KeyError, ValueError, AttributeError, IndexError):
        target.unlink(missing_ok=True)
        target.symlink_to(source)
