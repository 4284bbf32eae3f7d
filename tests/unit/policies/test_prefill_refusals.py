"""Prefill replicas that answer that they cannot serve are not asked again and again."""

import pytest

from trimtab.policies.pair_breaker import IN_A_ROW, PAUSE_MAX_S, PAUSE_S
from trimtab.policies.prefill_refusals import PrefillRefusals, is_unavailable


def refused(times: int, now_s: float = 0.0) -> PrefillRefusals:
    made = PrefillRefusals()
    for _ in range(times):
        made.refused("p", now_s)
    return made


def is_out(refusals: PrefillRefusals, now_s: float, *, computing: bool = False) -> bool:
    return refusals.is_left_out("p", now_s, computing=computing)


def test_replica_that_refuses_in_a_row_is_left_out_for_a_pause() -> None:
    """A few refusals are none yet; another replica has nothing to do with them."""
    assert not is_out(refused(IN_A_ROW - 1), 0.0)
    made = refused(IN_A_ROW)
    assert is_out(made, PAUSE_S - 0.1)
    assert not is_out(made, PAUSE_S)
    assert not made.is_left_out("other", 0.0, computing=False)


def test_after_the_pause_one_prompt_goes_and_each_refusal_doubles_it() -> None:
    """While the probe is under way the others stay."""
    made = refused(IN_A_ROW)
    assert is_out(made, PAUSE_S, computing=True)
    made.refused("p", PAUSE_S)
    assert is_out(made, PAUSE_S + 2.0 * PAUSE_S - 0.1)
    assert not is_out(made, PAUSE_S + 2.0 * PAUSE_S)


def test_computed_prompt_ends_what_was_counted() -> None:
    """Refusals now and then leave nobody out."""
    made = refused(IN_A_ROW - 1)
    made.computed("p")
    made.refused("p", 0.0)
    assert not is_out(made, 0.0)


def test_replica_that_says_when_to_come_back_is_asked_then_and_not_before() -> None:
    """At once, for as long as it says, within a bound; a shorter word of one under way does not shorten it."""
    made = PrefillRefusals()
    made.refused("p", 0.0, retry_after_s=30.0)
    made.refused("p", 1.0, retry_after_s=5.0)
    assert is_out(made, 29.9)
    assert not is_out(made, 30.0)
    made.refused("p", 30.0, retry_after_s=10.0 * PAUSE_MAX_S)
    assert not is_out(made, 30.0 + PAUSE_MAX_S)


def test_replica_that_left_is_forgotten() -> None:
    """A new one of its name refused nothing."""
    made = refused(IN_A_ROW)
    made.forget("p")
    assert not is_out(made, 0.0)


@pytest.mark.parametrize(
    ("status", "told"), [(429, True), (500, True), (503, True), (400, False), (422, False)]
)
def test_only_what_speaks_of_the_replica_counts(status: int, told: bool) -> None:
    """A request that is refused for what it asks would be refused elsewhere."""
    assert is_unavailable(status) is told
