"""When drafting pays: what a step costs by batch and by what it verifies, which gives tokens per time.

Law, for `batch` streams that draft in a part `p` of their steps, `L` tokens a draft:

    step_ms(batch, p, L) = sum over x of Binomial(batch, p)(x) * ms(batch, x * L / batch)
    tokens per second    = 1000 * batch * tokens_per_step / step_ms

`ms(batch, d)` is measured: `batch` streams in step, each verifying `d` drafted tokens in the mean; straight lines
between the measured points, the last one going on beyond them. Two lines are kept apart: steps of an engine that cannot
draft, and steps of one that can and drafts nothing ("off inside the engine"), which pays for looking.

From which batch on that is no more than without drafts, at equal batch, is in `core.break_even`;
`levers.speculation_depths` makes the ratios for it.

Failure modes: streams are taken to draft independently, so copies of one request in lock step are costlier than told;
what a step costs grows with the context, so it holds for contexts like those it was measured with.

Source: Liu et al., "Optimizing Speculative Decoding for Serving Large Language Models Using Goodput" (SmartSpec), 2024.
"""

import math
from collections.abc import Sequence
from typing import Final

import msgspec

from trimtab.policies.ngram_drafts import DraftCounts

DEPTH_OFF: Final = 0
NEAR: Final = 0.5
"""Points whose x differ by less are one: their difference in y is noise, and would make a slope of any size."""


class StepMeasured(msgspec.Struct, frozen=True, kw_only=True):
    """Steps of `batch` streams of which each verified `drafted` tokens in the mean: milliseconds a step."""

    batch: int
    drafted: float
    ms: float
    steps: int = 1


class StepTimes(msgspec.Struct, frozen=True, kw_only=True):
    """Measured steps: `plain` of an engine that cannot draft, `drafting` of one that can."""

    plain: tuple[StepMeasured, ...]
    drafting: tuple[StepMeasured, ...]

    def plain_ms(self, batch: float) -> float:
        """Milliseconds of a step without any drafts; raises `ValueError` without a measurement."""
        return on_line(sorted({one.batch: one.ms for one in self.plain}.items()), batch)

    def drafting_ms(self, batch: int, drafted: float) -> float:
        """Milliseconds of a step that verifies `drafted` tokens of each stream; raises `ValueError` as above.

        Never less than that of a step that verifies nothing: no noise makes work free.
        """
        batches = sorted({one.batch for one in self.drafting})
        told = on_line([(at, self._at(at, drafted)) for at in batches], batch)
        none = on_line([(at, self._at(at, 0.0)) for at in batches], batch)
        return max(told, none, self.plain_ms(batch)) if self.plain else max(told, none)

    def _at(self, batch: int, drafted: float) -> float:
        points = [(one.drafted, one.ms) for one in self.drafting if one.batch == batch]
        return on_line(sorted(points), drafted)

    def expected_ms(self, batch: int, counts: DraftCounts) -> float:
        """Milliseconds of a step where drafts come as `counts` say; see the module."""
        share, length = counts.draft_share or 0.0, counts.draft_tokens_mean or 0.0
        return math.fsum(
            math.comb(batch, drafting)
            * share**drafting
            * (1.0 - share) ** (batch - drafting)
            * self.drafting_ms(batch, drafting * length / batch)
            for drafting in range(batch + 1)
        )


class Predicted(msgspec.Struct, frozen=True, kw_only=True):
    """What `batch` streams get at one depth: a stream's milliseconds a token, and all streams' tokens per second."""

    batch: int
    depth: int
    step_ms: float
    tokens_per_step: float

    @property
    def tpot_ms(self) -> float:
        """Milliseconds of a stream's output token."""
        return self.step_ms / self.tokens_per_step

    @property
    def tokens_per_s(self) -> float:
        """Output tokens per second of all streams."""
        return 1000.0 * self.batch / self.tpot_ms


def predict(times: StepTimes, batch: int, depth: int, counts: DraftCounts) -> Predicted:
    """Predict one depth; at depth 0 `counts` do not matter."""
    if depth == DEPTH_OFF:
        return Predicted(
            batch=batch, depth=depth, step_ms=times.plain_ms(batch), tokens_per_step=1.0
        )
    return Predicted(
        batch=batch,
        depth=depth,
        step_ms=times.expected_ms(batch, counts),
        tokens_per_step=counts.tokens_per_step or 1.0,
    )


def on_line(points: Sequence[tuple[float, float]], at: float) -> float:
    """Return the value at `at` on straight lines through points with rising x; beyond them the last line goes on.

    Points nearer than `NEAR` are one. Raises `ValueError` without points. With one point its value holds everywhere.
    """
    if not points:
        raise ValueError("no step was measured")
    points = _merged(points)
    if len(points) == 1:
        return points[0][1]
    place = next((n for n in range(1, len(points)) if at <= points[n][0]), len(points) - 1)
    (x1, y1), (x2, y2) = points[place - 1], points[place]
    if at < x1:
        return y1
    return y1 + (y2 - y1) * (at - x1) / (x2 - x1)


def _merged(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return the means of points that lie within `NEAR` of the first of them."""
    groups: list[list[tuple[float, float]]] = []
    for point in points:
        if groups and point[0] - groups[-1][0][0] < NEAR:
            groups[-1].append(point)
        else:
            groups.append([point])
    return [
        (math.fsum(x for x, _ in each) / len(each), math.fsum(y for _, y in each) / len(each))
        for each in groups
    ]
