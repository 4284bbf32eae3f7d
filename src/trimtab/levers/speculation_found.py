"""What measuring speculation found: figures by batch and depth, by kind of traffic, and whether and where it pays.

It pays where three things hold: at the batch that is asked about the depth with most tokens per time is not 0, the
measured tokens per second are higher with it beyond noise, and in at least one cut a token takes less time, beyond
noise too.
A cut that is bound to a schema is left out unless its answers were as valid with drafts as without: no gain buys an
answer that does not parse. A cut that shows no gain is left out; nothing is claimed of one that was not measured.
"""

from collections.abc import Sequence
from enum import StrEnum
from typing import Final

import msgspec

from trimtab.core.cost import SpeculationTable
from trimtab.core.revision import Speculation
from trimtab.core.types import Constraint
from trimtab.policies.ngram_drafts import DraftCounts
from trimtab.policies.speculation_model import BreakEven, MeasuredRatio, StepTimes
from trimtab.quality.ladder import Ratio

NO_LABEL: Final = ""
ERROR_MAX: Final = 0.15
"""How far a prediction may be from what was measured, as a part of it."""
CHOICE_LOSS_MAX: Final = 0.05
"""How much less than the best measured depth the chosen one may give."""


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
    """The depth for one batch: the one predicted to be best, the best measured one, and how much less it gives."""

    batch: int
    depth: int
    best_measured: int
    loss: float
    holds: bool


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
    choices: tuple[DepthChoice, ...]
    break_even: BreakEven
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


def choose_by_batch(points: Sequence[PointFigures]) -> tuple[DepthChoice, ...]:
    """Compare at every batch the depth predicted to be best with the best measured one.

    It holds within `CHOICE_LOSS_MAX`, or where the interval of the best one's gain over no drafts reaches down to it.
    """
    found: list[DepthChoice] = []
    for batch in sorted({one.batch for one in points}):
        here = [one for one in points if one.batch == batch]
        chosen = min(here, key=lambda one: (one.predicted_tpot_ms, one.depth))
        best = min(here, key=lambda one: (one.measured_tpot_ms, one.depth))
        loss = 1.0 - best.measured_tpot_ms / chosen.measured_tpot_ms
        found.append(
            DepthChoice(
                batch=batch,
                depth=chosen.depth,
                best_measured=best.depth,
                loss=loss,
                holds=loss <= CHOICE_LOSS_MAX or _reaches(best, chosen),
            )
        )
    return tuple(found)


def _reaches(best: PointFigures, chosen: PointFigures) -> bool:
    """Say whether both gains over no drafts are told apart by no interval; no drafts have the gain 1 exactly."""
    best_low = 1.0 if best.depth == 0 else _bound(best.tokens_per_s, low=True)
    chosen_high = 1.0 if chosen.depth == 0 else _bound(chosen.tokens_per_s, low=False)
    return best_low is not None and chosen_high is not None and best_low <= chosen_high


def _bound(ratio: Ratio | None, *, low: bool) -> float | None:
    if ratio is None or ratio.interval is None:
        return None
    return ratio.interval.low if low else ratio.interval.high


BATCH_MAX: Final = 256
"""Up to where a table of depths goes; beyond what was measured nothing is drafted."""


def depth_ranges(choices: Sequence[DepthChoice]) -> tuple[tuple[int, int, int], ...]:
    """Return rows (from batch, to batch, depth), as an engine takes them whose depth follows the batch.

    Between two measured batches holds what was chosen for the larger one, since a depth falls as batches grow.
    """
    rows: list[tuple[int, int, int]] = []
    start = 1
    for one in sorted(choices, key=lambda choice: choice.batch):
        if rows and rows[-1][2] == one.depth:
            rows[-1] = (rows[-1][0], one.batch, one.depth)
        else:
            rows.append((start, one.batch, one.depth))
        start = one.batch + 1
    if rows and rows[-1][2] == 0:
        rows[-1] = (rows[-1][0], max(BATCH_MAX, rows[-1][1]), 0)
    elif start <= BATCH_MAX:
        rows.append((start, BATCH_MAX, 0))
    return tuple(rows)


def ratios_of(points: Sequence[PointFigures], depth: int) -> tuple[MeasuredRatio, ...]:
    """Return the measured ratios of one depth by batch, for the break-even."""
    return tuple(
        MeasuredRatio(
            batch=one.batch,
            ratio=one.tokens_per_s.ratio,
            low=_bound(one.tokens_per_s, low=True),
            high=_bound(one.tokens_per_s, low=False),
        )
        for one in points
        if one.depth == depth and one.tokens_per_s is not None and one.tokens_per_s.ratio
    )


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
    """Say whether answers bound to a schema stayed valid; None where none were measured."""
    bound = [one for one in cuts if one.valid_off is not None]
    if not bound:
        return None
    return all(one.pays is not Pays.INVALID for one in bound)


def verdict(
    chosen: DepthChoice, point: PointFigures | None, gaining: Sequence[str], even: BreakEven
) -> tuple[bool, str]:
    """Say whether it pays at the batch asked about, and why."""
    at = f"at {chosen.batch} streams"
    if chosen.depth == 0 or point is None:
        return False, f"{at} no depth gives more tokens per second than none"
    ratio = point.tokens_per_s
    if ratio is None or ratio.interval is None or ratio.ratio is None:
        return False, f"{at} depth {point.depth} was measured in too few rounds to tell"
    shown = (
        f"{at} depth {point.depth} gives {ratio.ratio:.2f} of the tokens per second "
        f"[{ratio.interval.low:.2f}, {ratio.interval.high:.2f}] in {ratio.n} rounds"
    )
    if ratio.interval.low <= 1.0:
        return False, f"{shown}: no gain beyond noise"
    if not gaining:
        return False, f"{shown}, but no kind of traffic has a shorter time per token beyond noise"
    upto = (
        f"beyond {even.measured_to} streams" if even.batch is None else f"{even.batch:.1f} streams"
    )
    where = ", ".join(label or "all traffic" for label in gaining)
    return True, f"{shown}; it gains on {where}; break-even {upto}"
