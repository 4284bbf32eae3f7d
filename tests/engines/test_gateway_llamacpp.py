"""The gateway in front of a real llama.cpp: its formats are those that the fake engines imitate."""

import asyncio
import json
import random
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import pytest_asyncio

from trimtab.core.config import EngineConfig, GatewayConfig
from trimtab.core.cost import CostModel
from trimtab.core.prefix import BlockHasher, PrefixIndex
from trimtab.core.record import RequestRecord
from trimtab.core.traffic import TrafficPlan
from trimtab.core.types import ErrorClass, ReplicaState, Role
from trimtab.engines.llamacpp import LlamaCppFormat
from trimtab.policies.loadstate import LoadState
from trimtab.policies.router import Router
from trimtab.policies.routing import build_policies
from trimtab.runtime.clock import SystemClock
from trimtab.runtime.gateway import Gateway
from trimtab.runtime.launcher import LlamaCppLauncher
from trimtab.runtime.ledger_memory import MemoryLedger
from trimtab.runtime.model import baseline_revision
from trimtab.runtime.secret import Secret

pytestmark = pytest.mark.engine_llamacpp

CHAT = "/v1/chat/completions"
COST = CostModel(
    prefill_base_ms=1.0,
    prefill_ms_per_token=10.0,
    step_base_ms=20.0,
    step_ms_per_stream=5.0,
    prefill_samples=0,
    step_samples=0,
    source="test",
)


class Front:
    """One real replica behind a gateway."""

    def __init__(self, url: str) -> None:
        self.replica_url = url
        self.load = LoadState()
        index = PrefixIndex(10_000, 64)
        index.set_slots("r0", 2)
        self.load.set_replica(
            id="r0", url=url, role=Role.MIXED, revision="v", state=ReplicaState.READY, slots=2
        )
        self.records: list[RequestRecord] = []
        clock = SystemClock()
        self.gateway = Gateway(
            GatewayConfig(port=0),
            Router(
                self.load,
                index,
                build_policies(COST),
                random.Random(1),
                plan=TrafficPlan(policy="prefix_affine"),
            ),
            LlamaCppFormat(),
            MemoryLedger(clock=clock),
            clock,
            hasher=BlockHasher(b"k", 64),
            secret=Secret(bytes(32)),
            model="default",
            on_record=self.records.append,
        )

    async def record(self, of: int) -> RequestRecord:
        async with asyncio.timeout(10):
            while len(self.records) < of:  # noqa: ASYNC110 - a record sets no event
                await asyncio.sleep(0.01)
        return self.records[of - 1]


@pytest_asyncio.fixture
async def front(tmp_path: Path) -> AsyncIterator[Front]:
    """Start a replica and a gateway, and end both."""
    launcher = LlamaCppLauncher(
        clock=SystemClock(), start_timeout_s=60, threads=1, log_folder=tmp_path
    )
    revision = baseline_revision(EngineConfig(slots=2, context_tokens=1024))
    try:
        [place] = launcher.place(["r0"])
        made = Front(await launcher.start(revision, place))
        made.port = await made.gateway.start()  # type: ignore[attr-defined]
        made.url = f"http://127.0.0.1:{made.port}"  # type: ignore[attr-defined]
        yield made
        await made.gateway.stop()
    finally:
        await launcher.stop("r0", grace_s=1)
        await launcher.close()


def body(text: str, **fields: Any) -> bytes:
    messages = [{"role": "user", "content": text}]
    asked = {"messages": messages, "temperature": 0, "max_tokens": 12, "stream": True}
    return json.dumps(asked | fields).encode()


async def post(client: aiohttp.ClientSession, url: str, data: bytes) -> tuple[int, bytes]:
    async with client.post(url + CHAT, data=data) as response:
        return response.status, await response.read()


def texts(stream: bytes) -> list[str]:
    chunks = [
        json.loads(event[6:])
        for event in stream.decode().split("\n\n")
        if event.startswith("data: {")
    ]
    assert all(chunk["choices"] for chunk in chunks)
    return [chunk["choices"][0]["delta"].get("content") or "" for chunk in chunks]


async def test_real_answers_pass_and_are_measured(front: Front) -> None:
    """Streams, answers, reuse, overflow and aborts, on the engine itself."""
    url: str = front.url  # type: ignore[attr-defined]
    question = "List three colours of the rainbow. " * 12
    async with aiohttp.ClientSession() as client:
        status, direct = await post(client, front.replica_url, body(question))
        _, streamed = await post(client, url, body(question))
        _, whole = await post(client, url, body(question, stream=False))
        overflow_status, overflow = await post(client, url, body("word " * 3000))
        async with client.post(url + CHAT, data=body("Count.", max_tokens=600)) as response:
            await response.content.readany()
        aborted = await front.record(4)
        async with asyncio.timeout(3):
            while await is_busy(client, front.replica_url):  # noqa: ASYNC110 - polled over HTTP
                await asyncio.sleep(0.1)

    assert (status, texts(streamed), streamed.endswith(b"data: [DONE]\n\n")) == (
        200,
        texts(direct),
        True,
    )
    assert json.loads(whole)["choices"][0]["message"]["content"] == "".join(texts(direct))
    first, second, third = front.records[:3]
    assert (first.ok, first.tokens.output, first.finish_reason) == (True, 12, "length")
    assert first.unknown.keys() == {"drafting.drafts", "drafting.accepted"}
    assert (second.tokens.output, second.tokens.prompt) == (12, first.tokens.prompt)
    assert (second.tokens.delivered or 0) > 0.9 * (second.tokens.prompt or 0)
    assert second.tokens.captured == pytest.approx(second.tokens.delivered, rel=0.15)
    detail = json.loads(overflow)["error"]
    assert (overflow_status, detail["type"]) == (400, "exceed_context_size_error")
    assert (third.error, aborted.error) == (ErrorClass.CONTEXT_OVERFLOW, ErrorClass.CLIENT_ABORT)


async def is_busy(client: aiohttp.ClientSession, url: str) -> bool:
    async with client.get(url + "/slots") as response:
        return any(slot["is_processing"] for slot in await response.json())


async def test_slots_of_llama_cpp_leak_between_tenants_and_the_test_says_so(front: Front) -> None:
    """It knows no salts: another tenant finds the prompt in the slot, which is told as a leak."""
    url: str = front.url  # type: ignore[attr-defined]
    async with (
        aiohttp.ClientSession() as client,
        client.post(url + "/debug/isolation") as response,
    ):
        report = await response.json()
    probe = report["replicas"][0]["probe"]
    assert (response.status, report["verdict"], report["n"]) == (200, "leaks", 1)
    assert probe["same"] > 0.9 * probe["prompt_tokens"]
    assert probe["other"] > 0.9 * probe["prompt_tokens"]
