"""What a prefill, a decode step and a speculated step cost on a replica: fitted from measurements.

Model (per replica; milliseconds):
    prefill(n)      = prefill_base_ms + prefill_ms_per_token * n            n = uncached prompt tokens
    token(b)        = step_base_ms + step_ms_per_stream * b                 b = decoding streams
    step(b)         = token(b) * tokens_per_step
Decode is bound by memory bandwidth where the base (reading the weights once per step) dominates a step, and by
compute where the part that grows with the batch does. Routing, diagnosis and simulation share this model.
"""

from collections.abc import Sequence
from typing import Final

import msgspec

from trimtab.core.break_even import (
    BreakEven,
    MeasuredRatio,
    break_even,
    first_loss,
    measured_ratio,
)
from trimtab.core.revision import Speculation
from trimtab.core.stats import Interval, ratio_interval

TOLD_SHARE_MIN: Final = 0.5
"""Part of what was timed whose tokens per step must be known for their mean to stand for all."""


class CostModel(msgspec.Struct, frozen=True, kw_only=True):
    """Fitted costs of one replica with the sample counts behind them; `source` says how they came to be.

    `tokens_per_step`: what a step gave a stream where steps were timed, 1 without drafts, None where nobody counted.
    `step_base_ms` and `step_ms_per_stream` are milliseconds of a token of one stream: of a step over this.
    """

    prefill_base_ms: float
    prefill_ms_per_token: float
    step_base_ms: float
    step_ms_per_stream: float
    prefill_samples: int
    step_samples: int
    source: str
    tokens_per_step: float | None = 1.0

    @property
    def tokens_of_step(self) -> float:
        """Tokens that a step gave a stream where steps were timed; where nobody counted the least there can be, 1."""
        return self.tokens_per_step or 1.0

    @property
    def idle_step_ms(self) -> float | None:
        """Milliseconds of a whole step of a stream that is alone, whatever drafts gave it; None is unknown."""
        return None if self.tokens_per_step is None else self.step_ms(1.0) * self.tokens_per_step

    def prefill_ms(self, tokens: float) -> float:
        """Predicted milliseconds to prefill `tokens` uncached tokens; 0 tokens cost nothing."""
        return 0.0 if tokens <= 0 else self.prefill_base_ms + self.prefill_ms_per_token * tokens

    def step_ms(self, batch: float) -> float:
        """Predicted milliseconds of a token of each of `batch` streams: of a step, where no drafts give it more."""
        return self.step_base_ms + self.step_ms_per_stream * max(1.0, batch)

    def whole_step_ms(self, batch: float) -> float:
        """Predicted milliseconds of one step with `batch` streams, whatever drafts give it; untold: a floor."""
        return self.step_ms(batch) * self.tokens_of_step

    def tpot_ms(self, batch: float, tokens_per_step: float | None) -> float:
        """Predicted milliseconds of a token of a stream where a step gives it so many, None: as many as when timed."""
        if not tokens_per_step or self.tokens_per_step is None:
            return self.step_ms(batch)
        return self.whole_step_ms(batch) / tokens_per_step

    def decode_ms(self, tokens: float, batch: float) -> float:
        """Predicted milliseconds to decode `tokens` output tokens in a batch of `batch` streams."""
        return max(0.0, tokens) * self.step_ms(batch)

    def at_chunk(self, measured_tokens: int, other_tokens: int) -> "CostModel":
        """Return the costs of the same replica with another prefill chunk than it was measured with.

        Each chunk is a step, and every step has the base once: a prompt token has a chunk's share of it.
        """
        moved = (
            self.step_base_ms * self.tokens_of_step * (1.0 / other_tokens - 1.0 / measured_tokens)
        )
        per_token = max(0.0, self.prefill_ms_per_token + moved)
        return msgspec.structs.replace(self, prefill_ms_per_token=per_token)

    def bandwidth_share_of_step(self, batch: float) -> float:
        """Part of a step (0 to 1) that does not grow with the batch: the shared reading of the weights."""
        return self.step_base_ms / self.step_ms(batch)


class StepPoint(msgspec.Struct, frozen=True, kw_only=True):
    """Aggregate decode speed at one batch size, speculation off or on, from interleaved runs.

    `rounds`: tokens per second of each run, in the order of the other side's, so that both can be paired; empty where
    they were not kept.
    """

    batch: int
    tokens_per_s: float
    samples: int
    accepted_per_step: float | None = None
    rounds: tuple[float, ...] = ()


class SpeculationTable(msgspec.Struct, frozen=True, kw_only=True):
    """Measured aggregate output tokens per second by batch, without and with speculation."""

    speculation: Speculation
    off: tuple[StepPoint, ...]
    on: tuple[StepPoint, ...]
    content: str

    def ratios(self) -> tuple[tuple[int, float], ...]:
        """Return (batch, on/off throughput) for the batches measured on both sides, in rising order."""
        off = {point.batch: point.tokens_per_s for point in self.off}
        pairs = (
            (point.batch, point.tokens_per_s / off[point.batch])
            for point in self.on
            if point.batch in off
        )
        return tuple(sorted(pairs))

    def gains(self) -> tuple[MeasuredRatio, ...]:
        """Return the same ratios with their intervals, paired by round; without one where rounds are too few."""
        off = {point.batch: point.rounds for point in self.off}
        on = {point.batch: point.rounds for point in self.on}
        return tuple(
            measured_ratio(batch, ratio, _interval(off[batch], on[batch]))
            for batch, ratio in self.ratios()
        )

    def break_even(self) -> BreakEven:
        """Return where drafting stops to pay, with its range; raises `ValueError` without a common batch."""
        return break_even(self.gains())

    def break_even_batch(self) -> float | None:
        """Batch at which aggregate throughput with speculation falls to that without it; see `first_loss`.

        The middle of what `break_even` tells: enough of a table that was computed and has no noise.
        """
        return first_loss(self.ratios())


def _interval(off: Sequence[float], on: Sequence[float]) -> Interval | None:
    """Return the interval of on over off; rounds of unequal number cannot be paired."""
    return ratio_interval(off, on) if len(off) == len(on) else None


def fit_line(points: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Least squares (intercept, slope) of (x, y) points, both kept at or above 0.

    With one distinct x the line goes through the origin. Raises ValueError without points.
    """
    if not points:
        raise ValueError("a line needs at least one point")
    mean_x = sum(x for x, _ in points) / len(points)
    mean_y = sum(y for _, y in points) / len(points)
    spread = sum((x - mean_x) ** 2 for x, _ in points)
    if spread == 0.0:
        return (0.0, mean_y / mean_x) if mean_x else (mean_y, 0.0)
    slope = max(0.0, sum((x - mean_x) * (y - mean_y) for x, y in points) / spread)
    intercept = mean_y - slope * mean_x
    if intercept >= 0.0:
        return intercept, slope
    return 0.0, sum(x * y for x, y in points) / sum(x * x for x, _ in points)


START_COST: Final = CostModel(
    prefill_base_ms=0.0,
    prefill_ms_per_token=1.0,
    step_base_ms=2.0,
    step_ms_per_stream=0.5,
    prefill_samples=0,
    step_samples=0,
    source="not calibrated: only the proportions matter until it is",
)
"""What is routed with before anything was measured."""
