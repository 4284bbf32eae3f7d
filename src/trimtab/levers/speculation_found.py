"""What measuring speculation found: figures by batch and depth, by kind of traffic, and whether and where it pays.

It pays where four things hold: at the batch that is asked about and at every smaller one some depth is shown to give
more tokens per second than none (`levers.speculation_depths`), the one that a replica would run is, in at least one cut
a token takes less time, beyond noise too, and a replica of that one depth would still draft there: it goes off above
the batch up to which the gain of that depth is shown, which may lie lower where another depth is best below.
A cut that is bound to a schema is left out unless its answers were as valid with drafts as without: no gain buys an
answer that does not parse. A cut that shows no gain is left out; nothing is claimed of one that was not measured.
"""

from collections.abc import Sequence
from enum import StrEnum
from typing import Final

import msgspec

from trimtab.core.break_even import BreakEven
from trimtab.core.cost import SpeculationTable
from trimtab.core.revision import Speculation
from trimtab.core.types import Constraint
from trimtab.levers.speculation_depths import (
    DepthChoice,
    DepthPlan,
    PointFigures,
    best_drafting,
)
from trimtab.policies.ngram_drafts import DraftCounts
from trimtab.policies.speculation_model import StepTimes
from trimtab.quality.ladder import Ratio

NO_LABEL: Final = ""
ERROR_MAX: Final = 0.15
"""How far a prediction may be from what was measured, as a part of it."""


class Pays(StrEnum):
    """What a cut's net time per token says."""

    GAINS = "gains"
    LOSES = "loses"
    NOT_SHOWN = "not_shown"
    INVALID = "invalid"


class CutFigures(msgspec.Struct, frozen=True, kw_only=True):
    """One kind of traffic at one stream, without and with drafts of the chosen depth.

    `looping`: requests left out because their answers end in a loop. `counts`: what the rule drafts over the answers
    without drafting; `drafted` and `accepted`: what the engine says it did. `tpot_ms`: with over without, paired by
    request. `valid_off`, `valid_on`: answers that fit their schema; None without one.
    """

    label: str
    constraint: str
    temperature: float
    repetition: str
    requests: int
    looping: int
    counts: DraftCounts
    drafted: int
    accepted: int
    tpot_ms: Ratio
    pays: Pays
    valid_off: int | None = None
    valid_on: int | None = None
    as_expected: int | None = None


class Speculated(msgspec.Struct, frozen=True, kw_only=True):
    """The whole answer. `speculation`: what to run where it pays; `batch`: the one it was chosen for."""

    engine: str
    model: str
    model_sha256: str
    machine: str
    batch: int
    pays: bool
    because: str
    speculation: Speculation
    judged_label: str
    settings: dict[int, Speculation]
    counts: dict[int, DraftCounts]
    steps: StepTimes
    off_inside: dict[int, Ratio]
    """Milliseconds of a step by batch: an engine that can draft and drafts nothing, over one that cannot."""
    points: tuple[PointFigures, ...]
    plan: DepthPlan
    table: SpeculationTable
    cuts: tuple[CutFigures, ...]
    repetition: tuple[CutFigures, ...]
    gaining: tuple[str, ...]
    greedy_only: bool
    schema_combinable: bool | None
    rule_drafted: int
    engine_drafted: int
    """Drafted tokens over the same answers: by the rule that predictions rest on, and by the engine."""
    notes: tuple[str, ...]
    took_s: float
    lever_record: str | None = None

    @property
    def choice(self) -> DepthChoice:
        """What the plan chose at the batch asked about."""
        return min(self.plan.choices, key=lambda one: abs(one.batch - self.batch))

    @property
    def within(self) -> tuple[int, int]:
        """How many points are predicted within the bound, of how many."""
        return sum(abs(one.error) <= ERROR_MAX for one in self.points), len(self.points)


def judge_cut(ratio: Ratio, valid_off: int | None, valid_on: int | None) -> Pays:
    """Say what a cut gains; answers that stopped to be valid outweigh every gain."""
    if valid_off is not None and valid_on is not None and valid_on < valid_off:
        return Pays.INVALID
    if ratio.interval is None:
        return Pays.NOT_SHOWN
    if ratio.interval.high < 1.0:
        return Pays.GAINS
    return Pays.LOSES if ratio.interval.low > 1.0 else Pays.NOT_SHOWN


def gaining_labels(cuts: Sequence[CutFigures]) -> tuple[tuple[str, ...], bool]:
    """Return the labels whose free text gains at temperature 0, and whether one of them does not when sampled.

    Labels bound to a schema are judged by `schema_combinable` and never stand for free text.
    """
    greedy = [one for one in cuts if one.temperature == 0.0]
    gaining = tuple(
        dict.fromkeys(
            one.label
            for one in greedy
            if one.pays is Pays.GAINS and one.constraint == Constraint.FREE.value
        )
    )
    sampled = [one for one in cuts if one.temperature > 0.0 and one.label in gaining]
    return gaining, any(one.pays is not Pays.GAINS for one in sampled)


