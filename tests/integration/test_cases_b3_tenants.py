"""Tenants on shared replicas: nothing of one reaches another, and no claim goes further than what was seen.

The engines here have a prefix cache of their own, which keeps salts apart or does not, so that it can be told from
outside whether the gateway's tenants ever meet.
"""

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest
from caching_engine import CachingEngine
from click.testing import CliRunner, Result
from fake_engine import FakeEngine
from guard_kit import ALICE, BOB, MemoryRing, bearer, two_tenants
from harness import SECRET, Harness, chat

from trimtab.core.decision import RouteReason
from trimtab.core.tenants import make_key, salt_of
from trimtab.core.traffic import TrafficPlan
from trimtab.interfaces.cli import main
from trimtab.policies.loadstate import LoadState
from trimtab.runtime.guard import Guard
from trimtab.runtime.isolation import ROUTE

PROMPT = "Read the whole of this manual before you touch the tab: " + "trim " * 200
SALTS = {name: salt_of(name, SECRET.derive("tenant salts")) for name in ("alice", "bob")}


def guard(ring: MemoryRing | None = None) -> Callable[[LoadState], Guard]:
    """Return what makes a guard with keys."""
    return lambda load: Guard(places=100, load=load, secret=SECRET, ring=ring or two_tenants())


def affine(*engines: FakeEngine, ring: MemoryRing | None = None) -> Harness:
    """Return a gateway with tenants that routes by prefix."""
    harness = Harness(*engines, guard=guard(ring))
    harness.router.plan = TrafficPlan(policy="prefix_affine")
    return harness


async def ask(fleet: Harness, key: str, **more: Any) -> Any:
    """Ask for the same prompt with a tenant's key; return the record."""
    headers = more.pop("headers", {})
    reply = await fleet.post(
        chat(PROMPT, stream=more.pop("stream", True)) | more, **bearer(key), **headers
    )
    assert reply.status == 200
    return await fleet.record(of=len(fleet.records) or 1)


# TEST 1: two tenants, the same prompt.


@pytest.mark.parametrize("stream", [True, False])
async def test_no_affinity_credit_crosses_from_one_tenant_to_another(stream: bool) -> None:
    """What Alice left on a replica is promised to Alice, and not a token of it to Bob; the engine agrees."""
    async with affine(CachingEngine(), CachingEngine()) as fleet:
        records = []
        for number, key in enumerate((ALICE, ALICE, BOB, BOB)):
            await ask(fleet, key, stream=stream)
            records.append(await fleet.record(of=number + 1))
    promised = [record.tokens.predicted for record in records]
    delivered = [record.tokens.delivered for record in records]
    assert (promised[0], promised[2], delivered[0], delivered[2]) == (0, 0, 0, 0)
    assert min(promised[1], promised[3], delivered[1], delivered[3]) > 100


async def test_a_salt_of_another_tenant_in_the_body_is_ignored_and_recorded() -> None:
    """Bob names Alice's salt: the engine gets Bob's, he is promised nothing of hers, and the record tells."""
    engine = CachingEngine()
    async with affine(engine, CachingEngine()) as fleet:
        await ask(fleet, ALICE)
        await fleet.record(of=1)
        await ask(fleet, BOB, cache_salt=SALTS["alice"])
        stolen = await fleet.record(of=2)
        salts = [each.json["cache_salt"] for one in fleet.engines for each in one.requests]
        counted = fleet.gateway.guard.counts["salt_ignored"]
    assert sorted(salts) == sorted(SALTS.values())
    assert (stolen.salt_ignored, stolen.tokens.predicted, stolen.tokens.delivered) == (True, 0, 0)
    assert counted == 1
    assert SALTS["alice"] not in repr(fleet.sink.events)


async def test_sessions_of_the_same_name_are_two_for_two_tenants() -> None:
    """A session that both call "main" is not one session, so neither follows the other's."""
    async with affine(CachingEngine(), CachingEngine()) as fleet:
        for number, key in enumerate((ALICE, BOB, ALICE)):
            await ask(fleet, key, headers={"x-trimtab-session": "main"})
            await fleet.record(of=number + 1)
    sessions = [record.session for record in fleet.records]
    assert sessions[0] == sessions[2]
    assert sessions[0] != sessions[1]


async def test_without_keys_a_clients_own_salt_is_kept_and_keeps_prompts_apart() -> None:
    """Nobody is authenticated, so the salt is the client's: passed on as it is, and part of the prefix key."""
    harness = Harness(CachingEngine(), CachingEngine())
    harness.router.plan = TrafficPlan(policy="prefix_affine")
    async with harness as fleet:
        for number, salt in enumerate(("one", "one", "two")):
            await fleet.post(chat(PROMPT, cache_salt=salt))
            await fleet.record(of=number + 1)
        salts = sorted(each.json["cache_salt"] for one in fleet.engines for each in one.requests)
    assert salts == ["one", "one", "two"]
    assert [bool(record.tokens.predicted) for record in fleet.records] == [False, True, False]
    assert not any(record.salt_ignored for record in fleet.records)


