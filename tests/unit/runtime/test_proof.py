"""What is kept of a lever being proven is never more than its slice without what left it."""

import msgspec
import pytest
from control_kit import EDITS, QUESTIONS, candidate, speculation_lever

from trimtab.core.cuts import Cut, Dimension
from trimtab.core.gate import GateResult, GateSpec, Metric, Question
from trimtab.core.lever import CutHarm, LeverRecord
from trimtab.core.types import Verdict
from trimtab.rollout.machine import begin
from trimtab.runtime.proof import ControlError, Proof, proof_of

CHAT = Cut(Dimension.LABEL, "chat")
PLAN = candidate()


def gained_in(cut: Cut) -> GateSpec:
    """A gain that is asked of a cut and decides about that cut alone."""
    return GateSpec(
        name=f"gain in {cut}",
        metric=Metric.TPOT_MS,
        question=Question.GAIN,
        margin=0.1,
        cut=cut,
        required=False,
    )


def answered(
    cut: Cut, verdict: Verdict, *, question: Question = Question.VETO, gate: str = ""
) -> GateResult:
    """What a look says of a cut."""
    return GateResult(
        gate=gate or f"veto in {cut}",
        metric=Metric.TPOT_MS,
        question=question,
        cut=str(cut),
        verdict=verdict,
        n_baseline=20,
        n_candidate=20,
        margin=0.1,
        reason="as shown",
        required=False,
    )


def proof(record: LeverRecord) -> Proof:
    """The proof of a lever of which harmed cuts leave."""
    record = msgspec.structs.replace(record, harm_in_cut=CutHarm.STOP_CUT)
    return proof_of(record, None, begin(record, 0.0), ("r1",), "why")


def both(*, without: tuple[Cut, ...] = (), gates: tuple[GateSpec, ...] = ()) -> LeverRecord:
    """A lever for two cuts."""
    record = msgspec.structs.replace(speculation_lever((EDITS, QUESTIONS)), without=without)
    return msgspec.structs.replace(record, gates=(*record.gates, *gates))


def test_harm_in_every_cut_of_the_slice_fails_the_lever_and_takes_nothing_out() -> None:
    """Also where one cut left before: an empty slice would keep a replica for nobody."""
    results = (answered(EDITS, Verdict.FAIL), answered(QUESTIONS, Verdict.FAIL))
    fresh, shrunk = proof(both()), proof(both())
    shrunk.took_out({EDITS: "a person asked"})
    for each, found in ((fresh, results), (shrunk, results[1:])):
        assert each.judged(PLAN, found, Verdict.PASS)[1] is Verdict.FAIL
        assert each.harmed(found) == {}
    assert list(proof(both()).harmed(results[1:])) == [QUESTIONS]


def test_lever_whose_gaining_cut_left_is_kept_for_what_is_left_of_its_slice() -> None:
    """Edits gained and were taken off, questions only hold: never all traffic, outside of the slice."""
    gain = gained_in(EDITS)
    one = proof(both(gates=(gain, gained_in(QUESTIONS))))
    one.results = (answered(EDITS, Verdict.PASS, question=Question.GAIN, gate=gain.name),)
    assert one.kept()[0] == (EDITS,)
    one.took_out({EDITS: "a person asked"})
    kept, told = one.kept()
    assert (kept, told.kept) == ((QUESTIONS,), (str(QUESTIONS),))


def test_lever_that_lost_every_cut_is_kept_for_none_and_not_adopted_by_hand() -> None:
    """No cuts left is not all traffic, neither in the plan nor in the ledger."""
    one = proof(both())
    one.may_be_adopted()
    assert one.took_out({EDITS: "harm", QUESTIONS: "harm"}).kept == ()
    kept, told = one.kept()
    assert (kept, told.kept) == ((EDITS, QUESTIONS), ())
    with pytest.raises(ControlError, match="kept off every cut"):
        one.may_be_adopted()


def test_lever_of_all_traffic_is_kept_for_all_traffic_without_what_left() -> None:
    """Its slice has no last cut."""
    one = proof(msgspec.structs.replace(both(), cuts=()))
    assert one.took_out({EDITS: "harm"}).kept == ("all",)
    one.may_be_adopted()
    assert one.kept()[0] == ()


def test_cut_that_was_taken_off_is_not_told_as_kept_by_a_verification() -> None:
    """What is told as kept is no longer refused: after a restart the cut would meet the lever again."""
    record = msgspec.structs.replace(both(without=(EDITS,)), cuts=(EDITS, QUESTIONS, CHAT))
    one = proof(record)
    assert one.kept()[1].kept == (str(QUESTIONS), str(CHAT))
    assert one.took_out({CHAT: "harm"}).kept == (str(QUESTIONS),)
    assert one.kept()[0] == (QUESTIONS,)


def test_person_takes_off_no_last_cut_of_a_lever_that_is_verified_again() -> None:
    """The other cut was taken off before: the slice would be empty."""
    one = proof(both(without=(EDITS,)))
    with pytest.raises(ControlError, match="alone"):
        one.may_leave(QUESTIONS)
    assert proof(both()).may_leave(QUESTIONS) == QUESTIONS
