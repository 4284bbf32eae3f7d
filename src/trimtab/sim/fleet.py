"""A simulated fleet: gateways that route with the real router, and replicas that serve.

Each gateway has the router, load state and prefix index of a live one and sees only its own requests, so several of
them have partial views, as several live ones have. What an engine tells of itself (the share of its KV in use, how
many requests of all gateways it runs and has waiting) reaches a gateway at its probes, so it is as old as the
interval. Gateways do not know of each other, so they probe at times of their own, here spread evenly. A replica that
dies is noticed at the next probe at the latest, or by the first request that finds it gone.

Rules of a live gateway that hold here too: a request that has not produced a token is tried once more elsewhere; one
that has fails; a request that no replica can take is shed.

A live gateway sees every chunk of an answer. Here it is told of a replica's steps when something changes there and at
its probes, which is as if chunks came in batches. A stream that was preempted is taken to go on meanwhile.

Simplified: a gateway's own work takes no time; the network adds `hop_ms` before a request reaches its replica; clients
wait for ever unless `timeout_s` says otherwise.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final

from trimtab.core.decision import RoutingPolicy
from trimtab.core.types import ReplicaState
from trimtab.policies.router import Routed, RouteQuery
from trimtab.sim.arrivals import Arrival
from trimtab.sim.fleet_parts import FACTS, Change, FleetSpec, Flight, Gateway
from trimtab.sim.hand_overs import Around, HandOvers
from trimtab.sim.jobs import Job, Listener
from trimtab.sim.kernel import Kernel
from trimtab.sim.records import Outcome, Records
from trimtab.sim.replica import Replica
from trimtab.sim.role_control import RoleControl
from trimtab.sim.roster import Roster
from trimtab.sim.streams import Streams
from trimtab.sim.turns import Turns

RANK_FAULT: Final = -1
"""Faults come before everything else of their moment."""


class Fleet:
    """Runs arrivals through gateways and replicas in virtual time; `records` has a row for each request."""

    def __init__(
        self,
        spec: FleetSpec,
        policies: Mapping[str, RoutingPolicy],
        streams: Streams,
        *,
        kernel: Kernel | None = None,
    ) -> None:
        self.spec = spec
        self.kernel = kernel or Kernel()
        self.records = Records()
        self.gateways = [Gateway(f"g{at}", spec, policies, streams) for at in range(spec.gateways)]
        self._in_flight: dict[int, Flight] = {}
        self._arrivals: Iterator[Arrival] = iter(())
        self._turns = Turns() if spec.turns_wait else None
        listener = Listener(
            first_token=self._first_token, ended=self._ended, has_room=self._has_room
        )
        self.roster = Roster(spec, self.kernel, self.gateways, listener, self._lost, streams)
        self.hand_overs = None if spec.roles is None else HandOvers(spec.roles, self._around())
        if self.hand_overs is not None:
            self.roster.awaits = self.hand_overs.awaits
        control = None if spec.roles is None else spec.roles.control
        self.role_control = (
            None
            if spec.roles is None or control is None
            else RoleControl(spec.roles, control, self.gateways)
        )
        self.on_end: list[Callable[[float, Flight, Outcome], None]] = []

    def _around(self) -> Around:
        roster = self.roster
        return Around(
            kernel=self.kernel,
            records=self.records,
            hop_s=self.spec.hop_ms / 1000.0,
            replica=self._paged,
            state=roster.states.__getitem__,
            flight=self._in_flight.get,
            submit=self._submit_now,
            gave_way=roster.settle,
            moved=self._moved,
        )

    def _moved(self, now_s: float, ms: float, tokens: int) -> None:
        if self.role_control is not None:
            self.role_control.moved(now_s, ms, tokens)

    def _paged(self, replica: str) -> Replica:
        one = self.roster.replicas[replica]
        assert isinstance(one, Replica), "replicas with slots hand nothing over"
        return one

    @property
    def in_flight(self) -> int:
        """Requests that arrived and have not ended."""
        return len(self._in_flight)

    def run(self, arrivals: Iterable[Arrival], *, until_s: float = math.inf) -> None:
        """Let requests arrive and run until all have ended, or until a time."""
        self._arrivals = iter(arrivals)
        self._arrive_next()
        self.kernel.at(self.kernel.now_s + self._between_probes_s, self._probe, 0)
        self.kernel.run(until_s)

    @property
    def _between_probes_s(self) -> float:
        """Seconds from a gateway's probe to the next one's."""
        return self.spec.probe_s / len(self.gateways)

    def at(self, at_s: float, change: Callable[[float, "Fleet"], None]) -> None:
        """Let a fault or a change happen at a time."""
        self.kernel.at(at_s, self._change, change, RANK_FAULT)

    def _change(self, now_s: float, change: Callable[[float, "Fleet"], None]) -> None:
        change(now_s, self)

    def _probe(self, now_s: float, number: int) -> None:
        """Let one gateway read the engines; the next one follows. Roles are looked at once in a whole round."""
        self.roster.probe(now_s, self.gateways[number])
        following = (number + 1) % len(self.gateways)
        if self.role_control is not None and following == 0:
            self._control_roles(now_s, self.role_control)
        # Readings alone are no reason to go on.
        if self._in_flight or self.kernel.pending > self.roster.readings:
            self.kernel.at(now_s + self._between_probes_s, self._probe, following)

    def _control_roles(self, now_s: float, control: RoleControl) -> None:
        roster, roles = self.roster, self.spec.roles
        assert roles is not None
        chosen = control.tick(
            now_s, roster.roles, roster.states, roster.replicas, len(roster.changing)
        )
        if chosen is not None:
            replica, role = chosen
            change = Change(
                role=role,
                spec=roster.spec_for(role),
                take_s=roles.change_s,
                keeps_cache=roles.keeps_cache,
            )
            roster.change(now_s, replica, change)

    def _lost(self, now_s: float, replica: str, jobs: list[Job]) -> None:
        """Go on with what a replica that died had: prompts of others are computed elsewhere, requests tried again."""
        for job in jobs:
            flight = self._in_flight[job.id]
            if self.hand_overs is not None and job is flight.ahead:
                self.hand_overs.lost(now_s, flight)
            else:
                self._retry_or_fail(now_s, flight, replica)
        if self.hand_overs is not None:
            self.hand_overs.lost_replica(now_s, replica)

    # -- requests ------------------------------------------------------------------------------

    def _arrive_next(self) -> None:
        arrival = next(self._arrivals, None)
        if arrival is not None:
            self.kernel.at(max(self.kernel.now_s, arrival.at_s), self._arrive, arrival)

    def _arrive(self, now_s: float, arrival: Arrival) -> None:
        if self._turns is None or self._turns.may_go(arrival):
            self._begin(now_s, arrival)
        self._arrive_next()

    def _begin(self, now_s: float, arrival: Arrival) -> None:
        row = self.records.arrived(now_s, arrival.input_tokens, arrival.output_tokens)
        gateway = self.gateways[row % len(self.gateways)]
        request = Flight(row=row, arrival=arrival, gateway=gateway)
        self._in_flight[row] = request
        if self.spec.timeout_s is not None:
            self.kernel.at(now_s + self.spec.timeout_s, self._timed_out, row)
        self._route(now_s, request)

    def _route(self, now_s: float, request: Flight) -> None:
        arrival = request.arrival
        query = RouteQuery(
            request_id=str(request.row),
            facts=FACTS,
            blocks=arrival.hashes,
            prompt_size=arrival.input_tokens,
            session=arrival.session,
            label=arrival.label or None,
            repetition=None,
            now_s=now_s,
        )
        self._dispatch(now_s, request, request.gateway.router.route(query))

    def _dispatch(self, now_s: float, request: Flight, routed: Routed) -> None:
        request.routed, request.tries = routed, request.tries + 1
        if routed.replica is None:
            self._end(request, Outcome.SHED, now_s)
            return
        replica = routed.replica.id
        if self.roster.states[replica] is ReplicaState.STOPPED:
            self._retry_or_fail(now_s, request, replica)
            return
        limit = self.spec.in_flight_max
        if limit is not None and self.roster.replicas[replica].in_flight >= limit:
            request.gateway.router.finished(
                routed, captured=None, delivered=None, output_tokens=None
            )
            self._end(request, Outcome.SHED, now_s)
            return
        request.captured = request.gateway.router.dispatched(routed)
        decision = routed.decision
        self.records.routed(
            request.row,
            self.roster.numbers[replica],
            decision.predicted_cached_tokens,
            min(self.roster.held_tokens(request.arrival.hashes), request.arrival.input_tokens - 1),
        )
        request.job = Job(
            id=request.row,
            input_tokens=request.arrival.input_tokens,
            output_tokens=request.arrival.output_tokens,
            hashes=request.arrival.hashes,
            after=request.arrival.after,
            label=request.arrival.label,
        )
        request.dispatched_s = now_s
        ahead = self.hand_overs is not None and self.hand_overs.begin(now_s, request)
        if self.role_control is not None:
            uncached = routed.prompt_tokens - decision.predicted_cached_tokens
            self.role_control.prefills(now_s, uncached, ahead=ahead)
        if ahead:
            return
        hop_s = self.spec.hop_ms / 1000.0
        if hop_s > 0.0:
            self.kernel.at(now_s + hop_s, self._submit, (request, request.job))
        else:
            self._submit_now(now_s, request)

    def _submit(self, now_s: float, what: tuple[Flight, Job]) -> None:
        request, job = what
        if request.job is job and request.row in self._in_flight:
            self._submit_now(now_s, request)

    def _submit_now(self, now_s: float, request: Flight) -> None:
        """Hand a request's job to the replica that it was routed to."""
        assert request.job is not None
        replica = _routed_to(request)
        if self.roster.states[replica] is ReplicaState.STOPPED:
            self._retry_or_fail(now_s, request, replica)
        else:
            self.roster.replicas[replica].submit(now_s, request.job)

    def _has_room(self, now_s: float, job: Job) -> None:
        request = self._in_flight.get(job.id)
        if request is not None and request.job is job and self.hand_overs is not None:
            self.hand_overs.has_room(now_s, request)

    def _retry_or_fail(self, now_s: float, request: Flight, replica: str) -> None:
        """Try a request once more elsewhere if its client has seen nothing; `replica` is the one that failed it."""
        gateway, routed = request.gateway, request.routed
        assert routed is not None
        self.roster.tell(gateway, replica, ReplicaState.STOPPED, now_s)
        if self.hand_overs is not None:
            self.hand_overs.abandon(now_s, request, "the decode replica was lost")
        started = request.job is not None and request.job.first_token_s is not None
        request.job = None
        if started or request.tries >= self.spec.tries_max:
            gateway.router.finished(routed, captured=None, delivered=None, output_tokens=None)
            self._end(request, Outcome.FAILED, now_s)
            return
        self._dispatch(now_s, request, gateway.router.reroute(routed, may_repeat=False))

    def _first_token(self, now_s: float, job: Job) -> None:
        request = self._in_flight.get(job.id)
        if request is None:
            return
        gateway = request.gateway
        gateway.load.prefill_done(str(job.id), stepped=True)
        if gateway.pool is not None and request.prefill is not None:
            gateway.pool.observed(request.prefill, (now_s - request.dispatched_s) * 1000.0)
        if self.role_control is not None:
            self.role_control.watch.first_token(now_s, (now_s - request.arrival.at_s) * 1000.0)

    def _ended(self, now_s: float, job: Job) -> None:
        request = self._in_flight.get(job.id)
        if request is None or request.routed is None:
            return
        if self.hand_overs is not None and job is request.ahead:
            self.hand_overs.prefilled(now_s, request)
            return
        if request.job is not job:
            return
        ok = job.failed is None
        request.gateway.router.finished(
            request.routed,
            captured=request.captured,
            delivered=job.cached_tokens if ok else None,
            output_tokens=job.output_tokens if ok else None,
        )
        self._end(request, Outcome.FINISHED if ok else Outcome.FAILED, now_s)
        self.roster.settle(now_s, _routed_to(request))

    def _timed_out(self, now_s: float, row: int) -> None:
        request = self._in_flight.get(row)
        if request is None or request.job is None or request.job.first_token_s is not None:
            return
        assert request.routed is not None
        if self.hand_overs is not None:
            self.hand_overs.abandon(now_s, request)
        self.roster.replicas[_routed_to(request)].cancel(now_s, request.job, "timed out")

    def _end(self, request: Flight, outcome: Outcome, now_s: float) -> None:
        del self._in_flight[request.row]
        for told in self.on_end:
            told(now_s, request, outcome)
        if self._turns is not None:
            following = self._turns.ended(now_s, request.arrival.session)
            if following is not None:
                self.kernel.at(now_s, self._begin, following)
        job = request.job
        if self.hand_overs is not None:
            self.hand_overs.abandon(now_s, request)
        if outcome is not Outcome.FINISHED or job is None:
            if self.role_control is not None:
                self.role_control.watch.failed(now_s)
            self.records.ended(request.row, outcome, (now_s - request.arrival.at_s) * 1000.0)
            return
        assert job.first_token_s is not None
        assert job.scheduled_s is not None
        gaps = job.output_tokens - 1
        tpot_ms = (now_s - job.first_token_s) * 1000.0 / gaps if gaps > 0 else math.nan
        if self.role_control is not None and gaps > 0:
            self.role_control.watch.ended(now_s, tpot_ms, job.tokens_per_step)
        self.records.finished(
            request.row,
            ttft_ms=(job.first_token_s - request.arrival.at_s) * 1000.0,
            tpot_ms=tpot_ms,
            e2e_ms=(now_s - request.arrival.at_s) * 1000.0,
            queue_ms=(job.scheduled_s - request.arrival.at_s) * 1000.0,
            cached_tokens=job.cached_tokens,
        )


def _routed_to(request: Flight) -> str:
    assert request.routed is not None
    assert request.routed.replica is not None
    return request.routed.replica.id
