"""Which configuration of the kernel tables' package answers for a layout: names, widths and tables, tried in order.

Tables are asked for measured kernels out of an excerpt, then out of all, and with gaps filled by the package only where
somebody wants times that nobody measured. What was refused for a reason that holds elsewhere is not tried there.
"""

import re
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, Final

import msgspec

from trimtab.core.layout import Layout
from trimtab.planning.kernel_port import NoTimes, Serving
from trimtab.runtime.kernel_configs import ConfigFolders
from trimtab.runtime.kernel_excerpt import Excerpts, Tables
from trimtab.runtime.kernel_names import (
    ENGINES,
    Widths,
    candidates,
    checkpoints_of,
    near_models,
    system_names,
    system_of,
    width_in,
)
from trimtab.runtime.kernel_sdk import (
    MODES,
    PACKAGE,
    REFUSALS,
    Compiled,
    carried,
    compile_layout,
    held,
    is_mixture,
    names_device_alone,
    names_experts_alone,
    names_widths_alone,
    open_tables,
    own_width,
    package_root,
    specified,
    specs_of_sizes,
    version,
)
from trimtab.runtime.kernel_stages import Remembered, Staged, sends_of
from trimtab.runtime.kernel_wanted import Matrix, wanted_by

_ATTENTIONS: Final = (None, "bfloat16")
"""How prompts attend: as the checkpoint implies; where that was not measured, in 16 bit."""

_MEASURED: Final = ((MODES[0], True), (MODES[0], False))
_FILLED: Final = tuple((mode, False) for mode in MODES[1:])
_ALL: Final = (*_MEASURED, *_FILLED)
"""How tables are asked: measured kernels out of an excerpt, then out of all; then with gaps filled."""


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """A configuration that the tables hold, and what must be said of it. `spec_of`: the same of another layout."""

    compiled: Compiled
    notes: tuple[str, ...]
    spec_of: Callable[[Layout], str]


_Key = tuple[Serving, Layout]
_Sizes = partial[Iterator[str]]


