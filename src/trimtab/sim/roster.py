"""The replicas of a simulated fleet: their states, roles and specifications, and what gateways are told of them.

A change of role or specification drains the replica, waits until its last hand-over was fetched, takes its time and
then makes it ready again. A drained replica without a change stops. Gateways hear of a replica that died at the next
probe, or find it gone; everything else they are told at once.
"""

import random
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial

import msgspec
import numpy as np

from trimtab.core.columns import Floats
from trimtab.core.types import ReplicaState, Role
from trimtab.sim.fleet_parts import Change, FleetSpec, Gateway
from trimtab.sim.holders import Holders
from trimtab.sim.jobs import Job, Listener, ReplicaSpec
from trimtab.sim.kernel import Kernel
from trimtab.sim.replica import Replica
from trimtab.sim.replicas import AnyReplica, Hosts, make_replica
from trimtab.sim.role_control import RoleChange
from trimtab.sim.slot_replica import SlotReplica
from trimtab.sim.streams import Streams

Lost = Callable[[float, str, list[Job]], None]


class Roster:
    """Holds the replicas by id, in the order in which they were added."""

    def __init__(
        self,
        spec: FleetSpec,
        kernel: Kernel,
        gateways: Sequence[Gateway],
        listener: Listener,
        lost: Lost,
        streams: Streams,
    ) -> None:
        """Take whom to tell; `lost` is told of the jobs of a replica that died. `awaits`: KV is on its way to it."""
        self.spec = spec
        self.replicas: dict[str, AnyReplica] = {}
        self.states: dict[str, ReplicaState] = {}
        self.roles: dict[str, Role] = {}
        self.numbers: dict[str, int] = {}
        self._holders = Holders()
        self.role_changes: list[RoleChange] = []
        self.changing: dict[str, Change] = {}
        self._coming_back: set[str] = set()
        self.readings = 0
        """Readings on their way to gateways."""
        self.awaits: Callable[[str], bool] = lambda _: False
        self._kernel = kernel
        self._gateways = gateways
        self._listener = listener
        self._lost = lost
        self._streams = streams
        self._hosts = Hosts(spec.replica)
        self._prefill_spec = _prefill_spec(spec)
        prefill = 0 if spec.roles is None else spec.roles.prefill
        for at in range(spec.replicas):
            # The last ones prefill, as the last is the one that changes first.
            alone = Role.MIXED if prefill == 0 else Role.DECODE
            self.add(
                0.0, ready_s=0.0, role=Role.PREFILL if at >= spec.replicas - prefill else alone
            )

    def held_tokens(self, hashes: Sequence[int]) -> int:
        """Return how many of a prompt's first tokens the replica has that has most of it, whatever gateways know."""
        if self.spec.replica.similarity is None:
            blocks = self._holders.longest(hashes)
        else:
            slots = (one for one in self.replicas.values() if isinstance(one, SlotReplica))
            blocks = max((one.held_blocks(hashes) for one in slots), default=0)
        return blocks * self.spec.replica.block_tokens

    @property
    def ready_count(self) -> int:
        """Replicas that are ready, whatever their role."""
        return sum(1 for state in self.states.values() if state is ReplicaState.READY)

    def count_roles(self) -> Counter[Role]:
        """Return how many ready replicas have each role."""
        ready = ReplicaState.READY
        return Counter(self.roles[id_] for id_, state in self.states.items() if state is ready)

    def spec_for(self, role: Role) -> ReplicaSpec:
        """Return what a replica of a role can do."""
        return self._prefill_spec if role is Role.PREFILL else self.spec.replica

    def add(
        self,
        now_s: float,
        *,
        ready_s: float | None = None,
        role: Role | None = None,
        start_s: float | None = None,
    ) -> str:
        """Start a replica; it takes requests after the start time. Returns its id."""
        number = len(self.numbers)
        replica = f"r{number:05d}"
        self.numbers[replica] = number
        self.roles[replica] = role or self._role_of_whole_requests()
        stepped = partial(self._stepped, replica)
        listener = msgspec.structs.replace(self._listener, stepped=stepped)
        self.replicas[replica] = make_replica(
            self.spec_for(self.roles[replica]),
            self._kernel,
            listener,
            self._hosts.of(number),
            self._unrest_of(number),
            self._holders,
        )
        self._tell_slots(replica)
        takes_s = self.spec.start_s if start_s is None else start_s
        ready = now_s + takes_s if ready_s is None else ready_s
        if ready <= now_s:
            self._set_state(replica, ReplicaState.READY, now_s)
        else:
            self._set_state(replica, ReplicaState.STARTING, now_s)
            self._kernel.at(ready, self._ready, replica)
        return replica

    def _unrest_of(self, number: int) -> random.Random | None:
        host = self.spec.replica.host
        return None if host is None else self._streams.stream(f"unrest of {number}")

    def _role_of_whole_requests(self) -> Role:
        return Role.DECODE if Role.PREFILL in self.roles.values() else Role.MIXED

    def _tell_slots(self, replica: str) -> None:
        spec = self.spec.replica
        if spec.similarity is not None:
            for gateway in self._gateways:
                gateway.router.index.set_slots(replica, spec.streams_max, spec.similarity)

    def _ready(self, now_s: float, replica: str) -> None:
        if self.states.get(replica) is ReplicaState.STARTING:
            self._set_state(replica, ReplicaState.READY, now_s)

    def drain(self, now_s: float, replica: str) -> None:
        """Let a replica finish what it has and take nothing more; then it stops, or after the fleet's drain time."""
        if self.states.get(replica) is not ReplicaState.READY:
            return
        self._set_state(replica, ReplicaState.DRAINING, now_s)
        if self.spec.drain_s is not None and replica not in self.changing:
            self._kernel.at(now_s + self.spec.drain_s, self._drained, replica)
        self.settle(now_s, replica)

    def _drained(self, now_s: float, replica: str) -> None:
        if self.states[replica] is ReplicaState.DRAINING:
            self.kill(now_s, replica, restart=False)

    def change(self, now_s: float, replica: str, change: Change) -> None:
        """Drain a replica and make it another; one that is not ready changes nothing."""
        if self.states.get(replica) is ReplicaState.READY:
            self.changing[replica] = change
            self.drain(now_s, replica)

    def settle(self, now_s: float, replica: str) -> None:
        """Go on with a draining replica if it has nothing left."""
        if self.states[replica] is not ReplicaState.DRAINING or not self._is_idle(replica):
            return
        change = self.changing.get(replica)
        if change is None:
            self._set_state(replica, ReplicaState.STOPPED, now_s)
            return
        self._set_state(replica, ReplicaState.RESTARTING, now_s)
        self._kernel.at(now_s + change.take_s, self._changed, (replica, change))

    def _changed(self, now_s: float, what: tuple[str, Change]) -> None:
        replica, change = what
        if self.changing.get(replica) is not change:
            return
        if not self._is_idle(replica):
            # What was on its way to it when it had nothing left comes first.
            self._set_state(replica, ReplicaState.DRAINING, now_s)
            return
        del self.changing[replica]
        one = self.replicas[replica]
        if isinstance(one, Replica):
            one.become(change.spec)
        one.slow = change.slow
        if not change.keeps_cache:
            one.kill(now_s, "it restarted")
            for gateway in self._gateways:
                gateway.router.forget(replica)
        if change.role is not self.roles[replica]:
            self.roles[replica] = change.role
            number = self.numbers[replica]
            self.role_changes.append(RoleChange(at_s=now_s, replica=number, role=change.role))
        self._set_state(replica, ReplicaState.READY, now_s)
        self._name_whole(now_s)

    def _is_idle(self, replica: str) -> bool:
        one = self.replicas[replica]
        idle = one.is_idle if isinstance(one, Replica) else one.in_flight == 0
        return idle and not self.awaits(replica)

    def _name_whole(self, now_s: float) -> None:
        """Call replicas mixed that serve whole requests while nobody prefills for them, and decode otherwise."""
        name = self._role_of_whole_requests()
        for replica, role in self.roles.items():
            if role is not Role.PREFILL and role is not name:
                self.roles[replica] = name
                self._set_state(replica, self.states[replica], now_s)

    def kill(self, now_s: float, replica: str, *, restart: bool = True) -> None:
        """Lose a replica with all that it holds; gateways find out by and by. It comes back unless told not to.

        One that is down and was to come back stays lost when it is told not to meanwhile.
        """
        if not restart:
            self._coming_back.discard(replica)
        if self.states.get(replica) in {None, ReplicaState.STOPPED}:
            return
        self.states[replica] = ReplicaState.STOPPED
        self.changing.pop(replica, None)
        self._lost(now_s, replica, self.replicas[replica].kill(now_s, "its replica was lost"))
        self._kernel.at(now_s + self.spec.probe_s, self._notice, replica)
        if restart:
            self._coming_back.add(replica)
            back_s = now_s + max(self.spec.start_s, self.spec.probe_s)
            self._kernel.at(back_s, self._back, replica)

    def _notice(self, now_s: float, replica: str) -> None:
        if self.states[replica] is ReplicaState.STOPPED:
            for gateway in self._gateways:
                self.tell(gateway, replica, ReplicaState.STOPPED, now_s)
                gateway.router.forget(replica)

    def _back(self, now_s: float, replica: str) -> None:
        if replica not in self._coming_back:
            return
        self._coming_back.discard(replica)
        for gateway in self._gateways:
            gateway.router.forget(replica)
        self._set_state(replica, ReplicaState.READY, now_s)

    def _set_state(self, replica: str, state: ReplicaState, now_s: float) -> None:
        self.states[replica] = state
        for gateway in self._gateways:
            self.tell(gateway, replica, state, now_s)

    def tell(self, gateway: Gateway, replica: str, state: ReplicaState, now_s: float) -> None:
        """Tell one gateway what a replica is."""
        gateway.load.set_replica(
            id=replica,
            url="",
            role=self.roles[replica],
            revision="simulated",
            state=state,
            slots=self.spec_for(self.roles[replica]).streams_max,
            speculating=self.replicas[replica].spec.drafts is not None,
            started_at_s=now_s,
            kv_key="simulated",
        )

    def _stepped(self, replica: str, steps: int) -> None:
        for gateway in self._gateways:
            gateway.load.stepped(replica, steps)

    def probe(self, now_s: float, gateway: Gateway) -> None:
        """Let a gateway read every replica; it knows it after the time that a reading takes to it."""
        for replica in self.replicas.values():
            replica.tell_steps(now_s)
        # Ids are in the order in which replicas were added.
        all_ = self.replicas.values()
        read = _Reading(
            gateway=gateway,
            at_s=now_s,
            shares=np.array([replica.used_share for replica in all_]),
            counts=[(now := one.running, one.in_flight - now) for one in all_],
        )
        if self.spec.probe_late_s > 0.0:
            self.readings += 1
            self._kernel.at(now_s + self.spec.probe_late_s, self._arrived, read)
        else:
            self._read(read)

    def _arrived(self, _: float, read: "_Reading") -> None:
        self.readings -= 1
        self._read(read)

    def _read(self, read: "_Reading") -> None:
        load = read.gateway.load
        if read.shares.size == len(self.replicas):
            load.seen_all(read.shares, now_s=read.at_s, counts=read.counts)
            return
        # Some were added while the reading was on its way.
        told = zip(self.replicas, read.shares, read.counts, strict=False)
        for replica, share, (running, waiting) in told:
            load.seen(
                replica,
                now_s=read.at_s,
                kv_used_share=float(share),
                running=running,
                waiting=waiting,
            )


class _Reading(msgspec.Struct, frozen=True, kw_only=True):
    """What one gateway's probe read: shares of KV in use, and requests running and waiting, by replica."""

    gateway: Gateway
    at_s: float
    shares: Floats
    counts: Sequence[tuple[int, int]]


def _prefill_spec(spec: FleetSpec) -> ReplicaSpec:
    replica, roles = spec.replica, spec.roles
    if roles is None:
        return replica
    return msgspec.structs.replace(
        replica,
        budget_tokens=roles.prefill_budget_tokens or replica.budget_tokens,
        streams_max=roles.prefill_streams_max or replica.streams_max,
    )
