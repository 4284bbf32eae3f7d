"""How a system's roles are built: what is long, which replicas have roles first, what attached servers tell."""

from typing import Any, cast

import pytest

from trimtab.core.config import Config, FleetConfig
from trimtab.core.config_roles import RolesConfig
from trimtab.core.decision import ReplicaView
from trimtab.core.roles import RoleAction, RoleReason, RolesSeen
from trimtab.core.served import Counter, EngineKind, RankSample, ServerSample
from trimtab.core.types import ReplicaState, Role
from trimtab.policies.role_watch import RoleSides, RoleTargets, RoleWatch
from trimtab.policies.roles import RoleRules, RolesState, control
from trimtab.runtime.system_roles import ToldPressure, first_roles

NAMES = ("r0", "r1", "r2")
ONE_PREFILLS = Config(fleet=FleetConfig(replicas=3), roles=RolesConfig(prefill=1))


def view(name: str) -> ReplicaView:
    """A server that decodes, half of whose KV is in use."""
    return ReplicaView(
        id=name,
        url="",
        role=Role.DECODE,
        revision="vllm-1",
        state=ReplicaState.READY,
        slots=8,
        kv_used_share=0.5,
    )


class Pages:
    """The latest page of each server, as a fleet of attached servers has it."""

    def __init__(self) -> None:
        self.of: dict[str, ServerSample] = {}

    def told(self, name: str, at_s: float, preempted: float | None) -> None:
        """Have a server tell its count of preemptions, None: it has no such counter."""
        counters = {} if preempted is None else {Counter.PREEMPTIONS: preempted}
        ranks = (RankSample(rank="", counters=counters),)
        self.of[name] = ServerSample(source=name, at_s=at_s, engine=EngineKind.VLLM, ranks=ranks)

    def sample(self, name: str) -> ServerSample | None:
        """The latest page."""
        return self.of.get(name)

    def pressure(self) -> ToldPressure:
        """What is told by these pages."""
        return ToldPressure(cast(Any, self))


def test_replica_that_another_lever_holds_has_no_role_at_a_start() -> None:
    """Its role's revision would replace the lever's: the last of the others prefills."""
    plain = first_roles(ONE_PREFILLS, NAMES)
    held = first_roles(ONE_PREFILLS, NAMES, held=("r2",))
    assert plain == {"r0": Role.DECODE, "r1": Role.DECODE, "r2": Role.PREFILL}
    assert held == {"r0": Role.DECODE, "r1": Role.PREFILL, "r2": Role.DECODE}
    assert first_roles(ONE_PREFILLS, NAMES, held=NAMES) == {}


def test_page_that_was_told_before_is_no_look() -> None:
    """Growth counts once, from one page to the next; between them nobody looked."""
    pages = Pages()
    pressure = pages.pressure()
    seen = []
    for at_s, preempted in ((0.0, 100.0), (0.0, 100.0), (5.0, 103.0), (5.0, 103.0), (10.0, 103.0)):
        pages.told("d", at_s, preempted)
        told = pressure([view("d")])
        seen.append((told.looked, told.preemptions))
    assert seen == [(False, 0), (False, 0), (True, 3), (False, 0), (True, 0)]


def test_server_that_does_not_tell_leaves_preemptions_unknown() -> None:
    """One of two is enough: what the other says is not what both preempt."""
    pages = Pages()
    pages.told("d", 0.0, 1.0)
    pages.told("e", 0.0, None)
    assert pages.pressure()([view("d"), view("e")]).preemptions is None


def test_what_a_server_preempted_in_another_role_is_no_want_of_room() -> None:
    """From its first page as one that decodes on it counts; nor does a counter that began anew."""
    pages = Pages()
    pressure = pages.pressure()
    pages.told("d", 0.0, 5.0)
    pressure([view("d")])
    pressure([])
    pages.told("d", 60.0, 50.0)
    back = pressure([view("d")])
    pages.told("d", 62.0, 1.0)
    anew = pressure([view("d")])
    assert (back.looked, back.preemptions, anew.preemptions) == (False, 0, 0)


@pytest.mark.parametrize("page_s", [1.0, 1.3, 1.5, 2.0, 5.0, 20.0])
def test_steady_preemption_is_acted_on_however_often_pages_are_read(page_s: float) -> None:
    """Ticks of a second see nothing new at most of them, which is not the end of it."""
    pages, rules = Pages(), RoleRules()
    pressure = pages.pressure()
    targets = RoleTargets(ttft_ms=2000.0, tpot_ms=100.0, transfer_ms=500.0)
    watch, state, moved = RoleWatch(targets, rules.window_s, rules.cooldown_s), RolesState(), None
    for tick in range(1, 300):
        now_s = tick * 1.001
        read_at_s = int(now_s / page_s) * page_s
        pages.told("d", read_at_s, 3.0 * int(read_at_s))
        watch.first_token(now_s, 1500.0)
        watch.ended(now_s, 48.0, 1.0)
        state, made = control(state, seen(watch, pressure, now_s), rules)
        if made.action is not RoleAction.HOLD:
            moved = made
            break
    assert moved is not None
    assert (moved.action, moved.reason) == (RoleAction.MORE_DECODE, RoleReason.DECODE_FULL)
    assert moved.at_s < rules.window_s + 5.0


def seen(watch: RoleWatch, pressure: ToldPressure, now_s: float) -> RolesSeen:
    """What a tick sees of one server that prefills and one that decodes."""
    told = pressure([view("d")])
    sides = RoleSides(
        prefill=("p",),
        decode=("d",),
        moving=0,
        kv_used_share=told.kv_used_share,
        preemptions=told.preemptions,
        looked=told.looked,
    )
    return watch.seen(now_s, sides, step_idle_ms=40.0)
