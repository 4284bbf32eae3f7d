"""Who may ask, how much, and who is refused first: through real sockets, with keys of two tenants."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from fake_engine import FakeEngine
from guard_kit import ALICE, BOB, bearer, two_tenants
from harness import SECRET, Harness, until

from trimtab.core.config import GuardConfig, TenantsConfig
from trimtab.core.config_guard import TenantConfig
from trimtab.core.tenants import Priority
from trimtab.core.types import ErrorClass
from trimtab.policies.loadstate import LoadState
from trimtab.runtime.guard import Guard


def guard(*, places: int = 100, keys: bool = True, **tenants: Any) -> Callable[[LoadState], Guard]:
    """Return what makes a guard with two tenants' keys."""
    return lambda load: Guard(
        places=places,
        load=load,
        secret=SECRET,
        tenants=TenantsConfig(**tenants),
        guard=GuardConfig(fair_from=0.5),
        ring=two_tenants() if keys else None,
    )


async def test_a_key_of_a_tenant_opens_and_the_record_names_the_tenant() -> None:
    """The record has tenant and priority; the key goes nowhere."""
    engine = FakeEngine()
    async with Harness(engine, guard=guard()) as fleet:
        reply = await fleet.post(**bearer(ALICE, x_trimtab_priority="high"))
        record = await fleet.record()
    assert reply.status == 200
    assert (record.tenant, record.priority) == ("alice", Priority.HIGH)
    assert all(ALICE not in repr(event) for event in fleet.sink.events)


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/models", "/v1/embeddings"])
@pytest.mark.parametrize("headers", [{}, {"authorization": "Bearer sk-wrong"}, {"cookie": "a=b"}])
async def test_without_a_key_nothing_under_v1_opens(path: str, headers: dict[str, str]) -> None:
    """401 with the scheme that is wanted; no replica hears of it and the ledger is not filled by strangers."""
    engine = FakeEngine()
    async with Harness(engine, guard=guard()) as fleet:
        if path == "/v1/models":
            async with fleet.client.get(fleet.url + path, headers=headers) as response:
                status, wanted = response.status, response.headers.get("WWW-Authenticate")
                said = await response.json()
        else:
            reply = await fleet.post(path=path, **headers)
            status, wanted, said = reply.status, reply.headers.get("www-authenticate"), reply.json
    assert (status, said["error"]["code"], wanted) == (401, "invalid_api_key", "Bearer")
    assert (len(engine.requests), fleet.sink.events) == (0, [])


@pytest.mark.parametrize("name", ["authorization", "x-api-key", "api-key"])
async def test_a_clients_key_never_goes_upstream(name: str) -> None:
    """Neither in the header it came in nor in another; cookies stay here too."""
    engine = FakeEngine()
    said = {"authorization": f"Bearer {ALICE}"} if name == "authorization" else {name: ALICE}
    async with Harness(engine, guard=guard()) as fleet:
        reply = await fleet.post(**said, cookie="session=1", x_other="stays")
    headers = engine.requests[0].headers
    assert reply.status == 200
    assert headers["x-other"] == "stays"
    assert not {"authorization", "x-api-key", "api-key", "cookie"} & headers.keys()
    assert all(ALICE not in value for value in headers.values())


async def test_a_tenant_over_its_rate_is_told_when_to_come_back_and_another_is_not() -> None:
    """Two a minute: the third gets 429 and half a minute to wait; the other tenant is served."""
    engine = FakeEngine()
    async with Harness(engine, guard=guard(requests_per_minute=2.0)) as fleet:
        replies = [await fleet.post(**bearer(ALICE)) for _ in range(3)]
        other = await fleet.post(**bearer(BOB))
    assert [reply.status for reply in (*replies, other)] == [200, 200, 429, 200]
    assert 25 <= int(replies[2].headers["retry-after"]) <= 30
    assert replies[2].json["error"]["code"] == "rate_limit_exceeded"
    assert len(engine.requests) == 3


