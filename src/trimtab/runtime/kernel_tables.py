"""Step times out of measured kernel tables: the package `aiconfigurator-core` (the extra `[plan]`) behind our port.

What is known of the package, and kept away from callers: a backend object that is used twice answers with the previous
model's numbers, so the compiled engine of each configuration is asked directly; only its own version slots can be
queried, so the current one is taken and a note names it; an FP8 checkpoint implies an FP8 cache there unless told
otherwise; names it does not know would be looked up over the network, so they never get to it. Its own TTFT and TPOT
are not used: they leave out queueing and scheduling. Measured serving rows that it carries are not read.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, Final

import msgspec

import trimtab
from trimtab.core.layout import EstimateSource, Layout
from trimtab.planning.grid_times import Asked, GridTimes, empty_grid
from trimtab.planning.kernel_port import NoTimes, Parted, Serving, StepTimes
from trimtab.runtime.kernel_asked import EngineAsked, part_engines, parts_asked
from trimtab.runtime.kernel_cache import GridCache, Kept
from trimtab.runtime.kernel_configs import ConfigFolders, config_digest
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
    installed,
    is_mixture,
    names_device_alone,
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

_TRIES: Final = ((MODES[0], True), *((mode, False) for mode in MODES))
"""How tables are asked: measured kernels out of an excerpt, then out of all, then with gaps filled."""

_PARTS: Final = 2
"""Grids of a mixture's parts: without its exchange, without its experts too."""


class _Found(msgspec.Struct, frozen=True, kw_only=True):
    """A configuration that the tables hold, and what must be said of it. `spec_of`: the same of another layout."""

    compiled: Compiled
    notes: tuple[str, ...]
    spec_of: Callable[[Layout], str]


class _Told(msgspec.Struct, frozen=True, kw_only=True):
    """Times that were looked up: a layout's whole, or those of its parts."""

    notes: tuple[str, ...]
    extended: bool
    grids: tuple[GridTimes, ...]


_Key = tuple[Serving, Layout]
_Sizes = partial[Iterator[str]]


