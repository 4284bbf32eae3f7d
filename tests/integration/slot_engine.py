"""A fake llama.cpp with slots whose contents are saved to files and restored from them, and with faults to order.

A token is a word. The answer is made of the prompt alone, so that a wrong prompt would show in the text.
"""

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from fake_engine import STREAM_HEAD, DiesError, FakeEngine, Seen, chunk, chunked, sse, whole


class Fault(StrEnum):
    """What goes wrong, once each time it is ordered."""

    PREFILL_REFUSED = "prefill_refused"
    PREFILL_DIES = "prefill_dies"
    PREFILL_HANGS = "prefill_hangs"
    SAVE_REFUSED = "save_refused"
    SAVE_DIES = "save_dies"
    SAVE_HANGS = "save_hangs"
    SAVE_SHORT = "save_short"
    RESTORE_REFUSED = "restore_refused"
    RESTORE_DIES = "restore_dies"
    RESTORE_HANGS = "restore_hangs"
    RESTORE_SHORT = "restore_short"
    RESTORE_FORGOTTEN = "restore_forgotten"
    SLOTS_BUSY = "slots_busy"
    HANDED_REFUSED = "handed_refused"
    HANDED_DIES = "handed_dies"
    DECODE_DIES = "decode_dies"
    STREAM_DIES = "stream_dies"


@dataclass
class SlotState:
    tokens: list[str] = field(default_factory=list)
    busy: bool = False


