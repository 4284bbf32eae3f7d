"""Requests that waited all the time: when a server counts as saturated, and which answers are held."""

import pytest
from msgspec.structs import replace
from rollout_kit import lever, served

from trimtab.core.gate import GateResult, Metric, Question
from trimtab.core.record import Drafting, Phases
from trimtab.core.types import Arm, Technique, Verdict
from trimtab.rollout.blocks import Row
from trimtab.rollout.saturation import Waiting, without_saturated

SPECULATING = lever(technique=Technique.SPECULATION)


def answered(
    question: Question = Question.GAIN, verdict: Verdict = Verdict.PASS
) -> list[GateResult]:
    return [
        GateResult(
            gate="tpot_ms gain",
            metric=Metric.TPOT_MS,
            question=question,
            cut="all",
            verdict=verdict,
            n_baseline=40,
            n_candidate=40,
            margin=0.1,
            reason="a gain is shown",
        )
    ]


def waiting(queue_ms: float | None, *, others_ms: float = 400.0, per_step: float = 1.0) -> Waiting:
    """Forty requests of each arm at 20 ms a token; the candidate's queued so long."""
    counts = Waiting()
    for arm, queued in ((Arm.BASELINE, others_ms), (Arm.CANDIDATE, queue_ms)):
        for number in range(40):
            one = replace(
                served(number // 4, arm, number=number, tpot=20.0),
                phases=Phases(queue_ms=queued),
                drafting=Drafting(accepted_per_step=per_step),
            )
            counts.take(number // 4, Row(one))
    return counts


@pytest.mark.parametrize("queue_ms", [41.0, 400.0])
def test_gain_is_held_where_both_arms_waited(queue_ms: float) -> None:
    """Longer than two steps each: whatever was shown is of a saturated server."""
    (held,) = without_saturated(SPECULATING, answered(), waiting(queue_ms))
    assert held.verdict is Verdict.HOLD
    assert "80 of 80 requests waited; no verdict for low load" in held.reason


@pytest.mark.parametrize(
    "counts",
    [waiting(39.0), waiting(None), waiting(400.0, others_ms=1.0), waiting(110.0, per_step=3.0)],
    ids=["shorter than two steps", "unknown", "one arm alone", "a step of three tokens"],
)
def test_gain_stands_where_not_all_waited(counts: Waiting) -> None:
    """A part of a step is no queue, and what is unknown is not counted."""
    assert without_saturated(SPECULATING, answered(), counts) == answered()


def test_harm_and_other_levers_are_judged_as_before() -> None:
    """Harm shown at this load is harm at this load; a precision gains under a queue too."""
    failed = answered(Question.VETO, Verdict.FAIL)
    assert without_saturated(SPECULATING, failed, waiting(400.0)) == failed
    other = lever(technique=Technique.QUANTIZATION)
    assert without_saturated(other, answered(), waiting(400.0)) == answered()


def test_blocks_that_are_left_out_are_forgotten() -> None:
    """Too few requests remain to say anything."""
    counts = waiting(400.0)
    counts.forget(6, frozenset())
    assert counts.note == ""
