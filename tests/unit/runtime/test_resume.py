"""A start after a crash: every lever is where it was, and what cannot be goes back with its reason."""

import msgspec
import pytest
from control_kit import (
    EDITS,
    QUESTIONS,
    SPECULATING,
    candidate,
    routing_lever,
    speculation_lever,
)
from events_kit import REVISION

from trimtab.core.events import (
    AnyEvent,
    CutsKept,
    Frozen,
    LeverProposed,
    QualityScored,
    ReplicaChanged,
    RolloutMoved,
    RunStarted,
    TrafficPlanned,
    TriggerMoved,
    VerificationDue,
)
from trimtab.core.lever import LeverRecord, TriggerAction
from trimtab.core.quality_scores import CutScores, Scores
from trimtab.core.revision import Model
from trimtab.core.state import EMPTY, State, rebuild
from trimtab.core.traffic import Preference, Reserve, TrafficPlan
from trimtab.core.types import ReplicaState, RolloutState, Technique, Verdict
from trimtab.runtime.ledger_memory import MemoryLedger
from trimtab.runtime.resume import (
    STOPPED_WITH_FLEET,
    Narrowed,
    Off,
    Resumed,
    remembered,
    resume,
)
from trimtab.runtime.rollout_metrics import RolloutCollector
from trimtab.runtime.trigger_watch import PERSON

REPLICAS = ("r0", "r1")
PLAIN = dict.fromkeys(REPLICAS, REVISION)
ROUTING, SPECULATION = routing_lever(), speculation_lever()
WANTED = Preference(lever=SPECULATION.name, cuts=(EDITS,), replicas=("r1",))
ENDED = (RolloutState.ROLLED_BACK, RolloutState.DISABLED, RolloutState.EXPIRED)
PROVING = (
    RolloutState.CANARY,
    RolloutState.RAMPING,
    RolloutState.PROVING,
    RolloutState.PAUSED,
)


class Clock:
    """Time does not matter here."""

    def wall_s(self) -> float:
        """Always the same."""
        return 1_800_000_000.0

    mono_s = wall_s


def after(*events: AnyEvent) -> State:
    """The state that a ledger with these events gives."""
    ledger = MemoryLedger(clock=Clock(), run=1)
    for event in (RunStarted(run_id="1", command="up", version="0", settings={}), *events):
        ledger.append(event, cause_id=None, durable=True)
    return rebuild(ledger.read())


def at(record: LeverRecord, state: RolloutState) -> tuple[AnyEvent, ...]:
    """A lever that was proposed and got as far as a state."""
    moved = RolloutMoved(lever=record.name, before=None, after=state, share=0.1, reason="test")
    return LeverProposed(record=record), moved


def resumed(state: State, *, replicas: tuple[str, ...] = REPLICAS) -> Resumed:
    return resume(state, replicas=replicas, baseline=REVISION, policy="round_robin")


def test_empty_ledger_gives_a_plain_start() -> None:
    """The configured policy, the baseline everywhere, nothing to record."""
    expected = Resumed(
        plan=TrafficPlan(policy="round_robin"), revisions=PLAIN, moves=(), adopted=()
    )
    assert resumed(EMPTY) == expected


@pytest.mark.parametrize("state", PROVING)
def test_lever_that_was_being_proven_goes_on_where_it_was(state: RolloutState) -> None:
    """Its state and share stay, its replica starts in its revision, and nothing of the old slice's clock is left."""
    plan = TrafficPlan(policy="round_robin", candidate=candidate(lever=SPECULATION.name))
    found = resumed(after(*at(SPECULATION, state), TrafficPlanned(plan=plan)))
    assert found.moves == ()
    assert found.proving is not None
    assert (found.proving.record, found.proving.state, found.proving.share) == (
        SPECULATION,
        state,
        0.1,
    )
    theirs = REVISION if state is RolloutState.PAUSED else SPECULATING
    assert found.revisions == {"r0": REVISION, "r1": theirs}
    assert found.plan == TrafficPlan(policy="round_robin")


