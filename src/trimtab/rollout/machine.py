"""How a rollout moves: a closed table of states, and the ramp that climbs it.

Law: a lever meets traffic in the shares of its ramp; at the last one it is proving. It leaves the first share
and the last only after a full peak cycle there, or once the recorded peak was seen again there; every step up needs a
`pass` of the gates on evidence from that share. `fail` takes it back at once, `hold` stays and gives up after
HOLD_CYCLES_MAX peak cycles at one share, `error` takes the traffic off and waits for a person for as long. While frozen
nothing is promoted; taking back still happens.

Failure mode: the clock of a share starts anew after a restart, so a rollout takes longer than it must.
"""

import msgspec

from trimtab.core.gate import GateResult
from trimtab.core.lever import LeverRecord, RampPlan
from trimtab.core.types import RolloutState, Verdict

HOLD_CYCLES_MAX = 10.0
"""Peak cycles at one share after which a rollout without enough evidence is taken back."""

BLOCKS_PER_STEP_MIN = 4
"""Blocks that pass at a share before it may grow: two pairs, so that old evidence cannot grow it twice."""

PEAK_BLOCKS = 6
"""Blocks that pass after the recorded peak was seen again: what it showed has to be judged, and six units can speak."""

BALANCED_SHARE = 0.5
"""Above this share the baseline has too little left to compare with side by side."""

_S = RolloutState

TRANSITIONS: dict[RolloutState, dict[RolloutState, str]] = {
    _S.PROPOSED: {
        _S.CANARY: "started: the first share meets the candidate",
        _S.ROLLED_BACK: "withdrawn",
        _S.EXPIRED: "never started in time",
    },
    _S.CANARY: {
        _S.RAMPING: "a full peak cycle and a pass",
        _S.PROVING: "the same, and the next share is the last, or there is none",
        _S.PAUSED: "a gate could not be judged, or a person paused it",
        _S.ROLLED_BACK: "a gate failed, or not enough evidence in time",
        _S.EXPIRED: "the record expired",
    },
    _S.RAMPING: {
        _S.RAMPING: "a pass: the next share",
        _S.PROVING: "a pass, and the next share is the last",
        _S.PAUSED: "a gate could not be judged, or a person paused it",
        _S.ROLLED_BACK: "a gate failed, or not enough evidence in time",
        _S.EXPIRED: "the record expired",
    },
    _S.PROVING: {
        _S.ADOPTED: "another full peak cycle and a pass, or a person adopted it",
        _S.PAUSED: "a gate could not be judged, or a person paused it",
        _S.ROLLED_BACK: "a gate failed, or not enough evidence in time",
        _S.EXPIRED: "the record expired",
    },
    _S.PAUSED: {
        _S.CANARY: "a person resumed it: from the first share",
        _S.ROLLED_BACK: "nobody resumed it in time",
        _S.EXPIRED: "the record expired",
    },
    _S.ADOPTED: {
        _S.RAMPING: "another lever that it shares with changed: to be verified again",
        _S.DISABLED: "a trigger fired, or a person switched it off",
        _S.ROLLED_BACK: "the paying budget binds, or a person took it back",
        _S.EXPIRED: "the record expired: it must prove itself again",
    },
    _S.DISABLED: {
        _S.ADOPTED: "its trigger let it come back, or a person did",
        _S.ROLLED_BACK: "a person took it back",
        _S.EXPIRED: "the record expired",
    },
    _S.ROLLED_BACK: {_S.PROPOSED: "proposed anew, with a new record"},
    _S.EXPIRED: {_S.PROPOSED: "proposed anew, with a new record"},
}
"""Every state with its exits and what causes them."""

RUNNING = frozenset({_S.CANARY, _S.RAMPING, _S.PROVING})
"""The states in which a slice of traffic meets the candidate."""


class TransitionError(ValueError):
    """A move that the table does not have; the message names both states."""


class Look(msgspec.Struct, frozen=True, kw_only=True):
    """One look at the gates. `frozen`: promotions are stopped; `concurrency`: most in flight since the look before."""

    verdict: Verdict
    results: tuple[GateResult, ...] = ()
    frozen: bool = False
    concurrency: int = 0


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """A share of the sessions in the slice, and since when."""

    share: float
    entered_at_s: float


