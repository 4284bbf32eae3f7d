"""Steps of experts put together again: their load, the width of the group, the exchange, groups without a prompt."""

import msgspec
import pytest
from plan_kit import NETWORK, NVLINK, cluster, mixture
from times_kit import LawTimes

from trimtab.core.layout import Layout
from trimtab.diagnosis.served_facts import ExpertExchange
from trimtab.planning.exchange import Exchange, exchange_of
from trimtab.planning.kernel_port import Parted
from trimtab.planning.mixture_times import (
    MixtureTimes,
    Reference,
    even_reference,
    near_reference,
)

PAIR = Layout(attention_dp=8, moe_ep=8)
WIDE = Layout(attention_dp=64, moe_ep=64)


def parted(*, rest: float, experts: float, exchange: float) -> Parted:
    """Laws whose steps take so many milliseconds more for each stream, and as many for each token of a prompt."""
    laws = [
        LawTimes(0.0, each, each)
        for each in (rest + experts + exchange, rest + experts, rest)
    ]  # fmt: skip
    return Parted(whole=laws[0], no_exchange=laws[1], no_experts=laws[2])


OWN = parted(rest=1.0, experts=2.0, exchange=0.5)


def even(experts: float, layout: Layout = PAIR) -> Reference:
    return Reference(
        times=parted(rest=1.0, experts=experts, exchange=0.1),
        tokens_ratio=even_reference(layout)[1],
    )


def exchange(kind: ExpertExchange, layout: Layout, nodes: int = 1) -> Exchange:
    found = exchange_of(kind, mixture(), layout, cluster(devices=8, nodes=nodes), operand_bits=8)
    assert found is not None
    return found


def test_parts_that_nobody_touches_add_up_to_the_whole() -> None:
    """Nothing was told, eight ranks: the step is the tables' own."""
    found = MixtureTimes(OWN, PAIR)
    assert found.decode_ms(10, 1000) == pytest.approx(OWN.whole.decode_ms(10, 1000))
    assert found.prefill_ms(100, 0) == pytest.approx(OWN.whole.prefill_ms(100, 0))
    assert found.beside_ms(100, 100, 0, 4) == pytest.approx(OWN.whole.beside_ms(100, 100, 0, 4))


@pytest.mark.parametrize("skew", [1.0, 1.2, 3.5])
def test_busiest_rank_takes_its_load_times_what_an_even_one_does(skew: float) -> None:
    """Eight groups' tokens meet tensor-parallel experts at 0.15 ms a token: 1.2 ms for each of a rank's streams."""
    found = MixtureTimes(OWN, PAIR, skew=skew, even=even(0.15))
    assert found.decode_ms(10, 1000) == pytest.approx(10 * (1.0 + 1.2 * skew + 0.5))


def test_prompt_of_one_group_alone_brings_the_experts_an_eighth_of_the_tokens() -> None:
    """Attention computes the whole prompt; experts that eight groups share see one prompt and not eight."""
    found = MixtureTimes(OWN, PAIR)
    assert found.prefill_ms(800, 0, busy_share=1 / 8) == pytest.approx(800 * 1.0 + 100 * 2.5)
    assert found.beside_ms(800, 800, 0, 4, busy_share=1 / 8) == pytest.approx(800 + 100 * 2.5)


def test_wide_group_takes_no_more_than_eight_ranks_with_as_many_tokens_each() -> None:
    """A rank computes its tokens' share however many ranks there are; a table that charges 20 times it is bounded."""
    absurd = parted(rest=1.0, experts=40.0, exchange=0.5)
    other = near_reference(WIDE)
    assert other is not None
    near = Reference(times=OWN, tokens_ratio=other[1])
    assert other == (PAIR, 1.0)
    assert MixtureTimes(absurd, WIDE, near=near).decode_ms(10, 1000) == pytest.approx(10 * 3.5)
    assert near_reference(PAIR) is None


def test_named_exchange_takes_the_place_of_the_tables() -> None:
    """The sum is rest, experts and the formula."""
    named = exchange(ExpertExchange.ALL_TO_ALL, PAIR)
    found = MixtureTimes(OWN, PAIR, exchange=named)
    assert found.decode_ms(10, 1000) == pytest.approx(10 * 3.0 + named.ms(10))
    assert found.communication_ms(10, 1000) == pytest.approx(1.0 + named.ms(10))
    assert any("all-to-all over 8 ranks" in note for note in found.notes)


@pytest.mark.parametrize(
    ("ranks", "bytes_there", "published_us"), [(8, 1.0, 77), (64, 1.0, 173)], ids=["EP8", "EP64"]
)
def test_all_to_all_is_near_what_its_authors_publish(
    ranks: int, bytes_there: float, published_us: float
) -> None:
    """128 tokens of 7,168 values to 8 experts each, over 160 GB/s inside a node and 50 GB/s between nodes."""
    one_way = Exchange(
        kind=ExpertExchange.ALL_TO_ALL, ranks=ranks, node_ranks=8, values=7168, layers=1,
        experts_per_token=8, there_bytes=bytes_there - 2.0, inside_bytes_per_s=160e9,
        between_bytes_per_s=50e9,
    )  # fmt: skip
    # there alone: nothing on the way back, and one of the two messages
    assert 1000 * one_way.ms(128) - 40 == pytest.approx(published_us, rel=0.15)


def test_all_reduce_over_nodes_costs_many_times_an_all_to_all() -> None:
    """Every rank gets every token of 64 ranks over its adapter, instead of those for its experts."""
    gathered = exchange(ExpertExchange.ALL_REDUCE, WIDE, nodes=8).ms(1000)
    sent = exchange(ExpertExchange.ALL_TO_ALL, WIDE, nodes=8).ms(1000)
    assert gathered > 5 * sent


def test_many_tokens_cross_to_each_node_once() -> None:
    """Above 256 tokens a rank a token that has eight experts on seven nodes crosses to each of them once."""
    few, many = (
        exchange(ExpertExchange.ALL_TO_ALL, WIDE, nodes=8).ms(tokens) for tokens in (256, 257)
    )
    assert many < few


def test_without_attention_groups_no_exchange_is_named() -> None:
    """Every rank holds every token: engines sum by all-reduce, as with tensor parallelism."""
    one = Layout(tp=8, moe_ep=8)
    assert exchange_of(ExpertExchange.ALL_TO_ALL, mixture(), one, cluster()) is None


def test_link_that_nobody_knows_leaves_the_tables_exchange() -> None:
    """A formula without a rate would be a guess."""
    unknown = msgspec.structs.replace(NVLINK, bytes_per_s=None)
    found = exchange_of(ExpertExchange.ALL_TO_ALL, mixture(), PAIR, cluster(link=unknown))
    assert found is None
    assert NETWORK.bytes_per_s is not None
