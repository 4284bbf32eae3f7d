"""Triggers of adopted levers: off by routing at once, back with hysteresis, and every step told."""

import asyncio

import msgspec
import pytest
from control_kit import BASELINE_PLAN, EDITS, QUESTIONS, Rig, name_of, speculation_lever
from rollout_kit import served
from routing_kit import replica

from trimtab.core.cuts import Cut, Dimension
from trimtab.core.decision import FleetView
from trimtab.core.events import CutsKept, RolloutMoved, TriggerMoved
from trimtab.core.lever import LeverRecord, TriggerAction, TriggerSignal, TriggerSpec
from trimtab.core.record import RequestRecord
from trimtab.core.state import rebuild
from trimtab.core.types import Arm, RolloutState, Verdict
from trimtab.runtime.actuation import RESTART_ATTEMPTS
from trimtab.runtime.adopted import by_temperature
from trimtab.runtime.proof import ControlError
from trimtab.runtime.trigger_watch import WINDOW_S, TriggerShell

BATCH = TriggerSpec(
    name="batch",
    signal=TriggerSignal.BATCH,
    off_at=4.0,
    on_at=2.0,
    off_when_above=True,
    ticks=2,
    min_samples=1,
    lockout_s=5.0,
    because="verification costs more than it saves",
)
COVERAGE = TriggerSpec(
    name="coverage",
    signal=TriggerSignal.DRAFT_COVERAGE,
    off_at=0.1,
    on_at=0.3,
    off_when_above=False,
    ticks=2,
    min_samples=1,
    lockout_s=5.0,
    because="hardly anything is drafted",
)
INDEX = TriggerSpec(
    name="index",
    signal=TriggerSignal.DELIVERED_OVER_PREDICTED,
    off_at=0.5,
    on_at=0.8,
    off_when_above=False,
    action=TriggerAction.DISTRUST_INDEX,
    ticks=2,
    min_samples=1,
    because="the index promises too much",
)
EDITS_COVERAGE = msgspec.structs.replace(
    COVERAGE, name="coverage of edits", action=TriggerAction.DISABLE_CUT, cut=EDITS
)
LOW, BETWEEN, HIGH = 1, 3, 6