class PackageTables:
    """The kernel tables of the package. What they said is kept; what was never asked loads them, about a second."""

    def __init__(self, cache: GridCache | None = None, excerpts: Excerpts | None = None) -> None:
        """`cache`: times that were kept before; None keeps none. `excerpts`: None reads all tables whole."""
        self._cache = cache or GridCache(None)
        self._excerpts = excerpts or Excerpts(None)
        self._times: dict[tuple[Serving, Layout, bool], _Told | NoTimes] = {}
        self._compiled: dict[_Key, _Found | NoTimes] = {}
        self._parts: dict[_Key, tuple[Asked, Asked]] = {}
        self._part_engines: dict[_Key, tuple[Remembered, Remembered]] = {}
        self._sends: dict[tuple[Serving, str, str, int], Remembered | None] = {}
        self._loaded: dict[tuple[str, str, str], Any] = {}
        self._holding: dict[tuple[str, str, str | None], Any] = {}
        self._refused: dict[tuple[Widths, str | None, str, str, str, bool], str] = {}
        self._matrices: dict[tuple[Any, ...], tuple[Matrix, ...]] = {}
        self._names: dict[str, tuple[str, ...]] = {}
        self._digests: dict[str, str] = {}
        self._started: set[Serving] = set()
        self._folders = ConfigFolders()
        self._lock = threading.Lock()
        self._told: dict[str, _Told] = {}

    def keep(self) -> None:
        """Write what was asked for since the times were read, for the next process."""
        for name, told in self._told.items():
            if any(times.grown for times in told.grids):
                grids = tuple(times.grid for times in told.grids)
                kept = Kept(notes=told.notes, extended=told.extended, grids=grids)
                self._cache.put(name, kept)

    def times(self, serving: Serving, layout: Layout) -> StepTimes | NoTimes:
        """Return the step times of a layout (replicas do not matter), or why there are none."""
        found = self._kept(serving, layout, parts=False)
        return found if isinstance(found, NoTimes) else found.grids[0]

    def times_of_all(
        self, servings: Sequence[Serving], layout: Layout
    ) -> tuple[StepTimes | NoTimes, ...]:
        """Return the step times of a layout in several servings; at first their tables are loaded at the same time."""
        if self._started.issuperset(servings):
            return tuple(self.times(each, layout) for each in servings)
        self._started.update(servings)
        with ThreadPoolExecutor(max(1, len(servings))) as pool:
            return tuple(pool.map(partial(self._times_in, layout), servings))

    def _times_in(self, layout: Layout, serving: Serving) -> StepTimes | NoTimes:
        return self.times(serving, layout)

    def parted(self, serving: Serving, layout: Layout) -> Parted | NoTimes:
        """Return a mixture's step times with those of its parts, or why there are none."""
        whole, parts = (self._kept(serving, layout, parts=each) for each in (False, True))
        if isinstance(whole, NoTimes):
            return whole
        if isinstance(parts, NoTimes):
            return parts
        return Parted(whole=whole.grids[0], no_exchange=parts.grids[0], no_experts=parts.grids[1])

    @staticmethod
    def _key(serving: Serving, layout: Layout, *, parts: bool) -> tuple[Serving, Layout, bool]:
        return (serving, msgspec.structs.replace(layout, replicas=1), parts)

    def _kept(self, serving: Serving, layout: Layout, *, parts: bool) -> _Told | NoTimes:
        key = self._key(serving, layout, parts=parts)
        if key not in self._times:
            self._times[key] = self._looked_up(*key)
        return self._times[key]

    def _looked_up(self, serving: Serving, layout: Layout, parts: bool) -> _Told | NoTimes:
        if not installed():
            return NoTimes(because="the extra [plan] with measured kernel tables is not installed")
        digest = self._digests.get(serving.model)
        if digest is None:
            digest = self._digests[serving.model] = config_digest(serving.model)
        name = f"{version()} {trimtab.__version__} {serving} {layout} {parts} {digest}"
        kept = self._cache.get(name)
        if isinstance(kept, NoTimes):
            return kept
        told = None if kept is None else self._told_of(kept, serving, layout, parts)
        if told is None:
            found = self._found(serving, layout)
            if isinstance(found, NoTimes):
                self._cache.put(name, found)
                return found
            empty = Kept(
                notes=found.notes,
                extended=found.compiled.mode != MODES[0],
                grids=(empty_grid(),) * (_PARTS if parts else 1),
            )
            told = self._told_of(empty, serving, layout, parts)
        assert told is not None
        self._told[name] = told
        return told

    def _told_of(self, kept: Kept, serving: Serving, layout: Layout, parts: bool) -> _Told | None:
        """Return kept times as times that grow; None where they are of another grid."""
        source, notes, extended = EstimateSource.KERNEL_TABLES, kept.notes, kept.extended
        try:
            grids = tuple(
                GridTimes(
                    grid,
                    source,
                    notes,
                    extended=extended,
                    asked=partial(self._asked, serving, layout, part if parts else None),
                )
                for part, grid in enumerate(kept.grids)
            )
        except ValueError:
            return None
        return _Told(notes=notes, extended=extended, grids=grids)

    def _asked(self, serving: Serving, layout: Layout, part: int | None) -> Asked:
        """Return what points of a grid are asked of; the configuration was found before, in this run or another."""
        found = self._found(serving, layout)
        if isinstance(found, NoTimes):
            raise RuntimeError(f"the kernel tables changed under a running plan: {found.because}")
        if part is None:
            return EngineAsked(found.compiled.engine)
        if (serving, layout) not in self._parts:
            whole = self._kept(serving, layout, parts=False)
            assert not isinstance(whole, NoTimes)
            engines = self._engines_of_parts(serving, layout, found.compiled)
            self._parts[serving, layout] = parts_asked(found.compiled, whole.grids[0], engines)
        return self._parts[serving, layout][part]

    def _engines_of_parts(
        self, serving: Serving, layout: Layout, found: Compiled
    ) -> tuple[Remembered, Remembered]:
        """Return what a layout's parts are asked of: one for all that differ in their stages alone."""
        key = (serving, layout if found.sends is None else unstaged(layout))
        if key not in self._part_engines:
            self._part_engines[key] = part_engines(found)
        return self._part_engines[key]

    def _found(self, serving: Serving, layout: Layout) -> _Found | NoTimes:
        if (serving, layout) not in self._compiled:
            staged = self._staged(serving, layout) if layout.pp > 1 else None
            self._compiled[serving, layout] = staged or self._find(serving, layout)
        return self._compiled[serving, layout]

    def _staged(self, serving: Serving, layout: Layout) -> _Found | NoTimes | None:
        """Return a layout with stages by way of the same without; None where it differs in more than what those send.

        That is compared once for a model, its widths and a number of stages: other sizes change nothing of it.
        """
        whole = self._found(serving, unstaged(layout))
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

    def _find(self, serving: Serving, layout: Layout) -> _Found | NoTimes:
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
            return self._first_with_data(serving, layout, engine, system, checkpoints)
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
        self, serving: Serving, layout: Layout, engine: str, system: str, checkpoints: tuple[str, ...]
    ) -> _Found | NoTimes:  # fmt: skip
        own = {name: own_width(name) for name in checkpoints}
        wanted = candidates(
            checkpoints,
            own,
            precision=serving.precision or _stated(serving.model, checkpoints[0]),
            kv_bits=serving.kv_bits,
            system=system,
            dense=not is_mixture(checkpoints[0]),
        )
        refused = ""
        for (mode, excerpt), widths, attention in product(_TRIES, wanted, _ATTENTIONS):
            setting = (widths, attention, engine, system, mode, excerpt)
            if setting in self._refused:
                refused = refused or self._refused[setting]
                continue
            try:
                tables = self._database(system, engine, mode)
                asked = partial(specs_of_sizes, widths, engine, system, tables, attention)
                root_of = partial(self._root_of, tables, system, engine, asked if excerpt else None)
                found = compile_layout(widths, layout, engine, system, tables, attention, root_of)
            except REFUSALS as error:
                refused = refused or _line(error)
                if names_widths_alone(str(error)):
                    alike = _TRIES if names_device_alone(str(error)) else ((mode, excerpt),)
                    self._refused |= {(*setting[:4], *each): _line(error) for each in alike}
                continue
            remembered = msgspec.structs.replace(found, engine=Remembered(found.engine))
            spec_of = partial(_spec_of, widths, engine, system, tables, attention)
            return _Found(
                compiled=remembered, notes=_notes(serving, widths, found), spec_of=spec_of
            )
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


def _line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:200]


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
