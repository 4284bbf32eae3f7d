"""An attached server that changes its role: as patiently waited for as others, and never announced for another."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from control_kit import HandClock, SpySink

from trimtab.core.config import AttachedServer, Config, FleetConfig
from trimtab.core.events import ReplicaChanged
from trimtab.core.ports import LaunchError
from trimtab.core.served import EngineKind
from trimtab.core.types import ReplicaState, Role
from trimtab.engines.attached import Identity
from trimtab.runtime import attach
from trimtab.runtime.attach import AttachedFleet

ONE, TWO = (AttachedServer(url=f"http://{name}", name=name) for name in ("one", "two"))
OTHER_ONE = AttachedServer(url="http://elsewhere", name="one")
READY = ReplicaState.READY


class Served:
    """Two servers that are well and that nobody looks at; `busy` says how many requests are in flight."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, busy: Callable[["Served"], int]) -> None:
        clock = HandClock()
        self.sink = SpySink(clock)
        self.fleet = AttachedFleet(
            Config(fleet=FleetConfig(attached=(ONE, TWO))),
            self.sink,
            clock,
            lambda _: None,
            on_load=lambda *_: None,
            on_gone=lambda _: None,
            in_flight=lambda _: busy(self),
        )
        monkeypatch.setattr(attach, "_DRAIN_POLL_S", 0.0)
        monkeypatch.setattr(self.fleet, "_keep", self._unseen)
        self.fleet.want((ONE, TWO))
        identity = Identity(
            engine=EngineKind.VLLM,
            version="1",
            models=("m",),
            context_tokens=None,
            slots=4,
            slots_told=True,
            kv_key="k",
        )
        for member in self.fleet._members.values():
            member.identity, member.state = identity, READY

    async def _unseen(self, *_: Any) -> None:
        """Look at nothing."""

    async def change(self) -> None:
        """Let the first server prefill."""
        revision = self.fleet.revision_of("one")
        await self.fleet.take_role("one", Role.PREFILL, revision, drain_timeout_s=60.0)

    def states(self, replica: str) -> list[ReplicaState]:
        """What was recorded of a server."""
        events = [each.event for each in self.sink.read()]
        changes = [each for each in events if isinstance(each, ReplicaChanged)]
        return [each.state for each in changes if each.replica == replica]


async def test_server_replaced_while_it_changes_its_role_is_not_said_to_be_ready(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Another of its name takes its place, and that was not looked at yet."""

    def replaces(served: Served) -> int:
        is_there = served.fleet._members["one"].changes_role
        served.fleet.want((OTHER_ONE, TWO))
        return int(is_there)

    served = Served(monkeypatch, replaces)
    with pytest.raises(LaunchError, match="left the fleet before it changed its role"):
        await served.change()
    starting, draining = ReplicaState.STARTING, ReplicaState.DRAINING
    assert served.states("one") == [starting, draining, starting]
    await served.fleet.stop()


async def test_missed_check_does_not_take_out_a_server_that_changes_its_role(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As many in a row as of a server that is ready; then it failed, and keeps its role."""
    busy = [1]
    served = Served(monkeypatch, lambda _: busy[0])
    changing = asyncio.create_task(served.change())
    await asyncio.sleep(0)
    (member, _) = served.fleet._members.values()
    states = []
    for _ in range(served.fleet._config.unhealthy_after):
        states.append(member.state)
        served.fleet._missed(member, "it was late", None)
    assert (states, member.state) == (
        [ReplicaState.DRAINING] * len(states),
        ReplicaState.FAILED,
    )
    assert len(states) > 1
    with pytest.raises(LaunchError, match="did not drain while well"):
        await changing
    assert (member.role, member.changes_role) == (Role.MIXED, False)
    await served.fleet.stop()
