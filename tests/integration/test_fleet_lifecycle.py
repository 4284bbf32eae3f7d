"""The life of replicas on a scripted launcher: crashes, backoff, drains, restarts that fail, and the end."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from typing import TypeVar

import pytest

from trimtab.core.config import Config, FleetConfig
from trimtab.core.events import AnyEvent, KVMoved, ReplicaChanged, ReplicaCrashed
from trimtab.core.ports import LaunchError, Placement, SavedKV
from trimtab.core.revision import Model, Revision, Speculation, SpeculationMethod
from trimtab.core.types import ReplicaState
from trimtab.runtime.clock import SystemClock
from trimtab.runtime.fleet import Fleet, ReplicaInfo

OLD = Revision(engine="llamacpp", engine_version="1", model=Model(path="/m", sha256="0", name="m"))
NEW = OLD.replace(speculation=Speculation(method=SpeculationMethod.NGRAM_SIMPLE, match_tokens=6))
OTHER_KV = OLD.replace(kv_type="q8_0")
T = TypeVar("T")
READY, DRAINING = ReplicaState.READY, ReplicaState.DRAINING


class Sink:
    """Keeps events."""

    def __init__(self) -> None:
        self.events: list[AnyEvent] = []
        self.causes: list[str | None] = []

    def append(self, event: AnyEvent, *, cause_id: str | None, durable: bool = False) -> str:
        self.events.append(event)
        self.causes.append(cause_id)
        return f"e{len(self.events)}"

    @property
    def healthy(self) -> bool:
        return True

    async def flush(self) -> None:
        return None

    def of(self, kind: type[T]) -> list[T]:
        return [event for event in self.events if isinstance(event, kind)]


class FakeLauncher:
    """Replicas that run, crash, and fail to start when told to. Pids are beyond what the kernel gives."""

    def __init__(self) -> None:
        self.exits: dict[str, asyncio.Future[int]] = {}
        self.pids: dict[str, int] = {}
        self.started: list[tuple[str, Revision]] = []
        self.threads: list[tuple[str, int]] = []
        self.refuse: Callable[[Revision], bool] = lambda _: False
        self.saved: list[str] = []
        self.restored: list[str] = []
        self.discarded = 0
        self.save_fails = False
        self.closed = False

    def place(self, replicas: Sequence[str]) -> tuple[Placement, ...]:
        return tuple(
            Placement(
                replica=replica,
                host="127.0.0.1",
                port=9000 + index,
                threads=1,
                cpus=(),
                slot_dir="/",
                log_path="/",
            )
            for index, replica in enumerate(replicas)
        )

    async def start(self, revision: Revision, placement: Placement) -> str:
        await asyncio.sleep(0)
        self.started.append((placement.replica, revision))
        self.threads.append((placement.replica, placement.threads))
        if self.refuse(revision) or self.closed:
            raise LaunchError(f"replica {placement.replica} does not like {revision.id}")
        self.exits[placement.replica] = asyncio.get_running_loop().create_future()
        self.pids[placement.replica] = 2**30 + len(self.started)
        return f"http://{placement.host}:{placement.port}"

    def crash(self, replica: str) -> None:
        del self.pids[replica]
        self.exits[replica].set_result(-9)

    async def stop(self, replica: str, *, grace_s: float) -> None:
        await asyncio.sleep(0)
        if self.pids.pop(replica, None) is not None:
            self.exits[replica].set_result(0)

    async def wait_exit(self, replica: str) -> int | None:
        return await asyncio.shield(self.exits[replica])

    def pid(self, replica: str) -> int | None:
        return self.pids.get(replica)

    def last_words(self, replica: str) -> str:
        return "last words"

    async def save_kv(self, replica: str) -> SavedKV:
        if self.save_fails or replica not in self.pids:
            raise LaunchError("nothing to save from")
        self.saved.append(replica)
        return SavedKV(replica=replica, files=((0, "f"),), tokens=10, bytes=100, took_ms=1.0)

    async def restore_kv(self, replica: str, saved: SavedKV) -> SavedKV:
        self.restored.append(replica)
        return saved

    def discard_kv(self, saved: SavedKV) -> None:
        self.discarded += 1

    def memory_bytes(self, replica: str) -> int | None:
        return None

    def cpu_s(self, replica: str) -> float | None:
        return None

    async def close(self) -> None:
        self.closed = True


class Harness:
    """A fleet of two with everything around it."""

    def __init__(self) -> None:
        self.launcher = FakeLauncher()
        self.sink = Sink()
        self.seen: list[ReplicaInfo] = []
        self.in_flight = 0
        config = Config(
            fleet=FleetConfig(
                restart_backoff_s=0.01,
                restart_backoff_s_max=0.04,
                start_timeout_s=1,
                stop_grace_s=1,
            )
        )
        self.fleet = Fleet(
            config,
            self.launcher,
            self.sink,
            SystemClock(),
            self.seen.append,
            in_flight=lambda _: self.in_flight,
        )

    def states(self, replica: str) -> list[ReplicaState]:
        return [event.state for event in self.sink.of(ReplicaChanged) if event.replica == replica]

    async def until(self, holds: Callable[[], bool]) -> None:
        async with asyncio.timeout(5):
            while not holds():  # noqa: ASYNC110 - a fleet sets no event
                await asyncio.sleep(0.002)


@pytest.fixture
async def made() -> AsyncIterator[Harness]:
    """A started fleet of r0 and r1, stopped in the end."""
    harness = Harness()
    await harness.fleet.start({"r0": OLD, "r1": OLD})
    yield harness
    await harness.fleet.stop()


async def test_started_fleet_is_ready(made: Harness) -> None:
    """Each replica is starting, then ready, with url and revision."""
    assert made.fleet.replica_ids() == ("r0", "r1")
    assert made.states("r0") == [ReplicaState.STARTING, READY]
    info = made.fleet.info("r1")
    assert (info.url, info.revision, info.state) == ("http://127.0.0.1:9001", OLD, READY)


async def test_fleet_that_cannot_start_is_stopped_whole() -> None:
    """One replica that cannot be had fails the start, and the other does not stay behind."""
    harness = Harness()
    harness.launcher.refuse = lambda revision: revision == NEW
    with pytest.raises(LaunchError, match="r1 does not like"):
        await harness.fleet.start({"r0": OLD, "r1": NEW})
    assert (harness.launcher.pids, harness.launcher.closed) == ({}, True)


async def test_crashed_replica_restarts_and_says_so(made: Harness) -> None:
    """The crash is an event with exit code and last words, and the cause of what follows."""
    made.launcher.crash("r0")
    await made.until(lambda: made.states("r0").count(READY) == 2)
    (crash,) = made.sink.of(ReplicaCrashed)
    assert (crash.replica, crash.exit_code, crash.crashes) == ("r0", -9, 1)
    assert (crash.backoff_s, crash.last_words) == (0.01, "last words")
    assert made.states("r0") == [ReplicaState.STARTING, READY, ReplicaState.RESTARTING, READY]
    crash_id = f"e{made.sink.events.index(crash) + 1}"
    assert made.sink.causes[-2:] == [crash_id, crash_id]
    assert made.states("r1") == [ReplicaState.STARTING, READY]


async def test_backoff_doubles_up_to_its_maximum(made: Harness) -> None:
    """A replica that crashes at once again waits longer each time."""
    for crashes in range(1, 5):
        made.launcher.crash("r0")
        await made.until(lambda crashes=crashes: made.states("r0").count(READY) == crashes + 1)  # type: ignore[misc]
    assert [crash.backoff_s for crash in made.sink.of(ReplicaCrashed)] == [0.01, 0.02, 0.04, 0.04]


async def test_replica_that_cannot_come_back_is_tried_again(made: Harness) -> None:
    """A failed restart is the state FAILED with its reason, and not the end."""
    made.launcher.refuse = lambda _: True
    made.launcher.crash("r0")
    await made.until(lambda: made.states("r0").count(ReplicaState.FAILED) == 2)
    assert "does not like" in made.fleet.info("r0").reason
    made.launcher.refuse = lambda _: False
    await made.until(lambda: made.fleet.info("r0").state is READY)
    assert made.fleet.info("r0").pid is not None


async def test_restart_moves_the_kv_along(made: Harness) -> None:
    """Drain, save, stop, start, restore, ready: one state at a time, under the cause that was given."""
    before = len(made.sink.events)
    await made.fleet.restart_into("r0", NEW, drain_timeout_s=1, cause_id="why")
    assert made.states("r0")[2:] == [DRAINING, ReplicaState.RESTARTING, READY]
    assert [moved.action for moved in made.sink.of(KVMoved)] == ["saved", "restored"]
    assert set(made.sink.causes[before:]) == {"why"}
    assert made.fleet.revision_of("r0") == NEW
    assert made.sink.of(ReplicaCrashed) == []
    assert "10 of 10 KV tokens restored" in made.fleet.info("r0").reason


async def test_restart_waits_for_running_requests(made: Harness) -> None:
    """The process lives until the gateway has nothing in flight on it."""
    made.in_flight = 1
    restart = asyncio.create_task(made.fleet.restart_into("r0", NEW, drain_timeout_s=5))
    await made.until(lambda: made.fleet.info("r0").state is DRAINING)
    await asyncio.sleep(0.06)
    assert (made.launcher.saved, made.fleet.info("r0").state) == ([], DRAINING)
    made.in_flight = 0
    await restart
    assert made.fleet.info("r0").state is READY


async def test_drain_that_takes_too_long_changes_nothing(made: Harness) -> None:
    """Requests are not cut off: the replica serves on with its old revision."""
    made.in_flight = 2
    pid = made.fleet.info("r0").pid
    with pytest.raises(LaunchError, match="2 requests still ran"):
        await made.fleet.restart_into("r0", NEW, drain_timeout_s=0.05)
    info = made.fleet.info("r0")
    assert (info.state, info.revision, info.pid) == (READY, OLD, pid)


async def test_unequal_kv_keys_drop_the_kv_and_say_so(made: Harness) -> None:
    """KV of another precision cannot be read, so nothing is saved."""
    await made.fleet.restart_into("r0", OTHER_KV, drain_timeout_s=1)
    assert (made.launcher.saved, made.sink.of(KVMoved)) == ([], [])
    reasons = [event.reason for event in made.sink.of(ReplicaChanged)]
    assert "KV dropped: the revisions' KV keys differ" in reasons


async def test_kv_is_left_behind_when_asked(made: Harness) -> None:
    """keep_kv False saves nothing."""
    await made.fleet.restart_into("r0", NEW, drain_timeout_s=1, keep_kv=False)
    assert (made.launcher.saved, made.fleet.info("r0").state) == ([], READY)


async def test_kv_that_cannot_be_saved_does_not_stop_the_restart(made: Harness) -> None:
    """A replica without its old prefix is slower, not broken; the reason is told."""
    made.launcher.save_fails = True
    await made.fleet.restart_into("r0", NEW, drain_timeout_s=1)
    assert made.fleet.revision_of("r0") == NEW
    reasons = [event.reason for event in made.sink.of(ReplicaChanged)]
    assert "KV not saved: nothing to save from" in reasons


async def test_revision_that_does_not_start_gives_way_to_the_old_one(made: Harness) -> None:
    """The old revision runs again with its slots, and the caller learns why."""
    made.launcher.refuse = lambda revision: revision == NEW
    with pytest.raises(LaunchError, match="does not like"):
        await made.fleet.restart_into("r0", NEW, drain_timeout_s=1)
    info = made.fleet.info("r0")
    assert (info.state, info.revision, made.launcher.restored) == (READY, OLD, ["r0"])
    assert made.launcher.discarded == 1


async def test_failed_fallback_keeps_being_restarted(made: Harness) -> None:
    """When not even the old revision starts, the fleet goes on trying it."""
    made.launcher.refuse = lambda _: True
    with pytest.raises(LaunchError):
        await made.fleet.restart_into("r0", NEW, drain_timeout_s=1)
    assert made.fleet.info("r0").state is ReplicaState.FAILED
    made.launcher.refuse = lambda _: False
    await made.until(lambda: made.fleet.info("r0").state is READY)
    assert made.fleet.revision_of("r0") == OLD


async def test_crash_while_draining_ends_in_the_new_revision(made: Harness) -> None:
    """The restart goes on without the lost KV, and the crash is on record once."""
    made.in_flight = 1
    restart = asyncio.create_task(made.fleet.restart_into("r0", NEW, drain_timeout_s=5))
    await made.until(lambda: made.fleet.info("r0").state is DRAINING)
    made.launcher.crash("r0")
    await restart
    await asyncio.sleep(0.1)
    assert (made.fleet.info("r0").state, made.fleet.revision_of("r0")) == (READY, NEW)
    assert [crash.replica for crash in made.sink.of(ReplicaCrashed)] == ["r0"]
    assert [replica for replica, revision in made.launcher.started if revision == NEW] == ["r0"]


async def test_crash_after_a_restart_is_noticed(made: Harness) -> None:
    """The process of the new revision is watched like the first one."""
    await made.fleet.restart_into("r0", NEW, drain_timeout_s=1)
    made.launcher.crash("r0")
    await made.until(lambda: made.states("r0").count(READY) == 3)
    assert made.launcher.started[-1] == ("r0", NEW)


async def test_failed_replica_can_be_restarted_into_another_revision(made: Harness) -> None:
    """Whoever takes back a lever need not wait for a replica that cannot run it."""
    made.launcher.refuse = lambda revision: revision == OLD
    made.launcher.crash("r0")
    await made.until(lambda: made.fleet.info("r0").state is ReplicaState.FAILED)
    await made.fleet.restart_into("r0", NEW, drain_timeout_s=1)
    await asyncio.sleep(0.1)
    assert (made.fleet.info("r0").state, made.fleet.revision_of("r0")) == (READY, NEW)


async def test_two_restarts_of_one_replica_do_not_overlap(made: Harness) -> None:
    """The second waits for the first and has the last word."""
    await asyncio.gather(
        made.fleet.restart_into("r0", NEW, drain_timeout_s=1),
        made.fleet.restart_into("r0", OLD, drain_timeout_s=1),
    )
    assert [revision for _, revision in made.launcher.started] == [OLD, OLD, NEW, OLD]
    assert made.fleet.revision_of("r0") == OLD


async def test_stopped_fleet_restarts_nothing() -> None:
    """A stop is no crash: no event of one, no new process."""
    harness = Harness()
    await harness.fleet.start({"r0": OLD})
    await harness.fleet.stop()
    await asyncio.sleep(0.05)
    assert (harness.launcher.pids, harness.sink.of(ReplicaCrashed)) == ({}, [])
    assert harness.states("r0")[-1] is ReplicaState.STOPPED
    with pytest.raises(LaunchError, match="stopping"):
        await harness.fleet.restart_into("r0", NEW, drain_timeout_s=1)


async def test_every_change_is_told_to_the_gateway(made: Harness) -> None:
    """What the ledger says and what the gateway hears are the same states in the same order."""
    await made.fleet.restart_into("r1", NEW, drain_timeout_s=1)
    told = [(info.id, info.state) for info in made.seen]
    assert told == [(event.replica, event.state) for event in made.sink.of(ReplicaChanged)]
