"""The event queue: order, ties, the end of a run, and events that cannot be."""

from typing import Any

import pytest

from trimtab.sim.kernel import Kernel, SimulationError
from trimtab.sim.streams import Streams


def test_events_run_by_time_then_rank_then_order_of_scheduling() -> None:
    """Nothing else decides: not the payload, not when the heap was filled."""
    kernel, seen = Kernel(), []

    def note(at_s: float, name: Any) -> None:
        seen.append((at_s, name))

    kernel.at(2.0, note, "late")
    kernel.at(1.0, note, "second of equals", 1)
    kernel.at(1.0, note, "third of equals", 1)
    kernel.at(1.0, note, "first of equals", 0)
    kernel.run()
    assert seen == [
        (1.0, "first of equals"),
        (1.0, "second of equals"),
        (1.0, "third of equals"),
        (2.0, "late"),
    ]


def test_run_stops_at_the_time_given_and_goes_on_from_there() -> None:
    """An event at the very end of a run belongs to it; later ones stay."""
    kernel, seen = Kernel(), []
    for at_s in (1.0, 2.0, 3.0):
        kernel.at(at_s, lambda at_s, _: seen.append(at_s))
    kernel.run(2.0)
    assert (seen, kernel.now_s, kernel.pending, kernel.next_s) == ([1.0, 2.0], 2.0, 1, 3.0)
    kernel.run()
    assert (seen, kernel.events) == ([1.0, 2.0, 3.0], 3)


@pytest.mark.parametrize("at_s", [0.5, float("nan")])
def test_event_in_the_past_or_at_no_time_is_refused(at_s: float) -> None:
    """Time goes forward only."""
    kernel = Kernel()
    kernel.at(1.0, lambda *_: None)
    kernel.run()
    with pytest.raises(SimulationError, match=r"scheduled at 1\.0 s"):
        kernel.at(at_s, lambda *_: None)


def test_events_without_end_at_one_time_are_an_error_that_says_when() -> None:
    """A handler that never lets time go on must not hang a run."""
    kernel = Kernel()

    def again(at_s: float, _: Any) -> None:
        kernel.at(at_s, again)

    kernel.at(4.0, again)
    with pytest.raises(SimulationError, match=r"stopped at 4\.0 s"):
        kernel.run(events_max=1000)


def test_streams_differ_by_name_and_repeat_by_seed() -> None:
    """A part that draws more changes no other part."""
    first, second = Streams(7), Streams(7)
    first.stream("faults").random()
    assert first.stream("arrivals").random() == second.stream("arrivals").random()
    assert first.stream("a").random() != first.stream("b").random()
    assert Streams(8).stream("a").random() != Streams(7).stream("a").random()
