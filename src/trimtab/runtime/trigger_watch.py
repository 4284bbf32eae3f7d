"""Watches adopted levers: feeds their triggers once a tick and carries out what they ask for.

A firing takes the lever back by routing at once; the restart of its replicas follows in the background, so that the
next tick is not late. While a lever is on its way out or back its triggers rest.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import assert_never

import msgspec

from trimtab.core.cuts import Cut
from trimtab.core.decision import FleetView
from trimtab.core.events import RolloutMoved, TriggerMoved
from trimtab.core.evidence import Window
from trimtab.core.lever import LeverRecord, TriggerAction, TriggerSpec
from trimtab.core.ports import Clock, LaunchError, LedgerSink
from trimtab.core.record import RequestRecord
from trimtab.core.types import Arm, RolloutState, Verdict
from trimtab.rollout.signals import Watched, signals, tpot_by_batch
from trimtab.rollout.triggers import Action, TriggerWatch, watch
from trimtab.runtime.actuation import Actuator

WINDOW_S = 10.0
"""Signals are computed over the last ten seconds."""

VIEWS_MAX = 600


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


class TriggerShell:
    """Runs the triggers of all adopted levers. `on_moved` hears every firing and recovery."""

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
    ) -> None:
        self._actuator = actuator
        self._sink = sink
        self._clock = clock
        self._records = records
        self._load_bound = load_bound
        self._baseline_policy = baseline_policy
        self._distrust = distrust
        self._on_moved = on_moved
        self._views: deque[FleetView] = deque(maxlen=VIEWS_MAX)
        self._tasks: set[asyncio.Task[None]] = set()
        self.adopted: dict[str, Adopted] = {}

    def adopt(
        self, record: LeverRecord, policy: str | None, cuts: tuple[Cut, ...], cause_id: str
    ) -> None:
        """Watch a lever from now on; its baseline is what was measured without it."""
        plain = [
            r for r in self._records() if r.ok and r.arm is Arm.BASELINE and not r.drafting.drafted
        ]
        self.adopted[record.name] = Adopted(
            record=record,
            policy=policy,
            cuts=cuts,
            cause_id=cause_id,
            watches=[TriggerWatch(spec=spec) for spec in record.triggers],
            baseline_tpot_ms=tpot_by_batch(plain),
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
            for index, state in enumerate(lever.watches):
                after, action = self._feed(lever, state, now_wall_s, now_s)
                lever.watches[index] = after
                if action is not None:
                    self._answer(lever, state.spec, action)

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

    def _answer(self, lever: Adopted, spec: TriggerSpec, action: Action) -> None:
        """Record what a trigger asks for and do it, unless another one holds the lever off anyway."""
        was_off = lever.is_off
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
                return
            case TriggerAction.DISABLE_CUT:
                self._narrow(lever, spec, action, cause)
                return
            case TriggerAction.DISABLE:
                pass
            case _:
                assert_never(spec.action)
        if action.fired:
            lever.off_by.add(spec.name)
        else:
            lever.off_by.discard(spec.name)
        if lever.is_off != was_off:
            self._move(lever, what, cause)

    def _narrow(self, lever: Adopted, spec: TriggerSpec, action: Action, cause: str) -> None:
        """Take one cut out of an adopted lever, or put it back; by routing alone."""
        if spec.cut is None or spec.cut not in lever.cuts:
            return
        lever.cuts_off = (
            lever.cuts_off | {spec.cut} if action.fired else lever.cuts_off - {spec.cut}
        )
        if not lever.is_off:
            self._actuator.narrow(lever.record, lever.cuts_on, cause_id=cause)

    def _move(self, lever: Adopted, what: str, cause: str) -> None:
        off = lever.is_off
        moved = RolloutMoved(
            lever=lever.record.name,
            before=RolloutState.ADOPTED if off else RolloutState.DISABLED,
            after=RolloutState.DISABLED if off else RolloutState.ADOPTED,
            share=0.0 if off else 1.0,
            verdict=Verdict.FAIL if off else Verdict.PASS,
            reason=what,
        )
        cause = self._sink.append(moved, cause_id=cause, durable=True)
        lever.is_moving = True
        task = asyncio.create_task(self._carry_out(lever, off, cause))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _carry_out(self, lever: Adopted, fired: bool, cause: str) -> None:
        record = lever.record
        try:
            if fired:
                await self._actuator.disable(
                    record, baseline_policy=self._baseline_policy, cause_id=cause
                )
            else:
                await self._actuator.enable(
                    record, policy=lever.policy, cuts=lever.cuts, cause_id=cause
                )
        except LaunchError as error:
            # By routing the lever is already off; the replica's own state says the rest.
            reason = f"the replicas did not follow: {error}"
            state = RolloutState.DISABLED if lever.is_off else RolloutState.ADOPTED
            stuck = RolloutMoved(
                lever=record.name, before=state, after=state, share=0.0, reason=reason
            )
            self._sink.append(stuck, cause_id=cause, durable=True)
        finally:
            lever.is_moving = False
            # What was counted while the replicas moved was not the lever's doing.
            lever.watches = [msgspec.structs.replace(each, streak=0) for each in lever.watches]
