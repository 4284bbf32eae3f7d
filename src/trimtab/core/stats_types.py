"""The nouns of `core.stats`: intervals, observations, units and estimates."""

import math
from typing import TYPE_CHECKING

import msgspec


class StatsError(ValueError):
    """A sample, a count or a parameter that the statistics cannot take; the message names it."""


class Interval(msgspec.Struct, frozen=True):
    """A range that covers the true value with probability `level`.

    An end that the evidence does not bound is the end of what is possible: 0.0 and `math.inf` for a
    ratio. JSON has no infinity; an infinite end is null there and comes back as it was. Raises
    `StatsError` when the ends are not in order.
    """

    # Readers only ever see floats; null exists on the way out of JSON, until __post_init__ has run.
    if TYPE_CHECKING:
        low: float
        high: float
    else:
        low: float | None
        high: float | None
    level: float

    def __post_init__(self) -> None:
        for name, open_end in (("low", -math.inf), ("high", math.inf)):
            if getattr(self, name) is None:
                msgspec.structs.force_setattr(self, name, open_end)
        if not self.low <= self.high:
            raise StatsError(f"an interval needs low <= high, got {self.low} and {self.high}")
        if not 0.0 < self.level < 1.0:
            raise StatsError(f"an interval's level must be between 0 and 1, got {self.level}")


class Observation(msgspec.Struct, frozen=True):
    """One request's value of a positive metric, in the time block in which the request arrived.

    `arm` is "baseline" or "candidate"; `value` is in the metric's own unit; `at_s` only names the
    observation.
    """

    block: int
    arm: str
    value: float
    at_s: float


class Unit(msgspec.Struct, frozen=True):
    """One piece of evidence: whole blocks, both arms, one logarithm of candidate over baseline."""

    first_block: int
    last_block: int
    n_baseline: int
    n_candidate: int
    log_ratio: float


class RatioEstimate(msgspec.Struct, frozen=True):
    """Candidate over baseline: the median over units, and where it can be.

    `interval` joins two one-sided bounds, each at the alpha that was asked for. After a drift
    (`drifted`) it is the last interval that was not empty, and the estimate describes no single
    true ratio.
    """

    n_units: int
    n_baseline: int
    n_candidate: int
    ratio: float | None
    interval: Interval | None
    drifted: bool = False


def check_alpha(alpha: float) -> float:
    """Return `alpha`; raise `StatsError` unless it is above 0 and below 0.5."""
    if not 0.0 < alpha < 0.5:
        raise StatsError(f"alpha must be above 0 and below 0.5, got {alpha}")
    return alpha


def check_counts(bad: int, n: int, *, name: str) -> None:
    """Raise `StatsError` unless 0 <= bad <= n; `name` says whose counts they are."""
    if not 0 <= bad <= n:
        raise StatsError(f"{name}: {bad} of {n} is not a count of bad requests")


def exp_clamped(exponent: float) -> float:
    """Return e**exponent, kept finite so that evidence can be compared and stored."""
    return math.exp(min(exponent, 709.0))