class Configurations:
    """Finds configurations and keeps them, with what they need of the tables."""

    def __init__(self, excerpts: Excerpts) -> None:
        self._excerpts = excerpts
        self._measured: dict[_Key, Found | NoTimes] = {}
        self._filled: dict[_Key, Found | NoTimes] = {}
        self._first_refusal: dict[_Key, str] = {}
        self._sends: dict[tuple[Serving, str, str, int], Remembered | None] = {}
        self._loaded: dict[tuple[str, str, str], Any] = {}
        self._holding: dict[tuple[str, str, str | None], Any] = {}
        self._refused: dict[tuple[Widths, str | None, str, str, str, bool], str] = {}
        self._matrices: dict[tuple[Any, ...], tuple[Matrix, ...]] = {}
        self._names: dict[str, tuple[str, ...]] = {}
        self._folders = ConfigFolders()
        self._lock = threading.Lock()

    def measured(self, serving: Serving, layout: Layout) -> Found | NoTimes:
        """Return the configuration of a layout all of whose kernels were measured, or why there is none."""
        if (serving, layout) not in self._measured:
            found = self._search(serving, layout, filled=False)
            self._measured[serving, layout] = found
        return self._measured[serving, layout]

    def found(self, serving: Serving, layout: Layout) -> Found | NoTimes:
        """Return the same, or one whose gaps the package fills from near kernels."""
        first = self.measured(serving, layout)
        if not isinstance(first, NoTimes):
            return first
        if (serving, layout) not in self._filled:
            self._filled[serving, layout] = self._search(serving, layout, filled=True)
        return self._filled[serving, layout]

    def _search(self, serving: Serving, layout: Layout, *, filled: bool) -> Found | NoTimes:
        staged = self._staged(serving, layout, filled=filled) if layout.pp > 1 else None
        return staged or self._find(serving, layout, filled=filled)

    def _staged(self, serving: Serving, layout: Layout, *, filled: bool) -> Found | NoTimes | None:
        """Return a layout with stages by way of the same without; None where it differs in more than what those send.

        That is compared once for a model, its widths and a number of stages: other sizes change nothing of it.
        """
        find = self.found if filled else self.measured
        whole = find(serving, unstaged(layout))
        if isinstance(whole, NoTimes):
            return whole
        base = whole.compiled
        key = (serving, base.widths, base.mode, layout.pp)
        if key not in self._sends:
            self._sends[key] = sends_of(whole.spec_of(layout), base.spec, base.root)
        sends = self._sends[key]
        if sends is None:
            return None
        both = msgspec.structs.replace(base, engine=Staged(base.engine, sends), sends=sends)
        return msgspec.structs.replace(whole, compiled=both)

    def _find(self, serving: Serving, layout: Layout, *, filled: bool) -> Found | NoTimes:
        engine = ENGINES.get(serving.engine)
        if engine is None:
            return NoTimes(
                because=f"there are no tables for the engine {serving.engine.value}",
                nearest=tuple(ENGINES.values()),
            )
        system = system_of(serving.system)
        if system is None:
            return NoTimes(
                because=f"there are no tables for {serving.system}", nearest=system_names()
            )
        with self._lock:
            checkpoints = self._checkpoints(serving.model)
        if not checkpoints:
            near = near_models(serving.model, carried())
            return NoTimes(
                because=f"there are no tables for the model {serving.model}", nearest=near
            )
        try:
            return self._first_with_data(
                serving, layout, engine, system, checkpoints, _FILLED if filled else _MEASURED
            )
        except REFUSALS as error:  # an architecture that the package does not know
            return NoTimes(because=f"there are no tables for {serving.model}: {_line(error)}")

    def _checkpoints(self, model: str) -> tuple[str, ...]:
        """Return names that the package carries, or a folder; a path that is there is never taken for a name."""
        if model not in self._names:
            found = () if Path(model).exists() else checkpoints_of(model, carried())
            folder = None if found else self._folders.folder_of(model)
            self._names[model] = found if folder is None else (folder,)
        return self._names[model]

    def _first_with_data(
        self, serving: Serving, layout: Layout, engine: str, system: str,
        checkpoints: tuple[str, ...], tries: Sequence[tuple[str, bool]],
    ) -> Found | NoTimes:  # fmt: skip
        own = {name: own_width(name) for name in checkpoints}
        wanted = candidates(
            checkpoints,
            own,
            precision=serving.precision or _stated(serving.model, checkpoints[0]),
            kv_bits=serving.kv_bits,
            system=system,
            dense=not is_mixture(checkpoints[0]),
        )
        key = (serving, layout)
        refused = self._first_refusal.get(key, "")
        lacking: set[tuple[Widths, str | None]] = set()
        for (mode, excerpt), widths, attention in product(tries, wanted, _ATTENTIONS):
            setting = (widths, attention, engine, system, mode, excerpt)
            if setting in self._refused:
                refused = refused or self._refused[setting]
                continue
            if mode == MODES[0] and (widths, attention) in lacking:
                continue
            try:
                tables = self._database(system, engine, mode)
                asked = partial(specs_of_sizes, widths, engine, system, tables, attention)
                root_of = partial(self._root_of, tables, system, engine, asked if excerpt else None)
                found = compile_layout(widths, layout, engine, system, tables, attention, root_of)
            except REFUSALS as error:
                refused = refused or _line(error)
                if names_experts_alone(str(error)):
                    lacking.add((widths, attention))
                if names_widths_alone(str(error)):
                    alike = _ALL if names_device_alone(str(error)) else ((mode, excerpt),)
                    self._refused |= {(*setting[:4], *each): _line(error) for each in alike}
                continue
            remembered = msgspec.structs.replace(found, engine=Remembered(found.engine))
            spec_of = partial(_spec_of, widths, engine, system, tables, attention)
            return Found(compiled=remembered, notes=_notes(serving, widths, found), spec_of=spec_of)
        self._first_refusal[key] = refused
        return NoTimes(because=f"the tables of {system} for {engine} do not hold it: {refused}")

    def _root_of(
        self, tables: Any, system: str, engine: str, sizes: _Sizes | None, spec: str
    ) -> str | None:
        """Return where the tables lie that a specification is asked of, and keep hold of those.

        `sizes`: gives the specifications of the same model in other sizes; None: the package's own tables.
        """
        root = None
        if sizes is not None:
            whole = Tables(package=package_root(), version=version(), system=system, engine=engine)
            own = wanted_by(spec)
            usual = self._matrices_of(sizes, own.matrices)
            wanted = msgspec.structs.replace(own, matrices=usual)
            found = self._excerpts.root(whole, wanted)
            root = None if found is None else str(found)
        key = (system, engine, root)
        if key not in self._holding:
            self._holding[key] = held(tables, root)
        return root

    def _matrices_of(self, sizes: _Sizes, own: tuple[Matrix, ...]) -> tuple[Matrix, ...]:
        """Return the matrices of a model in all usual sizes, so that its layouts have one excerpt, and its own."""
        if not own:
            return ()
        key = sizes.args[:-1]  # how prompts attend changes no matrix
        if key not in self._matrices:
            told = [wanted_by(each).matrices for each in sizes()]
            self._matrices[key] = tuple(sorted({each for some in told for each in some}))
        usual = self._matrices[key]
        return usual if set(own) <= set(usual) else tuple(sorted({*own, *usual}))

    def _database(self, system: str, engine: str, mode: str) -> Any:
        key = (system, engine, mode)
        if key not in self._loaded:
            self._loaded[key] = open_tables(system, engine, mode)
        opened = self._loaded[key]
        if opened is None:
            raise ValueError(f"no tables for {system} and {engine}")
        return opened


def unstaged(layout: Layout) -> Layout:
    """Return a layout without its stages."""
    return msgspec.structs.replace(layout, pp=1)


def _spec_of(
    widths: Widths, engine: str, system: str, tables: Any, attention: str | None, layout: Layout
) -> str:
    return specified(widths, layout, engine, system, tables, attention)[1]


_FILES: Final = re.compile(r" at /[^;]*| \(first: /[^)]*\)|(?<!\S)(?:/[^\s/;,:'\"()]+){2,}")
"""Paths in what the package says: of an excerpt's file they are another in each run and tell nobody anything."""


def _line(error: Exception) -> str:
    """Return what the package says in one line, without its files."""
    line = (str(error).splitlines() or [type(error).__name__])[0]
    return _FILES.sub("", line)[:200]


def _notes(serving: Serving, widths: Widths, found: Compiled) -> tuple[str, ...]:
    said = [
        f"step times from measured kernels ({PACKAGE} for {ENGINES[serving.engine]} {found.version}; {found.widths})"
    ]
    if serving.engine_version and serving.engine_version != found.version:
        said.append(f"engine {serving.engine_version} was asked for, tables are of {found.version}")
    if widths.note:
        said.append(widths.note)
    if found.mode != MODES[0]:
        said.append("some kernels have no measurement and were extended from near ones")
    return tuple(said)


def _stated(model: str, checkpoint: str) -> str:
    """The precision in a model's name where the checkpoint taken for it has another name."""
    if Path(model).exists():
        return ""
    same = model.rpartition("/")[2].lower() == checkpoint.rpartition("/")[2].lower()
    return "" if same else width_in(model)
