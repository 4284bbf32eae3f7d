"""Quantiles of histograms: merged bucket by bucket first, and never told finer than a bucket.

Law: the quantile at level q of n samples is the sample of rank q*n; its bucket is the first whose cumulative count
reaches that rank. What is known is the bucket, `low < value <= high`; the value inside it is a guess that assumes an
even spread. A rank in the +Inf bucket lies above the last edge: there is no upper end and no guess.

The interval around a quantile is that of order statistics: ranks q*n -/+ z*sqrt(n*q*(1-q)) fall into two buckets,
whose outer edges hold the true quantile at the level of z, whatever the distribution.

Regimes: histograms whose edges differ are merged at the edges that all of them have, where their counts are exact;
what lies between is coarser and never wrong. Failure mode: histograms without a common edge keep their mean only.
"""

import math
from collections.abc import Sequence

import msgspec

from trimtab.core.served import Buckets
from trimtab.core.stats import Interval

INTERVAL_LEVEL = 0.95
_Z = 1.959963984540054


class Quantile(msgspec.Struct, frozen=True, kw_only=True):
    """Where a quantile lies, in the unit of its histogram.

    It lies in (low, high]; `high` is infinite and `interpolated` None if it lies above the last edge. `samples`: how
    many the histogram has. `interval` holds the true quantile at its level, sampling and bucket width included.
    """

    level: float
    low: float
    high: float
    above_edge: bool
    interpolated: float | None
    samples: float
    interval: Interval

    @property
    def width(self) -> float:
        """Width of the bucket, infinite above the last edge."""
        return self.high - self.low


def merged_buckets(parts: Sequence[Buckets]) -> Buckets | None:
    """Add histograms of ranks and sources at the edges that all of them have; None of none.

    The sum is known if every part with samples tells it.
    """
    if not parts:
        return None
    counted = [part for part in parts if part.total > 0] or list(parts)
    common = set(counted[0].edges).intersection(*(part.edges for part in counted))
    edges = tuple(sorted(common))
    at = [dict(zip(part.edges, part.cumulative, strict=True)) for part in counted]
    sums = [part.sum for part in counted if part.sum is not None]
    return Buckets(
        edges=edges,
        cumulative=tuple(math.fsum(counts[edge] for counts in at) for edge in edges),
        total=math.fsum(part.total for part in counted),
        sum=math.fsum(sums) if len(sums) == len(counted) else None,
    )


def edges_differ(parts: Sequence[Buckets]) -> bool:
    """Say whether histograms with samples have different edges, so that merging them made buckets coarser."""
    return len({part.edges for part in parts if part.total > 0}) > 1


def mean_of(buckets: Buckets) -> float | None:
    """Return sum over count, None without a sum or a sample."""
    return None if buckets.sum is None or buckets.total <= 0 else buckets.sum / buckets.total


def quantile_of(buckets: Buckets, level: float) -> Quantile | None:
    """Return where the quantile at `level` (0 to 1, both excluded) lies; None without samples or edges."""
    assert 0.0 < level < 1.0, level
    if buckets.total <= 0 or not buckets.edges:
        return None
    rank = level * buckets.total
    low, high = _bucket(buckets, rank)
    spread = _Z * math.sqrt(buckets.total * level * (1.0 - level))
    lowest, _ = _bucket(buckets, max(rank - spread, 0.0))
    _, highest = _bucket(buckets, min(rank + spread + 1.0, buckets.total))
    return Quantile(
        level=level,
        low=low,
        high=high,
        above_edge=math.isinf(high),
        interpolated=_inside(buckets, rank),
        samples=buckets.total,
        interval=Interval(low=lowest, high=highest, level=INTERVAL_LEVEL),
    )


def _bucket(buckets: Buckets, rank: float) -> tuple[float, float]:
    """Return both edges of the bucket of a rank; times and lengths begin at zero."""
    low = min(0.0, buckets.edges[0])
    for edge, cumulative in zip(buckets.edges, buckets.cumulative, strict=True):
        if cumulative >= rank and cumulative > 0:
            return low, edge
        low = edge
    return low, math.inf


def _inside(buckets: Buckets, rank: float) -> float | None:
    low, below = min(0.0, buckets.edges[0]), 0.0
    for edge, cumulative in zip(buckets.edges, buckets.cumulative, strict=True):
        if cumulative >= rank and cumulative > 0:
            return low + (edge - low) * min(1.0, (rank - below) / (cumulative - below))
        low, below = edge, cumulative
    return None
