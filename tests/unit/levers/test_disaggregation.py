"""Roles as a lever: only for what chunking leaves, compared on the same hardware, with short inputs guarded."""

import msgspec
import pytest
from situations import readings, situation

from trimtab.core.gate import Metric, Question
from trimtab.core.lever import Comparison, LeverRecord, Situation, TriggerSignal
from trimtab.core.types import Technique
from trimtab.diagnosis.names import Name
from trimtab.levers.disaggregation import SHORT_INPUTS, SplitRoles

LEVER = SplitRoles()
STALLED: dict[str, float | str | None] = {
    Name.DECODE_BESIDE_PREFILL_SHARE: 0.5,
    Name.DECODE_MS_PER_TOKEN: 80.0,
    Name.BUSY_SHARE: 0.7,
    Name.LONG_UNCACHED_SHARE: 0.9,
    Name.CHUNK_GAP_MS_BESIDE_PREFILL: 8000.0,
    Name.CHUNK_GAP_MS_ALONE: 700.0,
}


def stalled(
    *,
    refused: tuple[str, ...] = ("smaller_prefill_chunk",),
    replicas: int = 3,
    **changes: float | str,
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
    ("changes", "why"),
    [
        (
            {Name.CHUNK_GAP_MS_ALONE: "no stream was"},
            "chunk_gap_ms_max_alone unknown (no stream was)",
        ),
        ({Name.CHUNK_GAP_MS_BESIDE_PREFILL: None}, "chunk_gap_ms_max_beside_prefill unknown"),
        ({Name.CHUNK_GAP_MS_ALONE: 5000.0}, "without one: 5000 of n=100 (needs 2 times)"),
    ],
)
def test_roles_do_not_wait_for_a_chunk_that_is_not_open(
    changes: dict[str, float | str | None], why: str
) -> None:
    """Under steady load no stream is without a prefill, and gaps that are long anyway are no premise for chunks."""
    said = LEVER.assess(stalled(refused=(), **changes))
    assert (said.premise_holds, said.available) == (True, True), said.because
    assert why in said.because
    assert "smaller_prefill_chunk is not open: its premise does not hold" in said.because


@pytest.mark.parametrize("long", [0.0, 0.25, "no engine report"])
def test_prompts_that_cannot_travel_are_no_premise(long: float | str) -> None:
    """However much they stall decode: a prefill replica would have nothing to do, and so the ceiling says."""
    of = stalled(**{Name.LONG_UNCACHED_SHARE: long})
    said = LEVER.assess(of)
    assert not said.premise_holds
    assert "uncached tokens in prompts that may travel" in said.premise
    ceiling = of.diagnosis.ceiling(Technique.DISAGGREGATION)
    stall = of.diagnosis.ceiling(Technique.PREFILL_CHUNKING)
    assert ceiling is not None
    assert stall is not None
    assert stall.gain_share is not None
    part = 1.0 if isinstance(long, str) else long
    assert ceiling.gain_share == pytest.approx(part * stall.gain_share)


def test_gain_is_no_more_than_the_stall_of_prompts_that_travel() -> None:
    """Of the rest nothing is relieved."""
    half = LEVER.assess(stalled(**{Name.LONG_UNCACHED_SHARE: 0.4})).gain_share
    most = LEVER.assess(stalled(**{Name.LONG_UNCACHED_SHARE: 1.0})).gain_share
    assert half is not None
    assert half == pytest.approx((most or 0.0) * 0.4 / 0.6)


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
