"""Whether a real vLLM keeps tenants' caches apart under the salts that the gateway sends."""

import pytest

from trimtab.core.config import GatewayConfig
from trimtab.core.tenants import IsolationVerdict
from trimtab.engines.llamacpp import LlamaCppFormat
from trimtab.engines.vllm import VllmLaunch
from trimtab.runtime.clock import SystemClock
from trimtab.runtime.isolation import IsolationReport, ask_through, check_isolation
from trimtab.runtime.upstream import Upstream
from trimtab.runtime.vllm_env import SMOLLM2, find_environment
from trimtab.runtime.vllm_launcher import VllmLauncher

pytestmark = [pytest.mark.engine_vllm, pytest.mark.timeout(900)]


async def tested(*, prefix_caching: bool) -> IsolationReport:
    """Start a server, test it, end it."""
    launch = VllmLaunch(
        model=SMOLLM2,
        served_name="m",
        port=0,
        context_tokens=2048,
        kv_cache_bytes=2**27,
        prefix_caching=prefix_caching,
    )
    upstream = Upstream(GatewayConfig())
    async with VllmLauncher(
        clock=SystemClock(), environment=find_environment(), start_timeout_s=300
    ) as launcher:
        running = await launcher.start(launch)
        await upstream.start()
        try:
            return await check_isolation(
                {"r0": running.url}, "m", LlamaCppFormat(), bytes(32), ask_through(upstream)
            )
        finally:
            await upstream.close()


async def test_salts_keep_tenants_apart_on_a_real_vllm() -> None:
    """The same tenant finds most of its prompt in the cache, another one nothing: proven."""
    report = await tested(prefix_caching=True)
    probe = report.replicas[0].probe
    assert (report.verdict, report.n) == (IsolationVerdict.PROVEN, 1)
    assert probe is not None
    assert (probe.first, probe.other) == (0, 0)
    assert (probe.same or 0) >= 0.5 * (probe.prompt_tokens or 0) > 0


async def test_isolation_is_not_proven_where_caching_is_off() -> None:
    """Nobody finds anything, so nothing is known: not proven, and never passed."""
    report = await tested(prefix_caching=False)
    assert report.verdict is IsolationVerdict.NOT_PROVEN
