"""The life of servers that somebody else runs: found, checked again and again, left out while they are not well.

A server is identified when it is first seen and whenever it comes back. Its own metrics are read at every check: an
old reading is stale, not idle. trimtab never restarts such a server and never stops it; one that leaves the fleet gets
no new requests and ends those that it has.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from trimtab.core.config import AttachedServer, Config, FleetConfig
from trimtab.core.events import ReplicaChanged
from trimtab.core.evidence import Readings
from trimtab.core.ports import Clock, LaunchError, LedgerSink
from trimtab.core.revision import Revision
from trimtab.core.served import EngineKind, ServerSample
from trimtab.core.types import ReplicaState, Role
from trimtab.engines.attached import KEEP_AFTER_STREAM, Identity
from trimtab.engines.served_load import EngineLoad
from trimtab.runtime.access import OPEN, Access, access_of
from trimtab.runtime.attach_member import Member, keeps_role, named, unseen
from trimtab.runtime.attach_read import ReadError, Seen, ServerReader
from trimtab.runtime.fleet import ReplicaInfo
from trimtab.runtime.secret import SecretError

NOT_OURS: Final = (
    "trimtab did not start this server and cannot restart it: change the server where it is run, "
    "or let trimtab start its own replicas"
)
_DRAIN_POLL_S: Final = 0.1
_START_POLL_S: Final = 0.02


class AttachedFleet:
    """Keeps the servers that were named. Does what `Fleet` does, as far as that can be done to servers of others.

    `on_change` is told of every change of a server, `on_load` of every reading of its load with its age at 0 (and the
    moment of the monotonic clock), `on_gone` when one has left.
    """

    def __init__(
        self,
        config: Config,
        sink: LedgerSink,
        clock: Clock,
        on_change: Callable[[ReplicaInfo], None],
        *,
        on_load: Callable[[str, EngineLoad, float], None],
        on_gone: Callable[[str], None],
        in_flight: Callable[[str], int],
    ) -> None:
        self._config: FleetConfig = config.fleet
        self._sink = sink
        self._clock = clock
        self._on_change = on_change
        self._on_load = on_load
        self._on_gone = on_gone
        self._in_flight = in_flight
        self._reader = ServerReader(clock, timeout_s=config.fleet.check_timeout_s)
        self._members: dict[str, Member] = {}
        self._accesses: dict[str, Access] = {}
        self._leaving: set[asyncio.Task[None]] = set()
        self._stopping = False
        self.model = config.fleet.model
        """The model that every server of the fleet serves; empty until the first has told."""

    def replica_ids(self) -> tuple[str, ...]:
        """Return every server's id in the order in which they joined."""
        return tuple(self._members)

    def revision_of(self, replica: str) -> Revision:
        """Return what a server said it runs; raises KeyError."""
        return self._members[replica].revision

    @property
    def revision(self) -> Revision:
        """Return what the first server that told runs; that of an unknown engine before any has."""
        told = [member for member in self._members.values() if member.identity is not None]
        ready = [member for member in told if member.state is ReplicaState.READY]
        return (ready or told)[0].revision if told else unseen()

    def models(self) -> tuple[str, ...]:
        """Return the models that every ready server serves, the fleet's own first."""
        served = [
            member.identity.models
            for member in self._members.values()
            if member.identity is not None and member.state is ReplicaState.READY
        ]
        if not served:
            return (self.model,) if self.model else ()
        common = [name for name in served[0] if all(name in names for names in served)]
        return tuple(sorted(common, key=lambda name: name != self.model))

    def info(self, replica: str) -> ReplicaInfo:
        """Return one server as it is now; raises KeyError."""
        return self._members[replica].info()

    def infos(self) -> tuple[ReplicaInfo, ...]:
        """Return all servers as they are now."""
        return tuple(member.info() for member in self._members.values())

    def identity(self, replica: str) -> Identity | None:
        """Return what a server said of itself, None before it answered."""
        member = self._members.get(replica)
        return None if member is None else member.identity

    def access(self, url: str) -> Access:
        """Return how a server is reached, by its base address."""
        return self._accesses.get(url, OPEN)

    def load(self, replica: str) -> tuple[EngineLoad, float | None]:
        """Return the latest load of a server and its age in seconds; everything is unknown once it is stale."""
        member, now_s = self._members.get(replica), self._clock.mono_s()
        if member is None:
            return EngineLoad(), None
        return member.load(now_s, self._config.probe_every_s), member.age_s(now_s)

    def age_s(self, replica: str) -> float | None:
        """Return the age of a server's latest page in seconds, None before the first."""
        return self.load(replica)[1]

    def readings(self, replica: str) -> Readings:
        """Return a server's readings; unknown, with the age, once they are stale."""
        member, now_s = self._members.get(replica), self._clock.mono_s()
        if member is None:
            return Readings()
        return member.readings(now_s, self._config.probe_every_s)

    def sample(self, replica: str) -> ServerSample | None:
        """Return the latest page of a server, however old; None before the first."""
        member = self._members.get(replica)
        return None if member is None else member.sample

    def histories(self) -> tuple[tuple[str, tuple[ServerSample, ...]], ...]:
        """Return the pages of the last minute of every server that is ready, by its id."""
        ready = (each for each in self._members.values() if each.state is ReplicaState.READY)
        return tuple((member.id, member.history()) for member in ready)

    async def start(
        self, servers: Sequence[AttachedServer], *, cause_id: str | None = None
    ) -> None:
        """Take in servers and return once all were looked at and one is ready; raises `LaunchError`.

        It waits `fleet.start_timeout_s` for the first that is ready; others may come later.
        """
        self.want(servers, cause_id=cause_id)
        deadline_s = self._clock.mono_s() + self._config.start_timeout_s
        while self._clock.mono_s() < deadline_s:
            members = tuple(self._members.values())
            ready = any(member.state is ReplicaState.READY for member in members)
            if ready and all(member.looked.is_set() for member in members):
                return
            await asyncio.sleep(_START_POLL_S)
        members = tuple(self._members.values())
        if not any(member.state is ReplicaState.READY for member in members):
            told = "; ".join(f"{member.url}: {member.reason}" for member in members)
            await self.stop()
            raise LaunchError(
                f"no attached server was ready within {self._config.start_timeout_s:g} s: "
                f"{told or 'none is named and none was discovered'}"
            )

    def use_config(self, fleet: FleetConfig) -> None:
        """Check by another configuration from now on; who is in the fleet is said by `want`."""
        self._config = fleet

    def want(self, servers: Sequence[AttachedServer], *, cause_id: str | None = None) -> None:
        """Let exactly these servers be in the fleet: new ones join, missing ones drain and leave.

        Raises `LaunchError` for two of one name and for a key that cannot be had; then nothing has changed.
        """
        wanted = named(servers)
        try:
            accesses = {name: access_of(server, self._config) for name, server in wanted.items()}
        except SecretError as error:
            raise LaunchError(str(error)) from error
        for name in self._members.keys() - wanted.keys():
            self._leave(self._members[name], cause_id)
        for name, server in wanted.items():
            member = self._members.get(name)
            if member is not None and _stays(member, server):
                member.access = accesses[name]
                self._set_access(member)
            else:
                if member is not None:
                    self._drop(member)
                self._join(Member(server, name, accesses[name]), cause_id)

    def _set_access(self, member: Member) -> None:
        """Say how a server is reached from the next request on, by what is known of its engine."""
        engine = EngineKind.UNKNOWN if member.identity is None else member.identity.engine
        self._accesses[member.url] = msgspec.structs.replace(
            member.access, keeps_streams=engine in KEEP_AFTER_STREAM
        )

    def _join(self, member: Member, cause_id: str | None) -> None:
        self._members[member.id] = member
        self._set_access(member)
        self._move(member, ReplicaState.STARTING, "attached", cause_id)
        member.task = asyncio.create_task(self._keep(member, cause_id))

    def _leave(self, member: Member, cause_id: str | None) -> None:
        if member.state is ReplicaState.DRAINING and not member.changes_role:
            return
        member.changes_role = False
        if member.task is not None:
            member.task.cancel()
        member.looked.set()
        self._move(member, ReplicaState.DRAINING, "it leaves the fleet", cause_id)
        task = asyncio.create_task(self._drain(member, cause_id))
        self._leaving.add(task)
        task.add_done_callback(self._leaving.discard)

    async def _drain(self, member: Member, cause_id: str | None) -> None:
        while self._in_flight(member.id) > 0:
            if self._members.get(member.id) is not member:
                return
            await asyncio.sleep(_DRAIN_POLL_S)
        if self._members.get(member.id) is member:
            self._move(member, ReplicaState.STOPPED, "left the fleet; it runs on", cause_id)
            self._drop(member)
            self._on_gone(member.id)

    def _drop(self, member: Member) -> None:
        member.changes_role = False
        if member.task is not None:
            member.task.cancel()
        member.looked.set()
        del self._members[member.id]
        if all(each.url != member.url for each in self._members.values()):
            self._accesses.pop(member.url, None)

    async def _keep(self, member: Member, cause_id: str | None) -> None:
        """Look at a server again and again until cancelled."""
        while True:
            try:
                if member.identity is None:
                    await self._identify(member)
                seen = await self._reader.look(member.url, member.access, source=member.id)
                self._saw(member, seen, cause_id)
            except ReadError as error:
                self._missed(member, str(error), cause_id)
            member.looked.set()
            await asyncio.sleep(self._config.probe_every_s)

    async def _identify(self, member: Member) -> None:
        """Learn who a server is; raises `ReadError`, also for one that serves another model than the fleet."""
        found = await self._reader.identify(member.url, member.access, source=member.id)
        if not self.model:
            # Of several that answer at once the first in order decides, however fast the others are.
            await self._those_before(member)
            self.model = self.model or found.models[0]
        if self.model not in found.models:
            raise ReadError(
                f"it serves {', '.join(found.models[:4])}, and this fleet serves {self.model}: "
                "one gateway serves one model (fleet.model names it)"
            )
        slots = member.server.slots or found.slots
        member.identity = msgspec.structs.replace(found, slots=slots)
        member.revision = member.identity.revision(self.model)
        self._set_access(member)

    async def _those_before(self, member: Member) -> None:
        order = list(self._members.values())
        for other in order[: order.index(member)] if member in order else []:
            await other.looked.wait()

    def _saw(self, member: Member, seen: Seen, cause_id: str | None) -> None:
        """Take in that a server is well, and what it says of its load."""
        if member.takes_for_restarted(seen):
            member.began_anew(self._clock.wall_s())
            self._on_load(member.id, EngineLoad(), seen.at_mono_s)
            self._move(member, ReplicaState.RESTARTING, "its counters began anew", cause_id)
            return
        load = member.take(seen)
        if member.state is not ReplicaState.READY and not member.changes_role:
            self._move(member, ReplicaState.READY, member.words(), cause_id)
        # Where the server comes back as it was, so does its cache.
        member.kv_kept = True
        if load is not None:
            self._on_load(member.id, load, seen.at_mono_s)

    def _missed(self, member: Member, why: str, cause_id: str | None) -> None:
        """Take in that a server did not answer well; it is left out after enough of that."""
        member.failures += 1
        member.because = why
        # One that drains for another role serves on afterwards, and is as patiently waited for.
        is_ready = member.state is ReplicaState.READY or member.changes_role
        if is_ready and member.failures < self._config.unhealthy_after:
            return
        reason = f"not well: {why}"
        if is_ready or member.reason != reason:
            self._move(member, ReplicaState.FAILED, reason, cause_id)
        # Who comes back may be another: a new version, another model.
        member.identity = None

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
        """Drain a server here, hand-overs too, and route to it in another role; `revision` and `threads` stay.

        Raises `LaunchError`, and it keeps its role: it is not ready, it hands nothing over, it is the last that takes
        whole requests, it did not drain in time, or it left meanwhile.
        """
        member = self._members[replica]
        if trouble := keeps_role(member, role, self._members.values(), stopping=self._stopping):
            raise LaunchError(f"{replica} keeps its role: {trouble}")
        member.changes_role = True
        self._move(member, ReplicaState.DRAINING, f"it changes to {role.value}", cause_id)
        deadline_s = self._clock.mono_s() + drain_timeout_s
        try:
            while self._in_flight(replica) > 0 and member.changes_role:
                if self._clock.mono_s() >= deadline_s or member.state is not ReplicaState.DRAINING:
                    raise LaunchError(f"{replica} keeps its role: it did not drain while well")
                await asyncio.sleep(_DRAIN_POLL_S)
            if not member.changes_role:
                raise LaunchError(f"{replica} left the fleet before it changed its role")
            member.role = role
        finally:
            if member.changes_role and member.state is ReplicaState.DRAINING:
                self._move(
                    member, ReplicaState.READY, f"it serves as {member.role.value}", cause_id
                )
            member.changes_role = False

    async def add(self, replica: str, revision: Revision, *, cause_id: str | None = None) -> None:
        """Raise `LaunchError`: servers join by configuration or discovery."""
        raise LaunchError(
            f"{replica} was not started: this fleet is attached; name the server in the configuration "
            "and run `trimtab reload`, or add it where fleet.discover looks"
        )

    async def remove(
        self, replica: str, *, drain_timeout_s: float, cause_id: str | None = None
    ) -> None:
        """Raise `LaunchError`: servers leave by configuration or discovery."""
        raise LaunchError(
            f"{replica} was not removed: this fleet is attached; take the server out of the configuration "
            "and run `trimtab reload`, or out of where fleet.discover looks"
        )

    async def restart_into(
        self,
        replica: str,
        revision: Revision,
        *,
        drain_timeout_s: float,
        keep_kv: bool = True,
        cause_id: str | None = None,
    ) -> None:
        """Raise `LaunchError`: nobody but its owner restarts a server."""
        raise LaunchError(f"{replica} was not restarted: {NOT_OURS}")

    async def stop(self, *, cause_id: str | None = None) -> None:
        """Let go of every server; they run on."""
        self._stopping = True
        tasks = [member.task for member in self._members.values() if member.task is not None]
        tasks += self._leaving
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._reader.close()
        for member in self._members.values():
            member.state, member.reason = ReplicaState.STOPPED, "let go of; it runs on"
            self._tell(member, cause_id)

    def _move(self, member: Member, state: ReplicaState, reason: str, cause_id: str | None) -> None:
        if self._stopping:
            return
        member.state, member.reason = state, reason
        self._tell(member, cause_id)

    def _tell(self, member: Member, cause_id: str | None) -> None:
        self._on_change(member.info())
        self._sink.append(
            ReplicaChanged(
                replica=member.id,
                state=member.state,
                revision=member.revision,
                url=member.url,
                reason=member.reason,
                role=member.role,
            ),
            cause_id=cause_id,
        )


def _stays(member: Member, server: AttachedServer) -> bool:
    leaves = member.state is ReplicaState.DRAINING and not member.changes_role
    return member.server == server and not leaves
