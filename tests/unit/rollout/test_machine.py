"""A rollout climbs its ramp only on passes, and every state has a way out."""

import msgspec
import pytest
from rollout_kit import RAMP, lever

from trimtab.core.gate import GateResult, Metric, Question
from trimtab.core.types import RolloutState, Verdict
from trimtab.rollout.machine import (
    BLOCKS_PER_STEP_MIN,
    HOLD_CYCLES_MAX,
    PEAK_BLOCKS,
    TRANSITIONS,
    Look,
    Rollout,
    TransitionError,
    advance,
    begin,
    expire,
    move,
    render_transitions,
    resume,
)

RECORD = lever()
CYCLE = RAMP.peak_cycle_s
PASS = Look(verdict=Verdict.PASS)


def climb(times: int, *, step_s: float = CYCLE) -> Rollout:
    """The rollout after so many passes, one peak cycle apart."""
    rollout = begin(RECORD, 0.0)
    for count in range(1, times + 1):
        rollout = advance(RECORD, rollout, PASS, count * step_s)
    return rollout


def test_every_state_is_in_the_table_and_has_an_exit() -> None:
    """The table is closed."""
    assert set(TRANSITIONS) == set(RolloutState)
    assert [state for state, exits in TRANSITIONS.items() if not exits] == []


def test_rollout_begins_as_a_canary_at_the_first_share() -> None:
    """Nothing is exposed before."""
    rollout = begin(RECORD, 7.0)
    assert (rollout.state, rollout.share) == (RolloutState.CANARY, 0.10)
    assert rollout.share_entered_at_s == 7.0


def test_passes_climb_all_shares_and_end_in_adoption() -> None:
    """10, 25, 50 and 95% of the sessions, where it is proving, then everything."""
    seen = [(climb(count).state.value, climb(count).share) for count in range(5)]
    assert seen == [
        ("canary", 0.10),
        ("ramping", 0.25),
        ("ramping", 0.50),
        ("proving", 0.95),
        ("adopted", 1.0),
    ]
    assert climb(4).passes == 4


def test_canary_grows_only_after_a_full_peak_cycle() -> None:
    """Passing early is not enough: the peak has not been seen."""
    rollout = advance(RECORD, begin(RECORD, 0.0), PASS, CYCLE - 0.1)
    assert rollout.state is RolloutState.CANARY
    assert advance(RECORD, rollout, PASS, CYCLE).state is RolloutState.RAMPING


def test_adoption_waits_for_another_full_peak_cycle() -> None:
    """The time before, at smaller shares, does not count."""
    proving = climb(3)
    since = proving.entered_at_s
    assert advance(RECORD, proving, PASS, since + CYCLE - 0.1).state is RolloutState.PROVING
    assert advance(RECORD, proving, PASS, since + CYCLE).state is RolloutState.ADOPTED


def test_share_does_not_grow_twice_within_its_first_blocks() -> None:
    """Evidence of the present share needs two pairs of blocks at least."""
    ramping = climb(1)
    soon = CYCLE + BLOCKS_PER_STEP_MIN * RAMP.block_s
    assert advance(RECORD, ramping, PASS, soon - 0.1).share == 0.25
    assert advance(RECORD, ramping, PASS, soon).share == 0.50


@pytest.mark.parametrize("passes", range(4))
def test_fail_takes_back_at_once_from_every_stage(passes: int) -> None:
    """One look is enough, and no traffic meets the candidate any more."""
    failed = GateResult(
        gate="ttft",
        metric=Metric.TTFT_MS,
        question=Question.VETO,
        cut="all",
        verdict=Verdict.FAIL,
        n_baseline=9,
        n_candidate=9,
        margin=0.1,
        reason="worse",
    )
    look = Look(verdict=Verdict.FAIL, results=(failed,))
    before = climb(passes)
    after = advance(RECORD, before, look, before.entered_at_s + 1.0)
    assert (after.state, after.share) == (RolloutState.ROLLED_BACK, 0.0)
    assert after.reason == "ttft failed: worse"


def test_hold_stays_until_its_limit_and_then_gives_up() -> None:
    """A rollout that cannot be proven does not expose its slice for ever."""
    rollout = begin(RECORD, 0.0)
    hold = Look(verdict=Verdict.HOLD)
    limit = HOLD_CYCLES_MAX * CYCLE
    assert advance(RECORD, rollout, hold, limit - 0.1).state is RolloutState.CANARY
    given_up = advance(RECORD, rollout, hold, limit)
    assert given_up.state is RolloutState.ROLLED_BACK
    assert given_up.reason.startswith("not enough evidence in time")


def test_error_takes_the_traffic_off_and_a_pass_alone_does_not_bring_it_back() -> None:
    """What cannot be judged must not be served; a person has to look, or time takes it back."""
    paused = advance(RECORD, climb(2), Look(verdict=Verdict.ERROR), 3 * CYCLE)
    assert (paused.state, paused.share) == (RolloutState.PAUSED, 0.0)
    assert advance(RECORD, paused, PASS, 4 * CYCLE).state is RolloutState.PAUSED
    late = paused.entered_at_s + HOLD_CYCLES_MAX * CYCLE
    assert advance(RECORD, paused, PASS, late).state is RolloutState.ROLLED_BACK


def test_restart_leaves_a_paused_rollout_paused() -> None:
    """A restart is no permission to expose traffic again."""
    again = resume(RECORD, RolloutState.PAUSED, 0.0, 500.0)
    assert (again.state, again.share, again.entered_at_s) == (RolloutState.PAUSED, 0.0, 500.0)


