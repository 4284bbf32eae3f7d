"""Roles of a live fleet: looks once a tick, decides with the policy that the simulator drives, and changes one replica.

Seen are requests when they end: TTFT, TPOT, whether the prompt was long and where it was computed. What KV is in use
is told by slots: an embedded replica's slots are its KV, and it never preempts; servers of others tell both themselves,
and where one does not, nothing moves. A change drains the replica, waits for its hand-overs, then flips its role by
routing; it restarts only where its role has settings of its own, and a server of others never does.
While a lever is being proven, or holds replicas, roles and the mark from which prompts travel stay: the comparison
would change under it.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Final, Protocol

import msgspec

from trimtab.core.config_roles import RolesConfig, RolesMode
from trimtab.core.cost import CostModel
from trimtab.core.decision import FleetView, ReplicaView
from trimtab.core.events import RolesDecided
from trimtab.core.handover import HandOver, HandOverOutcome
from trimtab.core.ports import Clock, LaunchError, LedgerSink
from trimtab.core.record import RequestRecord
from trimtab.core.revision import Revision
from trimtab.core.roles import RoleAction, RolesDecision, RolesSeen
from trimtab.core.traffic import TrafficPlan, holder_of
from trimtab.core.types import ReplicaState, Role
from trimtab.policies.role_watch import RoleSides, RoleTargets, RoleWatch, chosen
from trimtab.policies.roles import RoleRules, RolesState, control
from trimtab.runtime.fleet import ReplicaInfo
from trimtab.runtime.role_settings import RoleSettings, settings_for, settings_words

REASONS_EVERY_S: Final = 60.0
"""How often another reason to hold is written down, so that one that flickers does not fill the ledger."""


_NO_DIGITS: Final = str.maketrans("", "", "0123456789")


class RoleRefusedError(Exception):
    """A replica keeps its role; the message says why."""


class RoleChanged(msgspec.Struct, frozen=True, kw_only=True):
    """What was done for somebody who asked. `roles`: of all replicas now; `event_id`: the decision in the ledger.

    `restarted_with`: what it runs now where its role has settings of its own, empty where routing was enough.
    """

    replica: str
    role: Role
    event_id: str
    roles: dict[str, Role]
    restarted_with: str = ""


class RoleFleet(Protocol):
    """What takes roles: replicas of ours, or attached servers."""

    def replica_ids(self) -> tuple[str, ...]:
        """Every replica's id."""
        ...

    def info(self, replica: str) -> ReplicaInfo:
        """One replica as it is now; raises KeyError."""
        ...

    def infos(self) -> tuple[ReplicaInfo, ...]:
        """All replicas as they are now."""
        ...

    async def take_role(
        self,
        replica: str,
        role: Role,
        revision: Revision,
        *,
        drain_timeout_s: float,
        threads: int = 0,
        cause_id: str | None = None,
    ) -> None:
        """Drain a replica and give it another role; raises `LaunchError`, and it serves on as before.

        It restarts where it does not run the role's revision and threads (0: its share of the cores).
        """
        ...


class Pressure(msgspec.Struct, frozen=True, kw_only=True):
    """How full replicas that decode are: mean share of their KV in use, preemptions since the last look; or unknown.

    `looked`: whether anybody told of preemptions since the last tick.
    """

    kv_used_share: float | None
    preemptions: int | None
    looked: bool = True


def slots_pressure(decode: Sequence[ReplicaView]) -> Pressure:
    """Tell by slots, which are an embedded replica's KV; it never preempts."""
    used = [min(1.0, one.in_flight / one.slots) for one in decode if one.slots > 0]
    return Pressure(kv_used_share=sum(used) / len(used) if used else None, preemptions=0)


class RoleParts(msgspec.Struct, frozen=True, kw_only=True):
    """What roles need of their system. `chunk_tokens`: above which a prompt is long; `cause`: of what is decided.

    `cost_ahead`: what a replica that prefills costs where those that decode cost what is given.
    `threshold`: told by how much the mark from which prompts travel is raised; `pressure`: asked once a tick;
    `drafts_nothing`: whether a replica is known to give each stream one token a step.
    """

    fleet: RoleFleet
    view: Callable[[], FleetView]
    plan: Callable[[], TrafficPlan]
    cost: Callable[[], CostModel]
    sink: LedgerSink
    clock: Clock
    baseline: Revision
    chunk_tokens: int
    threshold: Callable[[float], None]
    cause: Callable[[], str | None]
    drafts_nothing: Callable[[str], bool]
    pressure: Callable[[Sequence[ReplicaView]], Pressure] = slots_pressure
    cost_ahead: Callable[[CostModel], CostModel] = lambda cost: cost


