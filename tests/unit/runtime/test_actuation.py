"""Levers are moved on a fleet: routing first, one replica, every move an event with its cause."""

import msgspec
import pytest
from control_kit import BASELINE_PLAN, EDITS, QUESTIONS, SPECULATING, Rig, routing_lever
from control_kit import speculation_lever as speculation
from events_kit import REVISION

from trimtab.core.events import TrafficPlanned
from trimtab.core.lever import Comparison
from trimtab.core.ports import LaunchError
from trimtab.core.traffic import CandidatePlan, Preference, TrafficPlan
from trimtab.runtime.actuation import RESTART_ATTEMPTS

ROUTING, SPECULATION = routing_lever(), speculation()
SMALLER_KV = REVISION.replace(kv_type="q8_0")
SPECULATES = "r1 runs speculation, KV kept: True"
IS_BACK = "r1 runs the baseline, KV kept: True"


async def adopted() -> Rig:
    """A fleet on which speculation was adopted for edits."""
    rig = Rig()
    await rig.actuator.prepare(SPECULATION, cause_id="P")
    rig.actuator.adopt(SPECULATION, policy=None, cuts=(EDITS,), cause_id="A")
    rig.log.clear()
    return rig


def test_plan_in_force_is_recorded_durably_with_its_cause() -> None:
    """The router follows it and the ledger says who asked; the answer is the event's id."""
    rig = Rig()
    plan = TrafficPlan(policy="least_loaded")
    event_id = rig.actuator.set_plan(plan, cause_id="C")
    assert rig.router.plan == rig.actuator.plan == plan
    (found,) = rig.envelopes
    assert (found.id, found.cause_id, found.event) == (event_id, "C", TrafficPlanned(plan=plan))
    assert rig.sink.durable == ["traffic_planned"]


def test_stage_is_named_without_touching_the_rest_of_the_plan() -> None:
    """Traffic goes on as it was, under another name."""
    rig = Rig()
    rig.actuator.set_stage("baseline", cause_id=None)
    assert rig.actuator.plan == TrafficPlan(policy="round_robin", stage="baseline")
    rig.actuator.set_stage(None, cause_id=None)
    assert rig.actuator.plan == BASELINE_PLAN


async def test_only_the_last_replica_becomes_the_candidate() -> None:
    """The others stay plain, and no traffic is planned for it yet."""
    rig = Rig(replicas=("r0", "r1", "r2"))
    assert await rig.actuator.prepare(SPECULATION, cause_id="P") == ("r2",)
    assert rig.fleet.revisions == {"r0": REVISION, "r1": REVISION, "r2": SPECULATING}
    assert rig.log == ["r2 runs speculation, KV kept: True"]
    assert rig.fleet.causes == ["P"]


async def test_routing_lever_restarts_nothing() -> None:
    """All replicas serve both arms."""
    rig = Rig()
    assert await rig.actuator.prepare(ROUTING, cause_id="P") == ()
    await rig.actuator.take_back(ROUTING, cause_id="T")
    await rig.actuator.disable(ROUTING, baseline_policy="round_robin", cause_id="D")
    assert rig.log == ["plan", "plan"]


async def test_replica_that_runs_the_revision_already_is_left_alone() -> None:
    """A restart would only throw its cache away."""
    rig = Rig()
    await rig.actuator.prepare(SPECULATION, cause_id="P")
    await rig.actuator.prepare(SPECULATION, cause_id="P")
    assert rig.log == [SPECULATES]


def test_slice_starts_its_blocks_now() -> None:
    """The candidate's plan has the record's ramp, its cuts and the monotonic time."""
    rig = Rig()
    rig.clock.pass_s(7.0)
    rig.actuator.start_slice(SPECULATION, 0.10, None, ("r1",), cause_id="S")
    expected = CandidatePlan(
        lever="ngram_speculation",
        share=0.10,
        policy=None,
        replicas=("r1",),
        comparison=Comparison.SIDE_BY_SIDE,
        started_at_s=12.0,
        block_s=6.0,
        edge_s=1.0,
        cuts=(EDITS,),
    )
    assert rig.actuator.plan.candidate == expected


def test_slice_grows_without_starting_its_blocks_anew() -> None:
    """Only the share changes."""
    rig = Rig()
    rig.actuator.start_slice(ROUTING, 0.10, "prefix_affine", (), cause_id="S")
    before = rig.actuator.plan.candidate
    rig.clock.pass_s(30.0)
    rig.actuator.grow_slice(0.25, cause_id="G")
    after = rig.actuator.plan.candidate
    assert before is not None
    assert after is not None
    assert (after.share, after.started_at_s) == (0.25, before.started_at_s)


def test_slice_of_nothing_cannot_grow() -> None:
    """Asking for it is a mistake of the caller, not a plan."""
    with pytest.raises(RuntimeError, match="no lever is being proven"):
        Rig().actuator.grow_slice(0.25, cause_id=None)


async def test_taking_back_goes_by_routing_first() -> None:
    """No request meets the candidate while its replica is still on the way."""
    rig = Rig()
    replicas = await rig.actuator.prepare(SPECULATION, cause_id="P")
    rig.actuator.start_slice(SPECULATION, 0.10, None, replicas, cause_id="S")
    rig.log.clear()
    await rig.actuator.take_back(SPECULATION, cause_id="T")
    assert rig.log == ["plan", IS_BACK]
    assert rig.actuator.plan == BASELINE_PLAN


