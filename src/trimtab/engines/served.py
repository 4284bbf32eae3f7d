"""A page of metrics of a server that somebody else runs, read into the nouns of `core.served`.

The engine is found by its names. Where a page has names of several, the engine itself goes before whoever stands in
front of it, and that before exporters of devices; what else is on the page is named in a note, and `read_samples`
reads each of them. Ranks keep apart: "" is what a page says of the whole server.
"""

import math
from collections.abc import Sequence

import msgspec

from trimtab.core.served import EngineKind, Gauge, RankSample, ServerSample
from trimtab.engines import (
    served_names_devices,
    served_names_dynamo,
    served_names_llamacpp,
    served_names_sglang,
    served_names_tgi,
    served_names_trtllm,
    served_names_vllm,
)
from trimtab.engines.scrape import Scrape, read_scrape
from trimtab.engines.served_derive import derive
from trimtab.engines.served_names import STARTED, NameTable
from trimtab.engines.served_notes import NoteBook
from trimtab.engines.served_rows import PageReading, read_rows
from trimtab.engines.served_series import RankedSeries, rank_order

_ENGINES = (
    served_names_vllm.TABLE,
    served_names_sglang.TABLE,
    served_names_trtllm.TABLE,
    served_names_tgi.TABLE,
    served_names_llamacpp.TABLE,
)
_AROUND = (
    served_names_dynamo.FRONTEND,
    served_names_dynamo.WORKER,
    served_names_dynamo.WORKERS_OF_FRONTEND,
    served_names_devices.DCGM,
    served_names_devices.NODE,
)
TABLES: tuple[NameTable, ...] = (*_ENGINES, *_AROUND)
_ENGINE_KINDS = frozenset(table.engine for table in _ENGINES)
_KNOWN = tuple((table, table.wanted()) for table in TABLES)
WANTED = frozenset({STARTED}).union(*(wanted for _, wanted in _KNOWN))
"""The full names of all series that any table can use."""


class Sighting(msgspec.Struct, frozen=True):
    """What one table found on a page."""

    table: NameTable
    page: PageReading
    series: RankedSeries
    notes: NoteBook


def read_sample(body: bytes, *, source: str, at_s: float) -> ServerSample:
    """Read a page of metrics; raises `EngineFormatError` for what is none or is beyond the limits.

    A page without a known name gives a sample of an unknown engine, without ranks.
    """
    return sample_of_scrape(read_scrape(body, wanted=WANTED), source=source, at_s=at_s)


def read_samples(body: bytes, *, source: str, at_s: float) -> tuple[ServerSample, ...]:
    """Read a page of metrics into a sample for every engine or exporter on it, the engine first."""
    return samples_of_scrape(read_scrape(body, wanted=WANTED), source=source, at_s=at_s)


def sample_of_scrape(scrape: Scrape, *, source: str, at_s: float) -> ServerSample:
    """Return the first of `samples_of_scrape`, with a note of what else is on the page."""
    first, *others = samples_of_scrape(scrape, source=source, at_s=at_s)
    if not others:
        return first
    notes = NoteBook()
    notes.add_all(first.notes)
    kind = "conflict" if any(other.engine in _ENGINE_KINDS for other in others) else "limit"
    names = ", ".join(sorted({other.engine.value for other in others}))
    text = f"names of {names} are on the page too; those of {first.engine.value} were read"
    notes.add(kind, text)
    return msgspec.structs.replace(first, notes=notes.notes())


def samples_of_scrape(scrape: Scrape, *, source: str, at_s: float) -> tuple[ServerSample, ...]:
    """Return what every table finds in parsed series; one sample of an unknown engine if none does."""
    engines = [
        one for table, wanted in _KNOWN[: len(_ENGINES)] if (one := _look(scrape, table, wanted))
    ]
    engines.sort(key=lambda one: -len(one.page.names))
    around = [
        one for table, wanted in _KNOWN[len(_ENGINES) :] if (one := _look(scrape, table, wanted))
    ]
    started_at_s = _started(scrape)
    found = tuple(
        _sample(one, scrape, source=source, at_s=at_s, started_at_s=started_at_s)
        for one in (*engines, *_with_workers(around))
    )
    if found:
        return found
    unknown = ServerSample(
        source=source,
        at_s=at_s,
        engine=EngineKind.UNKNOWN,
        started_at_s=started_at_s,
        notes=scrape.notes,
    )
    return (unknown,)


def _look(scrape: Scrape, table: NameTable, wanted: frozenset[str]) -> Sighting | None:
    if wanted.isdisjoint(scrape.series):
        return None
    notes = NoteBook()
    series = RankedSeries(scrape, table, wanted, notes)
    page = read_rows(series, table, notes)
    derive(table.engine, page, series, notes)
    return Sighting(table, page, series, notes)


def _with_workers(around: Sequence[Sighting]) -> list[Sighting]:
    """Put the workers that a front end tells of into it: what it repeats of them is theirs to say."""
    front = next((one for one in around if one.table is served_names_dynamo.FRONTEND), None)
    workers = next(
        (one for one in around if one.table is served_names_dynamo.WORKERS_OF_FRONTEND), None
    )
    if front is None or workers is None:
        return list(around)
    for gauge in (Gauge.RUNNING, Gauge.WAITING):
        if gauge.value not in workers.page.names or gauge.value not in front.page.names:
            continue
        for reading in front.page.ranks.values():
            reading.gauges.pop(gauge, None)
        name = front.page.names.pop(gauge.value)
        front.notes.add("name", "the workers' own count was read in its place", name)
    front.page.ranks.update(workers.page.ranks)
    front.page.names.update(workers.page.names)
    front.notes.add_all(workers.notes.notes())
    return [one for one in around if one is not workers]


def _sample(
    found: Sighting, scrape: Scrape, *, source: str, at_s: float, started_at_s: float | None
) -> ServerSample:
    notes = NoteBook()
    notes.add_all(scrape.notes)
    notes.add_all(found.notes.notes())
    table, series = found.table, found.series
    configured = dict(series.facts)
    for name in table.infos:
        configured = {**series.info(name), **configured}
    return ServerSample(
        source=source,
        at_s=at_s,
        engine=table.engine,
        version=_version(table, series),
        model=series.models[0] if len(series.models) == 1 else None,
        started_at_s=started_at_s,
        ranks=_ranks(found.page),
        configured=configured,
        names=found.page.names,
        notes=notes.notes(),
    )


def _ranks(page: PageReading) -> tuple[RankSample, ...]:
    return tuple(
        RankSample(
            rank=rank,
            gauges=page.ranks[rank].gauges,
            counters=page.ranks[rank].counters,
            distributions=page.ranks[rank].distributions,
            accepted_by_position=page.ranks[rank].positions,
        )
        for rank in sorted(page.ranks, key=rank_order)
        if not page.ranks[rank].is_empty
    )


def _version(table: NameTable, series: RankedSeries) -> str | None:
    """Return what the names say of the version: no engine tells it among its metrics."""
    for rule in table.versions:
        if all(map(series.has, rule.having)) and not any(map(series.has, rule.lacking)):
            return rule.text
    return None


def _started(scrape: Scrape) -> float | None:
    """Return the latest process start on the page: an engine starts after what carries it."""
    values = [sample.value for sample in scrape.series.get(STARTED, ())]
    told = [value for value in values if 0 < value < math.inf]
    return max(told, default=None)
