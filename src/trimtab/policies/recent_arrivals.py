"""How often requests came to each replica of late: what a prompt that is computed there will keep waiting.

Law: n arrivals in the last W seconds are n / W a second, W being `WINDOW_S`, or less while counting has not gone on for
so long. Prompts that pass the one in question do not wait for it, so arrivals can be asked for above a size.

Failure mode: a rate is of the past. A burst that begins is seen late, and one that ended is expected for a window more.
"""

from collections import deque
from typing import Final

import msgspec

WINDOW_S: Final = 60.0
SHORTEST_S: Final = 10.0
"""Arrivals within less than this are spread over it: two at once are no rate."""

LEAST_S: Final = 1e-3
KEPT_MAX: Final = 256
"""Arrivals kept for a replica; of more within a window the rate is that of the last ones."""


class Arrivals(msgspec.Struct, frozen=True, kw_only=True):
    """Requests a second that come to a replica, and the prompt tokens that one has to compute, in the mean."""

    per_s: float = 0.0
    tokens: float = 0.0


NONE: Final = Arrivals()


class RecentArrivals:
    """When requests came to a replica, and with how many tokens to compute; bounded for each replica."""

    def __init__(self) -> None:
        self._came: dict[str, deque[tuple[float, int, str]]] = {}
        self._begun_s: float | None = None

    def begin(self, now_s: float) -> None:
        """Count from now on, if that was not so before: that nothing came is known only of a time that was watched."""
        if self._begun_s is None:
            self._begun_s = now_s

    def note(self, replica: str, request_id: str, now_s: float, tokens: int) -> None:
        """Note an arrival; a request that is decided for again right after counts once."""
        self.begin(now_s)
        came = self._came.get(replica)
        if came is None:
            came = self._came[replica] = deque(maxlen=KEPT_MAX)
        if not came or came[-1][2] != request_id:
            came.append((now_s, tokens, request_id))

    def seen(self, replica: str, now_s: float, *, above_tokens: float = 0.0) -> Arrivals:
        """Return the arrivals of late with more tokens to compute than `above_tokens`."""
        came = self._came.get(replica)
        if came is None or self._begun_s is None:
            return NONE
        is_full = len(came) == KEPT_MAX
        while came and came[0][0] < now_s - WINDOW_S:
            came.popleft()
            is_full = False
        if is_full:
            span_s = max(LEAST_S, now_s - came[0][0])
        else:
            span_s = max(SHORTEST_S, now_s - max(self._begun_s, now_s - WINDOW_S))
        counted = [tokens for _, tokens, _ in came if tokens > above_tokens]
        if not counted:
            return NONE
        return Arrivals(per_s=len(counted) / span_s, tokens=sum(counted) / len(counted))

    def forget(self, replica: str) -> None:
        """Drop what came to a replica that left."""
        self._came.pop(replica, None)
