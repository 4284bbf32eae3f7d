"""How many replicas prefill and how many decode: one step at a time, by how near each phase is to its target.

Law: s = mean over the window of min(P90 / target, 2), for TTFT (prefill) and TPOT (decode) apart. Above `act_above` a
phase needs a replica, below `act_below` it can give one, between them nothing moves. Rules of cause, the first that
holds:
    low traffic, and roles apart               merge
    unknown, or a change under way             hold
    decode KV high, or preempting              more decode: TTFT that rises because decode is full is no want of prefill
    both phases low                            merge: a prefill replica goes back to whole requests
    decode needs, and is predicted to gain     more decode, however late first tokens are (the last one: merge)
    decode needs, and gains by less to stall   more prefill, if its replicas are at work: no want of decode
    prefill needs, decode stands N / (N - 1)   more prefill, if its replicas are at work
    anything needs, whole requests everywhere  split, if decode is predicted to gain by it
    both need                                  hold: more replicas are another lever

Prediction. Of D replicas that decode, long prompts keep w at work, short prompts and what a batch adds d; a step takes
    step = idle * D / (D - w - d),         so that         D - w - d = D * idle / step = D * (1 - lost)
with `lost` the share of an answer's time beyond that of a stream alone, and `step` = TPOT * tokens per step: drafts
give a step several tokens, which makes nobody wait less. It is a mean over the answers that tell theirs; where fewer
than half do, or fewer than `samples_min`, `lost` is unknown. One replica
more that decodes, to which `back` replicas' work of long prompts comes with it, is better exactly if back < lost; one
fewer that takes `ahead` off it is better exactly if ahead > lost. Work that prefill replicas have comes back as far as
the rest, N / (N - 1) as busy, would be at work for more than now and more than `work_high` of the time: beyond that
queues are long, and prompts stay. For the same reason no more goes ahead than keeps them at work for that. `gain_min`
of a replica must be gained.
So under overload, where lost nears 1, nothing is split: no replica takes more than one
replica's work off the others. It never leaves more replicas to prefill than to decode for the sake of decode.
Work and lost are means over the time that a move lasts, `cooldown_s`, if that is longer than the window.

A replica is taken from decode for late first tokens only if what is predicted for the rest, s * N / (N - 1), stays
below `rest_below`; another prefill replica comes only where those there are busy for `work_high` of the time.
A rule must hold for `ticks` ticks in a row, and after a change nothing moves for `cooldown_s` (longer than the time to
change plus the window), twice as long for each change that took the last one back, up to eight times. No more than
`changes_per_hour` times the replicas change within an hour, whatever happens.

Preempting is what was seen to preempt in `ticks` looks of the window, or in all of them where it has fewer: pages of
servers come when they come, and one preemption is no want of room.

Low traffic. With fewer requests in a window than a P90 needs, ratios and `lost` are unknown; what is known suffices to
merge: somebody asked, at most `LOW_IN_FLIGHT` requests a replica were under way (mean over the window, those that wait
counted), KV is used by less than half of `kv_high`, nothing preempts, and long prompts keep no more than `gain_min` of
a replica at work, ahead and here together. A split asks for more than that of them, so none can follow from the same
load. Where nobody asked at all roles stay: nothing tells what will come.

Dearness of a transfer is the lesser of its time / (`transfer_high` * TTFT target) and its time / (half of computing
its own prompt): what is long to move may be much longer to compute. Where the P90 of it is above 1, one transfer in ten
is dear by both, and no role moves for it: the mark from which prompts travel doubles (`policies.travel_mark`), and a
nearer pair and a lower KV precision are proposed.

Failure modes: what verifying drafts adds to a step counts as lost where the idle step was timed without them; a target
that an idle replica hardly meets (TPOT near a lone stream's) never lets roles merge; a P90 over few requests jumps,
hence `samples_min`; traffic that turns faster than the cool-down is followed late.

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
from trimtab.policies.travel_mark import TravelMark, moved_mark

RATIO_MAX: Final = 2.0
BACK_OFF_MAX: Final = 8.0
HOUR_S: Final = 3600.0

LOW_IN_FLIGHT: Final = 0.25
"""Requests under way per replica up to which a fleet is nearly idle."""

TRANSFER_ADVICE: Final = (
    RoleAdvice.HIGHER_LOCAL_THRESHOLD,
    RoleAdvice.NEARER_PAIR,
    RoleAdvice.LOWER_KV_PRECISION,
)


class RoleRules(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the control is told. Times in seconds; shares and ratios from 0.

    `gain_min`: part of a replica that decode must be predicted to gain by a move. `work_high`: busy share of prefill
    replicas from which they are at work, so that another may come there.
    `changes_per_hour`: role changes of a replica, mean over all; `transfer_high`: part of the TTFT target.
    """

    act_above: Annotated[float, Meta(gt=0.0, le=2.0)] = 0.55
    act_below: Annotated[float, Meta(gt=0.0, le=2.0)] = 0.40
    rest_below: Annotated[float, Meta(gt=0.0, le=2.0)] = 0.85
    kv_high: Annotated[float, Meta(gt=0.0, le=1.0)] = 0.90
    gain_min: Annotated[float, Meta(ge=0.0, le=1.0)] = 0.10
    window_s: Annotated[float, Meta(gt=0.0)] = 60.0
    cooldown_s: Annotated[float, Meta(ge=0.0)] = 180.0
    ticks: Annotated[int, Meta(ge=1)] = 3
    samples_min: Annotated[int, Meta(ge=1)] = 10
    work_high: Annotated[float, Meta(gt=0.0, le=1.0)] = 0.70
    changes_per_hour: Annotated[float, Meta(gt=0.0)] = 2.0
    transfer_high: Annotated[float, Meta(gt=0.0, le=2.0)] = 0.25


