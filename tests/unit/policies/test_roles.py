"""Role control: which cause moves which way, what freezes it, and that it neither flaps nor runs ahead."""

import itertools

import msgspec
import pytest

from trimtab.policies.roles import (
    RoleAction,
    RoleReason,
    RoleRules,
    RolesDecision,
    RolesSeen,
    RolesState,
    control,
)

RULES = RoleRules(ticks=2, cooldown_s=100.0, window_s=50.0, work_high=0.6)


def sees(at_s: float = 0.0, **changes: object) -> RolesSeen:
    """Four prefill and four decode replicas, both half busy."""
    seen = RolesSeen(
        at_s=at_s,
        prefill=4,
        decode=4,
        moving=0,
        ttft_ms_p90=240.0,
        ttft_target_ms=500.0,
        tpot_ms_p90=19.0,
        tpot_target_ms=40.0,
        samples=100,
        kv_used_share=0.5,
        preemptions=0,
        local_work=0.2,
        ahead_work=1.6,
        lost_share=0.3,
    )
    return msgspec.structs.replace(seen, **changes)


def after(ticks: int = 2, rules: RoleRules = RULES, **changes: object) -> RolesDecision:
    """The decision after so many equal ticks ten seconds apart."""
    state, made = RolesState(), None
    for tick in range(ticks):
        state, made = control(state, sees(at_s=10.0 * tick, **changes), rules)
    assert made is not None
    return made


@pytest.mark.parametrize(
    ("changes", "action", "reason"),
    [
        ({}, RoleAction.HOLD, RoleReason.WITHIN_BAND),
        (
            {"ttft_ms_p90": 400.0, "ahead_work": 2.6},
            RoleAction.MORE_PREFILL,
            RoleReason.PREFILL_NEEDS,
        ),
        ({"ttft_ms_p90": 400.0}, RoleAction.HOLD, RoleReason.PREFILL_HAS_ROOM),
        ({"tpot_ms_p90": 30.0}, RoleAction.MORE_DECODE, RoleReason.DECODE_NEEDS),
        (
            {"ttft_ms_p90": 900.0, "kv_used_share": 0.95},
            RoleAction.MORE_DECODE,
            RoleReason.DECODE_FULL,
        ),
        ({"ttft_ms_p90": 900.0, "preemptions": 3}, RoleAction.MORE_DECODE, RoleReason.DECODE_FULL),
        (
            {"tpot_ms_p90": 30.0, "local_work": 1.5, "ahead_work": 2.5, "decode": 6},
            RoleAction.MORE_PREFILL,
            RoleReason.LONG_PROMPTS_STALL,
        ),
        (
            {"tpot_ms_p90": 30.0, "local_work": 1.5, "ahead_work": 2.5},
            RoleAction.HOLD,
            RoleReason.REST_TOO_BUSY,
        ),
        (
            {"tpot_ms_p90": 30.0, "ttft_ms_p90": 490.0, "local_work": 1.5, "ahead_work": 0.9},
            RoleAction.MORE_DECODE,
            RoleReason.DECODE_NEEDS,
        ),
        (
            {"tpot_ms_p90": 30.0, "ttft_ms_p90": 490.0, "local_work": 1.5, "ahead_work": 0.3},
            RoleAction.MORE_DECODE,
            RoleReason.PREFILL_IDLE,
        ),
        (
            {"tpot_ms_p90": 30.0, "prefill": 1, "local_work": 0.1, "ahead_work": 0.1},
            RoleAction.MERGE,
            RoleReason.FEW_LONG_PROMPTS,
        ),
        (
            {"tpot_ms_p90": 30.0, "prefill": 1, "ahead_work": 0.1},
            RoleAction.MERGE,
            RoleReason.PREFILL_IDLE,
        ),
        (
            {"tpot_ms_p90": 30.0, "prefill": 1, "ahead_work": 0.6, "lost_share": 0.8},
            RoleAction.MERGE,
            RoleReason.DECODE_NEEDS,
        ),
        ({"tpot_ms_p90": 30.0, "ahead_work": 2.6}, RoleAction.HOLD, RoleReason.REST_TOO_BUSY),
        (
            {"ttft_ms_p90": 500.0, "tpot_ms_p90": 38.0, "ahead_work": 2.6},
            RoleAction.HOLD,
            RoleReason.BOTH_NEED,
        ),
        ({"ttft_ms_p90": 100.0, "tpot_ms_p90": 10.0}, RoleAction.MERGE, RoleReason.BOTH_LOW),
        ({"ttft_ms_p90": 400.0, "decode": 1}, RoleAction.HOLD, RoleReason.LAST_OF_ITS_ROLE),
        ({"tpot_ms_p90": 30.0, "prefill": 1}, RoleAction.HOLD, RoleReason.REST_TOO_BUSY),
        (
            {"ttft_ms_p90": 800.0, "decode": 2, "tpot_ms_p90": 20.0},
            RoleAction.HOLD,
            RoleReason.REST_TOO_BUSY,
        ),
        ({"ttft_ms_p90": 400.0, "moving": 1}, RoleAction.HOLD, RoleReason.MOVING),
    ],
)
def test_each_cause_moves_roles_its_own_way(
    changes: dict[str, object], action: RoleAction, reason: RoleReason
) -> None:
    """A TTFT that rises because decode is full is no want of prefill."""
    made = after(**changes)
    assert (made.action, made.reason) == (action, reason)


