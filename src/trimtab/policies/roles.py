"""How many replicas prefill and how many decode: one step at a time, by how near each phase is to its target.

Law: s = mean over the window of min(P90 / target, 2), for TTFT (prefill) and TPOT (decode) apart. Above `act_above` a
phase needs a replica, below `act_below` it can give one, between them nothing moves. Rules of cause, the first that
holds:
    unknown, or a change under way             hold
    decode KV high, or preempting              more decode: TTFT that rises because decode is full is no want of prefill
    both phases low                            merge: a prefill replica goes back to whole requests
    decode needs, prefill has little to do     more decode, however late first tokens are (the last one: merge)
    decode needs, long prompts stall it        more prefill, if its replicas are at work: no want of decode
    prefill needs, decode stands N / (N - 1)   more prefill, if its replicas are at work (from none: split)
    decode needs, prefill stands N / (N - 1)   more decode
    both need                                  hold: more replicas are another lever
Long prompts stall decode where those computed on the decode side keep w of its D replicas at work: TPOT without them on
one replica fewer is (1 - w / D) * D / (D - 1) of now, which gains from w = 1 on; `long_share_min` is that mark. It
never leaves more replicas to prefill than to decode.

A replica is taken from a phase only if what is predicted for the rest, s * N / (N - 1), stays below `rest_below`, and
from prefill only if the work sent there keeps the rest busy for at most `work_high` of the time; another prefill
replica comes only where those there are busy for as much. Below `work_low` of it they have little to do.
A rule must hold for `ticks` ticks in a row, and after a change nothing moves for `cooldown_s` (longer than the time to
change plus the window), twice as long for each change that took the last one back, up to eight times. No more than
`changes_per_hour` times the replicas change within an hour, whatever happens.

Transfers that take more than `transfer_high` of the TTFT target move no role: the mark from which prompts travel
doubles (`local_factor`, up to eight times, halved again below half of it), and a nearer pair and a lower KV precision
are proposed.

Failure modes: a target that an idle replica hardly meets (TPOT near a lone stream's) never lets roles merge; a
P90 over few requests jumps, hence `samples_min`; traffic that turns faster than the cool-down is followed late.

Source: windowed P90 over target with a band, as in the role controllers of production systems (Splitwise, ISCA 2024;
NVIDIA Dynamo's planner); N / (N - 1) is `levers.replicas`' rule for taking a replica away.
"""

from typing import Annotated, Final

import msgspec
from msgspec import Meta

from trimtab.core.roles import RoleAction as RoleAction
from trimtab.core.roles import RoleAdvice as RoleAdvice
from trimtab.core.roles import RoleReason as RoleReason
from trimtab.core.roles import RolesDecision as RolesDecision
from trimtab.core.roles import RolesSeen as RolesSeen

RATIO_MAX: Final = 2.0
BACK_OFF_MAX: Final = 8.0
LOCAL_FACTOR_MAX: Final = 8.0
HOUR_S: Final = 3600.0
FEW_IDLE: Final = 0.5
"""Part of `work_low` below which the last prefill replica may go: well below where another one would be asked for."""

TRANSFER_ADVICE: Final = (
    RoleAdvice.HIGHER_LOCAL_THRESHOLD,
    RoleAdvice.NEARER_PAIR,
    RoleAdvice.LOWER_KV_PRECISION,
)


