"""What rules say of layouts, with the reason and the numbers."""

from pathlib import Path

import msgspec
import pytest
from plan_kit import DEVICE, NO_PEER, UNKNOWN_LINK, LawEstimator, cluster, dense, mixture

from trimtab.core.layout import Cluster, Demand, Layout
from trimtab.core.served import ModelShape
from trimtab.diagnosis.served_facts import ExpertExchange
from trimtab.planning.plan_ask import Ask
from trimtab.planning.rules import Fits, Force, Remark, Rule, load_remarks, size_remarks

DEMAND = Demand(input_tokens=1000, output_tokens=200, concurrency=64)


def asked(model: ModelShape, where: Cluster | None = None, **more: object) -> Ask:
    base = Ask(model=model, accelerator=DEVICE, cluster=where or cluster(8), demand=DEMAND)
    return msgspec.structs.replace(base, **more)


def said(
    layout: Layout, ask: Ask, *, fits: int | None = 1, batch: float = 64.0, in_node: bool = True
) -> dict[Rule, Remark]:
    found = Fits(devices=fits, in_node=in_node, uncut=in_node)
    expected = LawEstimator(ask.model, streams=lambda _: 1e6).expected(
        layout, msgspec.structs.replace(ask.demand, concurrency=batch)
    )
    told = [*size_remarks(layout, ask, found), *load_remarks(layout, ask, expected)]
    return {each.rule: each for each in told}


def test_tensor_parallel_without_peer_access_is_forbidden_where_one_device_is_enough() -> None:
    """Every layer's exchange would cross the host for nothing."""
    found = said(Layout(tp=2), asked(dense(), cluster(2, link=NO_PEER)))
    assert found[Rule.TENSOR_NO_PEER].force is Force.FORBIDS


def test_tensor_parallel_without_peer_access_stays_where_it_is_needed_to_fit() -> None:
    """A model that needs two devices is cut over them, with the remark that this is for fit only."""
    found = said(Layout(tp=2), asked(dense(), cluster(2, link=NO_PEER)), fits=2)
    assert found[Rule.TENSOR_NO_PEER].force is Force.AGAINST


def test_link_that_is_not_known_is_said_to_be_unknown() -> None:
    """An unknown link neither forbids nor allows."""
    found = said(Layout(tp=2), asked(dense(), cluster(2, link=UNKNOWN_LINK)), fits=2)
    assert found[Rule.LINK_UNKNOWN].force is Force.UNKNOWN
    assert Rule.TENSOR_NO_PEER not in found


def test_tensor_parallel_stays_within_a_node() -> None:
    """Across nodes it is forbidden while something fits in one."""
    ask = asked(dense(), cluster(8, 2))
    assert said(Layout(tp=16), ask, fits=2)[Rule.TENSOR_ACROSS_NODES].force is Force.FORBIDS
    needed = said(Layout(tp=16), ask, fits=16, in_node=False)
    assert needed[Rule.TENSOR_ACROSS_NODES].force is Force.AGAINST


def test_stages_are_forbidden_while_the_model_fits_without() -> None:
    """Stages only add a bubble then; across nodes they remain when nothing else fits, with the bubble told."""
    ask = asked(dense(), cluster(8, 2))
    assert said(Layout(tp=8, pp=2), ask, fits=4)[Rule.PIPELINE_NOT_NEEDED].force is Force.FORBIDS
    needed = said(Layout(tp=8, pp=2), ask, fits=None, in_node=False, batch=2.0)
    assert Rule.PIPELINE_NOT_NEEDED not in needed
    assert needed[Rule.PIPELINE_BUBBLE].numbers["bubble_share"] == pytest.approx(1 / 3)


def test_few_tokens_a_step_forbid_expert_parallel() -> None:
    """16 tokens of a model with 8 experts, top 2, are tensor parallel's."""
    model = mixture(experts=8, per_token=2, latent=False, weight_gb=90)
    ask = asked(model, exchange=ExpertExchange.ALL_TO_ALL, expert_skew=1.1)
    found = said(Layout(tp=8, moe_ep=8), ask, batch=16.0)
    assert found[Rule.EXPERTS_TOO_FEW_TOKENS].force is Force.FORBIDS
    assert found[Rule.EXPERTS_TOO_FEW_TOKENS].numbers == {"tokens_per_step": 16.0}


