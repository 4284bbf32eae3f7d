"""A lever that is started for one cut of its slice: what of its record still has to do with it."""

import msgspec
import pytest
from control_kit import EDITS, QUESTIONS, routing_lever

from trimtab.core.cuts import Cut, Dimension
from trimtab.core.gate import Question
from trimtab.core.lever import LeverRecord, LeverRecordError
from trimtab.rollout.leaving import narrowed

ALPHA, BETA = Cut(Dimension.HEADER, "x-team:a"), Cut(Dimension.HEADER, "x-team:b")
OTHER_HEADER = Cut(Dimension.HEADER, "x-site:c")
SHORT = Cut(Dimension.INPUT_TOKENS, "0-256")


def asked_of(*cuts: Cut) -> LeverRecord:
    """A lever with one more gate for each cut."""
    lever = routing_lever()
    more = tuple(
        msgspec.structs.replace(lever.gates[0], name=f"of {cut}", cut=cut, question=Question.VETO)
        for cut in cuts
    )
    return msgspec.structs.replace(lever, gates=(*lever.gates, *more))


@pytest.mark.parametrize(
    ("cut", "asked", "stay"),
    [
        (EDITS, (EDITS, QUESTIONS, SHORT), (EDITS, SHORT)),
        (ALPHA, (ALPHA, BETA, OTHER_HEADER), (ALPHA, OTHER_HEADER)),
    ],
)
def test_gate_that_no_request_of_the_slice_reaches_is_not_asked(
    cut: Cut, asked: tuple[Cut, ...], stay: tuple[Cut, ...]
) -> None:
    """It would hold for good; one of another dimension, or of another header, is asked on."""
    record = asked_of(*asked)
    gates = narrowed(record, cut).gates
    assert tuple(gate.cut for gate in gates if gate.cut is not None) == stay
    assert {gate for gate in gates if gate.cut is None} == set(routing_lever().gates)


def test_cut_for_which_no_gain_is_asked_is_refused() -> None:
    """Nothing would prove the effect there."""
    gates = tuple(
        msgspec.structs.replace(gate, cut=EDITS) if gate.question is Question.GAIN else gate
        for gate in routing_lever().gates
    )
    with pytest.raises(LeverRecordError, match="no gate with question 'gain'"):
        narrowed(msgspec.structs.replace(routing_lever(), gates=gates), QUESTIONS)
