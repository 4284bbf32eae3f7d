"""A fake engine with a prefix cache that can be asked what real ones are suspected of: keeping salts apart, or not."""

import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

from fake_engine import FakeEngine, Seen

TOKEN_BYTES = 4
BLOCK_TOKENS = 4


@dataclass
class CachingEngine(FakeEngine):
    """Holds every prompt it was asked, in blocks, under the salt it was asked with.

    `salted`: whether the salt is part of the key; `caching`: whether anything is found again; `reports`: whether
    cached tokens are told.
    """

    salted: bool = True
    caching: bool = True
    reports: bool = True
    held: set[tuple[str, str]] = field(default_factory=set)

    async def completion(self, seen: Seen) -> AsyncIterator[bytes]:
        """Look the prompt up, keep it, answer."""
        setattr(seen, "cached", self._looked_up(seen))  # noqa: B010 - a mark on the request alone
        async for part in super().completion(seen):
            yield part

    def _looked_up(self, seen: Seen) -> int:
        salt = str(seen.json.get("cache_salt", "")) if self.salted else ""
        text = text_of(seen)
        size = BLOCK_TOKENS * TOKEN_BYTES
        prefixes = [(salt, text[:end]) for end in range(size, len(text) + 1, size)]
        found = 0
        for prefix in prefixes:
            if prefix not in self.held:
                break
            found += BLOCK_TOKENS
        self.held.update(prefixes)
        return found if self.caching else 0

    def usage(self, seen: Seen) -> dict[str, Any]:
        prompt = len(text_of(seen)) // TOKEN_BYTES
        told: dict[str, Any] = {
            "prompt_tokens": prompt,
            "completion_tokens": len(self.words),
            "total_tokens": prompt + len(self.words),
        }
        if self.reports:
            told["prompt_tokens_details"] = {"cached_tokens": getattr(seen, "cached", 0)}
        return told

    def timings(self, seen: Seen) -> dict[str, Any]:
        told = super().timings(seen)
        told["cache_n"] = getattr(seen, "cached", 0)
        told["prompt_n"] = len(text_of(seen)) // TOKEN_BYTES - told["cache_n"]
        if not self.reports:
            del told["cache_n"], told["prompt_n"]
        return told


def text_of(seen: Seen) -> str:
    """Return a chat's prompt as the cache keys it: roles and contents."""
    messages = json.loads(seen.body)["messages"]
    return "".join(f"<{message['role']}>{message['content']}" for message in messages)
