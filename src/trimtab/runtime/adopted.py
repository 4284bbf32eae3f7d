"""What is kept of an adopted lever while its triggers watch it."""

from collections.abc import Iterable, Sequence
from typing import assert_never

import msgspec

from trimtab.core.cuts import KNOWN_BEFORE_SERVING, Cut, Dimension, temperature_bucket
from trimtab.core.events import CutsKept, TriggerMoved
from trimtab.core.lever import LeverRecord, TriggerAction, TriggerSpec
from trimtab.core.record import RequestRecord
from trimtab.rollout.aftermath import (
    NEVER_UNDONE,
    UNDO_REST_S,
    WATCH_S,
    Before,
    Harm,
    before_action,
    harm_of,
)
from trimtab.rollout.answer import ALL_TRAFFIC
from trimtab.rollout.triggers import Action, TriggerWatch, undone
from trimtab.runtime.proof import ControlError

PERSON = "a person"
"""What holds a lever off that somebody switched off: no trigger lets it come back."""

ASKED = "a person asked"
"""How the reason of everything begins that a person does to a lever."""


class Acted(msgspec.Struct, kw_only=True):
    """A trigger's action under watch: what was before it, and since when its effect shows (None: not yet)."""

    before: Before
    action: TriggerAction
    since_s: float | None = None


class Adopted(msgspec.Struct, kw_only=True):
    """An adopted lever under watch."""

    record: LeverRecord
    policy: str | None
    cuts: tuple[Cut, ...]
    cause_id: str
    watches: list[TriggerWatch]
    baseline_tpot_ms: dict[str, float]
    off_by: set[str] = set()
    is_moving: bool = False
    cuts_off: frozenset[Cut] = frozenset()
    acted: Acted | None = None
    without: tuple[Cut, ...] = ()

    @property
    def is_off(self) -> bool:
        """Whether any trigger holds the lever off; it comes back when the last of them lets go."""
        return bool(self.off_by)

    @property
    def is_on(self) -> bool:
        """Whether the lever serves: it is neither held off nor on its way off or back."""
        return not self.is_off and not self.is_moving

    @property
    def cuts_on(self) -> tuple[Cut, ...]:
        """The cuts that no trigger and nobody took out."""
        out = self.cuts_off | set(self.without)
        return tuple(cut for cut in self.cuts if cut not in out)

    def take_off(self, cut: Cut, reason: str) -> CutsKept:
        """Keep a cut off for good, whatever triggers say of it, and return what is recorded of that.

        Raises `ControlError` where the lever cannot be kept off it alone.
        """
        name = self.record.name
        if self.cuts and (cut not in self.cuts or cut in self.without):
            on = ", ".join(str(each) for each in self.cuts_on) or "no cut any more"
            raise ControlError(f"{name} is not on for {cut} by itself; it is on for {on}")
        if cut.dimension not in KNOWN_BEFORE_SERVING:
            raise ControlError(
                f"{cut} is known only when a request has been served: nothing can be kept off by it"
            )
        self.without = tuple(dict.fromkeys((*self.without, cut)))
        # What a trigger holds it off now is the lever's still: it comes back, after a restart too.
        left = tuple(str(each) for each in self.cuts if each not in self.without)
        kept = left if self.cuts else (ALL_TRAFFIC,)
        return CutsKept(lever=name, kept=kept, refused={str(cut): reason})

    def let_all_go(self) -> bool:
        """Let no trigger hold anything of it, each watched anew; say whether one did."""
        held = self.is_off or bool(self.cuts_off) or any(each.is_off for each in self.watches)
        self.off_by, self.cuts_off, self.acted = set(), frozenset(), None
        self.watches = [TriggerWatch(spec=spec) for spec in self.record.triggers]
        return held


class Said(msgspec.Struct, frozen=True, kw_only=True):
    """What a trigger asked for, in words, and the event that holds it."""

    trigger: str
    what: str
    cause_id: str


def note_action(
    lever: Adopted,
    spec: TriggerSpec,
    records: Sequence[RequestRecord],
    now_wall_s: float,
    *,
    fired: bool,
) -> None:
    """Keep what was before an action that may do harm itself; a trigger that lets go ends the watch."""
    lever.acted = None
    if not fired or spec.signal in NEVER_UNDONE:
        return
    recent = [one for one in records if one.finished_at_s >= now_wall_s - WATCH_S]
    cut = spec.cut if spec.action is TriggerAction.DISABLE_CUT else None
    lever.acted = Acted(before=before_action(spec.name, cut, recent), action=spec.action)


