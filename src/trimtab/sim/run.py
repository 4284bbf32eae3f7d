"""Runs a scenario: workload in, fleet over it, figures out. The one place where the parts of a simulation meet."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Final

import msgspec
import numpy as np

from trimtab.core.decision import RoutingPolicy
from trimtab.core.lever import LeverRecord
from trimtab.core.types import Role
from trimtab.policies.routing import build_policies
from trimtab.sim.arrivals import (
    Arrival,
    Diurnal,
    Sessions,
    begun_at,
    diurnal,
    overlay,
    sessions,
    stretch,
)
from trimtab.sim.events import Events, OnEvent
from trimtab.sim.figures import (
    RoleFigures,
    SpeculationFigures,
    TransferFigures,
    depth_now,
    role_figures,
    speculation_figures,
    transfer_figures,
)
from trimtab.sim.fleet import Fleet
from trimtab.sim.kernel import Kernel
from trimtab.sim.public_policies import PUBLIC
from trimtab.sim.records import Outcome, Records, Summary, summarise
from trimtab.sim.regimes import RegimeFigures, regime_figures
from trimtab.sim.rollout import RolloutCourse, SimRollout
from trimtab.sim.scenario import ScenarioError
from trimtab.sim.sections import FaultSection, Scenario
from trimtab.sim.specs import fleet_spec, objective_of, rollout_spec, routing_cost
from trimtab.sim.streams import Streams

SLICES: Final = 60
"""Slices of time in which a run's course is kept."""


class Course(msgspec.Struct, frozen=True, kw_only=True):
    """How a run went over time: one value for each slice of `slice_s` seconds."""

    slice_s: float
    arrived: tuple[int, ...]
    good: tuple[int, ...]
    replicas_ready: tuple[int, ...]


class SimResult(msgspec.Struct, frozen=True, kw_only=True):
    """One simulated policy. `events`: events of the kernel; `replica_hours`: of ready replicas; `cost`: their price.

    `cost_per_million_output_tokens` and `cost_per_thousand_good` are of all that finished in the whole run; None
    without a price or without any.
    `transfers` and `roles`, `speculation`, `rollout` are None where the scenario has no such section. `regimes`: under
    which pressure requests were served, and whether the engine model was measured there.
    """

    scenario: str
    policy: str
    seed: int
    replicas: int
    summary: Summary
    course: Course
    output_tokens_by_replica: tuple[int, ...]
    preemptions: int
    events: int
    replica_hours: float
    cost: float | None
    cost_per_million_output_tokens: float | None = None
    cost_per_thousand_good: float | None = None
    transfers: TransferFigures | None = None
    roles: RoleFigures | None = None
    speculation: SpeculationFigures | None = None
    rollout: RolloutCourse | None = None
    regimes: tuple[RegimeFigures, ...] = ()


def policies_of(scenario: Scenario) -> dict[str, RoutingPolicy]:
    """Return every policy that a scenario can name: our own as they run live, and the public ones."""
    routing = scenario.routing
    own = build_policies(
        routing_cost(scenario),
        load_bound=routing.load_bound,
        min_match_tokens=routing.min_match_tokens,
    )
    return {**own, **{name: build() for name, build in PUBLIC.items()}}


def check_policy(scenario: Scenario, policy: str) -> None:
    """Raise `ScenarioError` for a policy that is not known."""
    known = policies_of(scenario)
    if policy not in known:
        raise ScenarioError(
            f"no policy {policy!r} is known; known are: {', '.join(sorted(known))} - at `$.routing.policy`"
        )


def workload_of(
    scenario: Scenario, trace: Sequence[Arrival] | None, streams: Streams
) -> Iterable[Arrival]:
    """Return what arrives, in order of time. `trace`: the requests of the trace, if the scenario has one.

    Raises `ScenarioError` with neither a trace nor synthetic sessions.
    """
    shape = scenario.workload
    if trace is None:
        made = shape.synthetic
        if made is None:
            raise ScenarioError(
                "nothing arrives: give --trace, workload.trace or [workload.synthetic] - at `$.workload`"
            )
        values = {name: getattr(made, name) for name in made.__struct_fields__}
        times = scenario.fleet.replicas if shape.per_replica else 1
        values.update(rate_per_s=made.rate_per_s * times, groups=made.groups * times)
        trace = sessions(
            Sessions(**values, duration_s=shape.duration_s),
            streams.stream("sessions"),
            block_tokens=scenario.replica.block_tokens,
        )
        return _bent(scenario, trace)
    if shape.begin_drawn:
        trace = begun_at(trace, streams.stream("begin").random())
    copies, whole = _copies(scenario)
    base = _bent(scenario, stretch(trace, copies / whole) if copies != whole else trace)
    return base if whole == 1 else overlay(base, whole, streams.stream("overlay"))