# TEST 2: what the router predicts and the engine reports do not agree for salted traffic.


async def mismatched(engines: list[CachingEngine], keys: list[str], ring: MemoryRing) -> Any:
    """Ask once with each key, then once more with the first; return the last decision and record."""
    async with affine(*engines, ring=ring) as fleet:
        for number, key in enumerate((*keys, keys[0])):
            await ask(fleet, key)
            await fleet.record(of=number + 1)
        return fleet.served[-1].decision, fleet.records[-1]


def many() -> tuple[list[str], MemoryRing]:
    """Return keys of 24 tenants."""
    keys = [make_key(bytes([number + 3]) * 36) for number in range(24)]
    return keys, MemoryRing(*((key, f"t{number}") for number, key in enumerate(keys)))


async def test_hits_that_were_never_predicted_switch_affinity_off_for_salted_keys() -> None:
    """24 tenants, predicted 0%, the engine says over 70% reused: the keys do not mean the same."""
    keys, ring = many()
    decision, record = await mismatched([CachingEngine(salted=False) for _ in range(2)], keys, ring)
    assert record.tokens.delivered > 0.7 * record.tokens.prompt
    assert (decision.reason, decision.predicted_cached_tokens) == (
        RouteReason.ROUTER_KEY_MISMATCH,
        0,
    )


async def test_promises_that_are_never_kept_switch_affinity_off_for_salted_keys() -> None:
    """One tenant asks the same 24 times, the engine finds nothing: nothing is promised any more."""
    decision, record = await mismatched(
        [CachingEngine(caching=False) for _ in range(2)], [ALICE] * 24, two_tenants()
    )
    assert record.tokens.delivered == 0
    assert (decision.reason, decision.predicted_cached_tokens) == (
        RouteReason.ROUTER_KEY_MISMATCH,
        0,
    )


async def test_promises_that_are_kept_leave_affinity_on() -> None:
    """The same traffic on an engine that keeps its promises: the prefix decides."""
    decision, record = await mismatched(
        [CachingEngine() for _ in range(2)], [ALICE] * 24, two_tenants()
    )
    assert decision.reason is not RouteReason.ROUTER_KEY_MISMATCH
    assert record.tokens.predicted > 100


# TEST 3: the self-test says what it saw.


@pytest.mark.parametrize(
    ("engine", "verdict"),
    [
        (CachingEngine(), "proven"),
        (CachingEngine(salted=False), "leaks"),
        (CachingEngine(caching=False), "not_proven"),
        (CachingEngine(reports=False), "not_proven"),
    ],
    ids=["salted", "unsalted", "caching off", "not reported"],
)
async def test_the_isolation_is_proven_only_where_it_was_seen(
    engine: CachingEngine, verdict: str
) -> None:
    """The same tenant hits and another does not: proven. Caching off is "not proven", never "passed"."""
    async with affine(engine) as fleet, fleet.client.post(fleet.url + ROUTE) as response:
        report = await response.json()
    assert (report["verdict"], report["n"]) == (verdict, 1)
    assert len(engine.requests) == 3
    assert len({json.dumps(each.json["messages"]) for each in engine.requests}) == 1
    assert len({each.json["cache_salt"] for each in engine.requests}) == 2


async def test_one_replica_that_leaks_makes_the_fleet_leak() -> None:
    """Each replica is asked; the worst verdict is the fleet's."""
    engines = CachingEngine(), CachingEngine(salted=False)
    async with affine(*engines) as fleet, fleet.client.post(fleet.url + ROUTE) as response:
        report = await response.json()
    assert report["verdict"] == "leaks"
    assert [one["verdict"] for one in report["replicas"]] == ["proven", "leaks"]


@pytest.mark.parametrize(
    ("engine", "code", "said"),
    [
        (CachingEngine(), 0, "isolation of tenants: proven (n=1 replicas)"),
        (CachingEngine(caching=False), 3, "isolation of tenants: not proven (n=1 replicas)"),
        (CachingEngine(salted=False), 1, "isolation of tenants: leaks (n=1 replicas)"),
    ],
    ids=["proven", "not proven", "leaks"],
)
async def test_the_command_says_the_verdict_and_ends_with_its_code(
    engine: CachingEngine, code: int, said: str
) -> None:
    """`trimtab keys selftest`: 0 proven, 3 not proven, 1 leaks."""
    async with affine(engine) as fleet:
        result: Result = await asyncio.to_thread(
            CliRunner().invoke, main, ["keys", "selftest", "--url", fleet.url]
        )
    assert (result.exit_code, result.stdout.splitlines()[-1]) == (code, said)
