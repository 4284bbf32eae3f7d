"""Retention: folds the oldest events into a checkpoint and removes those that no lever's chain needs.

Removed are requests, readings, diagnoses, assessments and fleet budgets that no lever cites, and older
checkpoints. What `narrate.chain` tells of any lever stays as it is, so a lever can be explained for as long as the
ledger lives; decisions are few. All of it happens in one transaction: a crash leaves either the old ledger or
the new one.
"""

import hashlib
import sqlite3
from collections.abc import Iterable

import msgspec

from trimtab.core.events import AnyEvent, Checkpoint, Envelope, lever_of
from trimtab.core.narrate import chain, cited_evidence
from trimtab.core.state import (
    EMPTY,
    FLOW_KINDS,
    State,
    count,
    decode_state,
    encode_state,
    fold_all,
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
    before = last_checkpoint(db)
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


def last_checkpoint(db: sqlite3.Connection) -> Checkpoint | None:
    """Return the newest checkpoint, None if nothing was folded yet."""
    rows = list(select(db, f"{_INDEXED} AND kind = ?", (CHECKPOINT,), "ORDER BY seq DESC LIMIT 1"))
    event = rows[0].envelope().event if rows else None
    return event if isinstance(event, Checkpoint) else None


def _state_through(db: sqlite3.Connection, before: Checkpoint | None, last: Row) -> State:
    return fold_through(db, EMPTY if before is None else decode_state(before.state), last)


def fold_through(db: sqlite3.Connection, state: State, last: Row) -> State:
    """Return the fold of the events after `state` up to `last`."""
    after_seq = state.seq
    # Flow events only count, so they need not be decoded, and their order does not matter.
    for kind in sorted(FLOW_KINDS):
        n = db.execute(
            "SELECT count(*) FROM events WHERE seq > ? AND seq <= ? AND kind = ?",
            (after_seq, last.seq, kind),
        ).fetchone()[0]
        state = count(state, kind, seq=last.seq, at_s=last.at_s, n=n) if n else state
    where = "seq > ? AND seq <= ? AND kind NOT IN ('request_served', 'measured')"
    rows = select(db, where, (after_seq, last.seq))
    state = fold_all(state, (row.envelope() for row in rows))
    return msgspec.structs.replace(state, seq=last.seq, at_s=last.at_s)


def _mark(db: sqlite3.Connection, through_seq: int) -> None:
    marks = ", ".join("?" * len(FOLDABLE_KINDS))
    db.execute("DELETE FROM retention")
    db.execute(
        f"INSERT INTO retention SELECT seq FROM events WHERE seq <= ? AND lever IS NULL AND kind IN ({marks})",
        (through_seq, *FOLDABLE_KINDS),
    )
    decided = read_decided(db)
    for lever in sorted({name for name in map(lever_of, _events(decided)) if name is not None}):
        steps = chain(lever, [*decided, *read_cited(db, cited_evidence(lever, decided))])
        db.executemany(
            "DELETE FROM retention WHERE removable_seq = ?",
            [(step.envelope.seq,) for step in steps],
        )


_DECIDED = f"{_INDEXED} AND kind NOT IN ('measured', 'checkpoint')"


def read_decided(db: sqlite3.Connection) -> list[Envelope]:
    """Read every event from which chains are told, readings apart."""
    return [row.envelope() for row in select(db, _DECIDED)]


def read_decided_of(db: sqlite3.Connection, lever: str) -> list[Envelope]:
    """Read the events from which one lever's chain is told, readings apart: a part of `read_decided`.

    Its own, those of no lever, and what caused any of them: a chain names another lever's event that caused one of its
    own and does not climb past it.
    """
    found = [row.envelope() for row in select(db, f"lever = ? AND {_DECIDED}", (lever,))]
    found += [row.envelope() for row in select(db, f"lever IS NULL AND {_DECIDED}")]
    missing = {each.cause_id for each in found} - {each.id for each in found} - {None}
    for cause_id in missing:
        found += [row.envelope() for row in select(db, f"id = ? AND {_DECIDED}", (cause_id,))]
    return found


def read_cited(db: sqlite3.Connection, evidence: Iterable[str]) -> list[Envelope]:
    """Read the events that hold any of these evidence ids."""
    found = {
        row.seq: row
        for cited in evidence
        for row in select(db, f"{_INDEXED} AND kind = 'measured' AND instr(body, ?) > 0", (cited,))
    }
    return [row.envelope() for row in found.values()]


def _events(envelopes: Iterable[Envelope]) -> Iterable[AnyEvent]:
    return (each.event for each in envelopes)


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