class Watched(Rig):
    """A speculating replica r1 under watch; each second says what its batch and its requests are."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[RequestRecord] = []
        self.distrusted = 0
        self.told: list[TriggerMoved] = []
        self.shell = TriggerShell(
            actuator=self.actuator,
            sink=self.sink,
            clock=self.clock,
            records=lambda: self.records,
            load_bound=1.25,
            baseline_policy="round_robin",
            distrust=self._distrust,
            on_moved=self.told.append,
        )
        self.lever: LeverRecord = speculation_lever()

    def _distrust(self) -> None:
        self.distrusted += 1

    async def adopt(self, *triggers: TriggerSpec, cuts: tuple[Cut, ...] = (EDITS,)) -> None:
        """Adopt the lever with these triggers."""
        self.lever = msgspec.structs.replace(speculation_lever(cuts), triggers=triggers)
        await self.actuator.prepare(self.lever, cause_id="P")
        self.actuator.adopt(self.lever, policy=None, cuts=cuts, cause_id="A")
        self.shell.adopt(self.lever, None, cuts, "A")
        self.log.clear()

    async def second(
        self, *, batch: int | None = None, coverage: float | None = None, credible: float = 1.0
    ) -> None:
        """Eleven seconds pass, so that only what is said now lies in the window; then a tick."""
        self.clock.pass_s(WINDOW_S + 1.0)
        now_s = self.clock.wall_s()
        if batch is not None:
            view = FleetView(at_s=now_s, replicas=(replica("r0"), replica("r1", running=batch)))
            self.shell.saw(view)
        if coverage is not None:
            one = served(
                None,
                Arm.BASELINE,
                at=now_s - 5.0,
                label="edit",
                replica="r1",
                drafted=100,
                accepted=round(50 * coverage),
                delivered=round(100 * credible),
            )
            tokens = msgspec.structs.replace(one.tokens, predicted=100)
            self.records.append(msgspec.structs.replace(one, finished_at_s=now_s, tokens=tokens))
        await self.shell.tick()
        await self.shell.settle()

    async def seconds(self, n: int, **said: float) -> None:
        """The same for `n` ticks."""
        for _ in range(n):
            await self.second(**said)  # type: ignore[arg-type]

    def moves(self) -> list[RolloutState]:
        """States that were recorded."""
        return [e.after for e in self.events("rollout_moved") if isinstance(e, RolloutMoved)]


async def test_lever_goes_off_after_enough_ticks_and_comes_back_lower() -> None:
    """Two ticks above four; between two and four nothing moves; two ticks below two."""
    rig = Watched()
    await rig.adopt(BATCH)
    plan = rig.actuator.plan
    await rig.second(batch=HIGH)
    assert rig.moves() == []
    await rig.second(batch=HIGH)
    assert rig.moves() == [RolloutState.DISABLED]
    assert rig.actuator.plan == BASELINE_PLAN
    await rig.seconds(5, batch=BETWEEN)
    assert rig.moves() == [RolloutState.DISABLED]
    await rig.seconds(2, batch=LOW)
    assert rig.moves() == [RolloutState.DISABLED, RolloutState.ADOPTED]
    assert rig.actuator.plan == plan


async def test_off_goes_by_routing_first_and_back_by_revision_first() -> None:
    """The replica follows after the traffic, and comes before it."""
    rig = Watched()
    await rig.adopt(BATCH)
    await rig.seconds(2, batch=HIGH)
    assert rig.log == ["plan", "r1 runs the baseline, KV kept: True"]
    rig.log.clear()
    await rig.seconds(2, batch=LOW)
    assert rig.log == ["r1 runs speculation, KV kept: True", "plan"]


async def test_firing_and_return_are_told_with_value_cause_and_effect() -> None:
    """The trigger is caused by the adoption, the move by the trigger, the plan by the move."""
    rig = Watched()
    await rig.adopt(BATCH)
    start = len(rig.envelopes)
    await rig.seconds(2, batch=HIGH)
    fired, moved, planned = rig.envelopes[start:]
    assert isinstance(fired.event, TriggerMoved)
    assert isinstance(moved.event, RolloutMoved)
    assert (fired.cause_id, moved.cause_id, planned.cause_id) == ("A", fired.id, moved.id)
    assert (fired.event.fired, fired.event.value, fired.event.samples) == (True, 6.0, 1)
    assert fired.event.action == "disable: batch 6 above 4 for 2 ticks"
    assert (moved.event.verdict, moved.event.share) == (Verdict.FAIL, 0.0)
    await rig.seconds(2, batch=LOW)
    assert [event.fired for event in rig.told] == [True, False]
    last = [e for e in rig.events("rollout_moved") if isinstance(e, RolloutMoved)][-1]
    assert (last.verdict, last.share) == (Verdict.PASS, 1.0)


async def test_unknown_reading_neither_fires_nor_recovers() -> None:
    """Nothing seen in the window is not a batch of zero."""
    rig = Watched()
    await rig.adopt(BATCH)
    await rig.second(batch=HIGH)
    await rig.seconds(3)
    assert rig.moves() == []
    await rig.second(batch=HIGH)
    assert rig.moves() == [RolloutState.DISABLED]
    await rig.seconds(5)
    assert rig.moves() == [RolloutState.DISABLED]


async def test_lever_held_off_by_two_triggers_returns_when_the_last_lets_go() -> None:
    """The second firing moves nothing more; the first recovery brings nothing back."""
    rig = Watched()
    await rig.adopt(BATCH, COVERAGE)
    await rig.seconds(2, batch=HIGH, coverage=0.5)
    await rig.seconds(2, batch=HIGH, coverage=0.0)
    assert [event.trigger.name for event in rig.told] == ["batch", "coverage"]
    assert rig.moves() == [RolloutState.DISABLED]
    await rig.seconds(2, batch=LOW, coverage=0.0)
    assert [event.fired for event in rig.told] == [True, True, False]
    assert rig.moves() == [RolloutState.DISABLED]
    assert rig.actuator.plan == BASELINE_PLAN
    await rig.seconds(2, batch=LOW, coverage=0.5)
    assert rig.moves() == [RolloutState.DISABLED, RolloutState.ADOPTED]


async def test_lever_without_a_mark_to_return_at_stays_off() -> None:
    """Only a person brings it back."""
    rig = Watched()
    await rig.adopt(msgspec.structs.replace(BATCH, on_at=None))
    await rig.seconds(2, batch=HIGH)
    await rig.seconds(5, batch=LOW)
    assert rig.moves() == [RolloutState.DISABLED]


async def test_index_that_is_not_credible_is_forgotten_and_the_lever_stays_on() -> None:
    """Once per firing; its return is told and forgets nothing."""
    rig = Watched()
    await rig.adopt(INDEX)
    plan = rig.actuator.plan
    await rig.seconds(3, coverage=0.5, credible=0.2)
    assert (rig.distrusted, rig.moves()) == (1, [])
    assert rig.actuator.plan == plan
    await rig.seconds(2, coverage=0.5, credible=1.0)
    assert [event.fired for event in rig.told] == [True, False]
    assert rig.distrusted == 1


async def test_one_cut_is_taken_out_by_routing_alone_and_put_back() -> None:
    """The other cut keeps the lever, and no replica restarts."""
    rig = Watched()
    await rig.adopt(EDITS_COVERAGE, cuts=(EDITS, QUESTIONS))
    await rig.seconds(2, coverage=0.0)
    assert [each.cuts for each in rig.actuator.plan.preferences] == [(QUESTIONS,)]
    await rig.seconds(2, coverage=0.5)
    assert [each.cuts for each in rig.actuator.plan.preferences] == [(EDITS, QUESTIONS)]
    assert rig.log == ["plan", "plan"]
    assert rig.moves() == []


async def test_cut_that_is_not_the_levers_is_told_and_changes_nothing() -> None:
    """The plan stays as it is."""
    rig = Watched()
    await rig.adopt(EDITS_COVERAGE, cuts=(QUESTIONS,))
    await rig.seconds(2, coverage=0.0)
    assert len(rig.told) == 1
    assert rig.log == []


async def test_lever_that_returns_leaves_out_the_cut_that_a_trigger_took_out() -> None:
    """What one trigger took out does not come back because another lets go, even if no cut is left."""
    for cuts in ((EDITS, QUESTIONS), (EDITS,)):
        await check_return_without_edits(cuts)


async def check_return_without_edits(cuts: tuple[Cut, ...]) -> None:
    rig = Watched()
    await rig.adopt(BATCH, EDITS_COVERAGE, cuts=cuts)
    await rig.seconds(2, batch=LOW, coverage=0.0)
    await rig.seconds(2, batch=HIGH, coverage=0.0)
    assert rig.moves() == [RolloutState.DISABLED]
    await rig.seconds(2, batch=LOW, coverage=0.0)
    assert rig.moves() == [RolloutState.DISABLED, RolloutState.ADOPTED]
    left = [(QUESTIONS,)] if QUESTIONS in cuts else []
    assert [each.cuts for each in rig.actuator.plan.preferences] == left
    await rig.seconds(2, batch=LOW, coverage=0.5)
    assert [each.cuts for each in rig.actuator.plan.preferences] == [cuts]


async def test_restart_that_fails_is_told_and_the_lever_is_off_by_routing() -> None:
    """The loop lives, and the state that is recorded is the one in force."""
    rig = Watched()
    await rig.adopt(BATCH)
    rig.fleet.failures_left = RESTART_ATTEMPTS
    await rig.seconds(2, batch=HIGH)
    assert rig.moves() == [RolloutState.DISABLED, RolloutState.DISABLED]
    last = rig.events("rollout_moved")[-1]
    assert isinstance(last, RolloutMoved)
    assert last.reason.startswith("the replicas did not follow: r1 did not drain")
    assert rig.actuator.plan == BASELINE_PLAN
    await rig.seconds(2, batch=LOW)
    assert rig.moves()[-1] is RolloutState.ADOPTED
    assert name_of(rig.fleet.revision_of("r1")) == "speculation"


async def test_return_whose_restart_fails_is_not_said_to_be_adopted() -> None:
    """No traffic prefers the replica, so the last word is that it is off; its return is tried again."""
    rig = Watched()
    await rig.adopt(BATCH)
    plan = rig.actuator.plan
    await rig.seconds(2, batch=HIGH)
    rig.fleet.failures_left = RESTART_ATTEMPTS
    await rig.seconds(2, batch=LOW)
    assert rig.actuator.plan == BASELINE_PLAN
    assert rig.moves()[-1] is RolloutState.DISABLED
    await rig.seconds(2, batch=LOW)
    assert rig.moves()[-1] is RolloutState.ADOPTED
    assert rig.actuator.plan == plan


async def test_trigger_that_fires_as_another_lets_go_keeps_the_lever_off() -> None:
    """In one tick: no restart is begun, since neither the first nor the last of them changes anything."""
    rig = Watched()
    await rig.adopt(COVERAGE, BATCH)
    await rig.seconds(2, batch=LOW, coverage=0.0)
    rig.log.clear()
    await rig.seconds(2, batch=HIGH, coverage=0.5)
    assert [event.fired for event in rig.told] == [True, False, True]
    assert rig.moves() == [RolloutState.DISABLED]
    assert (rig.log, rig.actuator.plan) == ([], BASELINE_PLAN)
    await rig.seconds(2, batch=LOW, coverage=0.5)
    assert rig.moves() == [RolloutState.DISABLED, RolloutState.ADOPTED]


async def test_triggers_rest_while_their_lever_is_on_its_way() -> None:
    """What is measured during a restart is not the lever's doing; the tick does not wait for it."""
    rig = Watched()
    await rig.adopt(BATCH)
    gate = asyncio.Event()
    restart = rig.fleet.restart_into

    async def slow(*args: object, **kwargs: object) -> None:
        await gate.wait()
        await restart(*args, **kwargs)  # type: ignore[arg-type]

    rig.fleet.restart_into = slow  # type: ignore[method-assign, assignment]
    await rig.second(batch=HIGH)
    for batch in (HIGH, LOW, LOW, LOW):
        rig.clock.pass_s(WINDOW_S + 1.0)
        rig.shell.saw(FleetView(at_s=rig.clock.wall_s(), replicas=(replica("r1", running=batch),)))
        await rig.shell.tick()
        await asyncio.sleep(0)
    assert rig.moves() == [RolloutState.DISABLED]
    assert rig.actuator.plan == BASELINE_PLAN
    gate.set()
    await rig.shell.settle()
    await rig.seconds(2, batch=LOW)
    assert rig.moves() == [RolloutState.DISABLED, RolloutState.ADOPTED]


