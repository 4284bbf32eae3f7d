"""What a system keeps of its recent past in memory: records of requests and views of its fleet, bounded."""

from collections import deque
from collections.abc import Callable
from typing import Final

from trimtab.core.decision import FleetView
from trimtab.core.record import RequestRecord

RECORDS_MAX: Final = 20_000
VIEWS_MAX: Final = 3_600


class Recent:
    """Keeps the latest records and views; whoever listens hears of each record."""

    def __init__(self) -> None:
        self._records: deque[RequestRecord] = deque(maxlen=RECORDS_MAX)
        self._views: deque[FleetView] = deque(maxlen=VIEWS_MAX)
        self._listeners: list[Callable[[RequestRecord], None]] = []

    @property
    def records(self) -> tuple[RequestRecord, ...]:
        """Recent records, oldest first, bounded."""
        return tuple(self._records)

    def records_since(self, wall_s: float) -> list[RequestRecord]:
        """Records of requests that arrived at or after a moment of the wall clock."""
        return [record for record in self._records if record.arrived_at_s >= wall_s]

    def views_since(self, wall_s: float) -> list[FleetView]:
        """Views sampled at or after a moment of the wall clock."""
        return [view for view in self._views if view.at_s >= wall_s]

    def listen(self, listener: Callable[[RequestRecord], None]) -> None:
        """Hear every finished request from now on."""
        self._listeners.append(listener)

    def keep_record(self, record: RequestRecord) -> None:
        """Take in a request that ended, and tell whoever listens."""
        self._records.append(record)
        for listener in self._listeners:
            listener(record)

    def keep_view(self, view: FleetView) -> None:
        """Take in how the fleet looks now."""
        self._views.append(view)
