"""What is known of every replica's load: who is in flight there from here, how much work that is, what engines tell.

Its own requests the gateway counts itself: an engine's answer would be older than the requests that were sent since.
An engine's own count at a probe, less the gateway's then, is what others have there; it stays until the next probe. Of
a probe that failed nothing is told: an old reading is stale, not idle. What others' requests still cost is not known,
so each is taken for a typical one of this gateway's (smoothed), half done if it runs. Two amounts of work are kept
apart because they bind differently: uncached prompt tokens until the first token is seen, and output tokens
still expected from there on. Both are estimates and are clamped at 0; finishing a request removes all of its share.
Of an answer that is not streamed nothing is seen before its end: until then it counts as waiting, with all its work.
"""

import heapq
from collections.abc import Sequence
from typing import Final

import numpy as np

from trimtab.core.columns import FleetColumns, Floats
from trimtab.core.decision import FleetView, ReplicaView, columns_for, glance, listed, with_work
from trimtab.core.handover import NO_LABELS, ReplicaLabels
from trimtab.core.types import ReplicaState, Role
from trimtab.policies.flights import Admission, Flight, Work
from trimtab.policies.members import Members, as_whole

TYPICAL_PREFILL_START: Final = 512.0
TYPICAL_DECODE_START: Final = 128.0
TYPICAL_SMOOTHING: Final = 0.05


