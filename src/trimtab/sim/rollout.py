"""A rollout in virtual time: the rollout machine, gates, triggers, traffic plans and state fold that run live.

This shell does what `runtime.controller` and `runtime.trigger_watch` do, without a wait: at each look it answers the
gates from the records of simulated requests, moves the rollout, puts the next traffic plan before every gateway and
appends the events. After adoption the record's triggers watch over the same window as live.

Not done here: the diagnosis after an adoption (budgets are not simulated), equality probes, a person who resumes.
"""

from collections import deque
from typing import Final

import msgspec

from trimtab.core.decision import FleetView
from trimtab.core.events import (
    CutsKept,
    GatesEvaluated,
    LeverProposed,
    RolloutMoved,
    TrafficPlanned,
    TriggerMoved,
)
from trimtab.core.evidence import Window
from trimtab.core.gate import GateResult
from trimtab.core.lever import LeverRecord
from trimtab.core.record import RequestRecord
from trimtab.core.traffic import TrafficPlan
from trimtab.core.types import Arm, ReplicaState, RolloutState, Verdict
from trimtab.rollout.answer import ALL_TRAFFIC, ArmExtras
from trimtab.rollout.effects import effects_of
from trimtab.rollout.gates import kept_cuts
from trimtab.rollout.look import Judge
from trimtab.rollout.machine import RUNNING, Look, Rollout, advance, begin
from trimtab.rollout.plans import (
    with_adopted,
    with_lever_off,
    with_share,
    with_slice,
    without_slice,
)
from trimtab.rollout.signals import Watched, signals, tpot_by_batch
from trimtab.rollout.triggers import Action, TriggerWatch, watch
from trimtab.sim.events import Events
from trimtab.sim.fleet import Fleet
from trimtab.sim.fleet_parts import Change, Flight
from trimtab.sim.jobs import ReplicaSpec
from trimtab.sim.lever_records import simulated
from trimtab.sim.records import Outcome
from trimtab.sim.request_records import record_of_request

RECORDS_MAX: Final = 20_000
TICK_S: Final = 1.0
"""Triggers are fed once a second, as live."""

WINDOW_S: Final = 10.0
VIEWS_MAX: Final = 600


class Candidate(msgspec.Struct, frozen=True, kw_only=True):
    """Replicas that become another revision: how many, what they can do, and how much slower each step is."""

    replicas: int
    spec: ReplicaSpec
    change_s: float
    slower: float = 1.0


class RolloutSpec(msgspec.Struct, frozen=True, kw_only=True):
    """What is rolled out: a routing policy, or a candidate's replicas. Times in seconds."""

    record: LeverRecord
    policy: str | None
    candidate: Candidate | None
    start_s: float
    look_s: float


class Move(msgspec.Struct, frozen=True, kw_only=True):
    """A move of the rollout, with the verdict of the look behind it."""

    at_s: float
    state: RolloutState
    share: float
    verdict: Verdict | None
    reason: str


