"""A gate on quality counts each scored item once."""

from rollout_kit import lever

from trimtab.core.gate import GateSpec, Metric, Question
from trimtab.core.quality_scores import CutScores, Scores
from trimtab.core.types import RolloutState
from trimtab.rollout.quality import joined, quality_results, revision_of

GATE = GateSpec(
    name="quality",
    metric=Metric.QUALITY_LOSS,
    question=Question.NO_HARM,
    margin=0.02,
    during=(RolloutState.PROVING,),
)
RECORD = lever(GATE)


def scored(losses: int, *, evaluation: str = "gsm8k") -> Scores:
    """An evaluation of 200 items, some of which only the baseline passed."""
    lost = CutScores(
        cut="all",
        n=200,
        baseline_passed=100,
        candidate_passed=100 - losses,
        losses=losses,
        wins=0,
    )
    return Scores(
        evaluation=evaluation, revision=revision_of(RECORD), cuts=(lost,), floor=None, floor_runs=0
    )


def test_evaluation_that_comes_twice_counts_its_items_once() -> None:
    """The second posting says what the first did, so the answer is the same; another name is another evaluation."""
    once = quality_results(RECORD, GATE, {}, (scored(4),))
    assert quality_results(RECORD, GATE, {}, (scored(4), scored(4))) == once
    assert once[0].n_candidate == 200
    assert joined((scored(4), scored(4, evaluation="mmlu")))["all"].n == 400


def test_corrected_scores_take_the_place_of_the_earlier_and_cost_an_asking() -> None:
    """The latest count, and the alpha shrinks as if asked twice: no name makes asking again free."""
    (corrected,) = quality_results(RECORD, GATE, {}, (scored(9), scored(4)))
    (once,) = quality_results(RECORD, GATE, {}, (scored(4),))
    assert corrected.value == once.value
    assert corrected.interval is not None
    assert once.interval is not None
    assert corrected.interval.high > once.interval.high
