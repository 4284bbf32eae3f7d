"""An adopted lever is verified again when one that it shares with changes, and its verdict is recorded."""

import msgspec
import pytest
from control_kit import EDITS, QUESTIONS, Deciding, routing_lever, speculation_lever, traffic

from trimtab.core.cuts import Cut
from trimtab.core.events import RolloutMoved, VerificationDue
from trimtab.core.lever import LeverRecord
from trimtab.core.state import rebuild
from trimtab.core.traffic import TrafficPlan
from trimtab.core.types import Mode, RolloutState, Technique
from trimtab.levers.catalog import routing_policy_of
from trimtab.runtime.proof import ControlError
from trimtab.runtime.verifier import Verifier

ROUTING = msgspec.structs.replace(routing_lever(), policy="prefix_affine")
PRECISION = msgspec.structs.replace(
    routing_lever(), name="lower_precision", technique=Technique.QUANTIZATION, policy="least_loaded"
)
SPECULATION = speculation_lever((EDITS,))
GAIN, HARM = 0.5, 3.0


class Wired(Deciding):
    """Controller, triggers and verifier as a serving system wires them."""

    def __init__(self, mode: Mode = Mode.ACT) -> None:
        super().__init__()
        self.verifier = Verifier(
            controller=self.controller,
            triggers=lambda: self.triggers,
            sink=self.sink,
            baseline_policy="round_robin",
            mode=mode,
        )

    def watch(
        self, record: LeverRecord, policy: str | None, cuts: tuple[Cut, ...], cause: str
    ) -> None:
        super().watch(record, policy, cuts, cause)
        self.verifier.changed(record, RolloutState.ADOPTED, cause)

    def changed(self, record: LeverRecord, to: RolloutState, cause: str) -> None:
        self.verifier.changed(record, to, cause)

    async def adopt(self, record: LeverRecord) -> None:
        """Prove and adopt a lever that gains."""
        proposed = self.controller.propose(record, cause_id=None)
        await self.controller.start(record, routing_policy_of(record), cause_id=proposed)
        assert await self.ended(GAIN) is RolloutState.ADOPTED

    async def ended(self, ratio: float) -> RolloutState:
        """Serve until the rollout ends; return how, and let go of it."""
        for _ in range(400):
            if self.controller.has_ended:
                break
            for one in traffic(self.actuator.plan, self.clock, ratio=ratio):
                self.controller.on_record(one)
            self.clock.pass_s(1.0)
            if self.clock.mono_s() % 3 == 0.0:
                await self.controller.tick()
        proof = self.controller.finish()
        assert proof is not None
        return proof.rollout.state

    def due(self) -> list[VerificationDue]:
        return [e for e in self.events("verification_due") if isinstance(e, VerificationDue)]

    def moves(self, name: str) -> list[RolloutState]:
        moved = list(self.events("rollout_moved"))
        return [
            event.after
            for event in moved
            if isinstance(event, RolloutMoved) and event.lever == name
        ]


async def test_adopting_a_lever_marks_those_it_shares_with_and_their_verdict_is_recorded() -> None:
    """Precision after speculation: speculation is due in its cuts, is proven again by itself, and stays."""
    rig = Wired()
    await rig.adopt(SPECULATION)
    assert rig.due() == []
    await rig.adopt(PRECISION)
    (due,) = rig.due()
    assert (due.lever, due.changed, due.moved_to, due.cuts) == (
        SPECULATION.name,
        PRECISION.name,
        RolloutState.ADOPTED,
        (str(EDITS),),
    )
    assert rebuild(rig.sink.read()).levers[SPECULATION.name].verification == due
    rig.verifier.tick()
    proof = rig.controller.proof
    assert proof is not None
    assert (proof.verifies, proof.rollout.share) == (True, 0.50)
    assert rig.actuator.plan.preferences == ()
    assert await rig.ended(GAIN) is RolloutState.ADOPTED
    assert [each.lever for each in rig.actuator.plan.preferences] == [SPECULATION.name]
    assert rebuild(rig.sink.read()).levers[SPECULATION.name].verification is None
    assert rig.sink.verify().ok


