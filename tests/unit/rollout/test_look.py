"""A look compares like with like, at one share."""

import msgspec
from rollout_kit import EXTRAS, RAMP, lever, pairs, served

from trimtab.core.gate import Question
from trimtab.core.lever import Comparison
from trimtab.core.traffic import OUTSIDE_SLICE, CandidatePlan
from trimtab.core.types import Arm, RolloutState, Verdict
from trimtab.rollout.look import first_block, is_like, look_at
from trimtab.rollout.machine import Rollout, Step, begin

PLAN = CandidatePlan(
    lever=lever().name,
    share=0.25,
    policy="prefix_affine",
    replicas=(),
    comparison=Comparison.SWITCHBACK,
    started_at_s=100.0,
    block_s=6.0,
    edge_s=1.0,
)


def rollout(*steps: tuple[float, float]) -> Rollout:
    made = tuple(Step(share=share, entered_at_s=at) for share, at in steps)
    return msgspec.structs.replace(begin(lever(), 100.0), steps=made, share=steps[-1][0])


def test_evidence_of_a_share_begins_with_a_whole_pair() -> None:
    """Block 0 begins with the slice; 13 s later block 4 is the first whole pair."""
    assert first_block(Step(share=0.1, entered_at_s=100.0), PLAN) == 0
    assert first_block(Step(share=0.1, entered_at_s=113.0), PLAN) == 4
    assert first_block(Step(share=0.1, entered_at_s=124.0), PLAN) == 4


def test_pair_in_which_the_share_changed_is_left_out() -> None:
    """Its two arms would be of different sessions; a share that changes between two pairs costs none."""
    records = pairs(4, lambda block, arm, number: served(block, arm, number=number))
    for changed_at_s, expected in ((113.0, 3 * 3), (112.0, 4 * 3)):
        grown = rollout((0.10, 100.0), (0.25, changed_at_s))
        proving = msgspec.structs.replace(grown, state=RolloutState.PROVING)
        results, _ = look_at(lever(), proving, PLAN, records, EXTRAS, 200.0)
        gain = next(one for one in results if one.question is Question.GAIN)
        assert expected == gain.n_baseline == gain.n_candidate


def test_switchback_compares_the_sessions_of_the_slice_in_both_arms() -> None:
    """Sessions outside it never meet the candidate and would make the baseline another mix."""
    outside = served(0, Arm.BASELINE, slice_=OUTSIDE_SLICE)
    inside = served(0, Arm.BASELINE, slice_="25% of sessions")
    assert [is_like(PLAN, one) for one in (outside, inside)] == [False, True]
    beside = msgspec.structs.replace(PLAN, comparison=Comparison.SIDE_BY_SIDE)
    assert [is_like(beside, one) for one in (outside, inside)] == [True, True]


def test_block_counts_once_the_next_one_is_over() -> None:
    """At 130 s block 5 runs; blocks up to 3 count, which are two pairs."""
    records = pairs(4, lambda block, arm, number: served(block, arm, number=number))
    results, verdict = look_at(lever(), rollout((0.25, 100.0)), PLAN, records, EXTRAS, 130.0)
    canary = {one.gate: one for one in results}["ttft_ms canary"]
    assert canary.n_units == 2
    assert verdict is Verdict.PASS


def test_first_look_at_a_new_share_does_not_pass_on_the_old_one() -> None:
    """The evidence starts anew with the share, so the slice cannot grow twice on one pass."""
    records = pairs(4, lambda block, arm, number: served(block, arm, number=number))
    grown = rollout((0.10, 100.0), (0.25, 100.0 + 8 * RAMP.block_s))
    _, verdict = look_at(lever(), grown, PLAN, records, EXTRAS, 100.0 + 8 * RAMP.block_s + 1.0)
    assert verdict is Verdict.HOLD
