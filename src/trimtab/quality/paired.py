"""Whether a candidate's quality lies within noise of the original's: paired intervals against a declared margin.

Law: items (or blocks of text) are scored by both arms, so each is its own control; the unit is the difference of one
item, and the interval is that of the mean difference over independent blocks. Harm is positive.
    pass   the whole interval lies at or below the margin
    fail   the whole interval lies above it
    hold   the interval holds the margin: too little was scored to tell, and it says how much would do
Items that are right or wrong are compared by the flips alone (exact, McNemar), as differences of 1, 0 and -1. Items
asked in several runs of which hardly any differs are bounded by how many do, each by one run to all of them.

Failure modes: a margin so wide that it forgives what users notice; a text that says nothing of what users send. Blocks
next to each other in one text are not quite independent.

Source: paired differences as in Miller, "Adding Error Bars to Evals", 2024; n = (z_a + z_b)^2 s^2 / d^2.
"""

import math
from collections.abc import Callable, Sequence
from enum import StrEnum
from statistics import NormalDist, stdev
from typing import Final

import msgspec

from trimtab.core.stats import Interval, mean_interval
from trimtab.core.types import Verdict

LEVEL: Final = 0.95
POWER: Final = 0.9
FLIPS_FOR_T: Final = 20
"""From so many flips on the t interval of the differences holds; fewer are judged by exact counts."""

UNITS_MIN: Final = 8
"""Fewer differences than these are never a pass: their spread is not known."""


class Direction(StrEnum):
    """Whether a larger score is worse (log loss) or better (accuracy)."""

    LOWER_IS_BETTER = "lower_is_better"
    HIGHER_IS_BETTER = "higher_is_better"


class Margin(msgspec.Struct, frozen=True, kw_only=True):
    """By how much a candidate may be worse, in the measure's own unit."""

    value: float
    unit: str
    direction: Direction


class PairedResult(msgspec.Struct, frozen=True, kw_only=True):
    """One comparison. `harm`: mean by which the candidate is worse, with its interval.

    `needed`: units that nine of ten comparisons of an equal candidate would need to pass; None where unknown.
    """

    verdict: Verdict
    because: str
    n: int
    harm: float | None
    interval: Interval | None
    margin: Margin
    base: float | None
    candidate: float | None
    needed: int | None = None
    flips_worse: int | None = None
    flips_better: int | None = None


def compare(
    base: Sequence[float],
    candidate: Sequence[float],
    margin: Margin,
    *,
    level: float = LEVEL,
) -> PairedResult:
    """Compare scores that belong together by place; raises `ValueError` for lists of unequal length.

    `level`: two-sided; a family of k comparisons is held at `family_level(k)` each.
    """
    if len(base) != len(candidate):
        raise ValueError(f"{len(base)} scores of the original, {len(candidate)} of the candidate")
    sign = 1.0 if margin.direction is Direction.LOWER_IS_BETTER else -1.0
    harms = [sign * (new - old) for old, new in zip(base, candidate, strict=True)]
    bad = sum(not math.isfinite(harm) for harm in harms)
    if bad:
        return _result(
            Verdict.ERROR, f"{bad} of {len(harms)} scores are not finite", harms, None, margin
        )
    n = len(harms)
    interval = mean_interval(harms, level=level)
    if interval is None or n < UNITS_MIN:
        words = f"{n} units, at least {UNITS_MIN} are needed to know their spread"
        return _result(Verdict.HOLD, words, harms, interval, margin, base, candidate, level)
    verdict, words = _judged(interval, margin)
    return _result(verdict, words, harms, interval, margin, base, candidate, level)


def compare_right(
    base: Sequence[bool], candidate: Sequence[bool], margin: Margin, *, level: float = LEVEL
) -> PairedResult:
    """Compare items that are right or wrong; `margin`: share of items."""
    scores = [1.0 if right else 0.0 for right in base]
    found = compare(scores, [1.0 if right else 0.0 for right in candidate], margin, level=level)
    worse = sum(old and not new for old, new in zip(base, candidate, strict=True))
    better = sum(new and not old for old, new in zip(base, candidate, strict=True))
    if worse + better < FLIPS_FOR_T and len(scores) >= UNITS_MIN:
        found = _by_counts(found, worse, better, level)
    return msgspec.structs.replace(found, flips_worse=worse, flips_better=better)