@pytest.mark.parametrize(
    "changes",
    [
        {"ttft_ms_p90": None},
        {"tpot_ms_p90": None},
        {"kv_used_share": None},
        {"preemptions": None},
        {"local_work": None},
        {"ahead_work": None},
        {"lost_share": None},
        {"samples": 3},
    ],
)
def test_an_unknown_freezes(changes: dict[str, object]) -> None:
    """Whatever else would speak for a move."""
    made = after(**{"ttft_ms_p90": 900.0, **changes})
    assert (made.action, made.reason) == (RoleAction.HOLD, RoleReason.UNKNOWN)


def test_whole_requests_are_split_when_long_prompts_keep_a_replica_at_work() -> None:
    """And merged again once both phases are far from their targets."""
    merged = {"prefill": 0, "decode": 8, "tpot_ms_p90": 30.0, "ahead_work": 0.0}
    assert after(**merged, local_work=2.0).action is RoleAction.SPLIT
    few = after(**merged, local_work=0.2)
    assert (few.action, few.reason) == (RoleAction.HOLD, RoleReason.FEW_LONG_PROMPTS)
    one = after(prefill=1, decode=7, ttft_ms_p90=80.0, tpot_ms_p90=9.0)
    assert one.action is RoleAction.MERGE
    none = after(prefill=0, decode=8, ttft_ms_p90=80.0, tpot_ms_p90=9.0)
    assert (none.action, none.reason) == (RoleAction.HOLD, RoleReason.BOTH_LOW)


@pytest.mark.parametrize(
    ("lost_share", "action"),
    [
        (0.25, RoleAction.MORE_PREFILL),
        (0.45, RoleAction.MORE_PREFILL),
        (0.55, RoleAction.HOLD),
        (0.65, RoleAction.HOLD),
        (0.75, RoleAction.MERGE),
        (0.95, RoleAction.MERGE),
    ],
)
def test_replica_goes_where_it_is_predicted_to_help_answers_more(
    lost_share: float, action: RoleAction
) -> None:
    """Prefilling for 0.6 of its time it keeps that much off the answers; by answering it gives what they lose."""
    made = after(
        prefill=1,
        decode=3,
        tpot_ms_p90=38.0,
        ttft_ms_p90=500.0,
        local_work=1.5,
        ahead_work=0.6,
        lost_share=lost_share,
    )
    assert made.action is action


@pytest.mark.parametrize("local_work", [1.0, 2.0, 4.0])
@pytest.mark.parametrize("prefill", [0, 1, 2])
def test_overloaded_fleet_gives_no_further_replica_to_prefill(
    prefill: int, local_work: float
) -> None:
    """However many long prompts stall answers: a replica takes no more work off others than it can do itself."""
    made = after(
        prefill=prefill,
        decode=8 - prefill,
        tpot_ms_p90=400.0,
        ttft_ms_p90=5000.0,
        local_work=local_work,
        ahead_work=0.9 * prefill,
        lost_share=0.95,
    )
    assert made.action not in {RoleAction.SPLIT, RoleAction.MORE_PREFILL}


def test_merge_that_would_ask_for_a_split_again_is_not_made() -> None:
    """0.39 on one of two replicas becomes 0.78 on the other."""
    made = after(prefill=1, decode=1, ttft_ms_p90=195.0, tpot_ms_p90=8.0)
    assert (made.action, made.reason) == (RoleAction.HOLD, RoleReason.REST_TOO_BUSY)


