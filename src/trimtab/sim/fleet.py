"""A simulated fleet: gateways that route with the real router, and replicas that serve.

Each gateway has the router, load state and prefix index of a live one and sees only its own requests, so several of
them have partial views, as several live ones have. What an engine tells of itself (the share of its KV in use)
reaches a gateway at its probes, so it is as old as the interval. A replica that dies is noticed at the next probe at
the latest, or by the first request that finds it gone.

Rules of a live gateway that hold here too: a request that has not produced a token is tried once more elsewhere; one
that has fails; a request that no replica can take is shed.

A live gateway sees every chunk of an answer. Here it is told of a replica's steps when something changes there and at
its probes, which is as if chunks came in batches. A stream that was preempted is taken to go on meanwhile.

Simplified: a gateway's own work takes no time; the network adds `hop_ms` before a request reaches its replica; clients
wait for ever unless `timeout_s` says otherwise.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any, Final

import msgspec
import numpy as np

from trimtab.core.decision import RoutingPolicy
from trimtab.core.ports import RequestFacts
from trimtab.core.prefix import PrefixIndex
from trimtab.core.traffic import TrafficPlan
from trimtab.core.types import Constraint, ReplicaState, Role
from trimtab.policies.loadstate import LoadState
from trimtab.policies.router import Routed, RouteQuery, Router
from trimtab.sim.arrivals import Arrival
from trimtab.sim.jobs import Job, Listener, ReplicaSpec
from trimtab.sim.kernel import Kernel
from trimtab.sim.records import Outcome, Records
from trimtab.sim.replicas import AnyReplica, Hosts, make_replica
from trimtab.sim.streams import Streams

RANK_FAULT: Final = -1
"""Faults come before everything else of their moment."""

_FACTS: Final = RequestFacts(
    model=None,
    stream=True,
    wants_usage=True,
    temperature=0.0,
    max_tokens=None,
    constraint=Constraint.FREE,
    segments=(),
)


class FleetSpec(msgspec.Struct, frozen=True, kw_only=True):
    """The fleet at the start. Times in seconds, `hop_ms` in milliseconds.

    `start_s`: from the order to the first request that a new replica may take. `probe_s`: between two probes.
    `in_flight_max`: requests of all gateways on one replica above which it takes no more; None: no limit.
    `index_blocks`: blocks that each gateway's prefix index may hold.
    """

    replica: ReplicaSpec
    replicas: int
    policy: str
    gateways: int = 1
    probe_s: float = 1.0
    hop_ms: float = 0.0
    start_s: float = 60.0
    timeout_s: float | None = None
    in_flight_max: int | None = None
    index_blocks: int = 1_000_000
    tries_max: int = 2


class _Request(msgspec.Struct, kw_only=True, gc=False):
    """A request in flight, as its gateway keeps it."""

    row: int
    arrival: Arrival
    gateway: "_Gateway"
    routed: Routed | None = None
    captured: int = 0
    job: Job | None = None
    tries: int = 0


class _Gateway:
    """One gateway: the real router over a view of its own."""

    def __init__(
        self, name: str, spec: FleetSpec, policies: Mapping[str, RoutingPolicy], streams: Streams
    ) -> None:
        index = PrefixIndex(spec.index_blocks, spec.replica.block_tokens)
        self.load = LoadState()
        self.router = Router(
            self.load,
            index,
            policies,
            streams.stream(f"router {name}"),
            plan=TrafficPlan(policy=spec.policy),
            explained=False,
        )
        # Prompts are counted in tokens here, not in bytes.
        self.router.ratio.bytes_per_token = 1.0


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
        self.replicas: dict[str, AnyReplica] = {}
        self.states: dict[str, ReplicaState] = {}
        self.numbers: dict[str, int] = {}
        self._hosts = Hosts(spec.replica)
        self._gateways = [
            _Gateway(f"g{at}", spec, policies, streams) for at in range(spec.gateways)
        ]
        self._in_flight: dict[int, _Request] = {}
        self._arrivals: Iterator[Arrival] = iter(())
        for _ in range(spec.replicas):
            self.add_replica(0.0, ready_s=0.0)

    @property
    def in_flight(self) -> int:
        """Requests that arrived and have not ended."""
        return len(self._in_flight)

    def run(self, arrivals: Iterable[Arrival], *, until_s: float = math.inf) -> None:
        """Let requests arrive and run until all have ended, or until a time."""
        self._arrivals = iter(arrivals)
        self._arrive_next()
        self.kernel.at(self.kernel.now_s + self.spec.probe_s, self._probe)
        self.kernel.run(until_s)

    def at(self, at_s: float, change: Callable[[float, "Fleet"], None]) -> None:
        """Let a fault or a change happen at a time."""
        self.kernel.at(at_s, self._change, change, RANK_FAULT)

    def _change(self, now_s: float, change: Callable[[float, "Fleet"], None]) -> None:
        change(now_s, self)

    # -- replicas ------------------------------------------------------------------------------

    def add_replica(self, now_s: float, *, ready_s: float | None = None) -> str:
        """Start a replica; it takes requests after the start time. Returns its id."""
        number = len(self.numbers)
        replica = f"r{number:05d}"
        self.numbers[replica] = number
        listener = Listener(
            first_token=self._first_token,
            ended=self._ended,
            stepped=partial(self._stepped, replica),
        )
        host = self._hosts.of(number)
        self.replicas[replica] = make_replica(self.spec.replica, self.kernel, listener, host)
        self._tell_slots(replica)
        ready = now_s + self.spec.start_s if ready_s is None else ready_s
        if ready <= now_s:
            self._set_state(replica, ReplicaState.READY, now_s)
        else:
            self._set_state(replica, ReplicaState.STARTING, now_s)
            self.kernel.at(ready, self._ready, replica)
        return replica

    def _tell_slots(self, replica: str) -> None:
        spec = self.spec.replica
        if spec.similarity is not None:
            for gateway in self._gateways:
                gateway.router.index.set_slots(replica, spec.streams_max, spec.similarity)

    def _ready(self, now_s: float, replica: str) -> None:
        if self.states.get(replica) is ReplicaState.STARTING:
            self._set_state(replica, ReplicaState.READY, now_s)

    def drain_replica(self, now_s: float, replica: str) -> None:
        """Let a replica finish what it has and take nothing more."""
        if self.states.get(replica) is ReplicaState.READY:
            self._set_state(replica, ReplicaState.DRAINING, now_s)

    def slow_replica(self, replica: str, factor: float) -> None:
        """Let every step of a replica take so many times as long from its next one on; gateways are not told."""
        self.replicas[replica].slow = factor

    @property
    def ready_count(self) -> int:
        """Replicas that take requests."""
        return sum(1 for state in self.states.values() if state is ReplicaState.READY)

    def kill_replica(self, now_s: float, replica: str, *, restart: bool = True) -> None:
        """Lose a replica with all that it holds; gateways find out by and by. It comes back unless told not to."""
        if self.states.get(replica) in {None, ReplicaState.STOPPED}:
            return
        self.states[replica] = ReplicaState.STOPPED
        lost = self.replicas[replica].kill(now_s, "its replica was lost")
        for job in lost:
            self._retry_or_fail(now_s, self._in_flight[job.id], replica)
        self.kernel.at(now_s + self.spec.probe_s, self._notice, replica)
        if restart:
            self.kernel.at(now_s + max(self.spec.start_s, self.spec.probe_s), self._back, replica)

    def _notice(self, now_s: float, replica: str) -> None:
        if self.states[replica] is ReplicaState.STOPPED:
            for gateway in self._gateways:
                self._tell(gateway, replica, ReplicaState.STOPPED, now_s)
                gateway.router.forget(replica)

    def _back(self, now_s: float, replica: str) -> None:
        for gateway in self._gateways:
            gateway.router.forget(replica)
        self._set_state(replica, ReplicaState.READY, now_s)

    def _set_state(self, replica: str, state: ReplicaState, now_s: float) -> None:
        self.states[replica] = state
        for gateway in self._gateways:
            self._tell(gateway, replica, state, now_s)

    def _tell(self, gateway: _Gateway, replica: str, state: ReplicaState, now_s: float) -> None:
        gateway.load.set_replica(
            id=replica,
            url="",
            role=Role.MIXED,
            revision="simulated",
            state=state,
            slots=self.spec.replica.streams_max,
            started_at_s=now_s,
        )

    def _probe(self, now_s: float, _: Any) -> None:
        for replica in self.replicas.values():
            replica.tell_steps(now_s)
        # Ids are in the order in which replicas were added.
        shares = np.array([replica.used_share for replica in self.replicas.values()])
        for gateway in self._gateways:
            gateway.load.seen_all(shares, now_s=now_s)
        if self._in_flight or self.kernel.pending:
            self.kernel.at(now_s + self.spec.probe_s, self._probe)

    # -- requests ------------------------------------------------------------------------------

    def _arrive_next(self) -> None:
        arrival = next(self._arrivals, None)
        if arrival is not None:
            self.kernel.at(max(self.kernel.now_s, arrival.at_s), self._arrive, arrival)

    def _arrive(self, now_s: float, arrival: Arrival) -> None:
        row = self.records.arrived(now_s, arrival.input_tokens, arrival.output_tokens)
        gateway = self._gateways[row % len(self._gateways)]
        request = _Request(row=row, arrival=arrival, gateway=gateway)
        self._in_flight[row] = request
        if self.spec.timeout_s is not None:
            self.kernel.at(now_s + self.spec.timeout_s, self._timed_out, row)
        self._route(now_s, request)
        self._arrive_next()

    def _route(self, now_s: float, request: _Request) -> None:
        arrival = request.arrival
        query = RouteQuery(
            request_id=str(request.row),
            facts=_FACTS,
            blocks=arrival.hashes,
            prompt_size=arrival.input_tokens,
            session=arrival.session,
            label=arrival.label or None,
            repetition=None,
            now_s=now_s,
        )
        self._dispatch(now_s, request, request.gateway.router.route(query))

    def _dispatch(self, now_s: float, request: _Request, routed: Routed) -> None:
        request.routed, request.tries = routed, request.tries + 1
        if routed.replica is None:
            self._end(request, Outcome.SHED, now_s)
            return
        replica = routed.replica.id
        if self.states[replica] is ReplicaState.STOPPED:
            self._retry_or_fail(now_s, request, replica)
            return
        limit = self.spec.in_flight_max
        if limit is not None and self.replicas[replica].in_flight >= limit:
            request.gateway.router.finished(
                routed, captured=None, delivered=None, output_tokens=None
            )
            self._end(request, Outcome.SHED, now_s)
            return
        request.captured = request.gateway.router.dispatched(routed)
        decision = routed.decision
        self.records.routed(
            request.row,
            self.numbers[replica],
            decision.predicted_cached_tokens,
            decision.held_best_tokens,
        )
        request.job = Job(
            id=request.row,
            input_tokens=request.arrival.input_tokens,
            output_tokens=request.arrival.output_tokens,
            hashes=request.arrival.hashes,
        )
        hop_s = self.spec.hop_ms / 1000.0
        if hop_s > 0.0:
            self.kernel.at(now_s + hop_s, self._submit, (request, request.job, replica))
        else:
            self.replicas[replica].submit(now_s, request.job)

    def _submit(self, now_s: float, what: tuple[_Request, Job, str]) -> None:
        request, job, replica = what
        if request.job is not job or request.row not in self._in_flight:
            return
        if self.states[replica] is ReplicaState.STOPPED:
            self._retry_or_fail(now_s, request, replica)
        else:
            self.replicas[replica].submit(now_s, job)

    def _retry_or_fail(self, now_s: float, request: _Request, replica: str) -> None:
        """Try a request once more elsewhere if its client has seen nothing; `replica` is the one that failed it."""
        gateway, routed = request.gateway, request.routed
        assert routed is not None
        self._tell(gateway, replica, ReplicaState.STOPPED, now_s)
        started = request.job is not None and request.job.first_token_s is not None
        request.job = None
        if started or request.tries >= self.spec.tries_max:
            gateway.router.finished(routed, captured=None, delivered=None, output_tokens=None)
            self._end(request, Outcome.FAILED, now_s)
            return
        self._dispatch(now_s, request, gateway.router.reroute(routed, may_repeat=False))

    def _first_token(self, now_s: float, job: Job) -> None:
        request = self._in_flight.get(job.id)
        if request is not None:
            request.gateway.load.prefill_done(str(job.id), stepped=True)

    def _stepped(self, replica: str, steps: int) -> None:
        for gateway in self._gateways:
            gateway.load.stepped(replica, steps)

    def _ended(self, now_s: float, job: Job) -> None:
        request = self._in_flight.get(job.id)
        if request is None or request.routed is None or request.job is not job:
            return
        ok = job.failed is None
        request.gateway.router.finished(
            request.routed,
            captured=request.captured,
            delivered=job.cached_tokens if ok else None,
            output_tokens=job.output_tokens if ok else None,
        )
        self._end(request, Outcome.FINISHED if ok else Outcome.FAILED, now_s)

    def _timed_out(self, now_s: float, row: int) -> None:
        request = self._in_flight.get(row)
        if request is None or request.job is None or request.job.first_token_s is not None:
            return
        assert request.routed is not None
        assert request.routed.replica is not None
        self.replicas[request.routed.replica.id].cancel(now_s, request.job, "timed out")

    def _end(self, request: _Request, outcome: Outcome, now_s: float) -> None:
        del self._in_flight[request.row]
        job = request.job
        if outcome is not Outcome.FINISHED or job is None:
            self.records.ended(request.row, outcome, (now_s - request.arrival.at_s) * 1000.0)
            return
        assert job.first_token_s is not None
        assert job.scheduled_s is not None
        gaps = job.output_tokens - 1
        self.records.finished(
            request.row,
            ttft_ms=(job.first_token_s - request.arrival.at_s) * 1000.0,
            tpot_ms=(now_s - job.first_token_s) * 1000.0 / gaps if gaps > 0 else math.nan,
            e2e_ms=(now_s - request.arrival.at_s) * 1000.0,
            queue_ms=(job.scheduled_s - request.arrival.at_s) * 1000.0,
            cached_tokens=job.cached_tokens,
        )