async def test_closing_cancels_what_is_on_its_way() -> None:
    """The fleet is about to stop: nobody waits for a restart any more."""
    rig = Watched()
    await rig.adopt(BATCH)
    never = asyncio.Event()

    async def stuck(*_: object, **__: object) -> None:
        await never.wait()

    rig.fleet.restart_into = stuck  # type: ignore[method-assign, assignment]
    await rig.second(batch=HIGH)
    rig.clock.pass_s(WINDOW_S + 1.0)
    rig.shell.saw(FleetView(at_s=rig.clock.wall_s(), replicas=(replica("r1", running=HIGH),)))
    await rig.shell.tick()
    await asyncio.wait_for(rig.shell.close(), 1.0)
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_baseline_of_a_lever_is_what_was_served_without_it() -> None:
    """Requests of the candidate and those that were drafted for do not count."""
    rig = Watched()
    plain = [served(None, Arm.BASELINE, tpot=20.0, number=n) for n in range(6)]
    theirs = [served(None, Arm.CANDIDATE, tpot=1.0, number=n) for n in range(60)]
    drafted = [served(None, Arm.BASELINE, tpot=1.0, number=n, drafted=9) for n in range(60)]
    rig.records += [*plain, *theirs, *drafted]
    await rig.adopt(BATCH)
    baseline = rig.shell.adopted[rig.lever.name].baseline_tpot_ms
    assert baseline == {"2-3": pytest.approx(20.0)}


