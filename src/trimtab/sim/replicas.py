"""Which model of an engine a replica is: paged blocks, or slots of one chain each."""

import random

from trimtab.sim.holders import Holders
from trimtab.sim.hosts import Host
from trimtab.sim.jobs import Listener, ReplicaSpec
from trimtab.sim.kernel import Kernel
from trimtab.sim.replica import Replica
from trimtab.sim.slot_replica import SlotReplica

AnyReplica = Replica | SlotReplica


class Hosts:
    """The hosts of a fleet: replicas fill one after the other."""

    def __init__(self, spec: ReplicaSpec) -> None:
        self._spec = spec.host
        self._hosts: list[Host] = []

    def of(self, number: int) -> Host | None:
        """Return the host of the replica with a number, None where no host is described."""
        if self._spec is None:
            return None
        at = number // self._spec.replicas
        while len(self._hosts) <= at:
            self._hosts.append(Host(self._spec))
        return self._hosts[at]


def make_replica(
    spec: ReplicaSpec,
    kernel: Kernel,
    listener: Listener,
    host: Host | None = None,
    rng: random.Random | None = None,
    holders: Holders | None = None,
) -> AnyReplica:
    """Return a replica of the kind that its specification says; `rng` is for the unrest of its host.

    `holders`: who counts what the paged replicas of a fleet hold.
    """
    if spec.similarity is not None:
        return SlotReplica(spec, kernel, listener, host, rng)
    replica = Replica(spec, kernel, listener)
    if holders is not None:
        replica.pool.holders = holders
    return replica
