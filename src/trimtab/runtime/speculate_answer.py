"""From what was measured of drafting to the answer: the rule at each depth, what pays, and the break-even."""

from collections.abc import Sequence
from typing import Final

import msgspec

from trimtab.core.cost import SpeculationTable, StepPoint
from trimtab.core.revision import Revision, Speculation, SpeculationMethod
from trimtab.core.types import Constraint
from trimtab.levers.speculation_depths import PointFigures, plan_depths
from trimtab.levers.speculation_found import (
    CutFigures,
    Speculated,
    gaining_labels,
    schema_combinable,
    verdict,
)
from trimtab.policies.ngram_drafts import DraftCounts
from trimtab.policies.speculation_model import StepTimes, predict
from trimtab.quality.ladder import Ratio
from trimtab.runtime.asked_arm import ArmError
from trimtab.runtime.speculate_ask import MATCHES, SpeculateAsk
from trimtab.runtime.speculate_compare import (
    Loops,
    Pair,
    cuts_of,
    drafted_by_rule,
)
from trimtab.runtime.speculate_record import Asked, Recorded, total

LOOPED_MAX: Final = 8
"""Different prompts that the closed loops go round in."""
SAME_GAIN: Final = 0.02
"""N-grams whose predicted rates differ by less are equal: the longer one drafts less where nothing repeats."""


class Chosen(msgspec.Struct, frozen=True, kw_only=True):
    """For the label that drafting promises most for: at each depth the n-gram to look up, and what it drafts."""

    label: str
    settings: dict[int, Speculation]
    counts: dict[int, DraftCounts]


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """All that was measured. `depth`: the one that every request was answered with."""

    times: StepTimes
    off_inside: dict[int, Ratio]
    chosen: Chosen
    loops: Loops
    points: tuple[PointFigures, ...]
    depth: int
    pairs: tuple[Pair, ...]


def judged_label(answers: Sequence[Recorded], ask: SpeculateAsk) -> str:
    """Return the label of whose free, greedy answers drafts would cover most; raises `ArmError` without one."""
    by_label: dict[str, list[Recorded]] = {}
    for one in _judged(answers):
        by_label.setdefault(one.asked.sample.label, []).append(one)
    if not by_label:
        raise ArmError(
            "no answer can be judged by: all end in a loop or at once; give requests that the model answers"
        )
    depth = min(ask.depths)

    def coverage(label: str) -> float:
        theirs = (one.counts(min(*MATCHES, depth), depth) for one in by_label[label])
        return total(theirs).coverage or 0.0

    return max(by_label, key=coverage)


def _judged(answers: Sequence[Recorded]) -> list[Recorded]:
    free = Constraint.FREE.value
    return [one for one in answers if one.usable and one.asked.constraint == free]


def choose_settings(
    label: str, answers: Sequence[Recorded], times: StepTimes, ask: SpeculateAsk
) -> Chosen:
    """Choose at each depth the n-gram with the highest predicted rate on a label.

    The engine drafts nothing shorter than its n-gram, so no n-gram longer than the depth is tried.
    """
    theirs = [one for one in _judged(answers) if one.asked.sample.label == label]
    settings: dict[int, Speculation] = {}
    counts: dict[int, DraftCounts] = {}
    for depth in ask.depths:
        tried = {
            match: total(one.counts(match, depth) for one in theirs)
            for match in (*(n for n in MATCHES if n < depth), depth)
            if match <= max(MATCHES)
        }
        rates = {
            match: predict(times, ask.batch, depth, each).tokens_per_s
            for match, each in tried.items()
        }
        good = max(rates.values()) * (1.0 - SAME_GAIN)
        match = max(match for match, rate in rates.items() if rate >= good)
        counts[depth] = tried[match]
        settings[depth] = Speculation(
            method=SpeculationMethod.NGRAM_SIMPLE, match_tokens=match, draft_tokens_max=depth
        )
    return Chosen(label=label, settings=settings, counts=counts)


def looped_places(
    asked: Sequence[Asked], answers: Sequence[Recorded], label: str
) -> tuple[int, ...]:
    """Return the places among the asked of the prompts to loop: of a label, answered usably and greedily."""
    usable = {id(one.asked) for one in answers if one.usable}
    places = [
        place
        for place, one in enumerate(asked)
        if one.sample.label == label
        and one.constraint == Constraint.FREE.value
        and id(one) in usable
    ]
    return tuple(places[:LOOPED_MAX])


def answer_of(
    measured: Measured, ask: SpeculateAsk, revision: Revision, *, machine: str, took_s: float
) -> Speculated:
    """Join everything into the answer."""
    chosen, depth = measured.chosen, measured.depth
    speculation = chosen.settings[depth]
    match = speculation.match_tokens or 0
    cuts = cuts_of(measured.pairs, match, depth)
    gaining, greedy_only = gaining_labels(cuts)
    plan = plan_depths(measured.points, depth)
    nearest = min(plan.choices, key=lambda one: abs(one.batch - ask.batch))
    pays, because = verdict(nearest, depth, measured.points, gaining, plan)
    drafted = drafted_by_rule(measured.pairs, match, depth)
    return Speculated(
        engine=f"{revision.engine}/{revision.engine_version}",
        model=revision.model.path,
        model_sha256=revision.model.sha256,
        machine=machine,
        batch=ask.batch,
        pays=pays,
        because=because,
        speculation=speculation,
        judged_label=chosen.label,
        settings=chosen.settings,
        counts=chosen.counts,
        steps=measured.times,
        off_inside=measured.off_inside,
        points=measured.points,
        plan=plan,
        table=table_of(measured, ask),
        cuts=cuts,
        repetition=cuts_of(measured.pairs, match, depth, by_repetition=True),
        gaining=gaining,
        greedy_only=greedy_only,
        schema_combinable=schema_combinable(cuts),
        rule_drafted=drafted[0],
        engine_drafted=drafted[1],
        notes=_notes(cuts, ask),
        took_s=took_s,
    )


def table_of(measured: Measured, ask: SpeculateAsk) -> SpeculationTable:
    """Return the measured table that levers and triggers go by."""
    depth = measured.depth
    counts = measured.chosen.counts[depth]

    def points(of: int, accepted: float | None) -> tuple[StepPoint, ...]:
        return tuple(
            StepPoint(
                batch=one.batch,
                tokens_per_s=one.measured_tokens_per_s,
                samples=ask.rounds,
                accepted_per_step=accepted,
                rounds=one.rounds,
            )
            for one in measured.points
            if one.depth == of
        )

    return SpeculationTable(
        speculation=measured.chosen.settings[depth],
        off=points(0, None),
        on=points(depth, counts.tokens_per_step),
        content=measured.chosen.label,
    )


def _notes(cuts: Sequence[CutFigures], ask: SpeculateAsk) -> tuple[str, ...]:
    looping = sum(one.looping for one in cuts)
    asked = sum(one.requests for one in cuts)
    notes = [
        f"{looping} of {asked} pairs of answers end in a loop and count for nothing",
        "answers end by themselves; none is made to go on",
        "times hold for contexts like those of these requests",
    ]
    if all(one.valid_off is None for one in cuts):
        notes.append(
            "no request is bound to a schema, so such traffic is left out: its answers' validity is unknown"
        )
    if ask.rounds < 3:
        notes.append(f"{ask.rounds} rounds give wide intervals: --rounds 3 or more tells more")
    return tuple(notes)
