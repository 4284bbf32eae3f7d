"""Recorded requests as files have them: one JSON object a line, a body, a line of a batch file or a ledger's event."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO, Final

import msgspec

from trimtab.workloads.base import WorkloadError

LINE_BYTES_MAX: Final = 64 * 1024 * 1024

Line = Mapping[str, Any]


class RequestLine(msgspec.Struct, frozen=True, kw_only=True):
    """One line: a request's body, or with `is_record` its record out of a ledger.

    `outer`: the whole line, which may say more beside the body. `where` names file and line.
    """

    number: int
    where: str
    outer: Line
    body: Line
    is_record: bool = False
    record: object | None = None

    def named(self, *fields: str) -> str:
        """Return the first text among these fields, beside the body or in it; "" without one."""
        for field in fields:
            for place in (self.outer, self.body):
                found = place.get(field)
                if isinstance(found, str) and found:
                    return found
        return ""


def read_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Yield the numbered lines of a file, none longer than the limit and a byte; raises `WorkloadError`."""
    try:
        with path.open("rb") as lines:
            yield from enumerate(_bounded(lines), start=1)
    except OSError as error:
        raise WorkloadError(f"{path} cannot be read: {error.strerror}") from error


def _bounded(lines: BinaryIO) -> Iterator[bytes]:
    """Lines, none longer than the limit and a byte: a longer one goes no further into memory."""
    return iter(lambda: lines.readline(LINE_BYTES_MAX + 1), b"")


def request_line(line: bytes, number: int, file: str) -> RequestLine | None:
    """Read one line; None for an empty one and for an event of a ledger that is no request.

    Raises `WorkloadError` with file and line.
    """
    where = f"{file}, line {number}"
    if not line.strip():
        return None
    if len(line) > LINE_BYTES_MAX:
        raise WorkloadError(f"{where}: more than {LINE_BYTES_MAX:,} bytes")
    try:
        data = msgspec.json.decode(line)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise WorkloadError(f"{where}: {error}; give one JSON object a line") from error
    if not isinstance(data, dict):
        raise WorkloadError(f"{where}: no JSON object")
    event, inner = data.get("event"), data.get("body")
    if isinstance(event, dict) and event.get("kind") != "request_served":
        return None
    is_record = isinstance(event, dict) or isinstance(data.get("segments"), list)
    return RequestLine(
        number=number,
        where=where,
        outer=data,
        body=inner if isinstance(inner, dict) else data,
        is_record=is_record,
        record=event.get("record") if isinstance(event, dict) else data if is_record else None,
    )
