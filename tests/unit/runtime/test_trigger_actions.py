"""What triggers do beyond on and off: undone where it did harm, for one cut of everything, less affinity."""

import msgspec
import pytest
from control_kit import EDITS, SPECULATING, Rig, routing_lever, speculation_lever
from events_kit import REVISION
from rollout_kit import served
from routing_kit import replica

from trimtab.core.cuts import Cut, Dimension
from trimtab.core.decision import FleetView
from trimtab.core.events import RolloutMoved, TriggerMoved
from trimtab.core.lever import LeverRecord, TriggerAction, TriggerSignal, TriggerSpec
from trimtab.core.record import RequestRecord
from trimtab.core.types import Arm, ReplicaState, RolloutState
from trimtab.rollout.aftermath import UNDO_REST_S
from trimtab.runtime.trigger_watch import TriggerShell

LONG = Cut(Dimension.INPUT_TOKENS, "16384-65536")


def trigger(signal: TriggerSignal, **changes: object) -> TriggerSpec:
    spec = TriggerSpec(
        name=signal.value,
        signal=signal,
        off_at=4.0,
        on_at=2.0,
        off_when_above=True,
        ticks=2,
        min_samples=1,
        lockout_s=5.0,
        because="a test",
    )
    return msgspec.structs.replace(spec, **changes)


class Fleet(Rig):
    """An adopted lever whose triggers are fed once a second."""

    def __init__(self, lever: LeverRecord, cuts: tuple[Cut, ...] = ()) -> None:
        super().__init__()
        self.lever, self.cuts = lever, cuts
        self.records: list[RequestRecord] = []
        self.affinity: list[bool] = []
        self.shell = TriggerShell(
            actuator=self.actuator,
            sink=self.sink,
            clock=self.clock,
            records=lambda: self.records,
            load_bound=1.25,
            baseline_policy="round_robin",
            distrust=lambda: None,
            lower_affinity=self.affinity.append,
        )

    async def adopt(self, policy: str | None = None) -> "Fleet":
        """Adopt it as a proof would."""
        await self.actuator.prepare(self.lever, cause_id="P")
        self.actuator.adopt(self.lever, policy=policy, cuts=self.cuts, cause_id="A")
        self.shell.adopt(self.lever, policy, self.cuts, "A")
        return self

    async def seconds(
        self,
        n: int,
        *,
        batch: int = 1,
        tpot: float = 20.0,
        prompt: int = 500,
        revision: str = "",
        requests: int = 4,
    ) -> None:
        """Seconds with that batch on r1 and a few requests each."""
        for _ in range(n):
            self.clock.pass_s(1.0)
            now_s = self.clock.wall_s()
            theirs = msgspec.structs.replace(
                replica("r1", running=batch), revision=revision or SPECULATING.id
            )
            self.shell.saw(FleetView(at_s=now_s, replicas=(replica("r0"), theirs)))
            for number in range(requests):
                one = served(
                    None,
                    Arm.BASELINE,
                    number=number,
                    tpot=tpot,
                    at=now_s,
                    prompt=prompt,
                    replica="r1",
                )
                self.records.append(msgspec.structs.replace(one, finished_at_s=now_s))
            await self.shell.tick()
            await self.shell.settle()

    def moves(self) -> list[RolloutState]:
        """States that were recorded."""
        return [e.after for e in self.events("rollout_moved") if isinstance(e, RolloutMoved)]

    def told(self) -> list[TriggerMoved]:
        """What triggers did."""
        return [e for e in self.events("trigger_moved") if isinstance(e, TriggerMoved)]


def with_triggers(record: LeverRecord, *triggers: TriggerSpec) -> LeverRecord:
    return msgspec.structs.replace(record, triggers=triggers)


