"""Which replicas there are, as the fleet told of them, and which of them take requests."""

import msgspec

from trimtab.core.decision import ReplicaView
from trimtab.core.types import ReplicaState, Role


class Members:
    """The replicas by id, with the lists that routing asks for at each request; a list is made when first asked for."""

    def __init__(self) -> None:
        self.by_id: dict[str, ReplicaView] = {}
        self._ejected: frozenset[str] = frozenset()
        self._ready: tuple[str, ...] | None = None
        self._could_serve: tuple[str, ...] | None = None
        self._prefilling: tuple[str, ...] | None = None
        self._has_prefill: bool | None = None

    def put(self, replica: ReplicaView) -> ReplicaView | None:
        """Take in what the fleet says of a replica; return what it said before."""
        before = self.by_id.get(replica.id)
        self.by_id[replica.id] = replica
        same = before is not None and before.role is replica.role
        if not same or before is None or before.state is not replica.state:
            self._forget_lists()
        return before

    def drop(self, replica: str) -> bool:
        """Forget a replica; return whether it was there."""
        self._forget_lists()
        return self.by_id.pop(replica, None) is not None

    def _forget_lists(self) -> None:
        self._ready = self._could_serve = self._prefilling = None
        self._has_prefill = None

    def ready(self) -> tuple[str, ...]:
        """Return the ids of the replicas that take new requests, in order."""
        if self._ready is None:
            self._ready = tuple(id_ for id_ in self.could_serve() if self.is_ready(id_))
        return self._ready

    def could_serve(self) -> tuple[str, ...]:
        """Return the ids of the replicas that the fleet says are ready, those that are left out included, in order."""
        if self._could_serve is None:
            self._could_serve = tuple(
                id_ for id_, told in sorted(self.by_id.items()) if told.state is ReplicaState.READY
            )
        return self._could_serve

    def prefilling(self) -> tuple[str, ...]:
        """Return the ids of the ready replicas that prefill for others and are not left out, in order."""
        if self._prefilling is None:
            self._prefilling = tuple(
                id_
                for id_ in self.could_serve()
                if self.by_id[id_].role is Role.PREFILL and id_ not in self._ejected
            )
        return self._prefilling

    def has_prefill(self) -> bool:
        """Whether any replica prefills for others, ready or not."""
        if self._has_prefill is None:
            self._has_prefill = any(one.role is Role.PREFILL for one in self.by_id.values())
        return self._has_prefill

    def eject(self, ids: frozenset[str]) -> frozenset[str]:
        """Leave these replicas out, and no others; return the ids for which that is news."""
        changed = ids ^ self._ejected
        if changed:
            self._ejected, self._ready, self._prefilling = ids, None, None
        return changed & self.by_id.keys()

    def is_ready(self, id_: str) -> bool:
        """Whether a replica takes whole requests: the fleet says that it may, and it is not left out."""
        return self.by_id[id_].takes_requests and id_ not in self._ejected

    def as_told(self, id_: str) -> ReplicaView:
        """Return what the fleet said of a replica; one that is left out says so."""
        told = self.by_id[id_]
        if told.state is ReplicaState.READY and id_ in self._ejected:
            return msgspec.structs.replace(told, state=ReplicaState.EJECTED)
        return told


def as_whole(replica: ReplicaView) -> ReplicaView:
    """Return a replica as one that takes whole requests, whatever its role."""
    if replica.role is not Role.PREFILL:
        return replica
    return msgspec.structs.replace(replica, role=Role.MIXED)