class SlotEngine(FakeEngine):
    """Serves completions from slots. `faults`: what goes wrong next, in any order."""

    def __init__(self, folder: Path, *, slots: int = 2, context: int = 4096) -> None:
        super().__init__()
        self.folder = folder
        self.context = context
        self.slots = [SlotState() for _ in range(slots)]
        self.faults: list[Fault] = []
        self.computed: list[int] = []
        """Tokens that each completion computed."""
        self.gap_s = 0.0
        self.save_s = 0.0
        self.own_ms: float | None = None
        self.said_when: tuple[str, ...] = ()
        """Header lines of its refusals."""
        self.script = self.serve

    def take(self, *faults: Fault) -> bool:
        """Say whether one of these is due, and take it off.

        A death stays due, because a dropped request is repeated.
        """
        for fault in faults:
            if fault in self.faults:
                if not fault.endswith("_dies"):
                    self.faults.remove(fault)
                return True
        return False

    async def serve(self, seen: Seen) -> AsyncIterator[bytes]:
        if seen.path == "/slots":
            yield whole(200, self._listed())
        elif seen.path.startswith("/slots/"):
            yield await self._slot(seen)
        else:
            async for piece in self._complete(seen):
                yield piece

    def _listed(self) -> bytes:
        full = Fault.SLOTS_BUSY in self.faults
        return json.dumps(
            [
                {
                    "id": number,
                    "n_ctx": self.context,
                    "is_processing": slot.busy or full,
                    "n_prompt_tokens": len(slot.tokens),
                }
                for number, slot in enumerate(self.slots)
            ]
        ).encode()

    async def _slot(self, seen: Seen) -> bytes:
        path, _, action = seen.path.partition("?action=")
        slot, name = self.slots[int(path.rpartition("/")[2])], seen.json["filename"]
        if action == "save":
            return await self._save(slot, self.folder / name)
        return await self._restore(slot, self.folder / name)

    async def _save(self, slot: SlotState, path: Path) -> bytes:
        if self.take(Fault.SAVE_REFUSED):
            return whole(400, b'{"error":{"message":"no"}}')
        if self.take(Fault.SAVE_DIES):
            written(path, [])
            raise DiesError
        if self.take(Fault.SAVE_HANGS):
            await asyncio.sleep(3600)
        await asyncio.sleep(self.save_s)
        kept = slot.tokens[:-3] if self.take(Fault.SAVE_SHORT) else slot.tokens
        said: dict[str, Any] = {"n_saved": len(kept), "n_written": written(path, kept)}
        if self.own_ms is not None:
            said["timings"] = {"save_ms": self.own_ms}
        return whole(200, json.dumps(said).encode())

    async def _restore(self, slot: SlotState, path: Path) -> bytes:
        if self.take(Fault.RESTORE_REFUSED):
            return whole(400, b'{"error":{"message":"no"}}')
        if self.take(Fault.RESTORE_DIES):
            raise DiesError
        if self.take(Fault.RESTORE_HANGS):
            await asyncio.sleep(3600)
        tokens, size = found(path)
        told = len(tokens)
        if self.take(Fault.RESTORE_SHORT):
            told -= 5
        slot.tokens = [] if self.take(Fault.RESTORE_FORGOTTEN) else tokens
        said: dict[str, Any] = {"n_restored": told, "n_read": size}
        if self.own_ms is not None:
            said["timings"] = {"restore_ms": self.own_ms}
        return whole(200, json.dumps(said).encode())

    async def _complete(self, seen: Seen) -> AsyncIterator[bytes]:
        body = seen.json
        ahead = body.get("max_tokens") == 1 and not body.get("stream")
        if ahead and self.take(Fault.PREFILL_REFUSED):
            yield whole(503, b'{"error":{"message":"loading"}}', self.said_when)
            return
        if ahead and self.take(Fault.PREFILL_DIES):
            raise DiesError
        if ahead and self.take(Fault.PREFILL_HANGS):
            await asyncio.sleep(3600)
        if not ahead and "id_slot" in body:
            if self.take(Fault.HANDED_REFUSED):
                yield whole(500, b'{"error":{"message":"KV cache is full"}}')
                return
            if self.take(Fault.HANDED_DIES):
                raise DiesError
        if not ahead and self.take(Fault.DECODE_DIES):
            raise DiesError
        prompt = prompt_words(body)
        slot = self.slots[body["id_slot"]] if "id_slot" in body else self._choose(prompt)
        slot.busy = True
        try:
            async for piece in self._answered(body, prompt, slot):
                yield piece
        finally:
            slot.busy = False

    def _choose(self, prompt: list[str]) -> SlotState:
        idle = [slot for slot in self.slots if not slot.busy] or self.slots
        return max(idle, key=lambda slot: common(slot.tokens, prompt))

    async def _answered(
        self, body: dict[str, Any], prompt: list[str], slot: SlotState
    ) -> AsyncIterator[bytes]:
        cached = min(common(slot.tokens, prompt), len(prompt) - 1)
        self.computed.append(len(prompt) - cached)
        slot.tokens = list(prompt)
        await asyncio.sleep(self.pause_s)
        words = answer_words(prompt)[: body.get("max_tokens", 8)]
        usage = {
            "prompt_tokens": len(prompt),
            "completion_tokens": len(words),
            "prompt_tokens_details": {"cached_tokens": cached},
        }
        timings = {"cache_n": cached, "prompt_n": len(prompt) - cached, "prompt_ms": 2.0}
        if not body.get("stream"):
            message = {"role": "assistant", "content": " ".join(words)}
            choice = {"index": 0, "finish_reason": "stop", "message": message}
            said = {"choices": [choice], "usage": usage, "timings": timings}
            yield whole(200, json.dumps(said).encode())
            return
        yield STREAM_HEAD
        for at, word in enumerate(words):
            if at == 3 and self.take(Fault.STREAM_DIES):
                raise DiesError
            yield chunked(sse(chunk({"content": f"{word} "})))
            await asyncio.sleep(self.gap_s)
        yield chunked(sse(chunk({}, finish="stop")))
        yield chunked(sse(chunk({}, choices=[]) | {"usage": usage, "timings": timings}))
        yield chunked(b"data: [DONE]\n\n")
        yield b"0\r\n\r\n"


def written(path: Path, tokens: list[str]) -> int:
    """Write a slot's file and return its bytes."""
    path.write_text(json.dumps(tokens))
    return path.stat().st_size


def found(path: Path) -> tuple[list[str], int]:
    """Return what a slot's file holds, and its bytes."""
    return json.loads(path.read_text()), path.stat().st_size


def prompt_words(body: dict[str, Any]) -> list[str]:
    return " ".join(one["content"] for one in body["messages"]).split()


def answer_words(prompt: list[str]) -> list[str]:
    """Return the answer to a prompt: eight words that no other prompt gives."""
    digest = hashlib.sha256(" ".join(prompt).encode()).hexdigest()
    return [digest[at : at + 4] for at in range(0, 32, 4)]


def common(one: list[str], other: list[str]) -> int:
    """Return how many first tokens are equal."""
    count = 0
    for left, right in zip(one, other, strict=False):
        if left != right:
            break
        count += 1
    return count
