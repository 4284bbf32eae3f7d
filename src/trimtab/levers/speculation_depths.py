"""How deep to draft at which batch, and from which batch on not at all: both from the same intervals, so they agree.

Law, of aggregate tokens per second at equal batch:

    gain(batch, k)   predicted with drafts of k tokens over predicted without; where the measured 95% interval of the
                     same batch and depth excludes it, the nearer end of that interval
    shown(batch)     the depths whose measured interval over no drafts lies above 1
    choice(batch)    of shown(batch), those that no other of it beats: none whose interval over them, of the differences
                     round by round, lies above 1. Of these the shallowest. Nothing shown: no drafts
    break-even       where the largest gain over the depths, on straight lines between the batches, first falls to 1;
                     each end of its range is where the largest of the same ends of the intervals does
    depth(batch)     choice(batch) below the lower end of the break-even, 0 from there on

So a depth wins neither by noise (a wide interval has the largest mean soonest) nor by being the deepest of equals:
drafts cost verification, memory and lumpy output, so more of them must show that they give more. A gain that comes back
above a batch where none is shown is not used: that batch would have to be crossed.

Failure modes: few rounds give wide intervals, which show nothing; then nothing is drafted and the range is wide and
says so. Each comparison holds at 95% for itself: of many depths one may look better by chance, and the rollout is the
proof.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from trimtab.core.break_even import (
    BreakEven,
    MeasuredRatio,
    break_even,
    first_loss,
    measured_ratio,
)
from trimtab.quality.ladder import Ratio, ratio_of

CHOICE_LOSS_MAX: Final = 0.05
"""How much less than the best measured depth the chosen one may give."""
BATCH_MAX: Final = 256
"""Up to where a table of depths goes; beyond what was measured nothing is drafted."""


class PointFigures(msgspec.Struct, frozen=True, kw_only=True):
    """One batch and depth: predicted and measured milliseconds a token of a stream, and the ratio to no drafts.

    `tokens_per_s`: measured with drafts over without, all streams together, paired by round. `rounds`: tokens per
    second of each round, in their order, so that depths can be paired with each other.
    """

    batch: int
    depth: int
    predicted_tpot_ms: float
    measured_tpot_ms: float
    tokens_per_s: Ratio | None
    rounds: tuple[float, ...] = ()

    @property
    def error(self) -> float:
        """Predicted over measured, less 1."""
        return self.predicted_tpot_ms / self.measured_tpot_ms - 1.0

    @property
    def measured_tokens_per_s(self) -> float:
        """Output tokens per second of all streams."""
        return 1000.0 * self.batch / self.measured_tpot_ms


class DepthChoice(msgspec.Struct, frozen=True, kw_only=True):
    """The depth for one batch, the best measured one, and how much less than that it gives.

    `equals`: deeper ones whose gain is shown too and that are not shown to give more than `depth`.
    """

    batch: int
    depth: int
    best_measured: int
    loss: float
    holds: bool
    equals: tuple[int, ...] = ()


class DepthPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The depth by batch, where every depth stops to pay, and where one depth does that a replica runs alone.

    `shown_to`: the largest batch up to which the gain of the last choice is shown; 0 without any.
    """

    choices: tuple[DepthChoice, ...]
    break_even: BreakEven
    alone: BreakEven
    shown_to: int = 0


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
    interval = None if point.tokens_per_s is None else point.tokens_per_s.interval
    return measured_ratio(point.batch, predicted, interval)


def best_drafting(points: Sequence[PointFigures], batch: int) -> int:
    """Return the depth to draft at a batch, were anything drafted: by `choice` above; 0 is not among the depths.

    Where no gain is shown, the shallowest that no other is shown to beat.
    """
    depths = [one for one in points if one.batch == batch and one.depth]
    return _unbeaten([one for one in depths if is_shown(one)] or depths)[0].depth


def is_shown(point: PointFigures) -> bool:
    """Say whether a depth gives more than no drafts beyond noise."""
    low = bound(point.tokens_per_s, low=True)
    return low is not None and low > 1.0


def _unbeaten(depths: Sequence[PointFigures]) -> list[PointFigures]:
    """Return those that no other is shown to beat, the shallowest first; never none of some.

    Whoever is beaten has a lower mean over the same rounds than whoever beats it, so there is no ring.
    """
    return sorted(
        (one for one in depths if not any(_beats(other, one) for other in depths)),
        key=lambda one: one.depth,
    )