def test_frozen_stops_promotions_but_not_taking_back() -> None:
    """Freezing is for safety, so it must not keep harm in place."""
    rollout = begin(RECORD, 0.0)
    frozen = Look(verdict=Verdict.PASS, frozen=True)
    assert advance(RECORD, rollout, frozen, CYCLE).state is RolloutState.CANARY
    failed = Look(verdict=Verdict.FAIL, frozen=True)
    assert advance(RECORD, rollout, failed, 1.0).state is RolloutState.ROLLED_BACK


def test_restart_resumes_at_the_same_share_with_fresh_clocks() -> None:
    """Evidence before the restart may lack its requests, so the share is proven anew."""
    again = resume(RECORD, RolloutState.RAMPING, 0.50, 900.0)
    assert (again.state, again.share, again.share_index) == (RolloutState.RAMPING, 0.50, 2)
    assert again.share_entered_at_s == 900.0


def test_restart_at_a_share_that_the_ramp_lacks_starts_small() -> None:
    """The record may have been written for another ramp."""
    assert resume(RECORD, RolloutState.RAMPING, 0.33, 0.0).share == 0.10


@pytest.mark.parametrize(
    "state",
    [
        RolloutState.PROPOSED,
        RolloutState.ADOPTED,
        RolloutState.ROLLED_BACK,
        RolloutState.DISABLED,
        RolloutState.EXPIRED,
    ],
)
def test_what_is_not_being_proven_is_not_resumed(state: RolloutState) -> None:
    """And looks do not move it."""
    with pytest.raises(TransitionError, match=state.value):
        resume(RECORD, state, 0.10, 0.0)
    still = msgspec.structs.replace(begin(RECORD, 0.0), state=state)
    assert advance(RECORD, still, PASS, 9 * CYCLE) == still


def test_moves_off_the_table_are_refused() -> None:
    """An adopted lever cannot become a canary."""
    with pytest.raises(TransitionError, match="no way from adopted to canary"):
        move(climb(5), RolloutState.CANARY, 0.0, "why not")


def test_expired_record_ends_its_lever_wherever_it_is() -> None:
    """A lever must prove itself again; one that has ended already stays as it is."""
    for passes in (0, 2, 4):
        after = expire(RECORD, climb(passes), RECORD.expires_at_s, 999.0)
        assert (after.state, after.share) == (RolloutState.EXPIRED, 0.0)
    assert expire(RECORD, climb(2), RECORD.expires_at_s - 1.0, 999.0) == climb(2)
    over = move(climb(0), RolloutState.ROLLED_BACK, 5.0, "enough")
    assert expire(RECORD, over, RECORD.expires_at_s, 999.0) == over


def test_single_share_goes_from_canary_to_proving() -> None:
    """A ramp of one step has nothing to climb."""
    ramp = msgspec.structs.replace(RAMP, shares=(0.5,))
    record = lever(ramp=ramp)
    after = advance(record, begin(record, 0.0), PASS, CYCLE)
    assert (after.state, after.share) == (RolloutState.PROVING, 0.5)


def test_table_is_rendered_with_every_move() -> None:
    """One line per move, for the documents."""
    moves = sum(len(exits) for exits in TRANSITIONS.values())
    assert len(render_transitions().splitlines()) == moves + 2


PEAK = msgspec.structs.replace(
    RECORD,
    ramp=msgspec.structs.replace(RAMP, peak_cycle_s=86_400.0, block_s=10.0, peak_concurrency=48),
)


def looked(rollout: Rollout, now_s: float, concurrency: int) -> Rollout:
    """The rollout after a look that passes, with so many requests in flight since the one before."""
    return advance(PEAK, rollout, Look(verdict=Verdict.PASS, concurrency=concurrency), now_s)


@pytest.mark.parametrize("concurrency", [47, 48, 90])
def test_recorded_peak_seen_again_ends_the_cycle_once_it_is_judged(concurrency: int) -> None:
    """As many in flight as were recorded, and the blocks to judge them in; one less, and the day goes on."""
    rollout = looked(begin(PEAK, 0.0), 100.0, concurrency)
    early = looked(rollout, 100.0 + PEAK_BLOCKS * 10.0 - 1.0, 5)
    later = looked(early, 100.0 + PEAK_BLOCKS * 10.0, 5)
    assert early.state is RolloutState.CANARY
    grown = RolloutState.RAMPING if concurrency >= 48 else RolloutState.CANARY
    assert later.state is grown
    assert looked(early, 86_400.0, 5).state is RolloutState.RAMPING


def test_adoption_waits_for_the_peak_anew() -> None:
    """What was seen in the first slice does not count for the last one."""
    rollout = looked(begin(PEAK, 0.0), 0.0, 60)
    now_s = 0.0
    while rollout.state is not RolloutState.PROVING:
        now_s += PEAK_BLOCKS * 10.0
        rollout = looked(rollout, now_s, 5)
    entered_s = now_s
    assert looked(rollout, entered_s + 80_000.0, 5).state is RolloutState.PROVING
    rollout = looked(rollout, entered_s + 40.0, 60)
    adopted = looked(rollout, entered_s + 40.0 + PEAK_BLOCKS * 10.0, 5)
    assert adopted.state is RolloutState.ADOPTED
    assert adopted.reason == "passed over the recorded peak of 48 requests in flight"