class LoadState:
    """Replicas as the fleet reported them, with the work that is in flight on each.

    Columns are written as work changes and views only when they are asked for, so that a probe or a request costs the
    same in a fleet of any size.
    """

    def __init__(self) -> None:
        self._members = Members()
        self._work: dict[str, Work] = {}
        self._flights: dict[str, Flight] = {}
        self._columns = columns_for(())
        self._told: tuple[ReplicaView, ...] | None = ()
        self._streams_begun = 0
        self._stale = False
        self._typical_prefill = TYPICAL_PREFILL_START
        self._typical_decode = TYPICAL_DECODE_START

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
        kv_key: str = "",
        labels: ReplicaLabels = NO_LABELS,
    ) -> None:
        """Take in what the fleet says of a replica; requests in flight on it stay counted."""
        told = ReplicaView(
            id=id,
            url=url,
            role=role,
            revision=revision,
            state=state,
            slots=slots,
            speculating=speculating,
            started_at_s=started_at_s,
            kv_key=kv_key,
            labels=labels,
        )
        before, self._told = self._members.put(told), None
        if before is not None and started_at_s != before.started_at_s:
            self._without_others(id)
        if before is None or self._stale:
            self._stale = True
            return
        at = self._columns.places[0][id]
        self._columns.set_ready(at, self._members.is_ready(id))
        self._columns.set_slots(at, slots)

    def remove_replica(self, replica: str) -> None:
        """Forget a replica that left the fleet; its requests in flight run out uncounted in views."""
        if self._members.drop(replica):
            at = self._columns.place(replica)
            self._without_others(replica)
            if at is not None:
                # Should it come back before the columns are laid out anew, nothing was seen of it.
                self._columns.set_kv(at, np.nan)
                self._columns.seen_at_s[at] = 0.0
            self._stale, self._told = True, None
            self._drop_idle(replica)

    def seen(
        self,
        replica: str,
        *,
        now_s: float,
        kv_used_share: float | None,
        running: int | None = None,
        waiting: int | None = None,
    ) -> None:
        """Take in a probe of a replica; unknown replicas are ignored.

        `running` and `waiting`: requests there by the engine's own count, of all gateways; None is unknown. Of a probe
        that failed nothing is to be told: what was seen last stays, with its time.
        """
        columns = self._laid_out()
        at = columns.place(replica)
        if at is None:
            return
        columns.set_kv(at, np.nan if kv_used_share is None else kv_used_share)
        columns.seen_at_s[at] = now_s
        if running is not None and waiting is not None:
            columns.reported[at] = running + waiting
            self._others(at, running, waiting)

    def seen_all(
        self,
        kv_used_shares: Floats,
        *,
        now_s: float,
        counts: Sequence[tuple[int, int]] | None = None,
    ) -> None:
        """Take in a probe of every replica, in order of id; a share that is not a number is not known.

        `counts`: of each the requests running and waiting, as in `seen`.
        """
        columns = self._laid_out()
        columns.set_kv(None, kv_used_shares)
        columns.seen_at_s[:] = now_s
        if counts is None:
            return
        columns.reported[:] = [running + waiting for running, waiting in counts]
        for at, (running, waiting) in enumerate(counts):
            self._others(at, running, waiting)

    def _others(self, at: int, running: int, waiting: int) -> None:
        """Count what an engine has beyond this gateway's requests as others'."""
        work = self._work[self._columns.ids[at]]
        others = max(0, running + waiting - work.running - work.waiting)
        if others == work.others_running + work.others_waiting == 0:
            return
        work.others_waiting = min(others, waiting)
        work.others_running = others - work.others_waiting
        self._note(work)

    def _without_others(self, replica: str) -> None:
        """Forget what an engine told of its requests: it began anew."""
        at, work = self._columns.place(replica), self._work.get(replica)
        if at is not None:
            self._columns.reported[at] = np.nan
        if work is not None:
            work.others_running = work.others_waiting = 0
            self._note(work)

    def _drop_idle(self, replica: str) -> None:
        """Forget the work on a replica that left and has nothing in flight: names may be new at each start."""
        work = self._work.get(replica)
        if work is not None and not work.running + work.waiting:
            del self._work[replica]

    def admitted(
        self, request_id: str, replica: str, *, prefill_tokens: int, decode_tokens: int
    ) -> Admission:
        """Count a request on a replica: `prefill_tokens` uncached, `decode_tokens` expected."""
        assert request_id not in self._flights, f"{request_id} was admitted twice"
        flight = Flight(
            replica=replica,
            prefill_tokens=max(0, prefill_tokens),
            decode_tokens=max(0, decode_tokens),
        )
        self._flights[request_id] = flight
        work = self._work_of(replica)
        work.waiting += 1
        work.prefill_tokens += flight.prefill_tokens
        work.decode_tokens += flight.decode_tokens
        if flight.decode_tokens:  # A prompt that is sent ahead is no request of its own.
            typical_prefill, typical_decode = self._typical_prefill, self._typical_decode
            self._typical_prefill += TYPICAL_SMOOTHING * (flight.prefill_tokens - typical_prefill)
            self._typical_decode += TYPICAL_SMOOTHING * (flight.decode_tokens - typical_decode)
        self._note(work)
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
        self._note(work)

    def chunk_delivered(self, request_id: str, *, tokens: int = 1) -> None:
        """Take delivered output off what is still expected of a request."""
        flight = self._flights.get(request_id)
        if flight is None or flight.ends_at is not None:
            return
        taken = min(tokens, flight.decode_tokens)
        flight.decode_tokens -= taken
        work = self._work[flight.replica]
        work.decode_tokens -= taken
        if work.at >= 0 and not self._stale:
            # Once a token: this column alone has changed.
            self._columns.decode[work.at] -= taken
            self._columns.changed(work.at)

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
        self._note(work)

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
        self._note(work)
        if flight.replica not in self._members.by_id:
            self._drop_idle(flight.replica)

    @property
    def in_flight(self) -> int:
        """Requests admitted and not finished, over all replicas."""
        return len(self._flights)

    def own_in_flight(self, replica: str) -> int:
        """Requests that this gateway has on a replica; those of others are not among them."""
        work = self._work.get(replica)
        return 0 if work is None else work.running + work.waiting

    def ready(self) -> tuple[str, ...]:
        """Return the ids of the replicas that take new requests, in order."""
        return self._members.ready()

    def could_serve(self) -> tuple[str, ...]:
        """Return the ids of the replicas that the fleet says are ready, those that are left out included, in order."""
        return self._members.could_serve()

    def set_ejected(self, ids: frozenset[str]) -> None:
        """Leave these replicas out, and no others: they count as not ready, and their state says so."""
        for id_ in self._members.eject(ids):
            self._told = None
            at = None if self._stale else self._columns.place(id_)
            if at is not None:
                self._columns.set_ready(at, self._members.is_ready(id_))

    @property
    def has_prefill(self) -> bool:
        """Whether the fleet has replicas that prefill for others, ready or not."""
        return self._members.has_prefill()

    def prefill_pool(self) -> list[tuple[str, float]]:
        """Return the ready prefill replicas with the prompt tokens before each, in order of id."""
        pool = self._members.prefilling()
        return [(id_, float(self._work_of(id_).prefill_tokens)) for id_ in pool]

    def prefilled_elsewhere(self, request_id: str) -> None:
        """Note that a request's prompt is not prefilled where it was admitted; unknown requests change nothing."""
        flight = self._flights.get(request_id)
        if flight is not None:
            work = self._work[flight.replica]
            work.prefill_tokens -= flight.prefill_tokens
            flight.prefill_tokens = 0
            self._note(work)

    def prefilled_here(self, request_id: str, *, prefill_tokens: int) -> None:
        """Note that a request's prompt is prefilled where it was admitted after all; unknown ones change nothing."""
        flight = self._flights.get(request_id)
        if flight is not None and not flight.first_token_seen:
            work = self._work[flight.replica]
            added = max(0, prefill_tokens) - flight.prefill_tokens
            work.prefill_tokens += added
            flight.prefill_tokens += added
            self._note(work)

    def replica(self, replica: str) -> ReplicaView | None:
        """Return one replica as it is now, None if it is not there."""
        columns = self._laid_out()
        at = columns.place(replica)
        return None if at is None else with_work(self._members.as_told(replica), columns, at)

    def view(self, now_s: float, *, sequence: int = 0) -> FleetView:
        """Return the fleet as it is now, replicas in order of id."""
        return listed(self.snapshot(now_s, sequence=sequence))

    def snapshot(self, now_s: float, *, sequence: int = 0, whole: bool = False) -> FleetView:
        """Return the same as columns alone, to which `listed` adds the replicas when somebody wants them.

        `whole`: roles do not count, so that replicas that prefill for others may take whole requests too.
        """
        columns, told = self._laid_out().copy(), self._told_in_order()
        if not whole:
            return glance(now_s, sequence, columns, told)
        for at, one in enumerate(told):
            columns.set_ready(at, one.state is ReplicaState.READY)
        return glance(now_s, sequence, columns, tuple(as_whole(one) for one in told))

    def glance(self, now_s: float, *, sequence: int = 0, whole: bool = False) -> FleetView:
        """Return the fleet as columns that are good until the next change and no longer.

        For a decision that nobody keeps: it costs nothing, however large the fleet, unless `whole` is asked for.
        """
        if whole:
            return self.snapshot(now_s, sequence=sequence, whole=True)
        return glance(now_s, sequence, self._laid_out(), self._told_in_order())

    def _told_in_order(self) -> tuple[ReplicaView, ...]:
        if self._told is None:
            self._told = tuple(self._members.as_told(id_) for id_ in self._columns.ids)
        return self._told

    def _laid_out(self) -> FleetColumns:
        """Return the columns, laid out anew if replicas came or left; what was seen of the others stays."""
        if not self._stale:
            return self._columns
        self._stale, old = False, self._columns
        self._columns = columns = columns_for(tuple(sorted(self._members.by_id)))
        for work in self._work.values():
            work.at = -1
        for at, id_ in enumerate(columns.ids):
            replica, before = self._members.by_id[id_], old.place(id_)
            columns.set_ready(at, self._members.is_ready(id_))
            columns.set_slots(at, replica.slots)
            if before is not None:
                columns.block[:, at] = old.block[:, before]
            work = self._work_of(id_)
            work.at = at
            self._note(work)
        return columns

    def _work_of(self, replica: str) -> Work:
        found = self._work.get(replica)
        if found is None:
            found = self._work[replica] = Work()
        return found

    def _note(self, work: Work) -> None:
        """Write a replica's work into the columns."""
        at, columns = work.at, self._columns
        if at < 0 or self._stale:
            return
        columns.running[at] = work.running + work.others_running
        columns.waiting[at] = work.waiting + work.others_waiting
        prefill, decode = work.prefill_tokens, work.decode_tokens
        if work.others_running or work.others_waiting:
            prefill += round(work.others_waiting * self._typical_prefill)
            decode += round(
                (work.others_waiting + 0.5 * work.others_running) * self._typical_decode
            )
        columns.prefill[at], columns.decode[at] = prefill, decode
        columns.changed(at)