class Rollout(msgspec.Struct, frozen=True, kw_only=True):
    """Where a rollout is. All times are of one clock, the caller's, in seconds.

    `share` is the part of the sessions in the slice: 0 when no traffic meets the candidate. `steps`: all shares
    so far, the last one in force. `looks` counts all looks, `passes` those that promoted. `peak_at_s`: when the
    recorded peak was first seen again in this state.
    """

    lever: str
    state: RolloutState
    share_index: int
    share: float
    started_at_s: float
    entered_at_s: float
    steps: tuple[Step, ...]
    looks: int = 0
    passes: int = 0
    verdict: Verdict | None = None
    reason: str = ""
    peak_at_s: float | None = None

    @property
    def share_entered_at_s(self) -> float:
        """Since when the present share is in force."""
        return self.steps[-1].entered_at_s


def begin(record: LeverRecord, now_s: float) -> Rollout:
    """Start a proposed lever: canary at the first share."""
    return Rollout(
        lever=record.name,
        state=RolloutState.CANARY,
        share_index=0,
        share=record.ramp.shares[0],
        started_at_s=now_s,
        entered_at_s=now_s,
        steps=(Step(share=record.ramp.shares[0], entered_at_s=now_s),),
        reason="first slice",
    )


def resume(record: LeverRecord, state: RolloutState, share: float, now_s: float) -> Rollout:
    """Return the rollout that a restart found, in its state and at its share, with clocks and evidence from zero.

    `state` and `share` come from the folded ledger. A running one at a share that the ramp does not have starts at
    the first. Raises `TransitionError` for a state in which nothing is being proven.
    """
    if state not in RUNNING and state is not RolloutState.PAUSED:
        raise TransitionError(f"a rollout that is {state.value} is not being proven")
    shares = record.ramp.shares
    if state is RolloutState.PAUSED:
        return move(begin(record, now_s), state, now_s, "paused before the restart")
    if share not in shares:
        return begin(record, now_s)
    return _at_share(record, state, shares.index(share), now_s, "resumed after a restart")


def verify(record: LeverRecord, now_s: float, reason: str) -> Rollout:
    """Begin to prove an adopted lever again, from the last share at which both arms are balanced."""
    shares = record.ramp.shares
    at = max((n for n, share in enumerate(shares) if share <= BALANCED_SHARE), default=0)
    return _at_share(record, RolloutState.RAMPING, at, now_s, reason)


def _at_share(
    record: LeverRecord, state: RolloutState, at: int, now_s: float, reason: str
) -> Rollout:
    share = record.ramp.shares[at]
    return msgspec.structs.replace(
        begin(record, now_s),
        state=state,
        share_index=at,
        share=share,
        steps=(Step(share=share, entered_at_s=now_s),),
        reason=reason,
    )


def move(rollout: Rollout, to: RolloutState, now_s: float, reason: str) -> Rollout:
    """Move along the table, keeping the share where the slice goes on; raises `TransitionError` off it."""
    if to not in TRANSITIONS[rollout.state]:
        raise TransitionError(f"{rollout.lever}: no way from {rollout.state.value} to {to.value}")
    return msgspec.structs.replace(
        rollout,
        state=to,
        share=rollout.share if to in RUNNING else 0.0,
        entered_at_s=now_s,
        reason=reason,
        peak_at_s=None,
    )


def advance(record: LeverRecord, rollout: Rollout, look: Look, now_s: float) -> Rollout:
    """Return the rollout after one look. Nothing but a `pass` promotes."""
    if rollout.state in RUNNING or rollout.state is RolloutState.PAUSED:
        if now_s - rollout.entered_at_s < 0.0:
            return rollout
        seen = msgspec.structs.replace(
            rollout,
            looks=rollout.looks + 1,
            verdict=look.verdict,
            peak_at_s=_peak_at_s(record, rollout, look, now_s),
        )
        if rollout.state is RolloutState.PAUSED:
            return _paused(record, seen, now_s)
        return _judge(record, seen, look, now_s)
    return rollout


def expire(record: LeverRecord, rollout: Rollout, wall_s: float, now_s: float) -> Rollout:
    """Return the rollout, expired if the wall clock is at or past the record's expiry."""
    ended = RolloutState.EXPIRED not in TRANSITIONS[rollout.state]
    if ended or wall_s < record.expires_at_s:
        return rollout
    return move(rollout, RolloutState.EXPIRED, now_s, "the record expired")


