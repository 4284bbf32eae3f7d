"""Whether a ledger is whole: every hash, the order, the causes, and what retention left behind.

Law. With h(0) = 64 zeros, every row n has prev_hash = h(n-1) and h(n) = SHA-256(prev_hash, seq, id, cause_id, at_s,
body). Up to a checkpoint's `through_seq` rows may be missing, but only those the checkpoint lists as removed;
each remaining row still hashes to its own hash, and the checkpoint's `kept_hash` covers all of them.
What this cannot show: rows cut off at the very end, and a file that somebody rewrote as a whole.
"""

import hashlib
from collections.abc import Iterable
from typing import Protocol, TypeVar

import msgspec

from trimtab.core.events import GENESIS_HASH, Checkpoint, LedgerGap, kind_of, lever_of
from trimtab.core.state import FLOW_KINDS
from trimtab.runtime.ledger_rows import LedgerError, Row

LEDGER_GAP = "ledger_gap"
CHECKPOINT = "checkpoint"

_Event = TypeVar("_Event", Checkpoint, LedgerGap)


class _Kind(msgspec.Struct, frozen=True):
    kind: str


class Source(Protocol):
    """What verification reads: a consistent view of one ledger."""

    def rows(self, *, after_seq: int = 0) -> Iterable[Row]:
        """Every row in order of `seq`."""
        ...

    def rows_of_kind(self, kind: str) -> Iterable[Row]:
        """The rows of one kind in order of `seq`."""
        ...

    def seq_of(self, event_id: str) -> int | None:
        """The seq of an id, None if there is no such row."""
        ...