def harm_since(lever: Adopted, records: Sequence[RequestRecord], now_wall_s: float) -> Harm | None:
    """Return the harm that the last action did, None if none is shown; the watch begins once the lever has moved."""
    acted = lever.acted
    if acted is None:
        return None
    if acted.since_s is None:
        acted.since_s = now_wall_s
    if now_wall_s - acted.since_s > WATCH_S:
        lever.acted = None
        return None
    since_s = acted.since_s
    return harm_of(acted.before, [one for one in records if one.arrived_at_s >= since_s])


def rested(lever: Adopted, now_s: float) -> TriggerSpec:
    """Let the trigger whose action is undone rest, and return it; it was under watch."""
    assert lever.acted is not None, "only an action under watch is undone"
    name = lever.acted.before.trigger
    lever.acted = None
    at = next(n for n, each in enumerate(lever.watches) if each.spec.name == name)
    lever.watches[at] = undone(lever.watches[at], now_s, UNDO_REST_S)
    return lever.watches[at].spec


def action_undone(spec: TriggerSpec, harm: Harm) -> Action:
    """Return what undoing an action is for the record: the trigger lets go, because of the requests since."""
    return Action(
        fired=False,
        action=spec.action,
        value=float(harm.worse),
        samples=harm.n,
        reason=harm.reason,
    )


def own_cut(lever: Adopted, spec: TriggerSpec) -> frozenset[Cut]:
    """Return the cut that a trigger takes out: one of the lever's, or one that can be told and lies across them."""
    cut = spec.cut
    if cut is None:
        return frozenset()
    across = all(cut.dimension is not own.dimension for own in lever.cuts)
    mine = cut in lever.cuts or (across and cut.dimension in KNOWN_BEFORE_SERVING)
    return frozenset({cut}) if mine else frozenset()


def watches_of(record: LeverRecord, fired: frozenset[str], now_s: float) -> list[TriggerWatch]:
    """Return the watch of each trigger; `fired`: those that hold something back from the start."""
    return [
        TriggerWatch(spec=spec, is_off=spec.name in fired, moved_at_s=now_s)
        for spec in record.triggers
    ]


def hold_back(lever: Adopted, spec: TriggerSpec) -> None:
    """Note what a trigger that fired takes from the lever: itself, or one cut."""
    match spec.action:
        case TriggerAction.DISABLE:
            lever.off_by.add(spec.name)
        case TriggerAction.DISABLE_CUT:
            lever.cuts_off = lever.cuts_off | own_cut(lever, spec)
        case TriggerAction.DISTRUST_INDEX | TriggerAction.LOWER_AFFINITY:
            return
        case _:
            assert_never(spec.action)


def give_back(lever: Adopted, spec: TriggerSpec) -> None:
    """Note that a trigger takes nothing from the lever any more."""
    match spec.action:
        case TriggerAction.DISABLE:
            lever.off_by.discard(spec.name)
        case TriggerAction.DISABLE_CUT:
            lever.cuts_off = lever.cuts_off - own_cut(lever, spec)
        case TriggerAction.DISTRUST_INDEX | TriggerAction.LOWER_AFFINITY:
            return
        case _:
            assert_never(spec.action)


def lowers_affinity(levers: Iterable[Adopted]) -> bool:
    """Say whether any trigger of any lever wants less affinity now."""
    return any(
        each.is_off and each.spec.action is TriggerAction.LOWER_AFFINITY
        for lever in levers
        for each in lever.watches
    )


def told_of(lever: Adopted, spec: TriggerSpec, action: Action, what: str) -> TriggerMoved:
    """Return what is recorded of a trigger that fired or let go; `what` says it in words."""
    return TriggerMoved(
        lever=lever.record.name,
        trigger=spec,
        fired=action.fired,
        value=action.value,
        samples=action.samples,
        action=what,
    )


def by_temperature(record: LeverRecord, spec: TriggerSpec) -> bool:
    """Whether other triggers of a lever watch the same signal for each temperature apart: greedy and sampled, both.

    Where one is missing, its requests have only this trigger, which an odd one at the other must not silence.
    """
    apart = {
        each.cut.value
        for each in record.triggers
        if each.signal is spec.signal
        and each.cut is not None
        and each.cut.dimension is Dimension.TEMPERATURE
    }
    return {temperature_bucket(0.0), temperature_bucket(1.0)} <= apart


def hold_off(lever: Adopted, trigger: str, now_s: float) -> None:
    """Let the trigger that let go hold the lever off again, so that its return is tried anew after the lockout."""
    lever.off_by.add(trigger)
    lever.watches = [
        msgspec.structs.replace(each, is_off=True, moved_at_s=now_s)
        if each.spec.name == trigger
        else each
        for each in lever.watches
    ]
