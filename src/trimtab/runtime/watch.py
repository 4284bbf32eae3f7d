"""Who is told of every request at its beginning and at its end: traces and the access log."""

from collections.abc import Mapping, Sequence
from typing import Protocol

from trimtab.core.decision import RoutingDecision
from trimtab.core.record import RequestRecord


class HasHeaders(Protocol):
    """A request's headers, asked for by name in lower case."""

    def get(self, name: str, /) -> str | None:
        """Return the first value of a name, None if there is none."""
        ...


class RequestWatch(Protocol):
    """Hears requests. Neither call may raise or take long: both stand in the way of the request."""

    def begin(
        self, request_id: str, method: str, path: str, headers: HasHeaders
    ) -> Mapping[str, str]:
        """Hear that a request's head is here; return headers to send upstream over the client's, often none.

        Names of headers are in lower case.
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
        self, request_id: str, method: str, path: str, headers: HasHeaders
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
