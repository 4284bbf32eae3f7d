"""Watches adopted levers: feeds their triggers once a tick and carries out what they ask for.

A firing takes the lever back by routing at once; the restart of its replicas follows in the background, so that the
next tick is not late. While a lever is on its way out or back its triggers rest.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Sequence

import msgspec

from trimtab.core.cuts import Cut
from trimtab.core.decision import FleetView
from trimtab.core.events import RolloutMoved, TriggerMoved
from trimtab.core.evidence import Window
from trimtab.core.lever import LeverRecord, TriggerAction, TriggerSpec
from trimtab.core.ports import Clock, LaunchError, LedgerSink
from trimtab.core.quality_scores import Scores
from trimtab.core.record import RequestRecord
from trimtab.core.types import Arm, RolloutState, Verdict
from trimtab.rollout.aftermath import UNDO_REST_S
from trimtab.rollout.plans import left_out
from trimtab.rollout.signals import Watched, signals, tpot_by_batch
from trimtab.rollout.triggers import Action, TriggerWatch, watch
from trimtab.runtime.actuation import Actuator
from trimtab.runtime.adopted import PERSON as PERSON
from trimtab.runtime.adopted import (
    Adopted,
    Said,
    action_undone,
    by_temperature,
    give_back,
    harm_since,
    hold_back,
    hold_off,
    lowers_affinity,
    note_action,
    rested,
    told_of,
    watches_of,
)

WINDOW_S = 10.0
"""Signals are computed over the last ten seconds."""

VIEWS_MAX = 600
EXPIRED_BECAUSE = "the record expired: it must prove itself again"


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
        lower_affinity: Callable[[bool], None] = lambda _: None,
        scores: Callable[[LeverRecord], tuple[Scores, ...]] = lambda _: (),
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
        self._lower_affinity = lower_affinity
        self._scores = scores
        self._on_moved = on_moved
        self._on_changed = on_changed
        self._is_lowered = False
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
        without: tuple[Cut, ...] | None = None,
        narrowed_by: frozenset[str] = frozenset(),
    ) -> None:
        """Watch a lever from now on; its baseline is what was measured without it.

        `off_by`: the triggers (or `PERSON`) that hold it off already, as a restart finds it; `narrowed_by`: those that
        hold off a cut, or some affinity. `without`: the cuts that it never gets; None: those of the plan in force.
        """
        plain = [
            r for r in self._records() if r.ok and r.arm is Arm.BASELINE and not r.drafting.drafted
        ]
        fired = off_by | narrowed_by
        lever = self.adopted[record.name] = Adopted(
            record=record,
            policy=policy,
            cuts=cuts,
            cause_id=cause_id,
            watches=watches_of(record, fired, self._clock.mono_s()),
            baseline_tpot_ms=tpot_by_batch(plain),
            off_by=set(off_by),
            without=left_out(self._actuator.plan, record) if without is None else without,
        )
        for spec in record.triggers:
            if spec.name in narrowed_by:
                self._act(lever, spec)

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
            if not lever.is_moving:
                self._look_back(lever, now_wall_s, now_s)

    def _judge(self, lever: Adopted, now_wall_s: float, now_s: float) -> None:
        """Hear all triggers of a lever, then move it once: two that disagree must not start two restarts."""
        was_off, cuts_off = lever.is_off, lever.cuts_off
        said: dict[TriggerAction, Said] = {}
        for index, state in enumerate(lever.watches):
            after, action = self._feed(lever, state, now_wall_s, now_s)
            lever.watches[index] = after
            if action is not None:
                said[state.spec.action] = self._answer(lever, state.spec, action)
                note_action(lever, state.spec, self._records(), now_wall_s, fired=action.fired)
        if lever.is_off != was_off:
            self._move(lever, said[TriggerAction.DISABLE])
        elif lever.cuts_off != cuts_off and not lever.is_off:
            self._narrow(lever, said[TriggerAction.DISABLE_CUT].cause_id)

    def _narrow(self, lever: Adopted, cause: str) -> None:
        """Leave the lever what no trigger and nobody took out of it."""
        self._actuator.narrow(
            lever.record,
            lever.cuts_on,
            without=(*lever.without, *sorted(lever.cuts_off - set(lever.cuts))),
            everything=not lever.cuts,
            baseline_policy=self._baseline_policy,
            cause_id=cause,
        )

    def _look_back(self, lever: Adopted, now_wall_s: float, now_s: float) -> None:
        """Undo an action of a trigger that did harm itself."""
        harm = harm_since(lever, self._records(), now_wall_s)
        if harm is None:
            return
        spec = rested(lever, now_s)
        was_off = lever.is_off
        reason = f"undone, as it did harm: {harm.reason}; it rests for {UNDO_REST_S:g} s"
        said = self._tell(lever, spec, action_undone(spec, harm), reason)
        self._let_go(lever, spec)
        if lever.is_off != was_off:
            self._move(lever, said)
        elif spec.action is TriggerAction.DISABLE_CUT and not lever.is_off:
            self._narrow(lever, said.cause_id)

    async def end(self, name: str, to: RolloutState, reason: str) -> None:
        """Take an adopted lever off for good (rolled back, expired): it is watched no more.

        Raises `KeyError` for a lever that is not adopted; a replica that does not follow is recorded, since by
        routing the lever is off.
        """
        lever = self.let_be(name)
        before = RolloutState.DISABLED if lever.is_off else RolloutState.ADOPTED
        cause = self._record_move(lever, before, to, reason, cause_id=lever.cause_id)
        await self._actuate(lever, to, cause)

    async def switch(self, name: str, *, on: bool, reason: str) -> None:
        """Switch an adopted lever off until a person switches it on again, or on, whatever its triggers said.

        Raises `KeyError` for a lever that is not adopted.
        """
        lever = self.adopted[name]
        was_off, by_person = lever.is_off, PERSON in lever.off_by
        held = on and lever.let_all_go()
        if on:
            self._set_affinity()
        else:
            lever.off_by.add(PERSON)
        if was_off is not on:
            # It stays where it is, but no trigger lets it come back, or holds any of it: a restart reads that here.
            now = RolloutState.ADOPTED if on else RolloutState.DISABLED
            if held or (was_off and not by_person):
                cause = self._record_move(lever, now, now, reason, cause_id=lever.cause_id)
                if lever.is_on:
                    self._narrow(lever, cause)
            return
        moves = (RolloutState.ADOPTED, RolloutState.DISABLED)
        before, to = moves[::-1] if on else moves
        cause = self._record_move(lever, before, to, reason, cause_id=lever.cause_id)
        await self._actuate(lever, to, cause)

    def let_be(self, name: str) -> Adopted:
        """Watch a lever no more, and return it; raises `KeyError` for one that is not adopted."""
        lever = self.adopted.pop(name)
        self._set_affinity()
        return lever

    def _set_affinity(self) -> None:
        """Keep affinity low as long as any trigger of any lever wants that."""
        lowered = lowers_affinity(self.adopted.values())
        if lowered is not self._is_lowered:
            self._is_lowered = lowered
            self._lower_affinity(lowered)

    def take_off_cut(self, name: str, cut: Cut, reason: str) -> None:
        """Leave an adopted lever all but one cut; raises `KeyError`, and `ControlError` where that cannot be."""
        lever = self.adopted[name]
        kept = lever.take_off(cut, reason)
        cause = self._sink.append(kept, cause_id=lever.cause_id, durable=True)
        # One that is off has nothing in the plan, and one on its way back is narrowed as it arrives.
        if lever.is_on:
            self._narrow(lever, cause)

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
        if before is not after:
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
        without = lever.without
        await self._actuator.enable(
            lever.record,
            policy=lever.policy,
            cuts=lever.cuts,
            without=without,
            cause_id=cause,
        )
        if lever.cuts_off or lever.without != without:
            self._narrow(lever, cause)

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
            revision=None if lever.record.revision is None else lever.record.revision.id,
            scores=self._scores(lever.record),
            by_temperature=by_temperature(lever.record, state.spec),
        )
        window = Window(now_wall_s - WINDOW_S, now_wall_s)
        signal = signals(self._records(), tuple(self._views), window, watched)[state.spec.signal]
        return watch(state, signal.value, signal.samples, now_s)

    def _answer(self, lever: Adopted, spec: TriggerSpec, action: Action) -> Said:
        """Record what a trigger asks for and note what it means for the lever."""
        what = (
            f"{spec.action.value}: {action.reason}" if action.fired else f"let go: {action.reason}"
        )
        said = self._tell(lever, spec, action, what)
        if action.fired:
            self._act(lever, spec)
        else:
            self._let_go(lever, spec)
        return said

    def _act(self, lever: Adopted, spec: TriggerSpec) -> None:
        hold_back(lever, spec)
        if spec.action is TriggerAction.DISTRUST_INDEX:
            self._distrust()
        self._set_affinity()

    def _let_go(self, lever: Adopted, spec: TriggerSpec) -> None:
        """Note that a trigger does not hold the lever, its cut or affinity any more."""
        give_back(lever, spec)
        self._set_affinity()

    def _tell(self, lever: Adopted, spec: TriggerSpec, action: Action, what: str) -> Said:
        event = told_of(lever, spec, action, what)
        cause = self._sink.append(event, cause_id=lever.cause_id, durable=True)
        self._on_moved(event)
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
                hold_off(lever, trigger, self._clock.mono_s())
        finally:
            lever.is_moving = False
            # What was counted while the replicas moved was not the lever's doing.
            lever.watches = [msgspec.structs.replace(each, streak=0) for each in lever.watches]
