"""Sessions whose next request waits for the answer to the one before, as people and agents do.

Without it a slow fleet gets the next turn while the last one still runs, which no user would send and which finds
nothing of it in a cache. Requests of one session keep their order; what was held arrives at the moment the answer ends.
"""

from collections import deque

import msgspec

from trimtab.sim.arrivals import Arrival


class Turns:
    """Which sessions have a request under way, and what waits for its end."""

    def __init__(self) -> None:
        self._held: dict[str, deque[Arrival]] = {}

    def may_go(self, arrival: Arrival) -> bool:
        """Say whether a request may be sent now; one that may not is held."""
        held = self._held.get(arrival.session)
        if held is None:
            self._held[arrival.session] = deque()
            return True
        held.append(arrival)
        return False

    def ended(self, now_s: float, session: str) -> Arrival | None:
        """Note the end of a session's request, however it ended; returns the next one, which arrives now."""
        held = self._held.get(session)
        if not held:
            self._held.pop(session, None)
            return None
        return msgspec.structs.replace(held.popleft(), at_s=now_s)
