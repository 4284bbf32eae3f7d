"""Summaries for reports, not for gates: they hold at one look only."""

import math
from collections.abc import Sequence
from statistics import NormalDist

from trimtab.core.stats_types import Interval, StatsError

# From here on the normal and the t quantile differ by less than 0.3%.
_NORMAL_FROM_DF = 500


def mean_interval(
    values: Sequence[float], *, level: float = 0.95, blocks: Sequence[int] | None = None
) -> Interval | None:
    """Return the t interval of the mean over independent blocks; None with fewer than two.

    `blocks` gives each value's time block; without it every value is a block of its own. For equal
    blocks this is the t interval of the block means; for unequal ones the residual of a block is
    its sum less its size times the mean (the ratio estimator of cluster sampling), so the interval
    is always around the mean of all values. Raises `StatsError` on values that are not finite, a
    level out of range, or blocks of another number.
    """
    if not 0.0 < level < 1.0:
        raise StatsError(f"level must be between 0 and 1, got {level}")
    _check_finite(values)
    labels = range(len(values)) if blocks is None else blocks
    if len(labels) != len(values):
        raise StatsError(f"{len(values)} values but {len(labels)} blocks")
    if len(set(labels)) < 2:
        return None
    mean = math.fsum(values) / len(values)
    residuals: dict[int, list[float]] = {}
    for label, value in zip(labels, values, strict=True):
        residuals.setdefault(label, []).append(value - mean)
    k = len(residuals)
    squares = math.fsum(math.fsum(block) ** 2 for block in residuals.values())
    error = math.sqrt(squares * k / (k - 1)) / len(values)
    half = t_quantile(0.5 + 0.5 * level, k - 1) * error
    return Interval(low=mean - half, high=mean + half, level=level)


def ratio_interval(
    base: Sequence[float], new: Sequence[float], *, level: float = 0.95
) -> Interval | None:
    """Return the interval of the geometric mean of new over base, paired in order; None with fewer than two pairs.

    What both of a pair met, such as a busy machine, widens nothing. Raises `ValueError` for lists of unequal length or
    values that are not positive, `StatsError` as `mean_interval` does.
    """
    logs = [math.log(after / before) for before, after in zip(base, new, strict=True)]
    found = mean_interval(logs, level=level)
    if found is None:
        return None
    return Interval(low=math.exp(found.low), high=math.exp(found.high), level=found.level)


def percentile(values: Sequence[float], q: float) -> float:
    """Return the `q` quantile (0 to 1) by linear interpolation between order statistics.

    The minimum is at 0 and the maximum at 1, as numpy does by default. Raises `StatsError` on no
    values, on values that are not finite, and on a `q` out of range, such as 95.
    """
    if not 0.0 <= q <= 1.0:
        raise StatsError(f"q must be a share between 0 and 1, got {q}")
    if not values:
        raise StatsError("no values: their percentile is unknown")
    _check_finite(values)
    ordered = sorted(values)
    rank = q * (len(ordered) - 1)
    below = math.floor(rank)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (rank - below) * (ordered[above] - ordered[below])


def t_quantile(probability: float, df: int) -> float:
    """Return the quantile of Student's t for a probability from 0.5 to below 1.

    Bisects the closed form for whole degrees of freedom (Abramowitz and Stegun, 26.7.3 and 26.7.4).
    Raises `StatsError` when an argument is out of range.
    """
    if df < 1 or not 0.5 <= probability < 1.0:
        raise StatsError(f"no t quantile at probability {probability} with {df} degrees of freedom")
    if df >= _NORMAL_FROM_DF:
        return NormalDist().inv_cdf(probability)
    low, high = 0.0, 0.5 * math.pi
    for _ in range(60):
        angle = 0.5 * (low + high)
        if 0.5 * (1.0 + _t_mass(angle, df)) < probability:
            low = angle
        else:
            high = angle
    return math.sqrt(df) * math.tan(0.5 * (low + high))


def _t_mass(angle: float, df: int) -> float:
    """Return P(|T| < t) for t = sqrt(df) * tan(angle)."""
    cos2 = math.cos(angle) ** 2
    odd = df % 2
    term = total = 1.0 if df > 1 else 0.0
    for i in range(1, df // 2):
        term *= cos2 * (2 * i - 1 + odd) / (2 * i + odd)
        total += term
    if odd:
        return 2.0 / math.pi * (angle + math.sin(angle) * math.cos(angle) * total)
    return math.sin(angle) * total


def _check_finite(values: Sequence[float]) -> None:
    for index, value in enumerate(values):
        if not math.isfinite(value):
            raise StatsError(f"value {index} is not a finite number: {value}")