async def test_expired_lever_goes_off_and_is_watched_no_more() -> None:
    """At its expiry, by routing first; it must prove itself again."""
    rig = Watched()
    await rig.adopt(BATCH)
    rig.clock.pass_s(rig.lever.expires_at_s - rig.clock.wall_s() - 1.0)
    await rig.shell.tick()
    await rig.shell.settle()
    assert rig.moves() == []
    rig.clock.pass_s(1.0)
    await rig.shell.tick()
    await rig.shell.settle()
    assert rig.moves() == [RolloutState.EXPIRED]
    assert rig.actuator.plan == BASELINE_PLAN
    assert rig.log == ["plan", "r1 runs the baseline, KV kept: True"]
    assert rig.shell.adopted == {}


async def test_lever_that_a_person_switched_off_stays_off_whatever_its_triggers_see() -> None:
    """No calm lets it come back; the person does, and then it is watched anew."""
    rig = Watched()
    await rig.adopt(BATCH)
    await rig.shell.switch(rig.lever.name, on=False, reason="a person asked: night")
    await rig.seconds(4, batch=LOW)
    assert rig.moves() == [RolloutState.DISABLED]
    await rig.shell.switch(rig.lever.name, on=True, reason="a person asked: day")
    assert rig.moves() == [RolloutState.DISABLED, RolloutState.ADOPTED]
    await rig.seconds(2, batch=HIGH)
    await rig.shell.settle()
    assert rig.moves()[2:] == [RolloutState.DISABLED]


