"""Sequential comparison of two arms, for gates that look after every block and see few samples.

Law: requests in one time block share its load, so the unit of evidence is a pair of blocks
(switchback) or one window seen by both arms (side by side), reduced to one log ratio. Each unit is
a coin flip for "the ratio is below r"; `core.stats_betting` says how much capital the flips so far
have made. A bound is a ratio at which the capital has ever reached 1/alpha, so it holds at every
look at once, whatever decided to look or to stop.

Assumed: given the past, the median of a unit's log ratio does not depend on it. That holds for any
autocorrelation and any tail when the order of arms within a pair is drawn at random, and nearly so
when it alternates. Requests belong to the block of their arrival, and a block is passed in when it
is complete: a unit whose values change after it was looked at is not covered.

Failure modes: a median that moves (warming caches, drift) can make the bounds contradict each
other, which is reported as `drifted`; five units or fewer never exclude anything at alpha = 0.05.

Proportions are in `core.stats_proportions`, summaries for reports in `core.stats_summary`; import
all from here.
"""

import math
from collections.abc import Iterable, Sequence
from itertools import groupby

from trimtab.core.stats_betting import (
    crossing_probabilities,
    log_wealth,
    units_needed,
)
from trimtab.core.stats_proportions import (
    difference_bounds,
    difference_e_value,
    discordance_e_value,
    exact_no_harm,
    proportion_bounds,
)
from trimtab.core.stats_running import PairBuilder, RunningRatio
from trimtab.core.stats_summary import mean_interval, percentile, ratio_interval
from trimtab.core.stats_types import (
    Interval,
    Observation,
    RatioEstimate,
    StatsError,
    Unit,
    exp_clamped,
)

__all__ = [
    "Interval",
    "Observation",
    "PairBuilder",
    "RatioEstimate",
    "RunningRatio",
    "StatsError",
    "Unit",
    "crossing_probabilities",
    "difference_bounds",
    "difference_e_value",
    "discordance_e_value",
    "e_max_above",
    "e_max_below",
    "e_value_above",
    "e_value_below",
    "exact_no_harm",
    "mean_interval",
    "pair_units",
    "percentile",
    "proportion_bounds",
    "ratio_estimate",
    "ratio_interval",
    "units_needed",
]


def pair_units(observations: Iterable[Observation], *, min_per_arm: int = 1) -> tuple[Unit, ...]:
    """Close a unit after each block by which both arms have `min_per_arm` observations.

    Serves switchback (blocks of one arm) and side by side (blocks of both). Only counts decide
    where a unit closes, never values; the order within a block does not matter; an unfinished tail
    is no unit. `log_ratio` is candidate's minus baseline's mean(log(mean of a group)): each arm is cut in
    order of arrival into groups of the smaller arm's size, because the mean of few skewed values
    tends to lie lower than that of many. Raises `StatsError` that names the observation whose
    value is not a positive finite number or whose arm is unknown.
    """
    if min_per_arm < 1:
        raise StatsError(f"min_per_arm must be at least 1, got {min_per_arm}")
    builder = PairBuilder(min_per_arm)
    units: list[Unit] = []
    for block, group in groupby(sorted(observations, key=_place), key=_block):
        arms: dict[str, list[float]] = {"baseline": [], "candidate": []}
        for observation in group:
            _arm_values(arms, observation).append(observation.value)
        unit = builder.take(block, arms["baseline"], arms["candidate"])
        if unit is not None:
            units.append(unit)
    return tuple(units)


def ratio_estimate(units: Sequence[Unit], *, alpha: float = 0.05) -> RatioEstimate:
    """Estimate candidate over baseline with an interval that holds at every look.

    `interval` joins two one-sided bounds, each at `alpha`, so its level is 1 - 2 * alpha: harm
    beyond a margin is excluded at `alpha` when `interval.high` <= 1 + margin, and shown when
    `interval.low` > 1 + margin. The bounds are running extremes over all prefixes of `units`, so
    they only ever tighten. An open end is 0.0 or `math.inf`. Raises `StatsError` on a bad alpha.
    """
    running = RunningRatio((alpha,))
    for unit in units:
        running.add(unit)
    return running.estimate(alpha)


def e_value_below(units: Sequence[Unit], ratio: float) -> float:
    """Return the evidence of all units that the median ratio is below `ratio`.

    Under "it is not" the expectation is at most 1 at every number of units. A unit at exactly
    `ratio` counts against. Raises `StatsError` unless `ratio` is a positive finite number.
    """
    threshold = _log_of(ratio)
    return _evidence([unit.log_ratio < threshold for unit in units])


def e_value_above(units: Sequence[Unit], ratio: float) -> float:
    """Return the evidence that the median ratio is above `ratio`; see `e_value_below`."""
    threshold = _log_of(ratio)
    return _evidence([unit.log_ratio > threshold for unit in units])


def e_max_below(units: Sequence[Unit], ratio: float) -> float:
    """Return the largest evidence that any prefix of `units` gave for a median ratio below `ratio`.

    Under "it is not" this ever reaches 1/alpha with probability at most alpha (Ville). 1.0 without
    units.
    """
    threshold = _log_of(ratio)
    return _evidence_max([unit.log_ratio < threshold for unit in units])


def e_max_above(units: Sequence[Unit], ratio: float) -> float:
    """Return the largest evidence of any prefix for a ratio above; see `e_max_below`."""
    threshold = _log_of(ratio)
    return _evidence_max([unit.log_ratio > threshold for unit in units])


def _block(observation: Observation) -> int:
    return observation.block


def _place(observation: Observation) -> tuple[int, float, float]:
    return observation.block, observation.at_s, observation.value


def _arm_values(arms: dict[str, list[float]], observation: Observation) -> list[float]:
    where = f"observation in block {observation.block} at {observation.at_s} s"
    if observation.arm not in arms:
        raise StatsError(f'{where}: arm must be "baseline" or "candidate", got {observation.arm!r}')
    if not (math.isfinite(observation.value) and observation.value > 0.0):
        raise StatsError(
            f"{where}, {observation.arm}: value must be a positive finite number, got {observation.value}"
        )
    return arms[observation.arm]


def _evidence(flips: Sequence[bool]) -> float:
    wins = sum(flips)
    return exp_clamped(log_wealth(wins, len(flips) - wins))


def _evidence_max(flips: Sequence[bool]) -> float:
    wins = 0
    best = 0.0
    for n, flip in enumerate(flips, start=1):
        if flip:  # a loss only lowers the capital
            wins += 1
            best = max(best, log_wealth(wins, n - wins))
    return exp_clamped(best)


def _log_of(ratio: float) -> float:
    if not (math.isfinite(ratio) and ratio > 0.0):
        raise StatsError(f"ratio must be a positive finite number, got {ratio}")
    return math.log(ratio)