class Verification(msgspec.Struct, frozen=True, kw_only=True):
    """What verification found. `bad_seq` is the first seq that is wrong, with `problem` in words."""

    events: int
    head_seq: int
    head_hash: str
    folded_through_seq: int
    lost: int
    bad_seq: int | None = None
    problem: str | None = None

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong."""
        return self.bad_seq is None


_KIND = msgspec.json.Decoder(_Kind)


class _BrokenError(Exception):
    """Stops at the first row that is wrong."""

    def __init__(self, seq: int, problem: str) -> None:
        super().__init__(problem)
        self.seq = seq
        self.problem = problem


class KeptHash:
    """The digest over the seqs and hashes of the rows that a checkpoint kept."""

    def __init__(self) -> None:
        self._digest = hashlib.sha256()

    def add(self, row: Row) -> None:
        """Take in one kept row; rows come in order of `seq`."""
        self._digest.update(f"{row.seq} {row.hash}\n".encode())

    def hexdigest(self) -> str:
        """Return the digest so far."""
        return self._digest.hexdigest()


def verify(source: Source) -> Verification:
    """Check a ledger from its first row to its last, and stop at the first that is wrong."""
    walk = _Walk(source)
    try:
        walk.prepare()
        for row in source.rows():
            walk.step(row)
        walk.finish()
    except _BrokenError as broken:
        return walk.result(bad_seq=broken.seq, problem=broken.problem)
    return walk.result()


class _Walk:
    def __init__(self, source: Source) -> None:
        self._source = source
        self._checkpoint: Checkpoint | None = None
        self._through = 0
        self._gaps: list[LedgerGap] = []
        self._kept = KeptHash()
        self._kept_checked = False
        self._removed: list[tuple[int, int]] = []
        self._events = 0
        self._seq = 0
        self._hash: str | None = GENESIS_HASH
        self._id = ""

    def prepare(self) -> None:
        """Read first what explains the holes: the last checkpoint and the gaps."""
        self._gaps = [_read(row, LedgerGap) for row in self._source.rows_of_kind(LEDGER_GAP)]
        checkpoints = list(self._source.rows_of_kind(CHECKPOINT))
        if not checkpoints:
            return
        seq = checkpoints[-1].seq
        last = _read(checkpoints[-1], Checkpoint)
        if hashlib.sha256(last.state.encode()).hexdigest() != last.state_hash:
            raise _BrokenError(seq, "the checkpoint's state does not have the hash it names")
        self._checkpoint, self._through = last, last.through_seq
        self._removed = list(last.removed)

    def step(self, row: Row) -> None:
        """Check one row against the one before it."""
        if row.seq > self._through:
            self._finish_kept(row.seq)
        self._skip_removed(row.seq)
        if row.seq != self._seq + 1:
            raise _BrokenError(self._seq + 1, f"event {self._seq + 1} is missing")
        if self._hash is not None and row.prev_hash != self._hash:
            raise _BrokenError(row.seq, "its previous hash is not the hash of the event before it")
        if row.computed_hash() != row.hash:
            raise _BrokenError(row.seq, "its content does not have the hash it names")
        if row.id <= self._id:
            raise _BrokenError(row.seq, "its id does not come after the id before it")
        self._check_columns(row)
        self._check_cause(row)
        if row.seq <= self._through:
            self._kept.add(row)
        self._seq, self._hash, self._id = row.seq, row.hash, row.id
        self._events += 1

    def finish(self) -> None:
        """Check what only the end can tell."""
        self._finish_kept(self._seq + 1)

    def result(self, *, bad_seq: int | None = None, problem: str | None = None) -> Verification:
        return Verification(
            events=self._events,
            head_seq=self._seq,
            head_hash=self._hash or "",
            folded_through_seq=self._through,
            lost=sum(gap.lost for gap in self._gaps),
            bad_seq=bad_seq,
            problem=problem,
        )

    def _skip_removed(self, seq: int) -> None:
        while self._removed and self._removed[0][1] < seq:
            first, last = self._removed.pop(0)
            if first != self._seq + 1:
                raise _BrokenError(self._seq + 1, f"event {self._seq + 1} is missing")
            # The removed row's own hash is gone, so the next link cannot be checked.
            self._seq, self._hash = last, None

    def _finish_kept(self, seq: int) -> None:
        if self._checkpoint is None or self._kept_checked:
            return
        self._kept_checked = True
        self._skip_removed(seq)
        if self._seq != self._through:
            raise _BrokenError(self._seq + 1, f"event {self._seq + 1} is missing")
        if self._kept.hexdigest() != self._checkpoint.kept_hash:
            raise _BrokenError(1, "the events kept by the last checkpoint are not those it kept")
        self._hash, self._id = self._checkpoint.chain_hash, self._checkpoint.through_id

    def _check_columns(self, row: Row) -> None:
        # The columns by which rows are found are not hashed: they must say what the body says.
        try:
            if row.kind in FLOW_KINDS:
                kind, lever = _KIND.decode(row.body).kind, None
            else:
                event = row.envelope().event
                kind, lever = kind_of(event), lever_of(event)
        except (LedgerError, msgspec.MsgspecError) as error:
            raise _BrokenError(row.seq, str(error)) from error
        if (kind, lever) != (row.kind, row.lever):
            raise _BrokenError(row.seq, f"it is filed as {row.kind!r} of {row.lever!r}, but is not")

    def _check_cause(self, row: Row) -> None:
        cause = row.cause_id
        if cause is None:
            return
        found = self._source.seq_of(cause)
        if found is not None and found < row.seq:
            return
        folded = self._checkpoint is not None and cause <= self._checkpoint.through_id
        lost = any(gap.first_id <= cause <= gap.last_id for gap in self._gaps)
        if found is not None or not (folded or lost):
            raise _BrokenError(row.seq, f"its cause {cause} does not exist before it")


def _read(row: Row, kind: type[_Event]) -> _Event:
    try:
        event = row.envelope().event
    except LedgerError as error:
        raise _BrokenError(row.seq, str(error)) from error
    if not isinstance(event, kind):
        raise _BrokenError(row.seq, f"it is filed as {row.kind!r} but is {kind_of(event)!r}")
    return event
