"""Which replica holds how much of a prompt: keyed block hashes and a bounded model of the engines' caches.

Law: a prompt is cut into full blocks of bytes; the hash of a block also covers the hash of the block
before it, so equal hashes at place i mean equal prompts up to i (but for collisions of 64 bits, which
cost one wrong hint). A common prefix is therefore found by bisection.

Two kinds of engine are modelled. Slots (llama.cpp): a slot holds one chain. A new prompt takes over
the idle slot with the longest common prefix if that covers more than a share of the new prompt, else the
idle slot that finished longest ago; the rest of the slot's old chain is gone. With no idle slot it
waits, first come first served. Paged (vLLM, SGLang): blocks are shared by all requests and leave in
least-recently-used order, tails first.

Failure modes: the engine drops its cache unseen (restart, pressure, another router). Then it delivers
less than was promised; `correct` notices and the replica is distrusted until promises come true again.
Output tokens that a slot also holds are not counted, so promises err on the low side.

Source of the slot rule: `get_available_slot` of llama.cpp's server.
"""

import hashlib
from collections import OrderedDict, deque
from collections.abc import Sequence

import msgspec
import xxhash

from trimtab.core.decision import Held

SLOT_SIMILARITY = 0.5
"""A slot is taken over for its prefix only if that covers more of the new prompt: the value replicas are started with.

At the engine's default of 0.1 a new session that shares no more than a system prompt overwrites the session that is
still going on in the slot with the longest match, while slots that nobody needs stay untouched.
"""

TRUST_SMOOTHING = 0.1
TRUST_FLOOR = 0.5
TRUST_SAMPLES_MIN = 20

Blocks = tuple[int, ...]


class BlockHasher:
    """Cuts prompts into blocks and hashes them with a key, each over all that went before."""

    def __init__(self, key: bytes, block_bytes: int) -> None:
        """Take the secret key and the size of a block; raises ValueError on a size below 1."""
        if block_bytes < 1:
            raise ValueError(f"block_bytes must be at least 1, got {block_bytes}")
        self._block_bytes = block_bytes
        # A seeded xxh3 is fast but does not hide its seed: these hashes stay in memory.
        self._seed = int.from_bytes(hashlib.blake2b(key, digest_size=8).digest())

    def blocks(self, prompt: bytes) -> Blocks:
        """Return the hashes of the full blocks; a prefix of a prompt gives a prefix of its hashes."""
        size, seed = self._block_bytes, self._seed
        found: list[int] = []
        for start in range(0, len(prompt) - size + 1, size):
            seed = xxhash.xxh3_64_intdigest(prompt[start : start + size], seed)
            found.append(seed)
        return tuple(found)


class PrefixStats(msgspec.Struct, frozen=True, kw_only=True):
    """How full the index is. `evictions`: blocks dropped for the bound, not by the engines' own rules."""

    blocks: int
    blocks_max: int
    replicas: int
    evictions: int
    last_record_at_s: float | None


class Trust(msgspec.Struct, frozen=True, kw_only=True):
    """How far a replica delivers what was promised: smoothed share, requests behind it, and the verdict."""

    share: float = 1.0
    samples: int = 0
    trusted: bool = True


