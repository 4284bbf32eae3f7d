"""Means and percentiles for reports."""

import math
import random

import pytest

from trimtab.core.stats import StatsError, mean_interval, percentile
from trimtab.core.stats_summary import t_quantile


@pytest.mark.parametrize(
    ("df", "quantile"),
    [(1, 12.7062), (2, 4.30265), (3, 3.18245), (4, 2.77645), (5, 2.57058), (30, 2.04227)],
)
def test_t_quantile_is_the_tabulated_one(df: int, quantile: float) -> None:
    """Two-sided 95%, odd and even degrees of freedom."""
    assert pytest.approx(quantile, abs=5e-6 * quantile) == t_quantile(0.975, df)


def test_t_quantile_joins_the_normal_one() -> None:
    """Where the closed form gives way to the normal quantile there is no visible step."""
    assert pytest.approx(t_quantile(0.975, 500), rel=3e-3) == t_quantile(0.975, 499)
    assert pytest.approx(0.0, abs=1e-9) == t_quantile(0.5, 7)


def test_mean_interval_of_independent_values_is_the_t_interval() -> None:
    """By hand: mean 3, standard deviation sqrt(2.5), t(4) = 2.77645."""
    interval = mean_interval([1.0, 2.0, 3.0, 4.0, 5.0])
    half = 2.776445 * math.sqrt(2.5 / 5)
    assert interval is not None
    assert (pytest.approx(3.0 - half), pytest.approx(3.0 + half)) == (interval.low, interval.high)


def test_equal_blocks_give_the_t_interval_of_their_means() -> None:
    """Values of one block count as one: repeating each value changes nothing."""
    values, blocks = [1.0, 2.0, 3.0, 4.0, 5.0], [0, 1, 2, 3, 4]
    single = mean_interval(values)
    repeated = mean_interval(
        [v for v in values for _ in range(7)], blocks=[b for b in blocks for _ in range(7)]
    )
    assert single is not None
    assert repeated is not None
    assert (pytest.approx(single.low), pytest.approx(single.high)) == (repeated.low, repeated.high)


def test_unequal_blocks_keep_the_mean_of_all_values_in_the_middle() -> None:
    """A large block weighs as many values as it has."""
    interval = mean_interval([1.0] * 30 + [4.0, 4.0] + [2.0], blocks=[0] * 30 + [1, 1] + [2])
    assert interval is not None
    assert pytest.approx(40.0 / 33.0) == 0.5 * (interval.low + interval.high)


def test_mean_interval_over_blocks_covers_as_often_as_it_says() -> None:
    """With values that share their block's load, about 95% of 400 seeded intervals hold the mean;
    without the blocks far fewer do.
    """
    rng = random.Random(5)
    held = naive = 0
    for _ in range(400):
        blocks = [block for block in range(12) for _ in range(8)]
        loads = [rng.gauss(0.0, 1.0) for _ in range(12)]
        values = [loads[block] + rng.gauss(0.0, 0.3) for block in blocks]
        by_block, by_value = mean_interval(values, blocks=blocks), mean_interval(values)
        assert by_block is not None
        assert by_value is not None
        held += by_block.low <= 0.0 <= by_block.high
        naive += by_value.low <= 0.0 <= by_value.high
    assert 0.92 <= held / 400 <= 0.98
    assert naive / 400 < 0.7


@pytest.mark.parametrize(
    ("values", "blocks"), [([], None), ([3.0], None), ([3.0, 4.0, 5.0], [1, 1, 1])]
)
def test_one_block_has_no_interval(values: list[float], blocks: list[int] | None) -> None:
    """A spread between blocks needs two of them."""
    assert mean_interval(values, blocks=blocks) is None


def test_summary_parameters_out_of_range_are_refused() -> None:
    """The errors name what was wrong."""
    with pytest.raises(StatsError, match="2 values but 3 blocks"):
        mean_interval([1.0, 2.0], blocks=[1, 2, 3])
    with pytest.raises(StatsError, match="value 1 is not a finite number: nan"):
        mean_interval([1.0, math.nan])
    with pytest.raises(StatsError, match="level must be between 0 and 1, got 95"):
        mean_interval([1.0, 2.0], level=95)
    with pytest.raises(StatsError, match="no t quantile"):
        t_quantile(1.0, 3)


def test_percentile_interpolates_between_order_statistics() -> None:
    """Numpy's default: rank q * (n - 1)."""
    values = [40.0, 10.0, 30.0, 20.0]
    expected = [10.0, 17.5, 25.0, pytest.approx(38.5), 40.0]
    assert expected == [percentile(values, q) for q in (0.0, 0.25, 0.5, 0.95, 1.0)]
    assert percentile([7.0], 0.95) == 7.0


def test_percentile_of_nothing_or_of_a_percentage_is_refused() -> None:
    """Unknown is an error here, and 95 is not a share."""
    with pytest.raises(StatsError, match="no values"):
        percentile([], 0.5)
    with pytest.raises(StatsError, match="q must be a share between 0 and 1, got 95"):
        percentile([1.0], 95)
    with pytest.raises(StatsError, match="value 0 is not a finite number: inf"):
        percentile([math.inf], 0.5)
