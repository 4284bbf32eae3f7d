"""Levers meet where they move one budget or act on one phase, in traffic that both touch."""

import msgspec
from control_kit import EDITS, QUESTIONS, routing_lever, speculation_lever
from hypothesis import given
from hypothesis import strategies as st

from trimtab.core.cuts import Cut, Dimension
from trimtab.core.gate import Metric
from trimtab.core.lever import LeverRecord
from trimtab.core.types import Budget, Phase
from trimtab.rollout.interactions import matrix, meeting

LONG = Cut(Dimension.INPUT_TOKENS, "4096-16384")
SHORT = Cut(Dimension.INPUT_TOKENS, "0-256")
RECORDS = st.lists(st.sampled_from([EDITS, QUESTIONS, LONG, SHORT]), max_size=3, unique=True).map(
    lambda cuts: speculation_lever(tuple(cuts))
)


def other(record: LeverRecord, name: str, **changes: object) -> LeverRecord:
    return msgspec.structs.replace(record, name=name, **changes)


def test_levers_of_one_phase_and_all_traffic_meet_everywhere() -> None:
    """Both records move the same budgets and act on prefill."""
    both = meeting(routing_lever(), other(routing_lever(), "another"))
    assert both is not None
    assert both.cuts == ("all",)
    assert Phase.PREFILL in both.phases
    assert both.budgets == tuple(
        budget for budget in Budget if budget in {move.budget for move in routing_lever().moves}
    )


def test_lever_of_some_cuts_meets_one_of_all_traffic_in_those_cuts() -> None:
    """The scope of the verification is what both touch."""
    both = meeting(routing_lever(), speculation_lever((EDITS,)))
    assert both is not None
    assert both.cuts == (str(EDITS),)


def test_levers_of_different_labels_do_not_meet() -> None:
    """No request is of both."""
    assert meeting(speculation_lever((EDITS,)), speculation_lever((QUESTIONS,))) is None


def test_cuts_of_two_dimensions_may_hold_the_same_request() -> None:
    """A long prompt may be an edit."""
    both = meeting(speculation_lever((EDITS,)), speculation_lever((LONG,)))
    assert both is not None
    assert set(both.cuts) == {str(EDITS), str(LONG)}


def test_levers_without_a_common_budget_or_phase_do_not_meet() -> None:
    """One relieves transfer with communication, the other decode with compute."""
    one = routing_lever()
    communication = tuple(
        msgspec.structs.replace(move, budget=Budget.COMMUNICATION) for move in one.moves
    )
    (effect,) = one.expected
    apart = other(
        one,
        "apart",
        moves=communication,
        bottleneck=msgspec.structs.replace(one.bottleneck, phase=Phase.TRANSFER),
        expected=(msgspec.structs.replace(effect, metric=Metric.E2E_MS),),
    )
    assert meeting(one, apart) is None


@given(one=RECORDS, two=RECORDS)
def test_meeting_is_symmetric(one: LeverRecord, two: LeverRecord) -> None:
    """Whichever of two changed, the other is due in the same traffic."""
    there, back = meeting(one, two), meeting(two, one)
    assert (there is None) == (back is None)
    if there is not None and back is not None:
        assert (set(there.cuts), there.budgets, there.phases) == (
            set(back.cuts),
            back.budgets,
            back.phases,
        )


def test_matrix_names_each_pair_once() -> None:
    """In the order of their names."""
    found = matrix([speculation_lever(), routing_lever(), other(routing_lever(), "zeta")])
    names = sorted([speculation_lever().name, routing_lever().name, "zeta"])
    assert list(found) == [(names[0], names[1]), (names[0], names[2]), (names[1], names[2])]
