"""How the role control's decisions are told: of how many requests, over which window, and what is unknown."""

import msgspec
import pytest
from events_kit import every_event

from trimtab.core.events import Calibrated, RolesDecided
from trimtab.core.narrate import tell_event
from trimtab.core.roles import RoleAction, RoleReason, RolesDecision, RolesSeen

SEEN = RolesSeen(
    at_s=0.0,
    prefill=1,
    decode=3,
    moving=0,
    ttft_ms_p90=240.0,
    ttft_target_ms=500.0,
    tpot_ms_p90=19.0,
    tpot_target_ms=40.0,
    samples=42,
    kv_used_share=0.5,
    preemptions=0,
    local_work=0.2,
    lost_share=0.3,
    transfers=12,
    transfer_ms_p90=180.0,
    dearness_p90=0.7,
    window_s=60.0,
    work_window_s=180.0,
    answers=97,
)
HELD = RolesDecision(
    at_s=0.0, action=RoleAction.HOLD, reason=RoleReason.WITHIN_BAND, ttft_ratio=0.48, tpot_ratio=0.5
)


def test_decision_says_n_and_window_of_requests_and_of_transfers() -> None:
    """A P90 of twelve in a minute is another than one of two."""
    words = tell_event(RolesDecided(decision=HELD, seen=SEEN))
    assert words == (
        "Roles: roles stay (within_band): P90 of TTFT at 0.48 and of TPOT at 0.50 of their targets, "
        "mean over ticks, each counted up to 2 (at this tick 0.48 and 0.47), "
        "1 prefill and 3 others ready, n=42 in 60 s, answers lose 30% of their time to load "
        "(n=97 in 180 s), "
        "P90 of 12 transfers 180 ms, 0.70 of what is dear in 60 s."
    )


def test_ratios_are_those_that_were_decided_by_and_the_ticks_beside_them() -> None:
    """A tick may be far below its target when a change is made for the window's mean, which was far above."""
    decided = msgspec.structs.replace(
        HELD, reason=RoleReason.PREFILL_NEEDS, ttft_ratio=1.19, tpot_ratio=0.45
    )
    late = msgspec.structs.replace(SEEN, ttft_ms_p90=100.0, tpot_ms_p90=None)
    words = tell_event(RolesDecided(decision=decided, seen=late))
    assert "P90 of TTFT at 1.19 and of TPOT at 0.45 of their targets, mean over ticks" in words
    assert "(at this tick 0.20 and unknown), 1 prefill" in words


def test_ratio_of_a_tick_is_said_however_large() -> None:
    """What is decided by is counted up to 2: five times the target is said as five."""
    late = msgspec.structs.replace(SEEN, ttft_ms_p90=2500.0)
    assert "(at this tick 5.00 and 0.47)" in tell_event(RolesDecided(decision=HELD, seen=late))


def test_merge_under_low_traffic_says_how_little_was_under_way() -> None:
    """The reason and the figure it stands on; no ratio stands for what nobody knows."""
    low = msgspec.structs.replace(
        HELD, action=RoleAction.MERGE, reason=RoleReason.LOW_TRAFFIC, ttft_ratio=None
    )
    seen = msgspec.structs.replace(SEEN, in_flight=0.3)
    words = tell_event(RolesDecided(decision=low, seen=seen))
    assert "(low_traffic): P90 of TTFT at unknown" in words
    assert "0.3 requests under way on average" in words


def test_ratios_without_what_was_seen_say_what_they_are() -> None:
    """Only the mean that was decided by is left."""
    words = tell_event(RolesDecided(decision=HELD))
    assert words == (
        "Roles: roles stay (within_band): P90 of TTFT at 0.48 and of TPOT at 0.50 of their targets, "
        "mean over ticks, each counted up to 2."
    )


def test_lost_share_of_an_older_ledger_is_told_without_its_n() -> None:
    """Events written before these counts were kept decode, and no figure stands for them."""
    fields = msgspec.to_builtins(SEEN)
    older = {name: fields[name] for name in fields if name not in {"answers", "work_window_s"}}
    seen = msgspec.convert(older, RolesSeen)
    words = tell_event(RolesDecided(decision=HELD, seen=seen))
    assert (seen.answers, seen.work_window_s) == (None, None)
    assert "answers lose 30% of their time to load, P90 of 12" in words


def test_hold_of_the_unknown_names_what_is_not_known() -> None:
    """And no figure stands for it."""
    lost = "the time that answers lose: tokens per step not measured"
    made = msgspec.structs.replace(HELD, reason=RoleReason.UNKNOWN, unknown=(lost,))
    seen = msgspec.structs.replace(SEEN, lost_share=None, transfers=0, transfer_ms_p90=None)
    words = tell_event(RolesDecided(decision=made, seen=seen))
    assert words.endswith(f"n=42 in 60 s; unknown: {lost}.")
    assert "of their time to load" not in words


@pytest.mark.parametrize(
    ("tokens_per_step", "words"),
    [
        (1.0, ")."),
        (2.5, ") a token of a stream, of 2.50 that a step gave with drafts."),
        (None, ") a token of a stream, of how many a step gives is unknown."),
    ],
)
def test_cost_says_how_many_tokens_a_step_gave(tokens_per_step: float | None, words: str) -> None:
    """A token's time is a step's only where each step gives one."""
    event = next(one for one in every_event() if isinstance(one, Calibrated) and one.cost)
    cost = msgspec.structs.replace(event.cost, tokens_per_step=tokens_per_step)
    first = tell_event(msgspec.structs.replace(event, cost=cost)).splitlines()[1]
    assert first.endswith(words)
