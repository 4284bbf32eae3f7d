"""What can be moved on servers that somebody else runs: routing can, what needs a restart cannot, and that is said."""

from collections.abc import Iterable

import msgspec

from trimtab.core.lever import Actuation, Assessment, Dependency

CANNOT_RESTART = (
    "it needs a restart, and trimtab did not start these servers: start them so where they are run, "
    "or let trimtab start its own replicas"
)
CANNOT_START = (
    "it needs another server, and trimtab does not start servers in an attached fleet: "
    "attach one more and run `trimtab reload`"
)


def on_attached(assessments: Iterable[Assessment]) -> tuple[Assessment, ...]:
    """Return the assessments with those levers unavailable that somebody else would have to move.

    Premise, gain and budgets stay as they were assessed: the advice holds, whoever follows it.
    """
    return tuple(_refused(each) for each in assessments)


def _refused(assessment: Assessment) -> Assessment:
    why = _why(assessment)
    if not why or not assessment.available:
        return assessment
    gain = assessment.gain_share
    predicted = "" if gain is None else f" (predicted {gain:.1%} of request time)"
    return msgspec.structs.replace(assessment, available=False, because=f"{why}{predicted}")


def _why(assessment: Assessment) -> str:
    if assessment.narrowness.dependency is not Dependency.NONE:
        return CANNOT_START
    return CANNOT_RESTART if assessment.narrowness.actuation is Actuation.RESTART else ""
