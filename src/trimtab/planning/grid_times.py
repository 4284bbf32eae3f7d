"""Step times on a fixed grid of sizes, interpolated between its points: small enough to keep for every layout.

    decode      batch x context
    prefill     fresh tokens x cached tokens
    beside      fresh tokens x cached tokens x streams that decode; a chunk is the whole prompt, at most 8,192 tokens
    collectives batch

Between two points times are interpolated linearly in each direction, beyond the last two they go on straight. Steps
are close to linear in each of those sizes (kernels are tiled, so tables have steps of their own), contexts and cached
tokens most of all; at the grid's points nothing is lost. Times never fall below 0. Each point more costs the first plan
of a model and device, which asks for all of them.
"""

from array import array
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from typing import Final, Protocol

import msgspec

from trimtab.core.layout import EstimateSource

CHUNK_TOKENS: Final = 8192
"""The largest part of a prompt that engines compute in one step, unless told otherwise."""


def _doubled(first: int, last: int) -> tuple[int, ...]:
    """Powers of two."""
    return tuple(1 << place for place in range(first.bit_length() - 1, last.bit_length()))


BATCHES: Final = (*_doubled(1, 64), 96, *_doubled(128, 4096))
CONTEXTS: Final = (128, 1024, 8192, 65_536, 1_048_576)
FRESH: Final = (*_doubled(16, 4096), 6144, CHUNK_TOKENS, 16_384, 32_768, 131_072, 1_048_576)
CACHED: Final = (0, 32_768)
BESIDE_FRESH: Final = (128, 256, 512, 1024, 2048, 4096, CHUNK_TOKENS, 16_384, 131_072, 1_048_576)
BESIDE_BATCHES: Final = (1, 32, 1024)


class Grid(msgspec.Struct, frozen=True, kw_only=True):
    """Milliseconds at the points of the grid, 32-bit floats in the order of the axes; no collectives: unknown."""

    decode: bytes
    prefill: bytes
    beside: bytes
    collectives: bytes | None = None


class Asked(Protocol):
    """What a grid is sampled from; whole numbers only."""

    def decode_ms(self, batch: int, context_tokens: int) -> float:
        """Return one decode step."""
        ...

    def collectives_ms(self, batch: int) -> float | None:
        """Return the collectives' part of a decode step."""
        ...

    def prefill_ms(self, prompt_tokens: int, cached_tokens: int) -> float:
        """Return one step of a prompt."""
        ...

    def beside_ms(
        self, chunk_tokens: int, prompt_tokens: int, cached_tokens: int, batch: int
    ) -> float:
        """Return what a chunk adds to a decode step."""
        ...


def sample(asked: Asked) -> Grid:
    """Ask for every point of the grid once."""
    collectives = [asked.collectives_ms(batch) for batch in BATCHES]
    told = [each for each in collectives if each is not None]
    return Grid(
        decode=_packed(
            asked.decode_ms(batch, context) for batch in BATCHES for context in CONTEXTS
        ),
        prefill=_packed(
            asked.prefill_ms(fresh + cached, cached) for fresh in FRESH for cached in CACHED
        ),
        beside=_packed(
            asked.beside_ms(min(CHUNK_TOKENS, fresh), fresh + cached, cached, batch)
            for fresh in BESIDE_FRESH
            for cached in CACHED
            for batch in BESIDE_BATCHES
        ),
        collectives=_packed(told) if len(told) == len(collectives) else None,
    )


def _packed(values: Iterable[float]) -> bytes:
    return array("f", values).tobytes()


def _unpacked(data: bytes, count: int) -> "array[float]":
    found = array("f")
    found.frombytes(data)
    if len(found) != count:
        raise ValueError(f"a grid of {count} points has {len(found)}")
    return found


class GridTimes:
    """Step times between the points of a grid. Raises ValueError for one of another shape."""

    def __init__(
        self, grid: Grid, source: EstimateSource, notes: tuple[str, ...], *, extended: bool
    ) -> None:
        self.source = source
        self.notes = notes
        self.extended = extended
        self._decode = _unpacked(grid.decode, len(BATCHES) * len(CONTEXTS))
        self._prefill = _unpacked(grid.prefill, len(FRESH) * len(CACHED))
        self._beside = _unpacked(grid.beside, len(BESIDE_FRESH) * len(CACHED) * len(BESIDE_BATCHES))
        self._collectives = (
            None if grid.collectives is None else _unpacked(grid.collectives, len(BATCHES))
        )

    def decode_ms(self, batch: float, context_tokens: float) -> float:
        """Return one decode step of a batch at a context."""
        return _at(self._decode, ((BATCHES, batch), (CONTEXTS, context_tokens)))

    def communication_ms(self, batch: float, context_tokens: float) -> float | None:
        """Return the collectives' part of a decode step; they do not depend on the context."""
        return None if self._collectives is None else _at(self._collectives, ((BATCHES, batch),))

    def prefill_ms(
        self, prompt_tokens: float, cached_tokens: float, *, busy_share: float = 1.0
    ) -> float:
        """Return one step of a whole prompt; all attention groups have one, whatever is said."""
        return _at(self._prefill, ((FRESH, prompt_tokens - cached_tokens), (CACHED, cached_tokens)))

    def beside_ms(
        self,
        chunk_tokens: float,
        prompt_tokens: float,
        cached_tokens: float,
        batch: float,
        *,
        busy_share: float = 1.0,
    ) -> float:
        """Return what a chunk adds to a decode step; all attention groups have one, whatever is said."""
        fresh = prompt_tokens - cached_tokens if chunk_tokens >= CHUNK_TOKENS else chunk_tokens
        return _at(
            self._beside, ((BESIDE_FRESH, fresh), (CACHED, cached_tokens), (BESIDE_BATCHES, batch))
        )


def _at(values: "array[float]", where: Sequence[tuple[Sequence[int], float]]) -> float:
    """Return the value at a place, by linear interpolation along every axis."""
    corners = [(0, 1.0)]
    for axis, place in where:
        low, part = _between(axis, place)
        corners = [
            (index * len(axis) + at, weight * share)
            for index, weight in corners
            for at, share in ((low, 1.0 - part), (low + 1, part))
            if share
        ]
    return max(0.0, sum(values[index] * weight for index, weight in corners))


def _between(axis: Sequence[int], place: float) -> tuple[int, float]:
    """Return the point below a place and how far (0 to 1) it lies towards the next; beyond the ends it goes on."""
    low = min(max(bisect_right(axis, place) - 1, 0), len(axis) - 2)
    return low, (place - axis[low]) / (axis[low + 1] - axis[low])