def test_proposal_that_was_not_started_stays_a_proposal() -> None:
    """Nothing was exposed, so nothing is moved and nothing is exposed now."""
    found = resumed(after(*at(SPECULATION, RolloutState.PROPOSED)))
    assert (found.moves, found.proving, found.revisions) == ((), None, PLAIN)


def test_lever_that_cannot_be_proven_any_more_goes_back_with_its_reason() -> None:
    """Another model, or no replica left beside the baseline's."""
    other = msgspec.structs.replace(REVISION.model, sha256="cd" * 32)
    foreign = msgspec.structs.replace(SPECULATION, revision=SPECULATING.replace(model=other))
    told = []
    for record, replicas in ((foreign, REPLICAS), (SPECULATION, ("r0",))):
        found = resumed(after(*at(record, RolloutState.RAMPING)), replicas=replicas)
        (move,) = found.moves
        assert (found.proving, move.before, move.after) == (
            None,
            RolloutState.RAMPING,
            RolloutState.ROLLED_BACK,
        )
        told.append(move.reason)
    assert "another model" in told[0]
    assert "only one now" in told[1]


def test_two_levers_being_proven_leave_one() -> None:
    """A ledger should not hold two; if it does the second goes back rather than meet the first's traffic."""
    found = resumed(
        after(*at(ROUTING, RolloutState.CANARY), *at(SPECULATION, RolloutState.PROVING))
    )
    assert found.proving is not None
    assert found.proving.record == ROUTING
    assert [(move.lever, move.after) for move in found.moves] == [
        (SPECULATION.name, RolloutState.ROLLED_BACK)
    ]


def test_disabled_lever_stays_off_and_is_watched_by_what_holds_it_off() -> None:
    """By its trigger if one fired, else by a person, with the cuts it was adopted for."""
    (trigger,) = SPECULATION.triggers
    kept = CutsKept(lever=SPECULATION.name, kept=(str(EDITS),), refused={})
    fired = TriggerMoved(
        lever=SPECULATION.name,
        trigger=trigger,
        fired=True,
        value=9.0,
        samples=9,
        action="disable: test",
    )
    by_person = resumed(after(*at(SPECULATION, RolloutState.DISABLED), kept))
    by_trigger = resumed(after(*at(SPECULATION, RolloutState.DISABLED), kept, fired))
    assert by_person.disabled == (Off(record=SPECULATION, by=frozenset({PERSON}), cuts=(EDITS,)),)
    assert [each.by for each in by_trigger.disabled] == [frozenset({trigger.name})]
    assert (by_person.plan, by_person.revisions) == (TrafficPlan(policy="round_robin"), PLAIN)
    moved, cut_only = (
        RolloutMoved(
            lever=SPECULATION.name,
            before=RolloutState.ADOPTED,
            after=RolloutState.DISABLED,
            share=0.0,
            reason="a person asked: night",
        ),
        msgspec.structs.replace(
            fired, trigger=msgspec.structs.replace(trigger, action=TriggerAction.DISABLE_CUT)
        ),
    )
    both = resumed(after(*at(SPECULATION, RolloutState.ADOPTED), kept, moved, fired))
    assert [each.by for each in both.disabled] == [frozenset({trigger.name, PERSON})]
    of_a_cut = resumed(after(*at(SPECULATION, RolloutState.DISABLED), kept, cut_only))
    assert [each.by for each in of_a_cut.disabled] == [frozenset({PERSON})]


def test_what_triggers_hold_back_in_part_is_found_again() -> None:
    """The cut that a trigger took, with the cuts the lever was adopted for: not what the narrowed plan has left."""
    (trigger,) = SPECULATION.triggers
    fired = TriggerMoved(
        lever=SPECULATION.name,
        trigger=msgspec.structs.replace(trigger, action=TriggerAction.DISABLE_CUT, cut=EDITS),
        fired=True,
        value=9.0,
        samples=9,
        action="disable_cut: test",
    )
    kept = CutsKept(lever=SPECULATION.name, kept=(str(EDITS), str(QUESTIONS)), refused={})
    left = msgspec.structs.replace(WANTED, cuts=(QUESTIONS,))
    plan = TrafficPlanned(plan=TrafficPlan(policy="round_robin", preferences=(left,)))
    events = (*at(SPECULATION, RolloutState.ADOPTED), kept, plan, fired)
    found = resumed(after(*events))
    assert (found.adopted, found.plan.preferences) == ((SPECULATION,), (left,))
    assert found.narrowed == {
        SPECULATION.name: Narrowed(by=frozenset({trigger.name}), cuts=(EDITS, QUESTIONS))
    }
    gone = msgspec.structs.replace(fired, fired=False)
    assert resumed(after(*events, gone)).narrowed == {}


