"""The KV blocks of one simulated replica: shared by prefix, reused, and evicted least recently used first.

A block is free, held (by one or more running requests), or kept: nobody runs with it, but a later prompt with the
same beginning may take it again. A request's blocks have no name until they are filled, so that nobody finds what was
never computed; two that fill the same block at once count as one, where an engine keeps both copies. Kept blocks leave
in the order in which they were last used, tails first, so that a block that is there has all before it. This is the
rule of vLLM's block pool; what a request generated is kept without a name, which errs on the side of less reuse.
"""

from collections import OrderedDict
from collections.abc import Sequence

from trimtab.sim.holders import Holders


class BlockPool:
    """Counts blocks; `kept` are those that may be taken again or evicted. All sizes are in blocks."""

    __slots__ = ("_held", "_kept", "blocks", "evictions", "free", "holders")

    def __init__(self, blocks: int) -> None:
        """Take how many blocks there are; raises ValueError below 1."""
        if blocks < 1:
            raise ValueError(f"a replica needs at least one block of KV, got {blocks}")
        self.blocks = blocks
        self.free = blocks
        self.evictions = 0
        self.holders = Holders()
        """Who counts what is held; of a fleet the same one in all pools, set before the first block comes."""
        self._held: dict[int, int] = {}
        self._kept: OrderedDict[int, None] = OrderedDict()

    @property
    def available(self) -> int:
        """Blocks that a request can get: free ones and kept ones."""
        return self.free + len(self._kept)

    @property
    def used_share(self) -> float:
        """Part (0 to 1) of the blocks that running requests hold."""
        return 1.0 - self.available / self.blocks

    def match(self, hashes: Sequence[int]) -> int:
        """Return how many of the first blocks are there."""
        held, kept = self._held, self._kept
        found = 0
        for block in hashes:
            if block not in held and block not in kept:
                break
            found += 1
        return found

    def room_for(self, hashes: Sequence[int], matched: int, blocks: int) -> bool:
        """Say whether a request of `blocks` blocks fits, of which `matched` named ones are there."""
        kept = self._kept
        taken_back = sum(1 for block in hashes[:matched] if block in kept)
        return blocks - matched <= self.free + len(kept) - taken_back

    def hold(self, hashes: Sequence[int], private: int) -> None:
        """Give a request named blocks, all of which are there, and `private` unnamed ones."""
        held, kept = self._held, self._kept
        for block in hashes:
            count = held.get(block)
            if count is None:
                del kept[block]
                held[block] = 1
            else:
                held[block] = count + 1
        self._take(private)

    def name(self, hashes: Sequence[int]) -> None:
        """Name unnamed blocks of a request, as they are filled. One that was there already is shared instead."""
        held, kept = self._held, self._kept
        for block in hashes:
            count = held.get(block)
            if count is None:
                held[block] = 1
                if block in kept:
                    del kept[block]
                    self.free += 1
                else:
                    self.holders.came(block)
            else:
                held[block] = count + 1
                self.free += 1

    def grow(self, blocks: int) -> None:
        """Give a running request more unnamed blocks; the caller has made sure that they are available."""
        self._take(blocks)

    def release(self, hashes: Sequence[int], private: int) -> None:
        """Take a request's blocks back: named ones are kept when nobody else holds them, the tail leaving first."""
        held, kept = self._held, self._kept
        for block in reversed(hashes):
            count = held[block]
            if count > 1:
                held[block] = count - 1
            else:
                del held[block]
                kept[block] = None
        self.free += private

    def clear(self) -> None:
        """Forget everything, as a restart does."""
        self.holders.left(self._held)
        self.holders.left(self._kept)
        self._held.clear()
        self._kept.clear()
        self.free = self.blocks

    def _take(self, blocks: int) -> None:
        short = blocks - self.free
        if short > 0:
            kept = self._kept
            assert short <= len(kept), "blocks were promised that are not there"
            self.holders.left([kept.popitem(last=False)[0] for _ in range(short)])
            self.evictions += short
            self.free += short
        self.free -= blocks