def test_one_tick_is_not_enough_and_a_broken_streak_starts_anew() -> None:
    """Ticks in a row count."""
    state, made = control(RolesState(), sees(ttft_ms_p90=900.0, ahead_work=2.6), RULES)
    assert (made.action, made.reason) == (RoleAction.HOLD, RoleReason.NOT_YET)
    state, _ = control(state, sees(at_s=60.0), RULES)
    state, made = control(state, sees(at_s=120.0, ttft_ms_p90=900.0, ahead_work=2.6), RULES)
    assert made.reason is RoleReason.NOT_YET


def test_nothing_moves_while_cooling_down_and_longer_after_a_move_was_taken_back() -> None:
    """The cool-down doubles with each reversal, so that load at the edge does not flap."""
    state, moves = RolesState(), []
    for tick in range(400):
        wants_prefill = len(moves) % 2 == 0
        more = {"ttft_ms_p90": 450.0, "ahead_work": 2.6}
        values = more if wants_prefill else {"tpot_ms_p90": 34.0, "lost_share": 0.5}
        state, made = control(state, sees(at_s=10.0 * tick, **values), RULES)
        if made.action is not RoleAction.HOLD:
            moves.append(made.at_s)
    gaps = [later - earlier for earlier, later in itertools.pairwise(moves)]
    assert gaps[:4] == [100.0, 200.0, 400.0, 800.0]
    assert gaps == sorted(gaps)


def test_window_mean_keeps_one_bad_tick_from_counting_for_more_than_twice_the_target() -> None:
    """min(P90 / target, 2)."""
    state = RolesState()
    for tick, value in enumerate((200.0, 200.0, 1e6, 200.0)):
        state, made = control(state, sees(at_s=10.0 * tick, ttft_ms_p90=value), RULES)
    assert made.ttft_ratio == pytest.approx((0.4 * 3 + 2.0) / 4)


def test_no_more_changes_than_allowed_within_an_hour_whatever_is_asked() -> None:
    """Two a replica and hour are sixteen for eight, then nothing moves until the first of them is an hour old."""
    rules = msgspec.structs.replace(RULES, cooldown_s=0.0)
    state, moves, spent = RolesState(), [], 0
    for tick in range(0, 2 * 3600, 5):
        wants_prefill = len(moves) % 2 == 0
        more = {"ttft_ms_p90": 450.0, "ahead_work": 2.6}
        values = more if wants_prefill else {"tpot_ms_p90": 34.0, "lost_share": 0.5}
        state, made = control(state, sees(at_s=float(tick), **values), rules)
        spent += made.reason is RoleReason.CHANGES_SPENT
        if made.action is not RoleAction.HOLD:
            moves.append(made.at_s)
    within = [sum(at <= one < at + 3600.0 for one in moves) for at in moves]
    assert (max(within), spent > 600) == (16, True)


def test_dear_transfers_raise_the_local_mark_step_by_step_and_cheap_ones_lower_it() -> None:
    """At most one step a window; roles do not move for it, and what would help is named while it is up."""
    state, factors = RolesState(), []
    for tick in range(60):
        dearness = 1.6 if tick < 30 else 0.16
        state, made = control(state, sees(at_s=10.0 * tick, dearness_p90=dearness), RULES)
        factors.append(made.local_factor)
        assert (made.action, bool(made.advice)) == (RoleAction.HOLD, made.local_factor > 1.0)
    steps = [one for one, _ in itertools.groupby(factors)]
    assert steps == [2.0, 4.0, 8.0, 4.0, 2.0, 1.0]


def test_hold_of_the_unknown_says_what_is_not_known() -> None:
    """Each input that freezes is named, with why where that is known; a hold for another reason names none."""
    lacks = sees(lost_share=None, lost_unknown="tokens per step not measured", samples=3)
    _, made = control(RolesState(), lacks, RULES)
    words = (
        "3 requests ended, 10 are needed",
        "the time that answers lose: tokens per step not measured",
    )
    assert (made.reason, made.unknown) == (RoleReason.UNKNOWN, words)
    assert control(RolesState(), sees(), RULES)[1].unknown == ()


def test_nothing_handed_over_lowers_the_local_mark_again_and_freezes_nothing() -> None:
    """Nobody can say that transfers are dear that did not happen."""
    _, made = control(RolesState(local_factor=4.0), sees(), RULES)
    assert (made.local_factor, made.reason) == (2.0, RoleReason.WITHIN_BAND)
