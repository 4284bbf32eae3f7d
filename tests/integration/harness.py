"""A gateway in front of fake engines, with everything it wrote and a client to ask it."""

import asyncio
import json
import random
import time
from dataclasses import dataclass, field
from typing import Any, Self

import aiohttp
from fake_engine import FakeEngine
from yarl import URL

from trimtab.core.config import GatewayConfig
from trimtab.core.cost import CostModel
from trimtab.core.events import AnyEvent, RequestServed
from trimtab.core.prefix import BlockHasher, PrefixIndex
from trimtab.core.record import RequestRecord
from trimtab.core.types import ReplicaState, Role
from trimtab.engines.llamacpp import LlamaCppFormat
from trimtab.policies.loadstate import LoadState
from trimtab.policies.router import Router
from trimtab.policies.routing import build_policies
from trimtab.runtime.gateway import Gateway
from trimtab.runtime.secret import Secret

CHAT = "/v1/chat/completions"
SECRET = Secret(bytes(range(32)))
BLOCK_BYTES = 16
COST = CostModel(
    prefill_base_ms=1.0,
    prefill_ms_per_token=10.0,
    step_base_ms=20.0,
    step_ms_per_stream=5.0,
    prefill_samples=10,
    step_samples=10,
    source="test",
)


class RealClock:
    def wall_s(self) -> float:
        return time.time()

    def mono_s(self) -> float:
        return time.monotonic()


@dataclass
class ListSink:
    """Keeps events in a list."""

    events: list[AnyEvent] = field(default_factory=list)
    healthy: bool = True

    def append(self, event: AnyEvent, *, cause_id: str | None, durable: bool = False) -> str:
        self.events.append(event)
        return str(len(self.events))

    async def flush(self) -> None:
        return


@dataclass
class Reply:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Harness:
    """Use as a context: everything in it is closed at its end, and nothing may be left over."""

    def __init__(self, *engines: FakeEngine, **settings: Any) -> None:
        self.engines = engines
        self.load = LoadState()
        self.router = Router(
            self.load,
            PrefixIndex(10_000, BLOCK_BYTES),
            build_policies(COST),
            random.Random(7),
        )
        self.sink = ListSink()
        self.records: list[RequestRecord] = []
        self._extra = {
            name: settings.pop(name) for name in ("extra_routes", "admin_token") if name in settings
        }
        make_guard = settings.pop("guard", None)
        if make_guard is not None:
            self._extra["guard"] = make_guard(self.load)
        self.config = GatewayConfig(**({"port": 0} | settings))
        self.gateway = Gateway(
            self.config,
            self.router,
            LlamaCppFormat(),
            self.sink,
            RealClock(),
            hasher=BlockHasher(b"key", BLOCK_BYTES),
            secret=SECRET,
            model="fake-model",
            on_record=self.records.append,
            **self._extra,
        )

    async def __aenter__(self) -> Self:
        for number, engine in enumerate(self.engines):
            self.set_replica(f"r{number}", await engine.start())
        self.port = await self.gateway.start()
        self.url = f"http://127.0.0.1:{self.port}"
        self.client = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=20))
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.client.close()
        await self.gateway.stop()
        for engine in self.engines:
            await engine.stop()

    def set_replica(
        self,
        replica: str,
        url: str,
        state: ReplicaState = ReplicaState.READY,
        *,
        speculating: bool = False,
    ) -> None:
        self.load.set_replica(
            id=replica,
            url=url,
            role=Role.MIXED,
            revision="fake-1",
            state=state,
            slots=4,
            speculating=speculating,
        )

    async def post(
        self, body: bytes | dict[str, Any] | None = None, path: str = CHAT, **headers: str
    ) -> Reply:
        """Send a request and read the answer to its end."""
        said = {name.replace("_", "-"): value for name, value in headers.items()}
        async with self.client.post(
            URL(self.url + path, encoded=True), data=as_body(body), headers=said
        ) as response:
            data = await response.read()
            return Reply(response.status, {k.lower(): v for k, v in response.headers.items()}, data)

    async def get(self, path: str) -> Reply:
        async with self.client.get(self.url + path) as response:
            data = await response.read()
            return Reply(response.status, {k.lower(): v for k, v in response.headers.items()}, data)

    async def record(self, at: int = -1, *, of: int = 1) -> RequestRecord:
        """Return a record once there are as many as expected."""
        await until(lambda: len(self.records) >= of)
        return self.records[at]

    @property
    def served(self) -> list[RequestServed]:
        return [event for event in self.sink.events if isinstance(event, RequestServed)]


def as_body(body: bytes | dict[str, Any] | None) -> bytes:
    return body if isinstance(body, bytes) else json.dumps(chat() | (body or {})).encode()


def chat(text: str = "What is a trim tab, and who needs one?", **fields: Any) -> dict[str, Any]:
    """Return a chat body with a system prompt."""
    messages = [
        {"role": "system", "content": "You answer in one sentence."},
        {"role": "user", "content": text},
    ]
    return {"model": "default", "messages": messages, "stream": True} | fields


async def until(holds: Any, timeout_s: float = 3.0) -> None:
    """Wait until something holds; raises TimeoutError."""
    async with asyncio.timeout(timeout_s):
        while not holds():  # noqa: ASYNC110 - what is waited for sets no event
            await asyncio.sleep(0.002)
