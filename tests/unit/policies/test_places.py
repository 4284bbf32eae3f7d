"""Places in [0, 1): even from the first session on, and kept."""

import pytest

from trimtab.policies.places import Places


def dealt(places: Places, sessions: int, lever: str = "lever") -> list[float]:
    return [places.of(f"s{number}", lever) for number in range(sessions)]


@pytest.mark.parametrize("lever", [f"lever {number}" for number in range(30)])
def test_any_ten_new_sessions_hold_about_one_of_a_tenth(lever: str) -> None:
    """Never more than two, and never thirteen in a row without one."""
    inside = [place < 0.10 for place in dealt(Places(), 300, lever)]
    for start in range(287):
        assert sum(inside[start : start + 10]) <= 2
        assert sum(inside[start : start + 13]) >= 1
    assert sum(inside) == pytest.approx(30, abs=2)


def test_first_session_is_in_any_slice() -> None:
    """A small slice has somebody in it from the first session on."""
    assert dealt(Places(), 1)[0] < 0.10


def test_session_keeps_its_place() -> None:
    """However many come in between."""
    places = Places()
    first = dealt(places, 50)
    dealt(places, 500)
    assert dealt(places, 50) == first


def test_places_are_dealt_anew_for_each_lever() -> None:
    """The same sessions do not always meet the candidate; the lever before is forgotten."""
    places = Places()
    one = dealt(places, 100, "one")
    backwards = [places.of(f"s{number}", "two") for number in reversed(range(100))][::-1]
    assert backwards != one
    assert all(0.0 <= place < 1.0 for place in backwards)


def test_memory_is_bounded_and_forgets_the_longest_unseen() -> None:
    """The session seen again stays; the one not seen for longest meets a new place."""
    places = Places(sessions_max=3)
    first = dealt(places, 3)
    assert places.of("s0", "lever") == first[0]
    places.of("new", "lever")
    assert places.of("s0", "lever") == first[0]
    assert places.of("s1", "lever") != first[1]
    assert len(places._places) == 3


def test_peek_says_what_the_session_will_get_and_deals_nothing_out() -> None:
    """Asked any number of times, for sessions that are known and for new ones, before a lever's first and after."""
    places = Places()
    for number in range(5):
        seen = [places.peek(f"s{number}", "lever") for _ in range(3)]
        assert seen == [places.of(f"s{number}", "lever")] * 3
    assert places.peek("s0", "lever") == places.of("s0", "lever")
