"""Excerpts of the kernel tables: of the large ones only the rows that a model can ask for, which are soon read.

The package reads its tables row by row with every column of every width and shape that was measured: a second of CPU
for a device and engine. What it then looks up is found by exact keys (widths, head sizes, an expert's shape) and only
within those by neighbours (tokens, streams, heads, matrices), so rows of other keys change nothing. An excerpt is a
tree like the package's own: files of an engine's large tables with the rows of such keys, in their order, and links to
its others. To begin with, the package looks for each kind of table in every folder that there is, so tables of
families that nobody asks are not there, nor those of other engines, but what the engine may use; and families lie in
one folder, but for those of which a file says something that is not true of others.

It serves measured kernels alone. Where the package fills gaps from other shapes or widths, those must be there: then
its own tree is asked. An excerpt that cannot be made is as good as none.
"""

import contextlib
import hashlib
import os
import re
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec

from trimtab.runtime.kernel_rows import is_cut, write_rows
from trimtab.runtime.kernel_wanted import Wanted

_FORMAT: Final = 7
_REUSE: Final = "perf_data_reuse_manifest.yaml"
"""Which engines may use each other's kernels; read once for each table, and an entry of one engine changes nothing."""

_TABLE: Final = ".parquet"
_COMM: Final = "comm"
"""The one family that the package knows by its name."""

_TOGETHER: Final = "tables"
_OF_ALL: Final = ("nccl", "oneccl")
"""Folders beside the engines' that every engine asks."""

_ENTRY: Final = re.compile(
    r"  - op_file: (?P<table>\S+)\n(?:    .*\n)*?    frameworks: \[(?P<engines>.*)\]\n"
)

EXCERPTS_MAX: Final = 64
"""Excerpts that are kept, some megabytes each; beyond, those used longest ago are dropped."""


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
    device = f"{tables.system}.yaml"
    (made / device).symlink_to(package / device)
    families = [each for each in sorted((package / folder).iterdir()) if wanted.asks(each.name)]
    files = {each: list(each.glob("*/*/*")) for each in families}
    reuse = (package / _REUSE).read_text(encoding="utf-8")
    shared = _shared(reuse)
    lent: set[tuple[str, str]] | None = None
    if shared is not None:
        names = {file.name for found in files.values() for file in found}
        told = "".join(each.text for each in shared if each.table in names)
        reuse = f"groups:\n{told}" if told else "groups: []\n"
        lent = {(each.table, one) for each in shared for one in each.lenders(tables.engine)}
    (made / _REUSE).write_text(reuse)
    for family, found in files.items():
        more = any(_says_more(each) for each in found)
        place = made / folder / (family.name if more or family.name == _COMM else _TOGETHER)
        kept = [each for each in found if more or each.suffix == _TABLE]
        for engine in {each.parents[1] for each in kept}:
            of_engine = [each for each in kept if each.parents[1] == engine]
            own = engine.name in (tables.engine, *_OF_ALL)
            whole = own and place.name == family.name
            if not own and lent is not None:
                of_engine = [each for each in of_engine if (each.name, engine.name) in lent]
            _write_engine(of_engine, engine, place / engine.name, wanted, whole=whole)


def _says_more(file: Path) -> bool:
    """Say whether a file says of its folder what is not true of others, as which tables are used again."""
    return file.suffix == ".txt" or file.name == "reuse.yaml"


def _write_engine(
    files: Sequence[Path], engine: Path, target: Path, wanted: Wanted, *, whole: bool
) -> None:
    """Write an engine's tables with what is wanted of them, or links; raises OSError, as for two files of one name.

    `whole`: these are all that there are, and they lie alone in their folder.
    """
    cut = {each for each in files if is_cut(each.name, wanted)}
    if whole and not cut:
        target.parent.mkdir(exist_ok=True)
        target.symlink_to(engine)
        return
    for version in {each.parts[-2] for each in files}:
        os.makedirs(target / version, exist_ok=True)
    for each in files:
        written = target.joinpath(*each.parts[-2:])
        if each in cut:
            write_rows(each, written, wanted)
        else:
            os.symlink(each, written)


class _Shared(msgspec.Struct, frozen=True, kw_only=True):
    """Kernels of a table that several engines share, and the entry that says so."""

    table: str
    engines: frozenset[str]
    text: str

    def lenders(self, engine: str) -> frozenset[str]:
        """Return whose kernels an engine may use where it has none of its own."""
        return self.engines if engine in self.engines else frozenset()


def _shared(text: str) -> list[_Shared] | None:
    """Return what the list of shared kernels says, less those of one engine; None for another layout of it."""
    _, mark, rest = text.partition("\ngroups:\n")
    entries = [f"  - {each}" for each in re.split(r"^  - ", rest, flags=re.MULTILINE)[1:]]
    told = [_ENTRY.match(each) for each in entries]
    if not mark or not entries or not all(told):
        return None
    found = [
        _Shared(table=each["table"], engines=frozenset(each["engines"].split(", ")), text=entry)
        for each, entry in zip(told, entries, strict=True)
        if each
    ]
    return [each for each in found if len(each.engines) > 1]