def compare_shares(
    base: Sequence[float],
    candidate: Sequence[float],
    margin: Margin,
    *,
    runs: int,
    level: float = LEVEL,
) -> PairedResult:
    """Compare items by their share of right runs (0 to 1); `runs`: of each item at most; raises as `compare` does.

    Few items that differ, or none, have a spread of nothing, which is no proof that no other item would differ.
    """
    found = compare(base, candidate, margin, level=level)
    worse = sum(new < old for old, new in zip(base, candidate, strict=True))
    better = sum(new > old for old, new in zip(base, candidate, strict=True))
    if worse + better < FLIPS_FOR_T and len(base) >= UNITS_MIN:
        return _by_counts(found, worse, better, level, least=1.0 / runs)
    return found


def _by_counts(
    found: PairedResult, worse: int, better: int, level: float, *, least: float = 1.0
) -> PairedResult:
    """Judge few flips by the exact bounds of their shares: the spread of a handful of them says nothing.

    An item that differs does so by `least` to 1.
    """
    n, tail = found.n, (1.0 - level) / 4.0
    low_worse, high_worse = exact_share(worse, n, tail=tail)
    low_better, high_better = exact_share(better, n, tail=tail)
    interval = Interval(
        low=least * low_worse - high_better, high=high_worse - least * low_better, level=level
    )
    verdict, words = _judged(interval, found.margin)
    needed = found.needed
    if worse + better == 0 and found.margin.value > 0.0:
        needed = math.ceil(-math.log(tail) / found.margin.value)
    return msgspec.structs.replace(
        found,
        verdict=verdict,
        because=f"{worse} of {n} items got worse, {better} better: {words}",
        interval=interval,
        needed=needed,
    )


def exact_share(count: int, n: int, *, tail: float) -> tuple[float, float]:
    """Return the bounds of a share of which each is wrong with probability at most `tail` (Clopper and Pearson)."""

    def at_most(k: int, share: float) -> float:
        return math.fsum(
            math.comb(n, i) * share**i * (1.0 - share) ** (n - i) for i in range(k + 1)
        )

    low = 0.0 if count == 0 else _root(lambda share: 1.0 - at_most(count - 1, share) - tail)
    high = 1.0 if count == n else _root(lambda share: tail - at_most(count, share))
    return low, high


def _root(rising: Callable[[float], float]) -> float:
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if rising(middle) < 0.0 else (low, middle)
    return 0.5 * (low + high)


def units_needed(
    spread: float, margin: float, *, level: float = LEVEL, power: float = POWER
) -> int | None:
    """Return how many units let an equal candidate pass with `power`; None where no number does.

    `spread`: standard deviation of a unit's difference.
    """
    if margin <= 0.0 or not math.isfinite(spread):
        return None
    z = NormalDist().inv_cdf(0.5 + 0.5 * level) + NormalDist().inv_cdf(power)
    return max(UNITS_MIN, math.ceil((z * spread / margin) ** 2))


def spread_told(units: int, margin: float, *, level: float = LEVEL, power: float = POWER) -> float:
    """Return the spread of a unit's difference up to which an equal candidate passes with `power`."""
    z = NormalDist().inv_cdf(0.5 + 0.5 * level) + NormalDist().inv_cdf(power)
    return margin * math.sqrt(units) / z


def family_level(comparisons: int, level: float = LEVEL) -> float:
    """Return the level of each of several comparisons so that all of them hold at `level` at once (Bonferroni)."""
    return 1.0 - (1.0 - level) / max(1, comparisons)


def _judged(interval: Interval, margin: Margin) -> tuple[Verdict, str]:
    bounds = f"[{interval.low:+.4f}, {interval.high:+.4f}] {margin.unit}"
    if interval.high <= margin.value:
        return Verdict.PASS, f"worse by {bounds}, within the margin of {margin.value:g}"
    if interval.low > margin.value:
        return Verdict.FAIL, f"worse by {bounds}, beyond the margin of {margin.value:g}"
    return Verdict.HOLD, f"worse by {bounds}, which holds the margin of {margin.value:g}"


def _result(
    verdict: Verdict,
    because: str,
    harms: Sequence[float],
    interval: Interval | None,
    margin: Margin,
    base: Sequence[float] = (),
    candidate: Sequence[float] = (),
    level: float = LEVEL,
) -> PairedResult:
    finite = bool(harms) and all(math.isfinite(harm) for harm in harms)
    needed = None
    if finite and len(harms) > 1:
        needed = units_needed(stdev(harms), margin.value, level=level)
    return PairedResult(
        verdict=verdict,
        because=because,
        n=len(harms),
        harm=math.fsum(harms) / len(harms) if finite else None,
        interval=interval,
        margin=margin,
        base=math.fsum(base) / len(base) if base else None,
        candidate=math.fsum(candidate) / len(candidate) if candidate else None,
        needed=needed,
    )