class RoleKeeper:
    """Keeps the roles of one fleet. `run` ticks until cancelled; with fixed roles it waits to be asked."""

    def __init__(self, config: RolesConfig, parts: RoleParts) -> None:
        self.config = config
        self._parts = parts
        self._state = RolesState()
        self._watch, self._since_s = self._new_watch(), parts.clock.mono_s()
        self._lock = asyncio.Lock()
        self._said: tuple[str, float] = ("", float("-inf"))
        self._changing: asyncio.Task[None] | None = None

    def use_config(self, config: RolesConfig) -> None:
        """Decide by another configuration from the next tick on; what was watched starts anew if its window did.

        Where roles follow the traffic no more, what following did to the mark from which prompts travel ends.
        """
        before, self.config = self.config, config
        if _watched(before) != _watched(config):
            self._watch, self._since_s = self._new_watch(), self._parts.clock.mono_s()
        if before.mode is RolesMode.FOLLOW and config.mode is not RolesMode.FOLLOW:
            self._state = RolesState()
            self._parts.threshold(self._state.mark.factor)

    def _new_watch(self) -> RoleWatch:
        config = self.config
        targets = RoleTargets(
            ttft_ms=config.ttft_ms,
            tpot_ms=config.tpot_ms,
            transfer_ms=config.transfer_high * config.ttft_ms,
        )
        return RoleWatch(targets, self.config.window_s, self.config.cooldown_s)

    def settings_for(self, role: Role) -> RoleSettings:
        """Return what a replica of a role runs."""
        return settings_for(role, self.config, self._parts.baseline)

    @property
    def baseline_id(self) -> str:
        """The revision that replicas have where no lever gave them another."""
        return self._parts.baseline.id

    def prefilling(self) -> tuple[str, ...]:
        """Return the replicas that prefill for the others, those with them that stand in for others now."""
        return tuple(one.id for one in self._parts.fleet.infos() if one.prefills)

    def on_record(self, record: RequestRecord) -> None:
        """Take in a request that ended; one that failed teaches no times, and none does while roles are fixed."""
        if self.config.mode is not RolesMode.FOLLOW:
            return
        now_s = self._parts.clock.mono_s()
        if not record.ok:
            self._watch.failed(now_s)
            return
        if record.ttft_ms is not None:
            self._watch.first_token(now_s, record.ttft_ms)
        if record.tpot_ms is not None:
            self._watch.ended(now_s, record.tpot_ms, self.tokens_per_step(record))
        cost, ahead = self._parts.cost(), record.prefill_replica is not None
        tokens = record.tokens.computed
        if ahead:
            told = record.tokens.ahead
            tokens = record.tokens.prompt if told is None else told
            cost = self._parts.cost_ahead(cost)
        if tokens is not None and tokens > self._parts.chunk_tokens and _is_measured(cost):
            self._watch.long_prompt(now_s, cost.prefill_ms(tokens), ahead=ahead)

    def on_hand_over(self, one: HandOver) -> None:
        """Take in a hand-over that has ended, as it was measured; one that did not arrive teaches nothing."""
        moving_ms = one.moving_ms
        is_delivered = one.outcome is HandOverOutcome.DELIVERED
        if moving_ms is None or not is_delivered or self.config.mode is not RolesMode.FOLLOW:
            return
        work_ms = _work_moved_ms(one, self._parts.cost())
        self._watch.moved(self._parts.clock.mono_s(), moving_ms, work_ms)

    def tokens_per_step(self, record: RequestRecord) -> float | None:
        """Return what a step gave an answer: as its engine counted, 1 where nothing is drafted, else None."""
        told, replica = record.tokens_per_step, record.replica
        if told is None and replica is not None and self._parts.drafts_nothing(replica):
            return 1.0
        return told

    async def run(self) -> None:
        """Tick until cancelled."""
        try:
            while True:
                await asyncio.sleep(self.config.tick_s)
                if self.config.mode is RolesMode.FOLLOW:
                    self.tick()
        finally:
            if self._changing is not None:
                self._changing.cancel()
                await asyncio.gather(self._changing, return_exceptions=True)

    def tick(self) -> RolesDecision:
        """Decide once, and begin the change that was decided."""
        now_s = self._parts.clock.mono_s()
        sides, cost = self._sides(), self._parts.cost()
        idle_ms = cost.idle_step_ms if _is_measured(cost) else None
        if not _is_measured(cost):
            # Work is known from the first look at a measured cost on.
            self._since_s = now_s
        seen = self._watch.seen(
            now_s,
            sides,
            step_idle_ms=idle_ms,
            samples_min=self.config.samples_min,
            since_s=self._since_s,
            idle_unknown=_why_no_idle(cost),
        )
        before, held = self._state, holder_of(self._parts.plan())
        self._state, made = control(before, seen, self._rules())
        if held:
            self._state = msgspec.structs.replace(self._state, mark=before.mark)
            made = msgspec.structs.replace(made, local_factor=before.mark.factor)
        self._parts.threshold(made.local_factor)
        if made.action is not RoleAction.HOLD and held:
            # Nothing moved, so nothing cools down.
            self._state = before
            self._say(RolesDecided(decision=made, seen=seen, because=held), made, now_s)
        elif made.action is RoleAction.HOLD:
            self._say(RolesDecided(decision=made, seen=seen), made, now_s)
        else:
            self._begin(made, seen, sides)
        return made

    def _rules(self) -> RoleRules:
        values = msgspec.structs.asdict(self.config)
        return RoleRules(**{name: values[name] for name in RoleRules.__struct_fields__})

    def _sides(self) -> RoleSides:
        view = self._parts.view()
        ready = [one for one in view.replicas if one.state is ReplicaState.READY]
        decode = [one for one in ready if one.role is not Role.PREFILL]
        pressure = self._parts.pressure(decode)
        return RoleSides(
            prefill=tuple(one.id for one in ready if one.role is Role.PREFILL),
            decode=tuple(one.id for one in decode),
            moving=int(self._lock.locked()),
            kv_used_share=pressure.kv_used_share,
            preemptions=pressure.preemptions,
            looked=pressure.looked,
            in_flight=sum(one.in_flight for one in view.replicas),
        )

    def _say(self, event: RolesDecided, made: RolesDecision, now_s: float) -> None:
        """Write a hold down if its reason is another than the last one written, and not too often."""
        # What is not known is named with counts, which are no other reason.
        lacks = "".join(made.unknown).translate(_NO_DIGITS)
        reason = event.because or made.reason.value + lacks
        said, at_s = self._said
        if reason != said and now_s - at_s >= REASONS_EVERY_S:
            self._said = (reason, now_s)
            self._parts.sink.append(event, cause_id=self._parts.cause())

    def _begin(self, made: RolesDecision, seen: RolesSeen, sides: RoleSides) -> None:
        view = {one.id: one.in_flight for one in self._parts.view().replicas}
        replica, role = chosen(made, sides, view.__getitem__)
        event = RolesDecided(decision=made, seen=seen, replica=replica, role=role)
        cause = self._parts.sink.append(event, cause_id=self._parts.cause(), durable=True)
        self._changing = asyncio.create_task(self._follow(replica, role, cause))

    async def _follow(self, replica: str, role: Role, cause: str) -> None:
        try:
            await self._change(replica, role, cause)
        except LaunchError as error:
            # It serves on in its old role, or restarts; the control decides again after its cool-down.
            self._parts.sink.append(
                RolesDecided(replica=replica, because=str(error)), cause_id=cause
            )

    async def _change(self, replica: str, role: Role, cause: str | None) -> None:
        settings, fleet = self.settings_for(role), self._parts.fleet
        async with self._lock:
            # Another change may have been waited for, and the replica left or took the role meanwhile.
            if replica not in fleet.replica_ids():
                raise LaunchError(f"replica {replica} keeps its role: it left the fleet")
            if fleet.info(replica).prefills is (role is Role.PREFILL):
                return
            await fleet.take_role(
                replica,
                role,
                settings.revision,
                threads=settings.threads,
                drain_timeout_s=self.config.drain_s,
                cause_id=cause,
            )

    async def take(self, replicas: tuple[str, ...], role: Role, *, cause_id: str | None) -> None:
        """Give replicas a role because a lever asks for it; raises `LaunchError` where one does not follow."""
        for replica in replicas:
            await self._change(replica, role, cause_id)

    async def set_role(self, replica: str, role: Role) -> RoleChanged:
        """Change a role because a person asked; raises `RoleRefusedError`, `LaunchError` (it serves on as before)."""
        fleet = self._parts.fleet
        if replica not in fleet.replica_ids():
            known = ", ".join(fleet.replica_ids())
            raise RoleRefusedError(f"there is no replica {replica!r}, only {known}")
        held = holder_of(self._parts.plan())
        if held:
            raise RoleRefusedError(held)
        if role is not Role.PREFILL and not fleet.info(replica).prefills:
            raise RoleRefusedError(f"{replica} takes whole requests already")
        if role is Role.PREFILL and fleet.info(replica).prefills:
            raise RoleRefusedError(f"{replica} prefills already")
        asked = RolesDecided(replica=replica, role=role, because="a person asked")
        cause = self._parts.sink.append(asked, cause_id=self._parts.cause(), durable=True)
        before = fleet.info(replica)
        await self._change(replica, role, cause)
        roles, now = {info.id: info.role for info in fleet.infos()}, fleet.info(replica)
        differs = (now.revision, now.threads) != (before.revision, before.threads)
        return RoleChanged(
            replica=replica,
            role=roles[replica],
            event_id=cause,
            roles=roles,
            restarted_with=settings_words(now.revision, now.threads) if differs else "",
        )


def _is_measured(cost: CostModel) -> bool:
    """Say whether replicas were timed; what is routed with until then has proportions, and no times of theirs."""
    return cost.step_samples > 0 and cost.prefill_samples > 0


def _why_no_idle(cost: CostModel) -> str:
    if not _is_measured(cost):
        return f"no cost was measured ({cost.source})"
    return "tokens per step not measured where the cost was"


def _work_moved_ms(one: HandOver, cost: CostModel) -> float | None:
    """Return what computing a prompt that came would have taken where it is decoded, None where unknown."""
    if one.prompt_tokens is None or not _is_measured(cost):
        return None
    return cost.prefill_ms(one.prompt_tokens - (one.held_tokens or 0))


def _watched(config: RolesConfig) -> tuple[object, ...]:
    """Return what a watch hangs on: with another of these it starts anew."""
    windows = (config.window_s, config.cooldown_s)
    return config.mode, *windows, config.ttft_ms, config.tpot_ms, config.transfer_high
