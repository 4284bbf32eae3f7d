"""The controller climbs on passes, takes back at once, and tells every move with its cause."""

import asyncio
import functools
import itertools
from typing import Any

import msgspec
import pytest
from control_kit import (
    BASELINE_PLAN,
    QUESTIONS,
    Rig,
    name_of,
    routing_lever,
    speculation_lever,
    traffic,
)
from rollout_kit import EXTRAS

from trimtab.core.cuts import Cut
from trimtab.core.events import (
    CutsKept,
    Effect,
    Frozen,
    GatesEvaluated,
    LeverProposed,
    RolloutMoved,
    SessionsExposed,
    TrafficPlanned,
    kind_of,
)
from trimtab.core.gate import Metric, Question
from trimtab.core.lever import LeverRecord, LeverRecordError
from trimtab.core.ports import LaunchError
from trimtab.core.record import RequestRecord
from trimtab.core.revision import Revision
from trimtab.core.traffic import TrafficPlan
from trimtab.core.types import Arm, RolloutState, Verdict
from trimtab.rollout.answer import ArmExtras
from trimtab.rollout.exposure import Met
from trimtab.runtime.actuation import RESTART_ATTEMPTS
from trimtab.runtime.controller import RECORDS_MAX, Controller
from trimtab.runtime.proof import LOOKS_UNTOLD_MAX, ControlError

ROUTING, SPECULATION = routing_lever(), speculation_lever()
GAIN, HARM = 0.5, 3.0


class Driven(Rig):
    """A controller on the rig; `failed` is what the diagnosis after an adoption says."""

    def __init__(self) -> None:
        super().__init__()
        self.failed: str | None = None
        self.adopted: list[tuple[str, str | None, tuple[Cut, ...], str]] = []
        self.moved: list[RolloutMoved] = []
        self.extras: ArmExtras = EXTRAS
        self.controller = Controller(
            actuator=self.actuator,
            sink=self.sink,
            clock=self.clock,
            extras=lambda record, replicas: self.extras,
            after_adoption=self._after_adoption,
            on_adopted=lambda *said: self.adopted.append((said[0].name, *said[1:])),
            on_moved=self.moved.append,
        )

    def _after_adoption(self, record: LeverRecord, *, cause_id: str) -> str | None:
        return self.failed

    async def start(self, record: LeverRecord = ROUTING) -> None:
        """Propose and start a lever."""
        proposed = self.controller.propose(record, cause_id=None)
        policy = "prefix_affine" if record.revision is None else None
        await self.controller.start(record, policy, cause_id=proposed)

    async def second(self, ratio: float, *, tick_every_s: int = 1) -> None:
        """One second of traffic, then a tick if it is time for one."""
        for one in traffic(self.actuator.plan, self.clock, ratio=ratio):
            self.controller.on_record(one)
        self.clock.pass_s(1.0)
        if self.clock.mono_s() % tick_every_s == 0.0:
            await self.controller.tick()

    async def until_ended(self, ratio: float, limit_s: int = 400) -> list[RolloutState]:
        """Seconds of traffic until the rollout ends; returns the states on the way, each once."""
        for _ in range(limit_s):
            if self.controller.has_ended:
                break
            await self.second(ratio, tick_every_s=3)
        return list(dict.fromkeys(event.after for event in self.moved))

    def state(self) -> RolloutState:
        assert self.controller.proof is not None
        return self.controller.proof.rollout.state


@functools.cache
def adopted_run() -> tuple[Driven, tuple[RolloutState, ...]]:
    """A routing lever that gains, from its proposal to its adoption; made once, only looked at."""

    async def made() -> tuple[Driven, tuple[RolloutState, ...]]:
        rig = Driven()
        await rig.start()
        return rig, tuple(await rig.until_ended(GAIN))

    return asyncio.run(made())


def test_lever_that_gains_climbs_every_share_and_is_adopted() -> None:
    """Canary, ramping, proving, adopted; the shares are those of the ramp and the policy gets all traffic."""
    rig, states = adopted_run()
    assert states == (
        RolloutState.CANARY,
        RolloutState.RAMPING,
        RolloutState.PROVING,
        RolloutState.ADOPTED,
    )
    assert list(dict.fromkeys(move.share for move in rig.moved)) == [*ROUTING.ramp.shares, 1.0]
    assert rig.actuator.plan == TrafficPlan(policy="prefix_affine")
    ((name, policy, cuts, cause),) = rig.adopted
    assert (name, policy, cuts) == (ROUTING.name, "prefix_affine", ())
    assert kind_of(next(e.event for e in rig.envelopes if e.id == cause)) == "cuts_kept"


