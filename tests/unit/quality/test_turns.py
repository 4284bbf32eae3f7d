"""Two arms are measured in an order that favours neither."""

import math
from collections import Counter
from itertools import pairwise

import pytest

from trimtab.quality.turns import Pass, SpeedSeen, passes_of, prompts_used, speed_from


def rounds_of(passes: tuple[Pass, ...]) -> list[tuple[Pass, ...]]:
    """The kept passes, four by four."""
    kept = [one for one in passes if one.kept]
    return [tuple(kept[at : at + 4]) for at in range(0, len(kept), 4)]


@pytest.mark.parametrize("seed", range(8))
def test_each_round_is_one_arm_around_two_of_the_other(seed: int) -> None:
    """A B B A: each arm comes once before and once after the other, and their middles are one moment."""
    rounds = rounds_of(passes_of(5, seed=seed))
    assert len(rounds) == 5
    for one in rounds:
        sides = [each.is_rung for each in one]
        assert sides == [sides[0], not sides[0], not sides[0], sides[0]]


def test_who_begins_a_round_is_drawn() -> None:
    """Nothing that repeats can keep step with one arm; one seed repeats."""
    begins = [one[0].is_rung for one in rounds_of(passes_of(200, seed=3))]
    assert 70 <= sum(begins) <= 130
    assert any(a == b for a, b in pairwise(begins))
    assert passes_of(9, seed=3) == passes_of(9, seed=3)
    assert passes_of(9, seed=3) != passes_of(9, seed=4)


def test_both_arms_meet_the_same_prompts_and_none_of_them_twice() -> None:
    """Nor do those of the next rung begin before these end."""
    passes = passes_of(4, seed=20)
    for is_rung in (False, True):
        met = Counter(one.prompts for one in passes if one.is_rung is is_rung)
        assert set(met) == set(range(20, 20 + prompts_used(4)))
        assert max(met.values()) == 1


def test_first_pass_of_each_arm_is_not_kept() -> None:
    """Engines allocate in it."""
    first = passes_of(2, seed=1)[:2]
    assert {one.is_rung for one in first} == {False, True}
    assert not any(one.kept for one in first)


def seen(slower: float) -> SpeedSeen:
    """A pass on a machine that is slower by a factor."""
    return SpeedSeen(100.0 * slower, 20.0 * slower, {2: 80.0 / slower, 4: 120.0 / slower})


def test_machine_that_slows_down_evenly_makes_no_arm_look_faster() -> None:
    """The original beside itself is 1 in every round, whoever begins, though the machine halves its pace."""
    kept = [one for one in passes_of(6, seed=7) if one.kept]
    slow = {False: [], True: []}  # type: dict[bool, list[SpeedSeen]]
    for at, one in enumerate(kept):
        slow[one.is_rung].append(seen(2.0 ** (at / len(kept))))
    found = speed_from(slow[False], slow[True])
    assert found.tpot_ms.n == 6
    for ratio in (found.ttft_ms, found.tpot_ms, found.score, *found.tokens_per_s.values()):
        assert ratio.ratio == pytest.approx(1.0)
        assert ratio.interval is not None
        assert ratio.interval.high - ratio.interval.low < 1e-9


def test_ratio_is_of_rounds_and_score_joins_latency_and_cost() -> None:
    """An arm that takes half as long per token and gives twice as many has half the latency and cost."""
    found = speed_from([seen(1.0), seen(1.1)] * 3, [seen(0.5), seen(0.55)] * 3)
    assert (found.tpot_ms.n, found.tpot_ms.ratio) == (3, pytest.approx(0.5))
    assert found.tokens_per_s[4].ratio == pytest.approx(2.0)
    assert found.score.ratio == pytest.approx(0.5)
    assert found.tpot_ms.base == pytest.approx(20.0 * math.sqrt(1.1))


def test_half_a_round_is_no_round() -> None:
    """An arm that lacks a pass is not compared."""
    with pytest.raises(ValueError, match="no whole rounds"):
        speed_from([seen(1.0)] * 3, [seen(1.0)] * 4)