async def test_person_can_bring_back_what_a_trigger_holds_off() -> None:
    """Whatever the trigger still sees; it fires again after its ticks."""
    rig = Watched()
    await rig.adopt(BATCH)
    await rig.seconds(2, batch=HIGH)
    await rig.shell.settle()
    await rig.shell.switch(rig.lever.name, on=True, reason="a person asked")
    assert rig.moves() == [RolloutState.DISABLED, RolloutState.ADOPTED]
    assert not rig.shell.adopted[rig.lever.name].is_off


@pytest.mark.parametrize("was_off", [False, True], ids=["on", "off"])
async def test_lever_that_a_person_switches_on_has_every_cut(was_off: bool) -> None:
    """Also one that a trigger took out, now and after a restart; the trigger takes it out anew."""
    rig = Watched()
    await rig.adopt(EDITS_COVERAGE, cuts=(EDITS, QUESTIONS))
    await rig.seconds(2, coverage=0.0)
    if was_off:
        await rig.shell.switch(rig.lever.name, on=False, reason="a person asked: night")
    await rig.shell.switch(rig.lever.name, on=True, reason="a person asked: day")
    assert [each.cuts for each in rig.actuator.plan.preferences] == [(EDITS, QUESTIONS)]
    assert [each.without for each in rig.actuator.plan.preferences] == [()]
    status = rebuild(rig.envelopes).levers[rig.lever.name]
    assert [each.fired for each in status.triggers.values()] == [False]
    await rig.seconds(2, coverage=0.0)
    assert [each.cuts for each in rig.actuator.plan.preferences] == [(QUESTIONS,)]


async def test_cut_that_a_trigger_holds_is_kept_when_a_person_takes_another_out() -> None:
    """What is recorded as the lever's is what no person took: the trigger gives its own back."""
    rig = Watched()
    await rig.adopt(EDITS_COVERAGE, cuts=(EDITS, QUESTIONS))
    await rig.seconds(2, coverage=0.0)
    rig.shell.take_off_cut(rig.lever.name, QUESTIONS, "a person asked")
    (kept,) = rig.events("cuts_kept")
    assert isinstance(kept, CutsKept)
    assert kept.kept == (str(EDITS),)
    assert rig.actuator.plan.preferences == ()


