"""The fold: what each event makes of the state."""

import msgspec
import pytest
from events_kit import (
    EDITS,
    LEVER,
    REVISION,
    budgets,
    effect,
    envelopes,
    every_event,
    gates_evaluated,
    lever_record,
    moved,
    plan,
    request,
    story,
    trigger_moved,
)

from trimtab.core.events import (
    AnyEvent,
    BudgetsRead,
    CutsKept,
    Frozen,
    LedgerGap,
    LeverProposed,
    QualityScored,
    ReplicaChanged,
    ReplicaCrashed,
    RunStarted,
    SessionsExposed,
    StageEnded,
    StageStarted,
    TrafficPlanned,
    kind_of,
)
from trimtab.core.state import (
    EMPTY,
    LeverStatus,
    ReplicaStatus,
    State,
    budgets_key,
    count,
    decode_state,
    encode_state,
    fold,
    rebuild,
)
from trimtab.core.trigger_status import TriggerStatus
from trimtab.core.types import Arm, ReplicaState, RolloutState, Verdict


def state_after(*events: AnyEvent) -> State:
    return rebuild(envelopes(tuple((event, None) for event in events)))


def lever_after(*events: AnyEvent) -> LeverStatus:
    return state_after(LeverProposed(record=lever_record()), *events).levers[LEVER]


def test_every_event_counts_once_under_its_kind() -> None:
    """Whatever else an event does, it counts, and the state says how far it reaches."""
    events = every_event()
    state = state_after(*events)
    assert state.counts == {kind_of(event): 1 for event in events}
    assert (state.seq, state.at_s) == (len(events), 100.0 + len(events) - 1)


def test_request_only_counts() -> None:
    """Requests change nothing but the counts, so that folding them is cheap."""
    (envelope,) = envelopes(((request(1), None),))
    assert fold(EMPTY, envelope) == count(EMPTY, "request_served", seq=1, at_s=100.0)


def test_folding_leaves_the_state_before_as_it_was() -> None:
    """A state is a value: folding gives a new one."""
    (envelope,) = envelopes(((request(1), None),))
    fold(EMPTY, envelope)
    assert State() == EMPTY


def test_replica_keeps_its_crashes_through_its_restart() -> None:
    """A crash is failed without a process; the restart keeps the count and knows the new process."""
    ready = ReplicaChanged(
        replica="r0", state=ReplicaState.READY, revision=REVISION, url="http://h:1", pid=7
    )
    crash = ReplicaCrashed(replica="r0", exit_code=-9, crashes=2, backoff_s=0.5)
    crashed = state_after(ready, crash).replicas["r0"]
    assert (crashed.state, crashed.pid, crashed.crashes) == (ReplicaState.FAILED, None, 2)
    assert state_after(ready, crash, ready).replicas == {
        "r0": ReplicaStatus(
            state=ReplicaState.READY,
            revision=REVISION,
            url="http://h:1",
            pid=7,
            crashes=2,
            since_s=102.0,
        )
    }


def test_crash_of_an_unknown_replica_makes_none_up() -> None:
    """A crash without a start before it says nothing of a revision, so no replica appears."""
    crash = ReplicaCrashed(replica="r9", exit_code=1, crashes=1, backoff_s=0.5)
    assert state_after(crash).replicas == {}


def test_new_run_forgets_processes_and_keeps_decisions() -> None:
    """After a restart the replicas and the stage are gone; levers and the plan are not."""
    run = RunStarted(run_id="run-2", command="up", version="0.1.0", settings={})
    ready = ReplicaChanged(replica="r0", state=ReplicaState.READY, revision=REVISION)
    state = state_after(
        StageStarted(stage="baseline", load="x"),
        ready,
        LeverProposed(record=lever_record()),
        TrafficPlanned(plan=plan()),
        run,
    )
    assert (state.replicas, state.stage, state.run) == ({}, None, run)
    assert (list(state.levers), state.plan) == ([LEVER], plan())


def test_stage_ends_with_its_figures() -> None:
    """The current stage is the one that has not ended; figures of ended ones stay."""
    started = StageStarted(stage="burst", load="x")
    assert state_after(started).stage == "burst"
    ended = state_after(started, StageEnded(stage="burst", summary={"n": 3, "late_ms": None}))
    assert (ended.stage, ended.stages) == (None, {"burst": {"n": 3, "late_ms": None}})


def test_lever_is_where_its_last_move_put_it() -> None:
    """State, share, verdict and reason are those of the last move."""
    status = lever_after(
        moved(RolloutState.CANARY, 0.1),
        moved(RolloutState.RAMPING, 0.25, before=RolloutState.CANARY),
    )
    assert (status.state, status.share, status.verdict, status.moved_at_s, status.proposal_id) == (
        RolloutState.RAMPING,
        0.25,
        Verdict.PASS,
        102.0,
        "E0000",
    )


