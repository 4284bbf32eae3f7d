"""Log loss of texts, token by token, cut into blocks that are compared in pairs.

A text is scored by forcing its tokens one after the other through an arm's own serving path, so that the kernels and
the KV cache that users meet are what is judged. Units: nats per token.
"""

import itertools
import math
from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

BLOCK_TOKENS: Final = 32
"""Positions of a block: neighbours share a context, so that single tokens would feign more evidence than there is."""


class TextScore(msgspec.Struct, frozen=True, kw_only=True):
    """One text under one arm. `losses`: -log p of each scored token, in order; the first stands at `first_position`."""

    kind: str
    name: str
    first_position: int
    losses: tuple[float, ...]

    @property
    def mean(self) -> float:
        """Nats per token."""
        return math.fsum(self.losses) / len(self.losses)


class LossBlock(msgspec.Struct, frozen=True):
    """Mean loss of a block of neighbours. `kind`: of its text; `position`: where its first token stands."""

    kind: str
    text: str
    position: int
    loss: float


def blocks_of(scores: Iterable[TextScore], *, tokens: int = BLOCK_TOKENS) -> tuple[LossBlock, ...]:
    """Cut scored texts into whole blocks; a shorter rest is left out."""
    found: list[LossBlock] = []
    for score in scores:
        for at in range(0, len(score.losses) - tokens + 1, tokens):
            part = score.losses[at : at + tokens]
            found.append(
                LossBlock(
                    score.kind, score.name, score.first_position + at, math.fsum(part) / tokens
                )
            )
    return tuple(found)


class CutOfLoss(msgspec.Struct, frozen=True):
    """Blocks that are judged together: a kind of text, and a range of positions (tokens before the scored one)."""

    kind: str
    low: int = 0
    high: int | None = None

    @property
    def name(self) -> str:
        """Such as `code` or `code 512-1024`."""
        if self.low == 0 and self.high is None:
            return self.kind
        return f"{self.kind} {self.low}-{'' if self.high is None else self.high}"

    def holds(self, block: LossBlock) -> bool:
        """Whether a block belongs to the cut."""
        inside = self.low <= block.position and (self.high is None or block.position < self.high)
        return block.kind == self.kind and inside


def cuts_of(blocks: Sequence[LossBlock], edges: Sequence[int]) -> tuple[CutOfLoss, ...]:
    """Return each kind of text as a whole, and where its blocks spread over several ranges of position, each range."""
    cuts: list[CutOfLoss] = []
    bounds = [0, *edges, None]
    for kind in dict.fromkeys(block.kind for block in blocks):
        cuts.append(CutOfLoss(kind))
        ranges = [CutOfLoss(kind, low or 0, high) for low, high in itertools.pairwise(bounds)]
        filled = [cut for cut in ranges if any(cut.holds(block) for block in blocks)]
        cuts += filled if len(filled) > 1 else []
    return tuple(cuts)
