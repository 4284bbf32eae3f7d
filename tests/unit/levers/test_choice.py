"""Narrowest first: lexicographic, by measured premise, with words for every lever left out."""

import msgspec
import pytest
from events_kit import lever_record
from situations import LABELS, PREFILL_BOUND, readings, situation, table

from trimtab.core.budgets import BudgetMove, Budgets, BudgetUse
from trimtab.core.lever import Actuation, Assessment, LeverRecordError, Situation
from trimtab.core.types import Budget, Technique
from trimtab.diagnosis.names import Name
from trimtab.levers.catalog import catalog, routing_policy_of
from trimtab.levers.choice import choose, in_order, why_not
from trimtab.levers.prefix_caching import PrefixAffineRouting

BOTH = readings(**PREFILL_BOUND, **LABELS)
NO_BUDGETS = Budgets(())


def assessed(of: Situation) -> list[Assessment]:
    return [lever.assess(of) for lever in catalog().values()]


def one(name: str, *, gain: float, restart: bool = False, holds: bool = True) -> Assessment:
    base = PrefixAffineRouting().assess(situation(BOTH))
    narrowness = base.narrowness
    if restart:
        narrowness = msgspec.structs.replace(narrowness, actuation=Actuation.RESTART)
    return msgspec.structs.replace(
        base,
        lever=name,
        gain_share=gain,
        premise_holds=holds,
        available=True,
        narrowness=narrowness,
    )


def test_narrowest_that_meets_the_target_wins_over_a_larger_gain() -> None:
    """A live lever that is enough is taken before a restart that would gain more."""
    live, restart = one("live", gain=0.06), one("restart", gain=0.50, restart=True)
    chosen, because = choose([restart, live], 0.05, budgets=NO_BUDGETS)
    assert chosen == live
    assert "meets 5.0%" in because
    assert "restart not chosen: broader" in because


def test_first_worthwhile_is_taken_when_none_is_enough_alone() -> None:
    """If none meets the target, the narrowest with a worthwhile gain goes first, and that is said."""
    live, restart = one("live", gain=0.03), one("restart", gain=0.04, restart=True)
    chosen, because = choose([restart, live], 0.10, budgets=NO_BUDGETS)
    assert chosen == live
    assert "none meets 10.0% alone" in because


def test_broader_lever_is_taken_when_only_it_meets_the_target() -> None:
    """Narrowness orders the levers that are enough; it does not excuse one that is not."""
    live, restart = one("live", gain=0.03), one("restart", gain=0.30, restart=True)
    chosen, _ = choose([live, restart], 0.10, budgets=NO_BUDGETS)
    assert chosen == restart


def test_nothing_is_moved_for_a_trifle() -> None:
    """Below a worthwhile gain no lever is chosen."""
    chosen, because = choose([one("live", gain=0.001)], 0.05, budgets=NO_BUDGETS)
    assert chosen is None
    assert because.startswith("no lever is worth moving")


def test_premise_comes_before_gain() -> None:
    """A lever whose premise does not hold is out, whatever it promises."""
    chosen, because = choose([one("live", gain=0.9, holds=False)], 0.05, budgets=NO_BUDGETS)
    assert chosen is None
    assert "premise does not hold" in because


def test_lever_that_cannot_be_moved_is_left_out_with_its_premise() -> None:
    """What is listed but not moved says which figure its premise lacks, not only that it cannot be moved."""
    _, because = choose(assessed(situation(BOTH)), 0.05, budgets=NO_BUDGETS)
    assert (
        "parallel_layout not chosen: its premise does not hold: the model does not fit" in because
    )


def test_lever_without_a_premise_says_the_premise_and_not_what_it_could_gain() -> None:
    """A ceiling, however low, is no reason why a premise does not hold."""
    calm = situation(readings(**LABELS, **{Name.LONG_UNCACHED_SHARE: 0.0}))
    assert calm.diagnosis.ceiling(Technique.PREFILL_CHUNKING) is not None
    _, because = choose(assessed(calm), 0.05, budgets=NO_BUDGETS)
    said = {
        name: text for name, _, text in (x.partition(" not chosen: ") for x in because.split(". "))
    }
    for lever, premise in (
        ("smaller_prefill_chunk", "longest chunk gap in ms beside a prefill: "),
        ("split_prefill_and_decode", "prefills stall decode for "),
    ):
        assert said[lever].startswith(f"its premise does not hold: {premise}"), said[lever]
        assert "ceiling" not in said[lever]


def test_adopted_lever_is_out_for_that_and_not_for_the_premise_it_has_relieved() -> None:
    """No token is lost any more because the lever is on."""
    calm = situation(readings(**LABELS), adopted=("prefix_affine_routing",))
    routing = PrefixAffineRouting().assess(calm)
    assert not routing.premise_holds
    assert why_not(routing, NO_BUDGETS) == "already adopted"


