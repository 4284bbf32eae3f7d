"""Hashed places: no memory, the same everywhere; what they cost in a small slice."""

import pytest

from trimtab.policies.places import HashedPlaces


def test_places_depend_on_session_and_lever_alone() -> None:
    """Two of them agree, in any order and after any history; another lever deals anew."""
    one, other = HashedPlaces(), HashedPlaces()
    sessions = [f"s{number}" for number in range(50)]
    places = [one.of(session, "lever") for session in sessions]
    assert [other.of(session, "lever") for session in reversed(sessions)] == places[::-1]
    assert [one.of(session, "another") for session in sessions] != places
    assert one.peek("s1", "lever") == one.of("s1", "lever")


@pytest.mark.parametrize("share", [0.01, 0.10, 0.50])
def test_of_many_sessions_the_slice_holds_its_share(share: float) -> None:
    """Within four standard deviations of 20,000 sessions."""
    places = HashedPlaces()
    n = 20_000
    inside = sum(places.of(f"s{number}", "lever") < share for number in range(n))
    assert inside == pytest.approx(n * share, abs=4.0 * (n * share * (1.0 - share)) ** 0.5)


def test_of_few_sessions_a_small_slice_may_hold_nobody() -> None:
    """This is what dealt places are for: of twenty sets of ten sessions some have no one in a tenth."""
    places = HashedPlaces()
    inside = [
        sum(places.of(f"{group} {number}", "lever") < 0.10 for number in range(10))
        for group in range(20)
    ]
    assert 0 in inside
    assert max(inside) >= 2