class RolesState(msgspec.Struct, frozen=True, kw_only=True):
    """What the control remembers. `ratios`: (time, TTFT ratio, TPOT ratio) of the ticks within the window.

    `changes`: times of changes within the last hour; `mark`: from which prompts travel.
    """

    ratios: tuple[tuple[float, float, float], ...] = ()
    wanted: RoleAction = RoleAction.HOLD
    streak: int = 0
    moved_at_s: float | None = None
    last: RoleAction = RoleAction.HOLD
    back_off: float = 1.0
    changes: tuple[float, ...] = ()
    mark: TravelMark = TravelMark()


def control(
    state: RolesState, seen: RolesSeen, rules: RoleRules
) -> tuple[RolesState, RolesDecision]:
    """Take in one tick; return the new state and what to do now."""
    state = _remembered(state, seen, rules)
    s_prefill, s_decode = _means(state)
    wanted, reason = RoleAction.HOLD, RoleReason.UNKNOWN
    unknown = _unknown(seen, rules)
    if s_prefill is not None and s_decode is not None and not unknown:
        wanted, reason = _wanted(seen, s_prefill, s_decode, rules)
    elif _is_low_traffic(seen, rules):
        wanted, reason = RoleAction.MERGE, RoleReason.LOW_TRAFFIC
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
        local_factor=state.mark.factor,
        advice=TRANSFER_ADVICE if state.mark.factor > 1.0 else (),
        unknown=unknown if reason is RoleReason.UNKNOWN else (),
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
    mark = moved_mark(state.mark, seen.dearness_p90, now_s=seen.at_s, window_s=rules.window_s)
    return msgspec.structs.replace(state, ratios=kept, changes=changes, mark=mark)


def _means(state: RolesState) -> tuple[float | None, float | None]:
    count = len(state.ratios)
    if count == 0:
        return None, None
    return (
        sum(one[1] for one in state.ratios) / count,
        sum(one[2] for one in state.ratios) / count,
    )


def _unknown(seen: RolesSeen, rules: RoleRules) -> tuple[str, ...]:
    """Return in words what is not known, without which nothing moves."""
    lost = f"the time that answers lose: {seen.lost_unknown or 'not measured'}"
    rows: tuple[tuple[bool, str], ...] = (
        (
            seen.samples < rules.samples_min,
            f"{seen.samples} requests ended, {rules.samples_min} are needed",
        ),
        (seen.ttft_ms_p90 is None, "times to the first token"),
        (seen.tpot_ms_p90 is None, "times per token"),
        (seen.kv_used_share is None, "KV in use on the decode side"),
        (seen.preemptions is None, "preemptions of the decode side"),
        (
            seen.local_work is None or seen.ahead_work is None,
            "work of long prompts: not watched for a window yet",
        ),
        (seen.lost_share is None, lost),
    )
    return tuple(words for is_absent, words in rows if is_absent)


