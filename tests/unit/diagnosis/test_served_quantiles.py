"""Quantiles are told no finer than a bucket, and never as the last edge."""

import math

from trimtab.core.served import Buckets
from trimtab.diagnosis.served_quantiles import (
    edges_differ,
    mean_of,
    merged_buckets,
    quantile_of,
)


def test_rank_in_the_last_bucket_lies_above_the_edge() -> None:
    """Of 11,008 first tokens 2,513 came within 30 s: the median is above 30 s, never 30 s."""
    slow = Buckets(edges=(10.0, 30.0), cumulative=(1_330.0, 2_513.0), total=11_008.0)
    for level in (0.5, 0.99):
        found = quantile_of(slow, level)
        assert found is not None
        assert (found.low, found.high, found.above_edge) == (30.0, math.inf, True)
        assert found.interpolated is None
    early = quantile_of(slow, 0.2)
    assert early is not None
    assert (early.low, early.high, early.above_edge) == (10.0, 30.0, False)


def test_quantile_carries_its_bucket() -> None:
    """All lengths in (100, 210] with mean 108: p99 lies between 100 and 210, and 208.9 is a guess."""
    lengths = Buckets(
        edges=(0.0, 100.0, 210.0, 430.0),
        cumulative=(0.0, 0.0, 170_450.0, 170_450.0),
        total=170_450.0,
        sum=18_408_629.0,
    )
    found = quantile_of(lengths, 0.99)
    assert found is not None
    assert (found.low, found.high, found.width) == (100.0, 210.0, 110.0)
    assert found.interpolated is not None
    assert round(found.interpolated, 1) == 208.9
    assert round(mean_of(lengths) or 0.0, 1) == 108.0


def test_interval_holds_the_sampling_error_too() -> None:
    """Twenty samples do not fix a median to one bucket; twenty thousand do."""
    few = Buckets(edges=(1.0, 2.0, 3.0, 4.0), cumulative=(5.0, 11.0, 15.0, 20.0), total=20.0)
    many = Buckets(
        edges=few.edges, cumulative=tuple(1_000 * each for each in few.cumulative), total=20_000.0
    )
    small, large = quantile_of(few, 0.5), quantile_of(many, 0.5)
    assert small is not None
    assert large is not None
    assert (small.low, small.high) == (large.low, large.high) == (1.0, 2.0)
    assert (small.interval.low, small.interval.high) == (1.0, 4.0)
    assert (large.interval.low, large.interval.high) == (1.0, 2.0)


def test_histograms_are_merged_before_quantiles() -> None:
    """The p99 of two ranks is that of their requests together, not the mean of two p99s."""
    fast = Buckets(edges=(1.0, 10.0), cumulative=(990.0, 990.0), total=990.0, sum=500.0)
    slow = Buckets(edges=(1.0, 10.0), cumulative=(0.0, 5.0), total=10.0, sum=80.0)
    merged = merged_buckets([fast, slow])
    assert merged == Buckets(edges=(1.0, 10.0), cumulative=(990.0, 995.0), total=1_000.0, sum=580.0)
    found = quantile_of(merged, 0.99)
    assert found is not None
    assert (found.low, found.high) == (0.0, 1.0)


def test_other_edges_are_merged_where_both_have_them() -> None:
    """Counts are exact at common edges only; a quantile gets a wider bucket instead of a wrong one."""
    one = Buckets(edges=(1.0, 2.0, 4.0), cumulative=(1.0, 2.0, 3.0), total=4.0, sum=9.0)
    other = Buckets(edges=(1.0, 3.0, 4.0, 8.0), cumulative=(1.0, 2.0, 2.0, 2.0), total=2.0, sum=3.0)
    assert edges_differ([one, other])
    assert merged_buckets([one, other]) == Buckets(
        edges=(1.0, 4.0), cumulative=(2.0, 5.0), total=6.0, sum=12.0
    )


def test_rank_without_samples_changes_no_edges() -> None:
    """An idle rank of another version neither widens buckets nor hides the sum."""
    idle = Buckets(edges=(5.0,), cumulative=(0.0,), total=0.0)
    busy = Buckets(edges=(1.0, 2.0), cumulative=(1.0, 2.0), total=2.0, sum=3.0)
    assert merged_buckets([idle, busy]) == busy
    assert not edges_differ([idle, busy])


def test_nothing_counted_has_no_quantile_and_no_mean() -> None:
    """Without samples or without edges a quantile is None; a mean needs a sum."""
    empty = Buckets(edges=(1.0,), cumulative=(0.0,), total=0.0, sum=0.0)
    summary = Buckets(edges=(), cumulative=(), total=4.0, sum=8.0)
    assert (quantile_of(empty, 0.5), mean_of(empty)) == (None, None)
    assert (quantile_of(summary, 0.5), mean_of(summary)) == (None, 2.0)
    assert merged_buckets([]) is None
