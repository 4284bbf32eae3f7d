"""A model server of somebody else on loopback: its engine's pages, its API, and what may go wrong with it."""

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

from fake_engine import DiesError, FakeEngine, Seen, whole

from trimtab.core.served import EngineKind

STARTED = "process_start_time_seconds"


@dataclass
class Rank:
    """What one rank of an engine is doing."""

    running: int = 0
    waiting: int = 0
    kv: float = 0.0


@dataclass
class FakeServer(FakeEngine):
    """Answers like one engine: /health, /v1/models, /metrics, the engine's own page, and completions."""

    engine: EngineKind = EngineKind.VLLM
    model: str = "org/model-8b"
    ranks: list[Rank] = field(default_factory=lambda: [Rank()])
    started_at_s: float = 1_700_000_000.0
    prompt_tokens_total: float = 1000.0
    key: str = ""
    health: int = 200
    lost_pages: set[str] = field(default_factory=set)
    hanging_pages: set[str] = field(default_factory=set)
    prefix: str = ""

    def __post_init__(self) -> None:
        self.script = self.answer

    async def answer(self, seen: Seen) -> AsyncIterator[bytes]:
        """Serve a page or a completion."""
        path = seen.path.partition("?")[0].removeprefix(self.prefix)
        if self.health == 0:
            raise DiesError
        if path in self.hanging_pages:
            await asyncio.sleep(3600)
        if self.key and path != "/health" and seen.headers.get("authorization") != self.key:
            yield whole(401, b'{"error":{"message":"no"}}')
        elif path == "/health":
            yield whole(self.health, b"{}")
        elif path in self.lost_pages:
            yield whole(404, b"{}")
        elif seen.method == "GET":
            body = self.pages().get(path)
            yield whole(404, b"{}") if body is None else whole(200, body)
        else:
            async for piece in self.completion(seen):
                yield piece

    def pages(self) -> dict[str, bytes]:
        """Return the pages by path."""
        own = {
            EngineKind.VLLM: ("/version", {"version": "0.32.0"}),
            EngineKind.SGLANG: (
                "/get_server_info",
                {"version": "0.5.9", "max_running_requests": 48, "context_length": 32768},
            ),
            EngineKind.LLAMACPP: (
                "/props",
                {
                    "total_slots": 3,
                    "build_info": "b11549-abc",
                    "default_generation_settings": {"n_ctx": 4096},
                },
            ),
            EngineKind.TGI: (
                "/info",
                {
                    "version": "3.3.4",
                    "model_id": self.model,
                    "max_concurrent_requests": 96,
                    "max_total_tokens": 8192,
                },
            ),
        }.get(self.engine)
        found = {"/v1/models": as_json(self.models()), "/metrics": self.metrics().encode()}
        if own is not None:
            found[own[0]] = as_json(own[1])
        return found

    def models(self) -> dict[str, Any]:
        """Return the list of models as the engine writes it."""
        one: dict[str, Any] = {"id": self.model, "object": "model", "owned_by": "someone"}
        if self.engine is EngineKind.VLLM:
            one |= {"owned_by": "vllm", "max_model_len": 16384}
        return {"object": "list", "data": [one]}

    def metrics(self) -> str:
        """Return the page of metrics in the engine's names."""
        lines: list[str] = [f"{STARTED} {self.started_at_s}"]
        for number, rank in enumerate(self.ranks):
            lines += _lines(self.engine, self.model, number, rank, self.prompt_tokens_total)
        return "\n".join(lines) + "\n"


def _lines(
    engine: EngineKind, model: str, number: int, rank: Rank, prompt_tokens: float
) -> list[str]:
    match engine:
        case EngineKind.VLLM:
            labels = f'{{engine="{number}",model_name="{model}"}}'
            return [
                f"vllm:num_requests_running{labels} {rank.running}",
                f"vllm:num_requests_waiting{labels} {rank.waiting}",
                f"vllm:kv_cache_usage_perc{labels} {rank.kv}",
                f"vllm:prompt_tokens_total{labels} {prompt_tokens}",
            ]
        case EngineKind.SGLANG:
            labels = f'{{model_name="{model}"}}'
            return [
                f"sglang:num_running_reqs{labels} {rank.running}",
                f"sglang:num_queue_reqs{labels} {rank.waiting}",
                f"sglang:token_usage{labels} {rank.kv}",
                f"sglang:prompt_tokens_total{labels} {prompt_tokens}",
            ]
        case EngineKind.LLAMACPP:
            return [
                f"llamacpp:requests_processing {rank.running}",
                f"llamacpp:requests_deferred {rank.waiting}",
                f"llamacpp:prompt_tokens_total {prompt_tokens}",
            ]
        case EngineKind.TGI:
            return [
                f"tgi_batch_current_size {rank.running}",
                f"tgi_queue_size {rank.waiting}",
                f"tgi_request_success {prompt_tokens}",
            ]
        case _:
            return ["unknown_thing 1"]


def as_json(value: Any) -> bytes:
    """Return a value as bytes of JSON."""
    return json.dumps(value).encode()
