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

Size = tuple[int, int]
"""Columns and rows of a matrix, `n` and `k` in the tables."""


def kept_sizes(tokens: Any, columns: Any, depth: Any, asked: Sequence[Size]) -> Any:
    """Return which rows of a table of one width are kept for the sizes asked of it; arrays of whole numbers."""
    import numpy

    if not len(tokens):
        return numpy.zeros(0, dtype=bool)
    keys = _key(columns, depth)
    order = numpy.argsort(keys, kind="stable")
    begins = numpy.diff(keys[order], prepend=keys.min() - 1) > 0
    starts = numpy.flatnonzero(begins)
    sizes = keys[order][starts]
    place = numpy.empty(len(keys), dtype=numpy.int64)
    place[order] = numpy.cumsum(begins) - 1
    swept = tokens[order]
    reach = _key(numpy.minimum.reduceat(swept, starts), numpy.maximum.reduceat(swept, starts))
    measured = numpy.log2(numpy.stack([columns[order][starts], depth[order][starts]]))
    reaches = [numpy.flatnonzero(reach == each) for each in sorted(set(reach.tolist()))]
    kept = numpy.zeros(len(sizes), dtype=bool)
    for size in asked:
        exact = sizes == _key(*numpy.array(size, dtype=numpy.int64))
        if exact.any():
            kept |= exact
            continue
        away = numpy.hypot(*(measured - numpy.log2(numpy.array(size)).reshape(2, 1)))
        for alike in reaches:
            kept[alike[_near(away[alike])]] = True
    return kept[place]


def _near(away: Any) -> Any:
    """Return which of the sizes of one reach stay, by their distances in doublings."""
    import numpy

    if len(away) <= _NEAREST or away.min() > _DOUBLINGS:
        return numpy.ones(len(away), dtype=bool)
    return away <= numpy.partition(away, _NEAREST - 1)[_NEAREST - 1] + _ROUNDING


def _key(first: Any, second: Any) -> Any:
    """Return two whole numbers below 2^31 as one."""
    return (first << 32) | second
