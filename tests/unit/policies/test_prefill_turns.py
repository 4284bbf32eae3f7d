"""Turns on a prefill replica: first come first served, and a much shorter prompt beside a long one, within bounds."""

import pytest

from trimtab.policies.prefill_turns import (
    PASS_RATIO,
    Lane,
    Turns,
    Waiting,
    ended,
    next_turn,
    tokens_waited_for,
)

LONG, SHORT = 1000, 200


def test_free_replica_takes_who_came_first() -> None:
    """Whatever its length."""
    found = next_turn(Turns(), [Waiting(2, SHORT), Waiting(1, LONG)], passes=True)
    assert found == (Turns(main=LONG, may_pass=LONG), 1, Lane.MAIN)
    assert next_turn(Turns(), [], passes=True) is None


def test_prompt_that_is_held_counts_by_what_is_left_of_it() -> None:
    """A long one that is nearly computed is passed by none; nor does it pass others, being computed whole there."""
    (turns, *_) = next_turn(Turns(), [Waiting(1, LONG, held=LONG - SHORT)], passes=True) or (None,)
    assert turns == Turns(main=SHORT, may_pass=SHORT)
    assert next_turn(turns, [Waiting(2, SHORT)], passes=True) is None
    busy = Turns(main=LONG, may_pass=LONG)
    assert next_turn(busy, [Waiting(2, LONG, held=LONG - 1)], passes=True) is None
    (all_held, *_) = next_turn(Turns(), [Waiting(1, LONG, held=LONG)], passes=True) or (None,)
    assert all_held == Turns(main=1, may_pass=1)


def test_much_shorter_prompt_passes_one_that_is_computed() -> None:
    """One at a time, the first of those that are short enough; one that is not so much shorter waits."""
    busy = Turns(main=LONG, may_pass=LONG)
    waiting = [Waiting(2, LONG // PASS_RATIO + 1), Waiting(3, SHORT), Waiting(4, SHORT)]
    found = next_turn(busy, waiting, passes=True)
    assert found == (Turns(main=LONG, passing=SHORT, may_pass=LONG - SHORT), 3, Lane.PASSING)
    assert next_turn(found[0], waiting, passes=True) is None
    assert next_turn(busy, waiting[:1], passes=True) is None
    assert next_turn(busy, waiting, passes=False) is None


def test_what_passes_a_prompt_adds_no_more_than_its_own_length() -> None:
    """However many short ones come, the long one ends."""
    turns, passed = Turns(main=LONG, may_pass=LONG), 0
    for number in range(20):
        found = next_turn(turns, [Waiting(number, SHORT)], passes=True)
        if found is None:
            break
        passed += SHORT
        turns = ended(found[0], Lane.PASSING)
    assert passed == LONG


def test_ended_prompt_frees_its_own_lane_alone() -> None:
    """The next long one may begin while a short one still runs in the other lane."""
    both = Turns(main=LONG, passing=SHORT, may_pass=300)
    assert ended(both, Lane.PASSING) == Turns(main=LONG, may_pass=300)
    after = ended(both, Lane.MAIN)
    assert after == Turns(passing=SHORT)
    found = next_turn(after, [Waiting(1, LONG)], passes=True)
    assert found is not None
    assert found[1:] == (1, Lane.MAIN)


@pytest.mark.parametrize(
    ("tokens", "before", "waits"),
    [
        (SHORT, [], 0.0),
        (SHORT, [SHORT, 300], 500.0),
        (LONG, [SHORT, LONG], 1200.0),
        # Half of the chunk that runs, and 56 tokens of the long one in its own second chunk.
        (SHORT, [LONG], 64.0 + 56.0),
        (SHORT, [LONG, LONG, SHORT], 64.0 + 56.0 + SHORT),
    ],
)
def test_short_prompt_waits_for_a_step_of_those_that_it_passes(
    tokens: int, before: list[int], waits: float
) -> None:
    """And for all of those that it does not pass."""
    assert tokens_waited_for(tokens, before, 128) == waits
