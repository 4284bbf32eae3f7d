"""The slots of one llama.cpp replica as the prefix index models them: each holds one chain of blocks.

A new prompt takes over the idle slot with the longest common prefix if that covers more than a share of the new
prompt, else the idle slot that finished longest ago; the rest of the slot's old chain is gone. With no idle slot it
waits, first come first served. Source: `get_available_slot` of llama.cpp's server.
"""

from collections import deque
from collections.abc import Sequence

Blocks = tuple[int, ...]


class Chain:
    """One prompt in or before a slot. `key` names the whole prompt even when its tail was dropped."""

    __slots__ = ("blocks", "busy", "key", "tick")

    def __init__(self, blocks: Blocks = (), key: int | None = None, tick: int = 0) -> None:
        self.blocks = blocks
        self.key = key
        self.tick = tick
        self.busy = key is not None


class SlotCache:
    """The slots of one llama.cpp replica and the prompts that wait for one."""

    def __init__(self, slots: int, similarity: float) -> None:
        self.settings = (slots, similarity)
        self.slots = [Chain() for _ in range(slots)]
        self.waiting: deque[Chain] = deque()
        self.size = 0

    def preview(self, blocks: Blocks) -> tuple[int, int]:
        """Return (reused, displaced) blocks for a prompt that would be dispatched now."""
        place = self._choose(blocks)
        old = self.slots[place] if place is not None else self._predecessor()
        reuse = common_blocks(old.blocks, blocks)
        return reuse, len(old.blocks) - reuse

    def admit(self, blocks: Blocks, key: int, tick: int) -> None:
        chain = Chain(blocks, key, tick)
        place = self._choose(blocks)
        self.size += len(blocks)
        if place is None:
            self.waiting.append(chain)
        else:
            self._put(place, chain)

    def take(self, blocks: Blocks, key: int, tick: int) -> tuple[int, int]:
        """Give a prompt its slot and return (the slot's place, reused blocks); raises ValueError if all are busy."""
        place = self._choose(blocks)
        if place is None:
            raise ValueError("all slots are busy")
        reused = common_blocks(self.slots[place].blocks, blocks)
        self.size += len(blocks)
        self._put(place, Chain(blocks, key, tick))
        return place, reused

    def extend(self, place: int, blocks: Blocks) -> None:
        """Put what was generated behind the chain of a slot."""
        self.size += len(blocks)
        self.slots[place].blocks += blocks

    def cut(self, place: int, most: int) -> None:
        """Drop what a slot's chain has beyond its first `most` blocks."""
        slot = self.slots[place]
        self.size -= max(0, len(slot.blocks) - most)
        slot.blocks = slot.blocks[:most]

    def release(self, blocks: Blocks, key: int, tick: int) -> None:
        mine = [slot for slot in self.slots if slot.busy and slot.key == key]
        if mine:
            ended = min(mine, key=_tick)
            ended.busy, ended.tick = False, tick
            self._start_waiting(tick)
            return
        given_up = next((chain for chain in self.waiting if chain.key == key), None)
        if given_up is not None:
            self.waiting.remove(given_up)
            self.size -= len(given_up.blocks)

    def oldest(self) -> int:
        return min(_tick(chain) for chain in self._chains() if chain.blocks)

    def drop_tail(self, most: int) -> int:
        chain = min((chain for chain in self._chains() if chain.blocks), key=_tick)
        kept = max(0, len(chain.blocks) - most)
        dropped = len(chain.blocks) - kept
        chain.blocks = chain.blocks[:kept]
        self.size -= dropped
        return dropped

    def _choose(self, blocks: Blocks) -> int | None:
        """Return the slot the engine would take, None if all are busy."""
        idle = [place for place, slot in enumerate(self.slots) if not slot.busy]
        if not idle:
            return None
        best, best_common = None, self.settings[1] * len(blocks)
        for place in idle:
            common = common_blocks(self.slots[place].blocks, blocks)
            if common > best_common:
                best, best_common = place, common
        if best is not None:
            return best
        # The engine's loop keeps the last of equals, so that unused slots fill from the end.
        return min(idle, key=lambda place: (self.slots[place].tick, -place))

    def _predecessor(self) -> Chain:
        """Return whose place a prompt gets that has to wait, if prompts end in the order they began."""
        ahead = len(self.waiting)
        if ahead >= len(self.slots):
            return self.waiting[ahead - len(self.slots)]
        return sorted(self.slots, key=_tick)[ahead]

    def _start_waiting(self, tick: int) -> None:
        if self.waiting:
            chain = self.waiting.popleft()
            place = self._choose(chain.blocks)
            assert place is not None, "a slot was just released"
            chain.tick = tick
            self._put(place, chain)

    def _put(self, place: int, chain: Chain) -> None:
        self.size -= len(self.slots[place].blocks)
        self.slots[place] = chain

    def _chains(self) -> Sequence[Chain]:
        return [*self.slots, *self.waiting]


def _tick(chain: Chain) -> int:
    return chain.tick


def common_blocks(a: Blocks, b: Blocks) -> int:
    """Return how many leading blocks are equal; chained hashes allow bisection."""
    high = min(len(a), len(b))
    if high == 0 or a[0] != b[0]:
        return 0
    low = 1
    while low < high:
        middle = (low + high + 1) // 2
        if a[middle - 1] == b[middle - 1]:
            low = middle
        else:
            high = middle - 1
    return low
