"""Situations with a known bottleneck, each with what would contradict it."""

import pytest
from situations import (
    BANDWIDTH_COST,
    COMPUTE_COST,
    FLEET,
    GAINS_UNTIL_3,
    PREFILL_BOUND,
    readings,
)

from trimtab.core.cost import CostModel
from trimtab.core.findings import Diagnosis
from trimtab.core.types import Budget, Phase, Resource, Technique
from trimtab.diagnosis.diagnose import REQUESTS_MIN, diagnose
from trimtab.diagnosis.names import Name

Values = dict[str, float | str | None]

DECODE_BATCH_8: Values = {
    Name.DECODE_BATCH_MEAN: 8.0,
    Name.DECODE_MS_PER_TOKEN: 84.0,
    Name.TPOT_GROWTH_PER_STREAM: 0.6,
}
DECODE_BATCH_1: Values = {Name.TPOT_GROWTH_PER_STREAM: 0.1}
SLOTS_FULL: Values = {
    Name.QUEUE_SHARE: 0.70,
    Name.PREFILL_SHARE: 0.05,
    Name.DECODE_SHARE: 0.25,
    Name.QUEUE_BEHIND_PREFILL_SHARE: 0.10,
    Name.QUEUE_SLOTS_FULL_SHARE: 0.95,
    Name.WAITING_SLOTS_FULL_SHARE: 0.90,
}
KV_FULL: Values = {
    **SLOTS_FULL,
    Name.QUEUE_SLOTS_FULL_SHARE: 0.0,
    Name.KV_RUNNING_SHARE_P95: 0.97,
}
EVICTED: Values = {
    **PREFILL_BOUND,
    Name.PREDICTED_TOKENS: 60_000,
    Name.DELIVERED_OVER_PREDICTED: 0.20,
}

SITUATIONS = [
    ("prefill", PREFILL_BOUND, BANDWIDTH_COST, Phase.PREFILL, Resource.COMPUTE),
    ("decode at batch 1", DECODE_BATCH_1, BANDWIDTH_COST, Phase.DECODE, Resource.MEMORY_BANDWIDTH),
    ("decode at batch 8", DECODE_BATCH_8, COMPUTE_COST, Phase.DECODE, Resource.COMPUTE),
    ("slots full", SLOTS_FULL, BANDWIDTH_COST, Phase.QUEUE, Resource.ADMISSION),
    ("KV full", KV_FULL, BANDWIDTH_COST, Phase.QUEUE, Resource.MEMORY_CAPACITY),
    ("evicted", EVICTED, BANDWIDTH_COST, Phase.PREFILL, Resource.MEMORY_CAPACITY),
]

CONTRADICTIONS = [
    ("prefill", PREFILL_BOUND, BANDWIDTH_COST, {Name.PREFILL_RUNNING_SHARE: 0.05}),
    ("prefill cost", PREFILL_BOUND, BANDWIDTH_COST, {Name.PREFILL_MS_PER_TOKEN: 60.0}),
    ("decode grows", DECODE_BATCH_1, BANDWIDTH_COST, {Name.TPOT_GROWTH_PER_STREAM: 0.9}),
    ("decode is flat", DECODE_BATCH_8, COMPUTE_COST, {Name.TPOT_GROWTH_PER_STREAM: 0.01}),
    ("slots free", SLOTS_FULL, BANDWIDTH_COST, {Name.WAITING_SLOTS_FULL_SHARE: 0.0}),
    ("replicas idle", SLOTS_FULL, BANDWIDTH_COST, {Name.BUSY_SHARE: 0.1}),
    ("time in no phase", PREFILL_BOUND, BANDWIDTH_COST, {Name.UNACCOUNTED_SHARE: 0.4}),
]


def diagnosed(values: Values, cost: CostModel | None = BANDWIDTH_COST) -> Diagnosis:
    return diagnose(
        readings(**values), cost, FLEET, now_s=100.0, scope="baseline", speculation=GAINS_UNTIL_3
    )


@pytest.mark.parametrize(
    ("values", "cost", "phase", "resource"),
    [row[1:] for row in SITUATIONS],
    ids=[row[0] for row in SITUATIONS],
)
def test_each_situation_gets_its_bottleneck(
    values: Values, cost: CostModel, phase: Phase, resource: Resource
) -> None:
    """The dominant phase and resource are those that the situation was built with, on cited evidence."""
    found = diagnosed(values, cost)
    assert (phase, resource) == (found.dominant_phase, found.dominant_resource)
    assert found.confidence > 0.5
    assert all(support.evidence for support in found.supports)


