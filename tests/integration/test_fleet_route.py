"""The route that changes the size of a fleet: what it does, what it refuses with figures, and what the ledger says."""

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest
from fake_engine import FakeEngine
from harness import Harness

from trimtab.core.events import FleetSized
from trimtab.core.evidence import Evidence, Readings, Window
from trimtab.core.lever import Comparison
from trimtab.core.ports import LaunchError
from trimtab.core.traffic import CandidatePlan, Preference, TrafficPlan
from trimtab.core.types import ReplicaState, Role
from trimtab.interfaces.web.fleet import PATH, ROLES_PATH, fleet_routes
from trimtab.runtime.fleet import ReplicaInfo
from trimtab.runtime.role_keeper import RoleChanged, RoleRefusedError

READY, MIXED = ReplicaState.READY, Role.MIXED


class FakeSystem:
    """Three replicas of four slots; what the route does with them is kept."""

    def __init__(self) -> None:
        self.states = {"r0": READY, "r1": READY, "r2": READY}
        self.role_of: dict[str, Role] = {}
        self.roles: Any = self
        self.busy: float | None = 0.10
        self.config = SimpleNamespace(fleet=SimpleNamespace(replicas=3))
        self.baseline = SimpleNamespace(slots=4)
        self.started_event = "start"
        self.clock = SimpleNamespace(wall_s=lambda: 100.0)
        self.load = SimpleNamespace(in_flight=2)
        self.router = SimpleNamespace(plan=TrafficPlan(policy="round_robin"))
        self.probes = SimpleNamespace(readings=self._readings)
        self.fleet = self
        self.ledger = self
        self.events: list[FleetSized] = []
        self.causes: list[str | None] = []
        self.forgotten: list[str] = []
        self.refuses = ""
        self.gateway: Any = None
        self.waits = asyncio.Event()
        self.waits.set()

    def _readings(self, replica: str) -> Readings:
        if self.busy is None:
            return Readings()
        reading = Evidence(
            id="e",
            name="cpu_busy_share",
            value=self.busy,
            unit="share",
            source=replica,
            window=Window(99.0, 100.0),
        )
        return Readings(items=(reading,))

    def append(self, event: FleetSized, *, cause_id: str | None, durable: bool = False) -> str:
        self.events.append(event)
        return f"e{len(self.events)}"

    def views_since(self, wall_s: float) -> list[Any]:
        return []

    def replica_ids(self) -> tuple[str, ...]:
        return tuple(self.states)

    def info(self, replica: str) -> Any:
        return SimpleNamespace(
            id=replica, state=self.states[replica], role=self.role_of.get(replica, MIXED)
        )

    def infos(self) -> list[ReplicaInfo]:
        return [self.info(each) for each in self.states]

    def revision_of(self, replica: str) -> Any:
        return self.baseline

    async def add(self, replica: str, revision: Any, *, cause_id: str | None) -> None:
        self.causes.append(cause_id)
        await self.waits.wait()
        if self.refuses:
            raise LaunchError(self.refuses)
        self.states[replica] = READY

    async def remove(self, replica: str, *, drain_timeout_s: float, cause_id: str | None) -> None:
        self.causes.append(cause_id)
        if self.refuses:
            raise LaunchError(self.refuses)
        del self.states[replica]

    async def set_role(self, replica: str, role: Role) -> RoleChanged:
        if self.refuses:
            raise RoleRefusedError(self.refuses)
        self.role_of[replica] = role
        return RoleChanged(replica=replica, role=role, event_id="e1", roles={replica: role})

    def forget(self, replica: str) -> None:
        self.forgotten.append(replica)


@pytest.fixture
async def made() -> AsyncIterator[tuple[FakeSystem, Harness]]:
    system: Any = FakeSystem()
    async with Harness(FakeEngine(), extra_routes=fleet_routes(system)) as harness:
        system.gateway = harness.gateway
        yield system, harness


async def ask(harness: Harness, path: str = PATH, **body: object) -> tuple[int, Any]:
    async with harness.client.post(harness.url + path, json=body) as response:
        return response.status, await response.json()


async def test_replica_is_added_under_its_decision(made: tuple[FakeSystem, Harness]) -> None:
    """The decision is recorded before the start and is its cause; records say the new size from then on."""
    system, harness = made
    status, done = await ask(harness, action="add")
    assert (status, done["replica"], done["replicas"]) == (200, "r3", ["r0", "r1", "r2", "r3"])
    assert (system.causes, system.events[0].replicas) == (["e1"], 3)
    assert harness.gateway.topology == "4 replicas on one host"


async def test_calm_replica_leaves_and_is_forgotten(made: tuple[FakeSystem, Harness]) -> None:
    """The check's figures are in the answer, and nothing routes by what was known of it."""
    system, harness = made
    status, done = await ask(harness, action="remove", replica="r1")
    assert (status, done["replicas"], system.forgotten) == (200, ["r0", "r2"], ["r1"])
    assert "2 of 3 get 1.50 of their load: busy 10% becomes 15%" in done["because"]


async def test_name_is_never_used_twice(made: tuple[FakeSystem, Harness]) -> None:
    """A replica that comes after one that left is another one, in the ledger too."""
    _, harness = made
    names = []
    for _ in range(2):
        _, done = await ask(harness, action="add")
        names.append(done["replica"])
        await ask(harness, action="remove", replica=done["replica"])
    assert names == ["r3", "r4"]


