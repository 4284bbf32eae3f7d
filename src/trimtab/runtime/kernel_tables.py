"""Step times out of measured kernel tables: the package `aiconfigurator-core` (the extra `[plan]`) behind our port.

What is known of the package, and kept away from callers: a backend object that is used twice answers with the previous
model's numbers, so the compiled engine of each configuration is asked directly; only its own version slots can be
queried, so the current one is taken and a note names it; an FP8 checkpoint implies an FP8 cache there unless told
otherwise; names it does not know would be looked up over the network, so they never get to it. Its own TTFT and TPOT
are not used: they leave out queueing and scheduling. Measured serving rows that it carries are not read.
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from enum import StrEnum
from functools import partial
from typing import Final

import msgspec

import trimtab
from trimtab.core.layout import EstimateSource, Layout
from trimtab.planning.grid_times import Asked, GridTimes, empty_grid
from trimtab.planning.kernel_port import NoTimes, Parted, Serving, StepTimes
from trimtab.runtime.kernel_asked import EngineAsked, part_engines, parts_asked
from trimtab.runtime.kernel_cache import GridCache, Kept
from trimtab.runtime.kernel_configs import config_digest
from trimtab.runtime.kernel_excerpt import Excerpts
from trimtab.runtime.kernel_find import Configurations, unstaged
from trimtab.runtime.kernel_sdk import MODES, Compiled, installed, version
from trimtab.runtime.kernel_stages import Remembered

_PARTS: Final = 2
"""Grids of a mixture's parts: without its exchange, without its experts too."""


class _Asks(StrEnum):
    """What is asked of a layout: its times, those of its parts, or its times where all of its kernels were measured."""

    WHOLE = "whole"
    PARTS = "parts"
    MEASURED = "measured"


class _Told(msgspec.Struct, frozen=True, kw_only=True):
    """Times that were looked up: a layout's whole, or those of its parts."""

    notes: tuple[str, ...]
    extended: bool
    grids: tuple[GridTimes, ...]


_Key = tuple[Serving, Layout]


