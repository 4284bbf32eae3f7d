"""How a table of metric names is written, for one engine over all its versions.

A row says where a reading may stand: its sources, newest name first. Names are written without the engine's prefix
and without `_total`, both of which differ between clients, versions and collectors. Rows whose sources are the same
thing renamed (`renamed`) are compared where a page has several of them, and a difference is a conflict to show.
"""

from collections.abc import Mapping

import msgspec

from trimtab.core.served import Counter, Distribution, EngineKind, Gauge

MIB = 2.0**20
STARTED = "process_start_time_seconds"
HISTOGRAM_PARTS = ("_bucket", "_sum", "_count")


class Source(msgspec.Struct, frozen=True):
    """One name that a reading may have, and which of its series count.

    `scale` turns the page's unit into ours. `only` and `but` keep or drop series by a label's value; `having` and
    `lacking` by a label's presence. `remark` is a trap of this name that a reader must know.
    """

    name: str
    scale: float = 1.0
    percent: bool = False
    only: Mapping[str, frozenset[str]] = {}
    but: Mapping[str, frozenset[str]] = {}
    having: str = ""
    lacking: str = ""
    remark: str = ""


class GaugeRow(msgspec.Struct, frozen=True):
    """A gauge: a share is kept within 0 to 1; a maximum is not summed over the series of one rank."""

    gauge: Gauge
    sources: tuple[Source, ...]
    share: bool = False
    largest: bool = False
    renamed: bool = True
    zero_is_absent: bool = False


class CounterRow(msgspec.Struct, frozen=True):
    """A counter; the series of one rank are added."""

    counter: Counter
    sources: tuple[Source, ...]
    renamed: bool = True


class DistributionRow(msgspec.Struct, frozen=True):
    """A histogram, or a summary, of which only count and sum can be used."""

    distribution: Distribution
    sources: tuple[Source, ...]


class VersionRule(msgspec.Struct, frozen=True):
    """What the presence and absence of names says about a version."""

    text: str
    having: tuple[str, ...]
    lacking: tuple[str, ...] = ()


class NameTable(msgspec.Struct, frozen=True, kw_only=True):
    """All names of one engine.

    `rank_labels`: the first of them that a series has names its rank. `mirror_labels`: series that differ in them
    repeat one another, so that the lowest counts. `total_labels`: labels that are empty on a total and filled on its
    parts. `split_label`: used as rank only where series differ in it and have none of the rank labels.
    `facts`: labels that describe the server, and the name that each gets in `configured`.
    `extras`: names that derived readings and version rules need.
    """

    engine: EngineKind
    prefixes: tuple[str, ...]
    gauges: tuple[GaugeRow, ...] = ()
    counters: tuple[CounterRow, ...] = ()
    distributions: tuple[DistributionRow, ...] = ()
    position_sources: tuple[Source, ...] = ()
    position_label: str = "position"
    infos: tuple[str, ...] = ()
    extras: tuple[str, ...] = ()
    versions: tuple[VersionRule, ...] = ()
    rank_labels: tuple[str, ...] = ()
    rank_suffix_labels: tuple[str, ...] = ()
    split_label: str = ""
    mirror_labels: tuple[str, ...] = ()
    total_labels: tuple[str, ...] = ()
    model_labels: tuple[str, ...] = ()
    facts: Mapping[str, str] = {}

    def spellings(self, name: str) -> tuple[str, ...]:
        """Return every full name that a name may have on a page."""
        return tuple(
            f"{prefix}{name}{ending}" for prefix in self.prefixes for ending in ("_total", "")
        )

    def histogram_spellings(self, name: str) -> tuple[str, ...]:
        """Return the full base names of a histogram."""
        return tuple(f"{prefix}{name}" for prefix in self.prefixes)

    def plain_names(self) -> frozenset[str]:
        """Return the names of everything but histograms, unspelled."""
        rows: tuple[GaugeRow | CounterRow, ...] = (*self.gauges, *self.counters)
        names = {source.name for row in rows for source in row.sources}
        names.update(source.name for source in self.position_sources)
        return frozenset(names | {*self.infos, *self.extras})

    def wanted(self) -> frozenset[str]:
        """Return the full names of all series that this table can use."""
        plain = {full for name in self.plain_names() for full in self.spellings(name)}
        parts = {
            base + part
            for row in self.distributions
            for source in row.sources
            for base in self.histogram_spellings(source.name)
            for part in HISTOGRAM_PARTS
        }
        return frozenset(plain | parts)


def named(*names: str) -> tuple[Source, ...]:
    """Return plain sources, newest name first."""
    return tuple(Source(name) for name in names)
