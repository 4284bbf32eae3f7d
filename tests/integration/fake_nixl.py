"""Two vLLM servers of somebody else that hand KV over by NIXL, without NIXL: what they say of it, and what goes wrong.

A `FakeNixl` keeps parcels by request id, as vLLM's prefill side does, and fetches those of its `peers` once, as its
decode side does. Tokens are the words of the prompt. What it computes is counted, and what it holds can be looked at.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

from fake_engine import DiesError, Seen, chunk, chunked, sse, whole
from fake_served import FakeServer

STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\nServer: uvicorn\r\nContent-Type: text/event-stream\r\n"
    b"Transfer-Encoding: chunked\r\n\r\n"
)
BYTES_PER_TOKEN = 23_040
LOST = "KV load failure"


@dataclass
class FakeNixl(FakeServer):
    """Serves like a vLLM with a NIXL connector. `prefill_fault`, `fetch_fault`: what goes wrong next, by name.

    `prefill_fault`: "refuse" (500), "die" (the connection is reset), "hang", "no_kv" (an answer that keeps nothing),
    "garbage". `fetch_fault`: "refuse" (500 before an answer), "event" (an error event first), "at_once"
    (the same, and all of the stream after its head in one piece), "short" (200, the prompt
    computed again), "die", "full" (503), "hang" (no byte before `may_fetch` is set).
    """

    peers: list["FakeNixl"] = field(default_factory=list)
    prefill_fault: str = ""
    fetch_fault: str = ""
    kept: dict[str, int] = field(default_factory=dict)
    cached: set[str] = field(default_factory=set)
    computed_tokens: int = 0
    prefills: int = 0
    fetched: list[int] = field(default_factory=list)
    waiting: int = 0
    may_fetch: asyncio.Event = field(default_factory=asyncio.Event)
    failed: int = 0
    has_connector: bool = True

    def metrics(self) -> str:
        """Return the page, with counters of hand-overs where there is a connector."""
        labels = f'{{engine="0",model_name="{self.model}"}}'
        lines = [
            'vllm:cache_config_info{engine="0",block_size="16",cache_dtype="auto"} 1.0',
        ]
        if self.has_connector:
            count, tokens = len(self.fetched), sum(self.fetched)
            spent = 1e-5 * tokens
            for name, total in (
                ("nixl_xfer_time_seconds", spent),
                ("nixl_post_time_seconds", spent),
                ("nixl_bytes_transferred", BYTES_PER_TOKEN * tokens),
                ("nixl_num_descriptors", 30 * count),
            ):
                lines += [
                    f"# TYPE vllm:{name} histogram",
                    f'vllm:{name}_bucket{{engine="0",le="+Inf",model_name="{self.model}"}} {count}',
                    f"vllm:{name}_sum{labels} {total}",
                    f"vllm:{name}_count{labels} {count}",
                ]
            lines += [
                f"vllm:nixl_num_failed_transfers_total{labels} {self.failed}",
                f"vllm:nixl_num_kv_expired_reqs_total{labels} 0",
            ]
        return super().metrics() + "\n".join(lines) + "\n"

    async def completion(self, seen: Seen) -> AsyncIterator[bytes]:
        """Prefill for another, or answer, fetching KV first where the request names some."""
        params = seen.json.get("kv_transfer_params") or {}
        if params.get("do_remote_decode"):
            async for piece in self._prefill(seen):
                yield piece
            return
        tokens, cached = len(prompt_of(seen).split()), 0
        if prompt_of(seen) in self.cached:
            cached = tokens - 1
        elif params.get("do_remote_prefill"):
            peer = next((one for one in self.peers if one.url == params["remote_engine_id"]), None)
            there = None if peer is None else peer.kept.pop(params["remote_request_id"], None)
            fault = self.fetch_fault
            if there is None or fault in {"refuse", "event", "at_once"}:
                self.failed += 1
                async for piece in _failed(seen, fault):
                    yield piece
                return
            if fault == "die":
                raise DiesError
            if fault == "hang":
                self.waiting += 1
                await self.may_fetch.wait()
            if fault == "full":
                yield whole(503, b'{"error":{"message":"no room"}}')
                return
            if fault != "short":
                cached = there - 1
                self.fetched.append(there)
        self.cached.add(prompt_of(seen))
        self.computed_tokens += tokens - cached
        async for piece in self._answer_text(seen, tokens, cached):
            yield piece

    async def _prefill(self, seen: Seen) -> AsyncIterator[bytes]:
        self.prefills += 1
        match self.prefill_fault:
            case "refuse":
                yield whole(500, b'{"error":{"message":"no"}}')
                return
            case "die":
                raise DiesError
            case "hang":
                await asyncio.sleep(3600)
            case "garbage":
                yield whole(200, b"{]")
                return
            case _:
                pass
        tokens = len(prompt_of(seen).split())
        cached = tokens - 1 if prompt_of(seen) in self.cached else 0
        self.cached.add(prompt_of(seen))
        self.computed_tokens += tokens - cached
        name = f"cmpl-{self.prefills}"
        answer: dict[str, Any] = {"usage": usage(tokens, cached, 1), "kv_transfer_params": None}
        if self.has_connector and self.prefill_fault != "no_kv":
            self.kept[name] = tokens
            answer["kv_transfer_params"] = {
                "do_remote_prefill": True,
                "do_remote_decode": False,
                "remote_engine_id": self.url,
                "remote_request_id": name,
                "remote_block_ids": [[1, 2]],
                "remote_host": "127.0.0.1",
                "remote_port": 5600,
                "tp_size": 1,
                "remote_num_tokens": tokens,
            }
        yield whole(200, json.dumps(answer | {"choices": []}).encode())

    async def _answer_text(self, seen: Seen, tokens: int, cached: int) -> AsyncIterator[bytes]:
        """Say the prompt's first word back, then the usual words: another prompt gets another text."""
        words = (prompt_of(seen).split()[0], *self.words)
        told = usage(tokens, cached, len(words))
        if not seen.json.get("stream"):
            await asyncio.sleep(self.pause_s * len(words))
            said = {"message": {"role": "assistant", "content": "".join(words)}}
            choice = {**said, "index": 0, "finish_reason": "stop"}
            yield whole(200, json.dumps({"choices": [choice], "usage": told}).encode())
            return
        yield STREAM_HEAD
        for at, word in enumerate(words):
            await asyncio.sleep(self.pause_s if at else 0.0)
            yield chunked(sse(chunk({"content": word})))
        yield chunked(sse(chunk({}, finish="stop")))
        if (seen.json.get("stream_options") or {}).get("include_usage"):
            yield chunked(sse({"choices": [], "usage": told}))
        yield chunked(b"data: [DONE]\n\n") + b"0\r\n\r\n"


def prompt_of(seen: Seen) -> str:
    """Return the text of a chat's messages."""
    return " ".join(str(message["content"]) for message in seen.json["messages"])


def usage(prompt: int, cached: int, output: int) -> dict[str, Any]:
    """Return token counts as vLLM tells them."""
    return {
        "prompt_tokens": prompt,
        "completion_tokens": output,
        "prompt_tokens_details": {"cached_tokens": cached},
    }


async def _failed(seen: Seen, fault: str) -> AsyncIterator[bytes]:
    error = json.dumps({"error": {"message": LOST, "type": "InternalServerError", "code": 500}})
    if seen.json.get("stream") and fault in {"event", "at_once"}:
        yield STREAM_HEAD
        rest = [
            # As vLLM's chats do: who speaks is said before it is known that nothing can be.
            chunked(sse(chunk({"role": "assistant", "content": ""}))),
            chunked(f"data: {error}\n\n".encode()),
            chunked(b"data: [DONE]\n\n") + b"0\r\n\r\n",
        ]
        if fault == "at_once":
            # The head is read before the rest comes.
            await asyncio.sleep(0.01)
            rest = [b"".join(rest)]
        for piece in rest:
            yield piece
        return
    yield whole(500, error.encode())