def test_gain_that_is_shown_and_too_small_is_called_that() -> None:
    """1.03x beyond noise: the premise holds, and it is worth no restart."""
    small = situation(readings(**LABELS), speculation=table({1: 1.03, 4: 0.9}))
    assessment = catalog()["ngram_speculation"].assess(small)
    assert (assessment.premise_holds, assessment.available) == (True, False)
    assert why_not(assessment, NO_BUDGETS) == (
        "speed at batch 1.0 is 1.03x: at least 1.05x is worth a restart"
    )


def test_payer_without_headroom_blocks_a_lever() -> None:
    """A lever whose paying budget would bind is not admissible."""
    move = BudgetMove(budget=Budget.COMPUTE, spends=True, delta_share=0.2, because="test")
    lever = msgspec.structs.replace(one("live", gain=0.3), moves=(move,))
    full = Budgets((BudgetUse(budget=Budget.COMPUTE, used_share=0.85, basis="test"),))
    free = Budgets((BudgetUse(budget=Budget.COMPUTE, used_share=0.30, basis="test"),))
    blocked, because = choose([lever], 0.05, budgets=full)
    assert blocked is None
    assert "no headroom" in because
    assert choose([lever], 0.05, budgets=free)[0] == lever


def test_order_of_all_levers_is_narrowest_first() -> None:
    """Live and lossless before restarts, lossy and hardware last."""
    order = [each.lever for each in in_order(assessed(situation(BOTH)))]
    assert order == [
        "prefix_affine_routing",
        "add_replica",
        "ngram_speculation",
        "smaller_prefill_chunk",
        "split_prefill_and_decode",
        "parallel_layout",
        "lower_precision",
    ]


def test_prefix_affinity_goes_first_and_speculation_next() -> None:
    """With tokens lost and decode bound by bandwidth the routing lever is first; once adopted, speculation is."""
    first, _ = choose(assessed(situation(BOTH)), 0.05, budgets=NO_BUDGETS)
    assert first is not None
    assert first.lever == "prefix_affine_routing"
    calm = readings(**LABELS)
    second, because = choose(
        assessed(situation(calm, adopted=("prefix_affine_routing",))), 0.05, budgets=NO_BUDGETS
    )
    assert second is not None
    assert second.lever == "ngram_speculation"
    assert "prefix_affine_routing not chosen" in because


def test_levers_that_are_not_moved_say_premise_and_why() -> None:
    """Techniques without a way to move them are listed with premise, ceiling and reason, and cannot be proposed."""
    of = situation(BOTH)
    moved = {
        "prefix_affine_routing",
        "ngram_speculation",
        "smaller_prefill_chunk",
        "split_prefill_and_decode",
    }
    others = {name: lever for name, lever in catalog().items() if name not in moved}
    assert {lever.assess(of).technique for lever in others.values()} == {
        Technique.QUANTIZATION,
        Technique.PARALLEL_LAYOUT,
        Technique.REPLICAS,
    }
    for lever in others.values():
        assessment = lever.assess(of)
        assert not assessment.available
        assert assessment.premise
        assert assessment.because
        with pytest.raises(LeverRecordError, match="cannot be proposed"):
            lever.propose(of, assessment, "because")


def test_model_that_fits_is_given_no_layout() -> None:
    """One node without a second accelerator, a model that fits: no parallel layout, replicas instead."""
    layout = catalog()["parallel_layout"].assess(situation(BOTH))
    assert not layout.premise_holds
    assert "served better by replicas" in layout.premise


def test_every_technique_has_a_lever() -> None:
    """Nothing the diagnosis gives a ceiling for is missing from the catalog."""
    techniques = [each.technique for each in assessed(situation(BOTH))]
    assert sorted(techniques) == sorted(Technique)


def test_only_the_routing_lever_swaps_a_policy() -> None:
    """The wiring asks which policy a lever swaps in; a revision lever has none."""
    plain = lever_record()
    routing = msgspec.structs.replace(plain, policy="least_loaded")
    before = msgspec.structs.replace(plain, name="prefix_affine_routing")
    assert routing_policy_of(routing) == "least_loaded"
    assert routing_policy_of(before) == "prefix_affine"
    assert routing_policy_of(msgspec.structs.replace(plain, name="ngram_speculation")) is None


def test_idle_fleet_does_not_need_another_replica() -> None:
    """Queueing alone is no reason: the replicas there are must have no time left."""
    lever = catalog()["add_replica"]
    queue = {Name.QUEUE_SHARE: 0.5, Name.PREFILL_SHARE: 0.2, Name.DECODE_SHARE: 0.3}
    assert lever.assess(situation(readings(**queue, **{Name.CPU_BUSY_SHARE: 0.95}))).premise_holds
    assert not lever.assess(
        situation(readings(**queue, **{Name.CPU_BUSY_SHARE: 0.2}))
    ).premise_holds
