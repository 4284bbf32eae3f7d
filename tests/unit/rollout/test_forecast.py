"""How much evidence a rollout takes is said before it begins, or why that is unknown."""

import math
import random

import msgspec
import pytest
from events_kit import lever_record
from rollout_kit import RAMP, served

from trimtab.core.gate import GateSpec, Metric, Question
from trimtab.core.lever import Comparison, ExpectedEffect, LeverRecord, RampPlan
from trimtab.core.record import RequestRecord
from trimtab.core.stats_betting import crossing_probabilities
from trimtab.core.types import Arm
from trimtab.rollout.forecast import VALUES_MIN, floor_s, forecast

SPREAD = 0.5


def record(ratio: float = 0.6, margin: float = 0.1, ramp: RampPlan = RAMP) -> LeverRecord:
    gate = GateSpec(name="gain", metric=Metric.TTFT_MS, question=Question.GAIN, margin=margin)
    effect = ExpectedEffect(
        metric=Metric.TTFT_MS, ratio=ratio, low=ratio, high=ratio, because="of the test"
    )
    return msgspec.structs.replace(lever_record(), gates=(gate,), expected=(effect,), ramp=ramp)


def requests(count: int = 400, spread: float = SPREAD) -> list[RequestRecord]:
    rng = random.Random(5)
    return [
        served(None, Arm.BASELINE, number=n, ttft=200.0 * math.exp(rng.gauss(0.0, spread)))
        for n in range(count)
    ]


def test_units_are_enough_for_the_power_that_is_said() -> None:
    """With units drawn as the forecast assumes, nine of ten rollouts have shown the gain by then."""
    (found,) = forecast(record(), requests())
    assert found.units is not None
    rng = random.Random(11)
    unit_spread = math.sqrt(2.0 / 3.0) * SPREAD
    wins = (
        sum(math.log(0.6) + rng.gauss(0.0, unit_spread) < math.log(0.9) for _ in range(4_000))
        / 4_000
    )
    *_, shown = (
        share
        for _, share in zip(range(found.units), crossing_probabilities(wins, 0.05), strict=False)
    )
    assert shown == pytest.approx(0.9, abs=0.08)


@pytest.mark.parametrize("low_first", [(0.5, 0.7), (0.7, 0.8)])
def test_smaller_effects_take_longer(low_first: tuple[float, float]) -> None:
    """And time is units by the blocks of the comparison."""
    strong, weak = (forecast(record(ratio), requests())[0] for ratio in low_first)
    assert strong.units is not None
    assert weak.units is not None
    assert strong.units < weak.units
    assert strong.takes_s == strong.units * 2.0 * RAMP.block_s


def test_block_that_sees_both_arms_is_half_as_long_as_a_pair() -> None:
    """Side by side a unit is one block."""
    beside = msgspec.structs.replace(RAMP, comparison=Comparison.SIDE_BY_SIDE)
    (found,) = forecast(record(ramp=beside), requests())
    assert found.units is not None
    assert found.takes_s == found.units * RAMP.block_s


@pytest.mark.parametrize(
    ("of", "recent", "words"),
    [
        (record(0.95), requests(), "does not reach the margin"),
        (record(), requests(VALUES_MIN - 1), f"{VALUES_MIN - 1} of {VALUES_MIN}"),
        (record(0.899), requests(), "not likely to pass"),
        (msgspec.structs.replace(record(), expected=()), requests(), "expects nothing of ttft_ms"),
    ],
)
def test_what_cannot_be_forecast_says_why(
    of: LeverRecord, recent: list[RequestRecord], words: str
) -> None:
    """Unknown is said, with the reason."""
    (found,) = forecast(of, recent)
    assert (found.units, found.takes_s) == (None, None)
    assert words in found.because


def test_floor_is_two_peak_cycles_and_the_steps_between() -> None:
    """The first share and the last each live through one."""
    assert floor_s(record()) == 2 * 24.0 + 2 * 4 * 6.0
