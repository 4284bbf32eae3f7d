"""Units and bounds that grow block by block: what `core.stats` says of a whole sample, kept up to date.

Law: a unit that is closed never changes, and bounds are running extremes over units, so both are folds: to take in
one more block costs the same however many came before (but for the memory that a sorted list moves).

`PairBuilder` holds the values of blocks that do not make a unit yet; beyond `PENDING_MAX` of an arm the oldest go, so
that an arm that is never met costs bounded memory.
"""

import math
from bisect import bisect_right, insort
from collections.abc import Iterable, Sequence
from itertools import pairwise

from trimtab.core.stats_betting import wins_needed
from trimtab.core.stats_types import Interval, RatioEstimate, Unit, check_alpha, exp_clamped

PENDING_MAX = 5_000
"""Values of one arm that wait for the other arm's; more than these tell nothing more of a unit."""


class PairBuilder:
    """Closes a unit after each block by which both arms have `min_per_arm` values; see `core.stats.pair_units`."""

    __slots__ = ("_baseline", "_candidate", "_first", "_min")

    def __init__(self, min_per_arm: int) -> None:
        self._min = min_per_arm
        self._first: int | None = None
        self._baseline: list[float] = []
        self._candidate: list[float] = []

    def take(
        self, block: int, baseline: Sequence[float], candidate: Sequence[float]
    ) -> Unit | None:
        """Take a whole block, values in order of arrival; return the unit that it closes."""
        if not baseline and not candidate:
            return None
        self._first = block if self._first is None else self._first
        self._baseline += baseline
        self._candidate += candidate
        if min(len(self._baseline), len(self._candidate)) < self._min:
            del self._baseline[:-PENDING_MAX], self._candidate[:-PENDING_MAX]
            return None
        unit = _close(self._first, block, self._baseline, self._candidate)
        self._first, self._baseline, self._candidate = None, [], []
        return unit

    def copy(self) -> "PairBuilder":
        """Return one that goes on from here by itself."""
        made = PairBuilder(self._min)
        made._first = self._first
        made._baseline, made._candidate = list(self._baseline), list(self._candidate)
        return made


class RunningRatio:
    """Candidate over baseline from the units so far, with bounds at each of some alphas that hold at every look."""

    __slots__ = ("_bounds", "_n_baseline", "_n_candidate", "_seen")

    def __init__(self, alphas: Iterable[float]) -> None:
        self._seen: list[float] = []
        self._n_baseline = self._n_candidate = 0
        # Per alpha: low, high (logarithms), and whether they contradicted each other.
        self._bounds: dict[float, tuple[float, float, bool]] = {
            check_alpha(alpha): (-math.inf, math.inf, False) for alpha in alphas
        }

    @property
    def n_units(self) -> int:
        """Units so far."""
        return len(self._seen)

    def add(self, unit: Unit) -> None:
        """Take one more unit: with w wins needed, a median above the w-th smallest value is refuted, and one below
        the w-th largest.
        """
        seen = self._seen
        insort(seen, unit.log_ratio)
        self._n_baseline += unit.n_baseline
        self._n_candidate += unit.n_candidate
        n = len(seen)
        for alpha, (low, high, drifted) in self._bounds.items():
            wins = wins_needed(n, alpha)
            if drifted or wins > n:
                continue
            next_low, next_high = max(low, seen[-wins]), min(high, seen[wins - 1])
            contradict = next_low > next_high
            self._bounds[alpha] = (low, high, True) if contradict else (next_low, next_high, False)

    def log_low(self, alpha: float) -> float:
        """Return the logarithm of the lower bound at one of the alphas."""
        return self._bounds[alpha][0]

    def log_high(self, alpha: float) -> float:
        """Return the logarithm of the upper bound at one of the alphas."""
        return self._bounds[alpha][1]

    def log_median(self) -> float | None:
        """Return the median log ratio; None without units."""
        seen, n = self._seen, len(self._seen)
        if not n:
            return None
        return 0.5 * (seen[n // 2] + seen[(n - 1) // 2])

    def units_above_one(self) -> int:
        """Return in how many units the candidate's value was larger."""
        return len(self._seen) - bisect_right(self._seen, 0.0)

    def estimate(self, alpha: float) -> RatioEstimate:
        """Return the estimate at one of the alphas."""
        median = self.log_median()
        if median is None:
            return RatioEstimate(0, 0, 0, None, None)
        low, high, drifted = self._bounds[alpha]
        return RatioEstimate(
            n_units=len(self._seen),
            n_baseline=self._n_baseline,
            n_candidate=self._n_candidate,
            ratio=exp_clamped(median),
            interval=Interval(
                low=exp_clamped(low),
                high=math.inf if math.isinf(high) else exp_clamped(high),
                level=1.0 - 2.0 * alpha,
            ),
            drifted=drifted,
        )

    def copy(self) -> "RunningRatio":
        """Return one that goes on from here by itself."""
        made = RunningRatio(())
        made._seen, made._bounds = list(self._seen), dict(self._bounds)
        made._n_baseline, made._n_candidate = self._n_baseline, self._n_candidate
        return made


def _close(first: int, last: int, baseline: list[float], candidate: list[float]) -> Unit:
    size = min(len(baseline), len(candidate))
    log_ratio = _log_level(candidate, size) - _log_level(baseline, size)
    return Unit(first, last, len(baseline), len(candidate), log_ratio)


def _log_level(values: Sequence[float], size: int) -> float:
    """Return the mean over groups of about `size` values of the logarithm of a group's mean."""
    count = len(values) // size
    if count == 1:
        return math.log(math.fsum(values) / len(values))
    edges = [len(values) * i // count for i in range(count + 1)]
    groups = (values[start:end] for start, end in pairwise(edges))
    return math.fsum(math.log(math.fsum(group) / len(group)) for group in groups) / count
