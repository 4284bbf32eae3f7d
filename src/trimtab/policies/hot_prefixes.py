"""Which beginnings of prompts are hot: shared by many requests in flight at once.

A beginning is looked at where it is 1, 2, 4, 8... blocks long, so a prompt is counted in a dozen places whatever its
length, and a hot beginning is found at no less than half of its length. Counts are of requests in flight, so nothing
has to be forgotten with time, and memory is bounded by what is in flight.
"""

from typing import Final

IN_FLIGHT_MIN: Final = 8
"""So many requests in flight that begin alike, the new one not counted, make a beginning hot."""

TOKENS_MIN: Final = 256
"""Shorter beginnings are computed faster than it is worth to place them."""


class HotPrefixes:
    """Counts of requests in flight by the hashes of their beginnings."""

    def __init__(self) -> None:
        self._counts: dict[int, int] = {}

    def began(self, blocks: tuple[int, ...]) -> None:
        """Count a request that was sent on its way."""
        counts = self._counts
        depth, length = 1, len(blocks)
        while depth <= length:
            head = blocks[depth - 1]
            counts[head] = counts.get(head, 0) + 1
            depth += depth

    def ended(self, blocks: tuple[int, ...]) -> None:
        """Take a counted request away again."""
        counts = self._counts
        depth, length = 1, len(blocks)
        while depth <= length:
            head = blocks[depth - 1]
            left = counts[head] - 1
            if left:
                counts[head] = left
            else:
                del counts[head]
            depth += depth

    def hot_blocks(self, blocks: tuple[int, ...]) -> int:
        """Return how many of a prompt's first blocks are hot, 0 for none."""
        counts, hot = self._counts, 0
        depth, length = 1, len(blocks)
        while depth <= length and counts.get(blocks[depth - 1], 0) >= IN_FLIGHT_MIN:
            hot = depth
            depth += depth
        return hot
