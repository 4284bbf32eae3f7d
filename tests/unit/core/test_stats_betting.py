"""The bets, their boundary and the planning that follows from it."""

import math

import pytest

from trimtab.core.stats import StatsError, crossing_probabilities, units_needed
from trimtab.core.stats_betting import UNITS_MAX, log_wealth, win_boundary


def test_capital_starts_at_one() -> None:
    """Without flips there is no evidence."""
    assert pytest.approx(0.0, abs=1e-12) == log_wealth(0, 0)


@pytest.mark.parametrize(("wins", "losses"), [(0, 0), (3, 1), (40, 35), (0, 9)])
def test_fair_coin_keeps_the_capital_on_average(wins: int, losses: int) -> None:
    """The next flip of a fair coin neither gains nor loses in expectation: the law behind every bound."""
    after = 0.5 * (math.exp(log_wealth(wins + 1, losses)) + math.exp(log_wealth(wins, losses + 1)))
    assert pytest.approx(math.exp(log_wealth(wins, losses)), rel=1e-12) == after


def test_near_certain_wins_reach_twenty() -> None:
    """Six of six, seven of seven and nine of ten are enough at 5%; six of seven cannot be."""
    assert [
        math.exp(log_wealth(*counts)) >= 20.0 for counts in ((6, 0), (7, 0), (9, 1), (6, 1))
    ] == [True, True, True, False]


def test_boundary_is_where_the_capital_reaches_its_target() -> None:
    """The boundary holds the fewest wins that suffice, and more than possible where none do."""
    for n, wins in enumerate(win_boundary(200, 0.05), start=1):
        assert wins > n or log_wealth(wins, n - wins) >= math.log(20.0) - 1e-8
        assert log_wealth(wins - 1, n - wins + 1) < math.log(20.0)


def test_boundary_of_fewer_flips_is_a_prefix() -> None:
    """How many flips are asked for does not change what each needs."""
    assert win_boundary(1000, 0.05)[:63] == win_boundary(63, 0.05)
    assert len(win_boundary(63, 0.05)) == 63
    assert win_boundary(0, 0.05) == ()


@pytest.mark.parametrize("alpha", [0.01, 0.05, 0.2])
def test_fair_coin_is_ever_rejected_with_probability_below_alpha(alpha: float) -> None:
    """Exact, looking after each of 2,000 flips; and not so far below that power is thrown away."""
    *_, ever = crossing_probabilities(0.5, alpha, n_max=2_000)
    assert 0.5 * alpha < ever <= alpha


def test_crossing_probability_of_a_certain_win_jumps_at_six() -> None:
    """A candidate that always wins is shown by the sixth unit."""
    assert list(crossing_probabilities(1.0, 0.05, n_max=6)) == [0.0] * 5 + [1.0]


@pytest.mark.parametrize(
    ("win_probability", "units"), [(1.0, 6), (0.9, 17), (0.8, 38), (0.7, 96), (0.6, 407)]
)
def test_units_needed_are_exact(win_probability: float, units: int) -> None:
    """With that many units the chance has reached 90%, with one fewer it has not."""
    assert units == units_needed(win_probability, 0.05)
    chances = list(crossing_probabilities(win_probability, 0.05, n_max=units))
    assert chances[-1] >= 0.9 > chances[-2]


def test_more_power_and_less_alpha_need_more_units() -> None:
    """Planning is monotone in what is asked for."""
    assert units_needed(0.75, 0.05, 0.5) < units_needed(0.75, 0.05, 0.9)
    assert units_needed(0.75, 0.05) < units_needed(0.75, 0.01)


@pytest.mark.parametrize("win_probability", [0.0, 0.3, 0.5])
def test_no_number_of_units_shows_what_is_not_there(win_probability: float) -> None:
    """The error says the probability and the limit."""
    with pytest.raises(StatsError, match=f"{win_probability} does not show within {UNITS_MAX}"):
        units_needed(win_probability, 0.05)


def test_parameters_out_of_range_are_refused() -> None:
    """Each parameter is named in its error."""
    with pytest.raises(StatsError, match=r"win_probability must be between 0 and 1, got 1\.5"):
        units_needed(1.5, 0.05)
    with pytest.raises(StatsError, match="power must be between 0 and 1, got 90"):
        units_needed(0.9, 0.05, 90)
    with pytest.raises(StatsError, match="alpha must be above 0"):
        units_needed(0.9, 0.0)
