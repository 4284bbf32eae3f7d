"""Where each session (or request) stands in [0, 1): a slice of share s holds those whose place is below s.

Two ways. *Hashed*: the place is a hash of the session and the lever's name. It needs no memory, so it is the same in
every gateway and after a restart; of few sessions a small slice may hold none, or several times its share, by chance.
*Dealt*: for one gateway whose whole life is one comparison, as a tune's is.

Dealt places are given in order of first appearance along the golden-ratio sequence, which fills [0, 1) more evenly
than hashes do: of any ten new sessions in a row about one is in a slice of 10%, so that a small slice is never
empty by bad luck and never twice its size. A session keeps its place for as long as it is remembered; the sequence
starts at a place drawn per lever, so that no session is always the first to meet a candidate.
"""

from collections import OrderedDict
from typing import Final

from trimtab.core.traffic import hashed_place

SESSIONS_MAX: Final = 100_000
"""Sessions remembered; the one longest unseen goes, and meets a new place if it returns."""

_STEP: Final = 0.6180339887498949


class HashedPlaces:
    """Places that any gateway works out alike, before and after a restart; nothing is remembered."""

    def of(self, session: str, lever: str) -> float:
        """Return the session's place for a lever."""
        return hashed_place(session, lever)

    def peek(self, session: str, lever: str) -> float:
        """Return what `of` returns."""
        return hashed_place(session, lever)


class Places:
    """Deals out places to sessions, anew for each lever."""

    def __init__(self, sessions_max: int = SESSIONS_MAX) -> None:
        self._max = sessions_max
        self._lever: str | None = None
        self._start = 0.0
        self._dealt = 0
        self._places: OrderedDict[str, float] = OrderedDict()

    def of(self, session: str, lever: str) -> float:
        """Return the session's place for the lever that is being proven."""
        if lever != self._lever:
            # The first session to come lies inside any slice; which one that is differs by lever.
            self._lever, self._dealt = lever, 0
            self._start = 0.05 * hashed_place(session, lever)
            self._places.clear()
        if session in self._places:
            self._places.move_to_end(session)
            return self._places[session]
        place = (self._start + self._dealt * _STEP) % 1.0
        self._dealt += 1
        self._places[session] = place
        if len(self._places) > self._max:
            self._places.popitem(last=False)
        return place

    def peek(self, session: str, lever: str) -> float:
        """Return what `of` would return now, and remember nothing."""
        if lever != self._lever:
            return 0.05 * hashed_place(session, lever)
        found = self._places.get(session)
        return (self._start + self._dealt * _STEP) % 1.0 if found is None else found


def places_of(how: str) -> HashedPlaces | Places:
    """Return new places as configured: "hashed" or "dealt"."""
    return HashedPlaces() if how == "hashed" else Places()
