"""Our counters and histograms show what the metrics library's own would."""

from collections.abc import Iterable

import pytest
from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import Metric

from trimtab.runtime.tallies import CounterTally, HistogramTally

EDGES = (0.1, 0.5, 2.0)
VALUES = [0.0, 0.1, 0.1000001, 0.5, 1.9, 2.0, 2.1, 1e9]


def shown(families: Iterable[Metric]) -> list[tuple[str, str, str, dict[str, str], float]]:
    """Return all samples, but for the times at which the library's own series began."""
    return [
        (family.name, family.type, sample.name, dict(sample.labels), sample.value)
        for family in families
        for sample in family.samples
        if not sample.name.endswith("_created")
    ]


@pytest.mark.parametrize("count", [1, 3, len(VALUES)])
def test_histogram_is_the_librarys(count: int) -> None:
    """Values on an edge, between edges and above all: the same buckets, count and sum."""
    theirs = Histogram("x_seconds", "Time.", ("arm",), buckets=EDGES, registry=CollectorRegistry())
    ours = HistogramTally("x_seconds", "Time.", ("arm",), EDGES)
    for value in VALUES[:count]:
        theirs.labels("a").observe(value)
        ours.observe(("a",), value)
    assert shown(ours.collect()) == shown(theirs.collect())


def test_counter_is_the_librarys() -> None:
    """Amounts add up for each set of labels."""
    theirs = Counter("x", "Things.", ("kind", "replica"), registry=CollectorRegistry())
    ours = CounterTally("x", "Things.", ("kind", "replica"))
    for kind, amount in (("a", 1.0), ("b", 2.5), ("a", 3.0)):
        theirs.labels(kind, "r").inc(amount)
        ours.add((kind, "r"), amount)
    assert shown(ours.collect()) == shown(theirs.collect())


def test_what_is_forgotten_has_no_series() -> None:
    """The series of one replica go, the others stay."""
    counter = CounterTally("x", "Things.", ("kind", "replica"))
    histogram = HistogramTally("y", "Time.", ("arm", "replica"), EDGES)
    for replica in ("r0", "r1"):
        counter.add(("a", replica), 1.0)
        histogram.observe(("a", replica), 1.0)
    counter.forget("r0")
    histogram.forget("r0")
    left = {
        labels["replica"] for *_, labels, _ in shown([*counter.collect(), *histogram.collect()])
    }
    assert left == {"r1"}