@pytest.mark.parametrize(
    ("values", "cost", "against"),
    [row[1:] for row in CONTRADICTIONS],
    ids=[row[0] for row in CONTRADICTIONS],
)
def test_contradiction_is_said_and_lowers_confidence(
    values: Values, cost: CostModel, against: Values
) -> None:
    """A reading that speaks against the bottleneck is listed with its evidence and costs confidence."""
    without, with_it = diagnosed(values, cost), diagnosed({**values, **against}, cost)
    assert len(with_it.contradicts) == len(without.contradicts) + 1
    assert with_it.contradicts[-1].evidence != ()
    assert with_it.confidence < without.confidence
    assert with_it.dominant_phase is without.dominant_phase


def test_queue_behind_prefills_is_the_prefills_symptom() -> None:
    """When queued time passes while another prefill runs, prefill is to blame even if the queue is longer."""
    values = {**PREFILL_BOUND, Name.QUEUE_SHARE: 0.60, Name.PREFILL_SHARE: 0.25}
    values[Name.DECODE_SHARE] = 0.15
    found = diagnosed(values)
    assert found.dominant_phase is Phase.PREFILL
    queue = found.phase(Phase.QUEUE)
    assert queue is not None
    assert "symptom of prefill compute" in queue.because


def test_unknown_overlap_leaves_the_queue_to_itself() -> None:
    """Without knowing what ran meanwhile nothing is moved from the queue to the prefill, and that is said."""
    values = {
        **PREFILL_BOUND,
        Name.QUEUE_SHARE: 0.60,
        Name.PREFILL_SHARE: 0.25,
        Name.DECODE_SHARE: 0.15,
        Name.QUEUE_BEHIND_PREFILL_SHARE: "no timeline",
        Name.QUEUE_SLOTS_FULL_SHARE: "no timeline",
    }
    found = diagnosed(values)
    assert found.dominant_phase is None
    assert any("queue dominates" in each.text for each in found.unknown)
    assert any("no timeline" in each.text for each in found.unknown)


@pytest.mark.parametrize("name", [Name.QUEUE_SHARE, Name.PREFILL_SHARE, Name.DECODE_SHARE])
def test_unknown_phase_gives_no_dominant(name: Name) -> None:
    """A phase whose share is unknown could be the largest, so nothing is called dominant and no gain is promised."""
    found = diagnosed({**PREFILL_BOUND, name: "the engine reports no phases"})
    assert found.dominant_phase is None
    assert found.dominant_resource is None
    assert found.confidence == 0.0
    assert {ceiling.gain_share for ceiling in found.ceilings} == {None}
    assert any("the engine reports no phases" in each.text for each in found.unknown)


def test_nothing_dominates_when_no_phase_causes_much() -> None:
    """Three like phases have no dominant one."""
    found = diagnosed({Name.QUEUE_SHARE: 0.33, Name.PREFILL_SHARE: 0.33, Name.DECODE_SHARE: 0.34})
    assert found.dominant_phase is None
    assert "nothing dominates" in found.unknown[0].text


def test_nothing_dominates_when_two_are_too_close() -> None:
    """Two phases within five points of each other are too close to call."""
    found = diagnosed({Name.PREFILL_SHARE: 0.49, Name.DECODE_SHARE: 0.51})
    assert found.dominant_phase is None
    assert "too close to call" in found.unknown[0].text


def test_few_requests_name_nothing() -> None:
    """Below the least number of requests nothing is dominant, however clear the shares look."""
    found = diagnosed({**PREFILL_BOUND, Name.REQUESTS: REQUESTS_MIN - 1})
    assert found.dominant_phase is None
    assert "too few" in found.unknown[0].text


def test_decode_without_a_cost_model_has_no_resource() -> None:
    """How a step grows with the batch is calibrated or unknown, never assumed."""
    found = diagnosed({}, cost=None)
    decode = found.phase(Phase.DECODE)
    assert decode is not None
    assert decode.resource is None
    assert found.dominant_phase is None


