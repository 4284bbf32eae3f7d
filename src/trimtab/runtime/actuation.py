"""Moves levers on a real fleet: swaps the traffic plan, restarts a replica into another revision, and undoes both.

Taking back goes by routing first (one swap, at once), then by restart. Every move is an event whose cause is the
decision behind it.
"""

from collections.abc import Callable
from typing import Protocol

import msgspec

from trimtab.core.cuts import Cut
from trimtab.core.events import TrafficPlanned
from trimtab.core.lever import LeverRecord
from trimtab.core.ports import LaunchError, LedgerSink
from trimtab.core.revision import Revision
from trimtab.core.traffic import Preference, TrafficPlan
from trimtab.core.types import Role
from trimtab.rollout.plans import (
    own_replicas,
    with_adopted,
    with_cuts_out,
    with_lever_off,
    with_reserve,
    with_share,
    with_slice,
    without_slice,
)

DRAIN_TIMEOUT_S = 30.0
RESTART_ATTEMPTS = 3


class FleetControl(Protocol):
    """What actuation needs of the fleet."""

    def replica_ids(self) -> tuple[str, ...]:
        """Every replica, in a stable order."""
        ...

    def revision_of(self, replica: str) -> Revision:
        """The revision a replica runs or is starting."""
        ...

    async def restart_into(
        self,
        replica: str,
        revision: Revision,
        *,
        drain_timeout_s: float,
        keep_kv: bool = True,
        cause_id: str | None,
    ) -> None:
        """Drain a replica, save its slots, start it with another revision, restore the slots."""
        ...


class RoleMover(Protocol):
    """What actuation needs of whoever keeps the roles."""

    async def take(self, replicas: tuple[str, ...], role: Role, *, cause_id: str | None) -> None:
        """Give replicas a role, each drained first; those that have it stay as they are."""
        ...

    def prefilling(self) -> tuple[str, ...]:
        """Replicas that prefill for the others now."""
        ...


class HasPlan(Protocol):
    """What follows a traffic plan: the router."""

    plan: TrafficPlan


