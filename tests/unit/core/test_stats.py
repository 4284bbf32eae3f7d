"""Units and ratio estimates."""

import math
import random

import msgspec
import pytest

from trimtab.core.stats import (
    Interval,
    Observation,
    RatioEstimate,
    StatsError,
    Unit,
    e_max_above,
    e_max_below,
    e_value_above,
    e_value_below,
    pair_units,
    ratio_estimate,
)
from trimtab.core.types import Arm


def observe(block: int, arm: str, *values: float) -> list[Observation]:
    return [Observation(block, arm, value, 10.0 * block + i) for i, value in enumerate(values)]


def units_of(*log_ratios: float) -> list[Unit]:
    return [Unit(2 * i, 2 * i + 1, 3, 4, value) for i, value in enumerate(log_ratios)]


def test_switchback_pairs_adjacent_blocks() -> None:
    """One baseline block and one candidate block make a unit, whichever came first."""
    observations = [
        *observe(0, "baseline", 100.0, 400.0),
        *observe(1, "candidate", 100.0),
        *observe(2, "candidate", 50.0),
        *observe(3, "baseline", 100.0),
    ]
    first, second = pair_units(observations)
    assert (
        first.first_block,
        first.last_block,
        first.n_baseline,
        first.n_candidate,
    ) == (0, 1, 2, 1)
    assert (second.first_block, second.last_block) == (2, 3)
    assert [pytest.approx(math.log(0.5))] * 2 == [first.log_ratio, second.log_ratio]


def test_side_by_side_block_is_a_unit() -> None:
    """One window that both arms saw is a unit of its own."""
    observations = [
        *observe(7, "baseline", 10.0),
        *observe(7, "candidate", 20.0),
        *observe(8, "candidate", 30.0),
        *observe(8, "baseline", 10.0),
    ]
    assert [(u.first_block, u.last_block) for u in pair_units(observations)] == [(7, 7), (8, 8)]


def test_thin_blocks_accumulate_until_both_arms_have_enough() -> None:
    """Whole blocks are added until the minimum is reached on both sides; nothing of a block is split off."""
    observations = [
        *observe(0, "baseline", 1.0, 1.0),
        *observe(1, "candidate", 1.0),
        *observe(2, "baseline", 1.0),
        *observe(3, "candidate", 1.0, 1.0, 1.0),
    ]
    (unit,) = pair_units(observations, min_per_arm=2)
    assert Unit(0, 3, 3, 4, 0.0) == unit


def test_unit_compares_means_of_groups_of_equal_size() -> None:
    """The larger arm is cut into groups of the smaller one's size, in order of arrival."""
    observations = [
        *observe(0, "baseline", 2.0, 4.0, 12.0, 20.0),
        *observe(1, "candidate", 1.0, 5.0),
    ]
    (unit,) = pair_units(observations, min_per_arm=2)
    assert unit.log_ratio == pytest.approx(math.log(3.0) - (math.log(3.0) + math.log(16.0)) / 2)


def test_unfinished_tail_is_no_unit() -> None:
    """Observations of one arm wait for the other arm, and appear when the unit closes."""
    started = [
        *observe(0, "baseline", 1.0),
        *observe(1, "candidate", 1.0),
        *observe(2, "baseline", 1.0),
    ]
    assert len(pair_units(started)) == 1
    assert len(pair_units([*started, *observe(3, "candidate", 2.0)])) == 2
    assert pair_units([]) == ()


def test_values_do_not_decide_where_a_unit_closes() -> None:
    """The same counts with other values give the same blocks."""
    rng = random.Random(1)
    counts = [
        (block, rng.choice(["baseline", "candidate"])) for block in range(40) for _ in range(2)
    ]

    def closed(scale: float) -> list[tuple[int, int]]:
        values = [Observation(b, arm, rng.expovariate(scale), 0.0) for b, arm in counts]
        return [(u.first_block, u.last_block) for u in pair_units(values, min_per_arm=2)]

    assert closed(1.0) == closed(100.0)


def test_arms_may_be_given_as_the_enum() -> None:
    """The shared enum of arms is a string and works as one."""
    observations = [Observation(0, Arm.BASELINE, 1.0, 0.0), Observation(0, Arm.CANDIDATE, 1.0, 0.0)]
    assert len(pair_units(observations)) == 1


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 0.0, -3.0])
def test_value_without_a_logarithm_is_refused_by_name(value: float) -> None:
    """The error names block, time, arm and value."""
    observations = [*observe(0, "baseline", 5.0), Observation(3, "candidate", value, 12.5)]
    with pytest.raises(StatsError) as error:
        pair_units(observations)
    expected = (
        "observation in block 3 at 12.5 s, candidate: "
        f"value must be a positive finite number, got {value}"
    )
    assert expected == str(error.value)


def test_unknown_arm_is_refused_by_name() -> None:
    """A third arm is an error, never ignored."""
    with pytest.raises(StatsError, match=r"block 0 at 0.0 s: arm must be .* got 'control'"):
        pair_units(observe(0, "control", 5.0))


def test_minimum_per_arm_below_one_is_refused() -> None:
    """A unit without observations of an arm would have no ratio."""
    with pytest.raises(StatsError, match="min_per_arm must be at least 1, got 0"):
        pair_units([], min_per_arm=0)


def test_no_units_give_no_estimate() -> None:
    """Absent is unknown: neither a ratio of 1 nor an interval."""
    assert RatioEstimate(0, 0, 0, None, None, False) == ratio_estimate([])


