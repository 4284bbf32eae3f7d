"""Role control: which cause moves which way, what freezes it, and that it neither flaps nor runs ahead."""

import itertools
from collections import deque

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
from trimtab.policies.travel_mark import TravelMark

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


QUIET: dict[str, object] = {
    "samples": 9,
    "requests": 9,
    "prefill": 1,
    "decode": 3,
    "in_flight": 0.5,
    "kv_used_share": 0.02,
    "ahead_work": 0.03,
    "local_work": 0.01,
    "lost_share": None,
}
"""Nine requests a window, of which next to nothing runs at any time."""


@pytest.mark.parametrize("more", [{}, {"ttft_ms_p90": None, "tpot_ms_p90": None, "samples": 0}])
def test_roles_merge_under_low_traffic_by_what_is_known_of_few_requests(
    more: dict[str, object],
) -> None:
    """No P90 of nine is known, nor what they lose; that few came, next to nothing runs and nothing is full, is."""
    made = after(**{**QUIET, **more})
    assert (made.action, made.reason, made.unknown) == (
        RoleAction.MERGE,
        RoleReason.LOW_TRAFFIC,
        (),
    )


@pytest.mark.parametrize(
    "changes",
    [
        {"in_flight": 1.1},
        {"in_flight": None},
        {"kv_used_share": 0.6},
        {"kv_used_share": None},
        {"preemptions": 1},
        {"preemptions": None},
        {"ahead_work": 0.2},
        {"ahead_work": None},
        {"local_work": 0.2},
        {"local_work": None},
        {"requests": 0, "samples": 0},
        {"requests": 400},
        {"prefill": 0, "decode": 4},
        {"moving": 1},
    ],
)
def test_few_requests_alone_merge_nothing(changes: dict[str, object]) -> None:
    """Requests that wait, KV in use, long prompts at work or what is not known of them; or nobody who asks at all."""
    made = after(**{**QUIET, **changes})
    assert (made.action, made.reason) == (RoleAction.HOLD, RoleReason.UNKNOWN)


@pytest.mark.parametrize("requests", range(1, 20))
@pytest.mark.parametrize("work", [0.0, 0.05, 0.1])
def test_merge_under_low_traffic_is_followed_by_no_split_of_the_same_load(
    requests: int, work: float
) -> None:
    """However late the few are: within two hours of the same requests nothing moves back, and no more than once."""
    state, roles, moves = RolesState(), (1, 3), []
    for tick in range(2 * 360):
        prefill, decode = roles
        # Around ten a window counts go to and fro, so that P90s are known at times.
        ended = requests + tick % 2
        here, ahead = (0.0, work) if prefill else (work, 0.0)
        values = {"samples": ended, "requests": ended, "local_work": here, "ahead_work": ahead}
        late = {"tpot_ms_p90": 30.0, "ttft_ms_p90": 400.0, "lost_share": 0.0}
        seen = sees(
            at_s=10.0 * tick, **{**QUIET, **late, **values, "prefill": prefill, "decode": decode}
        )
        state, made = control(state, seen, RULES)
        if made.action is not RoleAction.HOLD:
            moves.append(made.action)
            roles = (prefill - 1, decode + 1)
    assert moves in ([], [RoleAction.MERGE])


def preempting(pattern: str) -> list[RolesDecision]:
    """What is decided over ten minutes in which looks preempt (x), do not (.) or are none ( ), again and again."""
    state, decided = RolesState(), []
    looks: deque[bool] = deque(maxlen=50)
    rules = msgspec.structs.replace(RULES, ticks=3)
    for tick in range(600):
        look = pattern[tick % len(pattern)]
        looks.append(look == "x")
        seen = sees(
            at_s=float(tick),
            preemptions=2 if look == "x" else 0,
            looks=min(tick + 1, 50)
            - sum(pattern[at % len(pattern)] == " " for at in range(max(0, tick - 49), tick + 1)),
            looks_preempted=sum(looks),
        )
        state, made = control(state, seen, rules)
        decided.append(made)
    return decided


@pytest.mark.parametrize("pattern", ["x", "x.", "xx.", "x ", "x    ", "x" + " " * 24, "x. "])
def test_steady_preemption_moves_a_replica_however_often_pages_come(pattern: str) -> None:
    """Every look or every second, each tick or each twenty-fifth: decode gets a replica within one window."""
    first = next(one for one in preempting(pattern) if one.action is not RoleAction.HOLD)
    assert (first.action, first.reason) == (RoleAction.MORE_DECODE, RoleReason.DECODE_FULL)
    assert first.at_s <= RULES.window_s


@pytest.mark.parametrize("pattern", ["x" + "." * 49, "x" + "." * 24])
def test_preemption_now_and_then_moves_nothing(pattern: str) -> None:
    """One or two of a window's looks are no want of room."""
    assert {one.action for one in preempting(pattern)} == {RoleAction.HOLD}


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
    _, made = control(RolesState(mark=TravelMark(factor=4.0)), sees(), RULES)
    assert (made.local_factor, made.reason) == (2.0, RoleReason.WITHIN_BAND)
