"""How many replicas prefill and how many decode: one step at a time, by how near each phase is to its target.

Law: s = mean over the window of min(P90 / target, 2), for TTFT (prefill) and TPOT (decode) apart. Above `act_above` a
phase needs a replica, below `act_below` it can give one, between them nothing moves. Rules of cause, the first that
holds:
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

Dearness of a transfer is the lesser of its time / (`transfer_high` * TTFT target) and its time / (half of computing
its own prompt): what is long to move may be much longer to compute. Where the P90 of it is above 1, one transfer in ten
is dear by both, and no role moves for it: the mark from which prompts travel doubles (`local_factor`, up to eight
times, halved again below half of it), and a nearer pair and a lower KV precision are proposed.

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

RATIO_MAX: Final = 2.0
BACK_OFF_MAX: Final = 8.0
LOCAL_FACTOR_MAX: Final = 8.0
HOUR_S: Final = 3600.0

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
    unknown = _unknown(seen, rules)
    if s_prefill is not None and s_decode is not None and not unknown:
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
    return msgspec.structs.replace(state, ratios=kept, changes=changes)


def _with_transfers(state: RolesState, seen: RolesSeen, rules: RoleRules) -> RolesState:
    """Move the mark from which prompts travel, at most once a window, by what hand-overs took."""
    before, moved_at_s = state.local_factor, state.factored_at_s
    if moved_at_s is not None and seen.at_s - moved_at_s < rules.window_s:
        return state
    dearness = seen.dearness_p90
    factor = before
    if dearness is not None and dearness > 1.0:
        factor = min(LOCAL_FACTOR_MAX, before * 2.0)
    elif dearness is None or dearness < 0.5:
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
