"""The score of simulated times against measured ones, worked out by hand and by what it must prefer."""

import math
import random

import msgspec
import pytest

from trimtab.sim.agreement import FLOOR_MS, disagreement, mean_errors
from trimtab.sim.measured import Measured, Regime, Served, errors_of


def measured(ttft_ms: float, tpot_ms: float = 10.0) -> Measured:
    """A request of eleven tokens that arrived at 0."""
    first_s = ttft_ms / 1000.0
    return Measured(
        at_s=0.0,
        input_tokens=100,
        output_tokens=11,
        first_token_s=first_s,
        last_token_s=first_s + tpot_ms / 100.0,
    )


def served(ttft_ms: float, tpot_ms: float = 10.0) -> Served:
    """The same in a simulation."""
    return Served(ttft_ms=ttft_ms, tpot_ms=tpot_ms, e2e_ms=ttft_ms + 10.0 * tpot_ms)


def test_one_simulation_is_scored_by_the_mean_log_ratio() -> None:
    """Over the three times, both with a floor that keeps milliseconds from counting as much as seconds."""
    found = disagreement([measured(100.0)], [[served(200.0, 20.0)]], [0])
    ttft, e2e = (math.log((2.0 * real + FLOOR_MS) / (real + FLOOR_MS)) for real in (100.0, 200.0))
    assert found == pytest.approx((ttft + math.log(2.0) + e2e) / 3.0)


def test_simulations_that_agree_exactly_score_nothing() -> None:
    """However many there are."""
    assert disagreement([measured(100.0)], [[served(100.0)]] * 4, [0]) == pytest.approx(0.0)


def test_score_is_what_pairs_say_one_by_one() -> None:
    """The sum over sorted values against the definition."""
    made = [80.0, 250.0, 120.0, 95.0]
    found = disagreement([measured(110.0)], [[served(one)] for one in made], [0])
    logs = {shift: [math.log(one + shift) for one in made] for shift in (FLOOR_MS, 100 + FLOOR_MS)}

    def score(shift: float) -> float:
        real, values = math.log(110.0 + shift), logs[shift]
        off = sum(abs(one - real) for one in values) / 4
        between = sum(abs(one - two) for one in values for two in values) / 12
        return off - between / 2.0

    assert found == pytest.approx((score(FLOOR_MS) + score(100 + FLOOR_MS)) / 3.0)


def test_true_spread_scores_better_than_none_and_than_twice_as_much() -> None:
    """Else a fit would make the tail too thin or too thick."""
    rng = random.Random(1)
    real = [measured(1000.0 * math.exp(0.3 * rng.gauss(0, 1))) for _ in range(300)]

    def score(spread: float) -> float:
        draws = [
            [served(1000.0 * math.exp(spread * rng.gauss(0, 1))) for _ in real] for _ in range(8)
        ]
        return disagreement(real, draws, range(300))

    true = score(0.3)
    assert true < score(0.0)
    assert true < score(0.6)


def test_only_the_part_asked_for_counts() -> None:
    """The rest is scored, not fitted."""
    real = [measured(100.0), measured(100.0)]
    draws = [[served(100.0), served(900.0)]]
    assert disagreement(real, draws, [0]) == pytest.approx(0.0)
    assert disagreement(real, draws, [1]) > 0.5


def test_requests_of_one_token_are_scored_without_a_time_per_token() -> None:
    """They have none, on either side."""
    one = msgspec.structs.replace(measured(100.0, 0.0), output_tokens=1)
    made = Served(ttft_ms=100.0, tpot_ms=None, e2e_ms=100.0)
    assert disagreement([one], [[made]], [0]) == pytest.approx(0.0)


def test_errors_of_several_simulations_are_those_of_their_mean() -> None:
    """One simulation 50% above and one 20% below are 15% above together."""
    real = [measured(100.0)]
    draws = [[served(150.0)], [served(80.0)]]
    each = [errors_of(real, one, [Regime.LIGHT], [0], []) for one in draws]
    found = next(one for one in mean_errors(each) if one.metric == "ttft_ms")
    assert found.measured == pytest.approx(100.0)
    assert found.simulated == pytest.approx(115.0)
    assert found.error == pytest.approx(0.15)
    assert found.samples == 1