def test_every_cause_of_a_rollout_was_recorded_before_it() -> None:
    """From the proposal on each event names an earlier one; the ledger's chain verifies."""
    rig, _ = adopted_run()
    seen: set[str] = set()
    for envelope in rig.envelopes:
        if not isinstance(envelope.event, LeverProposed):
            assert envelope.cause_id in seen
        seen.add(envelope.id)
    assert rig.sink.verify().ok
    kinds = {kind_of(envelope.event) for envelope in rig.envelopes}
    assert kinds == {
        "lever_proposed",
        "rollout_moved",
        "traffic_planned",
        "gates_evaluated",
        "cuts_kept",
        "effect",
    }


def test_moves_and_plans_are_durable_and_looks_are_not() -> None:
    """What a restart needs is synced; what only explains may be lost with the disk's buffer."""
    rig, _ = adopted_run()
    assert set(rig.sink.durable) == {
        "lever_proposed",
        "rollout_moved",
        "traffic_planned",
        "cuts_kept",
    }


async def test_look_that_says_nothing_new_is_not_recorded_again() -> None:
    """Ticks come each second, blocks every six; only a change of the answers is an event."""
    rig = Driven()
    await rig.start()
    for _ in range(3):
        rig.clock.pass_s(1.0)
        await rig.controller.tick()
    looks = rig.events("gates_evaluated")
    assert len(looks) == 1
    assert rig.controller.proof is not None
    assert rig.controller.proof.looks == 3


async def test_look_is_written_when_a_verdict_changes_and_else_once_a_minute() -> None:
    """A rollout of a day with requests every second is no event a second; what decided is always there."""
    rig = Driven()
    slow = msgspec.structs.replace(ROUTING.ramp, peak_cycle_s=10_000.0)
    await rig.start(msgspec.structs.replace(ROUTING, ramp=slow))
    for _ in range(300):
        await rig.second(GAIN)
    looks = [each for each in rig.events("gates_evaluated") if isinstance(each, GatesEvaluated)]
    said = [[(one.gate, one.cut, one.verdict) for one in each.results] for each in looks]
    for before, after in itertools.pairwise(range(len(looks))):
        apart = looks[after].look - looks[before].look
        assert said[before] != said[after] or apart == LOOKS_UNTOLD_MAX
    assert len(looks) < 30


def test_look_that_decides_is_written_before_it_is_carried_out() -> None:
    """The move names it as its cause, with the results that it was decided by."""
    rig, _ = adopted_run()
    by_id = {envelope.id: envelope.event for envelope in rig.envelopes}
    moves = [e for e in rig.envelopes if isinstance(e.event, RolloutMoved)]
    for move in moves[1:]:
        assert isinstance(by_id[move.cause_id or ""], GatesEvaluated)


def test_effects_are_of_required_gates_with_the_prediction_of_the_gain_only() -> None:
    """A veto's ratio has no prediction to be compared with; differences of shares are no ratios and are left out."""
    rig, _ = adopted_run()
    effects = [event for event in rig.events("effect") if isinstance(event, Effect)]
    looks = [event for event in rig.events("gates_evaluated") if isinstance(event, GatesEvaluated)]
    differences = (Metric.ERROR_RATE, Metric.OUTPUT_DIFFERENCE)
    asked = [
        r
        for r in looks[-1].results
        if r.required
        and r.value is not None
        and r.metric not in differences
        and "tail" not in r.gate
    ]
    assert len(effects) == len(asked)
    for effect, result in zip(effects, asked, strict=True):
        predicted = 0.6 if result.question is Question.GAIN else None
        assert (effect.ratio, effect.predicted_ratio) == (result.value, predicted)


async def test_harm_takes_the_lever_back_with_nothing_left_in_the_plan() -> None:
    """The tick that sees the failure takes the traffic off."""
    rig = Driven()
    await rig.start()
    assert (await rig.until_ended(HARM))[-1] is RolloutState.ROLLED_BACK
    assert rig.actuator.plan == BASELINE_PLAN
    assert rig.moved[-1].verdict is Verdict.FAIL
    assert rig.adopted == []


