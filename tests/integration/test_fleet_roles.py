"""A replica's role on a scripted launcher: it drains, flips by routing or by a restart, and nobody is left unserved."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from test_fleet_lifecycle import DRAINING, OLD, READY, Harness

from trimtab.core.events import ReplicaChanged
from trimtab.core.ports import LaunchError
from trimtab.core.types import ReplicaState, Role

CHUNKED = OLD.replace(chunk_tokens=64)
PREFILL, DECODE, MIXED = Role.PREFILL, Role.DECODE, Role.MIXED


def roles(harness: Harness) -> dict[str, Role]:
    """The role of each replica now."""
    return {info.id: info.role for info in harness.fleet.infos()}


@pytest.fixture
async def made() -> AsyncIterator[Harness]:
    """A started fleet of r0, r1 and r2, the last of which prefills; stopped in the end."""
    harness = Harness()
    await harness.fleet.start(dict.fromkeys(("r0", "r1", "r2"), OLD), roles={"r2": PREFILL})
    yield harness
    harness.in_flight = 0
    await harness.fleet.stop()


async def test_roles_of_the_start_are_told_before_the_first_replica_is_ready(made: Harness) -> None:
    """A replica that is to prefill never takes whole requests, even where it is ready first."""
    told = [info for info in made.seen if info.id == "r2"]
    assert {info.role for info in told} == {PREFILL}
    assert roles(made) == {"r0": DECODE, "r1": DECODE, "r2": PREFILL}


async def test_role_flips_only_once_the_replica_has_drained(made: Harness) -> None:
    """Until its last request ended it keeps the old role, and gets no new ones."""
    made.in_flight = 2
    changing = asyncio.create_task(
        made.fleet.take_role("r1", PREFILL, OLD, drain_timeout_s=5, cause_id="why")
    )
    await made.until(lambda: made.states("r1")[-1] is DRAINING)
    assert roles(made)["r1"] is DECODE
    made.in_flight = 0
    await changing
    assert (roles(made)["r1"], made.fleet.info("r1").state) == (PREFILL, READY)
    assert len(made.launcher.started) == 3, "routing alone: nothing was started again"


async def test_last_prefill_replica_that_leaves_its_role_makes_the_fleet_mixed(
    made: Harness,
) -> None:
    """All of them serve whole requests then, and are called so."""
    await made.fleet.take_role("r2", DECODE, OLD, drain_timeout_s=1)
    assert set(roles(made).values()) == {MIXED}
    last = [event for event in made.sink.of(ReplicaChanged) if event.replica == "r0"][-1]
    assert (last.role, last.state) == (MIXED, READY)


async def test_role_with_a_revision_of_its_own_restarts_with_the_slots_kept(made: Harness) -> None:
    """Roles may differ in batch and chunk; what the slots hold is saved and restored."""
    await made.fleet.take_role("r1", PREFILL, CHUNKED, drain_timeout_s=1)
    assert (made.fleet.info("r1").revision, roles(made)["r1"]) == (CHUNKED, PREFILL)
    assert (made.launcher.saved, made.launcher.restored) == (["r1"], ["r1"])


async def test_role_whose_revision_does_not_start_is_not_taken(made: Harness) -> None:
    """It serves on in its old revision and role."""
    made.launcher.refuse = lambda revision: revision == CHUNKED
    with pytest.raises(LaunchError, match="does not like"):
        await made.fleet.take_role("r1", PREFILL, CHUNKED, drain_timeout_s=1)
    assert (made.fleet.info("r1").revision, roles(made)["r1"]) == (OLD, DECODE)
    assert made.fleet.info("r1").state is READY


async def test_role_with_threads_of_its_own_restarts_there_and_back(made: Harness) -> None:
    """Threads are given at the start of a process; the same again, and a role without its own, go by that."""
    await made.fleet.take_role("r1", PREFILL, OLD, threads=3, drain_timeout_s=1)
    assert (made.fleet.info("r1").threads, made.launcher.threads[3:]) == (3, [("r1", 3)])
    await made.fleet.take_role("r1", DECODE, OLD, drain_timeout_s=1)
    assert (made.fleet.info("r1").threads, made.launcher.threads[4:]) == (1, [("r1", 1)])
    told = [event.threads for event in made.sink.of(ReplicaChanged) if event.replica == "r1"]
    assert (told[0], 3 in told, told[-1]) == (1, True, 1)


async def test_threads_that_are_its_share_restart_nobody(made: Harness) -> None:
    """What a role says is held against what the replica runs, not against what was said before."""
    await made.fleet.take_role("r1", PREFILL, OLD, threads=1, drain_timeout_s=1)
    assert (roles(made)["r1"], len(made.launcher.started)) == (PREFILL, 3)


async def test_replica_whose_role_could_not_be_had_keeps_its_threads(made: Harness) -> None:
    """It runs as before in all that it was to be given."""
    made.launcher.refuse = lambda revision: revision == CHUNKED
    with pytest.raises(LaunchError, match="does not like"):
        await made.fleet.take_role("r1", PREFILL, CHUNKED, threads=3, drain_timeout_s=1)
    assert (made.fleet.info("r1").threads, made.launcher.threads[3:]) == (
        1,
        [("r1", 3), ("r1", 1)],
    )


async def test_replica_that_crashes_comes_back_with_its_threads(made: Harness) -> None:
    """They are its role's, which it keeps."""
    await made.fleet.take_role("r1", PREFILL, CHUNKED, threads=3, drain_timeout_s=1)
    made.launcher.crash("r1")
    await made.until(lambda: len(made.launcher.threads) == 5)
    await made.until(lambda: made.fleet.info("r1").state is READY)
    assert (made.launcher.threads[-1], made.launcher.started[-1]) == (("r1", 3), ("r1", CHUNKED))
    assert roles(made)["r1"] is PREFILL