def fired_for(action: TriggerAction) -> TriggerMoved:
    """The trigger of the speculation lever fired, with this action on edits."""
    (trigger,) = SPECULATION.triggers
    return TriggerMoved(
        lever=SPECULATION.name,
        trigger=msgspec.structs.replace(trigger, action=action, cut=EDITS),
        fired=True,
        value=9.0,
        samples=9,
        action=f"{action.value}: test",
    )


def move(before: RolloutState, to: RolloutState, verdict: Verdict | None = None) -> RolloutMoved:
    return RolloutMoved(
        lever=SPECULATION.name, before=before, after=to, share=1.0, verdict=verdict, reason="test"
    )


@pytest.mark.parametrize(
    ("moves", "held"),
    [
        ((), True),
        ((move(RolloutState.ADOPTED, RolloutState.ADOPTED),), False),
        ((move(RolloutState.ADOPTED, RolloutState.DISABLED),
          move(RolloutState.DISABLED, RolloutState.ADOPTED)), False),
        ((move(RolloutState.ADOPTED, RolloutState.DISABLED, Verdict.FAIL),
          move(RolloutState.DISABLED, RolloutState.ADOPTED, Verdict.PASS)), True),
        ((move(RolloutState.ADOPTED, RolloutState.RAMPING),
          move(RolloutState.RAMPING, RolloutState.ADOPTED, Verdict.PASS)), False),
    ],
    ids=["fired", "switched on", "switched off and on", "off and on by another trigger", "verified"],
)  # fmt: skip
def test_triggers_hold_nothing_once_a_person_or_a_proof_freed_the_lever(
    moves: tuple[RolloutMoved, ...], held: bool
) -> None:
    """A restart takes nothing from the lever that nothing took from it when the process ended."""
    plan = TrafficPlanned(plan=TrafficPlan(policy="round_robin", preferences=(WANTED,)))
    fired = fired_for(TriggerAction.LOWER_AFFINITY)
    found = resumed(after(*at(SPECULATION, RolloutState.ADOPTED), fired, *moves, plan))
    assert [set(each.by) for each in found.narrowed.values()] == [{fired.trigger.name}] * held


def test_trigger_of_the_whole_lever_takes_no_part_of_one_that_is_on() -> None:
    """Where the ledger says that the lever is on, a trigger that holds all of it off holds nothing."""
    plan = TrafficPlanned(plan=TrafficPlan(policy="round_robin", preferences=(WANTED,)))
    fired = fired_for(TriggerAction.DISABLE)
    assert resumed(after(*at(SPECULATION, RolloutState.ADOPTED), fired, plan)).narrowed == {}


@pytest.mark.parametrize("action", [TriggerAction.DISABLE_CUT, TriggerAction.LOWER_AFFINITY])
def test_part_that_a_trigger_holds_of_a_lever_that_is_off_is_found_again(
    action: TriggerAction,
) -> None:
    """So that it stays held when the lever comes back."""
    fired = fired_for(action)
    (off,) = resumed(after(*at(SPECULATION, RolloutState.DISABLED), fired)).disabled
    assert (off.by, off.narrowed_by) == (frozenset({PERSON}), frozenset({fired.trigger.name}))


