"""Roles as a lever: only for what chunking leaves, compared on the same hardware, with short inputs guarded."""

import msgspec
import pytest
from situations import readings, situation

from trimtab.core.gate import Metric, Question
from trimtab.core.lever import Comparison, LeverRecord, Situation, TriggerSignal
from trimtab.diagnosis.names import Name
from trimtab.levers.disaggregation import SHORT_INPUTS, SplitRoles

LEVER = SplitRoles()
STALLED: dict[str, float | str | None] = {
    Name.DECODE_BESIDE_PREFILL_SHARE: 0.5,
    Name.DECODE_MS_PER_TOKEN: 80.0,
    Name.BUSY_SHARE: 0.7,
}


def stalled(
    *, refused: tuple[str, ...] = ("smaller_prefill_chunk",), replicas: int = 3, **changes: float
) -> Situation:
    """Half of decode time has a prefill beside it, after the smaller chunk was tried."""
    return situation(readings(**{**STALLED, **changes}), refused=refused, replicas=replicas)


def proposed() -> LeverRecord:
    of = stalled()
    return LEVER.propose(of, LEVER.assess(of), "test")


def test_premise_is_the_stall_under_steady_load() -> None:
    """With it the lever is open; without load, or without a stall, it does not hold."""
    assessment = LEVER.assess(stalled())
    assert (assessment.premise_holds, assessment.available) == (True, True), assessment.because
    assert not LEVER.assess(stalled(**{Name.BUSY_SHARE: 0.2})).premise_holds
    assert not LEVER.assess(stalled(**{Name.DECODE_BESIDE_PREFILL_SHARE: 0.0})).premise_holds


def test_roles_are_for_what_the_smaller_chunk_leaves() -> None:
    """While that was not tried it comes first; adopted or refused opens the way, as does a chunk that is small."""
    untried = stalled(refused=())
    said = LEVER.assess(untried)
    assert (said.available, "smaller_prefill_chunk is narrower" in said.because) == (False, True)
    adopted = situation(readings(**STALLED), adopted=("smaller_prefill_chunk",), replicas=3)
    assert LEVER.assess(adopted).available
    small = msgspec.structs.replace(untried, revision=untried.revision.replace(chunk_tokens=64))
    assert LEVER.assess(small).available


@pytest.mark.parametrize(
    "changes",
    [
        {"replicas": 1},
        {"prefill_replicas": 1},
        {"prefill_restarts": True},
        {"refused": ("split_prefill_and_decode",)},
    ],
)
def test_lever_is_closed_where_it_has_no_room(changes: dict[str, object]) -> None:
    """One replica, roles that are there already or restart for settings of their own, or a refusal before."""
    of = msgspec.structs.replace(stalled(), **changes)
    assert not LEVER.assess(of).available


def test_arms_meet_the_same_replicas_by_switchback() -> None:
    """One replica prefills in the candidate's blocks and serves whole requests in the baseline's; no revision moves."""
    record = proposed()
    assert (record.prefill, record.revision, record.policy) == (1, None, None)
    assert record.ramp.comparison is Comparison.SWITCHBACK


def test_short_inputs_must_be_shown_unharmed() -> None:
    """Their gate is required and asks for the exclusion of harm, not for a missing proof of it."""
    [gate] = [one for one in proposed().gates if one.cut == SHORT_INPUTS]
    assert (gate.metric, gate.question, gate.required) == (Metric.TTFT_MS, Question.NO_HARM, True)


def test_triggers_take_roles_back_for_dear_transfers_and_low_traffic() -> None:
    """Only low traffic ends by itself: with nothing sent ahead nobody can see what a transfer costs."""
    watched = {trigger.signal: trigger for trigger in proposed().triggers}
    assert set(watched) == {TriggerSignal.TRANSFER_SHARE, TriggerSignal.LOAD_PER_REPLICA}
    assert watched[TriggerSignal.TRANSFER_SHARE].on_at is None
    assert watched[TriggerSignal.LOAD_PER_REPLICA].on_at is not None
