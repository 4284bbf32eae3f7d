"""How many replicas prefill and how many decode: one step at a time, by how near each phase is to its target.

Law: s = mean over the window of min(P90 / target, 2), for TTFT (prefill) and TPOT (decode) apart. Above `act_above` a
phase needs a replica, below `act_below` it can give one, between them nothing moves. Rules of cause, the first that
holds:
    unknown, or a change under way             hold
    decode KV high, or preempting              more decode: TTFT that rises because decode is full is no want of prefill
    both phases low                            merge: a prefill replica goes back to whole requests
    decode needs, long prompts stall it        more prefill: TPOT that rises for prompts beside it is no want of decode
    prefill needs, decode stands N / (N - 1)   more prefill (from none: split, if enough long prompts are about)
    decode needs, prefill stands N / (N - 1)   more decode
    both need                                  hold: more replicas are another lever
Long prompts stall decode where those computed on the decode side keep w of its D replicas at work: TPOT without them on
one replica fewer is (1 - w / D) * D / (D - 1) of now, which gains from about w = 1 on; `long_share_min` is that mark.

A replica is taken from a phase only if what is predicted for the rest, s * N / (N - 1), stays below `rest_below`.
A rule must hold for `ticks` ticks in a row, and after a change nothing moves for `cooldown_s` (longer than the time to
change plus the window), twice as long for each change that took the last one back, up to eight times.

Failure modes: a target that an idle replica hardly meets (TPOT near a lone stream's) never lets roles merge; a
P90 over few requests jumps, hence `samples_min`; traffic that turns faster than the cool-down is followed late.

Source: windowed P90 over target with a band, as in the role controllers of production systems (Splitwise, ISCA 2024;
NVIDIA Dynamo's planner); N / (N - 1) is `levers.replicas`' rule for taking a replica away.
"""

from enum import StrEnum
from typing import Annotated, Final

import msgspec
from msgspec import Meta

RATIO_MAX: Final = 2.0
BACK_OFF_MAX: Final = 8.0


class RoleAction(StrEnum):
    """What to do next. A replica changes role by draining first."""

    HOLD = "hold"
    SPLIT = "split"
    MORE_PREFILL = "more_prefill"
    MORE_DECODE = "more_decode"
    MERGE = "merge"


class RoleReason(StrEnum):
    """Why roles move or stay. Closed: a new rule needs a new reason."""

    UNKNOWN = "unknown"
    MOVING = "moving"
    COOLING_DOWN = "cooling_down"
    NOT_YET = "not_yet"
    WITHIN_BAND = "within_band"
    DECODE_FULL = "decode_full"
    PREFILL_NEEDS = "prefill_needs"
    DECODE_NEEDS = "decode_needs"
    LONG_PROMPTS_STALL = "long_prompts_stall"
    BOTH_NEED = "both_need"
    BOTH_LOW = "both_low"
    REST_TOO_BUSY = "rest_too_busy"
    FEW_LONG_PROMPTS = "few_long_prompts"
    LAST_OF_ITS_ROLE = "last_of_its_role"