@pytest.mark.parametrize("slower", [1.6, 2.0, 4.0])
async def test_action_that_did_harm_is_undone_and_its_trigger_rests(slower: float) -> None:
    """Speculation goes off for its batch; tokens get slower at equal batch; it comes back and stays for the rest."""
    lever = with_triggers(speculation_lever(), trigger(TriggerSignal.BATCH))
    fleet = await Fleet(lever, (EDITS,)).adopt()
    plan = fleet.actuator.plan
    await fleet.seconds(20)
    await fleet.seconds(12, batch=8)
    assert fleet.moves() == [RolloutState.DISABLED]
    await fleet.seconds(20, batch=8, tpot=20.0 * slower)
    assert fleet.moves() == [RolloutState.DISABLED, RolloutState.ADOPTED]
    assert fleet.actuator.plan == plan
    last = fleet.told()[-1]
    assert (last.fired, "undone, as it did harm" in last.action) == (False, True)
    await fleet.seconds(30, batch=8, tpot=20.0 * slower)
    assert fleet.moves() == [RolloutState.DISABLED, RolloutState.ADOPTED]
    fleet.clock.pass_s(UNDO_REST_S)
    await fleet.seconds(14, batch=8)
    assert fleet.moves()[-1] is RolloutState.DISABLED


async def test_action_that_did_no_harm_stays() -> None:
    """Nothing gets slower: after its watch the lever is still off."""
    lever = with_triggers(speculation_lever(), trigger(TriggerSignal.BATCH))
    fleet = await Fleet(lever, (EDITS,)).adopt()
    await fleet.seconds(20)
    await fleet.seconds(90, batch=8)
    assert fleet.moves() == [RolloutState.DISABLED]


@pytest.mark.parametrize(
    "signal", [TriggerSignal.INVALID_OUTPUT_RATE, TriggerSignal.EFFECTIVE_MISMATCH]
)
async def test_what_was_done_for_quality_is_never_undone(signal: TriggerSignal) -> None:
    """Slower tokens are no reason to bring back a lever that is not what it should be."""
    spec = trigger(signal, off_at=0.2, on_at=0.05)
    fleet = await Fleet(with_triggers(speculation_lever(), spec), (EDITS,)).adopt()
    await fleet.seconds(10)
    if signal is TriggerSignal.EFFECTIVE_MISMATCH:
        await fleet.seconds(12, revision=REVISION.id)
    else:
        fleet.records = [
            msgspec.structs.replace(one, output_valid=False, finished_at_s=fleet.clock.wall_s())
            for one in fleet.records
        ]
        await fleet.seconds(2, requests=0)
    assert fleet.moves() == [RolloutState.DISABLED]
    await fleet.seconds(30, tpot=80.0, revision=REVISION.id)
    assert RolloutState.ADOPTED not in fleet.moves()


async def test_replica_that_runs_another_revision_takes_the_lever_back() -> None:
    """Requested is not effective: off, with what was seen; one that is not ready tells nothing."""
    spec = trigger(TriggerSignal.EFFECTIVE_MISMATCH, off_at=0.5, on_at=None)
    fleet = await Fleet(with_triggers(speculation_lever(), spec), (EDITS,)).adopt()
    await fleet.seconds(15)
    assert fleet.moves() == []
    away = msgspec.structs.replace(replica("r1"), state=ReplicaState.RESTARTING, revision="other")
    for _ in range(15):
        fleet.clock.pass_s(1.0)
        fleet.shell.saw(FleetView(at_s=fleet.clock.wall_s(), replicas=(replica("r0"), away)))
        await fleet.shell.tick()
    assert fleet.moves() == []
    await fleet.seconds(15, revision="other")
    assert fleet.moves() == [RolloutState.DISABLED]
    assert fleet.told()[0].value > 0.5


@pytest.mark.parametrize("routes", [True, False])
async def test_a_lever_for_all_traffic_can_lose_one_cut(routes: bool) -> None:
    """Long prompts alone go back to the baseline, and return when their trigger lets go; the rest is not touched."""
    spec = trigger(
        TriggerSignal.BATCH, action=TriggerAction.DISABLE_CUT, cut=LONG, name="long prompts"
    )
    base = routing_lever() if routes else msgspec.structs.replace(speculation_lever(()), cuts=())
    fleet = await Fleet(with_triggers(base, spec)).adopt("prefix_affine" if routes else None)
    before = fleet.actuator.plan
    # A batch is of the replicas a lever acts on; a routing lever acts on all.
    await fleet.seconds(14, batch=8)
    plan = fleet.actuator.plan
    left = [each.cuts for each in plan.reserves] + [each.without for each in plan.preferences]
    assert left == [(LONG,)]
    assert (plan.policy, fleet.moves()) == (before.policy, [])
    await fleet.seconds(30, batch=1)
    assert fleet.actuator.plan == before


