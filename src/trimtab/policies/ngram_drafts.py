"""What n-gram drafting would have done over an answer that is known: drafts, and how far each agreed.

Law: verification changes no answer (each drafted token is kept only if the model would have said it), so an answer
recorded without drafting tells what any n-gram length and depth would have drafted and got accepted. At a temperature
above 0 the same holds for the sampled answer, because what was sampled is what a draft is compared with.

`NewestMatch` is llama.cpp's `ngram_simple`: the newest earlier place where the last `match` tokens stand, the one
directly before left out; what follows there, up to `depth` tokens, but no draft shorter than `match`, and none where
the text is no longer than both together. `LongestMatch` is vLLM's `ngram`: the longest suffix of `match_min` to
`match` tokens that stands earlier, at its earliest place; what follows there, up to `depth` tokens.

Failure modes: an engine that batches otherwise rounds otherwise, and an answer may take another turn there; drafts of
several answers at once do not share what they have seen.
"""

from collections.abc import Sequence
from typing import Protocol

import msgspec


class DraftCounts(msgspec.Struct, frozen=True, kw_only=True):
    """What was drafted over decode steps. `drafted[i]`, `accepted[i]`: drafts that had a token at position i + 1.

    `tokens`: output tokens of the steps, which is all but each answer's first one.
    """

    requests: int = 0
    tokens: int = 0
    steps: int = 0
    drafted: tuple[int, ...] = ()
    accepted: tuple[int, ...] = ()

    def __add__(self, other: "DraftCounts") -> "DraftCounts":
        """Return the counts of both."""
        return DraftCounts(
            requests=self.requests + other.requests,
            tokens=self.tokens + other.tokens,
            steps=self.steps + other.steps,
            drafted=_sum(self.drafted, other.drafted),
            accepted=_sum(self.accepted, other.accepted),
        )

    @property
    def drafts(self) -> int:
        """Steps that verified a draft."""
        return self.drafted[0] if self.drafted else 0

    @property
    def draft_share(self) -> float | None:
        """Part of the steps that verified a draft; None without a step."""
        return self.drafts / self.steps if self.steps else None

    @property
    def draft_tokens_mean(self) -> float | None:
        """Tokens of a draft; None where nothing was drafted."""
        return sum(self.drafted) / self.drafts if self.drafts else None

    @property
    def acceptance(self) -> float | None:
        """Accepted over drafted tokens; None where nothing was drafted."""
        return sum(self.accepted) / sum(self.drafted) if self.drafts else None

    @property
    def coverage(self) -> float | None:
        """Accepted over generated tokens; None without a token."""
        return sum(self.accepted) / self.tokens if self.tokens else None

    @property
    def tokens_per_step(self) -> float | None:
        """Output tokens of a step, the one that is no draft included; None without a step."""
        return self.tokens / self.steps if self.steps else None

    @property
    def accepted_per_draft(self) -> float | None:
        """Accepted tokens of a draft, without the bonus token; None where nothing was drafted."""
        return sum(self.accepted) / self.drafts if self.drafts else None

    @property
    def by_position(self) -> tuple[float, ...]:
        """Acceptance at positions 1, 2, ...: part of the drafts that reached so far whose token there was kept."""
        return tuple(a / d for a, d in zip(self.accepted, self.drafted, strict=True) if d)


def _sum(one: tuple[int, ...], other: tuple[int, ...]) -> tuple[int, ...]:
    longer, shorter = (one, other) if len(one) >= len(other) else (other, one)
    return tuple(
        value + (shorter[at] if at < len(shorter) else 0) for at, value in enumerate(longer)
    )


class Drafter(Protocol):
    """A rule that drafts from what stands there. One drafter follows one answer."""

    def draft(self, history: Sequence[int]) -> Sequence[int]:
        """Return the tokens drafted after `history`, which only ever grows."""
        ...


class NewestMatch:
    """llama.cpp's rule; see the module."""

    def __init__(self, match: int, depth: int) -> None:
        self._match = match
        self._depth = depth
        self._places: dict[tuple[int, ...], list[int]] = {}
        self._indexed = 1

    def draft(self, history: Sequence[int]) -> Sequence[int]:
        """See `Drafter`."""
        n, length = self._match, len(history)
        # The engine counts without the token it has just sampled.
        if length - 1 <= n + self._depth + 1:
            return ()
        for at in range(self._indexed, length - n):
            self._places.setdefault(tuple(history[at : at + n]), []).append(at)
        self._indexed = max(self._indexed, length - n)
        found = self._places.get(tuple(history[length - n :]), ())
        newest = next((at for at in reversed(found) if at < length - n - 1), None)
        if newest is None:
            return ()
        draft = history[newest + n : min(newest + n + self._depth, length - 1)]
        return draft if len(draft) >= n else ()


class LongestMatch:
    """vLLM's rule; see the module."""

    def __init__(self, match_min: int, match: int, depth: int) -> None:
        self._sizes = range(match, match_min - 1, -1)
        self._depth = depth
        self._earliest: dict[tuple[int, ...], int] = {}
        self._indexed = 0

    def draft(self, history: Sequence[int]) -> Sequence[int]:
        """See `Drafter`."""
        length = len(history)
        for end in range(self._indexed + 1, length):
            for size in self._sizes:
                if size <= end:
                    self._earliest.setdefault(tuple(history[end - size : end]), end)
        self._indexed = max(self._indexed, length - 1)
        for size in self._sizes:
            found = self._earliest.get(tuple(history[length - size :])) if size < length else None
            if found is not None:
                return history[found : found + self._depth]
        return ()


def replay(
    prompt: Sequence[int], output: Sequence[int], drafter: Drafter, *, tokens_max: int
) -> DraftCounts:
    """Return what drafting does over an answer; the engine drafts no further than `tokens_max` output tokens.

    The answer's first token comes with the prompt and is no step of these.
    """
    history = [*prompt, *output[:1]]
    at, steps = 1, 0
    drafted: list[int] = []
    accepted: list[int] = []
    while at < len(output):
        draft = drafter.draft(history)[: max(0, tokens_max - at - 1)]
        hits = agreed(draft, output[at:])
        drafted += [0] * (len(draft) - len(drafted))
        accepted += [0] * (len(draft) - len(accepted))
        for place in range(len(draft)):
            drafted[place] += 1
            accepted[place] += place < hits
        gained = min(hits + 1, len(output) - at)
        history += output[at : at + gained]
        at, steps = at + gained, steps + 1
    return DraftCounts(
        requests=1,
        tokens=max(0, len(output) - 1),
        steps=steps,
        drafted=tuple(drafted),
        accepted=tuple(accepted),
    )


def agreed(one: Sequence[int], other: Sequence[int]) -> int:
    """Return how many tokens agree from the start."""
    for at, (a, b) in enumerate(zip(one, other, strict=False)):
        if a != b:
            return at
    return min(len(one), len(other))