async def test_a_tenants_streams_at_once_are_bounded_and_given_back_by_an_abort() -> None:
    """One at once: the second is refused, after the first was aborted there is room again."""
    engine = FakeEngine(pause_s=0.3)
    async with Harness(engine, guard=guard(concurrent_max=1)) as fleet:
        running = asyncio.create_task(fleet.post(**bearer(ALICE)))
        await until(lambda: len(engine.requests) == 1)
        refused = await fleet.post(**bearer(ALICE))
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await fleet.record()
        engine.pause_s = 0.0
        again = await fleet.post(**bearer(ALICE))
    assert (refused.status, refused.json["error"]["code"]) == (429, "concurrency_limit_exceeded")
    assert (refused.headers["retry-after"], again.status) == ("1", 200)


async def test_tokens_are_counted_afterwards_and_refuse_the_next() -> None:
    """Ten tokens a minute and an answer of more: the next request waits until they are paid back."""
    limits = (TenantConfig(name="alice", tokens_per_minute=10.0),)
    async with Harness(FakeEngine(), guard=guard(limits=limits)) as fleet:
        first = await fleet.post(**bearer(ALICE))
        await fleet.record()
        second = await fleet.post(**bearer(ALICE))
    assert (first.status, second.status) == (200, 429)
    assert int(second.headers["retry-after"]) > 60


async def test_low_priority_is_shed_before_normal_and_normal_before_high() -> None:
    """Of ten places eight are taken: low is shed, normal not; at ten even high is."""
    engine = FakeEngine(pause_s=0.3)
    async with Harness(engine, guard=guard(places=10, keys=False)) as fleet:
        running = [asyncio.create_task(fleet.post(x_trimtab_priority="high")) for _ in range(8)]
        await until(lambda: len(engine.requests) == 8)
        low = await fleet.post(x_trimtab_priority="low")
        running += [asyncio.create_task(fleet.post()) for _ in range(2)]
        await until(lambda: len(engine.requests) == 10)
        high = await fleet.post(x_trimtab_priority="high")
        assert {reply.status for reply in await asyncio.gather(*running)} == {200}
        await fleet.record(of=12)
    assert [(reply.status, reply.headers["retry-after"]) for reply in (low, high)] == [
        (503, "1"),
        (503, "1"),
    ]
    assert sum(record.error is ErrorClass.OVERLOADED for record in fleet.records) == 2


async def test_one_tenant_cannot_keep_another_out() -> None:
    """Alice holds six of ten places when Bob comes: her next request waits, his is served."""
    engine = FakeEngine(pause_s=0.3)
    async with Harness(engine, guard=guard(places=10)) as fleet:
        running = [asyncio.create_task(fleet.post(**bearer(ALICE))) for _ in range(6)]
        await until(lambda: len(engine.requests) == 6)
        running.append(asyncio.create_task(fleet.post(**bearer(BOB))))
        await until(lambda: len(engine.requests) == 7)
        greedy = await fleet.post(**bearer(ALICE))
        assert {reply.status for reply in await asyncio.gather(*running)} == {200}
    assert (greedy.status, greedy.json["error"]["code"]) == (429, "fair_share_exceeded")


async def test_an_unknown_priority_is_told_with_those_there_are() -> None:
    """A typo does not silently become normal."""
    async with Harness(FakeEngine(), guard=guard(keys=False)) as fleet:
        reply = await fleet.post(x_trimtab_priority="urgent")
    assert (reply.status, reply.json["error"]["code"]) == (400, "bad_priority")
    assert "low, normal, high" in reply.json["error"]["message"]


async def test_every_place_is_given_back_however_requests_end() -> None:
    """Good ones, wrong ones and aborted ones: nothing stays in flight."""
    engine = FakeEngine(pause_s=0.02)
    async with Harness(engine, guard=guard(keys=False)) as fleet:
        for _ in range(5):
            await fleet.post()
            await fleet.post(b"no json")
            task = asyncio.create_task(fleet.post())
            await asyncio.sleep(0.01)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        held = fleet.gateway.guard.limits
        await until(lambda: held.in_flight == 0)
    assert held.in_flight == 0
