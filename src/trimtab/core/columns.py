"""A fleet view and what its replicas hold as columns of numbers, so that a thousand replicas are judged in one sweep.

Columns are another shape of the same values: whoever has a `FleetView` or a tuple of `Held` gets them from it, and
whoever keeps them up to date all the time (the load state, the prefix index) hands them over with it. They are never
written to the ledger.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]

_MULTIPLY_1: Final = np.uint64(0xBF58476D1CE4E5B9)
_MULTIPLY_2: Final = np.uint64(0x94D049BB133111EB)
_SHIFTS: Final = (np.uint64(30), np.uint64(27), np.uint64(31))


class FleetColumns:
    """One value for each replica, in order of id. `kv` is not a number where the share of KV in use is unknown."""

    __slots__ = (
        "_memo",
        "_none",
        "_orders",
        "_zeros",
        "decode",
        "ids",
        "kv",
        "places",
        "prefill",
        "ready",
        "running",
        "slots",
        "waiting",
    )

    def __init__(
        self, ids: tuple[str, ...], places: Mapping[str, int], hashes: NDArray[np.uint64]
    ) -> None:
        """Take the ids in order, where each stands, and a hash of each."""
        count = len(ids)
        self.ids = ids
        self.places = (places, hashes)
        # The last other table of places that was asked for, its size then, and the order of ours in it; copies share
        # it. Tables only grow, so the same size is the same table.
        self._orders: list[tuple[Mapping[str, int], int, NDArray[np.intp] | None]] = []
        self._memo: list[tuple[object, Floats]] = []
        self._zeros = np.zeros(count)
        self._none = np.zeros(count, dtype=np.bool_)
        self._zeros.flags.writeable = self._none.flags.writeable = False
        self.ready = np.zeros(count, dtype=np.bool_)
        self.slots = np.ones(count)
        self.running = np.zeros(count)
        self.waiting = np.zeros(count)
        self.prefill = np.zeros(count)
        self.decode = np.zeros(count)
        self.kv = np.full(count, np.nan)

    @property
    def zeros(self) -> Floats:
        """A zero for each replica, the same array at each call, which must not change."""
        return self._zeros

    @property
    def none(self) -> Flags:
        """A flag for each replica, none of them set: the same array at each call, which must not change."""
        return self._none

    def copy(self) -> "FleetColumns":
        """Return columns that later changes do not reach."""
        made = object.__new__(FleetColumns)
        made.ids, made.places, made._orders = self.ids, self.places, self._orders
        made._memo, made._zeros, made._none = self._memo, self._zeros, self._none
        made.ready, made.slots, made.kv = self.ready.copy(), self.slots.copy(), self.kv.copy()
        made.running, made.waiting = self.running.copy(), self.waiting.copy()
        made.prefill, made.decode = self.prefill.copy(), self.decode.copy()
        return made

    def place(self, replica: str) -> int | None:
        """Return where a replica stands, None if it is not there."""
        return self.places[0].get(replica)

    def set_slots(self, at: int, slots: int) -> None:
        """Change the slots of one replica."""
        self.slots[at] = slots
        self._memo = []

    def of_slots(self, key: object, made: Callable[[Floats], Floats]) -> Floats:
        """Return what `made` makes of the slots; the last answer is kept for the very same key, and must not change."""
        memo = self._memo
        if not memo or memo[0][0] is not key:
            memo[:] = [(key, made(self.slots))]
        return memo[0][1]

    def order_of(self, places: Mapping[str, int]) -> NDArray[np.intp] | None:
        """Return where each replica stands in another table of places, -1 where it is not in it.

        None: each stands where it stands here.
        """
        for table, size, order in self._orders:
            if table is places and size == len(places):
                return order
        found = np.array([places.get(id_, -1) for id_ in self.ids], dtype=np.intp)
        same = bool((found == np.arange(found.size)).all())
        self._orders[:] = [(places, len(places), None if same else found)]
        return None if same else found

    def mask(self, replicas: Sequence[str]) -> Flags:
        """Return which of them are named."""
        found = np.zeros(len(self.ids), dtype=np.bool_)
        known = self.places[0]
        for replica in replicas:
            at = known.get(replica)
            if at is not None:
                found[at] = True
        return found

    def session_places(
        self, key_hash: int, among: NDArray[np.intp] | None = None
    ) -> NDArray[np.uint64]:
        """Return a number for each replica (of those at the places `among`) that a session orders them by.

        Rendezvous hashing: the finalizer of splitmix64 (Steele, Lea, Flood, 2014) over both hashes. It does not depend
        on which other replicas there are.
        """
        hashes = self.places[1] if among is None else self.places[1][among]
        mixed = hashes ^ np.uint64(key_hash & 0xFFFFFFFFFFFFFFFF)
        mixed = (mixed ^ (mixed >> _SHIFTS[0])) * _MULTIPLY_1
        mixed = (mixed ^ (mixed >> _SHIFTS[1])) * _MULTIPLY_2
        return mixed ^ (mixed >> _SHIFTS[2])


class HeldColumns:
    """How many tokens of a prompt each replica is believed to hold and would overwrite; those left out hold none."""

    __slots__ = ("_places", "best", "displaced", "displaces", "tokens")

    def __init__(
        self,
        places: Mapping[str, int],
        tokens: Floats,
        displaced: Floats,
        *,
        best: int | None = None,
        displaces: bool | None = None,
    ) -> None:
        """Take where each replica stands in the arrays; `best` (most held) and `displaces` (any is) where known."""
        self._places = places
        self.tokens = tokens
        self.displaced = displaced
        if best is None:
            best = int(tokens.max()) if tokens.size else 0
        self.best = best
        self.displaces = bool(displaced.any()) if displaces is None else displaces

    def by(self, replica: str) -> int:
        """Return the tokens a replica is believed to hold."""
        at = self._places.get(replica)
        return 0 if at is None or at >= self.tokens.size else int(self.tokens[at])

    def displaced_by(self, replica: str) -> int:
        """Return the tokens of other prompts that a replica would overwrite."""
        at = self._places.get(replica)
        return 0 if at is None or at >= self.tokens.size else int(self.displaced[at])

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
    """Return the places of the bits that are set in an integer, the lowest first."""
    if bits & (bits - 1) == 0:
        return np.array([bits.bit_length() - 1] if bits else [], dtype=np.intp)
    octets = np.frombuffer(bits.to_bytes((bits.bit_length() + 7) // 8, "little"), dtype=np.uint8)
    return np.unpackbits(octets, bitorder="little").nonzero()[0]
