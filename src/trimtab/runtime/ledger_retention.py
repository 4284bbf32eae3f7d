"""Retention: folds the oldest events into a checkpoint and removes those that no lever's chain needs.

Removed are requests, readings, diagnoses, assessments and fleet budgets that no lever cites, and older
checkpoints. Everything a lever's record and rollout consist of stays, with the diagnoses and readings they cite
and the causes they name, so a chain can be told for as long as the ledger lives; decisions are few. All of it
happens in one transaction: a crash leaves either the old ledger or the new one.
"""

import hashlib
import sqlite3
from collections.abc import Iterable, Sequence

import msgspec

from trimtab.core.events import (
    Checkpoint,
    Diagnosed,
    Envelope,
    LeverProposed,
    Measured,
    lever_of,
)
from trimtab.core.evidence import Evidence
from trimtab.core.state import (
    EMPTY,
    FLOW_KINDS,
    State,
    count,
    decode_state,
    encode_state,
    fold,
)
from trimtab.runtime.ledger_file import select
from trimtab.runtime.ledger_rows import Row
from trimtab.runtime.ledger_verify import CHECKPOINT, KeptHash

FOLDABLE_KINDS = (
    "request_served",
    "measured",
    "diagnosed",
    "levers_assessed",
    "budgets_read",
    "checkpoint",
)
"""What retention may remove, unless a lever's chain needs it."""

_INDEXED = "kind <> 'request_served'"


def prepare_checkpoint(db: sqlite3.Connection, *, keep_events: int) -> Checkpoint | None:
    """Mark what goes and return the checkpoint that stands for it; None if there is nothing to remove.

    The caller holds a transaction, appends the checkpoint, then calls `remove_marked`.
    """
    last = _row_before_the_newest(db, keep_events)
    before = _last_checkpoint(db)
    if last is None or (before is not None and last.seq <= before.through_seq):
        return None
    _mark(db, last.seq)
    if db.execute("SELECT count(*) FROM retention").fetchone()[0] == 0:
        return None
    state = encode_state(_state_through(db, before, last))
    removed, kept_hash = _what_stays(db, last.seq)
    return Checkpoint(
        through_seq=last.seq,
        through_id=last.id,
        chain_hash=last.hash,
        state_hash=hashlib.sha256(state.encode()).hexdigest(),
        state=state,
        removed=removed,
        kept_hash=kept_hash,
    )


def remove_marked(db: sqlite3.Connection) -> int:
    """Remove what `prepare_checkpoint` marked and return how many events went."""
    gone = db.execute(
        "DELETE FROM events WHERE seq IN (SELECT removable_seq FROM retention)"
    ).rowcount
    db.execute("DELETE FROM retention")
    return gone


def _row_before_the_newest(db: sqlite3.Connection, keep_events: int) -> Row | None:
    rows = list(select(db, "1", (keep_events,), "ORDER BY seq DESC LIMIT 1 OFFSET ?"))
    return rows[0] if rows else None


def _last_checkpoint(db: sqlite3.Connection) -> Checkpoint | None:
    rows = list(select(db, f"{_INDEXED} AND kind = ?", (CHECKPOINT,), "ORDER BY seq DESC LIMIT 1"))
    event = rows[0].envelope().event if rows else None
    return event if isinstance(event, Checkpoint) else None


def _state_through(db: sqlite3.Connection, before: Checkpoint | None, last: Row) -> State:
    state, after_seq = EMPTY, 0
    if before is not None:
        state, after_seq = decode_state(before.state), before.through_seq
    # Flow events only count, so they need not be decoded, and their order does not matter.
    for kind in sorted(FLOW_KINDS):
        n = db.execute(
            "SELECT count(*) FROM events WHERE seq > ? AND seq <= ? AND kind = ?",
            (after_seq, last.seq, kind),
        ).fetchone()[0]
        state = count(state, kind, seq=last.seq, at_s=last.at_s, n=n) if n else state
    where = "seq > ? AND seq <= ? AND kind NOT IN ('request_served', 'measured')"
    for row in select(db, where, (after_seq, last.seq)):
        state = fold(state, row.envelope())
    return msgspec.structs.replace(state, seq=last.seq, at_s=last.at_s)


def _mark(db: sqlite3.Connection, through_seq: int) -> None:
    marks = ", ".join("?" * len(FOLDABLE_KINDS))
    db.execute("DELETE FROM retention")
    db.execute(
        f"INSERT INTO retention SELECT seq FROM events WHERE seq <= ? AND lever IS NULL AND kind IN ({marks})",
        (through_seq, *FOLDABLE_KINDS),
    )
    where = f"{_INDEXED} AND kind NOT IN ('measured', 'checkpoint')"
    needed = needed_ids([row.envelope() for row in select(db, where)], _Lookup(db))
    db.executemany(
        "DELETE FROM retention WHERE removable_seq = (SELECT seq FROM events WHERE id = ?)",
        [(event_id,) for event_id in sorted(needed)],
    )


class _Lookup:
    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db

    def cause_of(self, event_id: str) -> str | None:
        """Return the cause of an event, None if it has none or is not here."""
        found = self._db.execute("SELECT cause_id FROM events WHERE id = ?", (event_id,)).fetchone()
        return found[0] if found else None

    def measured(self) -> Iterable[Envelope]:
        """Yield every event with readings."""
        for row in select(self._db, f"{_INDEXED} AND kind = 'measured'"):
            yield row.envelope()


def needed_ids(decided: Sequence[Envelope], lookup: _Lookup) -> set[str]:
    """Return the ids of the events that the levers' chains consist of, cite or name as causes."""
    records = [each.event.record for each in decided if isinstance(each.event, LeverProposed)]
    diagnoses = {record.bottleneck.diagnosis for record in records}
    evidence = {cited for record in records for cited in record.bottleneck.evidence}
    needed = {each.id for each in decided if lever_of(each.event) is not None}
    for each in decided:
        if isinstance(each.event, Diagnosed) and each.event.diagnosis.id in diagnoses:
            needed.add(each.id)
            evidence.update(each.event.diagnosis.evidence)
    if evidence:
        needed.update(each.id for each in lookup.measured() if _measures(each, evidence))
    climbing = list(needed)
    while climbing:
        cause = lookup.cause_of(climbing.pop())
        if cause is not None and cause not in needed:
            needed.add(cause)
            climbing.append(cause)
    return needed


def _measures(envelope: Envelope, evidence: set[str]) -> bool:
    event = envelope.event
    if not isinstance(event, Measured):
        return False
    return any(isinstance(item, Evidence) and item.id in evidence for item in event.readings.items)


def _what_stays(
    db: sqlite3.Connection, through_seq: int
) -> tuple[tuple[tuple[int, int], ...], str]:
    where = "seq <= ? AND seq NOT IN (SELECT removable_seq FROM retention)"
    removed: list[tuple[int, int]] = []
    kept = KeptHash()
    at = 0
    for row in select(db, where, (through_seq,)):
        if row.seq > at + 1:
            removed.append((at + 1, row.seq - 1))
        kept.add(row)
        at = row.seq
    if at < through_seq:
        removed.append((at + 1, through_seq))
    return tuple(removed), kept.hexdigest()
