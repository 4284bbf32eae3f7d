"""What all levers share: how they quote readings, what they promise of outputs, how one that is not moved answers."""

from typing import Final

from trimtab.core.budgets import BudgetMove
from trimtab.core.evidence import Evidence
from trimtab.core.lever import (
    Assessment,
    LeverRecord,
    LeverRecordError,
    Narrowness,
    Situation,
)
from trimtab.core.types import Technique
from trimtab.rollout.defaults import OUTPUT_MARGIN

EXPIRES_AFTER_S = 30 * 86_400.0
"""A lever must prove itself again after 30 days."""

RATIO_MIN = 0.05
"""No prediction promises more than a twentieth of a latency to be left."""

QUALITY_GATE = (
    "outputs at temperature 0 are compared request by request with those of the baseline; the share that differs "
    f"may exceed the share that differs between two runs of the baseline by at most {OUTPUT_MARGIN:.0%}"
)


def quote(situation: Situation, name: str, spec: str = ".1%") -> str:
    """Return a reading as text with its interval and n, or why it is unknown."""
    reading = situation.readings.get(name)
    if not isinstance(reading, Evidence):
        return f"{name} unknown ({reading.reason})"
    text = format(reading.value, spec)
    if reading.interval is not None:
        text += f" [{format(reading.interval.low, spec)}, {format(reading.interval.high, spec)}]"
    return text if reading.samples is None else f"{text} of n={reading.samples}"


def clamp_ratio(ratio: float) -> float:
    """Return a predicted ratio kept at or above `RATIO_MIN`."""
    return max(RATIO_MIN, ratio)


ADOPTED: Final = "already adopted"
REFUSED: Final = "already tried and not adopted"
SETTLED: Final = (ADOPTED, REFUSED)
"""Why a lever is not open any more, whatever its premise says now."""


def status_of(name: str, situation: Situation) -> str:
    """Return why a lever is not open any more (adopted or refused), or an empty text."""
    if name in situation.adopted:
        return ADOPTED
    if name in situation.refused:
        return REFUSED
    return ""


def not_moved(
    situation: Situation,
    *,
    name: str,
    technique: Technique,
    premise: str,
    premise_holds: bool,
    moves: tuple[BudgetMove, ...],
    narrowness: Narrowness,
    because: str,
) -> Assessment:
    """Return the assessment of a technique that is judged but that this version cannot move."""
    ceiling = situation.diagnosis.ceiling(technique)
    reason = because
    if ceiling is not None and ceiling.gain_share is not None:
        reason = f"{because}; ceiling {ceiling.gain_share:.1%}: {ceiling.because}"
    return Assessment(
        lever=name,
        technique=technique,
        premise=premise,
        premise_holds=premise_holds,
        gain_share=None if ceiling is None else ceiling.gain_share,
        moves=moves,
        narrowness=narrowness,
        available=False,
        because=reason,
    )


def refuse_to_propose(name: str, assessment: Assessment) -> LeverRecord:
    """Raise `LeverRecordError`: a lever that cannot be moved has no record."""
    raise LeverRecordError(f"{name} cannot be proposed: {assessment.because}")