class PrefixIndex:
    """A bounded model of what every replica holds. One owner; lookups change nothing."""

    def __init__(self, blocks_max: int, block_bytes: int) -> None:
        """Take the most blocks over all replicas and the bytes per block; raises ValueError below 1."""
        if blocks_max < 1 or block_bytes < 1:
            raise ValueError(
                f"blocks_max and block_bytes must be at least 1: {blocks_max}, {block_bytes}"
            )
        self._blocks_max = blocks_max
        self._block_bytes = block_bytes
        self._caches: dict[str, _SlotCache | _PagedCache] = {}
        self._trust: dict[str, Trust] = {}
        self._ticks = 0
        self._evictions = 0
        self._last_record_at_s: float | None = None

    def set_slots(self, replica: str, slots: int, similarity: float = SLOT_SIMILARITY) -> None:
        """Say that a replica is of the slot kind. Equal settings change nothing, others start empty.

        `similarity` is the engine's `slot_prompt_similarity`. A replica of which this was never said is of
        the paged kind. Raises ValueError below 1 slot.
        """
        if slots < 1:
            raise ValueError(f"replica {replica}: slots must be at least 1, got {slots}")
        cache = self._caches.get(replica)
        if isinstance(cache, _SlotCache) and cache.settings == (slots, similarity):
            return
        self._caches[replica] = _SlotCache(slots, similarity)

    def held(self, blocks: Blocks, prompt_tokens: int, prompt_bytes: int) -> tuple[Held, ...]:
        """Return what each replica would reuse if the prompt were sent to it now, by replica id.

        A distrusted replica holds 0. `displaced` counts the tokens of other prompts that the engine
        would overwrite. Costs a bisection per slot or per paged replica.
        """
        found = []
        for replica in sorted(self._caches):
            reuse, displaced = self._caches[replica].preview(blocks)
            credible = reuse if self.trust(replica).trusted else 0
            found.append(
                Held(
                    replica=replica,
                    tokens=self._tokens(credible, prompt_tokens, prompt_bytes),
                    displaced=self._scaled(displaced, prompt_tokens, prompt_bytes),
                )
            )
        return tuple(found)

    def believed(self, replica: str, blocks: Blocks, prompt_tokens: int, prompt_bytes: int) -> int:
        """Return what one replica would reuse whatever the trust in it: what `correct` is to be told."""
        cache = self._caches.get(replica)
        reuse = cache.preview(blocks)[0] if cache is not None else 0
        return self._tokens(reuse, prompt_tokens, prompt_bytes)

    def record(self, replica: str, blocks: Blocks, at_s: float) -> None:
        """Note that a prompt was dispatched to a replica; in a slot it is busy until `finished`."""
        self._last_record_at_s = at_s
        cache = self._caches.setdefault(replica, _PagedCache())
        self._ticks += 1
        # A longer prompt than the whole index may hold is known by its head.
        cache.admit(blocks[: self._blocks_max], _key(blocks), self._ticks)
        self._evict()

    def finished(self, replica: str, blocks: Blocks) -> None:
        """Note that a dispatched prompt ended, well or not; the slot may be taken over from now on."""
        cache = self._caches.get(replica)
        if cache is not None:
            self._ticks += 1
            cache.release(blocks, _key(blocks), self._ticks)

    def forget(self, replica: str) -> None:
        """Drop all that is known of a replica: it restarted empty, or is gone."""
        cache = self._caches.pop(replica, None)
        self._trust.pop(replica, None)
        if isinstance(cache, _SlotCache):
            self._caches[replica] = _SlotCache(*cache.settings)

    def correct(
        self, replica: str, blocks: Blocks, promised_tokens: int, delivered_tokens: int
    ) -> None:
        """Compare a promise (`believed` at dispatch) with what the engine reported as reused.

        The smoothed share below 0.5 over at least 20 promises makes the replica distrusted; it is
        trusted again when the share is back. A promise of nothing teaches nothing.
        """
        if promised_tokens <= 0 or not blocks:
            return
        kept = min(1.0, max(0, delivered_tokens) / promised_tokens)
        old = self.trust(replica)
        share = old.share + TRUST_SMOOTHING * (kept - old.share) if old.samples else kept
        samples = old.samples + 1
        trusted = share >= TRUST_FLOOR or (old.trusted and samples < TRUST_SAMPLES_MIN)
        self._trust[replica] = Trust(share=share, samples=samples, trusted=trusted)

    def trust(self, replica: str) -> Trust:
        """Return the trust in a replica's cache; full before the first promise."""
        return self._trust.get(replica, Trust())

    def stats(self) -> PrefixStats:
        """Return how full the index is."""
        return PrefixStats(
            blocks=sum(cache.size for cache in self._caches.values()),
            blocks_max=self._blocks_max,
            replicas=len(self._caches),
            evictions=self._evictions,
            last_record_at_s=self._last_record_at_s,
        )

    def _tokens(self, blocks: int, prompt_tokens: int, prompt_bytes: int) -> int:
        # An engine computes at least the last token of a prompt anew.
        return max(0, min(prompt_tokens - 1, self._scaled(blocks, prompt_tokens, prompt_bytes)))

    def _scaled(self, blocks: int, prompt_tokens: int, prompt_bytes: int) -> int:
        return blocks * self._block_bytes * prompt_tokens // max(1, prompt_bytes)

    def _evict(self) -> None:
        excess = sum(cache.size for cache in self._caches.values()) - self._blocks_max
        while excess > 0:
            _, replica = min(
                (cache.oldest(), replica) for replica, cache in self._caches.items() if cache.size
            )
            dropped = self._caches[replica].drop_tail(excess)
            self._evictions += dropped
            excess -= dropped


