"""One replica more or less on a scripted launcher: it starts or leaves nothing, it drains or serves on."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from test_fleet_lifecycle import DRAINING, NEW, OLD, READY, Harness

from trimtab.core.ports import LaunchError
from trimtab.core.types import ReplicaState

STARTING, STOPPED = ReplicaState.STARTING, ReplicaState.STOPPED


@pytest.fixture
async def made() -> AsyncIterator[Harness]:
    """A started fleet of r0 and r1, stopped in the end."""
    harness = Harness()
    await harness.fleet.start({"r0": OLD, "r1": OLD})
    yield harness
    await harness.fleet.stop()


async def test_added_replica_serves_beside_the_others(made: Harness) -> None:
    """It is starting, then ready, at an address of its own and under the cause that was given."""
    before = len(made.sink.events)
    await made.fleet.add("r2", OLD, cause_id="why")
    assert made.fleet.replica_ids() == ("r0", "r1", "r2")
    assert (made.states("r2"), made.states("r0")) == ([STARTING, READY], [STARTING, READY])
    assert made.fleet.info("r2").url == "http://127.0.0.1:9002"
    assert set(made.sink.causes[before:]) == {"why"}


async def test_replica_that_cannot_start_leaves_nothing(made: Harness) -> None:
    """The others serve on, the fleet has its old size, and how it ended is told."""
    made.launcher.refuse = lambda revision: revision == NEW
    with pytest.raises(LaunchError, match="does not like"):
        await made.fleet.add("r2", NEW)
    assert (made.fleet.replica_ids(), made.states("r2")) == (("r0", "r1"), [STARTING, STOPPED])
    assert made.fleet.info("r0").state is READY


async def test_name_that_is_taken_is_refused(made: Harness) -> None:
    """Two replicas of one name would be one in every view."""
    with pytest.raises(LaunchError, match="r1 was not added: there is one of that name"):
        await made.fleet.add("r1", OLD)


async def test_removed_replica_drains_before_it_ends(made: Harness) -> None:
    """It takes no new requests at once, and its process lives until the last one has ended."""
    made.in_flight = 2
    leaving = asyncio.create_task(made.fleet.remove("r1", drain_timeout_s=5, cause_id="why"))
    await made.until(lambda: made.states("r1")[-1] is DRAINING)
    assert made.launcher.pid("r1") is not None
    made.in_flight = 0
    await leaving
    assert (made.launcher.pid("r1"), made.fleet.replica_ids()) == (None, ("r0",))
    assert made.states("r1") == [STARTING, READY, DRAINING, STOPPED]


async def test_replica_that_does_not_drain_serves_on(made: Harness) -> None:
    """Running requests are worth more than the size that was asked for."""
    made.in_flight = 1
    with pytest.raises(LaunchError, match="1 requests still ran"):
        await made.fleet.remove("r1", drain_timeout_s=0.05)
    assert (made.fleet.replica_ids(), made.fleet.info("r1").state) == (("r0", "r1"), READY)
    made.in_flight = 0


async def test_replica_that_left_is_not_brought_back(made: Harness) -> None:
    """Its end was asked for: it is no crash, and nothing restarts it."""
    await made.fleet.remove("r1", drain_timeout_s=1)
    started = len(made.launcher.started)
    await asyncio.sleep(0.1)
    assert len(made.launcher.started) == started


async def test_replica_can_leave_while_it_is_crashing(made: Harness) -> None:
    """A replica that is waiting for its next start leaves for good."""
    made.launcher.refuse = lambda _: True
    made.launcher.crash("r1")
    await made.until(lambda: ReplicaState.RESTARTING in made.states("r1"))
    await made.fleet.remove("r1", drain_timeout_s=1)
    made.launcher.refuse = lambda _: False
    await asyncio.sleep(0.1)
    assert (made.fleet.replica_ids(), made.launcher.pid("r1")) == (("r0",), None)


async def test_stopping_fleet_keeps_its_size() -> None:
    """Nothing starts after the stop."""
    harness = Harness()
    await harness.fleet.start({"r0": OLD})
    await harness.fleet.stop()
    with pytest.raises(LaunchError, match="the fleet is stopping"):
        await harness.fleet.add("r1", OLD)
