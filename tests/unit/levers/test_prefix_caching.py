"""Prefix-affine routing: premise by tokens lost, a complete record, gates that prove mechanism and effect."""

import msgspec
import pytest
from situations import PREFILL_BOUND, readings, situation

from trimtab.core.gate import Metric, Question
from trimtab.core.lever import (
    Comparison,
    LeverRecord,
    LeverRecordError,
    TriggerAction,
    check_record,
)
from trimtab.core.types import Budget, RolloutState
from trimtab.diagnosis.names import Name
from trimtab.levers.prefix_caching import PrefixAffineRouting

LEVER = PrefixAffineRouting()


def proposed() -> LeverRecord:
    of = situation(readings(**PREFILL_BOUND))
    return LEVER.propose(of, LEVER.assess(of), "narrowest")


def test_tokens_lost_make_the_premise() -> None:
    """Half of the computed tokens lost: the premise holds, says so in numbers and predicts a gain below the ceiling."""
    of = situation(readings(**PREFILL_BOUND))
    found = LEVER.assess(of)
    assert found.premise_holds
    assert found.available
    assert "30,000 of 60,000 computed prompt tokens" in found.premise
    assert found.gain_share == pytest.approx(0.8 * 0.36, abs=0.01)


def test_high_hit_rate_makes_no_premise() -> None:
    """Without tokens lost there is nothing to capture, however much prefill there is."""
    values = {**PREFILL_BOUND, Name.SKIPPED_TOKENS_LOST: 100, Name.SKIPPED_LOST_SHARE: 0.002}
    found = LEVER.assess(situation(readings(**values)))
    assert not found.premise_holds


def test_unknown_tokens_lost_make_no_premise() -> None:
    """Unknown is not zero and not much: the premise cannot be told and no gain is predicted."""
    values = {
        **PREFILL_BOUND,
        Name.SKIPPED_TOKENS_LOST: "no index",
        Name.SKIPPED_LOST_SHARE: "no index",
    }
    found = LEVER.assess(situation(readings(**values)))
    assert not found.premise_holds
    assert found.gain_share is None
    assert "no index" in found.premise


def test_memory_capacity_withdraws_the_premise() -> None:
    """Where KV capacity binds, affinity would promise what is evicted before it is used."""
    values = {**PREFILL_BOUND, Name.KV_RUNNING_SHARE_P95: 0.85, Name.PREEMPTIONS_PER_S: 1.0}
    found = LEVER.assess(situation(readings(**values)))
    assert not found.premise_holds
    assert "memory capacity binds" in found.premise


def test_one_replica_leaves_nothing_to_route() -> None:
    """Affinity between replicas needs replicas."""
    assert not LEVER.assess(situation(readings(**PREFILL_BOUND), replicas=1)).available


def test_adopted_or_refused_lever_is_not_offered_again() -> None:
    """A lever that is in force or was tried is not available."""
    seen = readings(**PREFILL_BOUND)
    assert not LEVER.assess(situation(seen, adopted=(LEVER.name,))).available
    assert not LEVER.assess(situation(seen, refused=(LEVER.name,))).available


def test_record_is_complete_and_compared_by_switchback() -> None:
    """The proposed record passes the check, cites evidence, and shares caches between its arms in time only."""
    record = proposed()
    assert record == check_record(record)
    assert record.ramp.comparison is Comparison.SWITCHBACK
    assert record.bottleneck.evidence != ()
    assert record.expires_at_s - record.created_at_s == 30 * 86_400
    assert record.revision is None


@pytest.mark.parametrize(
    ("field", "value", "path"),
    [
        ("premise", " ", "premise"),
        ("gates", (), "gates"),
        ("expected", (), "expected"),
        ("triggers", (), "triggers"),
        ("failure_modes", (), "failure_modes"),
        ("reverse", "", "reverse"),
        ("owner", "", "owner"),
    ],
)
def test_incomplete_record_is_refused_with_its_path(field: str, value: object, path: str) -> None:
    """A record with a field unsaid never becomes a rollout; the error names the field."""
    with pytest.raises(LeverRecordError, match=rf"\$\.{path}"):
        check_record(msgspec.structs.replace(proposed(), **{field: value}))


def test_record_without_evidence_is_refused() -> None:
    """A lever that cannot say what it expects cannot be proposed."""
    values = {**PREFILL_BOUND, Name.PREFILL_SHARE: "silent engine"}
    of = situation(readings(**values))
    with pytest.raises(LeverRecordError, match="expected"):
        LEVER.propose(of, LEVER.assess(of), "forced")


def test_gates_prove_the_effect_and_let_the_mechanism_veto() -> None:
    """TTFT must gain before adoption; a small slice looks for what is broken; the rest may veto."""
    gates = proposed().gates
    gains = {gate.metric: gate for gate in gates if gate.question is Question.GAIN}
    assert set(gains) == {Metric.TTFT_MS}
    assert all(gate.required and gate.during == (RolloutState.PROVING,) for gate in gains.values())
    early = {gate.metric for gate in gates if RolloutState.CANARY in gate.during}
    assert {Metric.TTFT_MS, Metric.TPOT_MS, Metric.ERROR_RATE} <= early
    vetoes = {gate.metric for gate in gates if gate.question is Question.VETO}
    asked_of_evaluations_or_declared = {
        Metric.QUALITY_LOSS,
        Metric.INVALID_OUTPUT_RATE,
        Metric.SLICE_SHARE,
        Metric.UNIT_COST,
    }
    assert vetoes == set(Metric) - asked_of_evaluations_or_declared


def test_every_state_asks_a_required_gate() -> None:
    """A state in which nothing required is asked could never promote."""
    gates = proposed().gates
    for state in (RolloutState.CANARY, RolloutState.RAMPING, RolloutState.PROVING):
        assert any(gate.required and state in gate.during for gate in gates)


def test_prediction_comes_from_the_measured_figures() -> None:
    """Computed tokens fall by the captured part of what was lost; TTFT by that part of prefill and queue."""
    expected = {effect.metric: effect for effect in proposed().expected}
    computed = expected[Metric.PROMPT_TOKENS_COMPUTED]
    assert computed.ratio == pytest.approx(1.0 - 0.8 * 0.5)
    ttft = expected[Metric.TTFT_MS]
    assert ttft.ratio == pytest.approx(1.0 - 0.8 * 0.5 * (0.45 + 0.27) / 0.75)
    assert ttft.low <= ttft.ratio <= ttft.high


def test_moves_relieve_compute_by_what_is_no_longer_computed() -> None:
    """30,000 lost tokens x 0.8 x 10 ms over 2 replicas x 100 s would be more than all: clamped to everything."""
    moves = {move.budget: move for move in proposed().moves}
    assert moves[Budget.COMPUTE].delta_share == -1.0
    assert moves[Budget.MEMORY].spends
    values = {**PREFILL_BOUND, Name.SKIPPED_TOKENS_LOST: 5_000, Name.COMPUTED_TOKENS: 10_000}
    found = LEVER.assess(situation(readings(**values)))
    saved = {move.budget: move.delta_share for move in found.moves}
    assert saved[Budget.COMPUTE] == pytest.approx(-0.8 * 5_000 * 0.010 / 200.0)


def test_hot_replica_and_index_without_credit_cost_affinity_and_not_the_lever() -> None:
    """A hot replica lowers affinity; delivered far below predicted distrusts the index; the load bound stays."""
    actions = {trigger.name: trigger.action for trigger in proposed().triggers}
    assert actions == {
        "hot-replica": TriggerAction.LOWER_AFFINITY,
        "index-not-credible": TriggerAction.DISTRUST_INDEX,
    }
