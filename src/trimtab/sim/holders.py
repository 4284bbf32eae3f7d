"""What is held anywhere in a simulated fleet: the truth that no gateway knows, for figures alone.

A block that a replica holds has all before it there (`sim.blocks`). So the longest beginning that any replica holds is
the longest one of which every block is held somewhere, and is found by bisection, however many replicas there are.
"""

import bisect
from collections.abc import Iterable, Sequence


class Holders:
    """Counts, for each named block, the replicas that hold it."""

    __slots__ = ("_counts",)

    def __init__(self) -> None:
        """Begin with nothing held."""
        self._counts: dict[int, int] = {}

    def came(self, block: int) -> None:
        """Note that one more replica holds a block."""
        self._counts[block] = self._counts.get(block, 0) + 1

    def left(self, blocks: Iterable[int]) -> None:
        """Note that a replica holds blocks no more; raises KeyError for one that nobody held."""
        counts = self._counts
        for block in blocks:
            count = counts[block]
            if count > 1:
                counts[block] = count - 1
            else:
                del counts[block]

    def longest(self, hashes: Sequence[int]) -> int:
        """Return how many of a prompt's first blocks some replica holds."""
        counts = self._counts
        return bisect.bisect_left(hashes, True, key=lambda block: block not in counts)
