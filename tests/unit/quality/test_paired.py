"""Paired comparisons: what is a pass, a fail, a hold, and how much evidence each needs."""

import math
import random

import pytest

from trimtab.core.types import Verdict
from trimtab.quality.paired import (
    UNITS_MIN,
    Direction,
    Margin,
    compare,
    compare_right,
    exact_share,
    family_level,
    units_needed,
)

LOSS = Margin(value=0.02, unit="nats", direction=Direction.LOWER_IS_BETTER)
ITEMS = Margin(value=0.02, unit="of items", direction=Direction.HIGHER_IS_BETTER)


def shifted(n: int, shift: float, spread: float, seed: int = 1) -> tuple[list[float], list[float]]:
    rng = random.Random(seed)
    base = [rng.uniform(1.0, 4.0) for _ in range(n)]
    return base, [value + shift + rng.gauss(0.0, spread) for value in base]


def test_equal_candidate_passes_though_items_differ_widely() -> None:
    """The spread between items is in both arms and does not count."""
    base, candidate = shifted(40, 0.0, 0.01)
    assert compare(base, candidate, LOSS).verdict is Verdict.PASS


def test_candidate_beyond_the_margin_fails() -> None:
    """Ten margins worse is a fail, and the mean harm is told."""
    found = compare(*shifted(40, 0.2, 0.02), LOSS)
    assert found.verdict is Verdict.FAIL
    assert found.harm == pytest.approx(0.2, abs=0.02)


def test_interval_that_holds_the_margin_is_held_and_says_what_would_do() -> None:
    """Too wide a spread for so few blocks is neither pass nor fail."""
    found = compare(*shifted(12, 0.01, 0.06), LOSS)
    assert found.verdict is Verdict.HOLD
    assert found.needed is not None
    assert found.needed > 12


def test_few_units_never_pass() -> None:
    """Even equal scores are held below the least count."""
    n = UNITS_MIN - 1
    assert compare([1.0] * n, [1.0] * n, LOSS).verdict is Verdict.HOLD


def test_score_that_is_not_finite_is_an_error() -> None:
    """A broken score is not evidence for anything."""
    assert compare([1.0] * 10, [1.0] * 9 + [math.inf], LOSS).verdict is Verdict.ERROR


def test_direction_turns_what_is_harm() -> None:
    """Higher accuracy is no harm."""
    gain = Margin(value=0.02, unit="share", direction=Direction.HIGHER_IS_BETTER)
    assert compare(*shifted(40, 0.2, 0.02), gain).verdict is Verdict.PASS


def test_unequal_lists_are_refused() -> None:
    """Scores pair by place."""
    with pytest.raises(ValueError, match="3 scores of the original, 2 of the candidate"):
        compare([1.0, 2.0, 3.0], [1.0, 2.0], LOSS)


def test_fifty_items_without_a_flip_do_not_stand_for_a_whole_benchmark() -> None:
    """No flip in 50 items still allows 8% of them; 1,319 settle it."""
    few = compare_right([True] * 50, [True] * 50, ITEMS)
    many = compare_right([True] * 1319, [True] * 1319, ITEMS)
    assert (few.verdict, many.verdict) == (Verdict.HOLD, Verdict.PASS)
    assert few.needed is not None
    assert 50 < few.needed <= 1319


def test_drop_within_the_ruler_is_held_not_failed() -> None:
    """A drop of two items of a hundred, with five flips there and three back, is noise."""
    base = [True] * 60 + [False] * 40
    candidate = [True] * 55 + [False] * 5 + [True] * 3 + [False] * 37
    found = compare_right(base, candidate, ITEMS)
    assert found.verdict is Verdict.HOLD
    assert (found.flips_worse, found.flips_better) == (5, 3)


def test_many_flips_one_way_fail() -> None:
    """A quarter of the items lost is beyond any doubt."""
    base = [True] * 200
    assert compare_right(base, [True] * 150 + [False] * 50, ITEMS).verdict is Verdict.FAIL


@pytest.mark.parametrize(
    ("count", "n", "low", "high"),
    [(0, 10, 0.0, 0.3085), (5, 10, 0.1871, 0.8129), (10, 10, 0.6915, 1.0)],
)
def test_exact_bounds_are_those_of_the_tables(count: int, n: int, low: float, high: float) -> None:
    """Clopper and Pearson at 95%, from published tables."""
    assert exact_share(count, n, tail=0.025) == pytest.approx((low, high), abs=5e-4)


def test_needed_units_follow_the_formula() -> None:
    """(1.96 + 1.28)^2 s^2 / d^2."""
    assert units_needed(0.1, 0.02) == math.ceil((3.2415 * 0.1 / 0.02) ** 2)


def test_equal_candidates_pass_nine_times_of_ten_with_what_was_said_to_be_needed() -> None:
    """The sample size that is stated first keeps its promise."""
    needed = units_needed(0.05, 0.02)
    assert needed is not None
    passed = sum(
        compare(*shifted(needed, 0.0, 0.05, seed=seed), LOSS).verdict is Verdict.PASS
        for seed in range(200)
    )
    assert passed >= 170


def test_family_of_comparisons_shares_its_doubt() -> None:
    """Five at once are held at 99% each."""
    assert family_level(5) == pytest.approx(0.99)
