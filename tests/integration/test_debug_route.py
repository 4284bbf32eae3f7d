"""POST /debug/route through real sockets: what would be done, every candidate, and nothing done."""

from typing import Any

import aiohttp
from fake_engine import FakeEngine
from harness import Harness, as_body, chat

from trimtab.core.traffic import TrafficPlan


async def ask(fleet: Harness, body: dict[str, Any], query: str = "") -> tuple[int, dict[str, Any]]:
    async with aiohttp.ClientSession() as session:
        url = f"{fleet.url}/debug/route{query}"
        async with session.post(url, data=as_body(body)) as answer:
            return answer.status, await answer.json()


async def test_it_says_what_the_next_request_meets_and_sends_nothing() -> None:
    """The replica it names is the one that serves the same body next; no engine hears of the question."""
    engines = (FakeEngine(), FakeEngine())
    async with Harness(*engines) as fleet:
        fleet.router.plan = TrafficPlan(policy="prefix_affine")
        body = chat("A long story about a trim tab. " * 60)
        await fleet.post(body)
        served = (await fleet.record()).replica
        status, said = await ask(fleet, body)
        asked = sum(len(engine.requests) for engine in engines)
        await fleet.post(body)
        again = (await fleet.record(of=2)).replica
    assert (status, asked) == (200, 1)
    assert said["replica"] == served == again
    assert said["reason"] == "longest_prefix_within_bound"
    assert said["predicted_cached_tokens"] > 100
    assert {one["replica"] for one in said["candidates"]} == {"r0", "r1"}
    for one in said["candidates"]:
        assert sum(one["terms"].values()) == one["score_ms"]
        assert set(one["terms"]) == {"wait", "prefill", "decode", "displaced", "preferred"}
    assert "trim tab" not in str(said)


async def test_another_salt_has_no_credit() -> None:
    """Asked for another tenant's salt, the same body is held by nobody."""
    async with Harness(FakeEngine(), FakeEngine()) as fleet:
        fleet.router.plan = TrafficPlan(policy="prefix_affine")
        body = chat("A long story about a trim tab. " * 60, model="fake-model")
        await fleet.post(body)
        _, said = await ask(fleet, body, "?salt=other")
    assert (said["held_best_tokens"], said["key_class"]) == (0, "salted")


async def test_body_that_would_be_refused_is_refused_here() -> None:
    """400 for a body that is no request, 404 for a path that is not routed by prefix."""
    async with Harness(FakeEngine()) as fleet:
        bad, _ = await ask(fleet, {"messages": 5})
        away, _ = await ask(fleet, chat(), "?path=/v1/embeddings")
    assert (bad, away) == (400, 404)


async def test_adapter_has_no_credit_for_what_the_base_model_left() -> None:
    """A request that names another model than the fleet's has a key of its own."""
    async with Harness(FakeEngine(), FakeEngine()) as fleet:
        fleet.router.plan = TrafficPlan(policy="prefix_affine")
        text = "A long story about a trim tab. " * 60
        await fleet.post(chat(text, model="fake-model"))
        _, base = await ask(fleet, chat(text, model="fake-model"))
        _, other = await ask(fleet, chat(text, model="an-adapter"))
    assert base["held_best_tokens"] > 100
    assert (base["key_class"], other["key_class"]) == ("plain", "adapter")
    assert other["held_best_tokens"] == 0
