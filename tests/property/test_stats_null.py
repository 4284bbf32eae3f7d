"""How often gates are wrong when nothing changed, and how soon they are right when something did.

Each stream is looked at after every unit: the largest evidence over prefixes is what such a peeker
acts on.
"""

import math
import random
from collections.abc import Callable, Iterator

import pytest

from trimtab.core.stats import (
    Observation,
    Unit,
    difference_e_value,
    e_max_above,
    e_max_below,
    pair_units,
    proportion_bounds,
    ratio_estimate,
)

ALPHA = 0.05
STREAMS = 2_000
# Three standard errors of a share of 2,000 streams: a correct test fails here once in 700 seeds.
WRONG_MAX = ALPHA + 3.0 * math.sqrt(ALPHA * (1.0 - ALPHA) / STREAMS)

Draw = Callable[[random.Random], float]


def lognormal(rng: random.Random) -> float:
    return rng.lognormvariate(3.0, 0.8)


def pareto(rng: random.Random) -> float:
    """A tail so heavy that the mean does not exist."""
    return 20.0 * rng.paretovariate(0.9)


def lognormal_with_stalls(rng: random.Random) -> float:
    """One request in twenty waits a hundred times longer."""
    return rng.lognormvariate(3.0, 0.3) * (100.0 if rng.random() < 0.05 else 1.0)


def wrong_shares(streams: Iterator[tuple[Unit, ...]]) -> tuple[float, float]:
    """Return how often a peeker ever saw a gain, and ever saw harm, at ALPHA each."""
    below = above = n = 0
    for units in streams:
        below += e_max_below(units, 1.0) >= 1.0 / ALPHA
        above += e_max_above(units, 1.0) >= 1.0 / ALPHA
        n += 1
    assert n == STREAMS
    return below / n, above / n


def side_by_side(seed: int, draw: Draw, *, units: int, per_arm: int) -> Iterator[tuple[Unit, ...]]:
    """Yield null streams of independent requests, both arms in every block."""
    rng = random.Random(seed)
    for _ in range(STREAMS):
        yield pair_units(
            Observation(block, arm, draw(rng), float(block))
            for block in range(units)
            for arm in ("baseline", "candidate")
            for _ in range(per_arm)
        )


def switchback(
    seed: int, *, units: int, within: float, across: float
) -> Iterator[tuple[Unit, ...]]:
    """Yield null streams in which load wanders within blocks and from block to block (AR(1) both).

    The order of arms within each pair of blocks is drawn at random.
    """
    rng = random.Random(seed)
    for _ in range(STREAMS):
        observations: list[Observation] = []
        load = rng.gauss(0.0, 1.0)
        for unit in range(units):
            for block, arm in enumerate(rng.sample(["baseline", "candidate"], 2), start=2 * unit):
                load = across * load + rng.gauss(0.0, 0.3)
                noise = rng.gauss(0.0, 0.5)
                for i in range(4):
                    noise = within * noise + rng.gauss(0.0, 0.3)
                    observations.append(
                        Observation(block, arm, math.exp(3.0 + load + noise), block + 0.1 * i)
                    )
        yield pair_units(observations)


@pytest.mark.parametrize("draw", [lognormal, pareto, lognormal_with_stalls])
def test_peeking_at_equal_arms_is_rarely_wrong_whatever_the_tail(draw: Draw) -> None:
    """2,000 streams, looked at after each of 40 units: wrong on either side at most ALPHA of the time."""
    below, above = wrong_shares(side_by_side(1, draw, units=40, per_arm=2))
    assert below <= WRONG_MAX
    assert above <= WRONG_MAX


@pytest.mark.parametrize(("within", "across"), [(0.9, 0.0), (0.6, 0.5), (0.9, 0.95), (0.0, 1.0)])
def test_peeking_at_equal_arms_is_rarely_wrong_under_autocorrelation(
    within: float, across: float
) -> None:
    """Load that persists within blocks, from block to block, even as a random walk, does not fool a
    pair of blocks in random order.
    """
    below, above = wrong_shares(switchback(2, units=30, within=within, across=across))
    assert below <= WRONG_MAX
    assert above <= WRONG_MAX


