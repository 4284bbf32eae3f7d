"""A real vLLM's KV events: what it says it holds is what it reuses, and a cleared cache is forgotten."""

import asyncio
import socket

import aiohttp
import pytest
from router_kit import PROMPT, query, router

from trimtab.core.kv_blocks import KvBatch, KvNews
from trimtab.engines.vllm import VllmLaunch
from trimtab.runtime.clock import SystemClock
from trimtab.runtime.kv_events import KvListener
from trimtab.runtime.vllm_env import SMOLLM2, find_environment
from trimtab.runtime.vllm_launcher import VllmLauncher

pytestmark = [pytest.mark.engine_vllm, pytest.mark.timeout(900)]

IDS = tuple(100 + number % 900 for number in range(700))
SALT = "a tenant's"


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


async def until_heard(news: list[KvNews], count: int) -> None:
    for _ in range(1200):
        if len(news) >= count:
            return
        await asyncio.sleep(0.05)
    raise TimeoutError(f"heard {len(news)} of {count} messages in a minute")


async def test_what_a_real_engine_tells_is_what_it_reuses() -> None:
    """Predicted from events alone, delivered by the engine: the same tokens, with a salt and without."""
    made, news = router("a", "b"), list[KvNews]()
    port = free_port()

    def heard(replica: str, batch: KvBatch) -> None:
        news.append(made.heard(replica, batch))

    def predicted(salt: str = "") -> int:
        decision = made.preview(query("q", PROMPT, ids=IDS, salt=salt))[1].decision
        return int(decision.held_best_tokens)

    listener = KvListener({"a": f"bind:tcp://127.0.0.1:{port}"}, heard)
    listener.open()
    hearing = asyncio.create_task(listener.run())
    launch = VllmLaunch(
        model=SMOLLM2,
        served_name="m",
        port=0,
        context_tokens=2048,
        kv_cache_bytes=2**27,
        kv_events=f"tcp://127.0.0.1:{port}",
        developer_endpoints=True,
    )
    try:
        async with (
            VllmLauncher(
                clock=SystemClock(), environment=find_environment(), start_timeout_s=300
            ) as launcher,
            aiohttp.ClientSession() as session,
        ):
            url = (await launcher.start(launch)).url

            async def delivered(**fields: str) -> int:
                body = {"model": "m", "prompt": list(IDS), "max_tokens": 2, **fields}
                async with session.post(f"{url}/v1/completions", json=body) as answer:
                    usage = (await answer.json())["usage"]
                    return int((usage["prompt_tokens_details"] or {}).get("cached_tokens") or 0)

            assert predicted() == 0
            assert await delivered() == 0
            await until_heard(news, 1)
            assert predicted() == await delivered() == 640
            assert predicted(SALT) == await delivered(cache_salt=SALT) == 0
            await until_heard(news, 2)
            assert predicted(SALT) == await delivered(cache_salt=SALT) == 640
            async with session.post(f"{url}/reset_prefix_cache") as answer:
                assert answer.status == 200
            # The engine tells of it with its next step.
            assert await delivered() == 0
            await until_heard(news, 3)
            assert (predicted(), predicted(SALT)) == (640, 0)
    finally:
        hearing.cancel()
        await asyncio.gather(hearing, return_exceptions=True)
    assert news == [KvNews.IN_ORDER, KvNews.IN_ORDER, KvNews.CLEARED]
    assert listener.unreadable == {"a": 0}
