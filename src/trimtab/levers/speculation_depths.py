"""How deep to draft at which batch, and from which batch on not at all: both from one fit, so they never disagree.

Law, of aggregate tokens per second at equal batch:

    gain(batch, k)  predicted with drafts of k tokens over predicted without; where the measured 95% interval of the
                    same batch and depth excludes it, the nearer end of that interval
    best(batch)     the largest gain over the depths; of equals the shallowest
    break-even      where best(batch), on straight lines between the batches, first falls to 1
    depth(batch)    that of best(batch) below the break-even, 0 from there on

Each end of the break-even is where the same end of the measured intervals falls to 1. A gain that comes back above the
break-even is not used: what was lost below it would have to be crossed.

Failure modes: few rounds give wide intervals, which correct no prediction; then the range is wide and says so.
"""

import math
from collections.abc import Sequence
from typing import Final

import msgspec

from trimtab.policies.speculation_model import BreakEven, MeasuredRatio, break_even
from trimtab.quality.ladder import Ratio

CHOICE_LOSS_MAX: Final = 0.05
"""How much less than the best measured depth the chosen one may give."""
BATCH_MAX: Final = 256
"""Up to where a table of depths goes; beyond what was measured nothing is drafted."""


class PointFigures(msgspec.Struct, frozen=True, kw_only=True):
    """One batch and depth: predicted and measured milliseconds a token of a stream, and the ratio to no drafts.

    `tokens_per_s`: measured with drafts over without, all streams together, paired by round.
    """

    batch: int
    depth: int
    predicted_tpot_ms: float
    measured_tpot_ms: float
    tokens_per_s: Ratio | None

    @property
    def error(self) -> float:
        """Predicted over measured, less 1."""
        return self.predicted_tpot_ms / self.measured_tpot_ms - 1.0

    @property
    def measured_tokens_per_s(self) -> float:
        """Output tokens per second of all streams."""
        return 1000.0 * self.batch / self.measured_tpot_ms


class DepthChoice(msgspec.Struct, frozen=True, kw_only=True):
    """The depth for one batch, the best measured one, and how much less than that it gives."""

    batch: int
    depth: int
    best_measured: int
    loss: float
    holds: bool


class DepthPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The depth by batch, where every depth stops to pay, and where one depth does that a replica runs alone."""

    choices: tuple[DepthChoice, ...]
    break_even: BreakEven
    alone: BreakEven


def gains_of(points: Sequence[PointFigures], batch: int) -> dict[int, MeasuredRatio]:
    """Return the fitted gain of each depth but 0 at a batch, with its interval where one was measured."""
    here = [one for one in points if one.batch == batch]
    plain = next(one for one in here if one.depth == 0)
    return {
        one.depth: _gain(plain.predicted_tpot_ms / one.predicted_tpot_ms, one)
        for one in sorted(here, key=lambda each: each.depth)
        if one.depth
    }


def _gain(predicted: float, point: PointFigures) -> MeasuredRatio:
    low, high = bound(point.tokens_per_s, low=True), bound(point.tokens_per_s, low=False)
    if low is None or high is None:
        return MeasuredRatio(batch=point.batch, ratio=predicted)
    ratio = min(max(predicted, low), high)
    return MeasuredRatio(batch=point.batch, ratio=ratio, low=low, high=high)


def best_drafting(points: Sequence[PointFigures], batch: int) -> int:
    """Return the depth of most gain at a batch, 0 not among them; of equals the shallowest."""
    gains = gains_of(points, batch)
    return max(gains, key=lambda depth: (gains[depth].ratio, -depth))


def plan_depths(points: Sequence[PointFigures], alone: int) -> DepthPlan:
    """Return the plan for all batches of the points; `alone`: the one depth that a replica runs.

    Raises `ValueError` where no batch was measured with and without drafts.
    """
    batches = sorted({one.batch for one in points})
    gains = {batch: gains_of(points, batch) for batch in batches}
    best = {batch: best_drafting(points, batch) for batch in batches}
    even = break_even([gains[batch][best[batch]] for batch in batches])
    return DepthPlan(
        choices=tuple(
            _choice(
                [one for one in points if one.batch == batch],
                best[batch] if even.batch is None or batch < even.batch else 0,
            )
            for batch in batches
        ),
        break_even=even,
        alone=break_even([gains[batch][alone] for batch in batches]),
    )


def _choice(here: Sequence[PointFigures], depth: int) -> DepthChoice:
    """Compare a depth with the best measured one.

    It holds within `CHOICE_LOSS_MAX`, or where the interval of the best one's gain over no drafts reaches down to it.
    """
    chosen = next(one for one in here if one.depth == depth)
    best = min(here, key=lambda one: (one.measured_tpot_ms, one.depth))
    loss = 1.0 - best.measured_tpot_ms / chosen.measured_tpot_ms
    return DepthChoice(
        batch=chosen.batch,
        depth=depth,
        best_measured=best.depth,
        loss=loss,
        holds=loss <= CHOICE_LOSS_MAX or _reaches(best, chosen),
    )


def _reaches(best: PointFigures, chosen: PointFigures) -> bool:
    """Say whether both gains over no drafts are told apart by no interval; no drafts have the gain 1 exactly."""
    best_low = 1.0 if best.depth == 0 else bound(best.tokens_per_s, low=True)
    chosen_high = 1.0 if chosen.depth == 0 else bound(chosen.tokens_per_s, low=False)
    return best_low is not None and chosen_high is not None and best_low <= chosen_high


def bound(ratio: Ratio | None, *, low: bool) -> float | None:
    """Return one end of a ratio's interval, None where it has none."""
    if ratio is None or ratio.interval is None:
        return None
    return ratio.interval.low if low else ratio.interval.high


def depth_ranges(plan: DepthPlan) -> tuple[tuple[int, int, int], ...]:
    """Return rows (from batch, to batch, depth), as an engine takes them whose depth follows the batch.

    Between two measured batches holds what was chosen for the larger one, since a depth falls as batches grow; the
    last depth holds up to below the break-even.
    """
    rows: list[tuple[int, int, int]] = []
    start = 1
    for one in plan.choices:
        if one.depth == 0:
            break
        if rows and rows[-1][2] == one.depth:
            rows[-1] = (rows[-1][0], one.batch, one.depth)
        else:
            rows.append((start, one.batch, one.depth))
        start = one.batch + 1
    even = plan.break_even.batch
    if rows and even is not None:
        rows[-1] = (rows[-1][0], math.ceil(even) - 1, rows[-1][2])
        start = math.ceil(even)
    if start <= BATCH_MAX:
        rows.append((start, BATCH_MAX, 0))
    return tuple(rows)