async def test_failure_takes_no_more_than_two_ticks() -> None:
    """Memory beyond its margin fails a gate at once; so does the slice."""
    rig = Driven()
    await rig.start()
    for _ in range(20):
        await rig.second(1.0)
    assert rig.state() is RolloutState.CANARY
    rig.extras = msgspec.structs.replace(EXTRAS, memory_bytes_candidate=2e9)
    for _ in range(2):
        rig.clock.pass_s(1.0)
        await rig.controller.tick()
    assert rig.state() is RolloutState.ROLLED_BACK
    assert rig.actuator.plan.candidate is None
    assert "memory" in rig.moved[-1].reason


async def test_revision_lever_returns_its_replica_after_a_failure() -> None:
    """First the plan, then the restart into the baseline."""
    rig = Driven()
    await rig.start(SPECULATION)
    rig.extras = msgspec.structs.replace(EXTRAS, memory_bytes_candidate=2e9)
    await rig.until_ended(1.0)
    assert name_of(rig.fleet.revision_of("r1")) == "the baseline"
    assert rig.log[-2:] == ["plan", "r1 runs the baseline, KV kept: True"]


async def test_only_one_lever_is_proven_at_a_time() -> None:
    """The second is refused until the first is let go of, and it is let go of only once ended."""
    rig = Driven()
    await rig.start()
    with pytest.raises(ControlError, match="one lever at a time"):
        await rig.start(SPECULATION)
    assert rig.controller.finish() is None
    await rig.controller.give_up("time is up")
    ended = rig.controller.finish()
    assert ended is not None
    assert ended.record == ROUTING
    await rig.start(SPECULATION)
    assert rig.state() is RolloutState.CANARY