def _copies(scenario: Scenario) -> tuple[float, int]:
    """Return how many times the trace's rate there is, and by how many whole copies of it."""
    shape = scenario.workload
    copies = shape.copies * (scenario.fleet.replicas if shape.per_replica else 1)
    return copies, max(1, math.floor(copies))


def horizon_of(scenario: Scenario) -> float:
    """Return the seconds of a trace that a scenario can need, infinite where it needs the trace's whole span.

    That is where copies are turned round, the trace begins elsewhere, or a day's shape is laid over it.
    """
    shape, (copies, whole) = scenario.workload, _copies(scenario)
    if whole > 1 or shape.begin_drawn or shape.diurnal_low < 1.0:
        return math.inf
    return shape.duration_s * copies


def _bent(scenario: Scenario, arrivals: Sequence[Arrival]) -> Sequence[Arrival]:
    shape = scenario.workload
    if shape.diurnal_low >= 1.0:
        return arrivals
    day = Diurnal(
        period_s=shape.diurnal_period_s, low=shape.diurnal_low, high=2.0 - shape.diurnal_low
    )
    return diurnal(arrivals, day)


def simulate(
    scenario: Scenario,
    policy: str,
    *,
    trace: Sequence[Arrival] | None = None,
    seed: int | None = None,
    policies: Mapping[str, RoutingPolicy] | None = None,
    record: LeverRecord | None = None,
    on_event: OnEvent | None = None,
    on_progress: Callable[[float, int], None] = lambda *_: None,
) -> SimResult:
    """Simulate a scenario under a policy. The same arguments give the same result.

    `policies`: others to choose from by name instead of the scenario's. `record`: what the scenario's [rollout] proves,
    of the file that it names. `on_event` hears the rollout's ledger, `on_progress(virtual seconds, requests)` is told
    SLICES times. Raises `ScenarioError`, and `LeverRecordError` for a record that leaves something unsaid.
    """
    known = policies if policies is not None else policies_of(scenario)
    if policy not in known:
        check_policy(scenario, policy)
    streams = Streams(scenario.seed if seed is None else seed)
    fleet = Fleet(fleet_spec(scenario, policy), known, streams, kernel=Kernel())
    _plan_faults(scenario, fleet, streams)
    rollout = _plan_rollout(scenario, fleet, known, record, on_event)
    watch = _Watch(scenario, fleet, on_progress)
    fleet.run(workload_of(scenario, trace, streams), until_s=scenario.workload.duration_s)
    result = _result(scenario, policy, streams.seed, fleet, watch)
    if rollout is None:
        return result
    return msgspec.structs.replace(result, rollout=rollout.course())


def _plan_rollout(
    scenario: Scenario,
    fleet: Fleet,
    policies: Mapping[str, RoutingPolicy],
    record: LeverRecord | None,
    on_event: OnEvent | None,
) -> SimRollout | None:
    spec = rollout_spec(scenario, record)
    if spec is None:
        return None
    if spec.policy is not None and spec.policy not in policies:
        raise ScenarioError(f"no policy {spec.policy!r} is known - at `$.rollout.policy`")
    return SimRollout(fleet, spec, Events() if on_event is None else Events(on_event))


def _plan_faults(scenario: Scenario, fleet: Fleet, streams: Streams) -> None:
    for fault in scenario.faults:
        fleet.at(fault.at_s, partial(_happen, fault))
    rate = scenario.fleet.failures_per_hour / 3600.0
    for number in range(scenario.fleet.replicas if rate > 0.0 else 0):
        rng, at_s = streams.stream(f"failures of {number}"), 0.0
        while (at_s := at_s + rng.expovariate(rate)) < scenario.workload.duration_s:
            fleet.at(at_s, partial(_happen, FaultSection(at_s=at_s, kind="kill", replica=number)))


