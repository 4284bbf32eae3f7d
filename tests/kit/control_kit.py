"""A fleet, a router and a clock without processes, and records that prove or refute a lever, for tests of control."""

import msgspec
from events_kit import REVISION, lever_record
from rollout_kit import EXTRAS, LEVER_GATES, RAMP, served

from trimtab.core.cuts import Cut, Dimension
from trimtab.core.events import AnyEvent, Envelope, kind_of
from trimtab.core.gate import Statistic
from trimtab.core.lever import Comparison, LeverRecord
from trimtab.core.ports import LaunchError, LedgerSink
from trimtab.core.record import RequestRecord
from trimtab.core.revision import Revision, Speculation, SpeculationMethod
from trimtab.core.traffic import CandidatePlan, TrafficPlan, expose
from trimtab.core.types import Arm, RolloutState, Technique
from trimtab.runtime.actuation import Actuator
from trimtab.runtime.controller import Controller
from trimtab.runtime.ledger_memory import MemoryLedger
from trimtab.runtime.trigger_watch import TriggerShell

EDITS = Cut(Dimension.LABEL, "edit")
QUESTIONS = Cut(Dimension.LABEL, "question")
SPECULATING = REVISION.replace(speculation=Speculation(method=SpeculationMethod.NGRAM_SIMPLE))
BASELINE_PLAN = TrafficPlan(policy="round_robin")
STEP_S = 1.0
LIVES_S = 86_400.0
"""How long the records of these tests are good for."""


class HandClock:
    """A clock that moves only when told to; wall and monotonic time lie apart, so that mixing them shows."""

    def __init__(self, mono_s: float = 0.0, wall_s: float = 1_800_000_000.0) -> None:
        self._mono_s, self._ahead_s = mono_s, wall_s - mono_s

    def wall_s(self) -> float:
        """Seconds since 1970."""
        return self._mono_s + self._ahead_s

    def mono_s(self) -> float:
        """Seconds that never go backwards."""
        return self._mono_s

    def pass_s(self, seconds: float) -> None:
        """Let time pass."""
        self._mono_s += seconds


class FakeFleet:
    """Replicas that restart at once, or fail to as often as told. `log` is shared with the router."""

    def __init__(self, log: list[str], replicas: tuple[str, ...] = ("r0", "r1")) -> None:
        self.log = log
        self.revisions = dict.fromkeys(replicas, REVISION)
        self.failures_left = 0
        self.causes: list[str | None] = []

    def replica_ids(self) -> tuple[str, ...]:
        """Every replica."""
        return tuple(self.revisions)

    def revision_of(self, replica: str) -> Revision:
        """The revision a replica runs."""
        return self.revisions[replica]

    async def restart_into(
        self,
        replica: str,
        revision: Revision,
        *,
        drain_timeout_s: float,
        keep_kv: bool = True,
        cause_id: str | None,
    ) -> None:
        """Restart, unless failures are left."""
        self.causes.append(cause_id)
        if self.failures_left:
            self.failures_left -= 1
            self.log.append(f"{replica} did not drain")
            raise LaunchError(f"{replica} did not drain within {drain_timeout_s:g} s")
        self.log.append(f"{replica} runs {name_of(revision)}, KV kept: {keep_kv}")
        self.revisions[replica] = revision


class FakeRouter:
    """Follows a plan and says when it is swapped."""

    def __init__(self, log: list[str], plan: TrafficPlan = BASELINE_PLAN) -> None:
        self._log, self._plan = log, plan

    @property
    def plan(self) -> TrafficPlan:
        """The plan in force."""
        return self._plan

    @plan.setter
    def plan(self, plan: TrafficPlan) -> None:
        self._plan = plan
        self._log.append("plan")


class Rig:
    """An actuator on a fake fleet with a ledger in memory; `log` is the order of what happened outside it."""

    def __init__(
        self, plan: TrafficPlan = BASELINE_PLAN, replicas: tuple[str, ...] = ("r0", "r1")
    ) -> None:
        self.clock = HandClock(mono_s=5.0)
        self.sink = SpySink(self.clock)
        self.log: list[str] = []
        self.fleet = FakeFleet(self.log, replicas)
        self.router = FakeRouter(self.log, plan)
        self.actuator = Actuator(
            router=self.router,
            fleet=self.fleet,
            sink=self.sink,
            baseline=REVISION,
            mono_s=self.clock.mono_s,
        )

    @property
    def envelopes(self) -> tuple[Envelope, ...]:
        """Everything recorded so far."""
        return tuple(self.sink.read())

    def events(self, kind: str) -> list[AnyEvent]:
        """The recorded events of one kind."""
        return [each.event for each in self.envelopes if kind_of(each.event) == kind]


