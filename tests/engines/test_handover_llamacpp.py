"""A prompt prefilled on one real llama.cpp replica and decoded on another, through the whole gateway.

One system serves all tests here; the last one kills its prefill replica.
"""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest
import pytest_asyncio

from trimtab.core.config import Config, EngineConfig, FleetConfig, GatewayConfig, LedgerConfig
from trimtab.core.config_handover import HandOverConfig, PlaceRule
from trimtab.core.config_roles import RolesConfig
from trimtab.core.cost import CostModel
from trimtab.core.events import AnyEvent, HandedOver, RequestServed
from trimtab.core.handover import HandOver, HandOverOutcome, PrefillPlace, PrefillReason
from trimtab.policies.local_prefill import PrefillRules
from trimtab.runtime.clock import SystemClock
from trimtab.runtime.supervisor import System

pytestmark = [
    pytest.mark.engine_llamacpp,
    pytest.mark.timeout(600),
    pytest.mark.asyncio(loop_scope="module"),
]

CHAT = "/v1/chat/completions"
COST = CostModel(
    prefill_base_ms=10.0,
    prefill_ms_per_token=4.0,
    step_base_ms=12.0,
    step_ms_per_stream=2.0,
    prefill_samples=10,
    step_samples=10,
    source="of a machine like this one",
)
PROMPT_TOKENS_MIN = 1_300
SOME_SENTENCES, MANY_SENTENCES = 30, 45
"""Some 500 and 800 tokens, where their number is not the point; many take long enough to be broken off."""


def prompt(name: str, *, sentences: int = 75) -> str:
    """Return a text of more than 1,300 tokens that no other name gives."""
    return " ".join(
        f"Note {number} of {name}: keep valve {number % 7} closed until gauge {number % 11} reads zero."
        for number in range(sentences)
    )


