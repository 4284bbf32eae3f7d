"""The wandering pace of a replica's core against what its law says."""

import itertools
import math
import random

import pytest

from trimtab.sim.unrest import Unrest

FAR_S = 1000.0


def paces(spread: float, hold_s: float, gap_s: float, count: int, seed: int = 1) -> list[float]:
    """What a replica meets at even times."""
    made = Unrest(hold_s, random.Random(seed))
    return [made.pace(at * gap_s, spread) for at in range(count)]


def test_half_of_the_time_the_pace_is_below_one() -> None:
    """So that the costs of steps are those of a usual moment."""
    found = paces(0.3, 1.0, FAR_S, 4000)
    assert sum(pace < 1.0 for pace in found) / 4000 == pytest.approx(0.5, abs=0.03)


def test_slow_spells_are_stronger_than_fast_ones() -> None:
    """A neighbour never gives anything: there is a fastest pace, and 5% of steps are far slower than the median."""
    found = sorted(paces(0.3, 1.0, FAR_S, 4000))
    assert found[0] >= math.exp(-0.3 * 0.6745)
    # The 95th percentile of the absolute value of a standard normal is 1.96.
    assert math.log(found[3800]) == pytest.approx(0.3 * (1.96 - 0.6745), abs=0.03)


def test_pace_is_kept_for_as_long_as_the_law_says() -> None:
    """Of neighbours a tenth of the time apart little is forgotten, of those ten times apart everything."""
    near, far = (correlation(paces(0.3, 10.0, gap_s, 4000)) for gap_s in (1.0, 100.0))
    assert near > 0.7
    assert abs(far) < 0.06


def correlation(paces: list[float]) -> float:
    """Of each logarithm with the next one."""
    logs = [math.log(pace) for pace in paces]
    mean = sum(logs) / len(logs)
    pairs = itertools.pairwise(logs)
    return sum((a - mean) * (b - mean) for a, b in pairs) / sum((a - mean) ** 2 for a in logs)


def test_asked_twice_at_one_moment_it_says_the_same() -> None:
    """Two steps that begin together have one pace."""
    unrest = Unrest(10.0, random.Random(1))
    assert unrest.pace(5.0, 0.3) == unrest.pace(5.0, 0.3)


def test_steps_of_another_spread_meet_the_same_moment() -> None:
    """One process for all steps: what slows prompts much slows decodes a little, at the same time."""
    unrest = Unrest(10.0, random.Random(1))
    prompts, decodes = unrest.pace(5.0, 0.4), unrest.pace(5.0, 0.1)
    assert math.log(prompts) == pytest.approx(4.0 * math.log(decodes))
    assert unrest.pace(6.0, 0.0) == 1.0


def test_same_chance_makes_the_same_paces() -> None:
    """And another chance other ones."""
    assert paces(0.3, 10.0, 1.0, 50) == paces(0.3, 10.0, 1.0, 50)
    assert paces(0.3, 10.0, 1.0, 50) != paces(0.3, 10.0, 1.0, 50, seed=2)