@pytest.mark.parametrize("n", [1, 5])
def test_few_units_leave_the_interval_open(n: int) -> None:
    """Up to five units never exclude anything at 5%, however large the effect."""
    estimate = ratio_estimate(units_of(*[-2.0] * n))
    assert Interval(0.0, math.inf, 0.9) == estimate.interval
    assert math.exp(-2.0) == estimate.ratio


def test_estimate_counts_units_and_requests() -> None:
    """Counts are sums over the units, the ratio is the median's."""
    estimate = ratio_estimate(units_of(-0.3, 5.0, -0.1))
    assert (estimate.n_units, estimate.n_baseline, estimate.n_candidate) == (3, 9, 12)
    assert pytest.approx(math.exp(-0.1)) == estimate.ratio
    assert estimate.drifted is False


@pytest.mark.parametrize("n", [6, 7])
def test_unbroken_wins_exclude_equality(n: int) -> None:
    """Six or seven units that all gained show a gain at 5%, and as many losses show harm: the bounds
    are the extremes of the first six."""
    values = [0.1 * (i + 1) for i in range(n)]
    gain, harm = ratio_estimate(units_of(*[-v for v in values])), ratio_estimate(units_of(*values))
    assert gain.interval is not None
    assert harm.interval is not None
    assert [gain.interval.low, gain.interval.high] == pytest.approx(
        [math.exp(-0.6), math.exp(-0.1)]
    )
    assert [harm.interval.low, harm.interval.high] == pytest.approx([math.exp(0.1), math.exp(0.6)])


def test_six_wins_of_seven_suffice_when_the_loss_comes_last() -> None:
    """Evidence once reached stays: the largest over prefixes counts."""
    last, first = units_of(*[-1.0] * 6, 1.0), units_of(1.0, *[-1.0] * 6)
    assert e_max_below(last, 1.0) >= 20.0 > e_value_below(last, 1.0)
    assert e_max_below(first, 1.0) == e_value_below(first, 1.0) < 20.0
    assert e_value_below(first, 1.0) == e_value_below(last, 1.0)


def test_ties_count_against_either_side() -> None:
    """Equal arms show neither gain nor harm at ratio 1, however long."""
    same = units_of(*[0.0] * 200)
    assert e_value_below(same, 1.0) < 1.0
    assert 1.0 == e_max_below(same, 1.0) == e_max_above(same, 1.0)
    assert Interval(1.0, 1.0, 0.9) == ratio_estimate(same).interval


def test_sides_mirror_each_other() -> None:
    """Exchanging the arms exchanges below and above."""
    values = [0.4, -0.2, 0.3, 0.1, -0.6, 0.2, 0.25]
    there, back = units_of(*values), units_of(*[-v for v in values])
    assert e_value_above(there, 1.1) == e_value_below(back, 1 / 1.1)
    assert e_max_above(there, 1.1) == e_max_below(back, 1 / 1.1)


def test_evidence_stays_finite() -> None:
    """Thousands of wins clamp instead of overflowing."""
    evidence = e_value_below(units_of(*[-1.0] * 5000), 1.0)
    assert evidence > 1e300
    assert math.isfinite(evidence)


def test_contradicting_bounds_are_flagged_as_drift() -> None:
    """When the later units refute what the earlier ones showed, the last consistent interval stays, flagged."""
    before, after = [-1.0 - 0.01 * i for i in range(20)], [1.0 + 0.01 * i for i in range(200)]
    estimate = ratio_estimate(units_of(*before, *after))
    assert estimate.drifted is True
    assert estimate.interval is not None
    assert estimate.interval.high < 1.0
    assert ratio_estimate(units_of(*before)).drifted is False


def test_open_interval_survives_json() -> None:
    """JSON has no infinity: an open end must come back as it was stored."""
    for interval in (Interval(0.0, math.inf, 0.9), Interval(-math.inf, 2.0, 0.9)):
        stored = msgspec.json.encode(interval)
        assert b"null" in stored
        assert interval == msgspec.json.decode(stored, type=Interval)


@pytest.mark.parametrize(
    ("low", "high", "level", "message"),
    [
        (2.0, 1.0, 0.9, "low <= high, got 2.0 and 1.0"),
        (math.nan, 1.0, 0.9, "low <= high, got nan and 1.0"),
        (0.0, 1.0, 1.0, "level must be between 0 and 1, got 1.0"),
    ],
)
def test_impossible_interval_is_refused(
    low: float, high: float, level: float, message: str
) -> None:
    """An interval is in order and has a real level."""
    with pytest.raises(StatsError, match=message):
        Interval(low, high, level)


@pytest.mark.parametrize("alpha", [0.0, 0.5, -0.1, 5.0, math.nan])
def test_alpha_out_of_range_is_refused(alpha: float) -> None:
    """A percentage given as alpha is caught, with and without units."""
    for units in ([], units_of(0.1)):
        with pytest.raises(StatsError, match=r"alpha must be above 0 and below 0\.5"):
            ratio_estimate(units, alpha=alpha)


@pytest.mark.parametrize("ratio", [0.0, -1.0, math.nan, math.inf])
def test_ratio_without_a_logarithm_is_refused(ratio: float) -> None:
    """Evidence is about a positive finite ratio."""
    for ask in (e_value_below, e_value_above, e_max_below, e_max_above):
        with pytest.raises(StatsError, match="ratio must be a positive finite number"):
            ask(units_of(0.1), ratio)