def test_high_hit_ratio_with_little_prefill_promises_little() -> None:
    """With 94.6% of tokens reused and 8% of the time in prefill, caching can gain at most 8%, and that is said."""
    found = diagnosed(
        {
            Name.DELIVERED_SHARE: 0.946,
            Name.PREFILL_SHARE: 0.08,
            Name.DECODE_SHARE: 0.92,
            Name.SKIPPED_TOKENS_LOST: "no index",
            Name.SKIPPED_LOST_SHARE: "no index",
        }
    )
    ceiling = found.ceiling(Technique.PREFIX_CACHING)
    assert ceiling is not None
    assert ceiling.gain_share is not None
    assert ceiling.gain_share <= 0.08
    known = diagnosed(
        {
            Name.DELIVERED_SHARE: 0.946,
            Name.PREFILL_SHARE: 0.08,
            Name.DECODE_SHARE: 0.92,
            Name.SKIPPED_TOKENS_LOST: 10_000,
        }
    ).ceiling(Technique.PREFIX_CACHING)
    assert known is not None
    assert known.gain_share is not None
    assert known.gain_share <= 0.08
    assert "little left to gain from caching" in known.because


def test_ceiling_of_caching_is_the_lost_part_of_prefill_and_what_waits_behind() -> None:
    """Half of the computed tokens were lost: half of prefill and half of the queue behind it could vanish."""
    ceiling = diagnosed(PREFILL_BOUND).ceiling(Technique.PREFIX_CACHING)
    assert ceiling is not None
    assert ceiling.gain_share == pytest.approx(0.5 * 0.45 + 0.5 * 0.30 * 0.90, abs=0.01)


def test_ceiling_of_speculation_follows_the_table_at_the_observed_batch() -> None:
    """Decode share x (1 - 1 / speed-up), nothing above the break-even, all of decode without a table."""
    at_1 = diagnosed({}).ceiling(Technique.SPECULATION)
    at_4 = diagnosed({Name.DECODE_BATCH_MEAN: 4.0}).ceiling(Technique.SPECULATION)
    unknown = diagnose(readings(), BANDWIDTH_COST, FLEET, now_s=0.0, scope="x")
    assert at_1 is not None
    assert at_1.gain_share == pytest.approx(0.9 * (1.0 - 1.0 / 1.6))
    assert at_4 is not None
    assert at_4.gain_share == 0.0
    hard = unknown.ceiling(Technique.SPECULATION)
    assert hard is not None
    assert hard.gain_share == pytest.approx(0.9)


def test_stalled_decode_counts_for_the_prefill() -> None:
    """Tokens that take twice their calibrated time beside prefills are blamed on those prefills."""
    values = {
        Name.PREFILL_SHARE: 0.30,
        Name.DECODE_SHARE: 0.70,
        Name.DECODE_MS_PER_TOKEN: 48.0,
        Name.DECODE_BESIDE_PREFILL_SHARE: 0.60,
    }
    found = diagnosed(values)
    assert found.dominant_phase is Phase.PREFILL
    chunking = found.ceiling(Technique.PREFILL_CHUNKING)
    assert chunking is not None
    assert chunking.gain_share == pytest.approx(0.35)


def test_budgets_say_what_they_are_shares_of() -> None:
    """Four budgets, each with a basis; what is not measured is unknown, never zero."""
    known = diagnosed({}).budgets
    assert {use.budget for use in known.uses} == set(Budget)
    assert known.use(Budget.COMPUTE).used_share == 0.6
    assert known.use(Budget.MEMORY).used_share == pytest.approx(0.125)
    unknown = diagnosed(
        {
            Name.CPU_BUSY_SHARE: "no process table",
            Name.BUSY_SHARE: "no timeline",
            Name.MEMORY_RESIDENT_BYTES: "no process table",
            Name.KV_RUNNING_SHARE: "no slots",
        }
    ).budgets
    assert unknown.use(Budget.COMPUTE).used_share is None
    assert unknown.use(Budget.MEMORY).used_share is None
    assert all(use.basis for use in (*known.uses, *unknown.uses))


def test_preemptions_with_tight_kv_are_capacity_and_caching_is_not_proposed() -> None:
    """A queue with KV at 82% and preemptions rising is for memory, whatever a hit ratio shows."""
    found = diagnosed({**SLOTS_FULL, Name.KV_RUNNING_SHARE_P95: 0.823, Name.PREEMPTIONS_PER_S: 0.4})
    assert (
        found.dominant_phase,
        found.dominant_resource,
    ) == (Phase.QUEUE, Resource.MEMORY_CAPACITY)
    assert not any("KV capacity" in each.text for each in found.ruled_out)
