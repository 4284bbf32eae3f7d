"""Which lever to move: the narrowest one that is enough, or the narrowest one that is worth anything."""

from collections.abc import Sequence

from trimtab.core.budgets import Budgets, is_admissible
from trimtab.core.lever import Assessment
from trimtab.levers.shape import SETTLED

WORTHWHILE_GAIN = 0.02
"""The least predicted part of request time for which a lever is moved at all."""


def in_order(assessments: Sequence[Assessment]) -> tuple[Assessment, ...]:
    """Return assessments narrowest first; equal ones by name."""
    return tuple(sorted(assessments, key=lambda each: (each.narrowness, each.lever)))


def why_not(assessment: Assessment, budgets: Budgets) -> str:
    """Return why a lever is out of the choice, or an empty text if it is in."""
    if assessment.because in SETTLED:
        # One that relieved what it was moved for has no premise left, and that is not why it is out.
        return assessment.because
    if not assessment.premise_holds:
        said = assessment.because if assessment.available else assessment.premise
        return f"its premise does not hold: {said}"
    if not assessment.available:
        return assessment.because
    if assessment.gain_share is None:
        return "its gain cannot be predicted"
    if not is_admissible(budgets, assessment.moves):
        return "the budget that pays would keep no headroom"
    return ""


def choose(
    assessments: Sequence[Assessment], target_gain: float, *, budgets: Budgets
) -> tuple[Assessment | None, str]:
    """Choose one lever, narrowest first, with the reason in words; None if none is worth it.

    Among the levers whose premise holds, that can be moved and whose paying budget keeps headroom: the first whose
    predicted gain meets `target_gain`; if none does alone, the first with a worthwhile gain. Order is lexicographic
    (`Narrowness`), never a score.
    """
    ordered = in_order(assessments)
    out = {each.lever: why_not(each, budgets) for each in ordered}
    able = [each for each in ordered if not out[each.lever]]
    worthwhile = min(WORTHWHILE_GAIN, target_gain)
    for floor, words in (
        (target_gain, f"the first, narrowest first, whose predicted gain meets {target_gain:.1%}"),
        (worthwhile, f"none meets {target_gain:.1%} alone: the first with a worthwhile gain"),
    ):
        chosen = next((each for each in able if (each.gain_share or 0.0) >= floor), None)
        if chosen is not None:
            return chosen, _said(chosen, words, ordered, out)
    return None, _said(None, "no lever is worth moving", ordered, out)


def _said(
    chosen: Assessment | None, words: str, ordered: Sequence[Assessment], out: dict[str, str]
) -> str:
    head = words
    if chosen is not None:
        head = f"{chosen.lever}: {words} (predicted {chosen.gain_share or 0.0:.1%} of request time)"
    others = [_one(each, chosen, out[each.lever]) for each in ordered if each is not chosen]
    return ". ".join([head, *others])


def _one(each: Assessment, chosen: Assessment | None, out: str) -> str:
    if out:
        return f"{each.lever} not chosen: {out}"
    gain = f"{each.gain_share or 0.0:.1%}"
    if chosen is not None and each.narrowness > chosen.narrowness:
        return f"{each.lever} not chosen: broader, predicted {gain}"
    return f"{each.lever} not chosen: predicted only {gain}"
