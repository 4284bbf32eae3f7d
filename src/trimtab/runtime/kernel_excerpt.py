"""Excerpts of the kernel tables: of the large ones only the rows that a model can ask for, which are soon read.

The package reads its tables row by row with every column of every width and shape that was measured: a second of CPU
for a device and engine. What it then looks up is found by exact keys (widths, head sizes, an expert's shape) and only
within those by neighbours (tokens, streams, heads, matrices), so rows of other keys change nothing. An excerpt is a
tree like the package's own: files of an engine's large tables with the rows of such keys, in their order, and links to
all others.

It serves measured kernels alone. Where the package fills gaps from other shapes or widths, those must be there: then
its own tree is asked. An excerpt that cannot be made is as good as none.
"""

import contextlib
import hashlib
import importlib
import re
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from trimtab.runtime.kernel_matrices import kept_sizes

_FORMAT: Final = 5
_UNREAD: Final = ("framework", "version", "device", "op_name")
"""Columns that say who measured; the package reads none of them out of these tables."""

_UNREAD_OF_OWN: Final = {"gemm_perf.parquet": ("kernel_source",)}
"""Columns that it reads only to tell which rows of another engine's table may be used; these are the engine's own."""

_SHAPE: Final = ("topk", "num_experts", "hidden_size", "inter_size")
_SHAPES: Final = frozenset(_SHAPE)
_EXPERTS_OF: Final = ("moe_dtype", "distribution", "kernel_source")
_HEAD_SIZES: Final = frozenset(("head_size", "head_dim", "v_head_dim"))
_WINDOW: Final = "window_size"
_WHOLE: Final = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
_SAME_TABLE: Final = {"fp8_static": "fp8"}
"""Widths that the package looks up under another name."""

_MATRIX: Final = frozenset(("n", "k", "quant_mode"))
_TIMED_ALONE: Final = frozenset(
    (
        "ContextAttention",
        "ContextMla",
        "CustomAllReduce",
        "Elementwise",
        "Embedding",
        "Fallback",
        "Gemm",
        "GenerationAttention",
        "GenerationMla",
        "MlaBmm",
        "MlaModuleContext",
        "MlaModuleGeneration",
        "Moe",
        "MoeDispatch",
        "Nccl",
        "Overlap",
        "P2P",
    )
)
"""Kinds of operations that ask for no matrix besides those that they name."""

_REUSE: Final = "perf_data_reuse_manifest.yaml"
"""Which engines may use each other's kernels; read once for each table, and an entry of one engine changes nothing."""

EXCERPTS_MAX: Final = 64
"""Excerpts that are kept, some megabytes each; beyond, those used longest ago are dropped."""

Matrix = tuple[str, int, int]
"""Width, columns and rows of a matrix."""


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """The keys that a model asks for. Too many do no harm, too few would.

    `experts`: shapes as in `_SHAPE`; `copied_heads`: attention with as many KV heads as heads is among them.
    `matrices`: width, columns and rows of each; none: an operation may ask for any.
    """

    widths: tuple[str, ...]
    head_sizes: tuple[int, ...]
    windows: tuple[int, ...]
    copied_heads: bool
    experts: tuple[tuple[int, ...], ...]
    matrices: tuple[Matrix, ...] = ()


def wanted_by(spec: str) -> Wanted:
    """Return the keys that a specification of the package asks for, in whichever of its operations."""
    widths: set[str] = set()
    heads: set[int] = set()
    windows = {0}
    experts: set[tuple[int, ...]] = set()
    matrices: set[Matrix] = set()
    copied, others = False, False
    for wide, facts in _objects(msgspec.json.decode(spec)):
        names = facts.keys()
        if names >= _SHAPES:
            experts.add(tuple(int(facts[each]) for each in _SHAPE))
        if names >= _MATRIX:
            matrices.add((_looked_up(facts["quant_mode"]), int(facts["n"]), int(facts["k"])))
        copied = copied or ("n_kv" in facts and facts["n_kv"] == facts.get("n"))
        for key, value in facts.items():
            if isinstance(value, str) and (wide or _says_width(key)):
                widths.update((value, _looked_up(value)))
            elif isinstance(value, dict):
                others = others or (key[:1].isupper() and key not in _TIMED_ALONE)
        heads.update(facts[each] for each in names & _HEAD_SIZES if isinstance(facts[each], int))
        if isinstance(facts.get(_WINDOW), int):
            windows.add(facts[_WINDOW])
    return Wanted(
        widths=tuple(sorted(widths)),
        head_sizes=tuple(sorted(heads)),
        windows=tuple(sorted(windows)),
        copied_heads=copied,
        experts=tuple(sorted(experts)),
        matrices=() if others else tuple(sorted(matrices)),
    )


