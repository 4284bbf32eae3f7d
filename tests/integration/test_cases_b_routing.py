"""Where requests go, asked through the gateway: load first, then the prefix; and prompts that no router can help.

Loads are given as probes give them: by the engines' own counts, which include the requests of other gateways.
"""

import asyncio
import contextlib
import json
import random
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest
from fake_engine import FakeEngine, hang
from harness import Harness, chat, until

from trimtab.core.traffic import TrafficPlan
from trimtab.core.types import ReplicaState

PROMPT = " ".join(f"{random.Random(1).getrandbits(30) + at:x}" for at in range(600))


def affine(*engines: FakeEngine) -> Harness:
    """Return a gateway that routes by prefix within the load bound."""
    fleet = Harness(*engines)
    fleet.router.plan = TrafficPlan(policy="prefix_affine")
    return fleet


async def place(fleet: Harness, replica: str, share: float) -> None:
    """Let a replica hold a share of the prompt: others are away while it is asked for."""
    urls = {one.id: one.url for one in fleet.load.view(0.0).replicas}
    for other, url in urls.items():
        state = ReplicaState.READY if other == replica else ReplicaState.DRAINING
        fleet.set_replica(other, url, state)
    reply = await fleet.post(said(PROMPT[: int(len(PROMPT) * share)]))
    assert reply.headers["x-trimtab-replica"] == replica
    await fleet.record(of=len(fleet.records) or 1)
    for other, url in urls.items():
        fleet.set_replica(other, url)


def said(text: str) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}], "stream": True}


def tell(fleet: Harness, **loads: tuple[float | None, int, int]) -> None:
    """Tell each replica's KV share, running and waiting requests, as a probe does."""
    for replica, (kv, running, waiting) in loads.items():
        fleet.load.seen(
            replica, now_s=time.monotonic(), kv_used_share=kv, running=running, waiting=waiting
        )


async def choice(fleet: Harness, text: str = PROMPT) -> str:
    """Return the replica that a prompt goes to."""
    reply = await fleet.post(said(text))
    assert reply.status == 200
    return reply.headers["x-trimtab-replica"]


@pytest.mark.parametrize(
    ("loads", "expected"),
    [
        # full and queueing, however much it holds
        ({"r0": (0.97, 30, 9), "r1": (0.40, 4, 0), "r2": (0.35, 3, 0)}, "r1"),
        ({"r0": (0.99, 8, 30), "r1": (0.30, 3, 0), "r2": (0.30, 3, 0)}, "r1"),
        # the KV share alone: few requests, of very long prompts
        ({"r0": (0.97, 2, 0), "r1": (0.40, 2, 0), "r2": (0.35, 2, 0)}, "r1"),
        # the queue alone: an engine that tells no KV share
        ({"r0": (None, 4, 30), "r1": (None, 4, 0), "r2": (None, 4, 0)}, "r1"),
        # both that hold some are full
        ({"r0": (0.97, 30, 9), "r1": (0.98, 30, 12), "r2": (0.35, 3, 0)}, "r2"),
    ],
)
async def test_load_is_bounded_before_the_prefix_counts(
    loads: dict[str, tuple[float | None, int, int]], expected: str
) -> None:
    """Nine tenths of the prompt on a replica over the bound lose to six tenths on one within it."""
    async with affine(FakeEngine(), FakeEngine(), FakeEngine()) as fleet:
        await place(fleet, "r0", 0.9)
        await place(fleet, "r1", 0.6)
        tell(fleet, **loads)
        assert await choice(fleet) == expected


@pytest.mark.parametrize(
    "load", [(0.41, 3, 0), (0.75, 12, 0), (None, 3, 0), (0.97, 30, 9)], ids=str
)
async def test_balanced_replicas_leave_the_longest_prefix_to_win(
    load: tuple[float | None, int, int],
) -> None:
    """Where all are loaded alike, lightly or heavily, affinity is kept: a cold fleet helps nobody."""
    async with affine(FakeEngine(), FakeEngine(), FakeEngine()) as fleet:
        await place(fleet, "r1", 0.6)
        await place(fleet, "r2", 0.9)
        tell(fleet, r0=load, r1=load, r2=load)
        assert await choice(fleet) == "r2"


