"""Mergeable quantiles."""

import json
import math
import random

import pytest

from trimtab.core.sketch import (
    BUCKETS_MAX,
    RELATIVE_ACCURACY,
    LatencySketch,
    SketchError,
)
from trimtab.core.stats import Interval, StatsError


def sketch_of(*values: float) -> LatencySketch:
    sketch = LatencySketch()
    for value in values:
        sketch.add(value)
    return sketch


def test_empty_sketch_knows_nothing() -> None:
    """Absent is unknown, never zero."""
    empty = LatencySketch()
    assert (
        empty.count,
        empty.mean,
        empty.quantile(0.5),
        empty.quantile_bounds(0.5, 0.05),
    ) == (0, None, None, None)


@pytest.mark.parametrize("q", [0.0, 0.01, 0.5, 0.95, 0.99, 1.0])
def test_quantiles_are_within_the_relative_accuracy(q: float) -> None:
    """Heavy-tailed values, against the sorted list."""
    rng = random.Random(3)
    values = sorted(math.exp(rng.gauss(3.0, 2.0)) for _ in range(5_000))
    quantile = sketch_of(*values).quantile(q)
    assert pytest.approx(values[math.floor(q * 4_999)], rel=RELATIVE_ACCURACY) == quantile


def test_mean_and_count_are_exact() -> None:
    """They come from the values, not from the buckets."""
    sketch = sketch_of(1.0, 2.0, 6.0)
    assert (sketch.count, sketch.mean) == (3, 3.0)


def test_zero_is_a_value() -> None:
    """Two chunks of one read have a gap of 0 ms, which ranks below all others."""
    sketch = sketch_of(0.0, 0.0, 0.0, 5.0)
    assert (sketch.quantile(0.0), sketch.quantile(0.5)) == (0.0, 0.0)
    assert pytest.approx(5.0, rel=RELATIVE_ACCURACY) == sketch.quantile(1.0)


def test_merging_leaves_the_other_as_it_is() -> None:
    """A merge copies: later values of one sketch do not appear in the other."""
    into, other = LatencySketch(), sketch_of(5.0, 0.0)
    into.merge(other)
    into.add(7.0)
    assert (into.count, other.count) == (3, 2)
    assert other.to_dict() == sketch_of(5.0, 0.0).to_dict()


def test_sketch_survives_storage() -> None:
    """Through JSON and back: same counts, same quantiles, still mergeable."""
    sketch = sketch_of(0.0, 0.2, 3.0, 3.0, 9000.0)
    restored = LatencySketch.from_dict(json.loads(json.dumps(sketch.to_dict())))
    assert sketch.to_dict() == restored.to_dict()
    assert (sketch.count, sketch.mean) == (restored.count, restored.mean)
    restored.merge(sketch)
    assert restored.count == 10


def test_size_is_bounded_whatever_the_range() -> None:
    """Thirty orders of magnitude collapse the smallest values; the largest keep their accuracy."""
    sketch = sketch_of(*(10.0 ** (k / 50.0) for k in range(-9 * 50, 21 * 50)))
    assert len(sketch.to_dict()["buckets"]) <= BUCKETS_MAX
    assert sketch.count == 1_500
    assert pytest.approx(10.0**20.98, rel=RELATIVE_ACCURACY) == sketch.quantile(1.0)


def test_quantile_bounds_are_the_binomial_order_statistics() -> None:
    """For 10 values and the median: the 2nd and the 9th, from P(B <= 1) = 0.0107 and P(B <= 2) = 0.0547."""
    sketch = sketch_of(*(float(2**i) for i in range(10)))
    bounds = sketch.quantile_bounds(0.5, 0.05)
    assert bounds is not None
    assert (
        pytest.approx(2.0, rel=RELATIVE_ACCURACY),
        pytest.approx(256.0, rel=RELATIVE_ACCURACY),
        0.9,
    ) == (bounds.low, bounds.high, bounds.level)


def test_quantile_bounds_stay_open_where_values_are_too_few() -> None:
    """Four values cannot bound a median at 5%."""
    assert Interval(0.0, math.inf, 0.9) == sketch_of(1.0, 2.0, 3.0, 4.0).quantile_bounds(0.5, 0.05)


def test_quantile_bounds_cover_as_often_as_they_say() -> None:
    """1,000 seeded samples of 200: each end misses the true p90 at most 5% of the time, give or take."""
    rng = random.Random(11)
    truth = -math.log(0.1)
    missed_low = missed_high = 0
    for _ in range(1_000):
        bounds = sketch_of(*(rng.expovariate(1.0) for _ in range(200))).quantile_bounds(0.9, 0.05)
        assert bounds is not None
        missed_low += bounds.low > truth * (1.0 + RELATIVE_ACCURACY)
        missed_high += bounds.high < truth * (1.0 - RELATIVE_ACCURACY)
    assert 0 < missed_low <= 71
    assert 0 < missed_high <= 71


@pytest.mark.parametrize("value", [math.nan, math.inf, -1.0])
def test_value_that_is_no_latency_is_refused(value: float) -> None:
    """Nothing is counted that cannot be ranked."""
    sketch = LatencySketch()
    with pytest.raises(SketchError, match=f"finite values >= 0, got {value}"):
        sketch.add(value)
    assert sketch.count == 0


def test_quantile_out_of_range_is_refused() -> None:
    """95 is not a share; the bounds of an extreme quantile do not exist."""
    with pytest.raises(SketchError, match="between 0 and 1, got 95"):
        sketch_of(1.0).quantile(95)
    with pytest.raises(SketchError, match=r"above 0 and below 1, got 1\.0"):
        sketch_of(1.0).quantile_bounds(1.0, 0.05)
    with pytest.raises(StatsError, match="alpha"):
        sketch_of(1.0).quantile_bounds(0.5, 0.5)


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ({}, "KeyError at 'relative_accuracy'"),
        ({"relative_accuracy": 0.02, "zeros": 0, "sum": 0, "buckets": []}, "got 0.02"),
        (
            {"relative_accuracy": 0.01, "zeros": 0, "sum": 0, "buckets": [[1, 0]]},
            "must be positive",
        ),
        ({"relative_accuracy": 0.01, "zeros": 0, "sum": 0, "buckets": [3]}, "TypeError"),
    ],
)
def test_record_of_something_else_is_refused(record: dict[str, object], message: str) -> None:
    """A stored sketch of another accuracy or shape is an error, never a wrong quantile."""
    with pytest.raises(SketchError, match=message):
        LatencySketch.from_dict(record)
