"""The fleets whose live diagnosis is judged: two embedded llama.cpp replicas, and one vLLM server on this CPU.

| fleet | slots | KV that fits | context load |
|---|---|---|---|
| embedded | 4 of 1,024 tokens, 2 replicas | the slots' own | more sessions than slots, each resends its context |
| vllm | 8 requests | 32 blocks of 128 tokens | the same; and answers of 8 requests that outgrow it |
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple

import aiohttp
from live_loads import (
    WAIT_TIMEOUT_S,
    Growth,
    Load,
    Sizes,
    Traffic,
    arrivals,
    arrivals_per_s,
    evicted_context,
    growing_context,
    long_prompts,
    measured_cost,
    short_decodes,
)

from trimtab.core.config import Config, EngineConfig, FleetConfig, GatewayConfig, LedgerConfig
from trimtab.core.cost import CostModel
from trimtab.core.served import Gauge
from trimtab.engines.served import read_sample
from trimtab.engines.vllm import VllmLaunch
from trimtab.runtime.calibrate import calibrate_cost
from trimtab.runtime.clock import SystemClock
from trimtab.runtime.supervisor import System
from trimtab.runtime.vllm_env import SMOLLM2, find_environment
from trimtab.runtime.vllm_launcher import VllmLauncher

CONTEXT_TOKENS = 1024
REPLICAS = 2
EMBEDDED = Sizes(
    slots=4,
    long_words=480,
    decode_output=56,
    sessions=6,
    context_words=300,
    context_output=8,
    context_clients=2,
    # Each request in flight holds a thread of its server, of which there are 64.
    in_flight_max=40,
)
VLLM = Sizes(
    slots=8,
    long_words=500,
    decode_output=32,
    sessions=16,
    context_words=450,
    context_output=240,
    context_clients=2,
    in_flight_max=60,
    short_output=2,
)
VLLM_CONTEXT_TOKENS, VLLM_KV_BLOCKS = 2048, 32
VLLM_THREADS = "0"
"""One core, so that clients and the command have another: threads that wait for each other stall with any of them."""

VLLM_KV_BYTES = 256 * 1024 * 1024
"""Set aside for blocks; without it vLLM asks for nearly all memory."""
COST_ROUND_S = 4.0
"""About what one round of timing takes vLLM here."""


class Fleet(NamedTuple):
    """A running fleet. `model`: for `--model`; `served`: the name that requests ask for."""

    urls: tuple[str, ...]
    model: str
    served: str
    sizes: Sizes
    session: aiohttp.ClientSession
    cost: Callable[[], Awaitable[CostModel]]
    clear: Callable[[], Awaitable[None]]
    fills: bool

    def traffic(self) -> Traffic:
        """Return a sender that has sent nothing yet."""
        return Traffic(self.session, self.served)

    def loads(self, cost: CostModel, growth: Growth) -> tuple[Load, ...]:
        """Return the loads for a fleet of that speed."""
        sizes, replicas = self.sizes, len(self.urls)
        per_s = arrivals_per_s(sizes, cost)
        slots, clients = sizes.slots, sizes.context_clients
        # Every session once: what is asked in the window was computed before it.
        evicted = (sizes.sessions + clients) * replicas
        context = [
            Load("evicted context", clients, evicted_context(sizes), evicted, PREFILL_MEMORY)
        ]
        if self.fills:
            filled = growing_context(sizes)
            context.append(Load("filled context", slots, filled, slots // 2, QUEUE_MEMORY))
        decode = f"decode {growth.resource}"
        return (
            Load("long prompts", 2, long_prompts(sizes), 2 * replicas, "prefill compute"),
            Load("short decodes", slots, short_decodes(sizes), slots * replicas, decode),
            *context,
            Load("more arrivals", 1, arrivals(sizes, per_s), 4 * slots * replicas, QUEUE_SLOTS),
        )

    async def idle(self) -> None:
        """Wait until the servers have dropped what was cancelled."""
        async with asyncio.timeout(WAIT_TIMEOUT_S):
            while await self._is_busy():  # noqa: ASYNC110 - asked over HTTP
                await asyncio.sleep(0.2)

    async def _is_busy(self) -> bool:
        samples = [read_sample(page, source="", at_s=0.0) for page in await self.pages()]
        return any(
            sample.gauge_sum(Gauge.RUNNING) or sample.gauge_sum(Gauge.WAITING) for sample in samples
        )

    async def pages(self) -> list[bytes]:
        """Return the page of metrics of each server."""
        found = []
        for url in self.urls:
            async with self.session.get(f"{url}/metrics") as response:
                found.append(await response.read())
        return found


PREFILL_MEMORY = "prefill memory_capacity"
QUEUE_MEMORY = "queue memory_capacity"
QUEUE_SLOTS = "queue admission"


@asynccontextmanager
async def embedded(
    folder: Path, session: aiohttp.ClientSession, calibrate_s: float
) -> AsyncIterator[Fleet]:
    """Start the replicas of a default fleet with few small slots."""
    config = Config(
        engine=EngineConfig(slots=EMBEDDED.slots, context_tokens=CONTEXT_TOKENS),
        fleet=FleetConfig(replicas=REPLICAS, stop_grace_s=2.0),
        gateway=GatewayConfig(port=0),
        ledger=LedgerConfig(path=str(folder / "ledger.sqlite")),
    )
    made = System(
        config,
        SystemClock(),
        command="live-diagnosis",
        log_folder=folder / "logs",
        secret_path=folder / "secret",
    )
    async with made as system:
        replicas = system.fleet.replica_ids()
        urls = tuple(system.ready_url(replica) for replica in replicas)

        async def cost() -> CostModel:
            return await calibrate_cost(
                urls[0],
                system.engine,
                session=session,
                clock=system.clock,
                budget_s=calibrate_s,
            )

        async def clear() -> None:
            for replica in replicas:
                await system.launcher.erase_kv(replica)

        yield Fleet(
            urls=urls,
            model=system.baseline.model.path,
            served="default",
            sizes=EMBEDDED,
            session=session,
            cost=cost,
            clear=clear,
            fills=False,
        )


@asynccontextmanager
async def vllm(
    folder: Path, session: aiohttp.ClientSession, calibrate_s: float
) -> AsyncIterator[Fleet]:
    """Start one vLLM server with few requests and little KV; what it costs is timed in whole rounds."""
    launch = VllmLaunch(
        model=SMOLLM2,
        served_name="smollm2",
        port=0,
        context_tokens=VLLM_CONTEXT_TOKENS,
        kv_cache_bytes=VLLM_KV_BYTES,
        kv_blocks=VLLM_KV_BLOCKS,
        sequences_max=VLLM.slots,
        threads=VLLM_THREADS,
    )
    environment = find_environment()
    async with VllmLauncher(
        clock=SystemClock(), environment=environment, log_folder=folder / "logs"
    ) as launcher:
        running = await launcher.start(launch)

        async def cost() -> CostModel:
            rounds = max(1, round(calibrate_s / COST_ROUND_S))
            return await measured_cost(
                Traffic(session, launch.served_name), running.url, VLLM.slots, rounds
            )

        async def clear() -> None:
            """Nothing: no two loads share a beginning."""

        yield Fleet(
            urls=(running.url,),
            model=str(environment.model(SMOLLM2)),
            served=launch.served_name,
            sizes=VLLM,
            session=session,
            cost=cost,
            clear=clear,
            fills=True,
        )
