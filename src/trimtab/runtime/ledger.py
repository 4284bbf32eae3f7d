"""The ledger's writer: takes events without blocking anybody, and one thread writes them in batches.

Order of events = order of `append`. An id is given at once; seq and hash when the thread links the event.
Healthy means that everything taken so far is stored or about to be. Three things end it: the queue is full, the
disk or SQLite refuses, or an event cannot be stored as it is. From then on the ledger is unhealthy until
`recover` has succeeded, so levers stay frozen and a person or the controller decides when to go on; traffic goes on
all the while. Events that still fit the queue are kept for the recovery, in order. Those that do not are
lost, and a `LedgerGap` at their place says how many and why.
"""

import asyncio
import collections
import contextlib
import itertools
import random
import sqlite3
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from trimtab.core.events import AnyEvent, Envelope, encode_event
from trimtab.core.ports import Clock
from trimtab.runtime.ledger_file import (
    WriterLock,
    check_tail,
    insert,
    open_for_writing,
    sync_log,
    transaction,
)
from trimtab.runtime.ledger_reader import SqliteReader
from trimtab.runtime.ledger_retention import prepare_checkpoint, remove_marked
from trimtab.runtime.ledger_rows import (
    RUNS,
    EventIds,
    Head,
    LedgerError,
    Losses,
    Pending,
    Row,
    encode_checked,
    head_of,
    link,
    pending,
)
from trimtab.runtime.ledger_verify import Verification

BATCH_MAX = 1000
LINGER_S = 0.1
"""How long flow events wait for company, as each batch takes Python's lock from the streams; durable ones do not."""

SWEEP_SHARE = 0.1
"""Retention starts when this share more than `keep_events` is stored, so that it is rare."""


class _Job(msgspec.Struct, frozen=True):
    """Something that somebody waits for: `work` is the writer's, `release` lets go of who waits."""

    work: Callable[[], None]
    release: Callable[[], None]

    def run(self) -> None:
        try:
            self.work()
        finally:
            self.release()


