"""Retention: folds the oldest events into a checkpoint and removes those that no lever's chain needs.

Removed are requests, readings, diagnoses, assessments and fleet budgets that no lever cites, older checkpoints, and
whom levers were shown to that are not being proven any more. What `narrate.chain` tells of any lever stays as it is, so
a lever can be explained for as long as the ledger lives; decisions are few. All of it happens in one transaction: a
crash leaves either the old ledger or the new one.
"""

import hashlib
import sqlite3
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import msgspec

from trimtab.core.events import (
    Checkpoint,
    Diagnosed,
    Envelope,
    LeverProposed,
    LeversAssessed,
    Measured,
    RolloutMoved,
    TrafficPlanned,
)
from trimtab.core.state import (
    EMPTY,
    FLOW_KINDS,
    State,
    count,
    decode_state,
    encode_state,
    fold_all,
)
from trimtab.core.types import RolloutState
from trimtab.rollout.machine import RUNNING
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

_EXPOSED = "sessions_exposed"
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
    db.execute(
        f"INSERT INTO retention SELECT seq FROM events WHERE seq <= ? AND kind = '{_EXPOSED}'",
        (through_seq,),
    )
    needed = [(seq,) for seq in (*_told_of_levers(db), *_exposed_in_proofs(db))]
    db.executemany("DELETE FROM retention WHERE removable_seq = ?", needed)


class _Link(NamedTuple):
    """What of an event says to which chains it belongs."""

    seq: int
    id: str
    cause_id: str | None
    kind: str
    lever: str | None


def _told_of_levers(db: sqlite3.Connection) -> list[int]:
    """Return the removable events in the chains of all levers: `narrate.chain` of each, in one walk over all events.

    What a chain does not climb past, another lever's event, is where that lever's own chain goes on.
    """
    links = [*_links(db, _DECIDED)]
    levers = {link.lever for link in links if link.lever is not None}
    own, evidence = _about(db, levers)
    if evidence:
        cited = {row.seq for row in _of_kind(db, "measured") if evidence & _items(row)}
        own |= cited
        links = sorted(
            [*links, *(one for one in _links(db, "kind = 'measured'") if one.seq in cited)]
        )
    start = {
        link.id
        for link in links
        if link.seq in own or (link.lever is not None and link.kind != _EXPOSED)
    }
    wanted = start | _causes(start, links) | _consequences(start, links)
    removable = (*FOLDABLE_KINDS, _EXPOSED)
    return [link.seq for link in links if link.id in wanted and link.kind in removable]


def _links(db: sqlite3.Connection, where: str) -> Iterable[_Link]:
    query = f"SELECT seq, id, cause_id, kind, lever FROM events WHERE {_INDEXED} AND {where}"
    return map(_Link._make, db.execute(f"{query} ORDER BY seq"))


def _of_kind(db: sqlite3.Connection, kind: str) -> Iterable[Row]:
    return select(db, f"{_INDEXED} AND kind = ?", (kind,))


def _items(row: Row) -> set[str]:
    event = row.envelope().event
    items = event.readings.items if isinstance(event, Measured) else ()
    return {found for item in items if (found := getattr(item, "id", None)) is not None}


def _about(db: sqlite3.Connection, levers: set[str]) -> tuple[set[int], set[str]]:
    """Return the events of no lever that some lever's chain begins with, and the evidence that levers cite."""
    own, diagnoses, evidence = set[int](), set[str](), set[str]()
    for row in _of_kind(db, "lever_proposed"):
        event = row.envelope().event
        if isinstance(event, LeverProposed):
            diagnoses.add(event.record.bottleneck.diagnosis)
            evidence.update(event.record.bottleneck.evidence)
    for kind in ("diagnosed", "levers_assessed", "traffic_planned"):
        for row in _of_kind(db, kind):
            event = row.envelope().event
            match event:
                case Diagnosed() if event.diagnosis.id in diagnoses:
                    evidence.update(event.diagnosis.evidence)
                    own.add(row.seq)
                case LeversAssessed() if event.chosen in levers:
                    own.add(row.seq)
                case TrafficPlanned() if levers & _carried(event):
                    own.add(row.seq)
                case _:
                    pass
    return own, evidence


def _carried(event: TrafficPlanned) -> set[str]:
    candidate = event.plan.candidate
    preferred = {preference.lever for preference in event.plan.preferences}
    return preferred if candidate is None else preferred | {candidate.lever}


def _causes(start: set[str], links: Sequence[_Link]) -> set[str]:
    cause_of = {link.id: link.cause_id for link in links}
    found: set[str] = set()
    climbing = [*start]
    while climbing:
        cause_id = cause_of[climbing.pop()]
        if cause_id is not None and cause_id in cause_of and cause_id not in found:
            found.add(cause_id)
            climbing.append(cause_id)
    return found


def _consequences(start: set[str], links: Sequence[_Link]) -> set[str]:
    """What levers' events caused; a choice belongs to the lever that it chose alone."""
    reached = set(start)
    for link in links:
        if link.cause_id in reached and link.kind not in ("levers_assessed", "measured", _EXPOSED):
            reached.add(link.id)
    return reached


def _exposed_in_proofs(db: sqlite3.Connection) -> list[int]:
    """Return the events that say whom levers were shown to that are being proven: a restart goes on from them."""
    query = f"SELECT DISTINCT lever FROM events WHERE {_INDEXED} AND kind = ?"
    found: list[int] = []
    for (lever,) in db.execute(query, (_EXPOSED,)).fetchall():
        newest = "ORDER BY seq DESC LIMIT 1"
        moves = [*select(db, "lever = ? AND kind = 'rollout_moved'", (lever,), newest)]
        if not moves or _goes_on(moves[0]):
            found += [one.seq for one in select(db, "lever = ? AND kind = ?", (lever, _EXPOSED))]
    return found


def _goes_on(move: Row) -> bool:
    event = move.envelope().event
    return isinstance(event, RolloutMoved) and event.after in _PROVEN


_PROVEN = RUNNING | {RolloutState.PAUSED}
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