class RoleRules(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the control is told. Times in seconds; shares and ratios from 0.

    `long_share_min`: replicas' worth of long prompts on the decode side from which they are worth a prefill replica.
    """

    act_above: Annotated[float, Meta(gt=0.0, le=2.0)] = 0.55
    act_below: Annotated[float, Meta(gt=0.0, le=2.0)] = 0.40
    rest_below: Annotated[float, Meta(gt=0.0, le=2.0)] = 0.85
    kv_high: Annotated[float, Meta(gt=0.0, le=1.0)] = 0.90
    long_share_min: Annotated[float, Meta(ge=0.0)] = 0.75
    window_s: Annotated[float, Meta(gt=0.0)] = 60.0
    cooldown_s: Annotated[float, Meta(ge=0.0)] = 180.0
    ticks: Annotated[int, Meta(ge=1)] = 3
    samples_min: Annotated[int, Meta(ge=1)] = 10


class RolesSeen(msgspec.Struct, frozen=True, kw_only=True):
    """What one tick sees. None is unknown and freezes; milliseconds are the P90 of requests that ended lately.

    `prefill`, `decode`: ready replicas of the role, mixed ones counted as decode; `moving`: changing role now.
    `kv_used_share`: mean of the decode side, 0 to 1; `preemptions`: of the decode side since the last tick.
    `local_work`: replicas that long prompts kept at work lately on the decode side.
    """

    at_s: float
    prefill: int
    decode: int
    moving: int
    ttft_ms_p90: float | None
    ttft_target_ms: float
    tpot_ms_p90: float | None
    tpot_target_ms: float
    samples: int
    kv_used_share: float | None
    preemptions: int | None
    local_work: float | None


class RolesState(msgspec.Struct, frozen=True, kw_only=True):
    """What the control remembers. `ratios`: (time, TTFT ratio, TPOT ratio) of the ticks within the window."""

    ratios: tuple[tuple[float, float, float], ...] = ()
    wanted: RoleAction = RoleAction.HOLD
    streak: int = 0
    moved_at_s: float | None = None
    last: RoleAction = RoleAction.HOLD
    back_off: float = 1.0


class RolesDecision(msgspec.Struct, frozen=True, kw_only=True):
    """What to do and why; `ttft_ratio`, `tpot_ratio`: the windowed s of both phases, None where unknown."""

    at_s: float
    action: RoleAction
    reason: RoleReason
    ttft_ratio: float | None = None
    tpot_ratio: float | None = None


def control(
    state: RolesState, seen: RolesSeen, rules: RoleRules
) -> tuple[RolesState, RolesDecision]:
    """Take in one tick; return the new state and what to do now."""
    state = _remembered(state, seen, rules)
    s_prefill, s_decode = _means(state)
    if s_prefill is None or s_decode is None or _is_unknown(seen, rules):
        return _held(state, seen, RoleReason.UNKNOWN, s_prefill, s_decode)
    wanted, reason = _wanted(seen, s_prefill, s_decode, rules)
    if wanted is RoleAction.HOLD:
        return _held(state, seen, reason, s_prefill, s_decode)
    streak = state.streak + 1 if wanted is state.wanted else 1
    state = msgspec.structs.replace(state, wanted=wanted, streak=streak)
    if streak < rules.ticks:
        return state, _decision(seen, RoleAction.HOLD, RoleReason.NOT_YET, s_prefill, s_decode)
    quiet_s = rules.cooldown_s * state.back_off
    if state.moved_at_s is not None and seen.at_s - state.moved_at_s < quiet_s:
        waiting = RoleReason.COOLING_DOWN
        return state, _decision(seen, RoleAction.HOLD, waiting, s_prefill, s_decode)
    return _moved(state, seen, wanted, rules), _decision(seen, wanted, reason, s_prefill, s_decode)


def _remembered(state: RolesState, seen: RolesSeen, rules: RoleRules) -> RolesState:
    kept = tuple(one for one in state.ratios if one[0] > seen.at_s - rules.window_s)
    if seen.ttft_ms_p90 is not None and seen.tpot_ms_p90 is not None:
        now = (
            seen.at_s,
            min(seen.ttft_ms_p90 / seen.ttft_target_ms, RATIO_MAX),
            min(seen.tpot_ms_p90 / seen.tpot_target_ms, RATIO_MAX),
        )
        kept = (*kept, now)
    return msgspec.structs.replace(state, ratios=kept)


def _means(state: RolesState) -> tuple[float | None, float | None]:
    count = len(state.ratios)
    if count == 0:
        return None, None
    return (
        sum(one[1] for one in state.ratios) / count,
        sum(one[2] for one in state.ratios) / count,
    )


def _is_unknown(seen: RolesSeen, rules: RoleRules) -> bool:
    return (
        seen.samples < rules.samples_min
        or seen.ttft_ms_p90 is None
        or seen.tpot_ms_p90 is None
        or seen.kv_used_share is None
        or seen.preemptions is None
        or seen.local_work is None
    )


def _wanted(
    seen: RolesSeen, s_prefill: float, s_decode: float, rules: RoleRules
) -> tuple[RoleAction, RoleReason]:
    """Return what the rules of cause ask for, before streaks and cool-downs."""
    assert seen.kv_used_share is not None
    assert seen.local_work is not None
    if seen.moving:
        return RoleAction.HOLD, RoleReason.MOVING
    full = seen.kv_used_share >= rules.kv_high or bool(seen.preemptions)
    if full and seen.prefill:
        return RoleAction.MORE_DECODE, RoleReason.DECODE_FULL
    if full:
        return RoleAction.HOLD, RoleReason.DECODE_FULL
    if s_prefill < rules.act_below and s_decode < rules.act_below:
        return _merge(seen, max(s_prefill, s_decode), rules)
    needs_prefill, needs_decode = s_prefill > rules.act_above, s_decode > rules.act_above
    if seen.prefill == 0:
        # Whole requests: prompts that stall answers show in both phases, and only a split can tell them apart.
        return _split(seen, needs_prefill or needs_decode, rules)
    if needs_decode and seen.local_work >= rules.long_share_min and seen.decode > 1:
        return RoleAction.MORE_PREFILL, RoleReason.LONG_PROMPTS_STALL
    if needs_prefill and needs_decode and s_decode * 1.5 > s_prefill and s_prefill * 1.5 > s_decode:
        return RoleAction.HOLD, RoleReason.BOTH_NEED
    if needs_prefill and s_prefill >= s_decode:
        return _more_prefill(seen, s_decode, rules)
    if needs_decode:
        return _more_decode(seen, s_prefill, rules)
    return RoleAction.HOLD, RoleReason.WITHIN_BAND


def _merge(seen: RolesSeen, busiest: float, rules: RoleRules) -> tuple[RoleAction, RoleReason]:
    if seen.prefill == 0:
        return RoleAction.HOLD, RoleReason.BOTH_LOW
    if not _stands(busiest, max(seen.prefill, 2), rules.act_above):
        return RoleAction.HOLD, RoleReason.REST_TOO_BUSY
    return RoleAction.MERGE, RoleReason.BOTH_LOW


def _split(seen: RolesSeen, needs: bool, rules: RoleRules) -> tuple[RoleAction, RoleReason]:
    assert seen.local_work is not None
    if not needs:
        return RoleAction.HOLD, RoleReason.WITHIN_BAND
    if seen.decode < 2:
        return RoleAction.HOLD, RoleReason.LAST_OF_ITS_ROLE
    if seen.local_work < rules.long_share_min:
        return RoleAction.HOLD, RoleReason.FEW_LONG_PROMPTS
    return RoleAction.SPLIT, RoleReason.PREFILL_NEEDS


def _more_prefill(
    seen: RolesSeen, s_decode: float, rules: RoleRules
) -> tuple[RoleAction, RoleReason]:
    if seen.decode < 2:
        return RoleAction.HOLD, RoleReason.LAST_OF_ITS_ROLE
    if not _stands(s_decode, seen.decode, rules.rest_below):
        return RoleAction.HOLD, RoleReason.REST_TOO_BUSY
    return RoleAction.MORE_PREFILL, RoleReason.PREFILL_NEEDS


def _more_decode(
    seen: RolesSeen, s_prefill: float, rules: RoleRules
) -> tuple[RoleAction, RoleReason]:
    # The last prefill replica may go only where whole requests are fine, which is what a merge asks.
    if seen.prefill < 2:
        return RoleAction.HOLD, RoleReason.LAST_OF_ITS_ROLE
    if not _stands(s_prefill, seen.prefill, rules.rest_below):
        return RoleAction.HOLD, RoleReason.REST_TOO_BUSY
    return RoleAction.MORE_DECODE, RoleReason.DECODE_NEEDS


def _stands(ratio: float, replicas: int, below: float) -> bool:
    """Say whether a phase with one replica fewer is predicted to stay below a ratio."""
    return replicas > 1 and ratio * replicas / (replicas - 1) < below


_TOWARDS_DECODE: Final = frozenset({RoleAction.MORE_DECODE, RoleAction.MERGE})


def _moved(state: RolesState, seen: RolesSeen, action: RoleAction, rules: RoleRules) -> RolesState:
    was, now = state.last in _TOWARDS_DECODE, action in _TOWARDS_DECODE
    takes_back = state.last is not RoleAction.HOLD and was is not now
    back_off = min(BACK_OFF_MAX, state.back_off * 2.0) if takes_back else 1.0
    return RolesState(moved_at_s=seen.at_s, last=action, back_off=back_off)


def _held(
    state: RolesState,
    seen: RolesSeen,
    reason: RoleReason,
    s_prefill: float | None,
    s_decode: float | None,
) -> tuple[RolesState, RolesDecision]:
    rested = msgspec.structs.replace(state, wanted=RoleAction.HOLD, streak=0)
    return rested, _decision(seen, RoleAction.HOLD, reason, s_prefill, s_decode)


def _decision(
    seen: RolesSeen,
    action: RoleAction,
    reason: RoleReason,
    s_prefill: float | None,
    s_decode: float | None,
) -> RolesDecision:
    return RolesDecision(
        at_s=seen.at_s,
        action=action,
        reason=reason,
        ttft_ratio=s_prefill,
        tpot_ratio=s_decode,
    )
