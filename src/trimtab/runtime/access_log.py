"""The access log: one JSON line per finished request, without a word of a prompt or of an answer.

Lines are written by a thread of their own. A disk that is slow or full loses lines, which are counted; it holds up no
request.
"""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Final

import msgspec

from trimtab.core.decision import RoutingDecision
from trimtab.core.record import RequestRecord
from trimtab.runtime.line_log import LineLog
from trimtab.runtime.watch import HasHeaders

LINES_WAITING_MAX: Final = 20_000
_ENCODER: Final = msgspec.json.Encoder()


class AccessLog:
    """Implements `RequestWatch`. Raises `ConfigError` where the file cannot be opened; `close` it in the end."""

    def __init__(self, place: str) -> None:
        self._log = LineLog(place, key="telemetry.access_log", waiting_max=LINES_WAITING_MAX)
        self.reopen, self.close = self._log.reopen, self._log.close

    @property
    def lost(self) -> int:
        """Lines that were not written."""
        return self._log.lost

    def begin(
        self, request_id: str, method: str, path: str, headers: HasHeaders
    ) -> Mapping[str, str]:
        """See `RequestWatch`: nothing is noted before the end."""
        return {}

    def end(self, record: RequestRecord, decision: RoutingDecision | None) -> None:
        """See `RequestWatch`."""
        self._log.put(line_of(record, decision))


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
