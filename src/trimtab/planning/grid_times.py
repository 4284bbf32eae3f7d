"""Step times on a fixed grid of sizes, interpolated between its points: small enough to keep for every layout.

    decode      batch x context
    prefill     fresh tokens x cached tokens
    beside      fresh tokens x cached tokens x streams that decode; a chunk is the whole prompt, at most 8,192 tokens
    collectives batch

Between two points times are interpolated linearly in each direction, beyond the last two they go on straight. Steps
are close to linear in each of those sizes (kernels are tiled, so tables have steps of their own), contexts and cached
tokens most of all; at the grid's points nothing is lost. Times never fall below 0.

Points are asked for when something between them is, a line at a time: all lengths of a prompt; at one context all
batches up to the one that is asked for, as more streams than were measured take tables a hundred times as long. So a
plan with less load asks nothing new, and the first plan of a model pays only for what it needs.
"""

import math
from array import array
from bisect import bisect_right
from collections.abc import Callable, Sequence
from functools import cache, lru_cache
from typing import Final, Protocol

import msgspec

from trimtab.core.layout import EstimateSource

_PLACES_MAX: Final = 16_384
"""Places on a grid that are remembered with the points around them."""

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
    """Milliseconds at the points of the grid, 32-bit floats in the order of the axes.

    Not a number: not asked for yet. Infinite collectives: they cannot be told from what overlaps them.
    """

    decode: bytes
    prefill: bytes
    beside: bytes
    collectives: bytes


class Asked(Protocol):
    """What the points of a grid are asked of; whole numbers only."""

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


class _Points:
    """The values of one kind of step, asked for a line of the grid at a time."""

    def __init__(
        self,
        axes: tuple[Sequence[int], ...],
        values: bytes,
        ask: Callable[..., float],
        *,
        line: int = 0,
        beyond: bool = False,
    ) -> None:
        """`line`: the axis along which everything up to a point is asked for with it; `beyond`: and all after it."""
        self._axes = axes
        self._corners = _corners_on(axes)
        self._last: tuple[tuple[float, ...], float] = ((), 0.0)
        self._ask = ask
        self._line = line
        self._beyond = beyond
        self._values = array("f")
        self._values.frombytes(values)
        count = math.prod(len(axis) for axis in axes)
        if len(self._values) != count:
            raise ValueError(f"a grid of {count} points has {len(self._values)}")
        self.grown = False

    @property
    def data(self) -> bytes:
        """All values, as they are stored."""
        return self._values.tobytes()

    def at(self, *places: float) -> float:
        """Return the value at a place, by linear interpolation along every axis; never below 0."""
        asked, told = self._last  # parts of a step are taken from the same one in turns
        if asked == places:
            return told
        total, values = 0.0, self._values
        for index, weight in self._corners(places):
            value = values[index]
            if value != value:  # unknown: not a number
                self._fill(index)
                value = values[index]
            total += value * weight
        told = max(0.0, total)
        self._last = (places, told)
        return told

    def complete(self) -> None:
        """Ask for everything that is not known yet."""
        for index in range(len(self._values)):
            if math.isnan(self._values[index]):
                self._fill(index)

    def _fill(self, index: int) -> None:
        line = self._axes[self._line]
        apart = math.prod(len(axis) for axis in self._axes[self._line + 1 :])
        at = index // apart % len(line)
        first = index - at * apart
        sizes = self._sizes(index)
        for place, size in enumerate(line if self._beyond else line[: at + 1]):
            known = first + place * apart
            if math.isnan(self._values[known]):
                sizes[self._line] = size
                self._values[known] = self._ask(*sizes)
        self.grown = True

    def _sizes(self, index: int) -> list[int]:
        """Return where a point lies on each axis."""
        sizes: list[int] = []
        for axis in reversed(self._axes):
            index, at = divmod(index, len(axis))
            sizes.append(axis[at])
        return sizes[::-1]


@cache
def empty_grid() -> Grid:
    """Return a grid of which nothing was asked yet."""

    def unknown(*axes: Sequence[int]) -> bytes:
        return array("f", [math.nan] * math.prod(len(axis) for axis in axes)).tobytes()

    return Grid(
        decode=unknown(BATCHES, CONTEXTS),
        prefill=unknown(FRESH, CACHED),
        beside=unknown(BESIDE_FRESH, CACHED, BESIDE_BATCHES),
        collectives=unknown(BATCHES),
    )


