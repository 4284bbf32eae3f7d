"""Sessions that wait for their answers."""

from trimtab.sim.arrivals import Arrival
from trimtab.sim.turns import Turns


def arrival(at_s: float, session: str) -> Arrival:
    """A request of a session."""
    return Arrival(at_s=at_s, session=session, input_tokens=10, output_tokens=5)


def test_next_request_of_a_session_waits_for_the_end_of_the_one_before() -> None:
    """Others go at once; what was held arrives when the answer ends, in order, and then holds the next."""
    turns = Turns()
    assert turns.may_go(arrival(0.0, "a"))
    assert not turns.may_go(arrival(1.0, "a"))
    assert turns.may_go(arrival(1.5, "b"))
    assert not turns.may_go(arrival(2.0, "a"))
    assert turns.ended(4.0, "a") == arrival(4.0, "a")
    assert not turns.may_go(arrival(4.5, "a"))
    assert [turns.ended(5.0, "a"), turns.ended(6.0, "a")] == [arrival(5.0, "a"), arrival(6.0, "a")]
    assert turns.ended(7.0, "a") is None


def test_session_that_has_ended_goes_again_at_once() -> None:
    """Nothing is kept of a session without a request."""
    turns = Turns()
    assert turns.may_go(arrival(0.0, "a"))
    assert turns.ended(1.0, "a") is None
    assert turns.may_go(arrival(2.0, "a"))
    assert turns.ended(3.0, "nobody") is None
