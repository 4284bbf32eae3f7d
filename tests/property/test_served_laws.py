"""Laws of reading servers that hold for any pages."""

import itertools
import math
import random
from collections.abc import Iterable
from enum import StrEnum
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from windows_kit import rank, scrape

from trimtab.core.evidence import Evidence
from trimtab.core.served import (
    Buckets,
    Counter,
    Distribution,
    EngineKind,
    Gauge,
    ServerSample,
)
from trimtab.diagnosis.served_names import ServedName, high_of, low_of
from trimtab.diagnosis.served_quantiles import mean_of, merged_buckets, quantile_of
from trimtab.diagnosis.served_readings import notes_of, readings_of
from trimtab.diagnosis.served_window import window_of

EDGES = (0.1, 0.5, 1.0, 5.0, 30.0)
TOLD_AS_SHARES = ("kv_used", "gpu_busy", "draft_acceptance")
"""Gauges that the reader of a page keeps within 0 to 1, and not the window."""

ODD = (math.nan, math.inf, -math.inf, -1.0, -0.0, 0.0, 1e-300, 1.0, 1e23, 1e308)


@st.composite
def histogram(draw: st.DrawFn) -> Buckets:
    """Draw values that fall into buckets as a client library would count them."""
    per_bucket = draw(st.lists(st.integers(0, 50), min_size=6, max_size=6))
    cumulative = tuple(float(each) for each in itertools.accumulate(per_bucket))
    mean = draw(st.floats(0.0, 60.0))
    return Buckets(
        edges=EDGES, cumulative=cumulative[:-1], total=cumulative[-1], sum=cumulative[-1] * mean
    )


class Maker:
    """Makes pages from a seed: whole ones, or ones with values that cannot be."""

    def __init__(self, seed: int, *, odd: bool) -> None:
        self.random = random.Random(seed)
        self.odd = odd

    def value(self) -> float:
        if self.odd and self.random.random() < 0.3:
            return self.random.choice(ODD)
        return float(self.random.randrange(10_000))

    def histogram(self) -> Buckets:
        if self.odd and self.random.random() < 0.3:
            size = self.random.randrange(4)
            edges, cumulative = (tuple(self.value() for _ in range(size)) for _ in range(2))
            return Buckets(edges=edges, cumulative=cumulative, total=self.value(), sum=self.value())
        counts = list(itertools.accumulate(float(self.random.randrange(50)) for _ in range(6)))
        total = counts.pop()
        return Buckets(
            edges=EDGES, cumulative=tuple(counts), total=total, sum=total * self.random.random()
        )

    def some(self, family: type[StrEnum]) -> list[Any]:
        return [key for key in family if self.random.random() < 0.5]

    def page(self, at_s: float) -> ServerSample:
        names = [name for name in ("0", "1", "2", "10") if self.random.random() < 0.6]
        ranks = [
            rank(
                name,
                gauges={key: self.value() for key in self.some(Gauge)},
                counters={key: self.value() for key in self.some(Counter)},
                distributions={key: self.histogram() for key in self.some(Distribution)},
                positions=tuple(self.value() for _ in range(self.random.randrange(3))),
            )
            for name in names
        ]
        return scrape(
            *ranks,
            at_s=at_s,
            started_at_s=self.random.choice([None, -50.0, at_s - 1.0]),
            engine=self.random.choice([EngineKind.VLLM, EngineKind.LLAMACPP]),
        )

    def pages(self) -> list[ServerSample]:
        return [self.page(float(at)) for at in range(self.random.randrange(1, 5))]

    def mixed(self, page: ServerSample) -> ServerSample:
        """Give the same page with ranks and families in another order."""
        ranks = [
            rank(
                each.rank,
                gauges=dict(self.shuffled(each.gauges.items())),
                counters=dict(self.shuffled(each.counters.items())),
                distributions=dict(self.shuffled(each.distributions.items())),
                positions=each.accepted_by_position,
            )
            for each in self.shuffled(page.ranks)
        ]
        return scrape(*ranks, at_s=page.at_s, started_at_s=page.started_at_s, engine=page.engine)

    def shuffled(self, items: Iterable[Any]) -> list[Any]:
        listed = list(items)
        return self.random.sample(listed, len(listed))


seeds = st.integers(0, 2**32 - 1)


