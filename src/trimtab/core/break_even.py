"""Where drafting stops to pay: from ratios of throughput by batch, and their intervals over rounds.

Law: a gain at a batch is shown where the low end of the 95% interval of the ratio, paired by round, lies above 1. The
break-even is where the ratio, on straight lines between the batches, first falls to 1; its range is where the two ends
of the intervals do. Drafts go off at the lower end, so never where no gain is shown.

Failure mode: few rounds give wide intervals, and one gives none: then drafts stay off where more rounds might have
shown a gain, and the reason says so.
"""

import itertools
import math
from collections.abc import Sequence
from typing import Final

import msgspec

from trimtab.core.stats import Interval

ROUNDS_MIN: Final = 2
"""Rounds that an interval needs."""


class MeasuredRatio(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens per second with drafts over without at one batch, with its interval where there is one."""

    batch: int
    ratio: float
    low: float | None = None
    high: float | None = None

    @property
    def is_shown(self) -> bool:
        """Whether it is a gain beyond noise."""
        return self.low is not None and self.low > 1.0

    @property
    def told(self) -> str:
        """It in words, with its interval."""
        if self.low is None or self.high is None:
            return f"{self.ratio:.2f}x at {self.batch} (too few paired rounds for an interval)"
        return f"{self.ratio:.2f}x [{self.low:.2f}, {self.high:.2f}] at {self.batch}"


def measured_ratio(batch: int, ratio: float, interval: Interval | None) -> MeasuredRatio:
    """Join a ratio with the interval measured over rounds; one outside of it gives way to the nearer end."""
    if interval is None:
        return MeasuredRatio(batch=batch, ratio=ratio)
    ratio = min(max(ratio, interval.low), interval.high)
    return MeasuredRatio(batch=batch, ratio=ratio, low=interval.low, high=interval.high)


class BreakEven(msgspec.Struct, frozen=True, kw_only=True):
    """The batch where drafting stops to pay. None: above every batch measured, or not known for a bound.

    0.0: it does not pay at the smallest batch. `low`: up to there it pays for sure; `high`: from there on it loses for
    sure. `measured_to`: the last batch below `untold_from`, the first one with too few rounds for an interval.
    """

    batch: float | None
    low: float | None
    high: float | None
    measured_to: int
    untold_from: int | None = None

    @property
    def off_at(self) -> float:
        """The batch above which drafting goes off: `low`, to a tenth of a stream below it, or the largest measured.

        So it is on only where its gain is shown, and not up to where it is about nothing.
        """
        return float(self.measured_to) if self.low is None else math.floor(10.0 * self.low) / 10.0

    @property
    def told(self) -> str:
        """It in words, with its range."""
        return f"{self._range_words()}{self._untold_words()}"

    def _range_words(self) -> str:
        if self.batch is None:
            words = f"not reached up to batch {self.measured_to} measured"
            return words if self.low is None else f"{words}, may lie as low as {self.low:.1f} (95%)"
        low = self.measured_to if self.low is None else self.low
        high = f"over {self.measured_to}" if self.high is None else f"{self.high:.1f}"
        at = "no gain at the smallest batch" if self.batch == 0.0 else f"{self.batch:.1f} streams"
        return f"{at} [{low:.1f}, {high}]"

    def _untold_words(self) -> str:
        if self.untold_from is None:
            return ""
        return f"; batch {self.untold_from} has too few paired rounds for an interval"


def break_even(ratios: Sequence[MeasuredRatio]) -> BreakEven:
    """Find the break-even among the batches of some ratios; raises `ValueError` without any.

    Its range comes from the batches below the first one without an interval: from there on nothing is known. Without
    any interval its range is told as the widest: 0 and None.
    """
    if not ratios:
        raise ValueError("no batch was measured with and without drafts")
    told = sorted(ratios, key=lambda one: one.batch)
    known = list(itertools.takewhile(lambda one: one.low is not None, told))
    lows = [(one.batch, one.low) for one in known if one.low is not None]
    highs = [(one.batch, one.high) for one in known if one.high is not None]
    return BreakEven(
        batch=first_loss([(one.batch, one.ratio) for one in told]),
        low=first_loss(lows) if known else 0.0,
        high=first_loss(highs) if known else None,
        measured_to=(known or told)[-1].batch,
        untold_from=None if len(known) == len(told) else told[len(known)].batch,
    )


def first_loss(ratios: Sequence[tuple[int, float]]) -> float | None:
    """Return the batch from which on a ratio of throughput is 1 or less, of (batch, ratio) in rising order.

    Linear interpolation between the measured batches, at the first crossing: an engine may change kernels and
    gain again above it, but up to there nothing was lost. None: it paid at every measured batch. 0.0: not even
    at the smallest.
    """
    if not ratios:
        return None
    if ratios[0][1] <= 1.0:
        return 0.0
    for (batch_a, ratio_a), (batch_b, ratio_b) in itertools.pairwise(ratios):
        if ratio_b <= 1.0:
            return batch_a + (batch_b - batch_a) * (ratio_a - 1.0) / (ratio_a - ratio_b)
    return None