async def test_lever_whose_replica_is_being_prepared_is_not_overtaken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Draining and restarting takes minutes: neither a start nor a verification may begin meanwhile."""
    rig = Driven()
    may_start = asyncio.Event()
    restarts = rig.fleet.restart_into

    async def drains(*told: Any, **how: Any) -> None:
        await may_start.wait()
        await restarts(*told, **how)

    monkeypatch.setattr(rig.fleet, "restart_into", drains)
    starting = asyncio.create_task(rig.start(SPECULATION))
    await asyncio.sleep(0)
    assert not rig.controller.has_ended
    with pytest.raises(ControlError, match="is being prepared: one lever at a time"):
        await rig.start(ROUTING)
    with pytest.raises(ControlError, match="is being prepared: one lever at a time"):
        rig.controller.verify(ROUTING, None, baseline_policy="round_robin", cause_id="")
    may_start.set()
    await starting
    assert rig.controller.proof is not None
    assert rig.controller.proof.record == SPECULATION


def test_incomplete_record_is_refused_and_not_recorded() -> None:
    """A lever that does not say how it is reversed is no proposal."""
    rig = Driven()
    with pytest.raises(LeverRecordError, match="reverse"):
        rig.controller.propose(msgspec.structs.replace(ROUTING, reverse=" "), cause_id=None)
    assert rig.envelopes == ()


async def test_nothing_starts_while_promotions_are_stopped() -> None:
    """Neither while frozen nor while the ledger cannot be written; no replica is touched."""
    rig = Driven()
    rig.controller.freeze(True, "maintenance")
    with pytest.raises(ControlError, match="frozen"):
        await rig.start(SPECULATION)
    rig.controller.freeze(False, "over")
    rig.sink.fail("no space")
    with pytest.raises(ControlError, match="frozen"):
        await rig.start(SPECULATION)
    assert rig.log == []
    assert rig.events("frozen") == [
        Frozen(frozen=True, reason="maintenance"),
        Frozen(frozen=False, reason="over"),
    ]


@pytest.mark.parametrize("how", ["frozen", "ledger"])
@pytest.mark.parametrize("paused", [False, True], ids=["start", "resume"])
async def test_promotions_stopped_while_replicas_restart_expose_nothing(
    how: str, paused: bool
) -> None:
    """The replicas go back, and a lever that was paused stays so."""
    rig = Driven()
    if paused:
        await rig.start(SPECULATION)
        await rig.controller.pause("a person asked")
    restart = rig.fleet.restart_into

    async def slow(replica: str, revision: Revision, **told: Any) -> None:
        await restart(replica, revision, **told)
        if revision == SPECULATION.revision:
            if how == "frozen":
                rig.controller.freeze(True, "maintenance")
            else:
                rig.sink.fail("no space")

    rig.fleet.restart_into = slow  # type: ignore[method-assign]
    with pytest.raises(ControlError, match="promotions are frozen"):
        await (rig.controller.resume("a person asked") if paused else rig.start(SPECULATION))
    assert rig.actuator.plan.candidate is None
    assert rig.fleet.revisions["r1"] != SPECULATION.revision
    assert rig.controller.has_ended is not paused
    assert not paused or rig.state() is RolloutState.PAUSED


async def test_requests_of_the_first_block_count_for_how_busy_the_slice_was() -> None:
    """Block 0 is a block like the others: its batch is what the first look is told."""
    rig = Driven()
    await rig.start()
    for one in traffic(rig.actuator.plan, rig.clock, ratio=GAIN):
        rig.controller.on_record(one)
    blocks = {one.block for one in rig.controller.records}
    assert rig.controller.proof is not None
    assert (blocks, rig.controller.proof.busiest) == ({0}, 2)


@pytest.mark.parametrize("how", ["frozen", "ledger"])
async def test_stopped_promotions_hold_the_share_but_not_the_way_back(how: str) -> None:
    """A lever that gains stays where it is; once it harms it goes."""
    rig = Driven()
    await rig.start()
    if how == "frozen":
        rig.controller.freeze(True, "maintenance")
    else:
        rig.sink.fail("no space")
    for _ in range(60):
        await rig.second(GAIN, tick_every_s=3)
    assert (rig.state(), rig.actuator.plan.candidate) != (RolloutState.ADOPTED, None)
    assert [move.share for move in rig.moved] == [0.10]
    rig.extras = msgspec.structs.replace(EXTRAS, memory_bytes_candidate=2e9)
    await rig.second(GAIN)
    assert rig.state() is RolloutState.ROLLED_BACK
    assert rig.actuator.plan == BASELINE_PLAN


async def test_promotions_go_on_once_unfrozen() -> None:
    """The evidence that came in meanwhile counts."""
    rig = Driven()
    await rig.start()
    rig.controller.freeze(True, "maintenance")
    for _ in range(40):
        await rig.second(GAIN, tick_every_s=3)
    rig.controller.freeze(False, "over")
    for _ in range(2):
        await rig.second(GAIN)
    assert rig.state() is RolloutState.RAMPING


async def test_ledger_that_recovers_is_told_of_once() -> None:
    """And promotions may go on; while it cannot be written there is nothing to write that into."""
    rig = Driven()
    rig.sink.fail("no space")
    await rig.controller.tick()
    rig.sink.recover()
    for _ in range(3):
        await rig.controller.tick()
    assert rig.events("frozen") == [Frozen(frozen=False, reason="the ledger can be written again")]


async def test_giving_up_rolls_back_with_its_reason() -> None:
    """What was measured until then is recorded; giving up twice is giving up once."""
    rig = Driven()
    await rig.start()
    for _ in range(30):
        await rig.second(1.0, tick_every_s=3)
    await rig.controller.give_up("time is up")
    await rig.controller.give_up("again")
    assert (rig.moved[-1].after, rig.moved[-1].reason) == (RolloutState.ROLLED_BACK, "time is up")
    assert rig.moved[-1].share == 0.0
    assert rig.actuator.plan == BASELINE_PLAN
    assert rig.events("effect") != []


async def test_giving_up_nothing_does_nothing() -> None:
    """A shutdown without a rollout leaves no trace."""
    rig = Driven()
    await rig.controller.give_up("shutdown")
    assert rig.envelopes == ()


async def test_adoption_whose_payer_binds_is_rolled_back() -> None:
    """Whatever it gained: it passed its gates, and the diagnosis of the whole system refuses it."""
    rig = Driven()
    rig.failed = "the paying budget binds after adoption: memory"
    await rig.start()
    states = await rig.until_ended(GAIN)
    assert states[-2:] == [RolloutState.ADOPTED, RolloutState.ROLLED_BACK]
    last = rig.moved[-1]
    assert (last.before, last.verdict, last.reason) == (
        RolloutState.ADOPTED,
        Verdict.FAIL,
        rig.failed,
    )
    assert last.share == 0.0
    assert rig.actuator.plan == BASELINE_PLAN
    assert rig.adopted == []


async def test_cuts_kept_are_those_of_the_record_where_the_gain_is_of_all_traffic() -> None:
    """A revision lever becomes a preference for the cuts that it was tried on."""
    rig = Driven()
    await rig.start(SPECULATION)
    await rig.until_ended(GAIN)
    assert rig.events("cuts_kept") == [
        CutsKept(lever=SPECULATION.name, kept=("label=edit",), refused={})
    ]
    assert [each.cuts for each in rig.actuator.plan.preferences] == [SPECULATION.cuts]


async def test_replica_that_does_not_go_back_is_told_and_the_loop_lives() -> None:
    """No traffic meets it any more; the next tick is a tick like any other."""
    rig = Driven()
    await rig.start(SPECULATION)
    rig.fleet.failures_left = RESTART_ATTEMPTS
    rig.extras = msgspec.structs.replace(EXTRAS, memory_bytes_candidate=2e9)
    await rig.until_ended(1.0)
    assert rig.state() is RolloutState.ROLLED_BACK
    assert "a replica did not go back: r1 did not drain" in rig.moved[-1].reason
    assert rig.actuator.plan == BASELINE_PLAN
    await rig.controller.tick()
    assert rig.controller.finish() is not None


@pytest.mark.parametrize("follows", [None, ROUTING])
async def test_replica_that_does_not_go_back_is_told_of_its_own_lever(
    follows: LeverRecord | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While it drained the ended rollout was let go of, and another may have begun."""
    rig = Driven()
    await rig.start(SPECULATION)

    async def drains(replica: str, *_: object, **__: object) -> None:
        assert rig.controller.finish() is not None
        monkeypatch.undo()
        if follows is not None:
            await rig.start(follows)
        raise LaunchError(f"{replica} did not drain")

    monkeypatch.setattr(rig.fleet, "restart_into", drains)
    rig.fleet.failures_left = RESTART_ATTEMPTS
    await rig.controller.give_up("time is up")
    assert "a replica did not go back" in rig.moved[-1].reason
    assert (rig.moved[-1].lever, rig.moved[-1].after) == (
        SPECULATION.name,
        RolloutState.ROLLED_BACK,
    )


