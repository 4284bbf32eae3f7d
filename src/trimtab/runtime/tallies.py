"""Counters and histograms that are added to for every request, and shown as the metrics library's own at a scrape.

The library's take a lock and look at every edge of a histogram, and a request adds to a dozen of them. These are added
to by the loop's thread alone and are read by it.
"""

from bisect import bisect_left
from collections.abc import Iterator
from typing import Final

from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

Labels = tuple[str, ...]


class CounterTally(Collector):
    """A counter for each set of labels. `name` comes without `_total`."""

    def __init__(self, name: str, what: str, labels: Labels) -> None:
        self.name: Final = name
        self._what = what
        self.labels: Final = labels
        self._values: dict[Labels, float] = {}

    def add(self, labels: Labels, amount: float) -> None:
        """Count."""
        self._values[labels] = self._values.get(labels, 0.0) + amount

    def forget(self, last: str) -> None:
        """Drop the series whose last label has this value."""
        for labels in [labels for labels in self._values if labels[-1] == last]:
            del self._values[labels]

    def collect(self) -> Iterator[Metric]:
        """See `Collector`."""
        family = CounterMetricFamily(self.name, self._what, labels=self.labels)
        for labels, value in self._values.items():
            family.add_metric(labels, value)
        yield family


class HistogramTally(Collector):
    """A histogram for each set of labels, with these upper edges and one without end."""

    def __init__(self, name: str, what: str, labels: Labels, edges: tuple[float, ...]) -> None:
        self.name: Final = name
        self._what = what
        self.labels: Final = labels
        self._edges = edges
        self._texts = (*map(floatToGoString, edges), "+Inf")
        # How many fell into each bucket, those below it not counted, and the sum last.
        self._rows: dict[Labels, list[float]] = {}

    def observe(self, labels: Labels, value: float) -> None:
        """Take in a value."""
        row = self._rows.get(labels)
        if row is None:
            row = self._rows[labels] = [0.0] * (len(self._edges) + 2)
        row[bisect_left(self._edges, value)] += 1.0
        row[-1] += value

    def forget(self, last: str) -> None:
        """Drop the series whose last label has this value."""
        for labels in [labels for labels in self._rows if labels[-1] == last]:
            del self._rows[labels]

    def collect(self) -> Iterator[Metric]:
        """See `Collector`."""
        family = HistogramMetricFamily(self.name, self._what, labels=self.labels)
        for labels, row in self._rows.items():
            below, buckets = 0.0, []
            for text, count in zip(self._texts, row, strict=False):
                below += count
                buckets.append((text, below))
            family.add_metric(labels, buckets=buckets, sum_value=row[-1])
        yield family