def test_long_streams_are_rarely_wrong() -> None:
    """400 looks instead of 40 must not add errors beyond ALPHA: the bound is uniform in time."""
    rng = random.Random(3)
    below = above = 0
    for _ in range(STREAMS):
        units = [Unit(i, i, 1, 1, rng.gauss(0.0, 1.0)) for i in range(400)]
        interval = ratio_estimate(units, alpha=ALPHA).interval
        assert interval is not None
        below += interval.high < 1.0
        above += interval.low > 1.0
    assert 0.01 < below / STREAMS <= WRONG_MAX
    assert 0.01 < above / STREAMS <= WRONG_MAX


def test_fixed_sample_test_would_fail_here() -> None:
    """The yardstick can tell: a sign test at 5% per look is wrong in far more than 5% of the streams."""
    rng = random.Random(4)
    wrong = 0
    for _ in range(STREAMS):
        wins = 0
        for n in range(1, 101):
            wins += rng.random() < 0.5
            if n >= 10 and (2 * wins - n) > 1.645 * math.sqrt(n):
                wrong += 1
                break
    assert wrong / STREAMS > 3.0 * WRONG_MAX


def test_ratio_interval_holds_the_truth_at_every_look() -> None:
    """A true ratio of 0.8 is outside at any look in at most 2 ALPHA of 2,000 streams: each end has ALPHA."""
    rng = random.Random(5)
    missed = 0
    for _ in range(STREAMS):
        units = [Unit(i, i, 1, 1, math.log(0.8) + rng.gauss(0.0, 0.4)) for i in range(60)]
        interval = ratio_estimate(units, alpha=ALPHA).interval
        assert interval is not None
        missed += not interval.low <= 0.8 <= interval.high
    assert missed / STREAMS <= 2.0 * WRONG_MAX


def test_large_effect_is_found_within_a_few_units() -> None:
    """Half the latency with a spread of 0.4 in the log: 9 of 10 streams show it by the 12th unit."""
    rng = random.Random(6)
    found = 0
    for _ in range(500):
        units = [Unit(i, i, 1, 1, math.log(0.5) + rng.gauss(0.0, 0.4)) for i in range(12)]
        interval = ratio_estimate(units, alpha=ALPHA).interval
        assert interval is not None
        found += interval.high < 1.0
    assert found / 500 >= 0.9


def test_small_effect_is_found_within_some_hundreds_of_units() -> None:
    """60% wins: at least 85% of 300 streams show them within 407 units, the planned number for 90%."""
    rng = random.Random(7)
    found = 0
    for _ in range(300):
        units = [Unit(i, i, 1, 1, -1.0 if rng.random() < 0.6 else 1.0) for i in range(407)]
        found += e_max_below(units, 1.0) >= 1.0 / ALPHA
    assert found / 300 >= 0.85


def test_peeking_at_equal_error_rates_is_rarely_wrong() -> None:
    """2,000 streams of 1% errors in unequal arms, looked at in 15 places: harm beyond a margin of 0
    is seen in at most ALPHA of them, and the share's own bounds miss it in at most ALPHA.
    """
    rng = random.Random(8)
    harmed = missed = 0
    for _ in range(STREAMS):
        bad_b = bad_c = 0
        seen_harm = seen_miss = False
        for look in range(1, 16):
            bad_b += sum(rng.random() < 0.01 for _ in range(30))
            bad_c += sum(rng.random() < 0.01 for _ in range(10))
            evidence = difference_e_value(bad_b, 30 * look, bad_c, 10 * look, margin=0.0)
            bounds = proportion_bounds(bad_b, 30 * look, alpha=ALPHA)
            seen_harm |= evidence >= 1.0 / ALPHA
            seen_miss |= not bounds.low <= 0.01 <= bounds.high
        harmed += seen_harm
        missed += seen_miss
    assert harmed / STREAMS <= WRONG_MAX
    assert missed / STREAMS <= WRONG_MAX