async def test_rollout_that_cannot_be_judged_pauses_and_goes_back_if_nobody_resumes_it() -> None:
    """Traffic goes off at once; after ten peak cycles the next lever may be tried."""
    rig = Driven()
    await rig.start()
    rig.extras = msgspec.structs.replace(EXTRAS, memory_bytes_candidate=None)
    for _ in range(40):
        await rig.second(1.0, tick_every_s=3)
    assert rig.state() is RolloutState.PAUSED
    assert rig.actuator.plan == BASELINE_PLAN
    assert not rig.controller.has_ended
    told = len(rig.events("effect"))
    rig.clock.pass_s(10 * ROUTING.ramp.peak_cycle_s)
    await rig.controller.tick()
    assert rig.state() is RolloutState.ROLLED_BACK
    assert len(rig.events("effect")) == told
    assert rig.controller.finish() is not None


async def test_lever_whose_replica_does_not_start_is_not_being_proven() -> None:
    """The caller hears why; the next lever may be tried."""
    rig = Driven()
    rig.fleet.failures_left = RESTART_ATTEMPTS
    with pytest.raises(LaunchError):
        await rig.start(SPECULATION)
    assert rig.controller.proof is None
    assert rig.moved == []


async def test_records_are_bounded() -> None:
    """The oldest fall out."""
    rig = Driven()
    (one, *_) = traffic(BASELINE_PLAN, rig.clock, ratio=1.0)
    for number in range(RECORDS_MAX + 5):
        rig.controller.on_record(msgspec.structs.replace(one, request_id=str(number)))
    assert len(rig.controller.records) == RECORDS_MAX
    assert rig.controller.records[0].request_id == "5"


def test_plans_follow_the_moves_that_caused_them() -> None:
    """Each plan's cause is a move of the rollout, and its share that move's."""
    rig, _ = adopted_run()
    by_id = {envelope.id: envelope.event for envelope in rig.envelopes}
    plans = [e for e in rig.envelopes if isinstance(e.event, TrafficPlanned)]
    for envelope in plans[:-1]:
        cause = by_id[envelope.cause_id or ""]
        assert isinstance(cause, RolloutMoved)
        assert isinstance(envelope.event, TrafficPlanned)
        assert envelope.event.plan.candidate is not None
        assert envelope.event.plan.candidate.share == cause.share
    # One for each share, one for the adoption.
    assert len(plans) == len(ROUTING.ramp.shares) + 1


