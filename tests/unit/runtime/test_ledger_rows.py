"""What is checked of an event before the ledger takes it, and ids that sort as they were made."""

import math

import msgspec
import pytest
from events_kit import every_event, request

from trimtab.core.events import RequestServed, decode_event
from trimtab.runtime.ledger_rows import EventIds, encode_checked

NO_NUMBERS = [math.nan, math.inf, -math.inf]


def with_number(place: str, number: float) -> RequestServed:
    """Return a request of which one number is what is given."""
    event, replace = request(), msgspec.structs.replace
    assert event.decision is not None
    assert event.view is not None
    match place:
        case "arrival":
            return replace(event, record=replace(event.record, arrived_at_s=number))
        case "decision":
            return replace(event, decision=replace(event.decision, at_s=number))
        case "term":
            first = replace(event.decision.candidates[0], terms={"wait": number, "prefill": 1.0})
            return replace(event, decision=replace(event.decision, candidates=(first,)))
        case _:
            first_replica = replace(event.view.replicas[0], seen_at_s=number)
            return replace(event, view=replace(event.view, replicas=(first_replica,)))


@pytest.mark.parametrize("number", NO_NUMBERS)
@pytest.mark.parametrize("place", ["arrival", "decision", "term", "replica"])
def test_request_with_what_is_no_number_is_refused(place: str, number: float) -> None:
    """It could not be read again, and with it the whole ledger."""
    problem, body = encode_checked(with_number(place, number))
    assert problem is not None
    assert "RequestServed" in problem
    assert body == b""


def test_every_event_that_is_taken_can_be_read_again() -> None:
    """What goes in comes out."""
    for event in every_event():
        problem, body = encode_checked(event)
        assert problem is None
        assert decode_event(body) == event


def test_ids_sort_as_they_were_made() -> None:
    """Within a millisecond, over many of them, and where the clock goes back."""
    ids = EventIds(run=5)
    times = [0.0, 0.0, 0.001, 0.9995, 1.0, 1e9, 1e9, 5.0, 1e9 + 33.0]
    made = [ids.next(at_s) for at_s in times for _ in range(40)]
    assert made == sorted(made)
    assert len(set(made)) == len(made)
    assert {len(one) for one in made} == {16}