def _beats(one: PointFigures, other: PointFigures) -> bool:
    """Say whether a depth is shown to give more tokens per second than another one at the same batch.

    By the interval of their ratio over the rounds, which no noise widens that was on both; of figures without rounds by
    the two gains over no drafts, apart from each other.
    """
    if len(one.rounds) == len(other.rounds) > 1:
        low = bound(ratio_of(other.rounds, one.rounds), low=True)
        return low is not None and low > 1.0
    lower, upper = bound(one.tokens_per_s, low=True), bound(other.tokens_per_s, low=False)
    # No drafts have the gain 1 over no drafts exactly.
    lower, upper = (1.0 if not one.depth else lower), (1.0 if not other.depth else upper)
    return lower is not None and upper is not None and lower > upper


def plan_depths(points: Sequence[PointFigures], alone: int) -> DepthPlan:
    """Return the plan for all batches of the points; `alone`: the one depth that a replica runs.

    Raises `ValueError` where no batch was measured with and without drafts.
    """
    batches = sorted({one.batch for one in points})
    gains = {batch: gains_of(points, batch) for batch in batches}
    even = break_even([_largest(gains[batch]) for batch in batches])
    choices = tuple(
        _choice(
            [one for one in points if one.batch == batch],
            best_drafting(points, batch) if _drafts_at(even, batch) else 0,
        )
        for batch in batches
    )
    return DepthPlan(
        choices=choices,
        break_even=even,
        alone=break_even([gains[batch][alone] for batch in batches]),
        shown_to=_shown_to(choices, gains),
    )


def _drafts_at(even: BreakEven, batch: int) -> bool:
    """Say whether a gain is shown at a measured batch and at every smaller one."""
    return batch <= even.measured_to and (even.low is None or batch < even.low)


def _largest(gains: Mapping[int, MeasuredRatio]) -> MeasuredRatio:
    """Return what the depths of a batch give at most: the largest gain, and the largest of each end.

    An end is unknown where it is unknown of one of them.
    """
    every = list(gains.values())
    lows = [one.low for one in every if one.low is not None]
    highs = [one.high for one in every if one.high is not None]
    whole = len(lows) == len(highs) == len(every)
    return MeasuredRatio(
        batch=every[0].batch,
        ratio=max(one.ratio for one in every),
        low=max(lows) if whole else None,
        high=max(highs) if whole else None,
    )


def _shown_to(
    choices: Sequence[DepthChoice], gains: Mapping[int, Mapping[int, MeasuredRatio]]
) -> int:
    """Return up to which batch the gain of the last choice is shown, on a straight line to the next batch."""
    drafting = [one for one in choices if one.depth]
    if not drafting:
        return 0
    last = drafting[-1]
    here, after = gains[last.batch][last.depth].low, None
    if len(drafting) < len(choices):
        following = choices[len(drafting)].batch
        after = gains[following][last.depth].low
        if here is not None and after is not None:
            crossing = first_loss([(last.batch, here), (following, after)])
            return following - 1 if crossing is None else max(last.batch, math.ceil(crossing) - 1)
    return last.batch


def _choice(here: Sequence[PointFigures], depth: int) -> DepthChoice:
    """Compare a depth with the best measured one.

    It holds within `CHOICE_LOSS_MAX`, or where that one is not shown to give more.
    """
    chosen = next(one for one in here if one.depth == depth)
    best = min(here, key=lambda one: (one.measured_tpot_ms, one.depth))
    loss = 1.0 - best.measured_tpot_ms / chosen.measured_tpot_ms
    equals = _unbeaten([one for one in here if one.depth and is_shown(one)])
    return DepthChoice(
        batch=chosen.batch,
        depth=depth,
        best_measured=best.depth,
        loss=loss,
        holds=loss <= CHOICE_LOSS_MAX or not _beats(best, chosen),
        equals=tuple(one.depth for one in equals if depth and one.depth > depth),
    )


def bound(ratio: Ratio | None, *, low: bool) -> float | None:
    """Return one end of a ratio's interval, None where it has none."""
    if ratio is None or ratio.interval is None:
        return None
    return ratio.interval.low if low else ratio.interval.high


def depth_ranges(plan: DepthPlan) -> tuple[tuple[int, int, int], ...]:
    """Return rows (from batch, to batch, depth), as an engine takes them whose depth follows the batch.

    Between two measured batches holds what was chosen for the larger one, since a depth falls as batches grow; the
    last depth holds up to where its gain is shown.
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
    if rows:
        rows[-1] = (rows[-1][0], plan.shown_to, rows[-1][2])
        start = plan.shown_to + 1
    if start <= BATCH_MAX:
        rows.append((start, BATCH_MAX, 0))
    return tuple(rows)