async def test_expired_record_ends_its_rollout() -> None:
    """Traffic goes to the baseline and the ledger says why."""
    rig = Driven()
    short = msgspec.structs.replace(ROUTING, expires_at_s=rig.clock.wall_s() + 5.0)
    await rig.start(short)
    for _ in range(6):
        await rig.second(GAIN)
    assert rig.state() is RolloutState.EXPIRED
    assert rig.moved[-1].reason == "the record expired"
    assert rig.actuator.plan.candidate is None


async def test_paused_lever_meets_no_traffic_until_it_is_resumed_from_the_first_share() -> None:
    """A person holds it and lets it go on; in between nothing is exposed."""
    rig = Driven()
    await rig.start(SPECULATION)
    await rig.controller.pause("a person asked")
    assert (rig.state(), rig.actuator.plan.candidate) == (RolloutState.PAUSED, None)
    await rig.second(GAIN)
    assert rig.state() is RolloutState.PAUSED
    counted = rig.controller.proof and rig.controller.proof.exposed
    await rig.controller.resume("a person asked")
    assert rig.controller.proof is not None
    assert rig.controller.proof.exposed is not counted
    plan = rig.actuator.plan.candidate
    assert plan is not None
    assert (rig.state(), plan.share, plan.replicas) == (RolloutState.CANARY, 0.10, ("r1",))
    assert rig.fleet.revisions["r1"] == SPECULATION.revision


async def test_cut_that_leaves_brings_nothing_back_from_before_the_pause() -> None:
    """Blocks count from 0 again once a lever is resumed: requests of the earlier run are none of its evidence."""
    rig = Driven()
    await rig.start()
    for _ in range(60):
        await rig.second(GAIN)
    assert rig.controller.proof is not None
    assert any(one.n_candidate for one in rig.controller.proof.results)
    await rig.controller.pause("a person asked")
    await rig.controller.resume("a person asked")
    rig.controller.leave_out(QUESTIONS, "a person asked")
    rig.clock.pass_s(60.0)
    await rig.controller.tick()
    # Outputs are compared by the gateway's own requests, which are not in the records.
    asked = [
        one for one in rig.controller.proof.results if one.metric is not Metric.OUTPUT_DIFFERENCE
    ]
    assert {(one.n_baseline, one.n_candidate) for one in asked} == {(0, 0)}


async def test_paused_lever_that_expired_is_not_resumed() -> None:
    """However little later than its expiry, and also where it expires while its replicas restart."""
    rig = Driven()
    await rig.start(msgspec.structs.replace(SPECULATION, expires_at_s=rig.clock.wall_s() + 5.0))
    await rig.controller.pause("a person asked")
    rig.clock.pass_s(5.0)
    with pytest.raises(ControlError, match="has expired: propose it anew"):
        await rig.controller.resume("a person asked")
    assert (rig.state(), rig.actuator.plan.candidate) == (RolloutState.PAUSED, None)
    await rig.controller.tick()
    assert rig.state() is RolloutState.EXPIRED


async def test_lever_that_expires_while_its_replicas_restart_is_not_exposed() -> None:
    """What a tick decided meanwhile holds: no traffic meets it, and its replica goes back."""
    rig = Driven()
    await rig.start(msgspec.structs.replace(SPECULATION, expires_at_s=rig.clock.wall_s() + 5.0))
    await rig.controller.pause("a person asked")
    restart = rig.fleet.restart_into

    async def slow(replica: str, revision: Revision, **how: Any) -> None:
        await restart(replica, revision, **how)
        if revision == SPECULATION.revision:
            rig.clock.pass_s(5.0)
            await rig.controller.tick()

    rig.fleet.restart_into = slow  # type: ignore[method-assign]
    with pytest.raises(ControlError, match="became expired while its replicas restarted"):
        await rig.controller.resume("a person asked")
    assert (rig.state(), rig.actuator.plan.candidate) == (RolloutState.EXPIRED, None)
    assert rig.fleet.revisions["r1"] != SPECULATION.revision


