"""Intervals that hold a measured time in nine of ten cases.

The process of `correction` says how uncertain a corrected time is relative to others: less near what was measured, more
in a group where nothing was. How wide the interval must be in those deviations is taken from measured errors: the
90% quantile of |error| / deviation over rows that had no part in the correction (split conformal, Vovk 2005), apart by
how many rows calibrate, and, where none does, by hardware and engine as far as several models were measured on them.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from trimtab.core.layout import Span
from trimtab.planning.correction import Factor, Phase

COVER: Final = 0.9


class Widths(msgspec.Struct, frozen=True, kw_only=True):
    """Half widths of intervals, in deviations.

    `overall`: by phase, pairs of (calibrating rows at least, width), ascending from 0 rows. `by_server`: by phase,
    hardware and engine, where nothing calibrates.
    """

    overall: Mapping[Phase, tuple[tuple[int, float], ...]]
    by_server: Mapping[tuple[Phase, str, str], float] = {}

    def of(self, phase: Phase, system: str, engine: str, rows: int) -> float:
        """Return the half width for a server's hardware and engine of whose model `rows` rows calibrate."""
        found = [width for least, width in self.overall[phase] if least <= rows][-1]
        return self.by_server.get((phase, system, engine), found) if rows == 0 else found


def span(expected_ms: float, factor: Factor, width: float) -> Span:
    """Return the corrected time with its interval; `width` in deviations of the factor's logarithm."""
    value = expected_ms * factor.factor
    reach = math.exp(width * factor.log_sd)
    return Span(value=value, low=value / reach, high=value * reach, cover=COVER)


def conformal_width(scaled_errors: Sequence[float], cover: float = COVER) -> float:
    """Return the smallest width that holds `cover` of new errors, given |error| / deviation of exchangeable ones.

    The quantile of rank ceil((n + 1) x cover); raises ValueError where so few errors cannot promise that cover.
    """
    rank = math.ceil((len(scaled_errors) + 1) * cover)
    if rank > len(scaled_errors):
        raise ValueError(f"{len(scaled_errors)} errors cannot promise {cover:.0%} cover")
    return sorted(scaled_errors)[rank - 1]
