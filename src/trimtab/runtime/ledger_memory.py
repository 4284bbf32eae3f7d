"""A ledger without a file, for tests and dry runs: same contract, nothing survives the process."""

import random
from collections.abc import Iterable, Sequence

from trimtab.core.events import GENESIS_HASH, AnyEvent, Envelope, encode_event
from trimtab.core.ports import Clock
from trimtab.runtime.ledger_rows import RUNS, EventIds, Head, Row, head_of, link, pending
from trimtab.runtime.ledger_verify import Verification, verify


class MemoryLedger:
    """Events in a list; implements `ports.LedgerSink`, `ports.LedgerReader` and `ledger_verify.Source`."""

    def __init__(self, *, clock: Clock, run: int | None = None) -> None:
        """`run` fixes the run's part of ids, so that a test can expect them."""
        self._clock = clock
        self._ids = EventIds(run=random.randrange(RUNS) if run is None else run)
        self._rows: list[Row] = []
        self._seqs: dict[str, int] = {}
        self._reason: str | None = None

    def append(self, event: AnyEvent, *, cause_id: str | None, durable: bool = False) -> str:
        """See `ports.LedgerSink`."""
        at_s = self._clock.wall_s()
        event_id = self._ids.next(at_s)
        if self._reason is not None:
            return event_id
        head = head_of(self._rows[-1]) if self._rows else Head(0, "", GENESIS_HASH)
        body = encode_event(event)
        row = link(
            head,
            pending(event, body, event_id=event_id, cause_id=cause_id, at_s=at_s, durable=durable),
        )
        self._rows.append(row)
        self._seqs[event_id] = row.seq
        return event_id

    @property
    def healthy(self) -> bool:
        """See `ports.LedgerSink`."""
        return self._reason is None

    @property
    def unhealthy_reason(self) -> str | None:
        """Why the ledger is unhealthy, None while it is healthy."""
        return self._reason

    def fail(self, reason: str) -> None:
        """Behave from here on as a ledger whose disk is full."""
        self._reason = reason

    async def flush(self) -> None:
        """See `ports.LedgerSink`."""

    def close(self) -> None:
        """Nothing is held open."""

    def read(self, *, after_seq: int = 0, limit: int | None = None) -> Sequence[Envelope]:
        """See `ports.LedgerReader`."""
        end = None if limit is None else after_seq + limit
        return [row.envelope() for row in self._rows[after_seq:end]]

    def verify(self) -> Verification:
        """Check everything that was appended."""
        return verify(self)

    def rows(self, *, after_seq: int = 0) -> Iterable[Row]:
        """See `ledger_verify.Source`."""
        return self._rows[after_seq:]

    def rows_of_kind(self, kind: str) -> Iterable[Row]:
        """See `ledger_verify.Source`."""
        return [row for row in self._rows if row.kind == kind]

    def seq_of(self, event_id: str) -> int | None:
        """See `ledger_verify.Source`."""
        return self._seqs.get(event_id)