def test_lever_shows_its_last_look() -> None:
    """Only the last look's results are kept in the state; earlier ones are in the ledger."""
    status = lever_after(gates_evaluated(look=1), gates_evaluated(look=2))
    assert (status.look, status.look_verdict, status.results) == (
        2,
        Verdict.PASS,
        gates_evaluated(look=2).results,
    )


def test_exposures_are_counted_by_arm_until_the_lever_is_proven_again() -> None:
    """Each proof counts whom it was shown to from nothing."""
    first = SessionsExposed(lever=LEVER, share=0.1, candidate=("a",), baseline=("b", "c"))
    second = SessionsExposed(lever=LEVER, share=0.25, candidate=("b", "d"))
    status = lever_after(moved(RolloutState.CANARY, 0.1), first, second)
    assert status.exposed == {Arm.BASELINE: 2, Arm.CANDIDATE: 3}
    again = lever_after(first, moved(RolloutState.RAMPING, 0.25, before=RolloutState.ADOPTED))
    assert again.exposed == {}


def test_proposing_a_lever_again_starts_it_afresh() -> None:
    """A second proposal of one name has neither the looks nor the triggers of the first."""
    again = LeverProposed(record=lever_record())
    status = lever_after(moved(RolloutState.CANARY, 0.1), gates_evaluated(), again)
    assert (status.state, status.look, status.share) == (RolloutState.PROPOSED, 0, 0.0)


@pytest.mark.parametrize(("policy", "kept"), [(lever_record().policy, 1), ("other", 0)])
def test_scores_outlive_a_new_proposal_of_what_was_scored(policy: str | None, kept: int) -> None:
    """A lever that is proposed for another slice answers as it did; one that runs something else does not."""
    again = LeverProposed(record=msgspec.structs.replace(lever_record(), policy=policy))
    (scored,) = (each for each in every_event() if isinstance(each, QualityScored))
    assert len(lever_after(scored, again).scores) == kept


def test_trigger_counts_firings_and_says_whether_it_holds() -> None:
    """A trigger that let go again is armed, and remembers how often it fired."""
    status = lever_after(
        trigger_moved(True, 4.6), trigger_moved(False, 2.1), trigger_moved(True, 5.0)
    )
    (trigger,) = status.triggers.values()
    assert (trigger.fired, trigger.fired_count, trigger.value) == (True, 2, 5.0)
    assert status.is_held_off
    assert not lever_after(trigger_moved(True, 4.6), trigger_moved(False, 2.1)).is_held_off


def test_proposed_lever_has_its_triggers_armed() -> None:
    """Before anything fired, every declared trigger is there and armed."""
    (spec,) = lever_record().triggers
    assert lever_after().triggers == {spec.name: TriggerStatus(spec=spec)}


def test_cuts_and_effects_are_kept_by_lever() -> None:
    """What a lever was kept for, refused for and did stands in its status."""
    kept = CutsKept(lever=LEVER, kept=("all traffic",), refused={str(EDITS): "no gain"})
    status = lever_after(kept, effect(0.7), effect(0.58))
    assert (status.kept, status.refused) == (("all traffic",), {str(EDITS): "no gain"})
    assert status.effects == {"ttft_ms/all traffic": effect(0.58)}


def test_move_of_a_lever_nobody_proposed_is_not_lost() -> None:
    """A lever without a record in the ledger still has a place; its record is unknown."""
    status = state_after(moved(RolloutState.CANARY, 0.1)).levers[LEVER]
    assert (status.record, status.state) == (None, RolloutState.CANARY)


def test_budgets_are_kept_by_moment_and_lever() -> None:
    """The fleet's budgets and a lever's predicted ones do not overwrite each other."""
    state = state_after(
        BudgetsRead(when="before", lever=None, budgets=budgets(0.8)),
        BudgetsRead(when="predicted", lever=LEVER, budgets=budgets(0.6)),
        BudgetsRead(when="before", lever=None, budgets=budgets(0.9)),
    )
    assert state.budgets == {
        budgets_key("before", None): budgets(0.9),
        budgets_key("predicted", LEVER): budgets(0.6),
    }


def test_freezing_can_be_undone() -> None:
    """The last word on freezing counts, with its reason."""
    state = state_after(Frozen(frozen=True, reason="disk full"), Frozen(frozen=False, reason="ok"))
    assert (state.frozen, state.frozen_because) == (False, "ok")


def test_lost_events_add_up() -> None:
    """Every gap adds what it lost."""
    gap = LedgerGap(lost=2, first_id="A", last_id="B", reason="x")
    assert state_after(gap, gap).lost == 4


@pytest.mark.parametrize("events", [story(), tuple((e, None) for e in every_event())])
def test_state_survives_json(events: tuple[tuple[AnyEvent, int | None], ...]) -> None:
    """A checkpoint's state is the state, open intervals included."""
    state = rebuild(envelopes(events))
    assert decode_state(encode_state(state)) == state
