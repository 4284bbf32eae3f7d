"""Builds readings of one source and window: values with sample counts and block intervals, or unknowns."""

import math
from collections.abc import Sequence

import msgspec

from trimtab.core.evidence import Evidence, Reading, Readings, Unknown, Window
from trimtab.core.stats import Interval, mean_interval

BLOCKS = 10
"""A window is cut into this many blocks; requests of one block share its load and count as one."""


class Tally:
    """Collects readings in order. Ids are `prefix/name`, so that equal inputs give equal ids."""

    def __init__(self, *, window: Window, source: str, id_prefix: str) -> None:
        self._window = window
        self._source = source
        self._prefix = id_prefix
        self._items: list[Reading] = []

    def add(
        self,
        name: str,
        value: float,
        unit: str,
        *,
        samples: int | None = None,
        interval: Interval | None = None,
        note: str = "",
    ) -> None:
        """Add one measured value."""
        self._items.append(
            Evidence(
                id=f"{self._prefix}/{name}",
                name=name,
                value=float(value),
                unit=unit,
                source=self._source,
                window=self._window,
                samples=samples,
                interval=interval,
                note=note,
            )
        )

    def unknown(self, name: str, reason: str) -> None:
        """Add a value that cannot be told."""
        self._items.append(Unknown(name, reason))

    def ratio(
        self, name: str, part: float, whole: float, unit: str, *, samples: int, reason: str
    ) -> None:
        """Add part / whole, or unknown with the reason if there is no whole."""
        if whole > 0:
            self.add(name, part / whole, unit, samples=samples)
        else:
            self.unknown(name, reason)

    def mean(
        self, name: str, values: Sequence[float], blocks: Sequence[int], unit: str, *, reason: str
    ) -> None:
        """Add a mean of values >= 0 with its block interval, or unknown with the reason if there are none."""
        if not values:
            self.unknown(name, reason)
            return
        interval = mean_interval(values, blocks=blocks)
        if interval is not None and interval.low < 0.0 <= min(values):
            interval = Interval(0.0, interval.high, interval.level)
        self.add(
            name, math.fsum(values) / len(values), unit, samples=len(values), interval=interval
        )

    def done(self) -> Readings:
        """Return everything added so far."""
        return Readings(tuple(self._items))


class Share(msgspec.Struct, frozen=True):
    """A share of a total with its block interval, None with fewer than two blocks."""

    value: float
    interval: Interval | None


def share_of(
    parts: Sequence[float], totals: Sequence[float], blocks: Sequence[int]
) -> Share | None:
    """Return sum(parts) / sum(totals) with an interval; None if the totals sum to 0.

    Ratio estimator: the interval of the mean residual part - R * total, divided by the mean total.
    """
    whole = math.fsum(totals)
    if whole <= 0:
        return None
    value = math.fsum(parts) / whole
    residuals = [part - value * total for part, total in zip(parts, totals, strict=True)]
    around = mean_interval(residuals, blocks=blocks)
    if around is None:
        return Share(value, None)
    mean_total = whole / len(totals)
    return Share(
        value,
        Interval(
            low=max(0.0, value + around.low / mean_total),
            high=max(value, value + around.high / mean_total),
            level=around.level,
        ),
    )


def block_of(at_s: float, window: Window) -> int:
    """Return the block (0 to BLOCKS - 1) of a moment in a window; moments outside go to the nearest."""
    if window.length_s <= 0:
        return 0
    return min(BLOCKS - 1, max(0, int((at_s - window.start_s) / window.length_s * BLOCKS)))