class GridTimes:
    """Step times between the points of a grid. Raises ValueError for one of another shape."""

    def __init__(
        self,
        grid: Grid,
        source: EstimateSource,
        notes: tuple[str, ...],
        *,
        extended: bool,
        asked: Callable[[], Asked],
    ) -> None:
        """`asked`: gives what points are asked of that the grid does not hold; called once, if there are any."""
        self.source = source
        self.notes = notes
        self.extended = extended
        asked = cache(asked)

        def collectives_ms(batch: int) -> float:
            told = asked().collectives_ms(batch)
            return math.inf if told is None else told

        self._decode = _Points(
            (BATCHES, CONTEXTS),
            grid.decode,
            lambda batch, context: asked().decode_ms(batch, context),
        )
        self._prefill = _Points(
            (FRESH, CACHED),
            grid.prefill,
            lambda fresh, cached: asked().prefill_ms(fresh + cached, cached),
            beyond=True,
        )
        self._beside = _Points(
            (BESIDE_FRESH, CACHED, BESIDE_BATCHES),
            grid.beside,
            lambda fresh, cached, batch: asked().beside_ms(
                min(CHUNK_TOKENS, fresh), fresh + cached, cached, batch
            ),
            line=2,
        )
        self._collectives = _Points((BATCHES,), grid.collectives, collectives_ms)
        self._all = (self._decode, self._prefill, self._beside, self._collectives)

    @property
    def grid(self) -> Grid:
        """All points, those that nobody asked for unknown."""
        decode, prefill, beside, collectives = (points.data for points in self._all)
        return Grid(decode=decode, prefill=prefill, beside=beside, collectives=collectives)

    @property
    def grown(self) -> bool:
        """Whether points were asked for that the grid did not hold at first."""
        return any(points.grown for points in self._all)

    def complete(self) -> None:
        """Ask for every point that is not known yet."""
        for points in self._all:
            points.complete()

    def decode_ms(self, batch: float, context_tokens: float) -> float:
        """Return one decode step of a batch at a context."""
        return self._decode.at(batch, context_tokens)

    def communication_ms(self, batch: float, context_tokens: float) -> float | None:
        """Return the collectives' part of a decode step; they do not depend on the context."""
        if math.isinf(self._collectives.at(BATCHES[0])):
            return None
        return self._collectives.at(batch)

    def prefill_ms(
        self, prompt_tokens: float, cached_tokens: float, *, busy_share: float = 1.0
    ) -> float:
        """Return one step of a whole prompt; all attention groups have one, whatever is said."""
        return self._prefill.at(prompt_tokens - cached_tokens, cached_tokens)

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
        return self._beside.at(fresh, cached_tokens, batch)


_Corners = tuple[tuple[int, float], ...]


@cache
def _corners_on(
    axes: tuple[Sequence[int], ...],
) -> Callable[[tuple[float, ...]], _Corners]:
    """Return what gives the points around a place on the axes and their weights.

    Layouts are asked at the same places again and again, so those are remembered.
    """

    @lru_cache(maxsize=_PLACES_MAX)
    def ends(along: int, place: float) -> _Corners:
        low, part = _between(axes[along], place)
        return tuple((at, share) for at, share in ((low, 1.0 - part), (low + 1, part)) if share)

    @lru_cache(maxsize=_PLACES_MAX)
    def corners_of(places: tuple[float, ...]) -> _Corners:
        corners = ends(0, places[0])
        for along in range(1, len(axes)):
            count, others = len(axes[along]), ends(along, places[along])
            corners = tuple(
                [
                    (index * count + at, weight * share)
                    for index, weight in corners
                    for at, share in others
                ]
            )
        return corners

    return corners_of


def _between(axis: Sequence[int], place: float) -> tuple[int, float]:
    """Return the point below a place and how far (0 to 1) it lies towards the next; beyond the ends it goes on."""
    low = min(max(bisect_right(axis, place) - 1, 0), len(axis) - 2)
    return low, (place - axis[low]) / (axis[low + 1] - axis[low])