def test_lever_that_lost_every_cut_is_not_on_for_everything_after_a_restart() -> None:
    """No cut left is not all traffic: it was adopted for what it lost, and never gets that."""
    lost = CutsKept(lever=SPECULATION.name, kept=(), refused={str(EDITS): "a person asked"})
    whole = CutsKept(lever=SPECULATION.name, kept=("all",), refused={str(EDITS): "a person asked"})
    (none_left,) = resumed(after(*at(SPECULATION, RolloutState.DISABLED), lost)).disabled
    (all_left,) = resumed(after(*at(SPECULATION, RolloutState.DISABLED), whole)).disabled
    assert (none_left.cuts, none_left.without) == ((EDITS,), (EDITS,))
    assert (all_left.cuts, all_left.without) == ((), (EDITS,))


def test_frozen_promotions_stay_frozen() -> None:
    """A restart is no permission."""
    frozen = resumed(after(Frozen(frozen=True, reason="a release")))
    thawed = resumed(
        after(Frozen(frozen=True, reason="a release"), Frozen(frozen=False, reason="it is over"))
    )
    assert (frozen.frozen_because, thawed.frozen_because) == ("a release", None)


@pytest.mark.parametrize("state", ENDED)
def test_lever_that_was_off_stays_off_and_is_not_moved_again(state: RolloutState) -> None:
    """Rolled back, disabled and expired levers are what they were."""
    found = resumed(after(*at(SPECULATION, state)))
    assert (found.plan, found.revisions) == (TrafficPlan(policy="round_robin"), PLAIN)
    assert (found.moves, found.adopted, found.proving) == ((), (), None)


def test_adopted_levers_come_back_with_plan_and_revisions() -> None:
    """The routing policy and the speculating replica are as they were."""
    plan = TrafficPlan(policy="prefix_affine", preferences=(WANTED,))
    state = after(
        *at(ROUTING, RolloutState.ADOPTED),
        *at(SPECULATION, RolloutState.ADOPTED),
        TrafficPlanned(plan=plan),
    )
    expected = Resumed(
        plan=plan,
        revisions={"r0": REVISION, "r1": SPECULATING},
        moves=(),
        adopted=(ROUTING, SPECULATION),
    )
    assert resumed(state) == expected


def test_slice_and_stage_of_a_dead_run_do_not_come_back() -> None:
    """An adopted lever stays; the one being proven beside it gets a slice of its own time once the fleet serves."""
    beside = candidate(lever=SPECULATION.name, replicas=("r1",))
    whole = TrafficPlan(policy="prefix_affine", candidate=beside, stage="rollout")
    state = after(
        *at(ROUTING, RolloutState.ADOPTED),
        *at(SPECULATION, RolloutState.RAMPING),
        TrafficPlanned(plan=whole),
    )
    found = resumed(state)
    assert found.plan == TrafficPlan(policy="prefix_affine")
    assert found.proving is not None
    assert found.proving.record == SPECULATION
    assert (found.moves, found.adopted) == ((), (ROUTING,))


def test_start_is_the_same_however_often_it_is_asked() -> None:
    """Once its moves are recorded, a second start moves nothing more."""
    events = (*at(ROUTING, RolloutState.ADOPTED), *at(SPECULATION, RolloutState.CANARY))
    plan = TrafficPlanned(plan=TrafficPlan(policy="prefix_affine"))
    first = resumed(after(*events, plan))
    second = resumed(after(*events, plan, *first.moves))
    assert second == msgspec.structs.replace(first, moves=())


def test_revision_of_another_model_is_not_started() -> None:
    """The artifact changed: the lever was proven on something else."""
    other = msgspec.structs.replace(REVISION.model, sha256="cd" * 32)
    foreign = msgspec.structs.replace(SPECULATION, revision=SPECULATING.replace(model=other))
    plan = TrafficPlan(policy="round_robin", preferences=(WANTED,))
    found = resumed(after(*at(foreign, RolloutState.ADOPTED), TrafficPlanned(plan=plan)))
    assert (found.plan, found.revisions) == (TrafficPlan(policy="round_robin"), PLAIN)