async def test_replica_that_does_not_drain_keeps_its_role(made: Harness) -> None:
    """Running requests are worth more than the role that was asked for."""
    made.in_flight = 1
    with pytest.raises(LaunchError, match="1 requests still ran"):
        await made.fleet.take_role("r1", PREFILL, OLD, drain_timeout_s=0.05)
    assert (roles(made)["r1"], made.fleet.info("r1").state) == (DECODE, READY)


async def test_last_replica_that_takes_whole_requests_never_prefills_only(made: Harness) -> None:
    """Nothing would be left to answer."""
    await made.fleet.take_role("r0", PREFILL, OLD, drain_timeout_s=1)
    with pytest.raises(LaunchError, match="no other takes whole requests"):
        await made.fleet.take_role("r1", PREFILL, OLD, drain_timeout_s=1)
    assert roles(made) == {"r0": PREFILL, "r1": DECODE, "r2": PREFILL}


async def test_prefill_replica_serves_whole_requests_while_all_others_are_away(
    made: Harness,
) -> None:
    """By routing alone and at once, and it prefills again when one of them is back."""
    made.launcher.refuse = lambda _: True
    made.launcher.crash("r0")
    made.launcher.crash("r1")
    await made.until(lambda: roles(made)["r2"] is not PREFILL)
    assert made.fleet.info("r2").state is READY
    made.launcher.refuse = lambda _: False
    await made.until(lambda: roles(made)["r2"] is PREFILL)
    assert ReplicaState.READY in {made.fleet.info(name).state for name in ("r0", "r1")}


async def test_replica_that_joins_beside_a_prefill_replica_decodes(made: Harness) -> None:
    """It takes whole requests as those that were there."""
    await made.fleet.add("r3", OLD)
    assert roles(made)["r3"] is DECODE


async def test_replica_that_leaves_last_of_its_role_makes_the_fleet_mixed(made: Harness) -> None:
    """Nobody prefills for the others any more."""
    await made.fleet.remove("r2", drain_timeout_s=1)
    assert roles(made) == {"r0": MIXED, "r1": MIXED}
