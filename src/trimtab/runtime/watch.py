"""Who is told of every request at its beginning and at its end: traces and the access log."""

from collections.abc import Mapping, Sequence
from typing import Protocol

from trimtab.core.decision import RoutingDecision
from trimtab.core.record import RequestRecord


class RequestWatch(Protocol):
    """Hears requests. Neither call may raise or take long: both stand in the way of the request."""

    def begin(
        self, request_id: str, method: str, path: str, headers: Mapping[str, str]
    ) -> Mapping[str, str]:
        """Hear that a request's head is here; return headers to send upstream over the client's, often none.

        `headers`: names in lower case, as `.get` asks for them.
        """
        ...

    def end(self, record: RequestRecord, decision: RoutingDecision | None) -> None:
        """Hear how it ended, once for each `begin`."""
        ...


class Watches:
    """Several watches as one."""

    def __init__(self, watches: Sequence[RequestWatch]) -> None:
        self._watches = tuple(watches)

    def begin(
        self, request_id: str, method: str, path: str, headers: Mapping[str, str]
    ) -> Mapping[str, str]:
        """See `RequestWatch`."""
        added: dict[str, str] = {}
        for watch in self._watches:
            added.update(watch.begin(request_id, method, path, headers))
        return added

    def end(self, record: RequestRecord, decision: RoutingDecision | None) -> None:
        """See `RequestWatch`."""
        for watch in self._watches:
            watch.end(record, decision)