def _objects(whole: object) -> Iterator[tuple[bool, dict[str, Any]]]:
    """Yield every object, and whether a name above it says that its texts are widths; lists as objects of theirs."""
    left = [(False, whole)]
    while left:
        wide, node = left.pop()
        if isinstance(node, list):
            node = {str(place): value for place, value in enumerate(node)}
        if isinstance(node, dict):
            yield wide, node
            left += [
                (wide or _says_width(key), value)
                for key, value in node.items()
                if isinstance(value, dict | list)
            ]


def _says_width(key: str) -> bool:
    return "quant" in key or "dtype" in key


def _looked_up(width: str) -> str:
    return _SAME_TABLE.get(width, width)


class Tables(msgspec.Struct, frozen=True, kw_only=True):
    """What an excerpt is of: the package's folder and version, a device and an engine in its words."""

    package: Path
    version: str
    system: str
    engine: str


class Excerpts:
    """Excerpts of a package's tree in a folder; None makes none."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._roots: dict[tuple[Tables, Wanted], Path | None] = {}

    def root(self, tables: Tables, wanted: Wanted) -> Path | None:
        """Return the root of an excerpt, made if it is not there; None where it cannot be."""
        key = (tables, wanted)
        if key not in self._roots:
            self._roots[key] = self._made(tables, wanted)
        return self._roots[key]

    def _made(self, tables: Tables, wanted: Wanted) -> Path | None:
        if self._folder is None:
            return None
        digest = hashlib.sha256(f"{_FORMAT} {tables} {wanted}".encode()).hexdigest()
        root = self._folder / f"{tables.system}-{tables.engine}-{digest[:24]}"
        if root.is_dir():
            with contextlib.suppress(OSError):
                root.touch()
            return root
        with contextlib.suppress(OSError):  # a full or read-only disk costs time, nothing else
            self._folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=self._folder, prefix=".part-") as part:
                made = Path(part) / "root"
                _write(tables, wanted, made)
                with contextlib.suppress(OSError):  # another process was first
                    made.rename(root)
            _drop_oldest(self._folder)
        return root if root.is_dir() else None


def _drop_oldest(folder: Path) -> None:
    """Keep to `EXCERPTS_MAX`; raises OSError."""
    roots = [each for each in folder.iterdir() if not each.name.startswith(".")]
    for each in sorted(roots, key=lambda root: root.stat().st_mtime)[:-EXCERPTS_MAX]:
        shutil.rmtree(each, ignore_errors=True)


def _write(tables: Tables, wanted: Wanted, made: Path) -> None:
    """Write an excerpt of an engine's tables; raises OSError."""
    package, folder = tables.package, Path("data", tables.system)
    (made / folder).mkdir(parents=True)
    for each in package.iterdir():
        if each.name == _REUSE:
            (made / each.name).write_text(_shared_only(each.read_text(encoding="utf-8")))
        elif each.is_file():
            (made / each.name).symlink_to(each)
    kept = {
        name: keep
        for name, keep in _KEPT.items()
        if (wanted.experts if keep is _experts else wanted.head_sizes or keep is _matrices)
    }
    for family in sorted((package / folder).iterdir()):
        own = family / tables.engine
        if not any(each.name in kept for each in own.glob("*/*")):
            (made / folder / family.name).symlink_to(family)
            continue
        (made / folder / family.name).mkdir()
        for engine in family.iterdir():
            if engine != own:
                (made / engine.relative_to(package)).symlink_to(engine)
        for each in own.glob("*/*"):
            target = made / each.relative_to(package)
            target.parent.mkdir(parents=True, exist_ok=True)
            if each.name in kept:
                _excerpt(each, target, wanted)
            else:
                target.symlink_to(each)


def _shared_only(text: str) -> str:
    """Return the list of kernels that engines share without those of one engine; another layout of it stays whole."""
    _, mark, rest = text.partition("\ngroups:\n")
    entries = [f"  - {each}" for each in re.split(r"^  - ", rest, flags=re.MULTILINE)[1:]]
    told = [re.search(r"^    frameworks: \[(.*)\]$", each, flags=re.MULTILINE) for each in entries]
    if not mark or not entries or not all(told):
        return text
    shared = [each for each, found in zip(entries, told, strict=True) if found and "," in found[1]]
    return "groups:\n" + "".join(shared) if shared else "groups: []\n"