class PackageTables:
    """The kernel tables of the package. What they said is kept; what was never asked loads them, about a second."""

    def __init__(self, cache: GridCache | None = None, excerpts: Excerpts | None = None) -> None:
        """`cache`: times that were kept before; None keeps none. `excerpts`: None reads all tables whole."""
        self._cache = cache or GridCache(None)
        self._configurations = Configurations(excerpts or Excerpts(None))
        self._times: dict[tuple[Serving, Layout, _Asks], _Told | NoTimes] = {}
        self._parts: dict[_Key, tuple[Asked, Asked]] = {}
        self._part_engines: dict[_Key, tuple[Remembered, Remembered]] = {}
        self._names: dict[Serving, str] = {}
        self._started: set[Serving] = set()
        self._told: dict[tuple[Serving, str], _Told] = {}
        self._none: dict[tuple[Serving, str], NoTimes] = {}

    def keep(self) -> None:
        """Write what was asked for since the times were read, for the next process."""
        news: dict[Serving, dict[str, Kept | NoTimes]] = {}
        for (serving, name), none in self._none.items():
            news.setdefault(serving, {})[name] = none
        for (serving, name), told in self._told.items():
            if any(times.grown for times in told.grids):
                grids = tuple(times.grid for times in told.grids)
                kept = Kept(notes=told.notes, extended=told.extended, grids=grids)
                news.setdefault(serving, {})[name] = kept
        self._none.clear()
        for serving, each in news.items():
            self._cache.put(self._name(serving), each)

    def times(self, serving: Serving, layout: Layout) -> StepTimes | NoTimes:
        """Return the step times of a layout (replicas do not matter), or why there are none."""
        found = self._kept(serving, layout, _Asks.WHOLE)
        return found if isinstance(found, NoTimes) else found.grids[0]

    def times_of_all(
        self, servings: Sequence[Serving], layout: Layout
    ) -> tuple[StepTimes | NoTimes, ...]:
        """Return the step times of a layout in several servings; at first their tables are loaded at the same time."""
        measured = self._measured_of_all(servings, layout)
        if any(not isinstance(each, NoTimes) for each in measured):
            return measured
        return tuple(self.times(each, layout) for each in servings)

    def _measured_of_all(
        self, servings: Sequence[Serving], layout: Layout
    ) -> tuple[StepTimes | NoTimes, ...]:
        if self._started.issuperset(servings):
            return tuple(self._measured(layout, each) for each in servings)
        self._started.update(servings)
        with ThreadPoolExecutor(max(1, len(servings))) as pool:
            return tuple(pool.map(partial(self._measured, layout), servings))

    def _measured(self, layout: Layout, serving: Serving) -> StepTimes | NoTimes:
        found = self._kept(serving, layout, _Asks.MEASURED)
        return found if isinstance(found, NoTimes) else found.grids[0]

    def parted(self, serving: Serving, layout: Layout) -> Parted | NoTimes:
        """Return a mixture's step times with those of its parts, or why there are none."""
        whole = self._kept(serving, layout, _Asks.WHOLE)
        parts = self._kept(serving, layout, _Asks.PARTS)
        if isinstance(whole, NoTimes):
            return whole
        if isinstance(parts, NoTimes):
            return parts
        return Parted(whole=whole.grids[0], no_exchange=parts.grids[0], no_experts=parts.grids[1])

    def _kept(self, serving: Serving, layout: Layout, asks: _Asks) -> _Told | NoTimes:
        key = (serving, layout, asks)
        if key not in self._times:
            one = layout if layout.replicas == 1 else msgspec.structs.replace(layout, replicas=1)
            self._times[key] = self._looked_up(serving, one, asks)
        return self._times[key]

    def _name(self, serving: Serving) -> str:
        """Return what a serving's times are kept under: versions, and what its configuration holds."""
        if serving not in self._names:
            digest = config_digest(serving.model)
            self._names[serving] = f"{version()} {trimtab.__version__} {serving} {digest}"
        return self._names[serving]

    def _looked_up(self, serving: Serving, layout: Layout, asks: _Asks) -> _Told | NoTimes:
        if not installed():
            return NoTimes(because="the extra [plan] with measured kernel tables is not installed")
        if asks is _Asks.MEASURED:
            return self._looked_up_measured(serving, layout)
        name = f"{layout} {asks}"
        kept = self._cache.get(self._name(serving), name)
        if isinstance(kept, NoTimes):
            return kept
        told = None if kept is None else self._told_of(kept, serving, layout, asks)
        if told is None:
            found = self._configurations.found(serving, layout)
            if isinstance(found, NoTimes):
                self._none[serving, name] = found
                return found
            empty = Kept(
                notes=found.notes,
                extended=found.compiled.mode != MODES[0],
                grids=(empty_grid(),) * (_PARTS if asks is _Asks.PARTS else 1),
            )
            told = self._told_of(empty, serving, layout, asks)
        assert told is not None
        self._told[serving, name] = told
        return told

    def _looked_up_measured(self, serving: Serving, layout: Layout) -> _Told | NoTimes:
        name = f"{layout} {_Asks.MEASURED}"
        kept = self._cache.get(self._name(serving), name)
        if isinstance(kept, NoTimes):
            return kept
        if self._cache.get(self._name(serving), f"{layout} {_Asks.WHOLE}") is None:
            found = self._configurations.measured(serving, layout)
            if isinstance(found, NoTimes):
                self._none[serving, name] = found
                return found
        whole = self._kept(serving, layout, _Asks.WHOLE)
        if isinstance(whole, NoTimes) or not whole.extended:
            return whole
        return NoTimes(because="some of its kernels were not measured")

    def _told_of(self, kept: Kept, serving: Serving, layout: Layout, asks: _Asks) -> _Told | None:
        """Return kept times as times that grow; None where they are of another grid."""
        source, notes, extended = EstimateSource.KERNEL_TABLES, kept.notes, kept.extended
        try:
            grids = tuple(
                GridTimes(
                    grid,
                    source,
                    notes,
                    extended=extended,
                    asked=partial(
                        self._asked, serving, layout, part if asks is _Asks.PARTS else None
                    ),
                )
                for part, grid in enumerate(kept.grids)
            )
        except ValueError:
            return None
        return _Told(notes=notes, extended=extended, grids=grids)

    def _asked(self, serving: Serving, layout: Layout, part: int | None) -> Asked:
        """Return what points of a grid are asked of; the configuration was found before, in this run or another."""
        found = self._configurations.found(serving, layout)
        if isinstance(found, NoTimes):
            raise RuntimeError(f"the kernel tables changed under a running plan: {found.because}")
        if part is None:
            return EngineAsked(found.compiled.engine)
        if (serving, layout) not in self._parts:
            whole = self._kept(serving, layout, _Asks.WHOLE)
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
