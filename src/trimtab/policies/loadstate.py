"""What the gateway itself knows of every replica: who is in flight there, and how much work that is.

No engine is asked: its answer would be older than the requests that were sent since. Two amounts of work
are kept apart because they bind differently: uncached prompt tokens until the first token is seen, and output tokens
still expected from there on. Both are estimates and are clamped at 0; finishing a request removes all of its share.
Of an answer that is not streamed nothing is seen before its end: until then it counts as waiting, with all its work.
"""

import heapq

import msgspec
import numpy as np

from trimtab.core.columns import FleetColumns, Floats
from trimtab.core.decision import FleetView, ReplicaView, columns_for, with_columns
from trimtab.core.types import ReplicaState, Role


class Admission(msgspec.Struct, frozen=True, kw_only=True):
    """Streams in flight at an admission, the admitted one included: on its replica, and in the fleet."""

    batch: int
    concurrency: int


class _Flight(msgspec.Struct, kw_only=True):
    """A request in flight. `ends_at`: the replica's step by which all that is expected of it has come, where told."""

    replica: str
    prefill_tokens: int
    decode_tokens: int
    first_token_seen: bool = False
    ends_at: int | None = None


class _Work(msgspec.Struct, kw_only=True):
    """What is in flight on a replica, which is at place `at` of the columns (-1: it left).

    `streams`: those whose output comes with the `steps` that are told and of which more is expected; `ends` is a heap
    of (ends_at, order, request) over them, in which requests that are gone may linger.
    """

    at: int = -1
    running: int = 0
    waiting: int = 0
    prefill_tokens: int = 0
    decode_tokens: int = 0
    steps: int = 0
    streams: int = 0
    ends: list[tuple[int, int, _Flight]] = []