def schema_combinable(cuts: Sequence[CutFigures]) -> bool | None:
    """Say whether answers bound to a schema stayed valid; None where none were that could have become invalid."""
    bound = [one for one in cuts if one.valid_off is not None]
    if not any(one.valid_off for one in bound):
        return None
    return all(one.pays is not Pays.INVALID for one in bound)


def verdict(
    chosen: DepthChoice,
    depth: int,
    points: Sequence[PointFigures],
    gaining: Sequence[str],
    plan: DepthPlan,
) -> tuple[bool, str]:
    """Say whether it pays at the batch asked about, and why; `depth`: the one that a replica would run.

    `points` has that depth at that batch. Where it pays, `plan.alone.off_at` lies above that batch.
    """
    at = f"at {chosen.batch} streams"
    if chosen.depth == 0:
        return False, f"{at} {_none_drafted(chosen.batch, depth, points, plan)}"
    point = _point(points, chosen.batch, depth)
    shown = _gain_words(point)
    bounds = None if point.tokens_per_s is None else point.tokens_per_s.interval
    if shown is None or bounds is None:
        return False, f"{at} depth {depth} was measured in too few rounds to tell"
    if bounds.low <= 1.0:
        return False, f"{at} {shown}: no gain beyond noise"
    if not gaining:
        return (
            False,
            f"{at} {shown}, but no kind of traffic has a shorter time per token beyond noise",
        )
    if plan.alone.off_at <= chosen.batch:
        return False, f"{at} {shown}, but {_goes_off(depth, points, plan.alone)}"
    where = ", ".join(label or "all traffic" for label in gaining)
    equals = f"; {equal_words(chosen)}" if chosen.equals else ""
    return True, f"{at} {shown}{equals}; it gains on {where}; break-even {plan.alone.told}"


def equal_words(chosen: DepthChoice) -> str:
    """Say that deeper drafts than the chosen ones show no more; empty where there are none."""
    if not chosen.equals:
        return ""
    deeper = " and ".join(str(one) for one in chosen.equals)
    are = "is" if len(chosen.equals) == 1 else "are"
    return f"the shallowest that no other is shown to beat: {deeper} {are} not shown to give more than {chosen.depth}"


def _gain_words(point: PointFigures) -> str | None:
    """Say what a depth gives at its batch; None where too few rounds were measured."""
    ratio = point.tokens_per_s
    if ratio is None or ratio.interval is None or ratio.ratio is None:
        return None
    return (
        f"depth {point.depth} gives {ratio.ratio:.2f} of the tokens per second "
        f"[{ratio.interval.low:.2f}, {ratio.interval.high:.2f}] in {ratio.n} rounds"
    )


def _none_drafted(batch: int, depth: int, points: Sequence[PointFigures], plan: DepthPlan) -> str:
    """Say why nothing is drafted at a batch; a gain that is there and not used is told."""
    first = next(one.batch for one in plan.choices if not one.depth)
    if first >= batch:
        return (
            f"no depth is shown to give more tokens per second than none: {_measured_words(points, batch, depth)}; "
            f"break-even: {plan.break_even.told}"
        )
    lacking = _measured_words(points, first, best_drafting(points, first))
    here = _point(points, batch, depth).tokens_per_s
    gains = here is not None and here.interval is not None and here.interval.low > 1.0
    unused = f"; a gain above that is not used: {_measured_words(points, batch, depth)}"
    return (
        f"nothing is drafted: at batch {first} no depth is shown to give more tokens per second than none "
        f"({lacking}; break-even: {plan.break_even.told}){unused if gains else ''}"
    )


def _measured_words(points: Sequence[PointFigures], batch: int, depth: int) -> str:
    """Say what a depth gives at a batch."""
    found = _gain_words(_point(points, batch, depth))
    return found or f"depth {depth} was measured in too few rounds to tell"


def _point(points: Sequence[PointFigures], batch: int, depth: int) -> PointFigures:
    return next(one for one in points if (one.batch, one.depth) == (batch, depth))


def _goes_off(depth: int, points: Sequence[PointFigures], alone: BreakEven) -> str:
    """Say why a replica of one depth would not draft at a batch at which that depth gains."""
    if alone.low is None:
        return f"nothing was measured above batch {alone.measured_to}, so nothing says where it must go off"
    one = "a replica runs one depth at every batch, and with this one"
    if alone.low > 0.0:
        return (
            f"{one} a gain is shown up to {alone.low:.1f} streams (break-even: {alone.told}): it would go off above "
            f"{alone.off_at:.1f}"
        )
    smallest = min(each.batch for each in points)
    return (
        f"{one} none is shown at batch {smallest} ({_measured_words(points, smallest, depth)}; break-even: "
        f"{alone.told}): it would be off at every batch"
    )
