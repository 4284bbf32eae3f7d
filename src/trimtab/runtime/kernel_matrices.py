"""Which measured matrices a model's own are timed by: of hundreds of sizes in a table, a few dozen.

The package times a matrix by the sweep over tokens that was measured of its very size. Of one that nobody measured it
takes the nearest four, in doublings of width and depth, whose sweeps reach as many tokens as are asked for; beyond
two doublings it looks for the largest that there are. So of the other sizes those stay that can be among the nearest
four: twice as many for each reach of a sweep, and all of a reach where none is within two doublings.
"""

from collections.abc import Sequence
from typing import Any, Final

_NEAREST: Final = 8
_DOUBLINGS: Final = 2.0
_ROUNDING: Final = 1e-9

_COUNTED_MAX: Final = 1 << 22
"""Numbers up to here are looked up in an array of all that there are, without sorting them."""

Size = tuple[int, int]
"""Columns and rows of a matrix, `n` and `k` in the tables."""


def kept_sizes(tokens: Any, columns: Any, depth: Any, asked: Sequence[Size]) -> Any:
    """Return which rows of a table of one width are kept for the sizes asked of it; arrays of whole numbers."""
    import numpy

    if not len(tokens):
        return numpy.zeros(0, dtype=bool)
    wide, widths = _numbered(columns)
    deep, depths = _numbered(depth)
    wide *= len(depths)  # in place: new memory takes as long to get as to fill
    wide += deep
    place, keys = _numbered(wide)
    measured = [(int(widths[key // len(depths)]), int(depths[key % len(depths)])) for key in keys]
    kept = numpy.zeros(len(keys), dtype=bool)
    at = {size: number for number, size in enumerate(measured)}
    kept[[at[size] for size in asked if size in at]] = True
    others = [size for size in asked if size not in at]
    if others:
        apart = numpy.log2(numpy.array(measured, dtype=float).T)
        reaches = _of_one_reach(tokens, place, len(keys))
        for size in others:
            away = numpy.hypot(*(apart - numpy.log2(numpy.array(size)).reshape(2, 1)))
            for alike in reaches:
                kept[alike[_near(away[alike])]] = True
    return kept[place]


def _of_one_reach(tokens: Any, place: Any, count: int) -> list[Any]:
    """Return the sizes whose sweeps are over the same span of tokens, for each span; `place`: of each row its size."""
    import numpy

    # numbers of 16 bit are sorted by their digits, which takes a tenth of the time
    order = numpy.argsort(place.astype(numpy.min_scalar_type(count)), kind="stable")
    starts = numpy.concatenate([[0], numpy.cumsum(numpy.bincount(place, minlength=count))[:-1]])
    swept = tokens[order]
    reach = _key(numpy.minimum.reduceat(swept, starts), numpy.maximum.reduceat(swept, starts))
    return [numpy.flatnonzero(reach == each) for each in sorted(set(reach.tolist()))]


def _numbered(values: Any) -> tuple[Any, Any]:
    """Return of whole numbers which they are of those that occur, and these in their order."""
    import numpy

    largest = int(values.max())
    if largest > _COUNTED_MAX:
        found, numbers = numpy.unique(values, return_inverse=True)
        return numbers.astype(numpy.int32), found
    occurs = numpy.zeros(largest + 1, dtype=bool)
    occurs[values] = True
    found = numpy.flatnonzero(occurs)
    known = numpy.zeros(largest + 1, dtype=numpy.int32)
    known[found] = numpy.arange(len(found), dtype=numpy.int32)
    return known[values], found


def _near(away: Any) -> Any:
    """Return which of the sizes of one reach stay, by their distances in doublings."""
    import numpy

    if len(away) <= _NEAREST or away.min() > _DOUBLINGS:
        return numpy.ones(len(away), dtype=bool)
    return away <= numpy.partition(away, _NEAREST - 1)[_NEAREST - 1] + _ROUNDING


def _key(first: Any, second: Any) -> Any:
    """Return two whole numbers below 2^31 as one."""
    return (first << 32) | second
