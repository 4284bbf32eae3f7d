"""What engines say they hold, block by block: an exact prefix index over token ids, for those that publish KV events.

Engines name blocks by hashes of their own, each over its tokens and the block before it. Here every block gets a key of
ours over the same (parent's key, tokens, extra keys), so that a prompt's token ids can be looked up whatever an
engine's hash function and seed, and equal blocks of different replicas are one entry: a set of replicas as the bits of
an integer.

Events are trusted as they come in sequence. A sequence that goes back, or all blocks cleared, is a cache that began
anew: all that was known is dropped. A gap may hide removals, so what was known is dropped too; what is stored from then
on is known again. A block whose parent is not known has no place in a prompt and is left out.
"""

from collections.abc import Sequence
from enum import StrEnum
from typing import Final

import msgspec
import xxhash

BLOCKS_MAX: Final = 4_000_000
"""Blocks over all replicas; further ones are counted and left out, which only makes promises smaller."""


class KvStored(msgspec.Struct, frozen=True, kw_only=True):
    """Blocks that follow each other, the first one after `parent` (None: at the beginning). Hashes are the engine's.

    `tokens`: the ids of all of them; `extras`: for each block what else went into its hash, as bytes.
    """

    blocks: tuple[int | bytes, ...]
    parent: int | bytes | None
    tokens: tuple[int, ...]
    block_tokens: int
    extras: tuple[bytes, ...]


class KvRemoved(msgspec.Struct, frozen=True, kw_only=True):
    """Blocks that are gone."""

    blocks: tuple[int | bytes, ...]


class KvCleared(msgspec.Struct, frozen=True, kw_only=True):
    """The whole cache is empty."""


KvEvent = KvStored | KvRemoved | KvCleared


class KvBatch(msgspec.Struct, frozen=True, kw_only=True):
    """One message of a publisher. `sequence` counts messages of a rank; `left_out`: events that mean nothing here."""

    sequence: int
    at_s: float
    rank: int
    events: tuple[KvEvent, ...]
    left_out: int = 0


class KvNews(StrEnum):
    """What a batch says about all that was known before of its replica."""

    IN_ORDER = "in_order"
    GAP = "gap"
    RESTARTED = "restarted"
    CLEARED = "cleared"


class _Source(msgspec.Struct, kw_only=True):
    """What one replica published. `keys`: by the engine's hash, our key and how many tokens the block has."""

    bit: int
    keys: dict[int | bytes, tuple[int, int]] = {}
    sequences: dict[int, int] = {}
    block_tokens: int = 0
    tokens: int = 0