class Deciding(Rig):
    """A rig with a controller and triggers that watch what it adopts; `sink` takes the place of the one in memory."""

    def __init__(self, sink: LedgerSink | None = None) -> None:
        super().__init__()
        told: LedgerSink = self.sink if sink is None else sink
        self.actuator._sink = told
        self.controller = Controller(
            actuator=self.actuator,
            sink=told,
            clock=self.clock,
            extras=lambda record, replicas: EXTRAS,
            after_adoption=lambda record, cause_id: None,
            on_adopted=self.watch,
        )
        self.triggers = TriggerShell(
            actuator=self.actuator,
            sink=told,
            clock=self.clock,
            records=lambda: (),
            load_bound=1.25,
            baseline_policy="round_robin",
            distrust=lambda: None,
            on_changed=self.changed,
        )

    def watch(
        self, record: LeverRecord, policy: str | None, cuts: tuple[Cut, ...], cause: str
    ) -> None:
        """Watch a lever that was adopted."""
        self.triggers.adopt(record, policy, cuts, cause)

    def changed(self, record: LeverRecord, to: RolloutState, cause: str) -> None:
        """Hear of an adopted lever that went on, off or away."""


class SpySink(MemoryLedger):
    """A ledger in memory that also knows which events were asked to be durable, and can recover."""

    def __init__(self, clock: HandClock) -> None:
        super().__init__(clock=clock, run=1)
        self.durable: list[str] = []

    def append(self, event: AnyEvent, *, cause_id: str | None, durable: bool = False) -> str:
        """Keep the kind of a durable event, then append."""
        if durable:
            self.durable.append(kind_of(event))
        return super().append(event, cause_id=cause_id, durable=durable)

    def recover(self) -> None:
        """Behave from here on as a ledger that can be written again."""
        self._reason = None


def name_of(revision: Revision) -> str:
    """Name the two revisions of these tests."""
    return "speculation" if revision == SPECULATING else "the baseline"


def routing_lever() -> LeverRecord:
    """A routing lever with gates that a few records can answer."""
    # The tail gate is left out for speed: it can only stop a lever.
    quick = tuple(gate for gate in LEVER_GATES if gate.statistic is not Statistic.TAIL_P95)
    now_s = HandClock().wall_s()
    return msgspec.structs.replace(
        lever_record(), gates=quick, ramp=RAMP, created_at_s=now_s, expires_at_s=now_s + LIVES_S
    )


def speculation_lever(cuts: tuple[Cut, ...] = (EDITS,)) -> LeverRecord:
    """A revision lever that is compared side by side in some cuts."""
    return msgspec.structs.replace(
        routing_lever(),
        name="ngram_speculation",
        technique=Technique.SPECULATION,
        revision=SPECULATING,
        cuts=cuts,
        ramp=msgspec.structs.replace(RAMP, comparison=Comparison.SIDE_BY_SIDE),
    )


def traffic(
    plan: TrafficPlan, clock: HandClock, *, ratio: float, per_s: int = 10, label: str = "edit"
) -> list[RequestRecord]:
    """The requests of one second under a plan, ended at once; the candidate multiplies TTFT by `ratio`."""
    made = []
    for number in range(per_s):
        cut = Cut(Dimension.LABEL, label)
        exposure = expose(
            plan,
            place=(number + 0.5) / per_s,
            cuts=(cut,),
            now_s=clock.mono_s(),
            replicas=("r0", "r1"),
        )
        gained = ratio if exposure.arm is Arm.CANDIDATE else 1.0
        one = served(
            exposure.block,
            exposure.arm,
            number=number,
            # No two values are alike: ties are not what a comparison is about.
            ttft=(400.0 + 7.0 * number) * gained,
            at=clock.wall_s() + number / 1000.0,
            label=label,
            slice_=exposure.slice,
        )
        made.append(msgspec.structs.replace(one, lever=exposure.lever))
    return made


def candidate(
    *, share: float = 0.5, comparison: Comparison = Comparison.SWITCHBACK, **changes: object
) -> CandidatePlan:
    """A candidate plan of ten-second blocks with edges of one second."""
    plan = CandidatePlan(
        lever="lever",
        share=share,
        policy="prefix_affine",
        replicas=(),
        comparison=comparison,
        started_at_s=100.0,
        block_s=10.0,
        edge_s=1.0,
    )
    return msgspec.structs.replace(plan, **changes)
