"""Reads a ledger's file, also while another process writes it. Readers never block the writer."""

import contextlib
import sqlite3
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from trimtab.core.events import Envelope
from trimtab.core.narrate import cited_evidence
from trimtab.core.state import State, decode_state, rebuild
from trimtab.rollout.exposure import Met
from trimtab.runtime.ledger_file import open_for_reading, select
from trimtab.runtime.ledger_retention import (
    fold_through,
    last_checkpoint,
    read_cited,
    read_decided,
    read_decided_of,
)
from trimtab.runtime.ledger_rows import LedgerError, Row, first_id
from trimtab.runtime.ledger_verify import CHECKPOINT, Verification, verify

_INDEXED = "kind <> 'request_served'"


class Filter:
    """Which events are wanted; what is None does not matter."""

    def __init__(self, *, kind: str | None = None, lever: str | None = None) -> None:
        self._terms: list[str] = []
        self._parameters: list[object] = []
        if kind is not None:
            self._add("kind = ?", kind)
        if lever is not None:
            self._add("lever = ?", lever)

    def _add(self, term: str, parameter: object) -> None:
        self._terms.append(term)
        self._parameters.append(parameter)

    def where(self) -> tuple[str, Sequence[object]]:
        """Return the SQL condition and its parameters."""
        return " AND ".join(self._terms) or "1", self._parameters