def test_adopted_routing_lever_gets_all_traffic() -> None:
    """Its policy is the plan's, and nothing is being proven any more."""
    rig = Rig()
    rig.actuator.start_slice(ROUTING, 0.95, "prefix_affine", (), cause_id="S")
    rig.actuator.adopt(ROUTING, policy="prefix_affine", cuts=(), cause_id="A")
    assert rig.actuator.plan == TrafficPlan(policy="prefix_affine")


async def test_adopted_revision_lever_gets_the_cuts_it_was_proven_for() -> None:
    """The policy stays; the lever's replica is preferred for its cuts."""
    rig = await adopted()
    wanted = Preference(lever="ngram_speculation", cuts=(EDITS,), replicas=("r1",))
    assert rig.actuator.plan == TrafficPlan(policy="round_robin", preferences=(wanted,))


async def test_disabling_goes_by_routing_first_and_leaves_other_levers() -> None:
    """The policy that another lever brought stays in force."""
    rig = await adopted()
    rig.actuator.adopt(ROUTING, policy="prefix_affine", cuts=(), cause_id="A")
    rig.log.clear()
    await rig.actuator.disable(SPECULATION, baseline_policy="round_robin", cause_id="D")
    assert rig.log == ["plan", IS_BACK]
    assert rig.actuator.plan == TrafficPlan(policy="prefix_affine")
    await rig.actuator.disable(ROUTING, baseline_policy="round_robin", cause_id="D")
    assert rig.actuator.plan == BASELINE_PLAN


async def test_enabling_starts_the_revision_before_its_traffic() -> None:
    """Requests are not sent to a replica that does not run the lever yet."""
    rig = await adopted()
    plan = rig.actuator.plan
    await rig.actuator.disable(SPECULATION, baseline_policy="round_robin", cause_id="D")
    rig.log.clear()
    await rig.actuator.enable(SPECULATION, policy=None, cuts=(EDITS,), cause_id="E")
    assert rig.log == [SPECULATES, "plan"]
    assert rig.actuator.plan == plan


async def test_narrowing_changes_the_cuts_by_routing_alone() -> None:
    """Nothing restarts; with no cut left nothing is sent to the replica."""
    rig = await adopted()
    rig.actuator.narrow(SPECULATION, (QUESTIONS,), cause_id="N")
    assert [each.cuts for each in rig.actuator.plan.preferences] == [(QUESTIONS,)]
    rig.actuator.narrow(SPECULATION, (), cause_id="N")
    assert rig.actuator.plan.preferences == ()
    assert rig.log == ["plan", "plan"]


async def test_drain_that_fails_is_tried_again() -> None:
    """A replica that was too busy the first time follows under less load."""
    rig = await adopted()
    rig.fleet.failures_left = RESTART_ATTEMPTS - 1
    await rig.actuator.disable(SPECULATION, baseline_policy="round_robin", cause_id="D")
    assert rig.log == ["plan", *["r1 did not drain"] * 2, IS_BACK]


async def test_drain_that_keeps_failing_is_raised_with_traffic_already_off() -> None:
    """The caller is told; the plan has taken the lever off all the same."""
    rig = await adopted()
    rig.fleet.failures_left = RESTART_ATTEMPTS
    with pytest.raises(LaunchError, match="r1 did not drain"):
        await rig.actuator.disable(SPECULATION, baseline_policy="round_robin", cause_id="D")
    assert rig.log == ["plan", *["r1 did not drain"] * RESTART_ATTEMPTS]
    assert rig.actuator.plan == BASELINE_PLAN
    assert rig.fleet.revision_of("r1") == SPECULATING


async def test_failure_to_prepare_exposes_nothing() -> None:
    """A candidate that does not start never gets a slice."""
    rig = Rig()
    rig.fleet.failures_left = RESTART_ATTEMPTS
    with pytest.raises(LaunchError):
        await rig.actuator.prepare(SPECULATION, cause_id="P")
    assert rig.envelopes == ()


async def test_second_revision_lever_gets_a_replica_of_its_own() -> None:
    """What an adopted lever runs is not taken from it: the next lever starts beside it, and goes back alone."""
    rig = Rig(replicas=("r0", "r1", "r2"))
    await rig.actuator.prepare(SPECULATION, cause_id="P")
    rig.actuator.adopt(SPECULATION, policy=None, cuts=(EDITS,), cause_id="A")
    other = msgspec.structs.replace(SPECULATION, name="smaller_kv", revision=SMALLER_KV)
    assert await rig.actuator.prepare(other, cause_id="P") == ("r1",)
    rig.actuator.start_slice(other, 0.5, None, ("r1",), cause_id="S")
    assert rig.actuator.candidate_replicas(SPECULATION) == ("r2",)
    await rig.actuator.take_back(other, cause_id="T")
    found = [rig.fleet.revision_of(replica) for replica in ("r0", "r1", "r2")]
    assert found == [REVISION, REVISION, SPECULATING]


async def test_last_plain_replica_is_not_given_to_a_lever() -> None:
    """With two replicas, one of which an adopted lever has, another revision lever is refused with the way out."""
    rig = await adopted()
    other = msgspec.structs.replace(SPECULATION, name="smaller_kv", revision=SMALLER_KV)
    with pytest.raises(LaunchError, match="trimtab fleet add"):
        await rig.actuator.prepare(other, cause_id="P")
    assert rig.log == []
