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
import heapq
import math
from collections.abc import Iterable

import msgspec
import numpy as np
import xxhash

from trimtab.core.columns import Floats
from trimtab.core.holdings import Groups, HeldColumns, places_of
from trimtab.core.prefix_paged import PagedCache, PagedCaches
from trimtab.core.prefix_slots import SlotCache

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

    def blocks(self, prompt: bytes, space: bytes = b"") -> Blocks:
        """Return the hashes of the full blocks; a prefix of a prompt gives a prefix of its hashes.

        `space`: all else that must be equal for prompts to share cache (`PrefixScope.space`); prompts of different
        spaces have no hash in common.
        """
        size, seed = self._block_bytes, self._seed
        if space:
            seed = xxhash.xxh3_64_intdigest(hashlib.blake2b(space, digest_size=16).digest(), seed)
        found: list[int] = []
        for start in range(0, len(prompt) - size + 1, size):
            seed = xxhash.xxh3_64_intdigest(prompt[start : start + size], seed)
            found.append(seed)
        return tuple(found)


class PrefixStats(msgspec.Struct, frozen=True, kw_only=True):
    """How full the index is. `evictions`: blocks dropped for the bound, not by the engines' own rules."""

    blocks: int
    blocks_max: int
    evictions: int


class Trust(msgspec.Struct, frozen=True, kw_only=True):
    """How far a replica delivers what was promised: smoothed share, requests behind it, and the verdict."""

    share: float = 1.0
    samples: int = 0
    trusted: bool = True