def test_many_tokens_with_an_even_all_to_all_are_worth_a_canary() -> None:
    """4,000 tokens a step over 256 experts with a load of 1.2 times the mean."""
    ask = asked(mixture(), cluster(8, 2), exchange=ExpertExchange.ALL_TO_ALL, expert_skew=1.2)
    found = said(Layout(attention_dp=16, moe_ep=16), ask, batch=4000.0)
    assert found[Rule.EXPERTS_CANDIDATE].force is Force.FOR


def test_skewed_experts_forbid_expert_parallel_with_their_straggler_factor() -> None:
    """A step waits for the busiest rank: 3.5 times the mean."""
    ask = asked(mixture(), cluster(8, 2), exchange=ExpertExchange.ALL_TO_ALL, expert_skew=3.5)
    found = said(Layout(attention_dp=16, moe_ep=16), ask, batch=4000.0)
    assert found[Rule.EXPERTS_SKEWED].force is Force.FORBIDS
    assert found[Rule.EXPERTS_SKEWED].numbers == {"straggler_factor": 3.5}
    assert Rule.EXPERTS_CANDIDATE not in found


def test_expert_parallel_by_all_reduce_saves_no_communication() -> None:
    """Every rank gets every token then."""
    ask = asked(mixture(), exchange=ExpertExchange.ALL_REDUCE, expert_skew=1.2)
    found = said(Layout(tp=8, moe_ep=8), ask, batch=4000.0)
    assert "no communication saved" in found[Rule.EXPERTS_NOTHING_SAVED].text
    assert Rule.EXPERTS_CANDIDATE not in found


def test_unmeasured_skew_and_exchange_are_said_to_be_unknown() -> None:
    """Nothing is assumed of experts that nobody measured."""
    found = said(Layout(tp=8, moe_ep=8), asked(mixture()), batch=4000.0)
    assert found[Rule.EXPERTS_SKEW_UNKNOWN].force is Force.UNKNOWN
    assert found[Rule.EXPERTS_EXCHANGE_UNKNOWN].force is Force.AGAINST
    assert Rule.EXPERTS_CANDIDATE not in found


def test_latent_kv_over_ranks_is_copied_and_attention_groups_are_named() -> None:
    """A latent KV over 8 ranks is held 8 times."""
    found = said(Layout(tp=8, moe_tp=8), asked(mixture()))
    assert found[Rule.KV_COPIED].numbers == {"kv_copies": 8.0}
    assert "attention data parallelism" in found[Rule.KV_COPIED].text
    assert Rule.ATTENTION_GROUPS in said(Layout(attention_dp=8, moe_tp=8), asked(mixture()))


def test_ranks_beyond_kv_heads_hold_copies() -> None:
    """8 KV heads over 16 ranks are 2 copies; a rank holds as much as over 8."""
    found = said(Layout(tp=16), asked(dense(), cluster(16)))
    assert found[Rule.KV_COPIED].numbers == {"kv_copies": 2.0}
    assert "as large as at TP8" in found[Rule.KV_COPIED].text
    assert Rule.KV_COPIED not in said(Layout(tp=8), asked(dense(), cluster(16)))


def test_layers_that_do_not_divide_leave_a_longer_stage() -> None:
    """61 layers over two stages are 31 and 30, and a step waits for the 31."""
    ask = asked(dense(layers=61), cluster(8, 2))
    found = said(Layout(tp=8, pp=2), ask, fits=None, in_node=False)
    assert found[Rule.PIPELINE_UNEVEN].numbers == {"layers_max": 31.0}
    assert Rule.PIPELINE_UNEVEN not in said(Layout(tp=8, pp=2), asked(dense(), cluster(8, 2)))


def test_one_device_that_holds_too_few_streams_may_be_cut_without_peer_access() -> None:
    """It fits alone, but not with its share of the load: cut over the host's link it at least serves."""
    ask = asked(dense(), cluster(2, link=NO_PEER))
    tight = Fits(devices=1, in_node=True, streams=2.0, enough=False)
    [remark] = [
        each for each in size_remarks(Layout(tp=2), ask, tight) if each.rule is Rule.TENSOR_NO_PEER
    ]
    assert remark.force is Force.AGAINST


def test_every_rule_is_in_the_table_of_the_manual() -> None:
    """A remark's rule can be looked up by its name."""
    manual = (Path(__file__).parents[3] / "docs" / "plan.md").read_text()
    assert [rule.value for rule in Rule if f"`{rule.value}`" not in manual] == []