def told_sessions(rig: Driven) -> dict[Arm, list[str]]:
    """The sessions of all exposures in the ledger, by arm."""
    told: dict[Arm, list[str]] = {Arm.BASELINE: [], Arm.CANDIDATE: []}
    for event in rig.events("sessions_exposed"):
        assert isinstance(event, SessionsExposed)
        told[Arm.BASELINE] += event.baseline
        told[Arm.CANDIDATE] += event.candidate
    return told


def session_traffic(rig: Driven) -> list[RequestRecord]:
    """A second of requests, each of a session of its own place."""
    made = traffic(rig.actuator.plan, rig.clock, ratio=GAIN)
    return [msgspec.structs.replace(one, session=f"s{number}") for number, one in enumerate(made)]


async def test_each_session_is_told_once_an_arm_over_pauses_and_restarts() -> None:
    """However often it comes, through every share, a pause, and a process that knows of it only by the ledger."""
    rig = Driven()
    await rig.start(SPECULATION)
    for _ in range(5):
        for one in session_traffic(rig):
            rig.controller.on_record(one)
        await rig.controller.tick()
    # One of ten sessions has its place below the first share of 10%.
    assert told_sessions(rig) == {
        Arm.BASELINE: [f"s{number}" for number in range(1, 10)],
        Arm.CANDIDATE: ["s0"],
    }
    await rig.controller.pause("a person asked")
    await rig.controller.resume("a person asked")
    before = Met(each.event for each in rig.envelopes)
    rig.controller.proof = None
    rig.controller.go_on(
        SPECULATION, None, state=RolloutState.RAMPING, share=0.25, cause_id="P", met=before
    )
    for one in session_traffic(rig):
        rig.controller.on_record(one)
    await rig.controller.tick()
    # Places are 0.05, 0.15, 0.25 and so on: at 25% one more session meets the candidate.
    assert told_sessions(rig) == {
        Arm.BASELINE: [f"s{number}" for number in range(1, 10)],
        Arm.CANDIDATE: ["s0", "s1"],
    }


async def test_person_adopts_only_at_the_last_share() -> None:
    """Before it, too little has been seen."""
    rig = Driven()
    await rig.start()
    with pytest.raises(ControlError, match="only a lever at its last share"):
        await rig.controller.adopt_now("a person asked")
    while rig.state() is not RolloutState.PROVING:
        await rig.second(GAIN)
    await rig.controller.adopt_now("a person asked")
    assert rig.moved[-1].after is RolloutState.ADOPTED
    assert rig.moved[-1].verdict is None
    assert rig.actuator.plan == TrafficPlan(policy="prefix_affine")


async def test_person_adopts_no_lever_that_is_kept_off_every_cut() -> None:
    """No cut left is not all traffic: nothing moves, and the lever may be rolled back."""
    rig = Driven()
    rig.controller.go_on(
        SPECULATION,
        None,
        state=RolloutState.PROVING,
        share=0.95,
        cause_id="why",
        out=dict.fromkeys(SPECULATION.cuts, "harm is shown"),
    )
    before = rig.actuator.plan
    with pytest.raises(ControlError, match="kept off every cut"):
        await rig.controller.adopt_now("a person asked")
    assert (rig.state(), rig.actuator.plan) == (RolloutState.PROVING, before)


@pytest.mark.parametrize(
    "state", [RolloutState.CANARY, RolloutState.RAMPING, RolloutState.PROVING, RolloutState.PAUSED]
)
async def test_proof_found_after_a_restart_is_followed_where_it_was(state: RolloutState) -> None:
    """At its share with a slice of its own time; a paused one without."""
    rig = Driven()
    share = {RolloutState.PROVING: 0.95, RolloutState.CANARY: 0.10}.get(state, 0.25)
    rig.controller.go_on(ROUTING, "prefix_affine", state=state, share=share, cause_id="P")
    plan = rig.actuator.plan.candidate
    exposed = None if plan is None else (plan.share, plan.started_at_s)
    assert rig.state() is state
    assert exposed == (None if state is RolloutState.PAUSED else (share, rig.clock.mono_s()))
    assert [(move.before, move.after) for move in rig.moved] == [(state, state)]


async def test_pausing_what_is_not_running_is_refused() -> None:
    """With what is the case."""
    rig = Driven()
    with pytest.raises(ControlError, match="no lever is being proven"):
        await rig.controller.pause("a person asked")
    await rig.start()
    with pytest.raises(ControlError, match="canary, not paused"):
        await rig.controller.resume("a person asked")