@pytest.mark.parametrize(("busy", "words"), [(0.60, "becomes 90%"), (None, "unknown")])
async def test_removal_that_the_others_may_not_carry_is_refused(
    made: tuple[FakeSystem, Harness], busy: float | None, words: str
) -> None:
    """409 with the figures; the refusal is recorded; `force` does it and says so."""
    system, harness = made
    system.busy = busy
    status, said = await ask(harness, action="remove", replica="r2")
    assert (status, words in said["error"]["message"], len(system.states)) == (409, True, 3)
    status, _ = await ask(harness, action="remove", replica="r2", force=True)
    assert (status, len(system.states)) == (200, 2)
    assert [(e.allowed, e.forced) for e in system.events] == [(False, False), (True, True)]


async def test_more_streams_than_slots_are_refused(made: tuple[FakeSystem, Harness]) -> None:
    """Nine requests in flight do not fit on the eight slots that stay."""
    system, harness = made
    system.load.in_flight = 9
    status, said = await ask(harness, action="remove", replica="r0")
    assert (status, "9 requests at once" in said["error"]["message"]) == (409, True)


async def test_replica_that_serves_nothing_may_leave(made: tuple[FakeSystem, Harness]) -> None:
    """One that cannot start takes nothing with it, however busy the others are."""
    system, harness = made
    system.states["r1"], system.busy = ReplicaState.FAILED, 0.9
    assert (await ask(harness, action="remove", replica="r1"))[0] == 200


async def test_last_replica_stays_even_when_forced(made: tuple[FakeSystem, Harness]) -> None:
    """Nothing would serve."""
    system, harness = made
    system.states = {"r0": READY}
    assert (await ask(harness, action="remove", replica="r0", force=True))[0] == 409
    assert list(system.states) == ["r0"]


@pytest.mark.parametrize("action", ["add", "remove"])
async def test_fleet_keeps_its_size_while_a_lever_needs_it(
    made: tuple[FakeSystem, Harness], action: str
) -> None:
    """A lever that is being proven, and one that holds replicas, are named."""
    system, harness = made
    candidate = CandidatePlan(
        lever="ngram",
        share=0.1,
        policy=None,
        replicas=("r2",),
        comparison=next(iter(Comparison)),
        started_at_s=0.0,
        block_s=1.0,
        edge_s=0.0,
    )
    held = Preference(lever="ngram", cuts=(), replicas=("r2",))
    for plan, words in (
        (TrafficPlan(policy="round_robin", candidate=candidate), "ngram is being proven"),
        (TrafficPlan(policy="round_robin", preferences=(held,)), "ngram holds r2"),
    ):
        system.router.plan = plan
        status, said = await ask(harness, action=action, replica="r0")
        assert (status, words in said["error"]["message"]) == (409, True)


async def test_launch_that_fails_is_told(made: tuple[FakeSystem, Harness]) -> None:
    """503 with the cause; the fleet is as it was."""
    system, harness = made
    system.refuses = "no memory"
    status, said = await ask(harness, action="add")
    assert (status, said["error"]["message"], len(system.states)) == (503, "no memory", 3)


async def test_change_goes_on_when_the_asker_leaves(made: tuple[FakeSystem, Harness]) -> None:
    """A connection that is cut does not stop a replica between two states."""
    system, harness = made
    system.waits.clear()
    asking = asyncio.create_task(ask(harness, action="add"))
    while not system.causes:  # noqa: ASYNC110 - the fake sets no event
        await asyncio.sleep(0.01)
    asking.cancel()
    await asyncio.sleep(0.05)
    system.waits.set()
    async with asyncio.timeout(5):
        while "r3" not in system.states:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    assert system.states["r3"] is READY


@pytest.mark.parametrize(
    ("data", "kind", "status"),
    [
        (b'{"action": "add"}', "text/plain", 415),
        (b'{"action": "explode"}', "application/json", 400),
        (b'{"action": "add", "many": 3}', "application/json", 400),
        (b"{", "application/json", 400),
        (b" " * 5000, "application/json", 413),
    ],
)
async def test_what_is_no_order_changes_nothing(
    made: tuple[FakeSystem, Harness], data: bytes, kind: str, status: int
) -> None:
    """A page of another site can send the first to loopback without asking; it is refused like garbage."""
    system, harness = made
    async with harness.client.post(
        harness.url + PATH, data=data, headers={"Content-Type": kind}
    ) as response:
        assert (response.status, system.events) == (status, [])


async def test_role_is_changed_and_the_answer_names_all(made: tuple[FakeSystem, Harness]) -> None:
    """What was done, and the event that holds the decision; a word that is no role is refused."""
    system, harness = made
    status, done = await ask(harness, ROLES_PATH, replica="r1", role="prefill")
    assert (status, done["roles"], done["event_id"]) == (200, {"r1": "prefill"}, "e1")
    assert system.role_of == {"r1": Role.PREFILL}
    assert (await ask(harness, ROLES_PATH, replica="r1", role="cook"))[0] == 400


async def test_refused_role_says_why(made: tuple[FakeSystem, Harness]) -> None:
    """409 with the reason."""
    system, harness = made
    system.refuses = "r1 prefills already"
    status, said = await ask(harness, ROLES_PATH, replica="r1", role="prefill")
    assert (status, said["error"]["message"]) == (409, "r1 prefills already")


async def test_only_replica_that_takes_whole_requests_stays(
    made: tuple[FakeSystem, Harness],
) -> None:
    """The others prefill for it; without it nobody would answer."""
    system, harness = made
    system.role_of = {"r1": Role.PREFILL, "r2": Role.PREFILL}
    status, said = await ask(harness, action="remove", replica="r0", force=True)
    assert (status, "only one that takes whole requests" in said["error"]["message"]) == (409, True)