class _Chain:
    """One prompt in or before a slot. `key` names the whole prompt even when its tail was dropped."""

    __slots__ = ("blocks", "busy", "key", "tick")

    def __init__(self, blocks: Blocks = (), key: int | None = None, tick: int = 0) -> None:
        self.blocks = blocks
        self.key = key
        self.tick = tick
        self.busy = key is not None


class _SlotCache:
    """The slots of one llama.cpp replica and the prompts that wait for one."""

    def __init__(self, slots: int, similarity: float) -> None:
        self.settings = (slots, similarity)
        self.slots = [_Chain() for _ in range(slots)]
        self.waiting: deque[_Chain] = deque()
        self.size = 0

    def preview(self, blocks: Blocks) -> tuple[int, int]:
        """Return (reused, displaced) blocks for a prompt that would be dispatched now."""
        place = self._choose(blocks)
        old = self.slots[place] if place is not None else self._predecessor()
        reuse = _common(old.blocks, blocks)
        return reuse, len(old.blocks) - reuse

    def admit(self, blocks: Blocks, key: int, tick: int) -> None:
        chain = _Chain(blocks, key, tick)
        place = self._choose(blocks)
        self.size += len(blocks)
        if place is None:
            self.waiting.append(chain)
        else:
            self._put(place, chain)

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
            common = _common(self.slots[place].blocks, blocks)
            if common > best_common:
                best, best_common = place, common
        if best is not None:
            return best
        # The engine's loop keeps the last of equals, so that unused slots fill from the end.
        return min(idle, key=lambda place: (self.slots[place].tick, -place))

    def _predecessor(self) -> _Chain:
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

    def _put(self, place: int, chain: _Chain) -> None:
        self.size -= len(self.slots[place].blocks)
        self.slots[place] = chain

    def _chains(self) -> Sequence[_Chain]:
        return [*self.slots, *self.waiting]


class _PagedCache:
    """The blocks of one replica with paged KV, in least-recently-used order."""

    def __init__(self) -> None:
        self._ticks: OrderedDict[int, int] = OrderedDict()

    @property
    def size(self) -> int:
        return len(self._ticks)

    def preview(self, blocks: Blocks) -> tuple[int, int]:
        # Tails leave first, so a block that is held has all before it: bisection is allowed.
        low, high = 0, len(blocks)
        while low < high:
            middle = (low + high + 1) // 2
            if blocks[middle - 1] in self._ticks:
                low = middle
            else:
                high = middle - 1
        return low, 0

    def admit(self, blocks: Blocks, key: int, tick: int) -> None:
        self._touch(blocks, tick)

    def release(self, blocks: Blocks, key: int, tick: int) -> None:
        self._touch(blocks[: self.preview(blocks)[0]], tick)

    def oldest(self) -> int:
        return next(iter(self._ticks.values()))

    def drop_tail(self, most: int) -> int:
        """Drop up to `most` blocks that were last used together."""
        tick = self.oldest()
        dropped = 0
        while dropped < most and self._ticks and self.oldest() == tick:
            self._ticks.popitem(last=False)
            dropped += 1
        return dropped

    def _touch(self, blocks: Blocks, tick: int) -> None:
        # The deepest block first, so that a head is always newer than every tail that hangs on it.
        for block in reversed(blocks):
            self._ticks[block] = tick
            self._ticks.move_to_end(block)


def _key(blocks: Blocks) -> int:
    return blocks[-1] if blocks else 0


def _tick(chain: _Chain) -> int:
    return chain.tick


def _common(a: Blocks, b: Blocks) -> int:
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
