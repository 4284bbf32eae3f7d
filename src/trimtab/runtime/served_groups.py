"""Which samples are one server's, seen at several times, and which are servers of their own.

An address is one server however often it is read. Saved scrapes carry no address: two of them are one server's where
engine, model and ranks agree and the counters moved the way one server's do (all of them up, or all of them down after
a restart). A name that the caller gave decides before any of this.

A file's time is that of its last change, which a copy loses: where the times of one server's files do not rise by at
least a second in the order given, their distance is unknown, and so are all rates.
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Final

import msgspec

from trimtab.core.served import Counter, Distribution, EngineKind, Note, ServerSample
from trimtab.runtime.served_sources import Scrape, SourceKind

SAME_START_S: Final = 5.0
"""Two scrapes of one process tell starts at most so far apart."""

FILES_APART_S_MIN: Final = 1.0
GROUPED: Final = "grouped"
"""Kind of the notes that say how scrapes were put together."""
_AROUND: Final = "the worker of Dynamo on the page of {} counts the requests of the engine inside it: not read twice"


class Series(msgspec.Struct, frozen=True, kw_only=True):
    """The samples of one server, oldest first. `timed`: their distance in time is known."""

    samples: tuple[ServerSample, ...]
    timed: bool


class Grouped(msgspec.Struct, frozen=True, kw_only=True):
    """The series of each server, and what a reader must know of how they were put together."""

    servers: tuple[Series, ...]
    notes: tuple[Note, ...]


def group(scrapes: Sequence[Scrape], *, between_s: float | None = None) -> Grouped:
    """Return the samples by server, in the order in which the servers were first met.

    A page that several engines or exporters write is a server of each, the engine itself first. `between_s`: seconds
    between the saved scrapes of one server.
    """
    notes: list[Note] = []
    told: dict[str, list[tuple[ServerSample, SourceKind]]] = {}
    saved: dict[EngineKind, list[ServerSample]] = {}
    mains: dict[str, EngineKind] = {}
    for scrape in scrapes:
        server, kind = scrape.source.server, scrape.source.kind
        for sample in scrape.samples:
            name = server or sample.source
            if _is_around(sample.engine, mains.get(name)):
                notes.append(Note(kind=GROUPED, text=_AROUND.format(name)))
                continue
            if sample.engine is not mains.setdefault(name, sample.engine):
                name = f"{name} ({sample.engine.value})"
            named = msgspec.structs.replace(sample, source=name)
            if not server and kind is SourceKind.FILE:
                saved.setdefault(sample.engine, []).append(named)
            else:
                told.setdefault(name, []).append((named, kind))
    servers = [_joined(found, between_s, notes) for found in told.values()]
    for mine in (series for found in saved.values() for series in _series_of(found)):
        if len(mine) > 1:
            notes.append(Note(kind=GROUPED, text=_guessed(mine)))
        one = [msgspec.structs.replace(sample, source=mine[-1].source) for sample in mine]
        servers.append(_in_time(one, between_s, notes))
    return Grouped(servers=tuple(servers), notes=tuple(notes))


def _is_around(engine: EngineKind, main: EngineKind | None) -> bool:
    """Say whether a page's worker only wraps the engine that the page tells of."""
    outside = (None, EngineKind.DYNAMO_WORKER, EngineKind.DYNAMO_FRONTEND)
    return engine is EngineKind.DYNAMO_WORKER and main not in outside


def _joined(
    found: Sequence[tuple[ServerSample, SourceKind]], between_s: float | None, notes: list[Note]
) -> Series:
    """Return saved and live samples of one server: the saved ones are the earlier."""
    files = [sample for sample, kind in found if kind is SourceKind.FILE]
    live = tuple(sample for sample, kind in found if kind is not SourceKind.FILE)
    earlier = _in_time(files, between_s, notes)
    return Series(samples=earlier.samples + live, timed=earlier.timed)


def _guessed(found: Sequence[ServerSample]) -> str:
    names = ", ".join(sample.source for sample in found)
    return (
        f"{names} were read as scrapes of one server in the order given, for engine, model and ranks agree and the "
        "counters fit; write NAME=FILE before each to say which server it is of"
    )


def _in_time(found: Sequence[ServerSample], between_s: float | None, notes: list[Note]) -> Series:
    """Return saved samples with times that rise in the order given."""
    if len(found) < 2:
        return Series(samples=tuple(found), timed=True)
    apart = between_s
    timed = all(
        later.at_s - earlier.at_s >= FILES_APART_S_MIN for earlier, later in pairwise(found)
    )
    if apart is None and timed:
        length_s = found[-1].at_s - found[0].at_s
        text = (
            f"the scrapes of {found[-1].source} are {length_s:,.0f} s apart by the times of their files; "
            "--between SECONDS says it where files were copied"
        )
        notes.append(Note(kind=GROUPED, text=text))
        return Series(samples=tuple(found), timed=True)
    if apart is None:
        text = (
            f"how far apart the scrapes of {found[-1].source} are is unknown, and so are rates; "
            "--between SECONDS tells"
        )
        notes.append(Note(kind=GROUPED, text=text))
    last_s, step_s = found[-1].at_s, apart if apart is not None else FILES_APART_S_MIN
    spaced = tuple(
        msgspec.structs.replace(sample, at_s=last_s - step_s * (len(found) - 1 - index))
        for index, sample in enumerate(found)
    )
    return Series(samples=spaced, timed=apart is not None)


def _series_of(saved: Sequence[ServerSample]) -> list[list[ServerSample]]:
    series: list[list[ServerSample]] = []
    for sample in saved:
        mine = next((found for found in series if _continues(found[-1], sample)), None)
        if mine is None:
            series.append([sample])
        else:
            mine.append(sample)
    return series


def _continues(earlier: ServerSample, later: ServerSample) -> bool:
    if (earlier.engine, earlier.model) != (later.engine, later.model):
        return False
    ranks = {rank.rank for rank in earlier.ranks} & {rank.rank for rank in later.ranks}
    if not ranks:
        return False
    restarted = False
    if earlier.started_at_s is not None and later.started_at_s is not None:
        restarted = abs(earlier.started_at_s - later.started_at_s) > SAME_START_S
        if not restarted:
            return True
    before, after = _grown(earlier), _grown(later)
    shared = [key for key in before if key in after]
    up = any(after[key] > before[key] for key in shared)
    down = any(after[key] < before[key] for key in shared)
    # Another start with counters that did not fall is another server.
    return down and not up if restarted else not (up and down)


def _grown(sample: ServerSample) -> Mapping[tuple[str, Counter | Distribution], float]:
    counters: dict[tuple[str, Counter | Distribution], float] = {}
    for rank in sample.ranks:
        counters |= {(rank.rank, name): value for name, value in rank.counters.items()}
        counters |= {(rank.rank, name): each.total for name, each in rank.distributions.items()}
    return counters