def render_transitions() -> str:
    """Return the table as Markdown, for the documents."""
    lines = ["| from | to | when |", "|---|---|---|"]
    for state, exits in TRANSITIONS.items():
        lines += [f"| {state.value} | {to.value} | {when} |" for to, when in exits.items()]
    return "\n".join(lines) + "\n"


def _paused(record: LeverRecord, rollout: Rollout, now_s: float) -> Rollout:
    if now_s - rollout.entered_at_s < HOLD_CYCLES_MAX * record.ramp.peak_cycle_s:
        return rollout
    return move(rollout, RolloutState.ROLLED_BACK, now_s, "paused, and nobody resumed it in time")


def _judge(record: LeverRecord, rollout: Rollout, look: Look, now_s: float) -> Rollout:
    match look.verdict:
        case Verdict.FAIL:
            return move(
                rollout, RolloutState.ROLLED_BACK, now_s, _because(look, "failed", Verdict.FAIL)
            )
        case Verdict.ERROR:
            reason = _because(look, "could not be judged", Verdict.ERROR)
            return move(rollout, RolloutState.PAUSED, now_s, reason)
        case Verdict.HOLD:
            return _hold(record, rollout, look, now_s)
        case Verdict.PASS:
            return rollout if look.frozen else _promote(record, rollout, now_s)


def _peak_at_s(record: LeverRecord, rollout: Rollout, look: Look, now_s: float) -> float | None:
    """When the recorded peak was first seen again in the present state; None: not yet, or only time counts."""
    peak = record.ramp.peak_concurrency
    if rollout.peak_at_s is not None or peak is None or look.concurrency < peak:
        return rollout.peak_at_s
    return now_s


def _over(ramp: RampPlan, rollout: Rollout, now_s: float) -> str | None:
    """Say what a peak cycle that is over was, None while it goes on."""
    if now_s - rollout.entered_at_s >= ramp.peak_cycle_s:
        return ramp.peak_is
    if rollout.peak_at_s is None or now_s - rollout.peak_at_s < PEAK_BLOCKS * ramp.block_s:
        return None
    return f"the recorded peak of {ramp.peak_concurrency} requests in flight"


def _hold(record: LeverRecord, rollout: Rollout, look: Look, now_s: float) -> Rollout:
    # Time at one share, not in one state: a ramp of one share is judged in two states.
    waited = now_s - rollout.share_entered_at_s
    if waited < HOLD_CYCLES_MAX * record.ramp.peak_cycle_s:
        return rollout
    reason = "not enough evidence in time; " + _because(look, "held", Verdict.HOLD)
    return move(rollout, RolloutState.ROLLED_BACK, now_s, reason)


def _promote(record: LeverRecord, rollout: Rollout, now_s: float) -> Rollout:
    ramp = record.ramp
    at_share = now_s - rollout.share_entered_at_s
    if at_share < BLOCKS_PER_STEP_MIN * ramp.block_s:
        return rollout
    cycle = _over(ramp, rollout, now_s)
    passed = msgspec.structs.replace(rollout, passes=rollout.passes + 1)
    last = len(ramp.shares) - 1
    if rollout.state is RolloutState.PROVING:
        if cycle is None:
            return rollout
        adopted = move(passed, RolloutState.ADOPTED, now_s, f"passed over {cycle}")
        return msgspec.structs.replace(adopted, share=1.0)
    if rollout.state is RolloutState.CANARY and cycle is None:
        return rollout
    index = min(rollout.share_index + 1, last)
    state = RolloutState.PROVING if index == last else RolloutState.RAMPING
    grown = move(passed, state, now_s, f"passed at {rollout.share:.0%}")
    if index == rollout.share_index:
        return grown
    share = ramp.shares[index]
    steps = (*rollout.steps, Step(share=share, entered_at_s=now_s))
    return msgspec.structs.replace(grown, share_index=index, share=share, steps=steps)


def _because(look: Look, what: str, verdict: Verdict) -> str:
    named = [result for result in look.results if result.verdict is verdict]
    if not named:
        return f"a gate {what}"
    return f"{named[0].gate} {what}: {named[0].reason}"
