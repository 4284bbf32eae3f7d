"""Mergeable quantiles of latencies in bounded memory.

Law: values fall into buckets whose edges grow by a constant factor, so every quantile is within
`relative_accuracy` of a true one, and merging adds bucket counts: merged sketches equal the sketch
of all values. Source: Masson, Rim and Lee, "DDSketch", 2019.

Regimes: 2,048 buckets at 1% cover a factor of 6e17 between the smallest and the largest value.
Failure mode: beyond that the smallest values share one bucket, and low quantiles lose their
accuracy; high ones never do.
"""

import math
from typing import Any

from ddsketch.mapping import LogarithmicMapping
from ddsketch.store import CollapsingLowestDenseStore

from trimtab.core.stats_types import Interval, check_alpha

RELATIVE_ACCURACY = 0.01
BUCKETS_MAX = 2_048
# Smaller values are zeros: a gap between two chunks of one read is 0 ms, and 0 has no logarithm.
_ZERO_BELOW = 1e-9


class SketchError(ValueError):
    """A value, a quantile or a record that a sketch cannot take; the message names it."""


class LatencySketch:
    """Counts of values >= 0 by bucket; the unit is the caller's. One writer."""

    def __init__(self) -> None:
        self._mapping = LogarithmicMapping(RELATIVE_ACCURACY)
        self._store = CollapsingLowestDenseStore(BUCKETS_MAX)
        self._zeros = 0
        self._count = 0
        self._sum = 0.0

    @property
    def count(self) -> int:
        """The number of values."""
        return self._count

    @property
    def mean(self) -> float | None:
        """The exact mean; None without values."""
        return self._sum / self._count if self._count else None

    def add(self, value: float) -> None:
        """Count one value. Raises `SketchError` unless it is finite and not negative."""
        if not (math.isfinite(value) and value >= 0.0):
            raise SketchError(f"a sketch takes finite values >= 0, got {value}")
        if value < _ZERO_BELOW:
            self._zeros += 1
        else:
            self._store.add(self._mapping.key(value))
        self._count += 1
        self._sum += value

    def merge(self, other: "LatencySketch") -> None:
        """Add the counts of `other`, which stays as it is."""
        if other._count > other._zeros:
            self._store.merge(other._store)
        self._zeros += other._zeros
        self._count += other._count
        self._sum += other._sum

    def quantile(self, q: float) -> float | None:
        """Return the value at rank q * (count - 1), to `RELATIVE_ACCURACY`; None without values.

        Raises `SketchError` unless `q` is between 0 and 1.
        """
        if not 0.0 <= q <= 1.0:
            raise SketchError(f"q must be a share between 0 and 1, got {q}")
        if self._count == 0:
            return None
        return self._at_rank(math.floor(q * (self._count - 1)))

    def quantile_bounds(self, q: float, alpha: float) -> Interval | None:
        """Return bounds on the true `q` quantile, each end at `alpha`; None if empty.

        For independent values and one look (ranks from the exact binomial distribution);
        `core.stats` has what may be looked at all the time. An end beyond the data is 0.0 or
        `math.inf`; ends are as exact as `quantile`. Raises `SketchError` unless 0 < q < 1,
        `StatsError` on a bad alpha.
        """
        if not 0.0 < q < 1.0:
            raise SketchError(f"q must be above 0 and below 1, got {q}")
        check_alpha(alpha)
        if self._count == 0:
            return None
        below, above = _binomial_ranks(self._count, q, alpha)
        return Interval(
            low=0.0 if below is None else self._at_rank(below),
            high=math.inf if above is None else self._at_rank(above),
            level=1.0 - 2.0 * alpha,
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the sketch as plain JSON values; empty buckets are left out."""
        return {
            "relative_accuracy": RELATIVE_ACCURACY,
            "zeros": self._zeros,
            "sum": self._sum,
            "buckets": [
                [self._store.offset + i, int(n)] for i, n in enumerate(self._store.bins) if n
            ],
        }

    @classmethod
    def from_dict(cls, record: dict[str, Any]) -> "LatencySketch":
        """Return the sketch that `to_dict` wrote. Raises `SketchError` on anything else."""
        try:
            accuracy = float(record["relative_accuracy"])
            zeros, total = int(record["zeros"]), float(record["sum"])
            buckets = [(int(key), int(n)) for key, n in record["buckets"]]
        except (KeyError, TypeError, ValueError) as error:
            raise SketchError(f"not a sketch: {type(error).__name__} at {error}") from error
        if accuracy != RELATIVE_ACCURACY:
            raise SketchError(f"relative_accuracy must be {RELATIVE_ACCURACY}, got {accuracy}")
        if len(buckets) > BUCKETS_MAX or zeros < 0 or any(n < 1 for _, n in buckets):
            raise SketchError("bucket counts must be positive and few enough")
        sketch = cls()
        for key, n in buckets:
            sketch._store.add(key, n)
        sketch._zeros = zeros
        sketch._count = zeros + sum(n for _, n in buckets)
        sketch._sum = total
        return sketch

    def _at_rank(self, rank: int) -> float:
        if rank < self._zeros:
            return 0.0
        return float(self._mapping.value(self._store.key_at_rank(rank - self._zeros)))


def _binomial_ranks(n: int, q: float, alpha: float) -> tuple[int | None, int | None]:
    """Return the ranks (from 0) of the tightest one-sided bounds; None where none suffices.

    The i-th smallest of n (from 1) exceeds the quantile with probability P(B < i), B the binomial
    count of values below it; it is a lower bound if P(B < i) <= alpha and an upper bound if P(B >=
    i) <= alpha.
    """
    middle, spread = n * q, 12.0 * math.sqrt(n * q * (1.0 - q)) + 30.0
    first, last = max(0, math.floor(middle - spread)), min(n, math.ceil(middle + spread))
    lower = upper = None
    cumulative = 0.0  # P(B < i); what lies before `first` is below 1e-15
    for i in range(first, last + 1):
        if i >= 1 and cumulative <= alpha:
            lower = i
        if i >= 1 and cumulative >= 1.0 - alpha:
            upper = i
            break
        cumulative += math.exp(_log_binomial(i, n, q))
    return (None if lower is None else lower - 1), (None if upper is None else upper - 1)


def _log_binomial(i: int, n: int, q: float) -> float:
    choose = math.lgamma(n + 1) - math.lgamma(i + 1) - math.lgamma(n - i + 1)
    return choose + i * math.log(q) + (n - i) * math.log1p(-q)