def _excerpt(source: Path, target: Path, wanted: Wanted) -> None:
    """Write the rows of one table that are wanted; a file that cannot be read so is linked."""
    pyarrow: Any = importlib.import_module("pyarrow")  # with the package of the tables, as numpy
    parquet: Any = importlib.import_module("pyarrow.parquet")
    try:
        schema = parquet.read_schema(source)
        unread = (*_UNREAD, *_UNREAD_OF_OWN.get(source.name, ()))
        names = [name for name in schema.names if name not in unread]
        texts = [name for name in names if not pyarrow.types.is_primitive(schema.field(name).type)]
        table = parquet.ParquetFile(source, read_dictionary=texts)
        rows = table.read(columns=names, use_threads=False).combine_chunks()
        kept = rows.filter(_mask(pyarrow, _KEPT[source.name](rows, wanted)))
        parquet.write_table(
            kept, target, compression="none", use_dictionary=texts, write_statistics=False
        )
    except (pyarrow.ArrowException, KeyError, ValueError, AttributeError, IndexError):
        target.unlink(missing_ok=True)
        target.symlink_to(source)


def _mask(pyarrow: Any, kept: Any) -> Any:
    """Return which rows are kept in pyarrow's form, put together from its bits, as its own way imports pandas."""
    import numpy

    bits = pyarrow.py_buffer(numpy.packbits(kept, bitorder="little"))
    return pyarrow.Array.from_buffers(pyarrow.bool_(), len(kept), [None, bits])


def _numbers(rows: Any, name: str) -> Any:
    return _whole(rows.column(name).chunk(0))


def _whole(column: Any) -> Any:
    """Return an array of whole numbers as it lies in memory: pyarrow's own way imports pandas, a third of a second.

    Raises ValueError for anything else, and for one with gaps.
    """
    import numpy

    kind = str(column.type)
    if column.null_count or kind not in _WHOLE:
        raise ValueError(f"a column of a kernel table is of {kind} with {column.null_count} gaps")
    values = numpy.frombuffer(column.buffers()[1], dtype=kind)
    return values[column.offset : column.offset + len(column)]


def _codes(rows: Any, name: str) -> Any:
    """Return a column of text as numbers, with the texts that they stand for."""
    column = rows.column(name).chunk(0)
    return _whole(column.indices), column.dictionary.to_pylist()


def _among(rows: Any, name: str, texts: Sequence[str]) -> Any:
    import numpy

    codes, known = _codes(rows, name)
    return numpy.isin(codes, [place for place, text in enumerate(known) if text in texts])


def _matrices(rows: Any, wanted: Wanted) -> Any:
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


def _prompts(rows: Any, wanted: Wanted) -> Any:
    return _answers(rows, wanted) & _among(rows, "attn_dtype", wanted.widths)


def _answers(rows: Any, wanted: Wanted) -> Any:
    import numpy

    kept = _among(rows, "kv_cache_dtype", wanted.widths)
    kept &= numpy.isin(_numbers(rows, "head_dim"), wanted.head_sizes)
    if _WINDOW in rows.column_names:
        kept &= numpy.isin(_numbers(rows, _WINDOW), wanted.windows)
    if not wanted.copied_heads:
        kept &= _numbers(rows, "num_heads") != _numbers(rows, "num_key_value_heads")
    return kept


def _experts(rows: Any, wanted: Wanted) -> Any:
    """Rows of the shapes, and one of each width and choice of experts: whether those were measured at all is asked."""
    import numpy

    shapes = [_numbers(rows, name) for name in _SHAPE]
    kept = numpy.zeros(rows.num_rows, dtype=bool)
    for shape in wanted.experts:
        kept |= numpy.logical_and.reduce(
            [column == size for column, size in zip(shapes, shape, strict=True)]
        )
    # the package tells some kernels of one width apart by a longer name
    codes, known = _codes(rows, _EXPERTS_OF[0])
    kept &= numpy.isin(
        codes,
        [
            place
            for place, text in enumerate(known)
            if any(width.startswith(text) for width in wanted.widths)
        ],
    )
    kinds = numpy.zeros(rows.num_rows, dtype=numpy.int64)
    for name in _EXPERTS_OF:
        if name in rows.column_names:
            codes, known = _codes(rows, name)
            kinds = kinds * len(known) + codes
    kept[numpy.unique(kinds, return_index=True)[1]] = True
    return kept


_KEPT: Final = {
    "gemm_perf.parquet": _matrices,
    "context_attention_perf.parquet": _prompts,
    "generation_attention_perf.parquet": _answers,
    "moe_perf.parquet": _experts,
}
"""By table: which of its rows are kept."""
