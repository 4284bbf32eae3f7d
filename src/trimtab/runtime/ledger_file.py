"""The ledger's SQLite file: schema, opening, the lock of its one writer, and writing rows.

WAL, so that readers never block the writer. Triggers refuse every UPDATE, and every DELETE but those of
retention. The lock is an flock on a file beside the ledger: it vanishes with the process that held it, however
that ends, and taking it never touches SQLite's own locks.
"""

import contextlib
import fcntl
import itertools
import os
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from trimtab.core.events import GENESIS_HASH
from trimtab.runtime.ledger_rows import Head, LedgerError, Row, head_of

APPLICATION_ID = 0x54524D54
SCHEMA_VERSION = 1
ROWS_AT_ONCE = 64
TAIL_ROWS = 256
"""How many of the last rows are checked when a ledger is opened for writing."""

_COLUMNS = "seq, id, cause_id, at_s, kind, lever, body, prev_hash, hash"
# Bytes, because that is what was hashed, whatever somebody made of them.
_READ = _COLUMNS.replace("body", "CAST(body AS BLOB)")
_SCHEMA = f"""
CREATE TABLE events (
    seq INTEGER PRIMARY KEY,
    id TEXT NOT NULL UNIQUE,
    cause_id TEXT,
    at_s REAL NOT NULL,
    kind TEXT NOT NULL,
    lever TEXT,
    body TEXT NOT NULL,
    prev_hash TEXT NOT NULL,
    hash TEXT NOT NULL
) STRICT;
CREATE INDEX events_told ON events (kind, seq) WHERE kind <> 'request_served';
CREATE INDEX events_of_lever ON events (lever, seq) WHERE lever IS NOT NULL;
CREATE TABLE retention (removable_seq INTEGER PRIMARY KEY) STRICT;
CREATE TRIGGER events_are_never_changed BEFORE UPDATE ON events
    BEGIN SELECT RAISE(ABORT, 'the ledger is append-only'); END;
CREATE TRIGGER events_leave_by_retention_only BEFORE DELETE ON events
    WHEN NOT EXISTS (SELECT 1 FROM retention WHERE removable_seq = OLD.seq)
    BEGIN SELECT RAISE(ABORT, 'the ledger is append-only'); END;
PRAGMA application_id = {APPLICATION_ID};
PRAGMA user_version = {SCHEMA_VERSION};
"""


class WriterLock:
    """Held by the one process that writes a ledger."""

    def __init__(self, ledger: Path) -> None:
        """Take the lock; raises `LedgerError` naming the holder if another living process has it."""
        self._path = ledger.with_name(f"{ledger.name}-lock")
        try:
            self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise LedgerError(_cannot_open(ledger, error.strerror or str(error))) from error
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = os.pread(self._fd, 32, 0).decode(errors="replace").strip() or "unknown"
            os.close(self._fd)
            raise LedgerError(
                f"{ledger} is being written by another trimtab (process {holder}). "
                "Stop that one, or give this one a ledger of its own (ledger.path)"
            ) from error
        with contextlib.suppress(OSError):  # the process id only serves the message above
            os.ftruncate(self._fd, 0)
            os.pwrite(self._fd, f"{os.getpid()}\n".encode(), 0)

    def release(self) -> None:
        """Give the lock back."""
        os.close(self._fd)


def open_for_writing(path: Path) -> sqlite3.Connection:
    """Open or make a ledger; raises `LedgerError` if the file is not one that can be continued."""
    try:
        # SQLite gives its -wal and -shm files the mode of the file itself.
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            if _may_be_ledger(os.pread(fd, 16, 0)):
                os.fchmod(fd, 0o600)
        finally:
            os.close(fd)
    except OSError as error:
        raise LedgerError(_cannot_open(path, error.strerror or str(error))) from error
    db = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=5.0)
    try:
        _check_kind(db, path, may_be_new=True)
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("PRAGMA synchronous = FULL")
        if db.execute("PRAGMA user_version").fetchone()[0] == 0:
            db.executescript(f"BEGIN;\n{_SCHEMA}\nCOMMIT;")
    except sqlite3.Error as error:
        db.close()
        raise LedgerError(_cannot_open(path, str(error))) from error
    except LedgerError:
        db.close()
        raise
    return db


def _may_be_ledger(head: bytes) -> bool:
    """Say whether a file is new or a database; any other file is somebody else's and stays as it is."""
    return head in (b"", b"SQLite format 3\0")


