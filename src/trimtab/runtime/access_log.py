"""The access log: one JSON line per finished request, without a word of a prompt or of an answer.

Lines are written by a thread of their own. A disk that is slow or full loses lines, which are counted; it holds up no
request.
"""

import os
import queue
import sys
import threading
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Final

import msgspec

from trimtab.core.config import ConfigError
from trimtab.core.decision import RoutingDecision
from trimtab.core.record import RequestRecord
from trimtab.runtime.watch import HasHeaders

LINES_WAITING_MAX: Final = 20_000
STDOUT: Final = "-"
_ENCODER: Final = msgspec.json.Encoder()


class AccessLog:
    """Implements `RequestWatch`. Raises `ConfigError` where the file cannot be opened; `close` it in the end."""

    def __init__(self, place: str) -> None:
        self._place = place
        self._file = _opened(place)
        self._lines: queue.Queue[bytes | None] = queue.Queue(LINES_WAITING_MAX)
        self._reopen = threading.Event()
        self.lost = 0
        """Lines that were not written."""
        self._thread = threading.Thread(target=self._write_all, name="access-log", daemon=True)
        self._thread.start()

    def begin(
        self, request_id: str, method: str, path: str, headers: HasHeaders
    ) -> Mapping[str, str]:
        """See `RequestWatch`: nothing is noted before the end."""
        return {}

    def end(self, record: RequestRecord, decision: RoutingDecision | None) -> None:
        """See `RequestWatch`."""
        try:
            self._lines.put_nowait(line_of(record, decision))
        except queue.Full:
            self.lost += 1

    def reopen(self) -> None:
        """Write to a new file of the same name from the next line on: the old one was moved away."""
        self._reopen.set()

    def close(self) -> None:
        """Write what waits, and end."""
        self._lines.put(None)
        self._thread.join()
        self._let_go()

    def _write_all(self) -> None:
        while (line := self._lines.get()) is not None:
            batch = [line]
            ends = False
            while not self._lines.empty():
                more = self._lines.get()
                if more is None:
                    ends = True
                    break
                batch.append(more)
            self._write(batch)
            if ends:
                return

    def _write(self, batch: list[bytes]) -> None:
        try:
            if self._reopen.is_set():
                self._reopen.clear()
                self._let_go()
                self._file = _opened(self._place)
            data = memoryview(b"".join(batch))
            while data:
                data = data[os.write(self._file, data) :]
        except (OSError, ConfigError):
            self.lost += len(batch)

    def _let_go(self) -> None:
        if self._place != STDOUT:
            os.close(self._file)


def _opened(place: str) -> int:
    if place == STDOUT:
        return sys.__stdout__.fileno() if sys.__stdout__ is not None else 1
    try:
        return os.open(place, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise ConfigError(
            f"telemetry.access_log {place} cannot be written: {error.strerror}; name a file in a folder that can"
        ) from error


def line_of(record: RequestRecord, decision: RoutingDecision | None) -> bytes:
    """Return a request as one line of JSON; what is unknown is left out. Times in milliseconds, UTC."""
    tokens = record.tokens
    fields: dict[str, object] = {
        "time": datetime.fromtimestamp(record.arrived_at_s, UTC).isoformat(timespec="milliseconds"),
        "request_id": record.request_id,
        "endpoint": record.endpoint,
        "status": record.status,
        "error": record.error.value,
        "stream": record.stream,
        "tenant": record.tenant,
        "priority": record.priority,
        "label": record.label,
        "replica": record.replica,
        "policy": record.policy or None,
        "reason": None if decision is None else decision.reason.value,
        "arm": record.arm.value,
        "prompt_tokens": tokens.prompt,
        "cached_tokens": tokens.delivered,
        "output_tokens": tokens.output,
        "usage_estimated": True if tokens.output_estimated else None,
        "finish_reason": record.finish_reason,
        "ttft_ms": _rounded(record.ttft_ms),
        "tpot_ms": _rounded(record.tpot_ms),
        "e2e_ms": _rounded(record.e2e_ms),
    }
    told = {name: value for name, value in fields.items() if value not in (None, "")}
    return _ENCODER.encode(told) + b"\n"


def _rounded(value_ms: float | None) -> float | None:
    return None if value_ms is None else round(value_ms, 3)