class SqliteLedger:
    """The ledger in a SQLite file; implements `ports.LedgerSink` and `ports.LedgerReader`.

    `on_unhealthy(reason)` is called once each time health is lost, by the thread that noticed: it must return at
    once and not raise.
    """

    def __init__(
        self,
        path: Path | str,
        *,
        clock: Clock,
        queue_max: int = 100_000,
        keep_events: int = 2_000_000,
        on_unhealthy: Callable[[str], None] | None = None,
    ) -> None:
        """Open or make the file and check its tail; raises `LedgerError` naming the file and the fix."""
        self.path = Path(path)
        self._clock = clock
        self._queue_max = queue_max
        self._hurry_at = min(BATCH_MAX, queue_max // 2)
        self._keep_events = keep_events
        self._on_unhealthy = on_unhealthy
        self.hears: Sequence[Callable[[str, AnyEvent], None]] = ()
        self._file_lock = WriterLock(self.path)
        try:
            self._db = open_for_writing(self.path)
            self._head = check_tail(self._db, self.path)
        except LedgerError:
            self._file_lock.release()
            raise
        self._stored = int(self._db.execute("SELECT count(*) FROM events").fetchone()[0])
        self._sweep_at = self._next_sweep()
        self._ids = EventIds(run=random.randrange(RUNS), after_id=self._head.id or None)
        self._mutex = threading.Lock()
        self._queue: collections.deque[Pending] = collections.deque()
        self._losses = Losses()
        self._jobs: collections.deque[_Job] = collections.deque()
        self._reason: str | None = None
        self._stuck = False
        self._closing = False
        self._finished = False
        self._hurry = threading.Event()
        self._wake = threading.Event()
        self._thread = threading.Thread(target=self._run, name="ledger", daemon=True)
        self._thread.start()

    # -- for the data path ------------------------------------------------------------------

    def append(self, event: AnyEvent, *, cause_id: str | None, durable: bool = False) -> str:
        """See `ports.LedgerSink`. Never raises: what cannot be taken makes the ledger unhealthy."""
        at_s = self._clock.wall_s()
        problem, body = encode_checked(event)
        with self._mutex:
            problem = problem or self._no_room()
            if problem is None:
                self._queue_gap(at_s)
            event_id = self._ids.next(at_s)
            if problem is not None:
                self._losses.add(event_id, problem)
            else:
                self._queue.append(
                    pending(
                        event,
                        body,
                        event_id=event_id,
                        cause_id=cause_id,
                        at_s=at_s,
                        durable=durable,
                    )
                )
        for hear in self.hears:
            hear(event_id, event)
        if problem is not None:
            self._fail(problem)
        if durable or len(self._queue) >= self._hurry_at:
            self._hurry.set()
        if not self._wake.is_set():
            self._wake.set()
        return event_id

    @property
    def healthy(self) -> bool:
        """See `ports.LedgerSink`."""
        return self._reason is None

    @property
    def unhealthy_reason(self) -> str | None:
        """Why the ledger is unhealthy, None while it is healthy."""
        return self._reason

    @property
    def waiting(self) -> int:
        """How many events wait to be written."""
        return len(self._queue)

    async def flush(self) -> None:
        """See `ports.LedgerSink`."""
        await self._do(self._sync)

    async def recover(self) -> bool:
        """Try to write again after a failure; True if the ledger is healthy now.

        Opens the file anew and checks its tail, writes what waited, and a `LedgerGap` if something was lost.
        """
        await self._do(self._recover)
        return self.healthy

    async def compact(self, *, keep_events: int) -> None:
        """Fold all but the newest `keep_events` events into a checkpoint; lever chains stay."""
        await self._do(lambda: self._compact(keep_events))

    def close(self) -> None:
        """Write what waits, close the file and give the lock back. A second call does nothing."""
        with self._mutex:
            if self._closing:
                return
            self._closing = True
        self._hurry.set()
        self._wake.set()
        self._thread.join()

    # -- for readers ------------------------------------------------------------------------

    def read(self, *, after_seq: int = 0, limit: int | None = None) -> Sequence[Envelope]:
        """See `ports.LedgerReader`; sees what is written, so `flush` first to see everything."""
        with SqliteReader(self.path) as reader:
            return reader.read(after_seq=after_seq, limit=limit)

    def verify(self) -> Verification:
        """Check everything that is written."""
        with SqliteReader(self.path) as reader:
            return reader.verify()

    @property
    def head(self) -> Head:
        """The last event written."""
        return self._head

    # -- the writer thread --------------------------------------------------------------------

    async def _do(self, work: Callable[[], None]) -> None:
        loop = asyncio.get_running_loop()
        done = asyncio.Event()

        def release() -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
                loop.call_soon_threadsafe(done.set)

        with self._mutex:
            if self._closing:
                return
            self._jobs.append(_Job(work, release))
        self._hurry.set()
        self._wake.set()
        await done.wait()

    def _run(self) -> None:
        try:
            self._write_forever()
        finally:
            if not self._finished:
                self._die()

    def _die(self) -> None:
        """Tell everybody that nothing is written any more; the traceback goes where threads' go."""
        with self._mutex:
            self._closing = self._stuck = True
        self._fail(f"{self.path}: the writer stopped because of a fault in trimtab")
        for job in self._jobs:
            job.release()

    def _write_forever(self) -> None:
        while not self._closing:
            self._wake.wait()
            self._hurry.wait(LINGER_S)
            self._hurry.clear()
            self._wake.clear()
            with self._mutex:
                jobs = list(self._jobs)
                self._jobs.clear()
            self._drain()
            for job in jobs:
                job.run()
            if self._stored >= self._sweep_at and not self._stuck:
                self._compact(self._keep_events)
        self._shut_down()

    def _shut_down(self) -> None:
        for job in self._jobs:
            job.run()
        self._recover()
        try:
            self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        except sqlite3.Error as error:
            self._fail(f"{self.path}: {error}")
        self._db.close()
        self._file_lock.release()
        self._finished = True

    def _drain(self) -> None:
        while self._queue and not self._stuck:
            with self._mutex:
                batch = [self._queue.popleft() for _ in range(min(BATCH_MAX, len(self._queue)))]
            self._write(batch)

    def _write(self, batch: list[Pending]) -> None:
        if not batch:
            return
        rows, head = self._link(batch)
        try:
            with transaction(self._db, durable=any(each.durable for each in batch)):
                insert(self._db, rows)
        except sqlite3.Error as error:
            self._stuck = True
            with self._mutex:
                self._queue.extendleft(reversed(batch))
            self._fail(f"{self.path} cannot be written: {error}")
        else:
            self._head = head
            self._stored += len(rows)

    def _link(self, batch: Sequence[Pending]) -> tuple[list[Row], Head]:
        rows: list[Row] = []
        head = self._head
        for each in batch:
            rows.append(link(head, each))
            head = head_of(rows[-1])
        return rows, head

    def _sync(self) -> None:
        self._drain()
        if self._stuck:
            return
        try:
            sync_log(self.path)
        except OSError as error:
            self._stuck = True
            self._fail(f"{self.path} cannot be synced: {error}")

    def _recover(self) -> None:
        if self._stuck:
            try:
                self._db.close()
                self._db = open_for_writing(self.path)
                self._continue_from(check_tail(self._db, self.path))
            except (LedgerError, sqlite3.Error) as error:
                self._reason = str(error)
                return
        with self._mutex:
            self._queue_gap(self._clock.wall_s())
        self._stuck = False
        self._sync()
        with self._mutex:
            if not self._stuck and not self._losses:
                self._reason = None

    def _continue_from(self, head: Head) -> None:
        """Take up a reopened file: it may hold the failed batch after all, but nothing else."""
        ahead = head.seq - self._head.seq
        with self._mutex:
            front = list(itertools.islice(self._queue, max(0, ahead)))
            if self._link(front)[1] != head:
                raise LedgerError(f"{self.path} was changed by another program: start a new ledger")
            for _ in front:
                self._queue.popleft()
        self._head = head

    def _compact(self, keep_events: int) -> None:
        self._drain()
        if self._stuck:
            return
        try:
            self._fold_oldest(keep_events)
        except (sqlite3.Error, LedgerError, msgspec.MsgspecError) as error:
            self._fail(f"{self.path}: retention failed: {error}")
        self._sweep_at = self._next_sweep()

    def _fold_oldest(self, keep_events: int) -> None:
        # Ids sort like seqs: what was appended before the checkpoint got its id is written before it.
        with self._mutex:
            at_s = self._clock.wall_s()
            earlier = list(self._queue)
            self._queue.clear()
            event_id = self._ids.next(at_s)
        self._write(earlier)
        if self._stuck:
            return
        with transaction(self._db, durable=True):
            checkpoint = prepare_checkpoint(self._db, keep_events=keep_events)
            if checkpoint is None:
                return
            body = encode_event(checkpoint)
            waiting = pending(
                checkpoint, body, event_id=event_id, cause_id=None, at_s=at_s, durable=True
            )
            row = link(self._head, waiting)
            insert(self._db, [row])
            gone = remove_marked(self._db)
        self._head = head_of(row)
        self._stored += 1 - gone

    def _next_sweep(self) -> int:
        return max(self._stored, self._keep_events) + max(1, int(self._keep_events * SWEEP_SHARE))

    def _no_room(self) -> str | None:
        if self._closing:
            return "the ledger is closed"
        if len(self._queue) + bool(self._losses) >= self._queue_max:
            return f"{self._queue_max} events wait to be written (ledger.queue_max)"
        return None

    def _queue_gap(self, at_s: float) -> None:
        """Put what was lost before the next event, so that the chain shows it at its place."""
        if not self._losses:
            return
        gap = self._losses.take()
        event_id = self._ids.next(at_s)
        body = encode_event(gap)
        self._queue.append(
            pending(gap, body, event_id=event_id, cause_id=None, at_s=at_s, durable=True)
        )

    def _fail(self, reason: str) -> None:
        with self._mutex:
            first = self._reason is None
            self._reason = self._reason or reason
        if first and self._on_unhealthy is not None:
            self._on_unhealthy(reason)