def open_for_reading(path: Path) -> sqlite3.Connection:
    """Open an existing ledger read-only; raises `LedgerError` if it is not there or not a ledger."""
    if not path.exists():
        raise LedgerError(
            f"{path} does not exist. Name the ledger of a run with --ledger PATH; a tune writes "
            "REPORT/ledger.sqlite"
        )
    db = sqlite3.connect(
        f"{path.resolve().as_uri()}?mode=ro",
        uri=True,
        isolation_level=None,
        check_same_thread=False,
    )
    try:
        _check_kind(db, path, may_be_new=False)
    except sqlite3.Error as error:
        db.close()
        raise LedgerError(_cannot_open(path, str(error))) from error
    except LedgerError:
        db.close()
        raise
    return db


def _check_kind(db: sqlite3.Connection, path: Path, *, may_be_new: bool) -> None:
    try:
        tables = db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
        application = db.execute("PRAGMA application_id").fetchone()[0]
        version = db.execute("PRAGMA user_version").fetchone()[0]
    except sqlite3.DatabaseError as error:
        if error.sqlite_errorcode != sqlite3.SQLITE_NOTADB:
            raise
        raise LedgerError(f"{path} is not a ledger: {error}. Name another file") from error
    if tables == 0 and application == 0 and may_be_new:
        return
    if application != APPLICATION_ID:
        raise LedgerError(f"{path} is not a ledger of trimtab. Name another file")
    if version > SCHEMA_VERSION:
        raise LedgerError(
            f"{path} has schema {version}; this version knows {SCHEMA_VERSION}. "
            "Use the newer trimtab that wrote it, or name another file"
        )


def _cannot_open(path: Path, why: str) -> str:
    return (
        f"{path} cannot be opened: {why}. Check that its directory exists, can be written and has room, "
        "or name another file (ledger.path)"
    )


@contextlib.contextmanager
def transaction(db: sqlite3.Connection, *, durable: bool) -> Iterator[None]:
    """Run a block in one transaction; `durable`: it is on the disk itself when the block ends."""
    db.execute(f"PRAGMA synchronous = {'FULL' if durable else 'NORMAL'}")
    db.execute("BEGIN IMMEDIATE")
    try:
        yield
        db.execute("COMMIT")
    except BaseException:
        with contextlib.suppress(sqlite3.Error):  # some errors have rolled back already
            db.execute("ROLLBACK")
        raise


def insert(db: sqlite3.Connection, rows: Iterable[Row]) -> None:
    """Append rows; the caller holds a transaction.

    Many in one statement: each takes Python's lock once more, for which the thread of the streams waits.
    """
    left = iter(rows)
    while part := tuple(itertools.islice(left, ROWS_AT_ONCE)):
        values = ", ".join(["(?, ?, ?, ?, ?, ?, ?, ?, ?)"] * len(part))
        fields = (
            (r.seq, r.id, r.cause_id, r.at_s, r.kind, r.lever, r.body.decode(), r.prev_hash, r.hash)
            for r in part
        )
        db.execute(
            f"INSERT INTO events ({_COLUMNS}) VALUES {values}",
            tuple(itertools.chain.from_iterable(fields)),
        )


def select(
    db: sqlite3.Connection, where: str = "1", parameters: Sequence[object] = (), tail: str = ""
) -> Iterator[Row]:
    """Yield the rows that match, in order of `seq` unless `tail` says otherwise."""
    order = tail or "ORDER BY seq"
    for fields in db.execute(f"SELECT {_READ} FROM events WHERE {where} {order}", parameters):
        yield Row(*fields)


def sync_log(path: Path) -> None:
    """Bring SQLite's write-ahead log to the disk itself; raises OSError if that fails."""
    log = path.with_name(f"{path.name}-wal")
    try:
        fd = os.open(log, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def check_tail(db: sqlite3.Connection, path: Path) -> Head:
    """Check the last rows and return the head to continue from; raises `LedgerError` if they are broken."""
    try:
        rows = list(select(db, tail=f"ORDER BY seq DESC LIMIT {TAIL_ROWS}"))[::-1]
    except sqlite3.Error as error:
        raise LedgerError(_damaged(path, f"it cannot be read ({error})")) from error
    head = Head(0, "", GENESIS_HASH)
    for row in rows:
        follows = row.seq == head.seq + 1
        if row.computed_hash() != row.hash or (follows and row.prev_hash != head.hash):
            raise LedgerError(_damaged(path, f"event {row.seq} does not fit the chain"))
        head = head_of(row)
    return head


def _damaged(path: Path, what: str) -> str:
    return (
        f"{path} is damaged: {what}. `trimtab ledger verify --ledger {path}` says where; "
        "move the file away to start a new ledger"
    )
