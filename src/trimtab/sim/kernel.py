"""The event queue of the simulator: a heap over virtual time with an explicit order of ties.

Law: events run in order of (time, rank, order of scheduling). Nothing else decides, so the same inputs give the same
run, byte for byte. An event may schedule others at its own time or later, never earlier. An event cannot be taken out:
whoever may change its mind gives the event a number and ignores it if the number is no longer the latest.

Failure mode: an event that always schedules another at its own time never lets time go on; `run` stops at `events_max`
and says where.
"""

import heapq
from collections.abc import Callable
from typing import Any, Final

EVENTS_MAX: Final = 1_000_000_000

Handler = Callable[[float, Any], None]


class SimulationError(RuntimeError):
    """A simulation that cannot go on; the message names the time and the cause."""


class Kernel:
    """Virtual time in seconds and the events still to come. `run` may be called again to go on."""

    __slots__ = ("_heap", "_seq", "events", "now_s")

    def __init__(self) -> None:
        self.now_s = 0.0
        self.events = 0
        self._heap: list[tuple[float, int, int, Handler, Any]] = []
        self._seq = 0

    def at(self, time_s: float, handler: Handler, payload: Any = None, rank: int = 0) -> None:
        """Schedule `handler(time, payload)`; of equal times the lower rank comes first, then the earlier scheduled.

        Raises `SimulationError` for a time before now.
        """
        if not time_s >= self.now_s:
            raise SimulationError(f"an event at {time_s} s was scheduled at {self.now_s} s")
        self._seq += 1
        heapq.heappush(self._heap, (time_s, rank, self._seq, handler, payload))

    def run(self, until_s: float = float("inf"), *, events_max: int = EVENTS_MAX) -> None:
        """Run events up to and including `until_s`; raises `SimulationError` after `events_max` of them."""
        heap, pop = self._heap, heapq.heappop
        left = events_max
        while heap and heap[0][0] <= until_s:
            if left == 0:
                raise SimulationError(
                    f"{events_max} events did not reach {until_s} s; stopped at {self.now_s} s"
                )
            left -= 1
            time_s, _, _, handler, payload = pop(heap)
            self.now_s = time_s
            handler(time_s, payload)
        self.events += events_max - left
        if until_s != float("inf"):
            self.now_s = max(self.now_s, until_s)

    @property
    def pending(self) -> int:
        """Events that have not run."""
        return len(self._heap)

    @property
    def next_s(self) -> float | None:
        """The time of the next event, None if there is none."""
        return self._heap[0][0] if self._heap else None