def _happen(fault: FaultSection, now_s: float, fleet: Fleet) -> None:
    replica, roster = f"r{fault.replica:05d}", fleet.roster
    match fault.kind:
        case "kill" | "lose":
            roster.kill(now_s, replica, restart=fault.kind == "kill")
        case "drain":
            roster.drain(now_s, replica)
        case "slow":
            roster.replicas[replica].slow = fault.factor
        case "slow_link":
            assert fleet.hand_overs is not None
            fleet.hand_overs.links.slow(now_s, replica, fault.factor)
        case _:
            roster.add(now_s, start_s=fault.start_s)
    if fault.for_s is not None and fault.kind in {"slow", "slow_link"}:
        over = msgspec.structs.replace(fault, factor=1.0, for_s=None)
        fleet.at(now_s + fault.for_s, partial(_happen, over))


class _Watch:
    """Counts ready replicas in slices of a run, and tells of progress."""

    def __init__(
        self, scenario: Scenario, fleet: Fleet, on_progress: Callable[[float, int], None]
    ) -> None:
        self.slice_s = scenario.workload.duration_s / SLICES
        self.ready: list[int] = []
        self.roles: list[dict[Role, int]] = []
        self.depths: list[float] = []
        self._fleet = fleet
        self._on_progress = on_progress
        for at in range(SLICES):
            fleet.at((at + 0.5) * self.slice_s, self._look)

    def _look(self, now_s: float, fleet: Fleet) -> None:
        self.ready.append(fleet.roster.ready_count)
        self.roles.append(fleet.roster.count_roles())
        depth = depth_now(fleet)
        if depth is not None:
            self.depths.append(depth)
        self._on_progress(now_s, len(fleet.records))


def _result(scenario: Scenario, policy: str, seed: int, fleet: Fleet, watch: _Watch) -> SimResult:
    records, to_s = fleet.records, scenario.workload.duration_s - scenario.cool_s
    objective, count = objective_of(scenario), len(fleet.roster.numbers)
    hours = sum(watch.ready) * watch.slice_s / 3600.0
    price = scenario.fleet.price_per_hour
    done = records.outcomes() == Outcome.FINISHED
    output = np.bincount(
        records.replicas()[done], weights=records.column("output_tokens")[done], minlength=count
    )
    cost = hours * price if price else None
    tokens, good = float(output.sum()), int(records.good(objective).sum())
    return SimResult(
        scenario=scenario.name,
        policy=policy,
        seed=seed,
        replicas=count,
        summary=summarise(records, objective, from_s=scenario.warm_s, to_s=to_s, replicas=count),
        course=_course(scenario, records, watch),
        output_tokens_by_replica=tuple(int(tokens) for tokens in output),
        preemptions=sum(replica.preemptions for replica in fleet.roster.replicas.values()),
        events=fleet.kernel.events,
        replica_hours=hours,
        cost=cost,
        cost_per_million_output_tokens=cost * 1e6 / tokens if cost is not None and tokens else None,
        cost_per_thousand_good=cost * 1e3 / good if cost is not None and good else None,
        transfers=transfer_figures(fleet),
        roles=role_figures(fleet, watch.roles, hours),
        speculation=speculation_figures(fleet, watch.depths),
        regimes=regime_figures(
            records,
            from_s=scenario.warm_s,
            to_s=to_s,
            streams_max=scenario.replica.streams_max,
            measured=scenario.replica.cost.regimes,
        ),
    )


def _course(scenario: Scenario, records: Records, watch: _Watch) -> Course:
    edges = np.linspace(0.0, scenario.workload.duration_s, SLICES + 1)
    at = records.column("at_s")
    good = records.good(objective_of(scenario))
    return Course(
        slice_s=watch.slice_s,
        arrived=tuple(int(count) for count in np.histogram(at, edges)[0]),
        good=tuple(int(count) for count in np.histogram(at[good], edges)[0]),
        replicas_ready=tuple(watch.ready),
    )
