"""The series of one engine's names on a page, by rank, with what repeats or only splits a total left out."""

from collections.abc import Callable, Mapping, Sequence

from trimtab.core.ports import EngineFormatError
from trimtab.engines.prom import Sample
from trimtab.engines.scrape import Scrape
from trimtab.engines.served_names import HISTOGRAM_PARTS, NameTable, Source
from trimtab.engines.served_notes import NoteBook

RANKS_MAX = 2048
FACTS_MAX = 16
_NO_SERIES: Mapping[str, tuple[Sample, ...]] = {}


def rank_order(rank: str) -> tuple[bool, int, str]:
    """Sort ranks as numbers where they are numbers."""
    return (not rank.isdecimal(), int(rank[:18]) if rank.isdecimal() else 0, rank)


class RankedSeries:
    """Finds names of a table on a page, in any spelling, and gives their series by rank."""

    def __init__(
        self, scrape: Scrape, table: NameTable, wanted: frozenset[str], notes: NoteBook
    ) -> None:
        self._series = scrape.series
        self._table = table
        self._notes = notes
        mine = [one for name, found in scrape.series.items() if name in wanted for one in found]
        self.facts = _facts(mine, table.facts)
        self.models = sorted({model for sample in mine if (model := self._model(sample.labels))})
        self.is_split = self._finds_split(mine)
        if len(self.models) > 1:
            notes.add("conflict", f"the page speaks of {len(self.models)} models: each is a rank")

    def plain(self, source: Source) -> tuple[str, Mapping[str, Sequence[Sample]]] | None:
        """Return a metric's name on the page and its series by rank; None if it is absent."""
        for full in self._table.spellings(source.name):
            if found := self._ranked(full, source):
                return full, found
        return None

    def histogram(
        self, source: Source
    ) -> tuple[str, Mapping[str, Mapping[str, Sequence[Sample]]]] | None:
        """Return a histogram's name and, for each rank, its `_bucket`, `_sum` and `_count` series."""
        for base in self._table.histogram_spellings(source.name):
            by_rank: dict[str, dict[str, Sequence[Sample]]] = {}
            for part in HISTOGRAM_PARTS:
                for rank, samples in self._ranked(base + part, source).items():
                    by_rank.setdefault(rank, {})[part] = samples
            if by_rank:
                return base, by_rank
        return None

    def info(self, name: str) -> Mapping[str, str]:
        """Return the labels of an info metric, of its lowest rank, without those that name the rank."""
        found = self.plain(Source(name))
        if found is None:
            return {}
        lowest = min(found[1], key=rank_order)
        apart = {*self._table.rank_labels, *self._table.model_labels}
        labels = min(
            (dict(one.labels) for one in found[1][lowest]), key=lambda own: sorted(own.items())
        )
        return {
            key: text
            for key, text in sorted(labels.items())
            if key not in apart and text not in {"", "None"}
        }

    def infos_by_rank(self, name: str) -> Mapping[str, Mapping[str, str]]:
        """Return the labels of an info metric by rank."""
        found = self.plain(Source(name))
        return {} if found is None else {rank: own[0].labels for rank, own in found[1].items()}

    def values(self, name: str) -> Mapping[str, float]:
        """Return one finite value of a metric by rank, the largest of a rank's series."""
        found = self.plain(Source(name))
        if found is None:
            return {}
        return {
            rank: max(sample.value for sample in samples)
            for rank, samples in found[1].items()
            if all(0 <= sample.value < float("inf") for sample in samples)
        }

    def has(self, name: str) -> bool:
        """Say whether the page has a plain metric of that name, usable or not."""
        return any(full in self._series for full in self._table.spellings(name))

    def _ranked(self, full: str, source: Source) -> Mapping[str, Sequence[Sample]]:
        samples = self._series.get(full)
        if samples is None:
            return _NO_SERIES
        by_rank: dict[str, list[Sample]] = {}
        for sample in samples:
            if _counts(sample.labels, source):
                by_rank.setdefault(self.rank_of(sample.labels), []).append(sample)
        if len(by_rank) > RANKS_MAX:
            raise EngineFormatError(f"more than {RANKS_MAX} ranks on one page")
        return {rank: self._without_repeats(full, found) for rank, found in by_rank.items()}

    def rank_of(self, labels: Mapping[str, str]) -> str:
        """Return the rank that a series is of, "" if it names none."""
        table = self._table
        rank = next((labels[label] for label in table.rank_labels if labels.get(label)), "")
        if not rank and self.is_split:
            rank = labels.get(table.split_label, "")
        suffixes = [labels[label] for label in table.rank_suffix_labels if labels.get(label)]
        model = self._model(labels) if len(self.models) > 1 else ""
        return "/".join(part for part in (model, rank, *suffixes) if part)

    def _model(self, labels: Mapping[str, str]) -> str:
        return next((labels[label] for label in self._table.model_labels if labels.get(label)), "")

    def _finds_split(self, samples: Sequence[Sample]) -> bool:
        label = self._table.split_label
        if not label:
            return False
        unranked = (
            sample.labels
            for sample in samples
            if not any(sample.labels.get(name) for name in self._table.rank_labels)
        )
        return len({labels[label] for labels in unranked if labels.get(label)}) > 1

    def _without_repeats(self, full: str, samples: Sequence[Sample]) -> Sequence[Sample]:
        if len(samples) < 2:
            return samples
        for label in self._table.total_labels:
            totals = [sample for sample in samples if sample.labels.get(label) == ""]
            samples = totals or samples
        mirrors = self._table.mirror_labels
        if not mirrors:
            return samples
        lowest = min(map(_place(mirrors), samples))
        kept = [sample for sample in samples if _place(mirrors)(sample) == lowest]
        if len(kept) < len(samples):
            text = "ranks that repeat one another are on the page: the lowest of them was read"
            self._notes.add("limit", text, full)
        return kept


def _facts(samples: Sequence[Sample], labels: Mapping[str, str]) -> Mapping[str, str]:
    """Return the values of labels that describe the server, by the name they get."""
    told = {
        ours: sorted({text for sample in samples if (text := sample.labels.get(theirs))})
        for theirs, ours in labels.items()
    }
    return {ours: ", ".join(texts[:FACTS_MAX]) for ours, texts in told.items() if texts}


def _counts(labels: Mapping[str, str], source: Source) -> bool:
    if source.having and source.having not in labels:
        return False
    if source.lacking and source.lacking in labels:
        return False
    if any(labels.get(label) not in values for label, values in source.only.items()):
        return False
    return not any(labels.get(label) in values for label, values in source.but.items())


def _place(labels: Sequence[str]) -> Callable[[Sample], tuple[tuple[bool, int, str], ...]]:
    return lambda sample: tuple(rank_order(sample.labels.get(label, "")) for label in labels)