class RolloutCourse(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a rollout. `exposed`: requests that met the candidate; `not_asked`: gates left out.

    `gates`: the answers of the last look; `events`, `head`: of its ledger.
    """

    lever: str
    state: RolloutState
    share: float
    looks: int
    exposed: int
    moves: tuple[Move, ...]
    gates: tuple[GateResult, ...]
    not_asked: tuple[str, ...]
    triggers_fired: int
    events: int
    head: str


class SimRollout:
    """Proves one lever on a simulated fleet; `course()` says how it went."""

    def __init__(self, fleet: Fleet, spec: RolloutSpec, events: Events) -> None:
        self.spec = spec
        self.events = events
        self._fleet = fleet
        self._record, self._not_asked = simulated(spec.record)
        self._judge = Judge(self._record)
        self._plan = fleet.gateways[0].router.plan
        self._baseline_policy = self._plan.policy
        self._rollout: Rollout | None = None
        self._cause: str | None = None
        self._results: tuple[GateResult, ...] = ()
        self._looks = 0
        self._exposed = 0
        self._moves: list[Move] = []
        self._records: deque[RequestRecord] = deque(maxlen=RECORDS_MAX)
        self._views: deque[FleetView] = deque(maxlen=VIEWS_MAX)
        self._watches: list[TriggerWatch] = []
        self._baseline_tpot_ms: dict[str, float] = {}
        self._off_by: set[str] = set()
        self._fired = 0
        fleet.on_end.append(self._request_ended)
        fleet.at(spec.start_s, self._propose)

    def course(self) -> RolloutCourse:
        """Return how the rollout went so far."""
        state = RolloutState.PROPOSED if self._rollout is None else self._rollout.state
        return RolloutCourse(
            lever=self._record.name,
            state=state,
            share=0.0 if self._rollout is None else self._rollout.share,
            looks=self._looks,
            exposed=self._exposed,
            moves=tuple(self._moves),
            gates=self._results,
            not_asked=self._not_asked,
            triggers_fired=self._fired,
            events=self.events.count,
            head=self.events.head,
        )

    @property
    def _replicas(self) -> tuple[str, ...]:
        """Where a candidate runs: the last replicas of the start, so that plain ones stay."""
        candidate = self.spec.candidate
        names = tuple(self._fleet.roster.numbers)[: self._fleet.spec.replicas]
        return () if candidate is None else names[-candidate.replicas :]

    def _request_ended(self, now_s: float, flight: Flight, outcome: Outcome) -> None:
        record = record_of_request(now_s, flight, outcome)
        if record.arm is Arm.CANDIDATE:
            self._exposed += 1
        self._records.append(record)
        self._judge.take(record)

    def _propose(self, now_s: float, _: Fleet) -> None:
        event = LeverProposed(record=self._record)
        self._cause = self.events.append(event, at_s=now_s, cause_id=None)
        self._turn(now_s, to_candidate=True)
        self._tick(now_s, self._fleet)

    def _tick(self, now_s: float, fleet: Fleet) -> None:
        fleet.at(now_s + (TICK_S if self._watches else self.spec.look_s), self._tick)
        if self._rollout is None:
            self._start_if_ready(now_s)
        elif self._rollout.state in RUNNING or self._rollout.state is RolloutState.PAUSED:
            self._look(now_s, self._rollout)
        elif self._watches:
            self._watch(now_s)

    # -- proving -------------------------------------------------------------------------------

    def _start_if_ready(self, now_s: float) -> None:
        roster = self._fleet.roster
        if any(one in roster.changing for one in self._replicas):
            return
        if any(roster.states[one] is not ReplicaState.READY for one in self._replicas):
            return
        self._move(now_s, None, begin(self._record, now_s), None)
        assert self._rollout is not None
        plan = with_slice(
            self._plan,
            self._record,
            share=self._rollout.share,
            policy=self.spec.policy,
            replicas=self._replicas,
            now_s=now_s,
        )
        self._set_plan(now_s, plan)

    def _look(self, now_s: float, rollout: Rollout) -> None:
        candidate = self._plan.candidate
        if candidate is None:
            self._follow(now_s, rollout, Look(verdict=Verdict.HOLD))
            return
        results, verdict = self._judge.look(rollout, candidate, ArmExtras(), now_s)
        self._looks += 1
        if results != self._results:
            self._results = results
            event = GatesEvaluated(
                lever=self._record.name,
                state=rollout.state,
                share=rollout.share,
                look=self._looks,
                verdict=verdict,
                results=results,
            )
            self._cause = self.events.append(event, at_s=now_s, cause_id=self._cause)
        self._follow(now_s, rollout, Look(verdict=verdict, results=results))

    def _follow(self, now_s: float, rollout: Rollout, look: Look) -> None:
        after = advance(self._record, rollout, look, now_s)
        if after.state is rollout.state and after.share == rollout.share:
            self._rollout = after
            return
        self._move(now_s, rollout.state, after, look.verdict)
        if after.state in RUNNING:
            self._set_plan(now_s, with_share(self._plan, after.share))
        elif after.state is RolloutState.ADOPTED:
            self._adopt(now_s)
        else:
            self._tell_effects(now_s)
            self._set_plan(now_s, without_slice(self._plan))
            self._turn(now_s, to_candidate=False)

    def _adopt(self, now_s: float) -> None:
        kept, refused = kept_cuts(self._record, self._results)
        told = CutsKept(
            lever=self._record.name,
            kept=tuple(str(cut) for cut in kept) or (ALL_TRAFFIC,),
            refused=refused,
        )
        self._cause = self.events.append(told, at_s=now_s, cause_id=self._cause)
        self._tell_effects(now_s)
        plain = [one for one in self._records if one.ok and one.arm is Arm.BASELINE]
        self._baseline_tpot_ms = tpot_by_batch([one for one in plain if not one.drafting.drafted])
        self._watches = [TriggerWatch(spec=spec) for spec in self._record.triggers]
        self._give(now_s)

    def _give(self, now_s: float) -> None:
        plan = with_adopted(
            self._plan, self._record, policy=self.spec.policy, cuts=(), replicas=self._replicas
        )
        self._set_plan(now_s, plan)

    def _tell_effects(self, now_s: float) -> None:
        for effect in effects_of(self._record, self._results):
            self.events.append(effect, at_s=now_s, cause_id=self._cause)

    # -- watching ------------------------------------------------------------------------------

    def _watch(self, now_s: float) -> None:
        assert self._rollout is not None
        load = self._fleet.gateways[0].load
        self._views.append(load.view(now_s))
        watched = Watched(replicas=self._replicas or None, baseline_tpot_ms=self._baseline_tpot_ms)
        window = Window(now_s - WINDOW_S, now_s)
        seen = signals(self._records, tuple(self._views), window, watched)
        was_off = bool(self._off_by)
        for at, state in enumerate(self._watches):
            signal = seen[state.spec.signal]
            self._watches[at], action = watch(state, signal.value, signal.samples, now_s)
            if action is not None:
                self._heard(now_s, state, action)
        if bool(self._off_by) != was_off:
            self._switch(now_s, self._rollout)

    def _heard(self, now_s: float, state: TriggerWatch, action: Action) -> None:
        self._fired += action.fired
        event = TriggerMoved(
            lever=self._record.name,
            trigger=state.spec,
            fired=action.fired,
            value=action.value,
            samples=action.samples,
            action=f"{state.spec.action.value}: {action.reason}",
        )
        self._cause = self.events.append(event, at_s=now_s, cause_id=self._cause)
        (self._off_by.add if action.fired else self._off_by.discard)(state.spec.name)

    def _switch(self, now_s: float, rollout: Rollout) -> None:
        """Take the adopted lever off by routing, or bring it back."""
        off = bool(self._off_by)
        after = msgspec.structs.replace(
            rollout,
            state=RolloutState.DISABLED if off else RolloutState.ADOPTED,
            share=0.0 if off else 1.0,
            reason="a trigger fired" if off else "its trigger let go",
        )
        self._move(now_s, rollout.state, after, Verdict.FAIL if off else Verdict.PASS)
        if off:
            plan = with_lever_off(
                self._plan,
                self._record,
                baseline_policy=self._baseline_policy,
                routes=self.spec.policy is not None,
            )
            self._set_plan(now_s, plan)
        else:
            self._give(now_s)

    # -- carrying out --------------------------------------------------------------------------

    def _move(
        self, now_s: float, before: RolloutState | None, after: Rollout, verdict: Verdict | None
    ) -> None:
        self._rollout = after
        event = RolloutMoved(
            lever=self._record.name,
            before=before,
            after=after.state,
            share=after.share,
            verdict=verdict,
            reason=after.reason,
        )
        self._cause = self.events.append(event, at_s=now_s, cause_id=self._cause)
        move = Move(
            at_s=now_s,
            state=after.state,
            share=after.share,
            verdict=verdict,
            reason=after.reason,
        )
        self._moves.append(move)

    def _set_plan(self, now_s: float, plan: TrafficPlan) -> None:
        self._plan = plan
        for gateway in self._fleet.gateways:
            gateway.router.plan = plan
        self.events.append(TrafficPlanned(plan=plan), at_s=now_s, cause_id=self._cause)

    def _turn(self, now_s: float, *, to_candidate: bool) -> None:
        """Let the candidate's replicas become the candidate, or go back."""
        candidate, roster = self.spec.candidate, self._fleet.roster
        if candidate is None:
            return
        for replica in self._replicas:
            role = roster.roles[replica]
            change = Change(
                role=role,
                spec=candidate.spec if to_candidate else roster.spec_for(role),
                take_s=candidate.change_s,
                keeps_cache=True,
                slow=candidate.slower if to_candidate else 1.0,
            )
            roster.change(now_s, replica, change)