async def test_hot_replica_lowers_affinity_and_gives_it_back() -> None:
    """The lever stays on; only what the load bound leaves to affinity is halved."""
    spec = trigger(TriggerSignal.BATCH, action=TriggerAction.LOWER_AFFINITY)
    fleet = await Fleet(with_triggers(routing_lever(), spec)).adopt("prefix_affine")
    await fleet.seconds(14, batch=8)
    assert (fleet.affinity, fleet.moves()) == ([True], [])
    await fleet.seconds(20, batch=1)
    assert (fleet.affinity, fleet.moves()) == ([True, False], [])


async def test_affinity_stays_low_as_long_as_any_trigger_wants_it() -> None:
    """Two triggers see the same load and let go at different marks: the first gives nothing back."""
    action = TriggerAction.LOWER_AFFINITY
    early = trigger(TriggerSignal.BATCH, action=action, name="early", on_at=3.0)
    late = trigger(TriggerSignal.BATCH, action=action, name="late", on_at=1.5)
    fleet = await Fleet(with_triggers(routing_lever(), early, late)).adopt("prefix_affine")
    await fleet.seconds(14, batch=8)
    assert fleet.affinity == [True]
    await fleet.seconds(20, batch=2)
    assert ([each.trigger.name for each in fleet.told() if not each.fired]) == ["early"]
    assert fleet.affinity == [True]
    await fleet.seconds(20, batch=1)
    assert fleet.affinity == [True, False]


@pytest.mark.parametrize("ends", [True, False])
async def test_affinity_comes_back_with_the_lever_that_lowered_it(ends: bool) -> None:
    """Rolled back, or switched on anew by a person: nothing stays lowered for what no trigger watches."""
    spec = trigger(TriggerSignal.BATCH, action=TriggerAction.LOWER_AFFINITY)
    fleet = await Fleet(with_triggers(routing_lever(), spec)).adopt("prefix_affine")
    await fleet.seconds(14, batch=8)
    if ends:
        await fleet.shell.end(fleet.lever.name, RolloutState.ROLLED_BACK, "a person asked")
    else:
        await fleet.shell.switch(fleet.lever.name, on=False, reason="a person asked")
        await fleet.shell.switch(fleet.lever.name, on=True, reason="a person asked")
    assert fleet.affinity == [True, False]


@pytest.mark.parametrize("routes", [True, False])
async def test_cut_and_affinity_that_triggers_held_before_a_restart_come_back(routes: bool) -> None:
    """What a restart finds held back in part stays so, and returns when its trigger lets go."""
    cut = trigger(TriggerSignal.BATCH, action=TriggerAction.DISABLE_CUT, cut=LONG, name="long")
    hot = trigger(TriggerSignal.BATCH, action=TriggerAction.LOWER_AFFINITY, name="hot")
    base = routing_lever() if routes else msgspec.structs.replace(speculation_lever(()), cuts=())
    policy = "prefix_affine" if routes else None
    fleet = await Fleet(with_triggers(base, cut, hot)).adopt(policy)
    before = fleet.actuator.plan
    await fleet.seconds(14, batch=8)
    held = fleet.actuator.plan
    again = Fleet(fleet.lever)
    await again.actuator.prepare(again.lever, cause_id="P")
    again.actuator.set_plan(held, cause_id="A")
    again.shell.adopt(
        again.lever, policy, (), "A", without=(), narrowed_by=frozenset({"long", "hot"})
    )
    await again.seconds(3, batch=8)
    assert (again.actuator.plan, again.affinity, again.told()) == (held, [True], [])
    await again.seconds(30, batch=1)
    assert (again.actuator.plan, again.affinity) == (before, [True, False])
