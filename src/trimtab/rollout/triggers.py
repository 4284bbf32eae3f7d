"""Triggers: a watched number that takes a lever back, and lets it return lower, with hysteresis.

Law: off when the number is beyond `off_at` for `ticks` ticks in a row; back when it is beyond `on_at` on the
other side for `ticks` ticks in a row and `lockout_s` has passed since it went off. Between the two marks nothing
moves, and a count in progress starts anew. An unknown number, or one of too few samples, leaves everything as it
is: it neither fires nor recovers, and a count in progress waits. A trigger whose
action was undone, because it did harm, rests until `rests_until_s`.
"""

import msgspec

from trimtab.core.lever import TriggerAction, TriggerSpec


class TriggerWatch(msgspec.Struct, frozen=True, kw_only=True):
    """A trigger and where it stands. `streak`: ticks in a row that speak for the next move."""

    spec: TriggerSpec
    is_off: bool = False
    streak: int = 0
    moved_at_s: float | None = None
    rests_until_s: float | None = None


class Action(msgspec.Struct, frozen=True, kw_only=True):
    """What a trigger asks for. `fired`: take the lever back (else let it return); `value` is what it saw."""

    fired: bool
    action: TriggerAction
    value: float
    samples: int
    reason: str


def watch(
    state: TriggerWatch, reading: float | None, samples: int, now_s: float
) -> tuple[TriggerWatch, Action | None]:
    """Take one tick's reading; return the new state and what to do, if anything."""
    spec = state.spec
    if reading is None or samples < spec.min_samples or _rests(state, now_s):
        return state, None
    if not _speaks_for_move(state, reading):
        return msgspec.structs.replace(state, streak=0), None
    streak = min(state.streak + 1, spec.ticks)
    counted = msgspec.structs.replace(state, streak=streak)
    if streak < spec.ticks or (state.is_off and _locked(state, now_s)):
        return counted, None
    fired = not state.is_off
    moved = msgspec.structs.replace(counted, is_off=fired, streak=0, moved_at_s=now_s)
    return moved, Action(
        fired=fired,
        action=spec.action,
        value=reading,
        samples=samples,
        reason=_words(spec, reading, fired),
    )


def _speaks_for_move(state: TriggerWatch, reading: float) -> bool:
    spec = state.spec
    if not state.is_off:
        return reading > spec.off_at if spec.off_when_above else reading < spec.off_at
    if spec.on_at is None:
        return False
    return reading < spec.on_at if spec.off_when_above else reading > spec.on_at


def undone(state: TriggerWatch, now_s: float, rest_s: float) -> TriggerWatch:
    """Return the watch of a trigger whose action was taken back: it lets go, and rests."""
    return msgspec.structs.replace(
        state, is_off=False, streak=0, moved_at_s=now_s, rests_until_s=now_s + rest_s
    )


def _rests(state: TriggerWatch, now_s: float) -> bool:
    return not state.is_off and state.rests_until_s is not None and now_s < state.rests_until_s


def _locked(state: TriggerWatch, now_s: float) -> bool:
    return state.moved_at_s is not None and now_s - state.moved_at_s < state.spec.lockout_s


def _words(spec: TriggerSpec, reading: float, fired: bool) -> str:
    if fired:
        side, mark = ("above" if spec.off_when_above else "below"), spec.off_at
    else:
        assert spec.on_at is not None, "without a mark to return at, nothing returns"
        side, mark = ("below" if spec.off_when_above else "above"), spec.on_at
    return f"{spec.signal.value} {reading:.3g} {side} {mark:.3g} for {spec.ticks} ticks"
