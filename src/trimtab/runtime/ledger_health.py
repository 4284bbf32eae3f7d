"""Says once that promotions stopped because events cannot be written, and once that they go on."""

from trimtab.core.events import Frozen
from trimtab.core.ports import LedgerSink


class LedgerHealth:
    """Watches a sink; what it says is an event itself, told when it can be written again."""

    def __init__(self, sink: LedgerSink) -> None:
        self._sink = sink
        self._was_unhealthy = False

    def tick(self, frozen: bool) -> None:
        """Look at the sink; `frozen`: whether somebody froze promotions."""
        unhealthy = not self._sink.healthy
        if unhealthy == self._was_unhealthy:
            return
        self._was_unhealthy = unhealthy
        if not unhealthy:
            event = Frozen(frozen=frozen, reason="the ledger can be written again")
            self._sink.append(event, cause_id=None)
