"""A lever about roles: who meets it has them, for everybody else all replicas serve whole requests."""

import msgspec
import pytest

from trimtab.core.lever import Comparison
from trimtab.core.traffic import CandidatePlan, TrafficPlan, arm_of_block, expose, holder_of
from trimtab.core.types import Arm

CANDIDATE = CandidatePlan(
    lever="split",
    share=0.5,
    policy=None,
    replicas=(),
    comparison=Comparison.SWITCHBACK,
    started_at_s=0.0,
    block_s=10.0,
    edge_s=1.0,
    roles=True,
)
PLAN = TrafficPlan(policy="round_robin", candidate=CANDIDATE)


def whole(plan: TrafficPlan, *, place: float, now_s: float) -> tuple[Arm, bool]:
    """Which arm a request meets, and whether roles count for it."""
    found = expose(plan, place=place, cuts=(), now_s=now_s, replicas=("r0", "r1"))
    return found.arm, found.whole


def test_roles_count_in_the_candidates_blocks_for_its_slice_only() -> None:
    """Both arms run on the same replicas: in the baseline's blocks, and outside the slice, all of them answer."""
    blocks = {arm_of_block(block, "split 0.0"): block for block in range(8)}
    met = {arm: whole(PLAN, place=0.2, now_s=10.0 * at + 5.0) for arm, at in blocks.items()}
    assert met == {Arm.BASELINE: (Arm.BASELINE, True), Arm.CANDIDATE: (Arm.CANDIDATE, False)}
    outside = whole(PLAN, place=0.7, now_s=10.0 * blocks[Arm.CANDIDATE] + 5.0)
    assert outside == (Arm.BASELINE, True)


@pytest.mark.parametrize(
    ("place", "expected"), [(0.05, (Arm.CANDIDATE, False)), (0.3, (Arm.BASELINE, True))]
)
def test_small_slice_meets_roles_beside_the_rest_that_does_not(
    place: float, expected: tuple[Arm, bool]
) -> None:
    """Below half of the traffic both arms run at the same time."""
    small = msgspec.structs.replace(CANDIDATE, share=0.1)
    plan = msgspec.structs.replace(PLAN, candidate=small)
    assert whole(plan, place=place, now_s=5.0) == expected


def test_without_a_slice_roles_count_for_all_traffic() -> None:
    """Adopted roles are the fleet's own, as those that a person or the role control gave."""
    plain = TrafficPlan(policy="round_robin")
    assert whole(plain, place=0.9, now_s=5.0) == (Arm.BASELINE, False)
    assert (holder_of(plain), "split is being proven" in holder_of(PLAN)) == ("", True)
