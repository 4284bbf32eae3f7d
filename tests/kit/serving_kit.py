"""A small real fleet with everything that moves levers, clients of it, and a lever record to fill in."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import aiohttp
import msgspec
from cli_kit import chat

from trimtab.core.config import (
    Config,
    EngineConfig,
    FleetConfig,
    GatewayConfig,
    LedgerConfig,
    LeverConfig,
)
from trimtab.core.cost import START_COST
from trimtab.core.events import (
    AnyEvent,
    RolloutMoved,
)
from trimtab.core.lever import LeverRecord
from trimtab.core.types import Arm, Mode, RolloutState
from trimtab.levers.catalog import routing_policy_of
from trimtab.rollout.short_record import complete, parse_record
from trimtab.runtime.clock import SystemClock
from trimtab.runtime.control import Control
from trimtab.runtime.operate import Operator
from trimtab.runtime.serve import standing_of
from trimtab.runtime.supervisor import System

CHAT = "/v1/chat/completions"
RECORD = """
name = "{name}"
technique = "{technique}"
owner = "tests"
premise = "measured in a test"
condition = "all traffic of a test"
failure_modes = ["long prompts wait"]
{head}
[bottleneck]
phase = "decode"
resource = "memory_bandwidth"
diagnosis = "a test says so"
[[moves]]
budget = "compute"
spends = true
delta_share = 0.05
because = "verification"
[[moves]]
budget = "memory"
spends = false
delta_share = -0.1
because = "less is read"
[[triggers]]
signal = "batch"
off_at = 64.0
on_at = 32.0
off_when_above = true
because = "never in a test"
[ramp]
shares = {shares}
peak_cycle = "{peak}"
block = "{block}"
edge = "0.1s"
warm_up = "0s"
{rest}
"""


class Serving:
    """A small real fleet with everything that moves levers, and clients of it."""

    def __init__(self, folder: Path, engine: EngineConfig, *, replicas: int = 2) -> None:
        config = Config(
            gateway=GatewayConfig(port=0),
            ledger=LedgerConfig(path=str(folder / "ledger.sqlite")),
            fleet=FleetConfig(replicas=replicas, restart_backoff_s=0.2),
            engine=engine,
            levers=LeverConfig(mode=Mode.ACT),
        )
        self.system = System(config, SystemClock(), command="up")
        self.control = Control(self.system, lambda: standing_of(self.system, START_COST))
        self.operator = Operator(self.control, self.system)
        self.http = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))

    async def __aenter__(self) -> "Serving":
        await self.system.start()
        await self.control.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.control.stop()
        await self.http.close()
        await self.system.stop("a test ended")

    async def ask(
        self,
        session: str,
        text: str,
        *,
        tokens: int = 4,
        label: str = "",
        begun: Callable[[], None] = lambda: None,
    ) -> bool:
        """Stream one chat; True if it was answered to its end. `begun` is called at its first bytes."""
        body = chat(text, max_tokens=tokens, stream=True, ignore_eos=True)
        headers = {"X-Trimtab-Session": session, "X-Trimtab-Label": label}
        try:
            async with self.http.post(self.system.url + CHAT, json=body, headers=headers) as got:
                data = await got.content.readany()
                begun()
                data += await got.read()
                return got.status == 200 and data.rstrip().endswith(b"data: [DONE]")
        except aiohttp.ClientError:
            return False

    async def sessions(self, arm: Arm, n: int) -> list[str]:
        """Names of sessions that the lever being proven has in one arm."""
        found: list[str] = []
        number = 0
        while len(found) < n:
            name = f"{arm.value}-{number}"
            number += 1
            assert not self.control.controller.has_ended, self.control.controller.proof
            assert await self.ask(name, "Hi.", tokens=1)
            if self.system.records[-1].arm is arm:
                found.append(name)
        return found

    def events(self) -> list[AnyEvent]:
        """Everything in the ledger so far."""
        return [envelope.event for envelope in self.system.ledger.read()]

    def state(self, lever: str) -> RolloutState | None:
        """Where a lever is, by its last move."""
        moves = [e for e in self.events() if isinstance(e, RolloutMoved) and e.lever == lever]
        return moves[-1].after if moves else None

    def record(self, text: str) -> LeverRecord:
        """A whole lever record of a text, each gate left to its own alpha so that a test need not wait."""
        short = parse_record(text, source="a test")
        record = complete(short, baseline=self.system.baseline, now_s=self.system.clock.wall_s())
        quick = msgspec.structs.replace(record.ramp, harm_alpha=None)
        return msgspec.structs.replace(record, ramp=quick)

    async def start(self, record: LeverRecord) -> None:
        """Propose a record and expose its first slice."""
        controller = self.control.controller
        proposed = controller.propose(record, cause_id=self.system.started_event)
        self.control.begin_proof()
        await controller.start(record, routing_policy_of(record), cause_id=proposed)


async def until_true(holds: Callable[[], bool], timeout_s: float, what: str) -> None:
    """Wait until something holds."""
    try:
        async with asyncio.timeout(timeout_s):
            while not holds():  # noqa: ASYNC110 - what is waited for sets no event
                await asyncio.sleep(0.1)
    except TimeoutError:
        raise AssertionError(f"not within {timeout_s:g} s: {what}") from None
