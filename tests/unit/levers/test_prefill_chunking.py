"""A smaller prefill chunk: when its premise holds, which chunk it takes, and that its record is complete."""

import msgspec
import pytest
from situations import BANDWIDTH_COST, readings, situation

from trimtab.core.gate import Metric, Question
from trimtab.core.lever import LeverRecordError, Situation
from trimtab.diagnosis.names import Name
from trimtab.levers.prefill_chunking import SmallerPrefillChunk, smaller_chunk

LEVER = SmallerPrefillChunk()
STALLED: dict[str, float | str | None] = {
    Name.CHUNK_GAP_MS_BESIDE_PREFILL: 8000.0,
    Name.CHUNK_GAP_MS_ALONE: 700.0,
    Name.DECODE_BESIDE_PREFILL_SHARE: 0.5,
    Name.DECODE_MS_PER_TOKEN: 80.0,
}


def stalled(**changes: float | str | None) -> Situation:
    """A fleet whose longest gaps are eight seconds beside a prefill."""
    return situation(readings(**{**STALLED, **changes}))


@pytest.mark.parametrize(
    ("alone", "ms_per_token", "chunk"),
    [(700.0, 10.0, 128), (3000.0, 10.0, 512), (20.0, 10.0, 64), (90_000.0, 10.0, 1024)],
)
def test_chunk_takes_about_as_long_as_gaps_are_without_a_prefill(
    alone: float, ms_per_token: float, chunk: int
) -> None:
    """A power of two, at least 64 and at most half of what it was."""
    of = stalled(**{Name.CHUNK_GAP_MS_ALONE: alone})
    cost = msgspec.structs.replace(BANDWIDTH_COST, prefill_ms_per_token=ms_per_token)
    assert smaller_chunk(msgspec.structs.replace(of, cost=cost)) == chunk


def test_record_says_the_chunk_the_gates_and_the_way_back() -> None:
    """The gain is proven on gaps; TTFT may not be worse by more than a tenth."""
    of = stalled()
    assessment = LEVER.assess(of)
    assert (assessment.premise_holds, assessment.available) == (True, True), assessment.because
    record = LEVER.propose(of, assessment, "test")
    assert record.revision == of.revision.replace(chunk_tokens=128)
    gains = [gate.metric for gate in record.gates if gate.question is Question.GAIN]
    assert gains == [Metric.CHUNK_GAP_MS]
    assert {gate.metric for gate in record.gates} >= {Metric.TTFT_MS, Metric.TPOT_MS}
    assert record.expected[0].ratio < 0.5


def test_gaps_that_no_prefill_lengthens_are_no_premise() -> None:
    """Half as long again is not twice."""
    of = stalled(**{Name.CHUNK_GAP_MS_BESIDE_PREFILL: 1050.0})
    assert not LEVER.assess(of).premise_holds


@pytest.mark.parametrize("chunk", [64, 127])
def test_chunk_that_is_small_already_is_not_made_smaller(chunk: int) -> None:
    """And there is nothing to propose."""
    of = stalled()
    of = msgspec.structs.replace(of, revision=of.revision.replace(chunk_tokens=chunk))
    assessment = LEVER.assess(of)
    assert (assessment.available, "tokens already" in assessment.because) == (False, True)
    with pytest.raises(LeverRecordError):
        LEVER.propose(of, assessment, "test")


def test_one_replica_has_nothing_to_compare_with() -> None:
    """The candidate needs a plain arm beside it."""
    of = situation(readings(**STALLED), replicas=1)
    assert not LEVER.assess(of).available
