"""What the gateway itself knows of every replica: who is in flight there, and how much work that is.

No engine is asked: its answer would be older than the requests that were sent since. Two amounts of work
are kept apart because they bind differently: uncached prompt tokens until the first token is seen, and output tokens
still expected from there on. Both are estimates and are clamped at 0; finishing a request removes all of its share.
Of an answer that is not streamed nothing is seen before its end: until then it counts as waiting, with all its work.
"""

import msgspec

from trimtab.core.decision import (
    FleetView,
    ReplicaView,
    columns_for,
    set_column,
    with_columns,
)
from trimtab.core.types import ReplicaState, Role


class Admission(msgspec.Struct, frozen=True, kw_only=True):
    """Streams in flight at an admission, the admitted one included: on its replica, and in the fleet."""

    batch: int
    concurrency: int


class _Flight(msgspec.Struct, kw_only=True):
    replica: str
    prefill_tokens: int
    decode_tokens: int
    first_token_seen: bool = False


class _Work(msgspec.Struct, kw_only=True):
    running: int = 0
    waiting: int = 0
    prefill_tokens: int = 0
    decode_tokens: int = 0


class LoadState:
    """Replicas as the fleet reported them, with the work that the gateway has in flight on each.

    Columns and views are kept as work changes, so that a view of a large fleet costs a copy and not a rebuild.
    """

    def __init__(self) -> None:
        self._replicas: dict[str, ReplicaView] = {}
        self._work: dict[str, _Work] = {}
        self._flights: dict[str, _Flight] = {}
        self._columns = columns_for(())
        self._views: list[ReplicaView] = []
        self._dirty: set[str] = set()
        self._ready: tuple[str, ...] | None = None

    def set_replica(
        self,
        *,
        id: str,  # noqa: A002 - the field's name in the view
        url: str,
        role: Role,
        revision: str,
        state: ReplicaState,
        slots: int,
        speculating: bool = False,
        started_at_s: float = 0.0,
    ) -> None:
        """Take in what the fleet says of a replica; requests in flight on it stay counted."""
        before = self._replicas.get(id)
        self._replicas[id] = ReplicaView(
            id=id,
            url=url,
            role=role,
            revision=revision,
            state=state,
            slots=slots,
            speculating=speculating,
            started_at_s=started_at_s,
            kv_used_share=before.kv_used_share if before else None,
            seen_at_s=before.seen_at_s if before else 0.0,
        )
        if before is None or before.state is not state:
            self._ready = None
        if before is None:
            self._rebuild()
        else:
            self._dirty.add(id)

    def remove_replica(self, replica: str) -> None:
        """Forget a replica that left the fleet; its requests in flight run out uncounted in views."""
        if self._replicas.pop(replica, None) is not None:
            self._rebuild()

    def seen(self, replica: str, *, now_s: float, kv_used_share: float | None) -> None:
        """Take in a probe of a replica; unknown replicas are ignored."""
        view = self._replicas.get(replica)
        if view is not None:
            self._replicas[replica] = msgspec.structs.replace(
                view, seen_at_s=now_s, kv_used_share=kv_used_share
            )
            self._dirty.add(replica)

    def admitted(
        self, request_id: str, replica: str, *, prefill_tokens: int, decode_tokens: int
    ) -> Admission:
        """Count a request on a replica: `prefill_tokens` uncached, `decode_tokens` expected."""
        assert request_id not in self._flights, f"{request_id} was admitted twice"
        flight = _Flight(
            replica=replica,
            prefill_tokens=max(0, prefill_tokens),
            decode_tokens=max(0, decode_tokens),
        )
        self._flights[request_id] = flight
        work = self._work.setdefault(replica, _Work())
        work.waiting += 1
        work.prefill_tokens += flight.prefill_tokens
        work.decode_tokens += flight.decode_tokens
        self._dirty.add(replica)
        return Admission(batch=work.running + work.waiting, concurrency=len(self._flights))

    def prefill_done(self, request_id: str) -> None:
        """Note the first token of a request; later calls and unknown requests change nothing."""
        flight = self._flights.get(request_id)
        if flight is None or flight.first_token_seen:
            return
        work = self._work[flight.replica]
        flight.first_token_seen = True
        work.waiting -= 1
        work.running += 1
        work.prefill_tokens -= flight.prefill_tokens
        flight.prefill_tokens = 0
        self._dirty.add(flight.replica)

    def chunk_delivered(self, request_id: str, *, tokens: int = 1) -> None:
        """Take delivered output off what is still expected of a request."""
        flight = self._flights.get(request_id)
        if flight is None:
            return
        taken = min(tokens, flight.decode_tokens)
        flight.decode_tokens -= taken
        self._work[flight.replica].decode_tokens -= taken
        self._dirty.add(flight.replica)

    def finished(self, request_id: str) -> None:
        """Remove a request, however it ended; unknown requests change nothing."""
        flight = self._flights.pop(request_id, None)
        if flight is None:
            return
        work = self._work[flight.replica]
        if flight.first_token_seen:
            work.running -= 1
        else:
            work.waiting -= 1
        work.prefill_tokens -= flight.prefill_tokens
        work.decode_tokens -= flight.decode_tokens
        self._dirty.add(flight.replica)

    @property
    def in_flight(self) -> int:
        """Requests admitted and not finished, over all replicas."""
        return len(self._flights)

    def ready(self) -> tuple[str, ...]:
        """Return the ids of the replicas that take new requests, in order."""
        if self._ready is None:
            self._ready = tuple(
                id_
                for id_, view in sorted(self._replicas.items())
                if view.state is ReplicaState.READY
            )
        return self._ready

    def view(self, now_s: float, *, sequence: int = 0) -> FleetView:
        """Return the fleet as it is now, replicas in order of id."""
        self._refresh()
        view = FleetView(at_s=now_s, replicas=tuple(self._views), sequence=sequence)
        return with_columns(view, self._columns.copy())

    def _rebuild(self) -> None:
        """Lay the columns out anew: a replica came or left."""
        self._columns = columns_for(tuple(sorted(self._replicas)))
        self._views = [self._replicas[id_] for id_ in self._columns.ids]
        self._dirty = set(self._replicas)
        self._ready = None

    def _refresh(self) -> None:
        for replica in self._dirty:
            at = self._columns.place(replica)
            if at is not None:
                self._views[at] = view = self._seen_with_work(replica)
                set_column(self._columns, at, view)
        self._dirty.clear()

    def _seen_with_work(self, replica: str) -> ReplicaView:
        work = self._work.get(replica)
        view = self._replicas[replica]
        if work is None:
            return view
        return msgspec.structs.replace(
            view,
            running=work.running,
            waiting=work.waiting,
            prefill_tokens_outstanding=work.prefill_tokens,
            decode_tokens_outstanding=work.decode_tokens,
        )
