"""What a request meets under a plan."""

import itertools
import random

import msgspec
from control_kit import EDITS, QUESTIONS, candidate

from trimtab.core.cuts import Cut
from trimtab.core.lever import Comparison
from trimtab.core.traffic import (
    OUTSIDE_SLICE,
    CandidatePlan,
    Exposure,
    Preference,
    TrafficPlan,
    arm_of_block,
    expose,
    slice_name,
)
from trimtab.core.types import Arm

REPLICAS = ("r0", "r1", "r2")
IN_SLICE, OUT_OF_SLICE = 0.1, 0.9
SIDE = candidate(comparison=Comparison.SIDE_BY_SIDE, policy=None, replicas=("r2",))


def met(
    plan: CandidatePlan | TrafficPlan,
    *,
    place: float = IN_SLICE,
    now_s: float = 105.0,
    cuts: tuple[Cut, ...] = (),
) -> Exposure:
    """What one request meets; by default inside the slice, in the middle of the first block."""
    whole = TrafficPlan(policy="rr", candidate=plan) if isinstance(plan, CandidatePlan) else plan
    return expose(whole, place=place, cuts=cuts, now_s=now_s, replicas=REPLICAS)


def middle_of(block: int) -> float:
    return 100.0 + 10.0 * block + 5.0


def order(plan: CandidatePlan, blocks: int) -> list[Arm]:
    return [met(plan, now_s=middle_of(block)).arm for block in range(blocks)]


def test_every_pair_of_blocks_has_both_arms() -> None:
    """Whatever the lever and the start, so that each pair is a unit of evidence."""
    for start in range(20):
        arms = [arm_of_block(block, f"lever {start}") for block in range(40)]
        assert all(
            {first, second} == set(Arm) for first, second in zip(*[iter(arms)] * 2, strict=True)
        )


def test_order_within_pairs_is_drawn_and_not_a_rhythm() -> None:
    """About half of the pairs begin with the candidate, and the sequence is another for another start."""
    firsts = [arm_of_block(2 * pair, "lever 0") for pair in range(400)]
    assert 160 <= firsts.count(Arm.CANDIDATE) <= 240
    repeats = sum(before is after for before, after in itertools.pairwise(firsts))
    assert 160 <= repeats <= 240
    assert order(candidate(), 40) != order(candidate(lever="another"), 40)


def test_switchback_gives_the_slice_the_arm_whose_block_it_is() -> None:
    """A request in the slice meets the candidate's policy in the candidate's blocks only."""
    plan = candidate()
    expected = [arm_of_block(block, "lever 100.0") for block in range(20)]
    found = [met(plan, now_s=middle_of(block)) for block in range(20)]
    assert [each.arm for each in found] == expected
    policies = {Arm.BASELINE: "rr", Arm.CANDIDATE: "prefix_affine"}
    assert [each.policy for each in found] == [policies[arm] for arm in expected]
    assert [each.block for each in found] == list(range(20))
    assert {each.slice for each in found} == {slice_name(0.5)}


def test_request_near_an_edge_is_served_but_not_compared() -> None:
    """Within one second of either end of a block there is an arm but no block."""
    plan = candidate()
    blocks = [met(plan, now_s=100.0 + at_s).block for at_s in (0.0, 0.9, 1.1, 8.9, 9.1, 11.1)]
    assert blocks == [None, None, 0, 0, None, 1]
    assert met(plan, now_s=100.5).arm is met(plan, now_s=105.0).arm


def test_outside_the_slice_nobody_meets_the_candidate() -> None:
    """In a candidate's block the rest is served as if nothing were tried, and is not compared."""
    plan = candidate()
    for block in range(20):
        found = met(plan, place=OUT_OF_SLICE, now_s=middle_of(block))
        assert (found.arm, found.policy) == (Arm.BASELINE, "rr")
        compared = arm_of_block(block, "lever 100.0") is Arm.BASELINE
        assert found.slice == (OUTSIDE_SLICE if compared else None)
        assert found.lever == ("lever" if compared else None)


def test_slice_holds_its_share_of_the_sessions() -> None:
    """Of evenly spread places exactly those below the share are in it."""
    for share in (0.10, 0.25, 0.95):
        plan = candidate(share=share, comparison=Comparison.SIDE_BY_SIDE, replicas=("r2",))
        arms = [met(plan, place=place / 1000).arm for place in range(1000)]
        assert arms.count(Arm.CANDIDATE) == round(1000 * share)


def test_slice_is_drawn_from_its_cuts_only() -> None:
    """A session whose place lies in the slice stays out with a request of another cut, or of none."""
    plan = msgspec.structs.replace(SIDE, cuts=(EDITS,))
    assert met(plan, cuts=(EDITS,)).arm is Arm.CANDIDATE
    assert met(plan, cuts=(QUESTIONS,)).arm is Arm.BASELINE
    assert met(plan).arm is Arm.BASELINE


def test_side_by_side_sends_the_slice_to_the_candidates_replicas_and_the_rest_elsewhere() -> None:
    """The arms share no replica; both are compared in one block, edges included."""
    inside, outside = met(SIDE, now_s=100.1), met(SIDE, place=OUT_OF_SLICE, now_s=100.1)
    assert (inside.arm, inside.allowed, inside.block) == (Arm.CANDIDATE, ("r2",), 0)
    assert (outside.arm, outside.allowed, outside.block) == (Arm.BASELINE, ("r0", "r1"), 0)
    assert (inside.slice, outside.slice) == (slice_name(0.5), OUTSIDE_SLICE)
    assert inside.policy == outside.policy == "rr"


def test_settled_cuts_prefer_their_replicas_and_others_stay_off_them() -> None:
    """Preferred is not forced: the wanted cut may still go anywhere, the others may not come."""
    settled = TrafficPlan(
        policy="rr", preferences=(Preference(lever="spec", cuts=(EDITS,), replicas=("r2",)),)
    )
    wanted, other = met(settled, cuts=(EDITS,)), met(settled, cuts=(QUESTIONS,))
    assert (wanted.preferred, wanted.allowed, wanted.lever) == (("r2",), None, "spec")
    assert (other.preferred, other.allowed, other.lever) == ((), ("r0", "r1"), None)
    assert wanted.arm is other.arm is Arm.BASELINE


def test_preference_for_all_replicas_locks_nobody_out() -> None:
    """Where every replica belongs to one cut, requests of other cuts are still served."""
    settled = TrafficPlan(
        policy="rr", preferences=(Preference(lever="spec", cuts=(EDITS,), replicas=REPLICAS),)
    )
    assert met(settled, cuts=(QUESTIONS,)).allowed is None


def test_settled_preference_holds_while_another_lever_is_proven() -> None:
    """A switchback on top of an adopted lever keeps requests off the replicas that are not theirs."""
    settled = (Preference(lever="spec", cuts=(EDITS,), replicas=("r2",)),)
    plan = TrafficPlan(policy="rr", candidate=candidate(), preferences=settled)
    for block in range(4):
        found = met(plan, cuts=(QUESTIONS,), now_s=middle_of(block))
        assert found.allowed == ("r0", "r1")


def test_exposure_is_a_function_of_its_arguments() -> None:
    """Asked again, or by another gateway, it is the same; no hidden state decides."""
    rng = random.Random(7)
    for plan in (candidate(share=0.3), SIDE):
        for _ in range(200):
            place, now_s = rng.random(), rng.uniform(90.0, 400.0)
            first = met(plan, place=place, now_s=now_s)
            assert met(msgspec.structs.replace(plan), place=place, now_s=now_s) == first
