"""Whatever is changed in a ledger's file, verification names the first event that is wrong."""

import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest
from events_kit import SteppingClock, every_event, request

from trimtab.core.events import kind_of
from trimtab.runtime.ledger import SqliteLedger
from trimtab.runtime.ledger_file import APPLICATION_ID, SCHEMA_VERSION
from trimtab.runtime.ledger_reader import SqliteReader
from trimtab.runtime.ledger_rows import LedgerError

UNLOCK = "DROP TRIGGER events_are_never_changed; DROP TRIGGER events_leave_by_retention_only;"


REQUESTS = 5
Q3 = len(every_event()) + 4
"""The seq of the request "q3" in the ledger of these tests."""

MOVED = [kind_of(event) for event in every_event()].index("rollout_moved") + 1


def make_ledger(path: Path) -> None:
    ledger = SqliteLedger(path, clock=SteppingClock())
    for event in every_event():
        ledger.append(event, cause_id=None)
    for number in range(REQUESTS):
        ledger.append(request(number), cause_id=None)
    ledger.close()


def tamper(path: Path, script: str) -> None:
    db = sqlite3.connect(path)
    db.executescript(UNLOCK + script)
    db.close()


def verify(path: Path) -> tuple[int | None, str | None]:
    with SqliteReader(path) as reader:
        found = reader.verify()
    return found.bad_seq, found.problem


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A ledger of thirty events."""
    made = tmp_path / "ledger.sqlite"
    make_ledger(made)
    return made


CONTENT = "its content does not have the hash it names"
LINK = "its previous hash is not the hash of the event before it"


@pytest.mark.parametrize(
    ("script", "bad_seq", "problem"),
    [
        (
            f"UPDATE events SET body = replace(body, '\"q3\"', '\"q4\"') WHERE seq = {Q3}",
            Q3,
            CONTENT,
        ),
        ("UPDATE events SET at_s = at_s + 0.001 WHERE seq = 7", 7, CONTENT),
        ("UPDATE events SET cause_id = 'X' WHERE seq = 7", 7, CONTENT),
        ("UPDATE events SET hash = replace(hash, 'a', 'b') WHERE seq = 9", 9, CONTENT),
        ("UPDATE events SET prev_hash = hash WHERE seq = 9", 9, LINK),
        ("DELETE FROM events WHERE seq = 11", 11, "event 11 is missing"),
        ("DELETE FROM events WHERE seq < 11", 1, "event 1 is missing"),
        (
            "UPDATE events SET seq = 999 WHERE seq = 12; UPDATE events SET seq = 12 WHERE seq = 15;"
            "UPDATE events SET seq = 15 WHERE seq = 999;",
            12,
            LINK,
        ),
        (
            "UPDATE events SET kind = 'frozen' WHERE seq = 4",
            4,
            "it is filed as 'frozen' of None, but is not",
        ),
        (
            f"UPDATE events SET lever = 'other' WHERE seq = {MOVED}",
            MOVED,
            "it is filed as 'rollout_moved' of 'other', but is not",
        ),
    ],
)
def test_change_is_found_where_it_is(path: Path, script: str, bad_seq: int, problem: str) -> None:
    """One changed byte, a removed row, two swapped rows, a false label: the first wrong seq is named."""
    assert verify(path) == (None, None)
    tamper(path, script)
    assert verify(path) == (bad_seq, problem)


def test_rehashed_row_breaks_the_next(path: Path) -> None:
    """Changing an event and its own hash moves the break to the event after it."""
    with SqliteReader(path) as reader:
        row = next(row for row in reader.rows(after_seq=Q3 - 1) if row.seq == Q3)
    forged = type(row)(
        **{
            **{name: getattr(row, name) for name in row.__struct_fields__},
            "body": row.body.replace(b'"q3"', b'"q9"'),
        }
    )
    script = (
        f"UPDATE events SET body = replace(body, '\"q3\"', '\"q9\"'), hash = '{forged.computed_hash()}' "
        f"WHERE seq = {Q3}"
    )
    tamper(path, script)
    assert verify(path) == (Q3 + 1, LINK)


@pytest.mark.parametrize(
    "statement",
    ["UPDATE events SET at_s = 0", "DELETE FROM events", "DELETE FROM events WHERE seq = 30"],
)
def test_plain_sql_cannot_change_a_ledger(path: Path, statement: str) -> None:
    """Whoever opens the file with a tool is told that it is append-only."""
    db = sqlite3.connect(path)
    with pytest.raises(sqlite3.IntegrityError, match="append-only"):
        db.execute(statement)
    db.close()


def test_damaged_tail_is_not_continued(path: Path) -> None:
    """A writer does not build on a broken end; it names the event and the way out."""
    tamper(path, "UPDATE events SET at_s = 0 WHERE seq = 30")
    with pytest.raises(LedgerError, match="event 30 does not fit the chain") as refused:
        SqliteLedger(path, clock=SteppingClock())
    assert "move the file away" in str(refused.value)


def overwrite(path: Path) -> None:
    path.write_bytes(b"GGUF" + b"\x00" * 5000)


def other_database(path: Path) -> None:
    path.unlink()
    db = sqlite3.connect(path)
    db.execute("CREATE TABLE events (x)")
    db.close()


def newer(path: Path) -> None:
    db = sqlite3.connect(path)
    db.execute(f"PRAGMA user_version = {SCHEMA_VERSION + 1}")
    db.close()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (overwrite, "is not a ledger"),
        (other_database, "is not a ledger of trimtab"),
        (newer, f"has schema {SCHEMA_VERSION + 1}; this version knows {SCHEMA_VERSION}"),
    ],
)
def test_file_that_is_no_ledger_of_this_version_is_refused_untouched(
    path: Path, change: Callable[[Path], None], message: str
) -> None:
    """Neither a writer nor a reader touches a file it does not know, and both say which file it is."""
    change(path)
    before = path.read_bytes()
    for use in (lambda: SqliteLedger(path, clock=SteppingClock()), lambda: SqliteReader(path)):
        with pytest.raises(LedgerError, match=message) as refused:
            use()
        assert str(path) in str(refused.value)
    assert path.read_bytes() == before


@pytest.mark.parametrize("page", range(5))
def test_damage_below_sql_is_found_or_said(path: Path, page: int) -> None:
    """A spoilt page of the file comes out as a broken ledger or a `LedgerError`, never as SQLite's own exception."""
    data = bytearray(path.read_bytes())
    data[4096 * page + 20 : 4096 * (page + 1)] = b"\xff" * (4096 - 20)
    path.write_bytes(data)
    try:
        bad_seq, problem = verify(path)
    except LedgerError as error:
        bad_seq, problem = 0, str(error)
    assert (bad_seq, problem) != (None, None)


def test_schema_names_the_program(path: Path) -> None:
    """The file says whose it is, for `file` and for people."""
    db = sqlite3.connect(path)
    found = db.execute("PRAGMA application_id").fetchone()[0]
    db.close()
    assert found == APPLICATION_ID
