"""A gateway before two attached vLLM servers: one prefills for the other, as a person would configure it."""

import asyncio
import json
from pathlib import Path
from typing import Any

import aiohttp

from trimtab.core.config import (
    AttachedServer,
    Config,
    FleetConfig,
    GatewayConfig,
    LedgerConfig,
    RoutingConfig,
)
from trimtab.core.config_handover import HandOverConfig, PlaceRule
from trimtab.core.cost import CostModel
from trimtab.core.handover import HandOver, ReplicaLabels
from trimtab.core.record import RequestRecord
from trimtab.core.types import Role
from trimtab.runtime.clock import SystemClock
from trimtab.runtime.supervisor import System

PREFILL, DECODE = "p", "d"
HERE = ReplicaLabels(host="here")
COST = CostModel(
    prefill_base_ms=1.0,
    prefill_ms_per_token=10.0,
    step_base_ms=20.0,
    step_ms_per_stream=5.0,
    prefill_samples=10,
    step_samples=10,
    source="test",
)


_SETTINGS: dict[str, Any] = {"place": PlaceRule.REMOTE, "chunk_tokens": 64}


class NixlPair:
    """Use as a context. `settings`: of hand-overs; every prompt longer than 64 tokens is sent ahead unless told."""

    def __init__(
        self,
        folder: Path,
        prefill_url: str,
        decode_url: str,
        *,
        settings: dict[str, Any] | None = None,
        gateway: dict[str, Any] | None = None,
        every_s: float = 0.03,
    ) -> None:
        self.told: list[HandOver] = []
        config = Config(
            fleet=FleetConfig(
                attached=(
                    AttachedServer(url=prefill_url, name=PREFILL, role=Role.PREFILL, labels=HERE),
                    AttachedServer(url=decode_url, name=DECODE, role=Role.DECODE, labels=HERE),
                ),
                probe_every_s=every_s,
                check_timeout_s=30.0,
                start_timeout_s=120.0,
            ),
            gateway=GatewayConfig(**({"port": 0} | (gateway or {}))),
            routing=RoutingConfig(policy="least_loaded"),
            ledger=LedgerConfig(path=str(folder / "ledger.sqlite")),
            handover=HandOverConfig(**(_SETTINGS | (settings or {}))),
        )
        self.system = System(config, SystemClock(), command="up", secret_path=folder / "secret")

    async def __aenter__(self) -> "NixlPair":
        await self.system.start()
        self.system.use_cost(COST)
        self.system.hand_overs.books.listen(self.told.append)
        self.client = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=300))
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.client.close()
        await self.system.stop("the test is over")

    async def post(self, path: str, body: dict[str, Any]) -> tuple[int, bytes]:
        """Ask and return status and answer."""
        async with self.client.post(self.system.url + path, json=body) as answer:
            return answer.status, await answer.read()

    async def records(self, of: int = 1) -> tuple[RequestRecord, ...]:
        """Return the records once there are so many, and hand-overs that were measured later."""
        for _ in range(2000):
            done = len(self.system.records) >= of
            if done and not self.system.hand_overs.books.unfinished:
                break
            await asyncio.sleep(0.01)
        return self.system.records

    @property
    def left_over(self) -> dict[str, int]:
        """What is still held though no request runs; all zero is how it must be."""
        return {
            "under way": self.system.hand_overs.under_way,
            "awaiting": self.system.hand_overs.awaiting(PREFILL),
            "requests": self.system.load.in_flight,
        }


NOTHING = dict.fromkeys(("under way", "awaiting", "requests"), 0)


def text_of(data: bytes) -> str:
    """Return the text of an answer, streamed or whole, of chats or completions."""
    if data.startswith(b"{"):
        return "".join(_said(choice) for choice in json.loads(data).get("choices", ()))
    words = []
    for line in data.split(b"\n"):
        if line.startswith(b"data: {"):
            words += [_said(choice) for choice in json.loads(line[6:]).get("choices", ())]
    return "".join(words)


def _said(choice: dict[str, Any]) -> str:
    part = choice.get("delta") or choice.get("message") or {}
    return str(choice.get("text") or part.get("content") or "")
