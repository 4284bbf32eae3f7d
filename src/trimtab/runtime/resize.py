"""One replica more or less while the fleet serves, one at a time, each with its decision in the ledger.

A replica that is added takes requests once it is healthy. One that is removed gets no new requests, ends those it has,
and leaves. While a lever is being proven, or holds replicas of its own, the fleet keeps its size: the comparison would
change under the lever, and what it holds could be taken from it.
"""

import asyncio
from typing import Final

import msgspec

from trimtab.core.events import FleetSized
from trimtab.core.traffic import holder_of
from trimtab.core.types import FleetAction, ReplicaState, Role
from trimtab.levers.replicas import judge_removal
from trimtab.runtime.supervisor import System
from trimtab.runtime.system_facts import topology_of

LOOK_BACK_S: Final = 60.0
"""Seconds whose busiest moment the replicas that stay must carry."""

DRAIN_S: Final = 60.0
REPLICAS_MAX: Final = 64


class RefusedError(Exception):
    """The fleet keeps its size; the message says why, with figures."""


class Resized(msgspec.Struct, frozen=True, kw_only=True):
    """What was done. `replicas`: those that serve now; `event_id`: the decision in the ledger."""

    action: FleetAction
    replica: str
    because: str
    event_id: str
    replicas: tuple[str, ...]


class Resizer:
    """Adds and removes replicas of one system."""

    def __init__(self, system: System) -> None:
        self._system = system
        self._lock = asyncio.Lock()
        self._used = 0

    async def add(self, *, force: bool = False) -> Resized:
        """Start one more replica of the baseline revision and return once it serves.

        Raises `RefusedError`, `LaunchError`. A new replica never gets a name that was used before.
        """
        async with self._lock:
            there = self._system.fleet.replica_ids()
            replica = self._new_name(there)
            held = self._held()
            if len(there) >= REPLICAS_MAX:
                held = f"there are {len(there)} replicas, the most that one gateway keeps"
            because = held or "asked for"
            cause = self._decide(FleetAction.ADD, replica, not held, force, because)
            await self._system.fleet.add(replica, self._system.baseline, cause_id=cause)
            return self._done(FleetAction.ADD, replica, because, cause)

    async def remove(self, replica: str, *, force: bool = False) -> Resized:
        """Drain a replica and let it leave; raises `RefusedError`, `LaunchError` (it did not drain and serves on)."""
        async with self._lock:
            there = self._system.fleet.replica_ids()
            if replica not in there:
                raise RefusedError(f"there is no replica {replica!r}, only {', '.join(there)}")
            if there == (replica,):
                raise RefusedError(f"{replica} is the only replica: nothing would serve")
            if not self._whole_without(replica):
                raise RefusedError(
                    f"{replica} is the only one that takes whole requests: change a role first (trimtab fleet role)"
                )
            held = self._held()
            allowed, because = (False, held) if held else self._carried(replica)
            cause = self._decide(FleetAction.REMOVE, replica, allowed, force, because)
            await self._system.fleet.remove(replica, drain_timeout_s=DRAIN_S, cause_id=cause)
            self._system.forget(replica)
            return self._done(FleetAction.REMOVE, replica, because, cause)

    def _whole_without(self, replica: str) -> bool:
        infos = self._system.fleet.infos()
        return any(one.id != replica and one.role is not Role.PREFILL for one in infos)

    def _new_name(self, there: tuple[str, ...]) -> str:
        """Return a name that no replica of this run has had."""
        numbers = [int(name[1:]) for name in there if name[1:].isdigit()]
        self._used = 1 + max([self._used, self._system.config.fleet.replicas - 1, *numbers])
        return f"r{self._used}"

    def _held(self) -> str:
        """Say which lever needs the fleet as it is, empty if none does."""
        return holder_of(self._system.router.plan)

    def _carried(self, replica: str) -> tuple[bool, str]:
        """Say whether the others carry what all carry, by how busy they are and by the busiest moment lately."""
        system = self._system
        if system.fleet.info(replica).state is not ReplicaState.READY:
            return True, f"{replica} serves nothing: it is {system.fleet.info(replica).state.value}"
        ready = [info.id for info in system.fleet.infos() if info.state is ReplicaState.READY]
        busy = [system.probes.readings(each).value("cpu_busy_share") for each in ready]
        known = [share for share in busy if share is not None]
        views = system.views_since(system.clock.wall_s() - LOOK_BACK_S)
        streams = [sum(each.in_flight for each in view.replicas) for view in views]
        judged = judge_removal(
            replicas=len(ready),
            busy_share=sum(known) / len(known) if len(known) == len(ready) else None,
            streams_max=max([*streams, system.load.in_flight]),
            slots_after=sum(
                system.fleet.revision_of(each).slots for each in ready if each != replica
            ),
        )
        return judged.allowed, judged.because

    def _decide(
        self, action: FleetAction, replica: str, allowed: bool, force: bool, because: str
    ) -> str:
        """Record the decision and return its id; raises `RefusedError`."""
        event = FleetSized(
            action=action,
            replica=replica,
            replicas=len(self._system.fleet.replica_ids()),
            allowed=allowed or force,
            forced=force and not allowed,
            because=because,
        )
        cause = self._system.ledger.append(event, cause_id=self._system.started_event, durable=True)
        if not event.allowed:
            raise RefusedError(because)
        return cause

    def _done(self, action: FleetAction, replica: str, because: str, cause: str) -> Resized:
        replicas = self._system.fleet.replica_ids()
        self._system.gateway.topology = topology_of(len(replicas))
        return Resized(
            action=action, replica=replica, because=because, event_id=cause, replicas=replicas
        )
