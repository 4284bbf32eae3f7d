"""A fleet that fails is not asked twice as much: retries are a share of the requests, with a free few."""

import pytest

from trimtab.policies.retry_budget import RetryBudget


def test_free_retries_are_there_before_any_request_and_no_more_than_those() -> None:
    """A quiet gateway may retry its few requests; the free ones run out."""
    budget = RetryBudget(share=0.2, free=3, window_s=10.0)
    assert [budget.may_retry(0.0) for _ in range(5)] == [True, True, True, False, False]


def test_requests_earn_a_share_of_retries() -> None:
    """Fifty requests at a share of a fifth earn ten retries, and not one more."""
    budget = RetryBudget(share=0.2, free=0, window_s=10.0)
    for _ in range(50):
        budget.saw_request(1.0)
    assert budget.left(1.0) == 10
    assert sum(budget.may_retry(1.0) for _ in range(50)) == 10


def test_what_was_earned_and_spent_leaves_with_the_window() -> None:
    """After the window neither the requests nor the retries of it count."""
    budget = RetryBudget(share=0.5, free=2, window_s=10.0)
    for _ in range(10):
        budget.saw_request(0.0)
    assert sum(budget.may_retry(0.5) for _ in range(20)) == 7
    assert budget.left(9.0) == 0
    assert budget.left(10.6) == 2


def test_looking_at_the_budget_spends_nothing() -> None:
    """`left` may be asked for a page as often as anybody likes."""
    budget = RetryBudget(share=0.0, free=1)
    assert [budget.left(0.0) for _ in range(3)] == [1, 1, 1]


def test_a_clock_that_stands_still_or_steps_back_breaks_nothing() -> None:
    """A time before the last one counts into the latest slice."""
    budget = RetryBudget(share=1.0, free=0)
    budget.saw_request(5.0)
    budget.saw_request(4.0)
    assert budget.left(3.0) == 2


@pytest.mark.parametrize(
    ("share", "free", "window_s"), [(-0.1, 1, 1.0), (1.1, 1, 1.0), (0.1, -1, 1.0), (0.1, 1, 0.0)]
)
def test_a_budget_out_of_range_is_refused(share: float, free: int, window_s: float) -> None:
    """No budget of more than one retry per request, and none without a window."""
    with pytest.raises(ValueError, match="retry budget"):
        RetryBudget(share=share, free=free, window_s=window_s)
