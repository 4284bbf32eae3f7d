"""The blocks of replicas with paged KV (vLLM, SGLang) as the prefix index models them.

Each replica has its blocks in least-recently-used order, tails first, so that a block that is held has all before it.
Beside that stands the same turned round: for each block a set of replicas as the bits of one integer. The replicas that
hold the first n blocks of a prompt are the intersection of n such sets, so a lookup costs a step for each block of the
prompt and not one for each replica; once a single replica is left, the rest is a bisection in its own blocks.
"""

from collections import OrderedDict
from collections.abc import Iterator

Blocks = tuple[int, ...]


class PagedCaches:
    """The caches of all paged replicas, which are known here by a number of their own."""

    def __init__(self) -> None:
        self._caches: dict[int, PagedCache] = {}
        self._holders: dict[int, int] = {}

    def cache(self, number: int) -> "PagedCache":
        """Return the cache of a replica, an empty one at its first use."""
        found = self._caches.get(number)
        if found is None:
            found = self._caches[number] = PagedCache(number, self._holders)
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

    def __init__(self, number: int, holders: dict[int, int]) -> None:
        self._bit = 1 << number
        self._holders = holders
        self._ticks: OrderedDict[int, int] = OrderedDict()

    @property
    def size(self) -> int:
        """Blocks that are held."""
        return len(self._ticks)

    def preview(self, blocks: Blocks) -> tuple[int, int]:
        """Return (reused, displaced) blocks for a prompt that would be dispatched now."""
        return self.held(blocks, 0), 0

    def held(self, blocks: Blocks, at_least: int) -> int:
        """Return how many of the first blocks are held, when it is known that `at_least` are."""
        # Tails leave first, so a block that is held has all before it: bisection is allowed.
        low, high = at_least, len(blocks)
        while low < high:
            middle = (low + high + 1) // 2
            if blocks[middle - 1] in self._ticks:
                low = middle
            else:
                high = middle - 1
        return low

    def admit(self, blocks: Blocks, key: int, tick: int) -> None:
        """Note a prompt that was dispatched."""
        self._touch(blocks, tick)

    def release(self, blocks: Blocks, key: int, tick: int) -> None:
        """Note that a prompt ended: its blocks were in use until now."""
        self._touch(blocks[: self.held(blocks, 0)], tick)

    def oldest(self) -> int:
        """Return when the block that leaves next was used last."""
        return next(iter(self._ticks.values()))

    def drop_tail(self, most: int) -> int:
        """Drop up to `most` blocks that were last used together."""
        tick = self.oldest()
        count = 0
        for other in self._ticks.values():
            if other != tick or count == most:
                break
            count += 1
        self._drop(count)
        return count

    def clear(self) -> None:
        """Drop everything."""
        self._drop(len(self._ticks))

    def _drop(self, count: int) -> None:
        ticks, holders, bit = self._ticks, self._holders, self._bit
        for _ in range(count):
            block, _ = ticks.popitem(last=False)
            left = holders[block] & ~bit
            if left:
                holders[block] = left
            else:
                del holders[block]

    def _touch(self, blocks: Blocks, tick: int) -> None:
        ticks, holders, bit = self._ticks, self._holders, self._bit
        move = ticks.move_to_end
        # The deepest block first, so that a head is always newer than every tail that hangs on it.
        for block in reversed(blocks):
            if block in ticks:
                ticks[block] = tick
                move(block)
            else:
                ticks[block] = tick
                holders[block] = holders.get(block, 0) | bit
