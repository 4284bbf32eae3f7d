"""Which layouts sizes allow, and what is nearest to those that they forbid."""

import msgspec
import pytest
from plan_kit import cluster, dense, mixture

from trimtab.core.layout import Cluster, Layout, PlanInputError
from trimtab.core.served import ModelShape
from trimtab.planning.layouts import Sizes, placed_replicas, possible_layouts


def tensor_sizes(model: ModelShape, where: Cluster) -> list[int]:
    found = possible_layouts(model, where).layouts
    return sorted({each.tp for each in found if each.pp == 1 and each.attention_dp == 1})


def test_tensor_parallel_divides_heads_and_kv_heads() -> None:
    """28 heads and 4 KV heads on 8 devices leave 1, 2 and 4; 7 divides the query heads only."""
    model = dense(heads=28, kv_heads=4, layers=28)
    assert tensor_sizes(model, cluster(8)) == [1, 2, 4]
    refused = {each.what: each for each in possible_layouts(model, cluster(8)).impossible}
    assert "KV heads unevenly" in refused["TP7"].because
    assert refused["TP8"].nearest == ("TP4 x2",)


def test_more_ranks_than_kv_heads_are_possible_where_copies_are_even() -> None:
    """64 heads with 8 KV heads go over 16 ranks: each KV head is held twice."""
    assert tensor_sizes(dense(heads=64, kv_heads=8), cluster(16)) == [1, 2, 4, 8, 16]


def test_refused_size_names_the_possible_ones_next_to_it() -> None:
    """52 heads do not go over 3 ranks; 2 and 4 are nearest."""
    with pytest.raises(PlanInputError, match=r"tp: 52 heads .* nearest valid: 2 or 4") as caught:
        possible_layouts(dense(heads=52, kv_heads=4), cluster(8), Sizes(tp=3))
    assert caught.value.field == "tp"
    assert caught.value.nearest == ("2", "4")


@pytest.mark.parametrize(
    ("model", "sizes", "field", "nearest"),
    [
        (dense(heads=7, kv_heads=7), Sizes(tp=2), "tp", ("1",)),
        (dense(layers=4), Sizes(pp=8), "pp", ("4",)),
        (mixture(experts=60), Sizes(moe_ep=8), "ep", ("6", "10")),
        (dense(), Sizes(moe_ep=2), "ep", ("1",)),
        (dense(), Sizes(attention_dp=2), "dp", ("1",)),
        (dense(), Sizes(tp=8, replicas=2), "hardware", ("16 devices",)),
    ],
    ids=["heads", "layers", "experts", "no experts", "dense groups", "too few devices"],
)
def test_fixed_size_that_cannot_be_names_its_field(
    model: ModelShape, sizes: Sizes, field: str, nearest: tuple[str, ...]
) -> None:
    """A size that the person fixed is refused with the field and what is possible next to it."""
    with pytest.raises(PlanInputError) as caught:
        possible_layouts(model, cluster(8), sizes)
    assert caught.value.field == field
    assert caught.value.nearest[: len(nearest)] == nearest


@pytest.mark.parametrize(("layers", "heads"), [(0, 8), (-1, 8), (8, 0)])
def test_model_without_layers_or_heads_is_refused(layers: int, heads: int) -> None:
    """Zero is no count of layers or heads."""
    model = dense(heads=8, kv_heads=8)
    broken = type(model)(name="x", source="test", layers=layers, heads=heads)
    with pytest.raises(PlanInputError, match=r"model\.(layers|heads): .* nearest valid: 1"):
        possible_layouts(broken, cluster(8))


def test_dense_model_has_no_experts_and_no_attention_groups() -> None:
    """Copies of a dense model that share nothing are replicas."""
    found = possible_layouts(dense(), cluster(8))
    assert {(each.moe_ep, each.attention_dp) for each in found.layouts} == {(1, 1)}
    assert {"EP", "DP"} <= {each.what for each in found.impossible}


def test_experts_are_dealt_out_over_all_ranks_of_a_stage() -> None:
    """Each layout of a mixture either cuts every expert over all ranks or deals whole experts out to all."""
    for each in possible_layouts(mixture(), cluster(8, 2)).layouts:
        ranks = each.tp * each.attention_dp
        assert (each.moe_tp, each.moe_ep) in {(ranks, 1), (1, ranks)}


@pytest.mark.parametrize(
    ("layout", "nodes", "expected"),
    [
        (Layout(tp=2), 1, 4),
        (Layout(tp=2), 2, 8),
        (Layout(tp=3), 2, 4),
        (Layout(tp=8, pp=2), 2, 1),
        (Layout(tp=8, pp=2), 3, 1),
        (Layout(tp=8, pp=3), 2, 0),
        (Layout(tp=12), 2, 0),
    ],
)
def test_replica_lies_in_a_node_or_takes_whole_nodes(
    layout: Layout, nodes: int, expected: int
) -> None:
    """Groups of 3 leave two devices of each 8 idle; groups of 12 would share a node and are not placed."""
    assert placed_replicas(layout, cluster(8, nodes)) == expected


def test_vocabulary_that_does_not_divide_forbids_a_size() -> None:
    """40 heads divide over 5 ranks, 151,936 tokens do not: vLLM refuses to start."""
    model = msgspec.structs.replace(dense(heads=40, kv_heads=40), vocabulary=151_936)
    assert 5 not in tensor_sizes(model, cluster(8))
    refused = {each.what: each for each in possible_layouts(model, cluster(8)).impossible}
    assert "vocabulary" in refused["TP5"].because
    with pytest.raises(PlanInputError, match=r"tp: the vocabulary .* nearest valid: 4 or 8"):
        possible_layouts(model, cluster(8), Sizes(tp=5))
