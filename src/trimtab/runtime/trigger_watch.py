"""Watches adopted levers: feeds their triggers once a tick and carries out what they ask for.

A firing takes the lever back by routing at once; the restart of its replicas follows in the background, so that the
next tick is not late. While a lever is on its way out or back its triggers rest.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from typing import assert_never

import msgspec

from trimtab.core.cuts import Cut
from trimtab.core.decision import FleetView
from trimtab.core.events import CutsKept, RolloutMoved, TriggerMoved
from trimtab.core.evidence import Window
from trimtab.core.lever import LeverRecord, TriggerAction, TriggerSpec
from trimtab.core.ports import Clock, LaunchError, LedgerSink
from trimtab.core.record import RequestRecord
from trimtab.core.types import Arm, RolloutState, Verdict
from trimtab.rollout.signals import Watched, signals, tpot_by_batch
from trimtab.rollout.triggers import Action, TriggerWatch, watch
from trimtab.runtime.actuation import Actuator
from trimtab.runtime.proof import ControlError

WINDOW_S = 10.0
"""Signals are computed over the last ten seconds."""

VIEWS_MAX = 600
EXPIRED_BECAUSE = "the record expired: it must prove itself again"
PERSON = "a person"
"""What holds a lever off that somebody switched off: no trigger lets it come back."""


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

    @property
    def is_off(self) -> bool:
        """Whether any trigger holds the lever off; it comes back when the last of them lets go."""
        return bool(self.off_by)

    @property
    def cuts_on(self) -> tuple[Cut, ...]:
        """The cuts that no trigger took out."""
        return tuple(cut for cut in self.cuts if cut not in self.cuts_off)


class Said(msgspec.Struct, frozen=True, kw_only=True):
    """What a trigger asked for, in words, and the event that holds it."""

    trigger: str
    what: str
    cause_id: str


class TriggerShell:
    """Runs the triggers of all adopted levers.

    `on_moved` hears every firing and recovery, `on_changed` every lever that went on, off or away.
    """

    def __init__(
        self,
        *,
        actuator: Actuator,
        sink: LedgerSink,
        clock: Clock,
        records: Callable[[], Sequence[RequestRecord]],
        load_bound: float,
        baseline_policy: str,
        distrust: Callable[[], None],
        on_moved: Callable[[TriggerMoved], None] = lambda _: None,
        on_changed: Callable[[LeverRecord, RolloutState, str], None] = lambda *_: None,
    ) -> None:
        self._actuator = actuator
        self._sink = sink
        self._clock = clock
        self._records = records
        self._load_bound = load_bound
        self._baseline_policy = baseline_policy
        self._distrust = distrust
        self._on_moved = on_moved
        self._on_changed = on_changed
        self._views: deque[FleetView] = deque(maxlen=VIEWS_MAX)
        self._tasks: set[asyncio.Task[None]] = set()
        self.adopted: dict[str, Adopted] = {}

    def adopt(
        self,
        record: LeverRecord,
        policy: str | None,
        cuts: tuple[Cut, ...],
        cause_id: str,
        *,
        off_by: frozenset[str] = frozenset(),
    ) -> None:
        """Watch a lever from now on; its baseline is what was measured without it.

        `off_by`: the triggers (or `PERSON`) that hold it off already, as a restart finds it.
        """
        plain = [
            r for r in self._records() if r.ok and r.arm is Arm.BASELINE and not r.drafting.drafted
        ]
        self.adopted[record.name] = Adopted(
            record=record,
            policy=policy,
            cuts=cuts,
            cause_id=cause_id,
            watches=[
                TriggerWatch(spec=spec, is_off=spec.name in off_by, moved_at_s=self._clock.mono_s())
                for spec in record.triggers
            ],
            baseline_tpot_ms=tpot_by_batch(plain),
            off_by=set(off_by),
        )

    def saw(self, view: FleetView) -> None:
        """Take in how the fleet looks, timed by the wall clock as records are."""
        self._views.append(view)

    async def tick(self) -> None:
        """Feed every trigger its signal and start what fired or recovered."""
        now_wall_s, now_s = self._clock.wall_s(), self._clock.mono_s()
        for lever in tuple(self.adopted.values()):
            if lever.is_moving:
                continue
            if now_wall_s >= lever.record.expires_at_s:
                lever.is_moving = True
                ending = self.end(lever.record.name, RolloutState.EXPIRED, EXPIRED_BECAUSE)
                self._start(ending)
                continue
            self._judge(lever, now_wall_s, now_s)

    def _judge(self, lever: Adopted, now_wall_s: float, now_s: float) -> None:
        """Hear all triggers of a lever, then move it once: two that disagree must not start two restarts."""
        was_off, cuts_off = lever.is_off, lever.cuts_off
        said: dict[TriggerAction, Said] = {}
        for index, state in enumerate(lever.watches):
            after, action = self._feed(lever, state, now_wall_s, now_s)
            lever.watches[index] = after
            if action is not None:
                said[state.spec.action] = self._answer(lever, state.spec, action)
        if lever.is_off != was_off:
            self._move(lever, said[TriggerAction.DISABLE])
        elif lever.cuts_off != cuts_off and not lever.is_off:
            cause = said[TriggerAction.DISABLE_CUT].cause_id
            self._actuator.narrow(lever.record, lever.cuts_on, cause_id=cause)

    async def end(self, name: str, to: RolloutState, reason: str) -> None:
        """Take an adopted lever off for good (rolled back, expired): it is watched no more.

        Raises `KeyError` for a lever that is not adopted; a replica that does not follow is recorded, since by
        routing the lever is off.
        """
        lever = self.adopted.pop(name)
        before = RolloutState.DISABLED if lever.is_off else RolloutState.ADOPTED
        cause = self._record_move(lever, before, to, reason, cause_id=lever.cause_id)
        await self._actuate(lever, to, cause)

    async def switch(self, name: str, *, on: bool, reason: str) -> None:
        """Switch an adopted lever off until a person switches it on again, or on, whatever its triggers said.

        Raises `KeyError` for a lever that is not adopted.
        """
        lever = self.adopted[name]
        was_off = lever.is_off
        lever.off_by = set() if on else {*lever.off_by, PERSON}
        if on:
            lever.watches = [TriggerWatch(spec=spec) for spec in lever.record.triggers]
        if was_off is not on:
            return
        before, to = RolloutState.ADOPTED, RolloutState.DISABLED
        before, to = (to, before) if on else (before, to)
        cause = self._record_move(lever, before, to, reason, cause_id=lever.cause_id)
        await self._actuate(lever, to, cause)

    def take_off_cut(self, name: str, cut: Cut, reason: str) -> None:
        """Leave an adopted lever all its cuts but one; raises `KeyError`, and `ControlError` where that cannot be."""
        lever = self.adopted[name]
        if cut not in lever.cuts_on:
            on = ", ".join(str(each) for each in lever.cuts_on) or "all traffic, not by cuts"
            raise ControlError(f"{name} is not on for {cut} by itself; it is on for {on}")
        lever.cuts_off = lever.cuts_off | {cut}
        left = tuple(str(each) for each in lever.cuts_on)
        kept = CutsKept(lever=name, kept=left, refused={str(cut): reason})
        cause = self._sink.append(kept, cause_id=lever.cause_id, durable=True)
        self._actuator.narrow(lever.record, lever.cuts_on, cause_id=cause)

    def _record_move(
        self,
        lever: Adopted,
        before: RolloutState,
        after: RolloutState,
        reason: str,
        *,
        cause_id: str,
        verdict: Verdict | None = None,
    ) -> str:
        share = 1.0 if after is RolloutState.ADOPTED else 0.0
        moved = RolloutMoved(
            lever=lever.record.name,
            before=before,
            after=after,
            share=share,
            verdict=verdict,
            reason=reason,
        )
        cause = self._sink.append(moved, cause_id=cause_id, durable=True)
        self._on_changed(lever.record, after, cause)
        return cause

    async def _actuate(self, lever: Adopted, to: RolloutState, cause: str) -> None:
        lever.is_moving = True
        try:
            if to is RolloutState.ADOPTED:
                await self._enable(lever, cause)
            else:
                await self._actuator.disable(
                    lever.record, baseline_policy=self._baseline_policy, cause_id=cause
                )
        except LaunchError as error:
            before = RolloutState.DISABLED if to is RolloutState.ADOPTED else to
            self._record_move(
                lever, to, before, f"the replicas did not follow: {error}", cause_id=cause
            )
            if to is RolloutState.ADOPTED:
                lever.off_by.add(PERSON)
        finally:
            lever.is_moving = False

    async def _enable(self, lever: Adopted, cause: str) -> None:
        await self._actuator.enable(
            lever.record, policy=lever.policy, cuts=lever.cuts, cause_id=cause
        )
        if lever.cuts_off:
            self._actuator.narrow(lever.record, lever.cuts_on, cause_id=cause)

    async def settle(self) -> None:
        """Wait until every move in progress has ended."""
        while self._tasks:
            await asyncio.gather(*self._tasks)

    async def close(self) -> None:
        """Cancel what is in progress; the fleet is about to stop."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _feed(
        self, lever: Adopted, state: TriggerWatch, now_wall_s: float, now_s: float
    ) -> tuple[TriggerWatch, Action | None]:
        replicas = self._actuator.candidate_replicas(lever.record) or None
        watched = Watched(
            replicas=replicas,
            load_bound=self._load_bound,
            baseline_tpot_ms=lever.baseline_tpot_ms,
            cut=state.spec.cut,
        )
        window = Window(now_wall_s - WINDOW_S, now_wall_s)
        signal = signals(self._records(), tuple(self._views), window, watched)[state.spec.signal]
        return watch(state, signal.value, signal.samples, now_s)

    def _answer(self, lever: Adopted, spec: TriggerSpec, action: Action) -> Said:
        """Record what a trigger asks for and note what it means for the lever."""
        what = (
            f"{spec.action.value}: {action.reason}" if action.fired else f"let go: {action.reason}"
        )
        event = TriggerMoved(
            lever=lever.record.name,
            trigger=spec,
            fired=action.fired,
            value=action.value,
            samples=action.samples,
            action=what,
        )
        cause = self._sink.append(event, cause_id=lever.cause_id, durable=True)
        self._on_moved(event)
        match spec.action:
            case TriggerAction.DISTRUST_INDEX:
                if action.fired:
                    self._distrust()
            case TriggerAction.DISABLE_CUT:
                mine = {spec.cut} & set(lever.cuts) if spec.cut is not None else set()
                lever.cuts_off = lever.cuts_off | mine if action.fired else lever.cuts_off - mine
            case TriggerAction.DISABLE:
                if action.fired:
                    lever.off_by.add(spec.name)
                else:
                    lever.off_by.discard(spec.name)
            case _:
                assert_never(spec.action)
        return Said(trigger=spec.name, what=what, cause_id=cause)

    def _move(self, lever: Adopted, said: Said) -> None:
        off = lever.is_off
        cause = self._record_move(
            lever,
            RolloutState.ADOPTED if off else RolloutState.DISABLED,
            RolloutState.DISABLED if off else RolloutState.ADOPTED,
            said.what,
            cause_id=said.cause_id,
            verdict=Verdict.FAIL if off else Verdict.PASS,
        )
        lever.is_moving = True
        self._start(self._carry_out(lever, said.trigger, cause))

    def _start(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _carry_out(self, lever: Adopted, trigger: str, cause: str) -> None:
        record, off = lever.record, lever.is_off
        try:
            if off:
                await self._actuator.disable(
                    record, baseline_policy=self._baseline_policy, cause_id=cause
                )
            else:
                await self._enable(lever, cause)
        except LaunchError as error:
            # By routing the lever is off either way; the replica's own state says the rest.
            stuck = RolloutMoved(
                lever=record.name,
                before=RolloutState.DISABLED if off else RolloutState.ADOPTED,
                after=RolloutState.DISABLED,
                share=0.0,
                reason=f"the replicas did not follow: {error}",
            )
            self._sink.append(stuck, cause_id=cause, durable=True)
            if not off:
                self._hold_off(lever, trigger)
        finally:
            lever.is_moving = False
            # What was counted while the replicas moved was not the lever's doing.
            lever.watches = [msgspec.structs.replace(each, streak=0) for each in lever.watches]

    def _hold_off(self, lever: Adopted, trigger: str) -> None:
        """Let the trigger that let go hold the lever off again, so that its return is tried anew after the lockout."""
        now_s = self._clock.mono_s()
        lever.off_by.add(trigger)
        lever.watches = [
            msgspec.structs.replace(each, is_off=True, moved_at_s=now_s)
            if each.spec.name == trigger
            else each
            for each in lever.watches
        ]