def body(text: str, **fields: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": f"{text} What is to be kept closed?"}]
    return {"messages": messages, "temperature": 0, "max_tokens": 24, "seed": 7} | fields


class Served:
    """A system of one replica that prefills and one that decodes, with a client; it tells of what came after it."""

    def __init__(self, system: System) -> None:
        self.system = system
        self.http = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=300))
        self._earlier = len(system.ledger.read())

    def _events(self) -> list[AnyEvent]:
        return [one.event for one in self.system.ledger.read()[self._earlier :]]

    async def ask(self, asked: dict[str, Any]) -> str:
        """Ask without a stream and return the text."""
        async with self.http.post(self.system.url + CHAT, json=asked) as response:
            answer = await response.json()
            assert response.status == 200, answer
            return str(answer["choices"][0]["message"]["content"])

    async def stream(self, asked: dict[str, Any]) -> bytes:
        async with self.http.post(self.system.url + CHAT, json=asked | {"stream": True}) as answer:
            return await answer.read()

    async def alone(self, asked: dict[str, Any], replica: str) -> str:
        """Ask one replica itself, past the gateway."""
        url = self.system.ready_url(replica)
        async with self.http.post(url + CHAT, json=asked) as response:
            answer = await response.json()
            return str(answer["choices"][0]["message"]["content"])

    @property
    def roles(self) -> dict[str, str]:
        return {info.role.value: info.id for info in self.system.fleet.infos()}

    async def told(self, count: int) -> list[HandOver]:
        """Return the hand-overs that the ledger has, once there are so many."""
        async with asyncio.timeout(30):
            while True:
                await self.system.ledger.flush()
                found = [one.hand_over for one in self._events() if isinstance(one, HandedOver)]
                if len(found) >= count:
                    return found
                await asyncio.sleep(0.05)

    async def served(self, count: int) -> RequestServed:
        """Return the last request as the ledger has it, once there are so many."""
        async with asyncio.timeout(30):
            while True:
                await self.system.ledger.flush()
                found = [one for one in self._events() if isinstance(one, RequestServed)]
                if len(found) >= count:
                    return found[-1]
                await asyncio.sleep(0.05)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def system(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[System]:
    """Two replicas of two slots: one prefills for the other, every prompt is told to travel."""
    folder = tmp_path_factory.mktemp("handover")
    config = Config(
        engine=EngineConfig(slots=2, context_tokens=2048, threads=1),
        fleet=FleetConfig(replicas=2, stop_grace_s=5),
        gateway=GatewayConfig(port=0),
        ledger=LedgerConfig(path=str(folder / "ledger.sqlite")),
        roles=RolesConfig(prefill=1),
        handover=HandOverConfig(place=PlaceRule.REMOTE),
    )
    made = System(
        config,
        SystemClock(),
        command="test",
        log_folder=folder / "logs",
        secret_path=folder / "secret",
    )
    async with made:
        # Nothing travels before a cost is known.
        made.use_cost(COST)
        yield made


@pytest_asyncio.fixture(loop_scope="module")
async def served(system: System) -> AsyncIterator[Served]:
    """The system with its rules as they were, and a client of the test's own."""
    rules = system.hand_overs.pool.rules
    await system.ledger.flush()
    made = Served(system)
    yield made
    await made.http.close()
    system.hand_overs.pool.rules = rules


def parcels(system: System) -> list[str]:
    return [path.name for path in system.launcher.slot_folder.glob("parcel-*")]


async def test_prompt_decoded_elsewhere_gives_the_text_that_it_gives_alone(served: Served) -> None:
    """At temperature 0 the text equals that of a replica alone; bytes and times are told; a repeat is a local hit."""
    asked = body(prompt("hall"))
    decode, prefill = served.roles["decode"], served.roles["prefill"]
    handed = await served.ask(asked)
    (one,) = await served.told(1)
    # Past the gateway, and not on the decode side: it would take the slot that is looked at below.
    expected = await served.alone(asked | {"cache_prompt": False}, prefill)
    assert handed == expected
    assert (one.source, one.target, one.outcome) == (prefill, decode, HandOverOutcome.DELIVERED)
    assert one.prompt_tokens is not None
    assert one.prompt_tokens > PROMPT_TOKENS_MIN
    assert (one.tokens_sent, one.tokens_delivered) == (one.prompt_tokens, one.prompt_tokens - 1)
    assert one.bytes is not None
    assert one.bytes > one.prompt_tokens * 20_000
    assert one.export_ms is not None
    assert one.transfer_ms is not None
    record = (await served.served(1)).record
    assert (record.replica, record.prefill_replica) == (decode, prefill)
    assert parcels(served.system) == []
    served.system.hand_overs.pool.rules = PrefillRules(chunk_tokens=256)
    again = await served.ask(asked)
    repeated = await served.served(2)
    decision = repeated.prefill
    assert again == handed
    assert decision is not None
    assert (decision.decision.place, decision.decision.reason) == (
        PrefillPlace.LOCAL,
        PrefillReason.CACHED,
    )
    assert repeated.record.tokens.delivered == one.prompt_tokens - 1


async def test_sampled_text_is_the_same_wherever_the_prompt_was_computed(served: Served) -> None:
    """With a temperature and a seed the decode side samples as the prefill side does: no sampler state has to travel.

    Both begin at the same KV. A prompt computed in other chunks differs in the last bits, which a sampler may show.
    """
    asked = body(
        prompt("cellar", sentences=SOME_SENTENCES),
        temperature=0.8,
        repeat_penalty=1.3,
        presence_penalty=0.4,
    )
    handed = await served.ask(asked)
    (one,) = await served.told(1)
    expected = await served.alone(asked, served.roles["prefill"])
    assert (one.outcome, handed) == (HandOverOutcome.DELIVERED, expected)


async def test_first_token_comes_from_the_decode_side(served: Served) -> None:
    """A stream's TTFT holds prefill and transfer; the gap after its first token is told apart from both."""
    await served.stream(body(prompt("loft", sentences=SOME_SENTENCES)))
    await served.told(1)
    record = (await served.served(1)).record
    assert record.ok
    assert record.ttft_ms is not None
    assert record.second_gap_ms is not None
    assert record.phases.prefill_ms is not None
    assert record.phases.transfer_ms is not None
    assert record.ttft_ms > record.phases.prefill_ms
    assert record.second_gap_ms < record.phases.prefill_ms


async def test_client_that_leaves_frees_slots_and_files(served: Served) -> None:
    """Three clients leave while their prompts are computed; nothing is kept, and the next request is served."""
    for number in range(3):
        asking = asyncio.create_task(
            served.stream(body(prompt(f"room {number}", sentences=MANY_SENTENCES)))
        )
        async with asyncio.timeout(60):
            while served.system.hand_overs.under_way == 0:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        # Else the next client would leave before it asked.
        await served.told(number + 1)
    told = await served.told(3)
    text = await served.ask(body(prompt("garden", sentences=SOME_SENTENCES)))
    assert {one.outcome for one in told} == {HandOverOutcome.ABANDONED}
    assert text
    assert (parcels(served.system), served.system.hand_overs.under_way) == ([], 0)


async def test_killed_prefill_replica_costs_time_and_not_the_answer(served: Served) -> None:
    """`kill -9` while a prompt is computed there: the right text, a recorded cause, no file left."""
    asked = body(prompt("attic", sentences=MANY_SENTENCES))
    asking = asyncio.create_task(served.ask(asked))
    prefill = served.roles["prefill"]
    async with asyncio.timeout(60):
        while served.system.hand_overs.under_way == 0:  # noqa: ASYNC110 - it sets no event
            await asyncio.sleep(0.01)
    await asyncio.sleep(0.2)
    pid = served.system.launcher.pid(prefill)
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    handed = await asking
    (one,) = await served.told(1)
    expected = await served.alone(asked | {"cache_prompt": False}, served.roles["decode"])
    assert handed == expected
    assert one.outcome is HandOverOutcome.FAILED
    assert one.cause is not None
    assert (parcels(served.system), served.system.hand_overs.under_way) == ([], 0)
