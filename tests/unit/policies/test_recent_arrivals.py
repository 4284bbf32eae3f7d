"""How often requests came to a replica of late, and what they have to compute."""

import pytest

from trimtab.policies.recent_arrivals import KEPT_MAX, SHORTEST_S, WINDOW_S, RecentArrivals


def came(*arrivals: tuple[float, int]) -> RecentArrivals:
    """Arrivals at one replica: seconds, tokens to compute."""
    made = RecentArrivals()
    for number, (at_s, tokens) in enumerate(arrivals):
        made.note("a", f"q{number}", at_s, tokens)
    return made


def test_rate_is_over_the_window_or_over_what_was_counted_of_it() -> None:
    """One each two seconds, seen after half a window, after a whole one, and when it was long over."""
    made = came(*((2.0 * at, 100) for at in range(60)))
    half = came(*((2.0 * at, 100) for at in range(16)))
    assert half.seen("a", 30.0).per_s == pytest.approx(16 / 30.0)
    assert made.seen("a", 118.0).per_s == pytest.approx(31 / WINDOW_S)
    assert made.seen("a", 118.0 + 2 * WINDOW_S).per_s == 0.0


def test_a_few_at_once_are_no_rate() -> None:
    """What came within a moment after the start is spread over some seconds."""
    assert came((0.0, 9), (0.01, 9)).seen("a", 0.02).per_s == pytest.approx(2 / SHORTEST_S)


def test_more_than_are_kept_give_the_rate_of_the_last() -> None:
    """A thousand a second fill what is kept in a quarter of one."""
    made = came(*((at / 1000.0, 5) for at in range(4 * KEPT_MAX)))
    assert made.seen("a", 4 * KEPT_MAX / 1000.0).per_s == pytest.approx(1000.0, rel=0.01)


def test_those_above_a_size_alone_are_counted_with_their_own_mean() -> None:
    """A long prompt waits for long ones, and passes none."""
    made = came(*((float(at), 1000 if at % 3 == 0 else 50) for at in range(30)))
    every, long = made.seen("a", 30.0), made.seen("a", 30.0, above_tokens=250.0)
    assert (every.per_s, long.per_s) == (pytest.approx(1.0), pytest.approx(10 / 30.0))
    assert (every.tokens, long.tokens) == (pytest.approx(1100 / 3), 1000.0)


def test_request_that_is_decided_for_again_counts_once_and_a_replica_that_left_not_at_all() -> None:
    """A decision may be taken back and made anew."""
    made = RecentArrivals()
    for request in ("q", "q", "r"):
        made.note("a", request, 0.0, 10)
    assert made.seen("a", 20.0).per_s == pytest.approx(2 / 20.0)
    made.forget("a")
    assert made.seen("a", 20.0).per_s == 0.0