@pytest.mark.parametrize(
    ("busy", "idle"),
    [((0.5, 4, 30), (0.5, 0, 0)), ((None, 0, 12), (None, 0, 0)), ((0.1, 40, 0), (0.3, 0, 0))],
)
async def test_miss_goes_to_the_idle_replica_and_not_to_the_small_cache(
    busy: tuple[float | None, int, int], idle: tuple[float | None, int, int]
) -> None:
    """The replica with the fewest known prefixes is the one that is busy with unique prompts: it gets no more."""
    async with affine(FakeEngine(), FakeEngine()) as fleet:
        for number in range(3):
            await place(fleet, "r1", 0.3 + number / 10)
        tell(fleet, r0=busy, r1=idle)
        assert await choice(fleet, "nothing like it " * 200) == "r1"


@contextlib.asynccontextmanager
async def four_gateways(engines: list[FakeEngine]) -> AsyncIterator[list[Harness]]:
    """Give four gateways before the same engines."""
    async with contextlib.AsyncExitStack() as stack:
        fleets = [await stack.enter_async_context(affine()) for _ in range(4)]
        for engine in engines:
            await engine.start()
            stack.push_async_callback(engine.stop)
        for fleet in fleets:
            for number, engine in enumerate(engines):
                fleet.set_replica(f"r{number}", engine.url)
        yield fleets


@pytest.mark.parametrize("each", [5, 10, 20])
async def test_imbalance_is_seen_over_all_gateways(each: int) -> None:
    """Four gateways keep a replica busy. One that has no request there itself sees it by the engine's own count."""
    engines = [FakeEngine(), FakeEngine()]
    async with four_gateways(engines) as fleets:
        for fleet in fleets:
            await place(fleet, "r0", 0.9)
        engines[0].script = hang
        before = len(engines[0].requests)
        held = [
            asyncio.create_task(fleet.post(said(PROMPT), X_Trimtab_Session=str(number)))
            for fleet in fleets[1:]
            for number in range(each)
        ]
        await until(lambda: len(engines[0].requests) + len(engines[1].requests) > before + 3)
        await until(lambda: all(task.done() for task in held) or len(engines[0].requests) > before)
        engines[0].script = None
        unaware = await choice(fleets[0])
        for fleet in fleets:
            tell(fleet, r0=(None, 2, 3 * each - 2), r1=(None, 2, 0))
        aware = [await choice(fleet) for fleet in fleets]
        for task in held:
            task.cancel()
        await asyncio.gather(*held, return_exceptions=True)
    assert unaware == "r0"
    assert set(aware) == {"r1"}


def nonce_on_top(number: int) -> dict[str, Any]:
    """A prompt whose beginning changes: five hex digits at the 41st byte of the system text."""
    system = "You are a coding agent. Request id is: n" + f"{number * 7919:05x}" + " " + PROMPT
    return chat("go on") | {"messages": [{"role": "system", "content": system}]}


def tools_shuffled(number: int) -> dict[str, Any]:
    """The same tools in another order each time, before the same messages."""
    names = [f"tool_{at}" for at in range(12)]
    random.Random(number).shuffle(names)
    tools = [
        {"type": "function", "function": {"name": name, "description": PROMPT[:200]}}
        for name in names
    ]
    return {"tools": tools} | said(PROMPT)


def time_on_top(number: int) -> dict[str, Any]:
    """A prompt that begins with the time."""
    return said(f"It is 12:{number:02d}:59. {PROMPT}")


@pytest.mark.parametrize("body", [nonce_on_top, tools_shuffled, time_on_top])
async def test_changing_beginning_is_neither_mended_nor_promised_as_cached(body: Any) -> None:
    """No word of the client is rewritten, and no hit is predicted where prompts part at their beginning."""
    engines = [FakeEngine(), FakeEngine()]
    async with affine(*engines) as fleet:
        sent = [json.dumps(body(number) | {"stream": False}).encode() for number in range(20)]
        for one in sent:
            await fleet.post(one, X_Trimtab_Session="s1")
        await fleet.record(of=20)
        predicted = [record.tokens.predicted or 0 for record in fleet.records]
    got = sorted(seen.body for engine in engines for seen in engine.requests)
    assert got == sorted(sent)
    prompt_tokens = len(PROMPT) // 4
    assert max(predicted) < prompt_tokens / 4


async def test_steady_beginning_is_promised_as_cached() -> None:
    """The other side of it: with the changing line at the end nearly all is predicted, and stays on its replica."""
    engines = [FakeEngine(), FakeEngine()]
    async with affine(*engines) as fleet:
        for number in range(20):
            await fleet.post(said(f"{PROMPT} It is 12:{number:02d}:59."), X_Trimtab_Session="s1")
        await fleet.record(of=20)
        predicted = [record.tokens.predicted or 0 for record in fleet.records[1:]]
        places = {record.replica for record in fleet.records}
    assert min(predicted) > 0.8 * len(PROMPT) / 4 / 2
    assert len(places) == 1