def test_lever_that_cannot_come_back_is_not_said_to_be_adopted() -> None:
    """Another model, or fewer replicas: it is taken back with its reason and not watched."""
    other = msgspec.structs.replace(REVISION.model, sha256="cd" * 32)
    foreign = msgspec.structs.replace(SPECULATION, revision=SPECULATING.replace(model=other))
    plan = TrafficPlanned(plan=TrafficPlan(policy="round_robin", preferences=(WANTED,)))
    for record, replicas in ((foreign, REPLICAS), (SPECULATION, ("r0",))):
        found = resumed(after(*at(record, RolloutState.ADOPTED), plan), replicas=replicas)
        assert found.adopted == ()
        (move,) = found.moves
        assert (move.before, move.after) == (RolloutState.ADOPTED, RolloutState.ROLLED_BACK)
        assert "cannot come back" in move.reason


def test_adoption_that_was_not_carried_out_goes_back() -> None:
    """The move was recorded, the plan that follows it was not: all traffic was still in a slice."""
    slice_ = TrafficPlan(policy="round_robin", candidate=candidate(lever=ROUTING.name))
    found = resumed(after(*at(ROUTING, RolloutState.ADOPTED), TrafficPlanned(plan=slice_)))
    assert (found.plan, found.adopted) == (TrafficPlan(policy="round_robin"), ())
    assert [move.after for move in found.moves] == [RolloutState.ROLLED_BACK]


def test_smaller_fleet_keeps_what_it_still_has() -> None:
    """A preference for replicas that are not started names only those that are."""
    both = msgspec.structs.replace(WANTED, replicas=("r1", "r2"))
    plan = TrafficPlanned(plan=TrafficPlan(policy="round_robin", preferences=(both,)))
    found = resumed(after(*at(SPECULATION, RolloutState.ADOPTED), plan))
    assert [each.replicas for each in found.plan.preferences] == [("r1",)]
    assert found.revisions == {"r0": REVISION, "r1": SPECULATING}


def run_of(replicas: int, *events: AnyEvent, command: str = "up") -> State:
    """The state after a run with a number of replicas in its configuration."""
    started = RunStarted(
        run_id="2", command=command, version="0", settings={"fleet.replicas": replicas}
    )
    return after(started, *events)


def replica(name: str, state: ReplicaState, reason: str = "") -> ReplicaChanged:
    return ReplicaChanged(replica=name, state=state, revision=REVISION, reason=reason)


def test_replica_that_was_added_while_serving_is_there_again() -> None:
    """After a clean stop, and after a crash in which nobody could say anything."""
    names = ("r0", "r1", "r2")
    stopped = [replica(name, ReplicaState.STOPPED, STOPPED_WITH_FLEET) for name in names]
    crashed = [replica(name, ReplicaState.READY) for name in names]
    assert remembered(run_of(2, *stopped), 2) == names
    assert remembered(run_of(2, *crashed), 2) == names


def test_replica_that_left_or_could_not_start_is_not() -> None:
    """The fleet has the size that it had in the end."""
    state = run_of(
        3,
        replica("r0", ReplicaState.STOPPED, STOPPED_WITH_FLEET),
        replica("r1", ReplicaState.STOPPED, "left the fleet"),
        replica("r2", ReplicaState.STOPPED, STOPPED_WITH_FLEET),
        replica("r3", ReplicaState.STOPPED, "could not start: no memory"),
    )
    assert remembered(state, 3) == ("r0", "r2")


def test_another_number_in_the_configuration_is_the_newer_word() -> None:
    """Whoever names a number wants that many."""
    state = run_of(2, *(replica(name, ReplicaState.READY) for name in ("r0", "r1", "r2")))
    assert remembered(state, 4) == ("r0", "r1", "r2", "r3")


def test_run_that_is_no_fleet_is_not_remembered() -> None:
    """A tune has replicas of its own, and an empty ledger has none."""
    ready = replica("r7", ReplicaState.READY)
    assert remembered(run_of(2, ready, command="tune"), 2) == ("r0", "r1")
    assert remembered(EMPTY, 2) == ("r0", "r1")


@pytest.mark.parametrize("state", PROVING)
def test_cut_that_left_a_slice_stays_out_after_a_restart(state: RolloutState) -> None:
    """Harm was shown in it: a new process does not expose it again."""
    lost = CutsKept(lever=ROUTING.name, kept=("all",), refused={"label=edit": "tpot is worse"})
    found = resumed(after(*at(ROUTING, state), lost))
    assert found.proving is not None
    assert found.proving.out == {EDITS: "tpot is worse"}


