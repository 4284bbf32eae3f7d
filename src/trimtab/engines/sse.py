"""Server-sent events, read incrementally: any split of the bytes gives the same events.

The law: the `raw` bytes of all events, joined, are the bytes that were fed, so a proxy can pass a stream
unchanged and still leave out single events. An event ends with an empty line; lines end with LF, CR LF or CR. A CR at
the very end of what was fed is not judged before the next byte comes, because an LF may belong to it.

Bounded: an event longer than `event_bytes_max` is an error, not a growing buffer. Text is not decoded here, so
invalid UTF-8 is the problem of whoever reads the data.
"""

import re

import msgspec

from trimtab.core.ports import EngineFormatError

EVENT_BYTES_MAX = 1024 * 1024

# An empty line at the start of an event, or a line end followed by another one. A final CR counts only when
# a byte that is no LF follows it.
_EOL_KNOWN = rb"(?:\r\n|\n|\r(?=[^\n]))"
_EMPTY_EVENT = re.compile(_EOL_KNOWN)
_EVENT_END = re.compile(rb"(?:\r\n|\n|\r(?!\n))" + _EOL_KNOWN)
_LINE_END = re.compile(rb"\r\n|\r|\n")
# As a number: bytes are looked for in bytes by way of an exception.
_CR = ord("\r")
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
# The longest end of an event that can still be incomplete.
_OVERLAP = 3


class SSEEvent(msgspec.Struct, frozen=True, kw_only=True):
    """One event. `data` is None for comments and empty lines; `complete` is False for a cut-off last event."""

    data: bytes | None
    raw: bytes
    name: str | None = None
    complete: bool = True


class SSETooLargeError(EngineFormatError):
    """An event is longer than the maximum. `events` are those that ended before it in the same bytes."""

    def __init__(self, message: str, events: list[SSEEvent]) -> None:
        super().__init__(message)
        self.events = events


class SSEParser:
    """Turns the bytes of one stream into events. After an error it is used up."""

    def __init__(self, *, event_bytes_max: int = EVENT_BYTES_MAX) -> None:
        self._event_bytes_max = event_bytes_max
        self._pending = b""
        self._scanned = 0
        self._at_start = True

    def feed(self, data: bytes) -> list[SSEEvent]:
        """Return the events that end within what was fed so far; raises `SSETooLargeError`."""
        buffer = self._pending + data
        events: list[SSEEvent] = []
        start, scan = 0, self._scanned
        while (end := _find_end(buffer, start, scan)) is not None:
            self._check(end - start, events)
            events.append(self._event(buffer[start:end]))
            start = scan = end
        self._pending = buffer[start:]
        self._scanned = max(0, len(self._pending) - _OVERLAP)
        self._check(len(self._pending), events)
        return events

    @property
    def is_between(self) -> bool:
        """Whether what was fed ended with the end of an event."""
        return not self._pending

    def feed_plain(self, data: bytes) -> list[bytes] | None:
        """Return the data of each event where `data` is whole events of one plain line, as engines send them.

        None where it is anything else, and then nothing was taken in: `feed` it. The same events either way, at a
        tenth of the cost.
        """
        if (
            self._pending
            or data[:6] != b"data: "
            or data[-2:] != b"\n\n"
            or _CR in data
            or len(data) > self._event_bytes_max
        ):
            return None
        lines = data.count(b"\n")
        if lines == 2:
            self._at_start = False
            return [data[6:-2]]
        parts = data[6:-2].split(b"\n\ndata: ")
        if lines != 2 * len(parts):
            return None
        self._at_start = False
        return parts

    def finish(self) -> list[SSEEvent]:
        """Return what is left when the stream has ended: nothing, or one event that may be cut off."""
        raw, self._pending, self._scanned = self._pending, b"", 0
        if not raw:
            return []
        ended = raw == b"\r" or raw.endswith((b"\r\r", b"\n\r"))
        return [self._event(raw) if ended else SSEEvent(data=None, raw=raw, complete=False)]

    def _check(self, size: int, events: list[SSEEvent]) -> None:
        if size > self._event_bytes_max:
            raise SSETooLargeError(
                f"an event of the stream is longer than {self._event_bytes_max} bytes", events
            )

    def _event(self, raw: bytes) -> SSEEvent:
        text = raw.removeprefix(_BYTE_ORDER_MARK) if self._at_start else raw
        self._at_start = False
        return parse_event(text, raw=raw)


def _find_end(buffer: bytes, start: int, scan: int) -> int | None:
    """Return the index after the event that begins at `start`, None if its end is not there yet."""
    empty = _EMPTY_EVENT.match(buffer, start)
    if empty is not None:
        return empty.end()
    end = _EVENT_END.search(buffer, max(start, scan))
    return None if end is None else end.end()


def parse_event(text: bytes, *, raw: bytes) -> SSEEvent:
    """Read the lines of one event: fields `data` and `event`; comments and other fields carry nothing."""
    data: list[bytes] = []
    name: str | None = None
    for line in _LINE_END.split(text):
        field, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if field == b"data":
            data.append(value)
        elif field == b"event":
            name = value.decode("utf-8", "replace")
    return SSEEvent(data=b"\n".join(data) if data else None, raw=raw, name=name)
