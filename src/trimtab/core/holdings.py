"""What replicas hold of one prompt, as columns or as groups of replicas that hold the same.

Groups are what the prefix index finds; arrays over all replicas are made of them where somebody asks for them.
"""

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from trimtab.core.columns import Flags, FleetColumns, Floats

Groups = tuple[tuple[int, int], ...]
"""Replicas by the bits of an integer, and how many tokens each of them holds."""


class Match(NamedTuple):
    """Replicas that hold the same: the bits of their places, the only place or -1, a flag for each place or None."""

    tokens: int
    bits: int
    first: int
    flags: Flags | None

    def places(self, most: int | None = None) -> Sequence[int]:
        """Return the places, the lowest first, so many at most."""
        if self.flags is None:
            return (self.first,)
        found: list[int] = places_of(self.bits)[:most].tolist()
        return found


PLACES_MAX: Final = 1024
"""Sets of replicas whose places are remembered: who holds a common head is asked again and again."""

_PLACES: Final[dict[int, NDArray[np.intp]]] = {}
_FLAGS: Final[dict[tuple[int, int], Flags]] = {}


class HeldColumns:
    """How many tokens of a prompt each replica is believed to hold and would overwrite; those left out hold none."""

    __slots__ = ("_groups", "_places", "_tokens", "best", "displaced", "displaces", "shortest")

    def __init__(
        self,
        places: Mapping[str, int],
        tokens: Floats | None,
        displaced: Floats,
        *,
        best: int | None = None,
        displaces: bool | None = None,
        shortest: int = 0,
        groups: Groups | None = None,
    ) -> None:
        """Take where each replica stands in the arrays, and where known: `best` (most held), `displaces` (any is).

        `shortest`: who holds anything holds at least so many tokens. `groups`: who holds as much as another, those that
        hold more later, instead of `tokens`: then no array is made until somebody asks for one.
        """
        self._places = places
        self._tokens = tokens
        self._groups = groups
        self.displaced = displaced
        self.shortest = shortest
        if best is None:
            best = int(tokens.max()) if tokens is not None and tokens.size else 0
        self.best = best
        self.displaces = bool(displaced.any()) if displaces is None else displaces

    @property
    def tokens(self) -> Floats:
        """The tokens held, in the order of the places."""
        found = self._tokens
        if found is None:
            found = self._tokens = np.zeros(self.displaced.size)
            for bits, tokens in self._groups or ():
                found[places_of(bits)] = tokens
        return found

    def matches(self, columns: FleetColumns, least: int) -> list[Match] | None:
        """Return who holds how much, in the order of a fleet's columns, those that hold more later.

        Whoever is in none holds nothing, or less than `least`. None: it is known by arrays alone.
        """
        if self._groups is None:
            return None
        inverse = columns.inverse_of(self._places)
        count = len(columns.ids)
        found: list[Match] = []
        for bits, tokens in self._groups:
            if tokens < least or not tokens:
                continue
            if inverse is not None:
                bits = _moved(bits, inverse, count)
            elif bits >> count:
                bits &= (1 << count) - 1
            if bits & (bits - 1):
                found.append(Match(tokens, bits, -1, flags_of(bits, count)))
            elif bits:
                found.append(Match(tokens, bits, bits.bit_length() - 1, None))
        return found

    def corrected(self, exact: Mapping[str, int], ids: tuple[str, ...]) -> "HeldColumns":
        """Return the same for these replicas, with what is known exactly of some of them."""
        tokens = np.array([exact.get(id_, self.by(id_)) for id_ in ids], dtype=np.float64)
        displaced = np.array([self.displaced_by(id_) for id_ in ids], dtype=np.float64)
        return HeldColumns({id_: at for at, id_ in enumerate(ids)}, tokens, displaced)

    def by(self, replica: str) -> int:
        """Return the tokens a replica is believed to hold."""
        at = self._places.get(replica)
        if at is None or at >= self.displaced.size:
            return 0
        if self._tokens is not None:
            return int(self._tokens[at])
        for bits, tokens in self._groups or ():
            if bits >> at & 1:
                return tokens
        return 0

    def displaced_by(self, replica: str) -> int:
        """Return the tokens of other prompts that a replica would overwrite."""
        at = self._places.get(replica)
        return 0 if at is None or at >= self.displaced.size else int(self.displaced[at])

    def over(self, columns: FleetColumns) -> tuple[Floats, Floats]:
        """Return both arrays in the order of a fleet's columns."""
        if self._places is columns.places[0]:
            return self.tokens, self.displaced
        order, count = columns.order_of(self._places), len(columns.ids)
        if order is None and self.tokens.size >= count:
            return self.tokens[:count], self.displaced[:count]
        if order is None:
            order = np.arange(count)
        # A replica that came after these columns were made is in the table and not in them.
        none = (order < 0) | (order >= self.tokens.size)
        if not self.tokens.size:
            return np.zeros(len(columns.ids)), np.zeros(len(columns.ids))
        known = np.where(none, 0, order)
        tokens, displaced = self.tokens[known], self.displaced[known]
        tokens[none], displaced[none] = 0.0, 0.0
        return tokens, displaced


def places_of(bits: int) -> NDArray[np.intp]:
    """Return the places of the bits that are set in an integer, the lowest first. They must not change."""
    found = _PLACES.get(bits)
    if found is None:
        if len(_PLACES) >= PLACES_MAX:
            _PLACES.clear()
        found = _PLACES[bits] = _places_of(bits)
    return found


def flags_of(bits: int, count: int) -> Flags:
    """Return the first `count` bits of an integer as flags, which must not change."""
    found = _FLAGS.get((bits, count))
    if found is None:
        if len(_FLAGS) >= PLACES_MAX:
            _FLAGS.clear()
        octets = np.frombuffer(bits.to_bytes((count + 7) // 8, "little"), dtype=np.uint8)
        found = np.unpackbits(octets, count=count, bitorder="little").view(np.bool_)
        _FLAGS[bits, count] = found
    return found


def _moved(bits: int, places: NDArray[np.intp], count: int) -> int:
    """Return bits at the places where others stand in another order of `count`; a place of -1 is in it no more."""
    if bits and bits & (bits - 1) == 0:
        spot = places.item(bits.bit_length() - 1)
        return 1 << spot if spot >= 0 else 0
    spots = places[places_of(bits)]
    flags = np.zeros(count, dtype=np.bool_)
    flags[spots[spots >= 0]] = True
    return int.from_bytes(np.packbits(flags, bitorder="little").tobytes(), "little")


def _places_of(bits: int) -> NDArray[np.intp]:
    if bits & (bits - 1) == 0:
        return np.array([bits.bit_length() - 1] if bits else [], dtype=np.intp)
    octets = np.frombuffer(bits.to_bytes((bits.bit_length() + 7) // 8, "little"), dtype=np.uint8)
    return np.unpackbits(octets, bitorder="little").nonzero()[0]