@given(seeds)
def test_any_page_gives_finite_readings(seed: int) -> None:
    """Whatever stands on the pages, readings are numbers or unknown, shares are shares, names are unique."""
    window = window_of(Maker(seed, odd=True).pages())
    found = readings_of(window)
    names = [item.name for item in found.items]
    assert len(names) == len(set(names))
    assert set(ServedName) <= set(names)
    for item in found.items:
        if not isinstance(item, Evidence):
            assert item.reason
            continue
        assert math.isfinite(item.value), item
        if item.unit == "share" and not item.name.startswith(TOLD_AS_SHARES):
            assert -1e-9 <= item.value <= 1.0 + 1e-9, item
    assert all(note.text for note in notes_of(window))


@given(seeds)
def test_order_changes_nothing(seed: int) -> None:
    """Scrapes, ranks and families in any order give the same window and the same readings."""
    maker = Maker(seed, odd=False)
    pages = maker.pages()
    other = maker.shuffled(maker.mixed(page) for page in pages)
    assert readings_of(window_of(pages)) == readings_of(window_of(other))


@given(
    st.lists(
        st.dictionaries(st.sampled_from(Counter), st.integers(0, 10_000).map(float), min_size=3),
        min_size=2,
        max_size=5,
    )
)
def test_growth_is_never_negative_and_never_above_what_was_counted(values) -> None:
    """Resets or not, the window's growth lies between nothing and all that any page has counted."""
    window = window_of(
        [scrape(rank(counters=each), at_s=10.0 * at) for at, each in enumerate(values)]
    )
    for counter, grown in window.ranks[0].counters.items():
        assert 0.0 <= grown <= math.fsum(each.get(counter, 0.0) for each in values) + 1e-6
    assert window.length_s is None or 0.0 < window.length_s <= 10.0 * len(values)


@given(st.lists(st.integers(0, 1_000).map(float), min_size=2, max_size=6))
def test_growth_without_restart_is_last_minus_first(steps) -> None:
    """The scrapes in between change nothing while a counter only grows."""
    totals = list(itertools.accumulate(steps))
    pages = [
        scrape(rank(counters={Counter.OUTPUT_TOKENS: total}), at_s=float(at))
        for at, total in enumerate(totals)
    ]
    window = window_of(pages)
    assert (window.restarts, window.length_s) == (0, float(len(steps) - 1))
    assert window.ranks[0].counters[Counter.OUTPUT_TOKENS] == totals[-1] - totals[0]


@given(st.lists(st.floats(0.0, 60.0), min_size=1, max_size=300), st.floats(0.01, 0.99))
def test_bucket_holds_the_true_quantile(values, level) -> None:
    """The bucket and the guess in it agree with the values themselves."""
    counted = Buckets(
        edges=EDGES,
        cumulative=tuple(float(sum(value <= edge for value in values)) for edge in EDGES),
        total=float(len(values)),
        sum=math.fsum(values),
    )
    found = quantile_of(counted, level)
    true = sorted(values)[math.ceil(level * len(values)) - 1]
    assert found is not None
    assert found.low <= true <= found.high
    assert found.interval.low <= found.low <= found.high <= found.interval.high
    if found.interpolated is None:
        assert found.above_edge
    else:
        assert found.low <= found.interpolated <= found.high


@given(st.lists(histogram(), min_size=1, max_size=4))
def test_merging_is_adding(parts) -> None:
    """Counts and sums add up, whatever the order; the mean is that of all samples."""
    merged = merged_buckets(parts)
    assert merged is not None
    assert merged == merged_buckets(parts[::-1])
    assert merged.total == math.fsum(part.total for part in parts)
    if merged.total:
        mean = mean_of(merged)
        assert mean is not None
        assert mean * merged.total == merged.sum or math.isclose(
            mean * merged.total, merged.sum or 0.0
        )


@given(histogram(), histogram())
def test_quantile_readings_keep_their_order(first, second) -> None:
    """The median never lies above p99, and every quantile carries both ends or says that one is open."""
    parts = [
        rank(name, distributions={Distribution.TTFT: each})
        for name, each in (("0", first), ("1", second))
    ]
    found = readings_of(window_of([scrape(*parts)]))
    p50, p99 = found.value(ServedName.TTFT_MS_P50), found.value(ServedName.TTFT_MS_P99)
    if p50 is None or p99 is None:
        assert first.total + second.total == 0
        return
    assert p50 <= p99 + 1e-9
    for name in (ServedName.TTFT_MS_P50, ServedName.TTFT_MS_P99):
        low, high = found.value(low_of(name)), found.value(high_of(name))
        assert low is not None
        assert low <= (found.value(name) or 0.0)
        assert high is None or low < high
