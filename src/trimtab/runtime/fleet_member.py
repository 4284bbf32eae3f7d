"""One replica of a fleet: what changes about it, what is told of it, and how the roles of all hang together."""

import asyncio
from collections.abc import Collection, Iterator
from typing import Final

import msgspec

from trimtab.core.events import KVMoved, ReplicaChanged
from trimtab.core.handover import NO_LABELS, ReplicaLabels
from trimtab.core.ports import Placement, SavedKV
from trimtab.core.revision import Revision
from trimtab.core.types import ReplicaState, Role

AWAY: Final = frozenset(
    {
        ReplicaState.DRAINING,
        ReplicaState.RESTARTING,
        ReplicaState.FAILED,
    }
)
"""States in which a replica takes no requests and had its chance to: one that is starting for the first time had none.
"""


class ReplicaInfo(msgspec.Struct, frozen=True, kw_only=True):
    """One replica at one moment. `url`: where it serves, or served last; `kv_kept`: slots lived through a restart.

    `kv_key`: equal where KV may be handed over; empty where its revision says it, or nothing can be. `lent`: its
    role is to prefill, and it serves whole requests until another does again.
    """

    id: str
    state: ReplicaState
    revision: Revision
    role: Role
    url: str
    pid: int | None
    threads: int
    started_at_s: float
    crashes: int
    reason: str
    kv_kept: bool = False
    kv_key: str = ""
    labels: ReplicaLabels = NO_LABELS
    lent: bool = False

    @property
    def prefills(self) -> bool:
        """Whether it prefills for others, now or as soon as they serve again."""
        return self.role is Role.PREFILL or self.lent


class Member:
    """The changing part of one replica."""

    def __init__(
        self, placement: Placement, revision: Revision, role: Role = Role.MIXED, threads: int = 0
    ) -> None:
        """`placement`: its share of the machine; `threads`: those that its role gave it, 0: its share's."""
        self.share = placement
        self.placement = with_threads(placement, threads)
        self.revision = revision
        self.role = role
        self.lent = False
        """It prefills, and serves whole requests only because nobody else can now."""
        self.state = ReplicaState.STARTING
        self.url = f"http://{placement.host}:{placement.port}"
        self.lock = asyncio.Lock()
        self.generation = 0
        self.crashes = 0
        self.started_at_s = 0.0
        self.ready_mono_s = 0.0
        self.reason = ""
        self.kv_kept = False

    @property
    def id(self) -> str:
        return self.placement.replica

    def info(self, pid: int | None) -> ReplicaInfo:
        return ReplicaInfo(
            id=self.id,
            state=self.state,
            revision=self.revision,
            role=self.role,
            url=self.url,
            pid=pid,
            threads=self.placement.threads,
            started_at_s=self.started_at_s,
            crashes=self.crashes,
            reason=self.reason,
            kv_kept=self.kv_kept,
            lent=self.lent,
        )


def with_threads(share: Placement, threads: int) -> Placement:
    """Return a placement with so many threads, 0: as many as it has. More than its CPUs are not pinned to them."""
    if threads in (0, share.threads):
        return share
    cpus = share.cpus if threads <= len(share.cpus) else ()
    return msgspec.structs.replace(share, threads=threads, cpus=cpus)


def role_trouble(member: Member, role: Role, members: Collection[Member], *, stopping: bool) -> str:
    """Say why a replica must keep the role it has; empty where it may take another."""
    if stopping:
        return "the fleet is stopping"
    if member.state is not ReplicaState.READY:
        return f"it is {member.state.value}"
    serves = any(
        one.state is ReplicaState.READY and one.role is not Role.PREFILL
        for one in members
        if one is not member
    )
    return "no other takes whole requests" if role is Role.PREFILL and not serves else ""


def settled_roles(members: Collection[Member]) -> Iterator[tuple[Member, str]]:
    """Give replicas the roles that follow from the others'; yields each that changes and why.

    Replicas that serve whole requests are called decode while another prefills for them and mixed otherwise. Where all
    of them are away, those that prefill serve whole requests, by routing alone, until one is back.
    """
    members = [one for one in members if one.state is not ReplicaState.STOPPED]
    whole = [one for one in members if one.role is not Role.PREFILL and not one.lent]
    nobody = all(one.state in AWAY for one in whole)
    for one in members:
        if nobody and one.role is Role.PREFILL and one.state is ReplicaState.READY:
            one.lent, one.role = True, Role.MIXED
            yield one, "nobody else serves: it takes whole requests"
        elif one.lent and any(each.state is ReplicaState.READY for each in whole):
            one.lent, one.role = False, Role.PREFILL
            yield one, "others serve again: it prefills for them"
    name = Role.DECODE if any(one.role is Role.PREFILL for one in members) else Role.MIXED
    for one in members:
        if one.role not in (Role.PREFILL, name):
            one.role = name
            yield one, f"it is called {name.value}: roles of others changed"


def moved_kv(action: str, saved: SavedKV) -> KVMoved:
    """Return the event of slots that were saved or restored."""
    return KVMoved(
        replica=saved.replica,
        action=action,
        slots=len(saved.files),
        tokens=saved.tokens,
        bytes=saved.bytes,
        took_ms=saved.took_ms,
    )


def changed(info: ReplicaInfo) -> ReplicaChanged:
    """Return the event of a replica that changed."""
    return ReplicaChanged(
        replica=info.id,
        state=info.state,
        revision=info.revision,
        url=info.url,
        pid=info.pid,
        reason=info.reason,
        role=info.role,
        threads=info.threads,
    )