class RoleRules(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the control is told. Times in seconds; shares and ratios from 0.

    `long_share_min`: replicas' worth of long prompts on the decode side from which they are worth a prefill replica.
    `work_low`, `work_high`: busy share of prefill replicas below which they have little to do, above which they are at
    work: another may come there, and one may go only if the others stay below it.
    `changes_per_hour`: role changes of a replica, mean over all; `transfer_high`: part of the TTFT target.
    """

    act_above: Annotated[float, Meta(gt=0.0, le=2.0)] = 0.55
    act_below: Annotated[float, Meta(gt=0.0, le=2.0)] = 0.40
    rest_below: Annotated[float, Meta(gt=0.0, le=2.0)] = 0.85
    kv_high: Annotated[float, Meta(gt=0.0, le=1.0)] = 0.90
    long_share_min: Annotated[float, Meta(ge=0.0)] = 1.0
    window_s: Annotated[float, Meta(gt=0.0)] = 60.0
    cooldown_s: Annotated[float, Meta(ge=0.0)] = 180.0
    ticks: Annotated[int, Meta(ge=1)] = 3
    samples_min: Annotated[int, Meta(ge=1)] = 10
    work_low: Annotated[float, Meta(ge=0.0, le=1.0)] = 0.30
    work_high: Annotated[float, Meta(gt=0.0, le=1.0)] = 0.60
    changes_per_hour: Annotated[float, Meta(gt=0.0)] = 2.0
    transfer_high: Annotated[float, Meta(gt=0.0, le=2.0)] = 0.25


class RolesState(msgspec.Struct, frozen=True, kw_only=True):
    """What the control remembers. `ratios`: (time, TTFT ratio, TPOT ratio) of the ticks within the window.

    `changes`: times of changes within the last hour; `local_factor`: times the mark from which prompts travel.
    """

    ratios: tuple[tuple[float, float, float], ...] = ()
    wanted: RoleAction = RoleAction.HOLD
    streak: int = 0
    moved_at_s: float | None = None
    last: RoleAction = RoleAction.HOLD
    back_off: float = 1.0
    changes: tuple[float, ...] = ()
    local_factor: float = 1.0
    factored_at_s: float | None = None


def control(
    state: RolesState, seen: RolesSeen, rules: RoleRules
) -> tuple[RolesState, RolesDecision]:
    """Take in one tick; return the new state and what to do now."""
    state = _with_transfers(_remembered(state, seen, rules), seen, rules)
    s_prefill, s_decode = _means(state)
    wanted, reason = RoleAction.HOLD, RoleReason.UNKNOWN
    if s_prefill is not None and s_decode is not None and not _is_unknown(seen, rules):
        wanted, reason = _wanted(seen, s_prefill, s_decode, rules)
    streak = state.streak + 1 if wanted is state.wanted else 1
    state = msgspec.structs.replace(
        state, wanted=wanted, streak=0 if wanted is RoleAction.HOLD else streak
    )
    if wanted is not RoleAction.HOLD:
        waits = _waits(state, seen, rules)
        if waits is None:
            state = _moved(state, seen, wanted)
        else:
            wanted, reason = RoleAction.HOLD, waits
    return state, RolesDecision(
        at_s=seen.at_s,
        action=wanted,
        reason=reason,
        ttft_ratio=s_prefill,
        tpot_ratio=s_decode,
        local_factor=state.local_factor,
        advice=TRANSFER_ADVICE if state.local_factor > 1.0 else (),
    )


def _waits(state: RolesState, seen: RolesSeen, rules: RoleRules) -> RoleReason | None:
    """Return why a move that is wanted is not made yet, None if it is made now."""
    if state.streak < rules.ticks:
        return RoleReason.NOT_YET
    quiet_s = rules.cooldown_s * state.back_off
    if state.moved_at_s is not None and seen.at_s - state.moved_at_s < quiet_s:
        return RoleReason.COOLING_DOWN
    replicas = seen.prefill + seen.decode + seen.moving
    if len(state.changes) + 1 > rules.changes_per_hour * replicas:
        return RoleReason.CHANGES_SPENT
    return None


def _remembered(state: RolesState, seen: RolesSeen, rules: RoleRules) -> RolesState:
    kept = tuple(one for one in state.ratios if one[0] > seen.at_s - rules.window_s)
    if seen.ttft_ms_p90 is not None and seen.tpot_ms_p90 is not None:
        now = (
            seen.at_s,
            min(seen.ttft_ms_p90 / seen.ttft_target_ms, RATIO_MAX),
            min(seen.tpot_ms_p90 / seen.tpot_target_ms, RATIO_MAX),
        )
        kept = (*kept, now)
    changes = tuple(at_s for at_s in state.changes if at_s > seen.at_s - HOUR_S)
    return msgspec.structs.replace(state, ratios=kept, changes=changes)


def _with_transfers(state: RolesState, seen: RolesSeen, rules: RoleRules) -> RolesState:
    """Move the mark from which prompts travel, at most once a window, by what hand-overs took."""
    before, moved_at_s = state.local_factor, state.factored_at_s
    if moved_at_s is not None and seen.at_s - moved_at_s < rules.window_s:
        return state
    share = None if seen.transfer_ms_p90 is None else seen.transfer_ms_p90 / seen.ttft_target_ms
    factor = before
    if share is not None and share > rules.transfer_high:
        factor = min(LOCAL_FACTOR_MAX, before * 2.0)
    elif share is None or share < 0.5 * rules.transfer_high:
        # With nothing handed over nobody knows: the mark comes down until something travels again.
        factor = max(1.0, before / 2.0)
    if factor == before:
        return state
    return msgspec.structs.replace(state, local_factor=factor, factored_at_s=seen.at_s)


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
        or seen.ahead_work is None
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
    if needs_decode and _is_idle(seen, rules):
        # Prompts are computed beside answers all the same: what prefills has nothing to do and can answer.
        return _from_idle(seen, rules)
    stalled = needs_decode and seen.local_work >= rules.long_share_min
    # Most replicas go on answering: of a few, one that goes over is a large part of those that are left.
    most_decode = seen.decode - 1 >= seen.prefill + 1
    if stalled and most_decode and _is_busy(seen, rules):
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
    if not _is_busy(seen, rules):
        # First tokens are late for another reason: more replicas that prefill would have little to do.
        return RoleAction.HOLD, RoleReason.PREFILL_HAS_ROOM
    return RoleAction.MORE_PREFILL, RoleReason.PREFILL_NEEDS


def _is_idle(seen: RolesSeen, rules: RoleRules) -> bool:
    assert seen.ahead_work is not None
    return seen.ahead_work < rules.work_low * seen.prefill


def _is_busy(seen: RolesSeen, rules: RoleRules) -> bool:
    assert seen.ahead_work is not None
    return seen.ahead_work >= rules.work_high * seen.prefill


def _from_idle(seen: RolesSeen, rules: RoleRules) -> tuple[RoleAction, RoleReason]:
    assert seen.ahead_work is not None
    if seen.prefill > 1:
        return RoleAction.MORE_DECODE, RoleReason.PREFILL_IDLE
    if seen.ahead_work < FEW_IDLE * rules.work_low:
        return RoleAction.MERGE, RoleReason.FEW_LONG_PROMPTS
    return RoleAction.HOLD, RoleReason.LAST_OF_ITS_ROLE


def _more_decode(
    seen: RolesSeen, s_prefill: float, rules: RoleRules
) -> tuple[RoleAction, RoleReason]:
    assert seen.ahead_work is not None
    if seen.prefill < 2:
        # The last prefill replica may go only where whole requests are fine.
        return RoleAction.HOLD, RoleReason.LAST_OF_ITS_ROLE
    if not _stands(s_prefill, seen.prefill, rules.rest_below):
        return RoleAction.HOLD, RoleReason.REST_TOO_BUSY
    if seen.ahead_work > rules.work_high * (seen.prefill - 1):
        return RoleAction.HOLD, RoleReason.REST_TOO_BUSY
    return RoleAction.MORE_DECODE, RoleReason.DECODE_NEEDS


def _stands(ratio: float, replicas: int, below: float) -> bool:
    """Say whether a phase with one replica fewer is predicted to stay below a ratio."""
    return replicas > 1 and ratio * replicas / (replicas - 1) < below


_TOWARDS_DECODE: Final = frozenset({RoleAction.MORE_DECODE, RoleAction.MERGE})


def _moved(state: RolesState, seen: RolesSeen, action: RoleAction) -> RolesState:
    was, now = state.last in _TOWARDS_DECODE, action in _TOWARDS_DECODE
    takes_back = state.last is not RoleAction.HOLD and was is not now
    return msgspec.structs.replace(
        state,
        ratios=(),
        wanted=RoleAction.HOLD,
        streak=0,
        moved_at_s=seen.at_s,
        last=action,
        back_off=min(BACK_OFF_MAX, state.back_off * 2.0) if takes_back else 1.0,
        changes=(*state.changes, seen.at_s),
    )
