"""The life of all replicas: start, crash and restart, drain, restart into another revision with the KV kept, stop.

While the fleet serves, a replica can join it and another can leave it.

One rule keeps it simple: every process has a generation. Whoever ends a process on purpose first moves its replica to
the next generation; a process that ends while its generation is the current one has crashed. Starts and restarts of
one replica exclude each other by its lock.
"""

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Final

from trimtab.core.config import Config, FleetConfig
from trimtab.core.events import ReplicaCrashed
from trimtab.core.ports import Clock, LaunchError, LedgerSink, Placement, SavedKV
from trimtab.core.revision import Revision
from trimtab.core.types import ReplicaState, Role
from trimtab.runtime.fleet_member import (
    Member,
    changed,
    moved_kv,
    role_trouble,
    settled_roles,
    with_threads,
)
from trimtab.runtime.fleet_member import ReplicaInfo as ReplicaInfo
from trimtab.runtime.replica_launcher import ReplicaLauncher, process_runs
from trimtab.runtime.resume import STOPPED_WITH_FLEET

_DRAIN_POLL_S: Final = 0.02
_NO_ROLES: Final[Mapping[str, Role]] = {}
_NO_THREADS: Final[Mapping[str, int]] = {}


class Fleet:
    """Keeps the replicas of one launcher.

    `on_change` is told of every change of a replica, before new requests can meet it. `in_flight` says how many
    requests the gateway has on a replica.
    """

    def __init__(
        self,
        config: Config,
        launcher: ReplicaLauncher,
        sink: LedgerSink,
        clock: Clock,
        on_change: Callable[[ReplicaInfo], None],
        *,
        in_flight: Callable[[str], int],
    ) -> None:
        self._config: FleetConfig = config.fleet
        self._launcher = launcher
        self._sink = sink
        self._clock = clock
        self._on_change = on_change
        self._in_flight = in_flight
        self._members: dict[str, Member] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._stopping = False

    def replica_ids(self) -> tuple[str, ...]:
        """Return every replica in a stable order."""
        return tuple(self._members)

    def revision_of(self, replica: str) -> Revision:
        """Return the revision a replica runs or is starting; raises KeyError."""
        return self._members[replica].revision

    def info(self, replica: str) -> ReplicaInfo:
        """Return one replica as it is now; raises KeyError."""
        return self._members[replica].info(self._launcher.pid(replica))

    def infos(self) -> tuple[ReplicaInfo, ...]:
        """Return all replicas as they are now."""
        return tuple(self.info(replica) for replica in self._members)

    async def start(
        self,
        revisions: Mapping[str, Revision],
        *,
        roles: Mapping[str, Role] = _NO_ROLES,
        threads: Mapping[str, int] = _NO_THREADS,
        cause_id: str | None = None,
    ) -> None:
        """Start all replicas at once; raises `LaunchError`, everything stopped, if one cannot be had.

        `roles`: those that are not mixed; `threads`: those of replicas that do not have their share of the cores.
        """
        placements = self._launcher.place(tuple(revisions))
        for placement in placements:
            name = placement.replica
            role, own = roles.get(name, Role.MIXED), threads.get(name, 0)
            self._members[name] = Member(placement, revisions[name], role, own)
        for member in self._members.values():
            self._move(member, ReplicaState.STARTING, "first start", cause_id)
        outcomes = await asyncio.gather(
            *(self._launch(member, cause_id) for member in self._members.values()),
            return_exceptions=True,
        )
        failures = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
        if failures:
            await self.stop()
            raise failures[0]

    async def add(self, replica: str, revision: Revision, *, cause_id: str | None = None) -> None:
        """Start one more replica beside those that serve; raises `LaunchError`, and it is gone, if it cannot be had.

        It gets the share of cores that it would have in a fleet of one more; the others keep theirs.
        """
        if self._stopping or replica in self._members:
            why = "the fleet is stopping" if self._stopping else "there is one of that name"
            raise LaunchError(f"replica {replica} was not added: {why}")
        member = Member(self._launcher.place((*self._members, replica))[-1], revision)
        self._members[replica] = member
        async with member.lock:
            self._move(member, ReplicaState.STARTING, "one more replica", cause_id)
            try:
                await self._launch(member, cause_id)
            except LaunchError as error:
                self._leave(member, f"could not start: {error}", cause_id)
                raise

    async def remove(
        self, replica: str, *, drain_timeout_s: float, cause_id: str | None = None
    ) -> None:
        """Drain a replica, end it and forget it; raises `LaunchError` if it did not drain in time (it serves on)."""
        member = self._members[replica]
        async with member.lock:
            if self._stopping:
                raise LaunchError(f"replica {replica} was not removed: the fleet is stopping")
            if member.state is ReplicaState.READY:
                await self._drain(member, drain_timeout_s, cause_id, "it leaves the fleet")
            member.generation += 1
            await self._launcher.stop(replica, grace_s=self._config.stop_grace_s)
            self._leave(member, "left the fleet", cause_id)

    def _leave(self, member: Member, reason: str, cause_id: str | None) -> None:
        member.generation += 1
        self._move(member, ReplicaState.STOPPED, reason, cause_id)
        del self._members[member.id]

    async def stop(self, *, cause_id: str | None = None) -> None:
        """Stop all replicas; raises `LaunchError` if a process outlives it. Ends running requests: drain before."""
        self._stopping = True
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        pids = {member.id: self._launcher.pid(member.id) for member in self._members.values()}
        for member in self._members.values():
            member.generation += 1
        grace_s = self._config.stop_grace_s
        try:
            await asyncio.gather(
                *(
                    self._launcher.stop(member.id, grace_s=grace_s)
                    for member in self._members.values()
                )
            )
        finally:
            await self._launcher.close()
        for member in self._members.values():
            self._move(member, ReplicaState.STOPPED, STOPPED_WITH_FLEET, cause_id)
        left = [
            f"{name} ({pid})" for name, pid in pids.items() if pid is not None and process_runs(pid)
        ]
        if left:
            raise LaunchError(f"processes outlived the stop: {', '.join(left)}")

    async def restart_into(
        self,
        replica: str,
        revision: Revision,
        *,
        drain_timeout_s: float,
        keep_kv: bool = True,
        cause_id: str | None = None,
    ) -> None:
        """Drain a replica, save its slots, start it with another revision on the same port, restore the slots.

        The slots are kept where both revisions have equal KV keys; otherwise they are dropped and the reason says so.
        Raises `LaunchError`: if it did not drain in time (it serves on as before), or if the new revision did not
        start (the old one runs again, slots restored, or keeps being restarted).
        """
        member = self._members[replica]
        async with member.lock:
            if self._stopping:
                raise LaunchError(f"replica {replica} was not restarted: the fleet is stopping")
            if member.state is ReplicaState.READY:
                why = "restart into another revision"
                await self._drain(member, drain_timeout_s, cause_id, why)
            await self._restart(member, revision, cause_id, keep_kv=keep_kv)

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
        """Drain a replica, hand-overs included, and give it another role.

        It restarts for it if it runs another revision, or other threads than the role has (0: its share's).

        Raises `LaunchError`, and it serves on as before: it is not ready, it is the last that takes whole requests, or
        it did not drain in time; or the new revision did not start (then as in `restart_into`).
        """
        member = self._members[replica]
        async with member.lock:
            members = self._members.values()
            if trouble := role_trouble(member, role, members, stopping=self._stopping):
                raise LaunchError(f"replica {replica} keeps its role: {trouble}")
            await self._drain(member, drain_timeout_s, cause_id, f"it changes to {role.value}")
            if self._launcher.pid(replica) is None:
                raise LaunchError(f"replica {replica} crashed while it changed its role")
            placed = with_threads(member.share, threads)
            if (revision, placed) != (member.revision, member.placement):
                await self._restart(member, revision, cause_id, keep_kv=True, placed=placed)
            member.role, member.lent = role, False
            self._move(member, ReplicaState.READY, f"it serves as {role.value} now", cause_id)

    async def _restart(
        self,
        member: Member,
        revision: Revision,
        cause_id: str | None,
        *,
        keep_kv: bool,
        placed: Placement | None = None,
    ) -> None:
        """Restart a replica that has drained, its slots kept if it was ready and they may be."""
        drained = member.state is ReplicaState.DRAINING
        saved = await self._save(member, revision, keep_kv, cause_id) if drained else None
        member.generation += 1
        try:
            next_ = revision, placed or member.placement
            await self._replace(member, next_, saved, cause_id)
        finally:
            if saved is not None:
                self._launcher.discard_kv(saved)

    async def _drain(
        self, member: Member, timeout_s: float, cause_id: str | None, why: str
    ) -> None:
        self._move(member, ReplicaState.DRAINING, why, cause_id)
        deadline_s = self._clock.mono_s() + timeout_s
        while (left := self._in_flight(member.id)) > 0:
            if self._clock.mono_s() >= deadline_s:
                reason = f"{left} requests still ran after {timeout_s:g} s of draining"
                self._move(member, ReplicaState.READY, reason, cause_id)
                raise LaunchError(f"replica {member.id} serves on ({why}): {reason}")
            gone = self._launcher.pid(member.id) is None
            # A crash is put on record before anybody goes on without the process.
            await asyncio.sleep(_DRAIN_POLL_S)
            if gone:
                return

    async def _save(
        self, member: Member, revision: Revision, keep_kv: bool, cause_id: str | None
    ) -> SavedKV | None:
        """Save the slots if the next revision can take them; None, with the reason told, if not."""
        if not keep_kv:
            return None
        if revision.kv_key != member.revision.kv_key:
            self._move(member, member.state, "KV dropped: the revisions' KV keys differ", cause_id)
            return None
        try:
            saved = await self._launcher.save_kv(member.id)
        except LaunchError as error:
            self._move(member, member.state, f"KV not saved: {error}", cause_id)
            return None
        self._sink.append(moved_kv("saved", saved), cause_id=cause_id)
        return saved

    async def _replace(
        self,
        member: Member,
        next_: tuple[Revision, Placement],
        saved: SavedKV | None,
        cause_id: str | None,
    ) -> None:
        old = member.revision, member.placement
        await self._launcher.stop(member.id, grace_s=self._config.stop_grace_s)
        member.revision, member.placement = next_
        self._move(member, ReplicaState.RESTARTING, "into another revision", cause_id)
        try:
            await self._launch(member, cause_id, saved=saved)
        except LaunchError as error:
            failure = error
        else:
            return
        member.revision, member.placement = old
        self._move(
            member, ReplicaState.RESTARTING, f"back to the old revision: {failure}", cause_id
        )
        try:
            await self._launch(member, cause_id, saved=saved)
        except LaunchError as error:
            self._move(member, ReplicaState.FAILED, f"the old revision too: {error}", cause_id)
            self._spawn(self._revive(member, member.generation, cause_id))
        raise failure

    async def _launch(
        self, member: Member, cause_id: str | None, *, saved: SavedKV | None = None
    ) -> None:
        """Start a member's process, give it its slots back, and watch it; raises `LaunchError`."""
        began_s = self._clock.mono_s()
        member.url = await self._launcher.start(member.revision, member.placement)
        member.kv_kept = False
        note = "" if saved is None else await self._restore(member, saved, cause_id)
        member.ready_mono_s = self._clock.mono_s()
        member.started_at_s = self._clock.wall_s()
        self._spawn(self._watch(member, member.generation))
        reason = f"ready after {member.ready_mono_s - began_s:.2f} s{note}"
        self._move(member, ReplicaState.READY, reason, cause_id)

    async def _restore(self, member: Member, saved: SavedKV, cause_id: str | None) -> str:
        """Restore slots and return what to say of it: a replica without its old KV is slower, not broken."""
        try:
            restored = await self._launcher.restore_kv(member.id, saved)
        except LaunchError as error:
            return f"; KV not restored: {error}"
        self._sink.append(moved_kv("restored", restored), cause_id=cause_id)
        member.kv_kept = True
        return f"; {restored.tokens} of {saved.tokens} KV tokens restored"

    async def _watch(self, member: Member, generation: int) -> None:
        """Wait for the end of a process; if nobody asked for it, tell and restart."""
        code = await self._launcher.wait_exit(member.id)
        if self._stopping or member.generation != generation:
            return
        if self._clock.mono_s() - member.ready_mono_s > self._config.restart_backoff_s_max:
            member.crashes = 0
        member.crashes += 1
        crash_id = self._sink.append(
            ReplicaCrashed(
                replica=member.id,
                exit_code=code,
                crashes=member.crashes,
                backoff_s=self._backoff_s(member),
                last_words=self._launcher.last_words(member.id),
            ),
            cause_id=None,
        )
        await self._revive(member, generation, crash_id)

    async def _revive(self, member: Member, generation: int, cause_id: str | None) -> None:
        """Start a replica again and again, with growing waits, until it runs or somebody else takes over."""
        while not self._stopping and member.generation == generation:
            if member.state is not ReplicaState.FAILED:
                reason = f"crashed; next start in {self._backoff_s(member):g} s"
                self._move(member, ReplicaState.RESTARTING, reason, cause_id)
            await asyncio.sleep(self._backoff_s(member))
            async with member.lock:
                if member.generation != generation:
                    return
                await self._launcher.stop(member.id, grace_s=0)
                member.generation = generation = generation + 1
                try:
                    await self._launch(member, cause_id)
                except LaunchError as error:
                    member.crashes += 1
                    self._move(member, ReplicaState.FAILED, str(error), cause_id)
                else:
                    return

    def _backoff_s(self, member: Member) -> float:
        doubled = self._config.restart_backoff_s * 2.0 ** min(max(0, member.crashes - 1), 30)
        return min(doubled, self._config.restart_backoff_s_max)

    def _move(self, member: Member, state: ReplicaState, reason: str, cause_id: str | None) -> None:
        if self._stopping and state is not ReplicaState.STOPPED:
            return
        member.state, member.reason = state, reason
        self._tell(member, cause_id)
        for other, why in () if self._stopping else settled_roles(self._members.values()):
            other.reason = why
            self._tell(other, cause_id)

    def _tell(self, member: Member, cause_id: str | None) -> None:
        info = self.info(member.id)
        self._on_change(info)
        self._sink.append(changed(info), cause_id=cause_id)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        if self._stopping:
            work.close()
            return
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