async def test_passing_again_marks_nobody() -> None:
    """A lever that is on as it was did not change: two levers do not verify each other for ever."""
    rig = Wired()
    await rig.adopt(ROUTING)
    await rig.adopt(PRECISION)
    rig.verifier.tick()
    assert await rig.ended(GAIN) is RolloutState.ADOPTED
    assert len(rig.due()) == 1
    rig.verifier.tick()
    assert rig.controller.proof is None


async def test_lever_that_no_longer_pays_goes_back_and_marks_the_other() -> None:
    """Beside the new one it does harm: it is rolled back by its gates."""
    rig = Wired()
    await rig.adopt(SPECULATION)
    await rig.adopt(PRECISION)
    rig.verifier.tick()
    assert await rig.ended(HARM) is RolloutState.ROLLED_BACK
    assert rig.moves(SPECULATION.name)[-2:] == [RolloutState.RAMPING, RolloutState.ROLLED_BACK]
    assert rig.actuator.plan.preferences == ()


@pytest.mark.parametrize("mode", [Mode.OBSERVE, Mode.ADVISE])
async def test_without_leave_to_act_a_person_begins_it(mode: Mode) -> None:
    """It stays marked; the person starts it, and a lever that is off is refused."""
    rig = Wired(mode)
    await rig.adopt(SPECULATION)
    await rig.adopt(PRECISION)
    rig.verifier.tick()
    assert rig.controller.proof is None
    rig.verifier.begin(SPECULATION.name)
    assert rig.controller.proof is not None
    with pytest.raises(ControlError, match="is not on"):
        rig.verifier.begin("nothing")


async def test_frozen_fleet_verifies_nothing_by_itself() -> None:
    """Verifying moves traffic; what is on stays on until somebody unfreezes."""
    rig = Wired()
    await rig.adopt(SPECULATION)
    await rig.adopt(PRECISION)
    rig.controller.freeze(True, "an incident")
    rig.verifier.tick()
    assert rig.controller.proof is None
    assert rig.actuator.plan != TrafficPlan(policy="round_robin")


async def test_switching_one_off_marks_the_other() -> None:
    """What was proven beside it was proven beside something that is gone."""
    rig = Wired()
    await rig.adopt(SPECULATION)
    await rig.adopt(PRECISION)
    rig.verifier.tick()
    await rig.ended(GAIN)
    await rig.triggers.switch(PRECISION.name, on=False, reason="a person asked")
    assert [(each.lever, each.moved_to) for each in rig.due()[1:]] == [
        (SPECULATION.name, RolloutState.DISABLED)
    ]


async def test_lever_that_is_on_its_way_is_verified_once_it_has_arrived() -> None:
    """Its replicas restart: beginning now would be refused, and a refused tick must not end the control loop."""
    rig = Wired()
    await rig.adopt(SPECULATION)
    await rig.adopt(PRECISION)
    lever = rig.triggers.adopted[SPECULATION.name]
    lever.is_moving = True
    rig.verifier.tick()
    assert rig.controller.proof is None
    lever.is_moving = False
    rig.verifier.tick()
    assert rig.controller.proof is not None


async def test_cut_that_was_taken_off_stays_off_while_its_lever_is_verified_again() -> None:
    """Neither the slice nor the lever that passed gets it back."""
    rig = Wired()
    both = speculation_lever((EDITS, QUESTIONS))
    await rig.adopt(both)
    await rig.adopt(PRECISION)
    rig.triggers.take_off_cut(both.name, QUESTIONS, "a person asked")
    rig.verifier.tick()
    candidate = rig.actuator.plan.candidate
    assert candidate is not None
    assert QUESTIONS in candidate.without
    assert await rig.ended(GAIN) is RolloutState.ADOPTED
    (preference,) = rig.actuator.plan.preferences
    assert QUESTIONS in preference.without
    assert rig.triggers.adopted[both.name].without == (QUESTIONS,)
