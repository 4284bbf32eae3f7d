"""The rows of a table of names, read from a page: gauges, counters, histograms of each rank.

A reading stands under its newest name where a page has several; what the older names say is compared. A value that
cannot be (no number, infinite, negative) is left out with a note, so that it is unknown and not wrong.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence

import msgspec

from trimtab.core.served import Buckets, Counter, Distribution, Gauge
from trimtab.engines.prom import Sample
from trimtab.engines.served_buckets import buckets_of
from trimtab.engines.served_names import CounterRow, GaugeRow, NameTable, Source
from trimtab.engines.served_notes import NoteBook
from trimtab.engines.served_series import RankedSeries, rank_order

SHARE_EXCESS = 1e-6
PERCENT_MIN = 2.0
_CANNOT_BE = "a series has a value that cannot be (no number, infinite or negative) and is left out"
_AMBIGUOUS = "a value between 1 and 2 may be a full share or a small percent and is left out"


class RankReading(msgspec.Struct):
    """What was read of one rank; filled by the rows, then by what is derived from them."""

    gauges: dict[Gauge, float] = msgspec.field(default_factory=dict)
    counters: dict[Counter, float] = msgspec.field(default_factory=dict)
    distributions: dict[Distribution, Buckets] = msgspec.field(default_factory=dict)
    positions: tuple[float, ...] = ()

    @property
    def is_empty(self) -> bool:
        """Whether nothing was read."""
        return not (self.gauges or self.counters or self.distributions or self.positions)


class PageReading(msgspec.Struct):
    """What was read of all ranks, and the page's name of each value.

    `split`: the ranks are told apart by a label that may only name copies of one scheduler.
    """

    split: bool = False
    ranks: dict[str, RankReading] = msgspec.field(default_factory=dict)
    names: dict[str, str] = msgspec.field(default_factory=dict)

    def rank(self, rank: str) -> RankReading:
        """Return the reading of a rank, made when first asked for."""
        return self.ranks.setdefault(rank, RankReading())


def read_rows(series: RankedSeries, table: NameTable, notes: NoteBook) -> PageReading:
    """Read every row of a table."""
    page = PageReading(split=series.is_split)
    for gauge_row in table.gauges:
        for rank, name, value in _gauges(series, gauge_row, notes):
            page.rank(rank).gauges[gauge_row.gauge] = value
            page.names.setdefault(gauge_row.gauge.value, name)
    for counter_row in table.counters:
        read = _by_rank(series, counter_row, _sum, notes)
        for rank, name, value in read:
            page.rank(rank).counters[counter_row.counter] = value
            page.names.setdefault(counter_row.counter.value, name)
    for row in table.distributions:
        for rank, name, buckets in _distributions(series, row.sources, notes):
            page.rank(rank).distributions[row.distribution] = buckets
            page.names.setdefault(row.distribution.value, name)
    _read_positions(series, table, page, notes)
    return page


def _gauges(
    series: RankedSeries, row: GaugeRow, notes: NoteBook
) -> Iterator[tuple[str, str, float]]:
    join = _share(notes) if row.share else _largest if row.largest else _sum
    for rank, name, value in _by_rank(series, row, join, notes):
        if value or not row.zero_is_absent:
            yield rank, name, value


Join = Callable[[Source, str, Sequence[float]], float | None]


def _sum(source: Source, name: str, values: Sequence[float]) -> float | None:
    return math.fsum(values) * source.scale


def _largest(source: Source, name: str, values: Sequence[float]) -> float | None:
    return max(values) * source.scale


def _share(notes: NoteBook) -> Join:
    """Return the join of shares: the fullest counts, percents become shares."""

    def join(source: Source, name: str, values: Sequence[float]) -> float | None:
        value = max(values)
        percent = source.percent or value >= PERCENT_MIN
        if value > 100.0 * (1.0 + SHARE_EXCESS):
            notes.add("broken", "above 100 percent: left out", name)
            return None
        if not percent and value > 1.0 + SHARE_EXCESS:
            notes.add("unit", _AMBIGUOUS, name)
            return None
        if percent:
            notes.add("unit", "the page gives a percent: divided by 100", name)
            value /= 100.0
        return min(1.0, value)

    return join


def _by_rank(
    series: RankedSeries, row: GaugeRow | CounterRow, join: Join, notes: NoteBook
) -> Iterator[tuple[str, str, float]]:
    """Yield rank, name and value under the newest usable name; older ones are compared."""
    chosen: dict[str, tuple[str, float]] = {}
    for index, source in enumerate(row.sources):
        found = series.plain(source)
        if found is None:
            continue
        name, by_rank = found
        usable = dict(_usable(source, name, by_rank, join, notes))
        if row.renamed:
            _compare(name, usable, chosen, notes)
        if usable.keys() - chosen.keys():
            _remark(row, index, name, notes)
        for rank, value in usable.items():
            chosen.setdefault(rank, (name, value))
    for rank, (name, value) in chosen.items():
        yield rank, name, value


def _usable(
    source: Source,
    name: str,
    by_rank: Mapping[str, Sequence[Sample]],
    join: Join,
    notes: NoteBook,
) -> Iterator[tuple[str, float]]:
    for rank, samples in by_rank.items():
        values = [sample.value for sample in samples]
        if not all(0 <= value < math.inf for value in values):
            notes.add("broken", _CANNOT_BE, name)
            continue
        value = join(source, name, values)
        if value is not None:
            yield rank, value


def _compare(
    older: str,
    told: Mapping[str, float],
    chosen: Mapping[str, tuple[str, float]],
    notes: NoteBook,
) -> None:
    """Note where an older name contradicts what a newer one said, with its lowest rank for example."""
    differ = [rank for rank in told if rank in chosen and chosen[rank][1] != told[rank]]
    if not differ:
        return
    rank = min(differ, key=rank_order)
    newer, taken = chosen[rank]
    where = f" (rank {rank}, one of {len(differ)} that differ)" if len(differ) > 1 else ""
    text = f"{older} says {told[rank]:g} where it says {taken:g}{where}: the newer name was read"
    notes.add("conflict", text, newer)


def _remark(row: GaugeRow | CounterRow, index: int, name: str, notes: NoteBook) -> None:
    source = row.sources[index]
    if source.remark:
        notes.add("name", source.remark, name)
    if index and row.renamed:
        newest = row.sources[0].name
        notes.add("name", f"an older name; newer versions call it {newest}", name)


def _distributions(
    series: RankedSeries, sources: Sequence[Source], notes: NoteBook
) -> Iterator[tuple[str, str, Buckets]]:
    told: set[str] = set()
    for source in sources:
        found = series.histogram(source)
        if found is None:
            continue
        name, by_rank = found
        for rank, parts in by_rank.items():
            if rank in told:
                continue
            buckets = buckets_of(parts, scale=source.scale, metric=name, notes=notes)
            if buckets is None:
                continue
            told.add(rank)
            if source.remark:
                notes.add("name", source.remark, name)
            yield rank, name, buckets


def _read_positions(
    series: RankedSeries, table: NameTable, page: PageReading, notes: NoteBook
) -> None:
    for source in table.position_sources:
        found = series.plain(source)
        if found is None:
            continue
        name, by_rank = found
        for rank, samples in by_rank.items():
            positions = _positions(samples, table.position_label)
            if positions is None:
                notes.add("broken", "draft positions have a gap or no number: left out", name)
                continue
            page.rank(rank).positions = positions


def _positions(samples: Sequence[Sample], label: str) -> tuple[float, ...] | None:
    by_position: dict[int, float] = {}
    for sample in samples:
        text = sample.labels.get(label, "")
        if not (text.isascii() and text.isdigit() and 0 <= sample.value < math.inf):
            return None
        at = int(text[:9])
        by_position[at] = by_position.get(at, 0.0) + sample.value
    if sorted(by_position) != list(range(len(by_position))):
        return None
    return tuple(by_position[at] for at in range(len(by_position)))