def _wanted(
    seen: RolesSeen, s_prefill: float, s_decode: float, rules: RoleRules
) -> tuple[RoleAction, RoleReason]:
    """Return what the rules of cause ask for, before streaks and cool-downs."""
    assert seen.kv_used_share is not None
    assert seen.lost_share is not None
    if seen.moving:
        return RoleAction.HOLD, RoleReason.MOVING
    full = seen.kv_used_share >= rules.kv_high or _preempts(seen, rules)
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
    if needs_decode and seen.lost_share - _comes_back(seen, rules) > rules.gain_min:
        return _to_decode(seen, rules)
    stalled = needs_decode and _goes_ahead(seen, rules) - seen.lost_share > rules.gain_min
    # Most replicas go on answering: of a few, one that goes over is a large part of those that are left.
    most_decode = seen.decode - 1 >= seen.prefill + 1
    if stalled and most_decode and _is_busy(seen, rules):
        return RoleAction.MORE_PREFILL, RoleReason.LONG_PROMPTS_STALL
    if needs_prefill and needs_decode and s_decode * 1.5 > s_prefill and s_prefill * 1.5 > s_decode:
        return RoleAction.HOLD, RoleReason.BOTH_NEED
    if needs_prefill and s_prefill >= s_decode:
        return _more_prefill(seen, s_decode, rules)
    if needs_decode:
        # What comes back with a prefill replica would cost answers as much as they gain.
        return RoleAction.HOLD, RoleReason.REST_TOO_BUSY
    return RoleAction.HOLD, RoleReason.WITHIN_BAND


def _preempts(seen: RolesSeen, rules: RoleRules) -> bool:
    """Say whether the decode side preempts now, or did in as many looks of the window as a rule must hold for."""
    if seen.preemptions is not None and seen.preemptions > 0:
        return True
    return seen.looks > 0 and seen.looks_preempted >= min(rules.ticks, seen.looks)


def _is_low_traffic(seen: RolesSeen, rules: RoleRules) -> bool:
    """Say whether roles are apart and what is known of few requests suffices to merge them."""
    long_work = (seen.ahead_work, seen.local_work)
    if seen.prefill == 0 or seen.moving or not 0 < seen.requests < rules.samples_min:
        return False
    if seen.in_flight is None or seen.kv_used_share is None or seen.preemptions is None:
        return False
    return (
        seen.in_flight <= LOW_IN_FLIGHT * (seen.prefill + seen.decode)
        and seen.kv_used_share < rules.kv_high / 2.0
        and not _preempts(seen, rules)
        and None not in long_work
        and sum(work or 0.0 for work in long_work) <= rules.gain_min
    )


def _merge(seen: RolesSeen, busiest: float, rules: RoleRules) -> tuple[RoleAction, RoleReason]:
    if seen.prefill == 0:
        return RoleAction.HOLD, RoleReason.BOTH_LOW
    if not _stands(busiest, max(seen.prefill, 2), rules.act_above):
        return RoleAction.HOLD, RoleReason.REST_TOO_BUSY
    return RoleAction.MERGE, RoleReason.BOTH_LOW


def _split(seen: RolesSeen, needs: bool, rules: RoleRules) -> tuple[RoleAction, RoleReason]:
    assert seen.lost_share is not None
    if not needs:
        return RoleAction.HOLD, RoleReason.WITHIN_BAND
    if seen.decode < 2:
        return RoleAction.HOLD, RoleReason.LAST_OF_ITS_ROLE
    if _goes_ahead(seen, rules) - seen.lost_share <= rules.gain_min:
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


def _comes_back(seen: RolesSeen, rules: RoleRules) -> float:
    """Return how many replicas' work of long prompts goes to the decode side with one prefill replica fewer."""
    assert seen.ahead_work is not None
    busy = max(rules.work_high, seen.ahead_work / seen.prefill)
    return max(0.0, seen.ahead_work - busy * (seen.prefill - 1))


def _goes_ahead(seen: RolesSeen, rules: RoleRules) -> float:
    """Return how many replicas' work of long prompts the decode side gets rid of with one prefill replica more."""
    assert seen.ahead_work is not None
    assert seen.local_work is not None
    room = rules.work_high * (seen.prefill + 1) - seen.ahead_work
    return max(0.0, min(seen.local_work, room))


def _is_busy(seen: RolesSeen, rules: RoleRules) -> bool:
    assert seen.ahead_work is not None
    return seen.ahead_work >= rules.work_high * seen.prefill


def _to_decode(seen: RolesSeen, rules: RoleRules) -> tuple[RoleAction, RoleReason]:
    """Return how decode gets a replica; idle is what has less to do than a move must gain."""
    assert seen.ahead_work is not None
    assert seen.local_work is not None
    action = RoleAction.MERGE if seen.prefill == 1 else RoleAction.MORE_DECODE
    if seen.ahead_work > rules.gain_min * seen.prefill:
        return action, RoleReason.DECODE_NEEDS
    if action is RoleAction.MERGE and seen.local_work <= rules.gain_min:
        return action, RoleReason.FEW_LONG_PROMPTS
    return action, RoleReason.PREFILL_IDLE


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
