"""A ledger's rows: what is stored of an event, how rows are linked, and how ids are made.

A row keeps the encoded event as it was hashed. Decoding and encoding it again could give other bytes in
another version, so hashes are always taken over the stored bytes.
"""

import math

import msgspec

from trimtab.core.events import (
    AnyEvent,
    Envelope,
    LedgerGap,
    RequestServed,
    chain_hash,
    decode_event,
    encode_event,
    kind_of,
    lever_of,
)

_ALPHABET = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_PAIRS = tuple(high + low for high in _ALPHABET for low in _ALPHABET)
_TIME_DIGITS = 10
_COUNT_DIGITS = 3
_RUN_DIGITS = 3
_PER_MS = len(_ALPHABET) ** _COUNT_DIGITS
RUNS = len(_ALPHABET) ** _RUN_DIGITS


class LedgerError(RuntimeError):
    """A ledger that cannot be used; the message names the file, what is wrong and the fix."""


class Pending(msgspec.Struct, frozen=True):
    """An event that waits to be written; its place in the chain is not known yet."""

    id: str
    cause_id: str | None
    at_s: float
    kind: str
    lever: str | None
    body: bytes
    durable: bool


class Row(msgspec.Struct, frozen=True):
    """One event as it is stored. `body` is the encoded event."""

    seq: int
    id: str
    cause_id: str | None
    at_s: float
    kind: str
    lever: str | None
    body: bytes
    prev_hash: str
    hash: str

    def computed_hash(self) -> str:
        """Return the hash that the row's own fields give."""
        return chain_hash(
            prev_hash=self.prev_hash,
            seq=self.seq,
            event_id=self.id,
            cause_id=self.cause_id,
            at_s=self.at_s,
            body=self.body,
        )

    def envelope(self) -> Envelope:
        """Decode the row; raises `LedgerError` if its event is of no kind that this version knows."""
        try:
            event = decode_event(self.body)
        except msgspec.MsgspecError as error:
            raise LedgerError(
                f"event {self.seq} ({self.kind}) cannot be read: {error}. "
                "It was damaged or written by another version; `trimtab ledger verify` tells which"
            ) from error
        return Envelope(
            seq=self.seq,
            id=self.id,
            cause_id=self.cause_id,
            at_s=self.at_s,
            event=event,
            prev_hash=self.prev_hash,
            hash=self.hash,
        )


class Head(msgspec.Struct, frozen=True):
    """The end of a chain: what the next row links to."""

    seq: int
    id: str
    hash: str


def pending(
    event: AnyEvent, body: bytes, *, event_id: str, cause_id: str | None, at_s: float, durable: bool
) -> Pending:
    """Return an event as it waits to be written."""
    return Pending(
        id=event_id,
        cause_id=cause_id,
        at_s=at_s,
        kind=kind_of(event),
        lever=lever_of(event),
        body=body,
        durable=durable,
    )


def link(head: Head, waiting: Pending) -> Row:
    """Return the row that puts a waiting event behind `head`."""
    seq = head.seq + 1
    digest = chain_hash(
        prev_hash=head.hash,
        seq=seq,
        event_id=waiting.id,
        cause_id=waiting.cause_id,
        at_s=waiting.at_s,
        body=waiting.body,
    )
    return Row(
        seq=seq,
        id=waiting.id,
        cause_id=waiting.cause_id,
        at_s=waiting.at_s,
        kind=waiting.kind,
        lever=waiting.lever,
        body=waiting.body,
        prev_hash=head.hash,
        hash=digest,
    )


def head_of(row: Row) -> Head:
    """Return the head that a row makes."""
    return Head(row.seq, row.id, row.hash)


def encode_checked(event: AnyEvent) -> tuple[str | None, bytes]:
    """Return a problem or None, and the encoded event, which can be decoded again.

    What comes back different (a number that is none) would make the whole ledger unreadable.
    """
    try:
        body = encode_event(event)
        if not _has_plain_numbers(event):
            decode_event(body)
    except (msgspec.MsgspecError, TypeError, ValueError, OverflowError) as error:
        return f"a {type(event).__name__} cannot be stored: {error}", b""
    return None, body


def _has_plain_numbers(event: AnyEvent) -> bool:
    """Say whether every number that must be one is, where that is found cheaper than by decoding: of a request."""
    if not isinstance(event, RequestServed) or event.prefill is not None:
        return False
    decision, view = event.decision, event.view
    total = event.record.arrived_at_s + event.record.finished_at_s
    if decision is not None:
        total += decision.at_s
        for candidate in decision.candidates:
            total += candidate.load_tokens + sum(candidate.terms.values())
    if view is not None:
        total += view.at_s
        for replica in view.replicas:
            total += replica.started_at_s + replica.seen_at_s
    # A sum of finite times and costs is finite; one that is not has a part that is not.
    return math.isfinite(total)


class EventIds:
    """Makes ids that sort in the order in which they were made, also across restarts and clock steps.

    16 digits of Crockford's base 32: milliseconds since 1970 (10), a count within the millisecond (3), and the
    run (3), which tells ids of different ledgers apart. Time never goes back: after a clock step the last
    millisecond is counted on.
    """

    def __init__(self, *, run: int, after_id: str | None = None) -> None:
        """`run`: any number in [0, RUNS); `after_id`: the last id of the ledger that is continued."""
        self._run = _digits(run % RUNS, _RUN_DIGITS)
        self._ms = _number(after_id[:_TIME_DIGITS]) + 1 if after_id else 0
        self._count = 0

    def next(self, wall_s: float) -> str:
        """Return the next id at this wall-clock time."""
        now_ms = int(wall_s * 1000)
        if now_ms > self._ms:
            self._ms, self._count = now_ms, 0
        else:
            self._count += 1
        if self._count >= _PER_MS:
            self._ms, self._count = self._ms + 1, 0
        return f"{_digits(self._ms, _TIME_DIGITS)}{_digits(self._count, _COUNT_DIGITS)}{self._run}"


def first_id(at_s: float) -> str:
    """Return a text that no id of an event of this time or later sorts before, however the clock was put back."""
    return _digits(max(0, int(at_s * 1000)), _TIME_DIGITS)


def _digits(number: int, width: int) -> str:
    found = ""
    while width > 1:
        found = _PAIRS[number & 1023] + found
        number >>= 10
        width -= 2
    return _ALPHABET[number & 31] + found if width else found


def _number(digits: str) -> int:
    number = 0
    for digit in digits:
        number = number * len(_ALPHABET) + _ALPHABET.index(digit)
    return number


class Losses:
    """Counts events that could not be kept, until a `LedgerGap` tells of them."""

    def __init__(self) -> None:
        self._lost = 0
        self._first_id = ""
        self._last_id = ""
        self._reason = ""

    def __bool__(self) -> bool:
        return self._lost > 0

    def add(self, event_id: str, reason: str) -> None:
        """Count one more lost event; the first one's reason stands for all."""
        if not self._lost:
            self._first_id, self._reason = event_id, reason
        self._lost += 1
        self._last_id = event_id

    def take(self) -> LedgerGap:
        """Return what was lost and start again from nothing."""
        gap = LedgerGap(
            lost=self._lost, first_id=self._first_id, last_id=self._last_id, reason=self._reason
        )
        self.__init__()  # type: ignore[misc]
        return gap
