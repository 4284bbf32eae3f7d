"""Watches adopted levers: feeds their triggers once a tick and carries out what they ask for.

A firing takes the lever back by routing at once; the restart of its replicas follows in the background, so that the
next tick is not late. While a lever is on its way out or back its triggers rest.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence

import msgspec

from trimtab.core.cuts import Cut
from trimtab.core.decision import FleetView
from trimtab.core.events import RolloutMoved, TriggerMoved
from trimtab.core.evidence import Window
from trimtab.core.lever import LeverRecord, TriggerSpec
from trimtab.core.ports import Clock, LaunchError, LedgerSink
from trimtab.core.record import RequestRecord
from trimtab.core.types import Arm, ReplicaState, RolloutState, Verdict
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
    is_off: bool = False
    is_moving: bool = False


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
        on_moved: Callable[[TriggerMoved], None] = lambda _: None,
    ) -> None:
        self._actuator = actuator
        self._sink = sink
        self._clock = clock
        self._records = records
        self._load_bound = load_bound
        self._baseline_policy = baseline_policy
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
                if action is not None and action.fired != lever.is_off:
                    self._move(lever, state.spec, action)
                    break

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

    def _move(self, lever: Adopted, spec: TriggerSpec, action: Action) -> None:
        what = (
            f"{spec.action.value}: {action.reason}"
            if action.fired
            else f"enabled again: {action.reason}"
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
        after = RolloutState.DISABLED if action.fired else RolloutState.ADOPTED
        before = RolloutState.ADOPTED if action.fired else RolloutState.DISABLED
        moved = RolloutMoved(
            lever=lever.record.name,
            before=before,
            after=after,
            share=0.0 if action.fired else 1.0,
            verdict=Verdict.FAIL if action.fired else Verdict.PASS,
            reason=what,
        )
        cause = self._sink.append(moved, cause_id=cause, durable=True)
        lever.is_off, lever.is_moving = action.fired, True
        self._on_moved(event)
        task = asyncio.create_task(self._carry_out(lever, action.fired, cause))
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
            lever.watches = [msgspec.structs.replace(each, streak=0) for each in lever.watches]


def is_ready(view: FleetView, replica: str) -> bool:
    """Whether a replica takes requests."""
    found = view.replica(replica)
    return found is not None and found.state is ReplicaState.READY