async def test_person_takes_one_cut_out() -> None:
    """The others stay on; a cut that the lever is not on for is refused with those it is on for."""
    rig = Watched()
    await rig.adopt(BATCH, cuts=(EDITS, QUESTIONS))
    rig.shell.take_off_cut(rig.lever.name, EDITS, "a person asked")
    assert [each.cuts for each in rig.actuator.plan.preferences] == [(QUESTIONS,)]
    with pytest.raises(ControlError, match="is on for label=question"):
        rig.shell.take_off_cut(rig.lever.name, EDITS, "a person asked")


async def test_cut_that_a_person_took_out_does_not_come_back_with_its_trigger() -> None:
    """The trigger fires and lets go of the same cut; only the person's word counts."""
    rig = Watched()
    await rig.adopt(EDITS_COVERAGE, cuts=(EDITS, QUESTIONS))
    await rig.seconds(2, coverage=0.0)
    rig.shell.take_off_cut(rig.lever.name, EDITS, "a person asked")
    await rig.seconds(4, coverage=1.0)
    assert [each.fired for each in rig.told] == [True, False]
    assert [each.cuts for each in rig.actuator.plan.preferences] == [(QUESTIONS,)]


async def test_cut_taken_out_of_a_lever_that_is_off_leaves_the_plan_alone() -> None:
    """Nothing of it is served; once it is on again the cut is not among what it gets."""
    rig = Watched()
    await rig.adopt(BATCH, cuts=(EDITS, QUESTIONS))
    await rig.shell.switch(rig.lever.name, on=False, reason="a person asked: night")
    rig.shell.take_off_cut(rig.lever.name, EDITS, "a person asked")
    assert rig.actuator.plan == BASELINE_PLAN
    await rig.shell.switch(rig.lever.name, on=True, reason="a person asked: day")
    (preference,) = rig.actuator.plan.preferences
    assert EDITS in preference.without


async def test_person_who_holds_off_what_a_trigger_took_off_is_recorded() -> None:
    """The lever does not move, but from then on its trigger lets it come back no more, after a restart either."""
    rig = Watched()
    await rig.adopt(BATCH)
    await rig.seconds(2, batch=HIGH)
    for _ in range(2):
        await rig.shell.switch(rig.lever.name, on=False, reason="a person asked: night")
    assert rig.moves() == [RolloutState.DISABLED, RolloutState.DISABLED]
    (*_, last) = rig.events("rollout_moved")
    assert isinstance(last, RolloutMoved)
    assert (last.before, last.reason) == (RolloutState.DISABLED, "a person asked: night")
    await rig.seconds(4, batch=LOW)
    assert rig.moves() == [RolloutState.DISABLED, RolloutState.DISABLED]


async def test_lever_found_disabled_is_watched_by_what_holds_it_off() -> None:
    """After a restart it comes back when its trigger lets go, and not before."""
    rig = Watched()
    record = msgspec.structs.replace(speculation_lever(), triggers=(BATCH,))
    rig.lever = record
    rig.shell.adopt(record, None, (EDITS,), "A", off_by=frozenset({BATCH.name}))
    await rig.second(batch=LOW)
    assert rig.moves() == []
    await rig.seconds(2, batch=LOW)
    await rig.shell.settle()
    assert rig.moves() == [RolloutState.ADOPTED]


@pytest.mark.parametrize(
    ("watched", "apart"), [((), False), (("sampled",), False), (("0", "sampled"), True)]
)
def test_temperatures_are_apart_only_where_each_has_a_trigger(
    watched: tuple[str, ...], apart: bool
) -> None:
    """One that has none of its own is guarded by the trigger on everything, which must then see everything."""
    of_temperatures = tuple(
        msgspec.structs.replace(
            COVERAGE,
            name=f"coverage {value}",
            action=TriggerAction.DISABLE_CUT,
            cut=Cut(dimension=Dimension.TEMPERATURE, value=value),
        )
        for value in watched
    )
    record = msgspec.structs.replace(
        speculation_lever(), triggers=(COVERAGE, EDITS_COVERAGE, *of_temperatures)
    )
    assert by_temperature(record, COVERAGE) is apart
