"""A lever about roles is moved by giving the last replicas theirs: nothing restarts, and taking back gives them up."""

import msgspec
import pytest
from control_kit import Rig, routing_lever
from events_kit import REVISION

from trimtab.core.ports import LaunchError
from trimtab.core.traffic import Preference
from trimtab.core.types import Role
from trimtab.runtime.actuation import Actuator

SPLIT = msgspec.structs.replace(routing_lever(), name="split", policy=None, prefill=1)


class Keeper:
    """Writes down which roles were asked for, under which cause, and who has them since."""

    def __init__(self) -> None:
        self.asked: list[tuple[tuple[str, ...], Role, str | None]] = []
        self.roles: dict[str, Role] = {}

    async def take(self, replicas: tuple[str, ...], role: Role, *, cause_id: str | None) -> None:
        self.asked.append((replicas, role, cause_id))
        self.roles |= dict.fromkeys(replicas, role)

    def prefilling(self) -> tuple[str, ...]:
        return tuple(name for name, role in self.roles.items() if role is Role.PREFILL)


def actuator(rig: Rig, keeper: Keeper | None) -> Actuator:
    """The actuator of a fleet of three whose roles the keeper has."""
    return Actuator(
        router=rig.router,
        fleet=rig.fleet,
        sink=rig.sink,
        baseline=next(iter(rig.fleet.revisions.values())),
        mono_s=rig.clock.mono_s,
        roles=keeper,
    )


async def test_role_is_given_before_the_first_slice_and_given_up_after_the_last() -> None:
    """The last replica prefills from the proof's start on; both arms keep all replicas."""
    rig, keeper = Rig(replicas=("r0", "r1", "r2")), Keeper()
    moves = actuator(rig, keeper)
    assert await moves.prepare(SPLIT, cause_id="P") == ()
    moves.start_slice(SPLIT, 0.5, None, (), cause_id="S")
    candidate = moves.plan.candidate
    assert (candidate and candidate.roles, candidate and candidate.replicas) == (True, ())
    await moves.take_back(SPLIT, cause_id="T")
    assert keeper.asked == [(("r2",), Role.PREFILL, "P"), (("r2",), Role.MIXED, "T")]
    assert (moves.plan.candidate, rig.log) == (None, ["plan", "plan"])


async def test_adopted_roles_count_for_all_and_a_trigger_takes_them_off_and_on() -> None:
    """The plan has no slice any more; the routing policy stays what it was."""
    rig, keeper = Rig(replicas=("r0", "r1", "r2")), Keeper()
    moves = actuator(rig, keeper)
    await moves.prepare(SPLIT, cause_id="P")
    before = moves.plan
    moves.adopt(SPLIT, policy=None, cuts=(), cause_id="A")
    assert moves.plan == before
    await moves.disable(SPLIT, baseline_policy="least_loaded", cause_id="D")
    await moves.enable(SPLIT, policy=None, cuts=(), cause_id="E")
    roles = [role for _, role, _ in keeper.asked]
    assert roles == [Role.PREFILL, Role.MIXED, Role.PREFILL]
    assert moves.plan.policy == before.policy


async def test_lever_about_roles_is_refused_where_nobody_keeps_them() -> None:
    """Servers of others have the roles that they were started with."""
    with pytest.raises(LaunchError, match="not ours to move"):
        await actuator(Rig(), None).prepare(SPLIT, cause_id="P")


async def test_lever_without_roles_leaves_them_alone() -> None:
    """A routing lever moves none."""
    keeper = Keeper()
    moves = actuator(Rig(), keeper)
    await moves.prepare(routing_lever(), cause_id="P")
    await moves.take_back(routing_lever(), cause_id="T")
    assert keeper.asked == []


def holds(moves: Actuator, *replicas: str) -> None:
    """Put a plan in force by which the chunk lever has replicas."""
    held = Preference(lever="smaller_prefill_chunk", cuts=(), replicas=replicas)
    moves.set_plan(msgspec.structs.replace(moves.plan, preferences=(held,)), cause_id=None)


async def test_replica_that_another_lever_holds_is_given_no_role() -> None:
    """It would restart out of the revision that lever was adopted with: the last that nobody holds prefills."""
    rig, keeper = Rig(replicas=("r0", "r1", "r2")), Keeper()
    moves = actuator(rig, keeper)
    holds(moves, "r2")
    await moves.prepare(SPLIT, cause_id="P")
    assert keeper.prefilling() == ("r1",)


async def test_who_was_given_the_role_gives_it_up_whatever_levers_came_or_went_since() -> None:
    """Once the other lever let go of the last replica, that one would be found for the role, and has never had it."""
    rig, keeper = Rig(replicas=("r0", "r1", "r2")), Keeper()
    moves = actuator(rig, keeper)
    holds(moves, "r2")
    await moves.prepare(SPLIT, cause_id="P")
    moves.set_plan(msgspec.structs.replace(moves.plan, preferences=()), cause_id=None)
    await moves.disable(SPLIT, baseline_policy="least_loaded", cause_id="D")
    assert keeper.asked == [(("r1",), Role.PREFILL, "P"), (("r1",), Role.MIXED, "D")]


async def test_role_is_refused_where_other_levers_hold_every_replica() -> None:
    """What to do about it is said."""
    rig, keeper = Rig(replicas=("r0", "r1", "r2")), Keeper()
    moves = actuator(rig, keeper)
    holds(moves, "r0", "r1", "r2")
    with pytest.raises(LaunchError, match="smaller_prefill_chunk holds r0, r1, r2: add a replica"):
        await moves.prepare(SPLIT, cause_id="P")
    with pytest.raises(LaunchError, match="smaller_prefill_chunk holds r0, r1, r2"):
        await moves.enable(SPLIT, policy=None, cuts=(), cause_id="E")
    assert keeper.asked == []


def test_replica_that_prefills_is_no_candidate() -> None:
    """It gets no whole requests: a lever with a revision of its own goes to the last that does."""
    rig, keeper = Rig(replicas=("r0", "r1", "r2")), Keeper()
    keeper.roles["r2"] = Role.PREFILL
    lever = msgspec.structs.replace(routing_lever(), name="drafts", policy=None, revision=REVISION)
    assert actuator(rig, keeper).candidate_replicas(lever) == ("r1",)
    assert actuator(rig, None).candidate_replicas(lever) == ("r2",)