class SqliteReader:
    """A read-only view of a ledger file. Also the `LedgerReader` port and a `Source` for verification.

    Every method raises `LedgerError` when the file turns out to be damaged. Not for use by two threads at once.
    """

    def __init__(self, path: Path | str) -> None:
        """Open the file; raises `LedgerError` if it is not there or not a ledger."""
        self.path = Path(path)
        self._db = open_for_reading(self.path)

    def close(self) -> None:
        """Close the file."""
        self._db.close()

    def __enter__(self) -> "SqliteReader":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def read(self, *, after_seq: int = 0, limit: int | None = None) -> Sequence[Envelope]:
        """See `ports.LedgerReader`."""
        tail = "ORDER BY seq" if limit is None else f"ORDER BY seq LIMIT {int(limit)}"
        return [row.envelope() for row in self._select("seq > ?", (after_seq,), tail)]

    def last(self, wanted: Filter, *, limit: int) -> Sequence[Envelope]:
        """Return the newest events that are wanted, oldest first."""
        where, parameters = wanted.where()
        found = list(self._select(where, parameters, f"ORDER BY seq DESC LIMIT {int(limit)}"))
        return [row.envelope() for row in reversed(found)]

    def latest(
        self, kinds: Iterable[str], *, before_seq: int | None = None, limit: int
    ) -> Sequence[Envelope]:
        """Return the newest events of some kinds, newest first; `before_seq`: only those before it.

        Each kind is found by the index, however many requests lie between two of them.
        """
        before = sys.maxsize if before_seq is None else before_seq
        where, tail = (
            f"kind = ? AND {_INDEXED} AND seq < ?",
            f"ORDER BY seq DESC LIMIT {int(limit)}",
        )
        found = [row for kind in kinds for row in self._select(where, (kind, before), tail)]
        found.sort(key=lambda row: -row.seq)
        return [row.envelope() for row in found[:limit]]

    def stream(self, wanted: Filter) -> Iterator[Envelope]:
        """Yield the events that are wanted in order, one at a time."""
        for row in self._select(*wanted.where()):
            yield row.envelope()

    def told(self, lever: str) -> Sequence[Envelope]:
        """Return all that `narrate.chain` needs of a lever: no requests, and only the readings it cites."""
        with self._errors():
            decided = read_decided_of(self._db, lever)
            cited = read_cited(self._db, cited_evidence(lever, decided))
        return sorted([*decided, *cited], key=lambda each: each.seq)

    def busiest(self, since_s: float) -> int | None:
        """Return most requests that were in flight as one was admitted since then.

        None if none was, and where the ledger does not reach back so far: of what is folded nobody knows the most.
        """
        # Ids are in order of time and have an index; bodies before them are never read.
        query = (
            "SELECT max(json_extract(body, '$.record.concurrency_at_admission')) FROM events "
            "WHERE id >= ? AND kind = 'request_served' AND at_s >= ?"
        )
        first = first_id(since_s)
        with self._errors(), self._snapshot():
            folded = last_checkpoint(self._db)
            if folded is not None and folded.through_id >= first:
                return None
            (most,) = self._db.execute(query, (first, since_s)).fetchone()
        return None if most is None else int(most)

    def met(self, lever: str) -> Met:
        """Return whom a lever was shown to, for a proof that goes on."""
        where = "lever = ? AND kind IN ('lever_proposed', 'rollout_moved', 'sessions_exposed')"
        return Met(row.envelope().event for row in self._select(where, (lever,)))

    def decided(self) -> Sequence[Envelope]:
        """Return every event from which chains are told, readings and requests apart, in order."""
        with self._errors():
            return sorted(read_decided(self._db), key=lambda each: each.seq)

    def find(self, reference: str) -> Envelope:
        """Return the event with this id, unique start of an id, or seq; raises `LedgerError` if there is none."""
        text = reference.strip().upper()
        found = list(self._select("id >= ? AND id < ?", (text, text + "~"), "ORDER BY id LIMIT 2"))
        if not found and text.isdigit():
            found = list(self._select("seq = ?", (int(text),)))
        if not found:
            raise LedgerError(
                f"{self.path} has no event {reference!r}. `trimtab ledger list` shows ids"
            )
        if len(found) > 1:
            raise LedgerError(f"{reference!r} is the start of several ids: give more of it")
        return found[0].envelope()

    def levers(self) -> Sequence[str]:
        """Return the names of all levers that have events, in alphabetical order."""
        query = "SELECT DISTINCT lever FROM events WHERE lever IS NOT NULL ORDER BY lever"
        with self._errors():
            return [name for (name,) in self._db.execute(query)]

    def state(self) -> State:
        """Return the fold over everything."""
        checkpoints = list(self._select("kind = ?", (CHECKPOINT,), "ORDER BY seq DESC LIMIT 1"))
        if not checkpoints:
            return rebuild(self.read())
        (last,) = checkpoints
        event = last.envelope().event
        through_seq: int = getattr(event, "through_seq", 0)
        return rebuild(self.read(after_seq=through_seq))

    def catch_up(self, state: State) -> State:
        """Return the fold over everything, given that over a beginning of this ledger.

        Requests and readings are counted and not decoded, so that a caller may ask often.
        """
        with self._errors(), self._snapshot():
            newest = list(self._select("1", (), "ORDER BY seq DESC LIMIT 1"))
            if not newest or newest[0].seq <= state.seq:
                return state
            folded = last_checkpoint(self._db)
            if folded is not None and folded.through_seq > state.seq:
                state = decode_state(folded.state)
            return fold_through(self._db, state, newest[0])

    def verify(self) -> Verification:
        """Check the whole ledger as it is at this moment, chain and file structure."""
        with self._errors(), self._snapshot():
            found = verify(self)
            (structure,) = self._db.execute("PRAGMA quick_check(1)").fetchone()
        if found.ok and structure != "ok":
            raise LedgerError(f"{self.path} is damaged below its rows: {structure}")
        return found

    def rows(self, *, after_seq: int = 0) -> Iterator[Row]:
        """See `ledger_verify.Source`."""
        return self._select("seq > ?", (after_seq,))

    def rows_of_kind(self, kind: str) -> Iterator[Row]:
        """See `ledger_verify.Source`."""
        return self._select(f"kind = ? AND {_INDEXED}", (kind,))

    def seq_of(self, event_id: str) -> int | None:
        """See `ledger_verify.Source`."""
        with self._errors():
            found = self._db.execute("SELECT seq FROM events WHERE id = ?", (event_id,)).fetchone()
        return None if found is None else int(found[0])

    def _select(
        self, where: str, parameters: Sequence[object] = (), tail: str = ""
    ) -> Iterator[Row]:
        with self._errors():
            yield from select(self._db, where, parameters, tail)

    @contextlib.contextmanager
    def _snapshot(self) -> Iterator[None]:
        self._db.execute("BEGIN")
        try:
            yield
        finally:
            self._db.execute("COMMIT")

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise LedgerError(f"{self.path} cannot be read: {error}") from error