def test_scores_and_reserves_are_there_after_a_restart() -> None:
    """Evaluations of a lever, and what an adopted routing lever leaves to the policy before it."""
    scores = Scores(
        evaluation="items",
        revision="policy prefix_affine",
        cuts=(CutScores(n=10, baseline_passed=9, candidate_passed=9),),
    )
    mine = Reserve(lever=ROUTING.name, policy="round_robin", cuts=(EDITS,), holdback_share=0.05)
    others = Reserve(lever="gone", policy="round_robin", cuts=(EDITS,))
    plan = TrafficPlan(policy="prefix_affine", reserves=(mine, others))
    found = resumed(
        after(
            *at(ROUTING, RolloutState.ADOPTED),
            QualityScored(lever=ROUTING.name, scores=scores),
            TrafficPlanned(plan=plan),
        )
    )
    assert found.plan.reserves == (mine,)
    assert found.scores == {ROUTING.name: (scores,)}


@pytest.mark.parametrize("state", [RolloutState.RAMPING, RolloutState.ADOPTED])
@pytest.mark.parametrize("is_there", [True, False])
def test_precision_lever_comes_back_with_its_own_artifact(
    state: RolloutState, is_there: bool
) -> None:
    """The same model at another precision is another file by design; one that is gone or changed goes back."""
    smaller = msgspec.structs.replace(REVISION.model, sha256="cd" * 32, path="/models/q8.gguf")
    record = msgspec.structs.replace(
        SPECULATION,
        name="lower_precision",
        technique=Technique.QUANTIZATION,
        revision=REVISION.replace(model=smaller),
    )
    wanted = msgspec.structs.replace(WANTED, lever=record.name)
    plan = TrafficPlan(policy="round_robin", preferences=(wanted,))
    asked: list[Model] = []

    def has_artifact(model: Model) -> bool:
        asked.append(model)
        return is_there

    found = resume(
        after(*at(record, state), TrafficPlanned(plan=plan)),
        replicas=REPLICAS,
        baseline=REVISION,
        policy="round_robin",
        has_artifact=has_artifact,
    )
    assert set(asked) == {smaller}
    assert (found.moves == ()) is is_there
    theirs = record.revision if is_there else REVISION
    assert found.revisions["r1"] == theirs


def test_cut_refused_before_stays_refused_when_another_leaves() -> None:
    """Each event says what left then; a proof that keeps a cut again takes it from those refused."""
    name = SPECULATION.name
    first = CutsKept(lever=name, kept=("label=c",), refused={"label=a": "no gain"})
    second = CutsKept(lever=name, kept=("label=c",), refused={"label=b": "a person asked"})
    again = CutsKept(lever=name, kept=("label=a", "label=c"), refused={})
    adopted = at(SPECULATION, RolloutState.ADOPTED)
    refused = after(*adopted, first, second).levers[name].refused
    assert refused == {"label=a": "no gain", "label=b": "a person asked"}
    assert list(after(*adopted, first, second, again).levers[name].refused) == ["label=b"]


@pytest.mark.parametrize("to", [RolloutState.ROLLED_BACK, RolloutState.EXPIRED])
def test_lever_that_is_gone_is_not_to_be_verified(to: RolloutState) -> None:
    """Neither the ledger nor the metrics ask for it any more."""
    name = SPECULATION.name
    due = VerificationDue(
        lever=name,
        changed="another",
        moved_to=RolloutState.ADOPTED,
        budgets=(),
        phases=(),
        cuts=(),
    )
    gone = RolloutMoved(lever=name, before=RolloutState.ADOPTED, after=to, share=0.0, reason="test")
    adopted = at(SPECULATION, RolloutState.ADOPTED)
    assert after(*adopted, due).levers[name].verification == due
    assert after(*adopted, due, gone).levers[name].verification is None
    collector = RolloutCollector()
    for event in (*adopted, due, gone):
        collector.heard("", event)
    (shown,) = [each for each in collector.collect() if "verification_due" in each.name]
    assert [each.value for each in shown.samples] == [0.0]
