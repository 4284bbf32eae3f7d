"""Which hand-overs are on their way now, by the prefill replica that their KV leaves: what shares a link with the next.

What the gateway moves itself is on its link until it has moved it. An engine that fetches by itself is taken to fetch
until the first token of the answer; where the answer comes in one piece, for as long as was predicted.
"""

from collections.abc import Callable

from trimtab.runtime.handover_passage import Passage


class OnLinks:
    """The hand-overs on every link. `now_s`: seconds of the monotonic clock."""

    def __init__(self, now_s: Callable[[], float]) -> None:
        self._now_s = now_s
        self._moving: dict[str, set[Passage]] = {}

    def count(self, source: str) -> int:
        """Return how many leave a prefill replica now; those that have come are dropped."""
        there = self._moving.get(source, set())
        now_s = self._now_s()
        for one in [one for one in there if not one.is_moving(now_s)]:
            self.ended(one)
        return len(there)

    def began(self, passage: Passage) -> None:
        """Note that KV begins to move, and with how many others on its link."""
        passage.sharing = self.count(passage.source.id)
        self._moving.setdefault(passage.source.id, set()).add(passage)

    def delivered(self, passage: Passage, *, streams: bool) -> None:
        """Note that a decode side has the KV, or knows where to fetch it. `streams`: its first token will tell."""
        predicted = passage.decision.remote
        if not streams and predicted is not None:
            moving_ms = predicted.terms["setup"] + predicted.terms["transfer"]
            passage.comes_by_s = self._now_s() + moving_ms / 1000.0
        if not passage.is_moving(self._now_s()):
            self.ended(passage)

    def ended(self, passage: Passage) -> None:
        """Note that it moves no more; a second call changes nothing."""
        there = self._moving.get(passage.source.id)
        if there is not None:
            there.discard(passage)
            if not there:
                del self._moving[passage.source.id]