class PrefixIndex:
    """A bounded model of what every replica holds. One owner; lookups change nothing.

    Memory: a paged block costs about 160 bytes and a bit for each replica there is, however many of them hold it.
    Replicas have numbers; the number of one that left goes to the next that comes.
    """

    def __init__(self, blocks_max: int, block_bytes: int) -> None:
        """Take the most blocks over all replicas and the bytes per block; raises ValueError below 1."""
        if blocks_max < 1 or block_bytes < 1:
            raise ValueError(
                f"blocks_max and block_bytes must be at least 1: {blocks_max}, {block_bytes}"
            )
        self._blocks_max = blocks_max
        self._block_bytes = block_bytes
        self._numbers: dict[str, int] = {}
        self._names: list[str] = []
        self._free: list[int] = []
        self._slots: dict[int, SlotCache] = {}
        self._paged = PagedCaches()
        self._trust: dict[str, Trust] = {}
        self._distrusted: set[int] = set()
        self._zeros: Floats = np.zeros(0)
        self._size = 0
        self._oldest: list[tuple[int, str, int]] = []
        self._queued: set[int] = set()
        self._ticks = 0
        self._evictions = 0

    def set_slots(self, replica: str, slots: int, similarity: float = SLOT_SIMILARITY) -> None:
        """Say that a replica is of the slot kind. Equal settings change nothing, others start empty.

        `similarity` is the engine's `slot_prompt_similarity`. A replica of which this was never said is of
        the paged kind. Raises ValueError below 1 slot.
        """
        if slots < 1:
            raise ValueError(f"replica {replica}: slots must be at least 1, got {slots}")
        number = self._number(replica)
        cache = self._slots.get(number)
        if cache is not None and cache.settings == (slots, similarity):
            return
        self._drop(number)
        self._slots[number] = SlotCache(slots, similarity)

    def meet(self, replicas: Iterable[str]) -> None:
        """Number a fleet's replicas in this order unless they have a number; lookups in this order are quicker.

        Others that hold nothing lose theirs: what was told late of one that left had given it a number again.
        """
        here = tuple(replicas)
        for replica in self._numbers.keys() - here:
            number = self._numbers[replica]
            if number not in self._slots and not self._cache(number).size:
                self.leave(replica)
        for replica in here:
            self._number(replica)

    def held_columns(self, blocks: Blocks, prompt_tokens: int, prompt_bytes: int) -> HeldColumns:
        """Return what each replica would reuse if the prompt were sent to it now, as columns.

        A distrusted replica holds 0. `displaced` counts the tokens of other prompts that the engine would overwrite.
        Costs a step for each block that several replicas hold, and a bisection per slot.
        """
        groups = self._groups(blocks, prompt_tokens, prompt_bytes)
        if self._slots:
            return self._with_slots(blocks, prompt_tokens, prompt_bytes, groups)
        return HeldColumns(
            self._numbers,
            None,
            self._none_displaced(),
            best=groups[-1][1] if groups else 0,
            displaces=False,
            shortest=groups[0][1] if groups else 0,
            groups=groups,
        )

    def _groups(self, blocks: Blocks, prompt_tokens: int, prompt_bytes: int) -> Groups:
        """Return which replicas of the paged kind hold how many tokens, the best last, without those distrusted."""
        # The same as `_tokens`, for all of them.
        scale, size, most = (
            self._block_bytes * prompt_tokens,
            max(1, prompt_bytes),
            prompt_tokens - 1,
        )
        groups = []
        for replicas, depth in self._paged.lengths(blocks):
            tokens = depth * scale // size
            groups.append((replicas, tokens if tokens < most else max(0, most)))
        if self._distrusted:
            trusted = ~sum(1 << number for number in self._distrusted)
            groups = [(bits & trusted, held) for bits, held in groups if bits & trusted]
        return tuple(groups)

    def _with_slots(
        self, blocks: Blocks, prompt_tokens: int, prompt_bytes: int, groups: Groups
    ) -> HeldColumns:
        """Return what is held where some replicas have slots, whose prompts are overwritten."""
        tokens, displaced = np.zeros(len(self._names)), np.zeros(len(self._names))
        for replicas, held in groups:
            tokens[places_of(replicas)] = held
        for number, cache in self._slots.items():
            reuse, over = cache.preview(blocks)
            displaced[number] = self._scaled(over, prompt_tokens, prompt_bytes)
            if number not in self._distrusted:
                tokens[number] = self._tokens(reuse, prompt_tokens, prompt_bytes)
        return HeldColumns(self._numbers, tokens, displaced)

    def believed(self, replica: str, blocks: Blocks, prompt_tokens: int, prompt_bytes: int) -> int:
        """Return what one replica would reuse whatever the trust in it: what `correct` is to be told."""
        number = self._numbers.get(replica)
        reuse = 0 if number is None else self._cache(number).preview(blocks)[0]
        return self._tokens(reuse, prompt_tokens, prompt_bytes)

    def record(self, replica: str, blocks: Blocks) -> None:
        """Note that a prompt was dispatched to a replica; in a slot it is busy until `finished`."""
        number = self._number(replica)
        cache = self._cache(number)
        self._ticks += 1
        before = cache.size
        # A longer prompt than the whole index may hold is known by its head.
        cache.admit(blocks[: self._blocks_max], _key(blocks), self._ticks)
        self._grew(number, before, cache.size)

    def finished(self, replica: str, blocks: Blocks) -> None:
        """Note that a dispatched prompt ended, well or not; the slot may be taken over from now on."""
        number = self._numbers.get(replica)
        if number is not None:
            cache = self._cache(number)
            self._ticks += 1
            before = cache.size
            cache.release(blocks, _key(blocks), self._ticks)
            self._grew(number, before, cache.size)

    def forget(self, replica: str) -> None:
        """Drop what a replica holds and what it delivered: it restarted empty. As many slots as before are empty."""
        number = self._numbers.get(replica)
        if number is None:
            return
        slots = self._slots.get(number)
        self._unlearn(replica, number)
        if slots is not None:
            self.set_slots(replica, *slots.settings)

    def leave(self, replica: str) -> None:
        """Drop all that is known of a replica, its slots and its number too: it left the fleet."""
        number = self._numbers.get(replica)
        if number is None:
            return
        self._unlearn(replica, number)
        # Answers that were given before go on looking up the old table, in which the number stays this replica's.
        self._numbers = {name: at for name, at in self._numbers.items() if at != number}
        heapq.heappush(self._free, number)

    def _unlearn(self, replica: str, number: int) -> None:
        self._drop(number)
        self._trust.pop(replica, None)
        self._distrusted.discard(number)

    def limit(self, replica: str, size_bytes: float) -> int:
        """Drop what a replica holds by our belief beyond what it holds by its own word; return the blocks dropped.

        What was used longest ago goes first, as in the engine. Of replicas with slots nothing is dropped.
        """
        number = self._numbers.get(replica)
        if number is None or number in self._slots:
            return 0
        cache = self._cache(number)
        before, most = cache.size, math.ceil(size_bytes / self._block_bytes)
        while cache.size > most:
            cache.drop_tail(cache.size - most)
        self._size += cache.size - before
        return before - cache.size

    def correct(
        self, replica: str, blocks: Blocks, promised_tokens: int, delivered_tokens: int
    ) -> None:
        """Compare a promise (`believed` at dispatch) with what the engine reported as reused.

        The smoothed share below 0.5 over at least 20 promises makes the replica distrusted; it is
        trusted again when the share is back. A promise of nothing teaches nothing, nor does one that has left.
        """
        number = self._numbers.get(replica)
        if number is None or promised_tokens <= 0 or not blocks:
            return
        kept = min(1.0, max(0, delivered_tokens) / promised_tokens)
        old = self.trust(replica)
        share = old.share + TRUST_SMOOTHING * (kept - old.share) if old.samples else kept
        samples = old.samples + 1
        trusted = share >= TRUST_FLOOR or (old.trusted and samples < TRUST_SAMPLES_MIN)
        self._trust[replica] = Trust(share=share, samples=samples, trusted=trusted)
        (self._distrusted.discard if trusted else self._distrusted.add)(number)

    def trust(self, replica: str) -> Trust:
        """Return the trust in a replica's cache; full before the first promise."""
        return self._trust.get(replica, Trust())

    def stats(self) -> PrefixStats:
        """Return how full the index is."""
        return PrefixStats(
            blocks=self._size,
            blocks_max=self._blocks_max,
            evictions=self._evictions,
        )

    def tokens_of(self, blocks: int, prompt_tokens: int, prompt_bytes: int) -> int:
        """Return how many tokens the first blocks of a prompt have."""
        return self._scaled(blocks, prompt_tokens, prompt_bytes)

    def _tokens(self, blocks: int, prompt_tokens: int, prompt_bytes: int) -> int:
        # An engine computes at least the last token of a prompt anew.
        return max(0, min(prompt_tokens - 1, self._scaled(blocks, prompt_tokens, prompt_bytes)))

    def _scaled(self, blocks: int, prompt_tokens: int, prompt_bytes: int) -> int:
        return blocks * self._block_bytes * prompt_tokens // max(1, prompt_bytes)

    def _none_displaced(self) -> Floats:
        """Return zeros that all lookups share."""
        if self._zeros.size != len(self._names):
            self._zeros = np.zeros(len(self._names))
            self._zeros.flags.writeable = False
        return self._zeros

    def _number(self, replica: str) -> int:
        number = self._numbers.get(replica)
        if number is None and self._free:
            number = self._numbers[replica] = heapq.heappop(self._free)
            self._names[number] = replica
        elif number is None:
            number = self._numbers[replica] = len(self._names)
            self._names.append(replica)
        return number

    def _cache(self, number: int) -> SlotCache | PagedCache:
        slots = self._slots.get(number)
        return slots if slots is not None else self._paged.cache(number)

    def _drop(self, number: int) -> None:
        self._size -= self._cache(number).size
        self._slots.pop(number, None)
        self._paged.drop(number)

    def _grew(self, number: int, before: int, after: int) -> None:
        self._size += after - before
        if after and not before and number not in self._queued:
            self._push(number)
        self._evict()

    def _push(self, number: int) -> None:
        oldest = self._cache(number).oldest()
        heapq.heappush(self._oldest, (oldest, self._names[number], number))
        self._queued.add(number)

    def _evict(self) -> None:
        """Drop what was used longest ago, over all replicas, down to the bound.

        The heap has one entry for each replica that holds anything (`_queued`: who has one); it may be older than the
        truth and is then put right, so the top is right once it agrees with its replica.
        """
        while self._size > self._blocks_max:
            oldest, _, number = self._oldest[0]
            cache = self._cache(number)
            if not cache.size or cache.oldest() != oldest:
                heapq.heappop(self._oldest)
                self._queued.discard(number)
                if cache.size:
                    self._push(number)
                continue
            dropped = cache.drop_tail(self._size - self._blocks_max)
            self._size -= dropped
            self._evictions += dropped


def _key(blocks: Blocks) -> int:
    return blocks[-1] if blocks else 0