class KvBlocks:
    """Exactly what the replicas with KV events hold. One owner; lookups change nothing."""

    def __init__(self, blocks_max: int = BLOCKS_MAX) -> None:
        self._blocks_max = blocks_max
        self._sources: dict[str, _Source] = {}
        self._names: list[str] = []
        self._free: list[int] = []
        self._holders: dict[int, int] = {}
        self._size = 0
        self.left_out = 0
        """Blocks that were stored without a known parent, or beyond the bound."""

    def exact(self, replica: str) -> bool:
        """Return whether anything was heard of a replica."""
        return replica in self._sources

    @property
    def blocks(self) -> int:
        """Blocks over all replicas."""
        return self._size

    @property
    def places(self) -> int:
        """Bits of a set of replicas: as many as there were at once."""
        return len(self._names)

    def held_tokens(self, replica: str) -> int:
        """Return how many tokens a replica holds in whole blocks."""
        source = self._sources.get(replica)
        return 0 if source is None else source.tokens

    def take(self, replica: str, batch: KvBatch) -> KvNews:
        """Take in one batch; return what it says about what was known before."""
        source = self._source(replica)
        last = source.sequences.get(batch.rank)
        news = KvNews.IN_ORDER
        if last is not None and batch.sequence <= last:
            news = KvNews.RESTARTED
        elif last is not None and batch.sequence > last + 1:
            news = KvNews.GAP
        if news is not KvNews.IN_ORDER:
            self._clear(source)
        source.sequences[batch.rank] = batch.sequence
        for event in batch.events:
            match event:
                case KvStored():
                    self._store(source, event)
                case KvRemoved():
                    self._remove(source, event.blocks)
                case KvCleared():
                    self._clear(source)
                    news = KvNews.CLEARED
        return news

    def forget(self, replica: str) -> None:
        """Drop all that a replica told; nothing is claimed of it until it tells again."""
        source = self._sources.get(replica)
        if source is not None:
            self._clear(source)
            source.sequences.clear()

    def leave(self, replica: str) -> None:
        """Drop a replica that left the fleet; its place is the next new one's."""
        source = self._sources.pop(replica, None)
        if source is not None:
            self._clear(source)
            self._free.append(source.bit)

    def held(self, tokens: Sequence[int], extras: Sequence[bytes] = ()) -> dict[str, int]:
        """Return how many of the first tokens each replica holds, those that hold none left out.

        `extras`: what else goes into the hash of the first blocks, as in `KvStored`; the last one stands for the rest.
        """
        found: dict[str, int] = {}
        for size in {source.block_tokens for source in self._sources.values()}:
            if size:
                self._walk(tokens, size, extras, found)
        return found

    def _walk(
        self, tokens: Sequence[int], size: int, extras: Sequence[bytes], found: dict[str, int]
    ) -> None:
        left, key = -1, 0
        for at in range(len(tokens) // size):
            extra = extras[min(at, len(extras) - 1)] if extras else b""
            key = _key(key, tokens[at * size : (at + 1) * size], extra)
            still = left & self._holders.get(key, 0)
            self._note(left & ~still if left > 0 else 0, at * size, found)
            left = still
            if not left:
                return
        self._note(left, len(tokens) // size * size, found)

    def _note(self, bits: int, tokens: int, found: dict[str, int]) -> None:
        while bits > 0:
            low = bits & -bits
            found[self._names[low.bit_length() - 1]] = tokens
            bits ^= low

    def _source(self, replica: str) -> _Source:
        found = self._sources.get(replica)
        if found is not None:
            return found
        if self._free:
            bit = self._free.pop()
            self._names[bit.bit_length() - 1] = replica
        else:
            bit = 1 << len(self._names)
            self._names.append(replica)
        found = self._sources[replica] = _Source(bit=bit)
        return found

    def _store(self, source: _Source, event: KvStored) -> None:
        key = 0
        if event.parent is not None:
            known = source.keys.get(event.parent)
            if known is None:
                self.left_out += len(event.blocks)
                return
            key = known[0]
        size = source.block_tokens = event.block_tokens
        for at, block in enumerate(event.blocks):
            key = _key(key, event.tokens[at * size : (at + 1) * size], event.extras[at])
            if block in source.keys:
                continue
            if self._size >= self._blocks_max:
                self.left_out += len(event.blocks) - at
                return
            source.keys[block] = (key, size)
            source.tokens += size
            self._size += 1
            self._holders[key] = self._holders.get(key, 0) | source.bit

    def _remove(self, source: _Source, blocks: Sequence[int | bytes]) -> None:
        for block in blocks:
            known = source.keys.pop(block, None)
            if known is None:
                continue
            key, size = known
            source.tokens -= size
            self._size -= 1
            left = self._holders.get(key, 0) & ~source.bit
            if left:
                self._holders[key] = left
            else:
                self._holders.pop(key, None)

    def _clear(self, source: _Source) -> None:
        self._remove(source, list(source.keys))


def _key(parent: int, tokens: Sequence[int], extra: bytes) -> int:
    body = b"".join(token.to_bytes(4, "little") for token in tokens)
    return xxhash.xxh3_64_intdigest(body + extra, parent)
