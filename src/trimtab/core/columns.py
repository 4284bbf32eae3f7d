"""A fleet view as columns of numbers, so that a thousand replicas are judged in one sweep.

Columns are another shape of the same values: whoever has a `FleetView` gets them from it, and whoever keeps them up to
date all the time (the load state) hands them over with it. They are never written to the ledger. What replicas hold of
a prompt has the same shape in `core.holdings`.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Final, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]
Rows = tuple[Floats, ...]

_MULTIPLY_1: Final = np.uint64(0xBF58476D1CE4E5B9)
_MULTIPLY_2: Final = np.uint64(0x94D049BB133111EB)
_ALL: Final = 0xFFFFFFFFFFFFFFFF
_FEW: Final = 6
_SHIFTS: Final = (np.uint64(30), np.uint64(27), np.uint64(31))


_ROWS: Final = 7
_KV, _REPORTED = 4, 5
_ROW_NAMES: Final = frozenset(
    ("running", "waiting", "prefill", "decode", "kv", "reported", "seen_at_s")
)


CHANGED_MAX: Final = 4
"""Changes that are put right one by one; more of them are found by a new sweep, which costs about as much as five."""


Key = TypeVar("Key")


class WorkRules(Protocol):
    """How work is turned into figures: of all replicas at once, and of one, by the same law."""

    def whole(self, columns: "FleetColumns") -> Rows:
        """Return rows of figures over all replicas."""
        ...

    def one(
        self, running: float, waiting: float, prefill: float, decode: float, slots: float
    ) -> tuple[float, ...]:
        """Return the figures of one replica."""
        ...


class FleetColumns:
    """One value for each replica, in order of id. `kv` is not a number where the share of KV in use is unknown.

    `reported`: requests on the replica by its engine's own count, of all gateways, not a number where that is unknown.
    `running` to `seen_at_s` are rows of one block, so that a copy is one copy.
    `ready` and `slots` are shared by copies and change by `set_ready` and `set_slots` only, `kv` by `set_kv`, so that
    what was made of them can be kept (`of_slots`, `of_kv`). For the same reason whoever changes `running` to `decode`
    says where (`changed`, `of_work`).
    """

    __slots__ = (
        "_changed",
        "_hashes",
        "_inverses",
        "_kv_memo",
        "_none",
        "_orders",
        "_slots_memo",
        "_work",
        "_zeros",
        "block",
        "decode",
        "ids",
        "kv",
        "places",
        "prefill",
        "ready",
        "ready_count",
        "reported",
        "running",
        "seen_at_s",
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
        self._hashes: list[int] = hashes.tolist()
        # The last other table of places that was asked for, its size then, and the order of ours in it; copies share
        # it. Tables only grow (whoever takes a name out makes a new one), so the same size is the same table.
        self._orders: list[tuple[Mapping[str, int], int, NDArray[np.intp] | None]] = []
        self._inverses: list[tuple[NDArray[np.intp], NDArray[np.intp]]] = []
        self._slots_memo: dict[str, tuple[object, Floats]] = {}
        self._kv_memo: list[tuple[object, Flags | None]] = []
        self._zeros = np.zeros(count)
        self._none = np.zeros(count, dtype=np.bool_)
        self._zeros.flags.writeable = self._none.flags.writeable = False
        # What was made of running to decode, for which key, and where those have changed since.
        self._work: tuple[object, Rows] | None = None
        self._changed: list[int] = []
        self.ready = self._none
        self.ready_count = 0
        self.slots = np.ones(count)
        block = np.zeros((_ROWS, count))
        block[_KV] = block[_REPORTED] = np.nan
        self._cut(block)

    def _cut(self, block: Floats) -> None:
        self.block = block
        self.running, self.waiting, self.prefill, self.decode = block[:_KV]
        self.kv, self.reported, self.seen_at_s = block[_KV:]

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
        made.ids, made.places, made._hashes = self.ids, self.places, self._hashes
        made._orders, made._inverses = self._orders, self._inverses
        made._slots_memo, made._kv_memo = self._slots_memo, self._kv_memo
        made._zeros, made._none = self._zeros, self._none
        made._work, made._changed = None, []
        made.ready, made.ready_count, made.slots = self.ready, self.ready_count, self.slots
        made.block = self.block.copy()
        return made

    def __getattr__(self, name: str) -> Floats:
        """Cut the rows of a copy at their first use: most copies are never looked at."""
        if name not in _ROW_NAMES:
            raise AttributeError(name)
        self._cut(self.block)
        row: Floats = object.__getattribute__(self, name)
        return row

    def set_ready(self, at: int, ready: bool) -> None:
        """Say whether one replica takes requests."""
        if bool(self.ready[at]) is not ready:
            self.ready = self.ready.copy()
            self.ready[at] = ready
            self.ready_count += 1 if ready else -1
            self._kv_memo = []

    def set_slots(self, at: int, slots: int) -> None:
        """Change the slots of one replica."""
        if self.slots[at] != slots:
            self.slots = self.slots.copy()
            self.slots[at] = slots
            self._slots_memo, self._work = {}, None

    def set_kv(self, at: int | None, shares: float | Floats) -> None:
        """Change the share of KV in use of one replica, or of all for None."""
        self.block[_KV, slice(None) if at is None else at] = shares
        self._kv_memo = []

    def of_slots(self, what: str, key: object, made: Callable[[Floats], Floats]) -> Floats:
        """Return what `made` makes of the slots, which must not change.

        The last answer to `what` is kept for the very same key.
        """
        found = self._slots_memo.get(what)
        if found is None or found[0] is not key:
            found = self._slots_memo[what] = (key, made(self.slots))
        return found[1]

    def of_kv(self, key: object, made: Callable[[Floats, Flags], Flags | None]) -> Flags | None:
        """Return what `made` makes of the shares of KV and of who is ready, kept like `of_slots`."""
        memo = self._kv_memo
        if not memo or memo[0][0] is not key:
            memo[:] = [(key, made(self.kv, self.ready))]
        return memo[0][1]

    def changed(self, at: int) -> None:
        """Say that the work of one replica has changed."""
        if self._work is None or at in self._changed:
            return
        self._changed.append(at)
        if len(self._changed) > CHANGED_MAX:
            # Nobody may ever ask again: a policy that looks at no work has come.
            self._work = None
            self._changed.clear()

    def of_work(self, key: Key, rules: Callable[[Key], WorkRules]) -> Rows:
        """Return what the rules of a key make of the work on all replicas, rows which must not change.

        The answer for the last key is kept and put right where work has changed: between two decisions that is in a few
        places.
        """
        work, changed = self._work, self._changed
        if work is None or work[0] is not key:
            work = self._work = (key, rules(key).whole(self))
        elif changed:
            law, rows = rules(key), work[1]
            for at in changed:
                running, waiting, prefill, decode = self.block[:_KV, at].tolist()
                found = law.one(running, waiting, prefill, decode, self.slots.item(at))
                for row, figure in zip(rows, found, strict=True):
                    row[at] = figure
        if changed:
            changed.clear()
        return work[1]

    def place(self, replica: str) -> int | None:
        """Return where a replica stands, None if it is not there."""
        return self.places[0].get(replica)

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

    def inverse_of(self, places: Mapping[str, int]) -> NDArray[np.intp] | None:
        """Return where each place of another table stands here, -1 where it is not here.

        None: each stands where it stands there, those that are not here behind all that are.
        """
        order = self.order_of(places)
        if order is None:
            return None
        for known, inverse in self._inverses:
            if known is order:
                return inverse
        # Places may be free in between, where replicas left.
        found = np.full(max(places.values(), default=-1) + 1, -1, dtype=np.intp)
        here = (order >= 0).nonzero()[0]
        found[order[here]] = here
        self._inverses[:] = [(order, found)]
        return found

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

        `key_hash`: 64 bits of the session.

        Rendezvous hashing: the finalizer of splitmix64 (Steele, Lea, Flood, 2014) over both hashes. It does not depend
        on which other replicas there are.
        """
        hashes = self.places[1] if among is None else self.places[1][among]
        if hashes.size <= _FEW:
            # The same in plain numbers, which is quicker for so few.
            return np.array([_mixed(each ^ key_hash) for each in hashes.tolist()], dtype=np.uint64)
        mixed = hashes ^ np.uint64(key_hash)
        mixed = (mixed ^ (mixed >> _SHIFTS[0])) * _MULTIPLY_1
        mixed = (mixed ^ (mixed >> _SHIFTS[1])) * _MULTIPLY_2
        return mixed ^ (mixed >> _SHIFTS[2])

    def session_first(self, key_hash: int, among: Sequence[int]) -> int:
        """Return the first of some places in a session's order (`session_places`); there is at least one."""
        return min(among, key=lambda at: _mixed(self._hashes[at] ^ key_hash))


def _mixed(value: int) -> int:
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _ALL
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _ALL
    return value ^ (value >> 31)