class LoadState:
    """Replicas as the fleet reported them, with the work that the gateway has in flight on each.

    Columns are written as work changes and views only when they are asked for, so that a probe or a request costs the
    same in a fleet of any size.
    """

    def __init__(self) -> None:
        self._replicas: dict[str, ReplicaView] = {}
        self._work: dict[str, _Work] = {}
        self._flights: dict[str, _Flight] = {}
        self._columns = columns_for(())
        self._seen_at_s: Floats = np.zeros(0)
        self._views: list[ReplicaView] = []
        self._dirty: set[str] = set()
        self._ready: tuple[str, ...] | None = None
        self._pool: tuple[str, ...] | None = None
        self._streams_begun = 0
        self._stale = False

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
        )
        if before is None or before.state is not state or before.role is not role:
            self._ready = self._pool = None
        if before is None or self._stale:
            self._stale = True
            return
        at = self._columns.places[0][id]
        self._columns.ready[at] = self._replicas[id].takes_requests
        if before.slots != slots:
            self._columns.set_slots(at, slots)
        self._dirty.add(id)

    def remove_replica(self, replica: str) -> None:
        """Forget a replica that left the fleet; its requests in flight run out uncounted in views."""
        if self._replicas.pop(replica, None) is not None:
            at = self._columns.place(replica)
            if at is not None:
                # Should it come back before the columns are laid out anew, nothing was seen of it.
                self._columns.kv[at], self._seen_at_s[at] = np.nan, 0.0
            self._stale, self._ready, self._pool = True, None, None

    def seen(self, replica: str, *, now_s: float, kv_used_share: float | None) -> None:
        """Take in a probe of a replica; unknown replicas are ignored."""
        columns = self._laid_out()
        at = columns.place(replica)
        if at is not None:
            columns.kv[at] = np.nan if kv_used_share is None else kv_used_share
            self._seen_at_s[at] = now_s
            self._dirty.add(replica)

    def seen_all(self, kv_used_shares: Floats, *, now_s: float) -> None:
        """Take in a probe of every replica, in order of id; a share that is not a number is not known."""
        columns = self._laid_out()
        columns.kv[:] = kv_used_shares
        self._seen_at_s[:] = now_s
        self._dirty.update(columns.ids)

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
        work = self._work_of(replica)
        work.waiting += 1
        work.prefill_tokens += flight.prefill_tokens
        work.decode_tokens += flight.decode_tokens
        self._note(replica, work)
        return Admission(batch=work.running + work.waiting, concurrency=len(self._flights))

    def prefill_done(self, request_id: str, *, stepped: bool = False) -> None:
        """Note the first token of a request; later calls and unknown requests change nothing.

        `stepped`: the first token is taken as delivered, and the others come with the steps of its replica, which
        `stepped` tells of, and not by `chunk_delivered`.
        """
        flight = self._flights.get(request_id)
        if flight is None or flight.first_token_seen:
            return
        work = self._work[flight.replica]
        flight.first_token_seen = True
        work.waiting -= 1
        work.running += 1
        work.prefill_tokens -= flight.prefill_tokens
        flight.prefill_tokens = 0
        if stepped and flight.decode_tokens > 0:
            work.decode_tokens -= 1
            flight.decode_tokens -= 1
            if flight.decode_tokens:
                flight.ends_at = work.steps + flight.decode_tokens
                work.streams += 1
                self._streams_begun += 1
                heapq.heappush(work.ends, (flight.ends_at, self._streams_begun, flight))
        self._note(flight.replica, work)

    def chunk_delivered(self, request_id: str, *, tokens: int = 1) -> None:
        """Take delivered output off what is still expected of a request."""
        flight = self._flights.get(request_id)
        if flight is None or flight.ends_at is not None:
            return
        taken = min(tokens, flight.decode_tokens)
        flight.decode_tokens -= taken
        work = self._work[flight.replica]
        work.decode_tokens -= taken
        self._note(flight.replica, work)

    def stepped(self, replica: str, steps: int) -> None:
        """Take in that every stream of a replica made `steps` tokens, one in each step.

        The same as `chunk_delivered` for each of them, at a cost that does not grow with their number.
        """
        work = self._work.get(replica)
        if work is None:
            return
        work.steps += steps
        if not work.streams:
            return
        work.decode_tokens -= work.streams * steps
        ends = work.ends
        while ends and ends[0][0] <= work.steps:
            ends_at, _, flight = heapq.heappop(ends)
            if flight.ends_at is not None:
                # It was taken to make more than was expected of it.
                work.decode_tokens += work.steps - ends_at
                work.streams -= 1
                flight.ends_at, flight.decode_tokens = None, 0
        self._note(replica, work)

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
        if flight.ends_at is not None:
            flight.decode_tokens = flight.ends_at - work.steps
            flight.ends_at = None
            work.streams -= 1
        work.prefill_tokens -= flight.prefill_tokens
        work.decode_tokens -= flight.decode_tokens
        self._note(flight.replica, work)

    @property
    def in_flight(self) -> int:
        """Requests admitted and not finished, over all replicas."""
        return len(self._flights)

    def ready(self) -> tuple[str, ...]:
        """Return the ids of the replicas that take new requests, in order."""
        if self._ready is None:
            self._ready = tuple(
                id_ for id_, view in sorted(self._replicas.items()) if view.takes_requests
            )
        return self._ready

    def prefill_pool(self, most: int) -> list[tuple[str, float]]:
        """Return the ready prefill replicas with the prompt tokens before each; of many those with the fewest."""
        if self._pool is None:
            self._pool = tuple(
                id_
                for id_, view in sorted(self._replicas.items())
                if view.state is ReplicaState.READY and view.role is Role.PREFILL
            )
        found = [(id_, float(self._work_of(id_).prefill_tokens)) for id_ in self._pool]
        if len(found) > most:
            found = heapq.nsmallest(most, found, key=lambda one: (one[1], one[0]))
        return found

    def prefilled_elsewhere(self, request_id: str) -> None:
        """Note that a request's prompt is not prefilled where it was admitted; unknown requests change nothing."""
        flight = self._flights.get(request_id)
        if flight is not None:
            work = self._work[flight.replica]
            work.prefill_tokens -= flight.prefill_tokens
            flight.prefill_tokens = 0
            self._note(flight.replica, work)

    def replica(self, replica: str) -> ReplicaView | None:
        """Return one replica as it is now, None if it is not there."""
        at = self._laid_out().place(replica)
        return None if at is None else self._seen_with_work(at)

    def view(self, now_s: float, *, sequence: int = 0) -> FleetView:
        """Return the fleet as it is now, replicas in order of id."""
        columns = self._laid_out()
        for replica in self._dirty:
            at = columns.place(replica)
            if at is not None:
                self._views[at] = self._seen_with_work(at)
        self._dirty.clear()
        view = FleetView(at_s=now_s, replicas=tuple(self._views), sequence=sequence)
        return with_columns(view, columns.copy())

    def glance(self, now_s: float, *, sequence: int = 0) -> FleetView:
        """Return the fleet as columns alone, without replicas, which are good until the next change and no longer.

        For a decision that nobody keeps: it costs nothing, however large the fleet.
        """
        view = FleetView(at_s=now_s, replicas=(), sequence=sequence)
        return with_columns(view, self._laid_out())

    def _laid_out(self) -> FleetColumns:
        """Return the columns, laid out anew if replicas came or left; what was seen of the others stays."""
        if not self._stale:
            return self._columns
        self._stale = False
        old, old_seen = self._columns, self._seen_at_s
        self._columns = columns = columns_for(tuple(sorted(self._replicas)))
        self._seen_at_s = np.zeros(len(columns.ids))
        self._views = [self._replicas[id_] for id_ in columns.ids]
        for work in self._work.values():
            work.at = -1
        for at, id_ in enumerate(columns.ids):
            replica, before = self._replicas[id_], old.place(id_)
            columns.ready[at] = replica.takes_requests
            columns.slots[at] = replica.slots
            if before is not None:
                columns.kv[at], self._seen_at_s[at] = old.kv[before], old_seen[before]
            work = self._work_of(id_)
            work.at = at
            self._note(id_, work)
        return columns

    def _work_of(self, replica: str) -> _Work:
        found = self._work.get(replica)
        if found is None:
            found = self._work[replica] = _Work()
        return found

    def _note(self, replica: str, work: _Work) -> None:
        """Write a replica's work into the columns."""
        at, columns = work.at, self._columns
        if at >= 0 and not self._stale:
            columns.running[at] = work.running
            columns.waiting[at] = work.waiting
            columns.prefill[at] = work.prefill_tokens
            columns.decode[at] = work.decode_tokens
            self._dirty.add(replica)

    def _seen_with_work(self, at: int) -> ReplicaView:
        id_ = self._columns.ids[at]
        work, share = self._work[id_], float(self._columns.kv[at])
        return msgspec.structs.replace(
            self._replicas[id_],
            running=work.running,
            waiting=work.waiting,
            prefill_tokens_outstanding=work.prefill_tokens,
            decode_tokens_outstanding=work.decode_tokens,
            kv_used_share=None if share != share else share,
            seen_at_s=float(self._seen_at_s[at]),
        )
