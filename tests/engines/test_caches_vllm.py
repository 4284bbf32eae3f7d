"""Prefix caches of real vLLM servers: what one says it holds is what it reuses, and whether tenants are kept apart.

Two servers are started at once for all tests here: one that caches and tells of it, and one that caches nothing.
"""

import asyncio
import socket
from collections.abc import AsyncIterator
from typing import NamedTuple

import aiohttp
import pytest
import pytest_asyncio
from router_kit import PROMPT, query, router

from trimtab.core.config import GatewayConfig
from trimtab.core.kv_blocks import KvBatch, KvNews
from trimtab.core.tenants import IsolationVerdict
from trimtab.engines.llamacpp import LlamaCppFormat
from trimtab.engines.vllm import VllmLaunch
from trimtab.policies.router import Router
from trimtab.runtime.clock import SystemClock
from trimtab.runtime.isolation import IsolationReport, ask_through, check_isolation
from trimtab.runtime.kv_events import KvListener
from trimtab.runtime.upstream import Upstream
from trimtab.runtime.vllm_env import SMOLLM2, find_environment
from trimtab.runtime.vllm_launcher import VllmLauncher

pytestmark = [
    pytest.mark.engine_vllm,
    pytest.mark.timeout(900),
    pytest.mark.asyncio(loop_scope="module"),
]

IDS = tuple(100 + number % 900 for number in range(300))
SALT = "a tenant's"


class Servers(NamedTuple):
    """Where both answer, and what a router heard of the one that caches from its start on."""

    caching: str
    plain: str
    router: Router
    news: list[KvNews]
    listener: KvListener


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def launch(*, events: str = "", prefix_caching: bool = True) -> VllmLaunch:
    return VllmLaunch(
        model=SMOLLM2,
        served_name="m",
        port=0,
        context_tokens=2048,
        kv_cache_bytes=2**27,
        prefix_caching=prefix_caching,
        kv_events=events,
        developer_endpoints=bool(events),
    )


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def servers() -> AsyncIterator[Servers]:
    """Both servers; the first one's events are heard before it starts, so that none is missed."""
    made, news = router("a", "b"), list[KvNews]()
    events = f"tcp://127.0.0.1:{free_port()}"

    def heard(replica: str, batch: KvBatch) -> None:
        news.append(made.heard(replica, batch))

    listener = KvListener({"a": f"bind:{events}"}, heard)
    listener.open()
    hearing = asyncio.create_task(listener.run())
    try:
        async with VllmLauncher(
            clock=SystemClock(), environment=find_environment(), start_timeout_s=300
        ) as launcher:
            caching, plain = await asyncio.gather(
                launcher.start(launch(events=events), name="caching"),
                launcher.start(launch(prefix_caching=False), name="plain"),
            )
            yield Servers(caching.url, plain.url, made, news, listener)
    finally:
        hearing.cancel()
        await asyncio.gather(hearing, return_exceptions=True)


async def until_heard(news: list[KvNews], count: int) -> None:
    for _ in range(1200):
        if len(news) >= count:
            return
        await asyncio.sleep(0.05)
    raise TimeoutError(f"heard {len(news)} of {count} messages in a minute")


async def test_what_a_real_engine_tells_is_what_it_reuses(servers: Servers) -> None:
    """Predicted from events alone, delivered by the engine: the same tokens, with a salt and without; and a cleared
    cache is forgotten.
    """
    url, news = servers.caching, servers.news

    def predicted(salt: str = "") -> int:
        decision = servers.router.preview(query("q", PROMPT, ids=IDS, salt=salt))[1].decision
        return int(decision.held_best_tokens)

    async with aiohttp.ClientSession() as session:

        async def delivered(**fields: str) -> int:
            body = {"model": "m", "prompt": list(IDS), "max_tokens": 2, **fields}
            async with session.post(f"{url}/v1/completions", json=body) as answer:
                usage = (await answer.json())["usage"]
                return int((usage["prompt_tokens_details"] or {}).get("cached_tokens") or 0)

        assert predicted() == 0
        assert await delivered() == 0
        await until_heard(news, 1)
        assert predicted() == await delivered() == 256
        assert predicted(SALT) == await delivered(cache_salt=SALT) == 0
        await until_heard(news, 2)
        assert predicted(SALT) == await delivered(cache_salt=SALT) == 256
        async with session.post(f"{url}/reset_prefix_cache") as answer:
            assert answer.status == 200
        # The engine tells of it with its next step.
        assert await delivered() == 0
        await until_heard(news, 3)
        assert (predicted(), predicted(SALT)) == (256, 0)
    assert news == [KvNews.IN_ORDER, KvNews.IN_ORDER, KvNews.CLEARED]
    assert servers.listener.unreadable == {"a": 0}


async def isolation_of(url: str) -> IsolationReport:
    """Ask one server as the gateway asks, under two tenants' salts."""
    upstream = Upstream(GatewayConfig())
    await upstream.start()
    try:
        return await check_isolation(
            {"r0": url}, "m", LlamaCppFormat(), bytes(32), ask_through(upstream)
        )
    finally:
        await upstream.close()


async def test_salts_keep_tenants_apart_on_a_real_vllm(servers: Servers) -> None:
    """The same tenant finds most of its prompt in the cache, another one nothing: proven."""
    report = await isolation_of(servers.caching)
    probe = report.replicas[0].probe
    assert (report.verdict, report.n) == (IsolationVerdict.PROVEN, 1)
    assert probe is not None
    assert (probe.first, probe.other) == (0, 0)
    assert (probe.same or 0) >= 0.5 * (probe.prompt_tokens or 0) > 0


async def test_isolation_is_not_proven_where_caching_is_off(servers: Servers) -> None:
    """Nobody finds anything, so nothing is known: not proven, and never passed."""
    report = await isolation_of(servers.plain)
    assert report.verdict is IsolationVerdict.NOT_PROVEN
