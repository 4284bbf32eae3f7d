"""The blocks of replicas with paged KV (vLLM, SGLang) as the prefix index models them.

A block hangs on the one before it in its prompt. Blocks leave in least-recently-used order, tails first, so only a
leaf, on which nothing hangs, can leave next, and a leaf was used no later than all that it hangs on: of each replica
the times of its leaves alone are kept, one for each conversation, and using a prompt costs what is new in it and a
bisection. For each block stands the set of replicas that hold it, as the bits of one integer. The replicas that hold
the first n blocks of a prompt are those of the n-th, so a lookup costs a step for each block that several hold and
not one for each replica; once a single replica is left, the rest is a bisection. Numbers alone are kept, in plain
tables, which Python's search for cycles does not walk.
"""

import heapq
from collections.abc import Iterator
from typing import Final

Blocks = tuple[int, ...]

NOTHING: Final = -1
"""What the first block of a prompt hangs on."""

HEAP_SPARE: Final = 64


class PagedCaches:
    """The caches of all paged replicas, which are known here by a number of their own."""

    def __init__(self) -> None:
        self._caches: dict[int, PagedCache] = {}
        self._holders: dict[int, int] = {}
        self._parents: dict[int, int] = {}

    def cache(self, number: int) -> "PagedCache":
        """Return the cache of a replica, an empty one at its first use."""
        found = self._caches.get(number)
        if found is None:
            found = self._caches[number] = PagedCache(number, self._holders, self._parents)
        return found

    def drop(self, number: int) -> None:
        """Forget all that a replica holds."""
        cache = self._caches.pop(number, None)
        if cache is not None:
            cache.clear()

    def lengths(self, blocks: Blocks) -> Iterator[tuple[int, int]]:
        """Yield (replicas as bits, how many of the first blocks they hold), no replica twice, none that holds none."""
        holders_of = self._holders.get
        depth, left = 0, 0
        for block in blocks:
            # Tails leave first: whoever holds a block holds all before it.
            still = holders_of(block, 0)
            if still != left:
                if depth:
                    yield left & ~still, depth
                left = still
            if left & (left - 1) == 0:
                break
            depth += 1
        if left:
            if depth < len(blocks):
                depth = self._caches[left.bit_length() - 1].held(blocks, depth + 1)
            yield left, depth


class PagedCache:
    """The blocks of one replica, in least-recently-used order."""

    def __init__(self, number: int, holders: dict[int, int], parents: dict[int, int]) -> None:
        self._bit = 1 << number
        self._holders = holders
        self._parents = parents
        self._size = 0
        # Of blocks that nothing hangs on: when they were used last; of others: when a prompt that ended there was.
        self._leaves: dict[int, int] = {}
        self._ended: dict[int, int] = {}
        # How many blocks beyond the first hang on a block.
        self._forks: dict[int, int] = {}
        # (last use, block) of every leaf, and of some that are none any more or were used since.
        self._heap: list[tuple[int, int]] = []

    @property
    def size(self) -> int:
        """Blocks that are held."""
        return self._size

    def preview(self, blocks: Blocks) -> tuple[int, int]:
        """Return (reused, displaced) blocks for a prompt that would be dispatched now."""
        return self.held(blocks, 0), 0

    def held(self, blocks: Blocks, at_least: int) -> int:
        """Return how many of the first blocks are held, when it is known that `at_least` are."""
        # Tails leave first, so a block that is held has all before it: bisection is allowed.
        low, high, bit, holders_of = at_least, len(blocks), self._bit, self._holders.get
        while low < high:
            middle = (low + high + 1) // 2
            if holders_of(blocks[middle - 1], 0) & bit:
                low = middle
            else:
                high = middle - 1
        return low

    def admit(self, blocks: Blocks, key: int, tick: int) -> None:
        """Note a prompt that was dispatched."""
        self._touch(blocks, self.held(blocks, 0), tick)

    def release(self, blocks: Blocks, key: int, tick: int) -> None:
        """Note that a prompt ended: its blocks were in use until now."""
        held = self.held(blocks, 0)
        self._touch(blocks[:held], held, tick)

    def oldest(self) -> int:
        """Return when the block that leaves next was used last; there is one."""
        heap, leaves = self._heap, self._leaves
        while leaves.get(heap[0][1]) != heap[0][0]:
            heapq.heappop(heap)
        return heap[0][0]

    def drop_tail(self, most: int) -> int:
        """Drop up to `most` blocks that were last used together; there is one."""
        tick = self.oldest()
        block: int | None = heapq.heappop(self._heap)[1]
        count = 0
        while block is not None and count < most:
            self._leaves.pop(block, None)
            block, tick_next = self._without(block, tick)
            count += 1
            if tick_next != tick:
                tick = tick_next
                break
        if block is not None:
            self._leaf(block, tick)
        self._size -= count
        return count

    def clear(self) -> None:
        """Drop everything."""
        bit, holders, parents = self._bit, self._holders, self._parents
        for leaf in self._leaves:
            block = leaf
            while holders.get(block, 0) & bit:
                above = parents[block]
                self._release(block)
                block = above
        self._leaves, self._ended, self._forks, self._heap = {}, {}, {}, []
        self._size = 0

    def _without(self, block: int, tick: int) -> tuple[int | None, int]:
        """Drop a leaf; return the block it hung on if that is a leaf now, and when that was used last."""
        above = self._parents[block]
        self._release(block)
        if not self._holders.get(above, 0) & self._bit:
            return None, tick
        others = self._forks.get(above, 0)
        if others > 1:
            self._forks[above] = others - 1
        elif others:
            del self._forks[above]
        if others:
            return None, tick
        # What hung on it and left before was used before; a prompt that ended there may have been used since.
        return above, max(tick, self._ended.pop(above, 0))

    def _release(self, block: int) -> None:
        left = self._holders[block] & ~self._bit
        if left:
            self._holders[block] = left
        else:
            del self._holders[block], self._parents[block]

    def _touch(self, blocks: Blocks, held: int, tick: int) -> None:
        """Note the use of a prompt of which the first blocks are held; all of them are from now on.

        A leaf stands for all that it hangs on: those cannot leave before it does.
        """
        if not blocks:
            return
        leaves = self._leaves
        if held == len(blocks):
            if blocks[-1] in leaves:
                self._leaf(blocks[-1], tick)
            else:
                self._ended[blocks[-1]] = tick
            return
        above = blocks[held - 1] if held else NOTHING
        if held and leaves.pop(above, None) is None:
            self._forks[above] = self._forks.get(above, 0) + 1
        bit, holders, parents = self._bit, self._holders, self._parents
        for block in blocks[held:]:
            bits = holders.get(block)
            if bits is None:
                holders[block], parents[block] = bit, above
            else:
                holders[block] = bits | bit
            above = block
        self._size += len(blocks) - held
        self._leaf(above, tick)

    def _leaf(self, block: int, tick: int) -> None:
        """Keep when a block that nothing hangs on was used last."""
        leaves = self._leaves
        leaves[block] = tick
        if len(self._heap) > 2 * len(leaves) + HEAP_SPARE:
            self._heap = [(used, leaf) for leaf, used in leaves.items()]
            heapq.heapify(self._heap)
        else:
            heapq.heappush(self._heap, (tick, block))