class Actuator:
    """Carries out what the controller decided. `baseline` is the revision to which replicas go back."""

    def __init__(
        self,
        *,
        router: HasPlan,
        fleet: FleetControl,
        sink: LedgerSink,
        baseline: Revision,
        mono_s: Callable[[], float],
        roles: RoleMover | None = None,
    ) -> None:
        self._router = router
        self._fleet = fleet
        self._sink = sink
        self._baseline = baseline
        self._mono_s = mono_s
        self._roles = roles

    @property
    def plan(self) -> TrafficPlan:
        """The plan in force."""
        return self._router.plan

    def set_plan(self, plan: TrafficPlan, *, cause_id: str | None) -> str:
        """Put a plan in force and record it; returns the event's id."""
        self._router.plan = plan
        return self._sink.append(TrafficPlanned(plan=plan), cause_id=cause_id, durable=True)

    def set_stage(self, stage: str | None, *, cause_id: str | None) -> None:
        """Name the stage that traffic belongs to from now on."""
        self.set_plan(msgspec.structs.replace(self.plan, stage=stage), cause_id=cause_id)

    def candidate_replicas(self, record: LeverRecord) -> tuple[str, ...]:
        """Choose where a candidate revision runs: the last replica that no other lever has and that serves requests.

        One that prefills for others gets no whole requests, so nothing would be seen of a lever there.
        """
        if record.revision is None:
            return ()
        prefilling = () if self._roles is None else self._roles.prefilling()
        serving = tuple(one for one in self._fleet.replica_ids() if one not in prefilling)
        return own_replicas(self.plan, record.name, serving)

    async def prepare(self, record: LeverRecord, *, cause_id: str | None) -> tuple[str, ...]:
        """Start the candidate revision where the lever needs one; nothing is exposed to it yet.

        Raises `LaunchError` where that would leave no plain replica beside those of adopted levers.
        """
        replicas = self.candidate_replicas(record)
        if record.revision is not None:
            self._check_plain_stays(record.name, replicas)
            await self._restart(replicas, record.revision, cause_id)
        await self._take_roles(record, Role.PREFILL, cause_id)
        return replicas

    def _check_plain_stays(self, lever: str, replicas: tuple[str, ...]) -> None:
        others = [each for each in self.plan.preferences if each.lever != lever]
        taken = {replica for each in others for replica in each.replicas}
        if others and not set(self._fleet.replica_ids()) - taken - set(replicas):
            names = ", ".join(each.lever for each in others)
            raise LaunchError(
                f"{names} has a replica of its own and one must stay plain to compare with: add one "
                "(trimtab fleet add)"
            )

    async def go_back(self, replicas: tuple[str, ...], *, cause_id: str | None) -> None:
        """Return replicas to the baseline revision; raises `LaunchError` if one does not follow."""
        await self._restart(replicas, self._baseline, cause_id)

    def start_slice(
        self,
        record: LeverRecord,
        share: float,
        policy: str | None,
        replicas: tuple[str, ...],
        *,
        without: tuple[Cut, ...] = (),
        cause_id: str | None,
    ) -> None:
        """Expose the first slice; its clock of blocks starts now. `without`: cuts that left it before."""
        plan = with_slice(
            self.plan,
            record,
            share=share,
            policy=policy,
            replicas=replicas,
            now_s=self._mono_s(),
            without=without,
        )
        self.set_plan(plan, cause_id=cause_id)

    def shrink_slice(self, without: tuple[Cut, ...], *, cause_id: str | None) -> None:
        """Keep cuts off the lever that is being proven; its blocks keep counting."""
        self.set_plan(with_cuts_out(self.plan, without), cause_id=cause_id)

    def grow_slice(self, share: float, *, cause_id: str | None) -> None:
        """Grow the slice of the lever that is being proven; its blocks keep counting."""
        self.set_plan(with_share(self.plan, share), cause_id=cause_id)

    async def take_back(self, record: LeverRecord, *, cause_id: str | None) -> None:
        """Return all traffic to the baseline at once, then return the candidate's replicas to its revision."""
        replicas = self.candidate_replicas(record)
        self.set_plan(without_slice(self.plan), cause_id=cause_id)
        await self._restart(replicas, self._baseline, cause_id)
        await self._take_roles(record, Role.MIXED, cause_id)

    def adopt(
        self,
        record: LeverRecord,
        *,
        policy: str | None,
        cuts: tuple[Cut, ...],
        without: tuple[Cut, ...] | None = None,
        cause_id: str | None,
    ) -> None:
        """Give the lever all the traffic it was proven for: a routing policy for all, or replicas for cuts.

        `without`: cuts kept off it; None: those that its record names.
        """
        replicas = self.candidate_replicas(record)
        plan = with_adopted(
            self.plan,
            record,
            policy=policy,
            cuts=cuts,
            replicas=replicas,
            without=tuple(dict.fromkeys((*record.without, *(without or ())))),
        )
        self.set_plan(plan, cause_id=cause_id)

    def narrow(
        self,
        record: LeverRecord,
        cuts: tuple[Cut, ...],
        *,
        without: tuple[Cut, ...] = (),
        everything: bool = False,
        baseline_policy: str = "",
        cause_id: str | None,
    ) -> None:
        """Leave an adopted lever only these cuts, and those in `without` to the baseline.

        `everything`: it is on for all its traffic, so that no cut means all; else with none left nothing is sent to its
        replicas. A routing lever leaves `without` to the baseline's policy.
        """
        if record.revision is None:
            plan = with_reserve(self.plan, record, policy=baseline_policy, cuts=without)
            self.set_plan(plan, cause_id=cause_id)
            return
        others = tuple(each for each in self.plan.preferences if each.lever != record.name)
        mine = Preference(
            lever=record.name,
            cuts=cuts,
            replicas=self.candidate_replicas(record),
            without=tuple(dict.fromkeys((*record.without, *without))),
            holdback_share=record.ramp.holdback_share,
        )
        kept = (*others, mine) if cuts or everything else others
        self.set_plan(msgspec.structs.replace(self.plan, preferences=kept), cause_id=cause_id)

    def release(self, record: LeverRecord, *, baseline_policy: str, cause_id: str | None) -> None:
        """Take an adopted lever out of the plan: its traffic is the baseline's from the next request on."""
        routes = record.revision is None
        plan = with_lever_off(self.plan, record, baseline_policy=baseline_policy, routes=routes)
        self.set_plan(plan, cause_id=cause_id)

    async def disable(
        self, record: LeverRecord, *, baseline_policy: str, cause_id: str | None
    ) -> None:
        """Take an adopted lever off: routing first, then the replicas go back to the baseline revision."""
        replicas = self.candidate_replicas(record)
        self.release(record, baseline_policy=baseline_policy, cause_id=cause_id)
        await self._restart(replicas, self._baseline, cause_id)
        await self._take_roles(record, Role.MIXED, cause_id)

    async def enable(
        self,
        record: LeverRecord,
        *,
        policy: str | None,
        cuts: tuple[Cut, ...],
        without: tuple[Cut, ...] | None = None,
        cause_id: str | None,
    ) -> None:
        """Bring a disabled lever back: its revision first, then its traffic."""
        if record.revision is not None:
            await self._restart(self.candidate_replicas(record), record.revision, cause_id)
        await self._take_roles(record, Role.PREFILL, cause_id)
        self.adopt(record, policy=policy, cuts=cuts, without=without, cause_id=cause_id)

    async def _take_roles(self, record: LeverRecord, role: Role, cause_id: str | None) -> None:
        """Give replicas a role where the lever is about roles; raises `LaunchError` if one does not follow."""
        if record.prefill == 0:
            return
        if self._roles is None:
            raise LaunchError(
                f"{record.name} moves roles, and those of these servers are not ours to move"
            )
        # Who gives the role up is asked, not found anew: since it was given another lever may have come or gone.
        replicas = self._roles.prefilling()[-record.prefill :]
        if role is Role.PREFILL:
            replicas = self._to_prefill(record)
        await self._roles.take(replicas, role, cause_id=cause_id)

    def _to_prefill(self, record: LeverRecord) -> tuple[str, ...]:
        """Return the last replicas that no other lever holds: their role's revision would replace that lever's."""
        others = [each for each in self.plan.preferences if each.lever != record.name]
        held = {replica for each in others for replica in each.replicas}
        free = [each for each in self._fleet.replica_ids() if each not in held]
        if len(free) < record.prefill:
            holding = ", ".join(each.lever for each in others if each.replicas)
            raise LaunchError(
                f"{record.name} needs {record.prefill} replicas to prefill and {holding} holds "
                f"{', '.join(sorted(held))}: add a replica (trimtab fleet add) or take that lever back first"
            )
        return tuple(free[-record.prefill :])

    async def _restart(
        self, replicas: tuple[str, ...], revision: Revision, cause_id: str | None
    ) -> None:
        for replica in replicas:
            await self._restart_one(replica, revision, cause_id)

    async def _restart_one(self, replica: str, revision: Revision, cause_id: str | None) -> None:
        for attempt in range(1, RESTART_ATTEMPTS + 1):
            if self._fleet.revision_of(replica).id == revision.id:
                return
            try:
                await self._fleet.restart_into(
                    replica,
                    revision,
                    drain_timeout_s=DRAIN_TIMEOUT_S,
                    keep_kv=True,
                    cause_id=cause_id,
                )
            except LaunchError:
                # A replica that did not drain in time serves on; under less load it will.
                if attempt == RESTART_ATTEMPTS:
                    raise
