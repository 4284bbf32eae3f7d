"""What a rank holds of a model: dealt out, copied, or cut by depth."""

import pytest

from trimtab.core.layout import Layout
from trimtab.core.model_parts import PartName
from trimtab.core.served import ModelShape
from trimtab.engines.model_names import find_model_shape
from trimtab.planning.model_parts import (
    RankWeights,
    rank_weights,
    stage_layers,
    stage_spans,
    vocabulary_divides,
)


def model(name: str) -> ModelShape:
    found = find_model_shape(name)
    assert found is not None
    return found


def held(name: str, **sizes: int) -> RankWeights:
    found = rank_weights(model(name), Layout(**sizes))
    assert found is not None
    return found


def share(weights: RankWeights, name: PartName) -> float:
    return next(part.share for part in weights.parts if part.name is name)


def test_one_device_holds_every_byte() -> None:
    """The parts sum up to the checkpoint."""
    found = held("llama-3.1-8b")
    assert found.total_bytes == pytest.approx(model("llama-3.1-8b").weight_bytes, rel=1e-9)


def test_key_projections_are_copied_beyond_the_kv_heads() -> None:
    """8 KV heads over 16 ranks: each holds one head's projection, so the group holds two copies."""
    assert share(held("llama-3.1-70b", tp=8), PartName.KEY_VALUE) == 1 / 8
    assert share(held("llama-3.1-70b", tp=16), PartName.KEY_VALUE) == 1 / 8
    assert share(held("llama-3.1-70b", tp=16), PartName.ATTENTION) == 1 / 16


def test_latent_compressions_are_whole_on_every_rank() -> None:
    """What MLA compresses with is not cut by heads; what it expands with is."""
    found = held("deepseek-v3", tp=8, moe_tp=8)
    assert share(found, PartName.LATENT) == 1.0
    assert share(found, PartName.ATTENTION) == 1 / 8


def test_attention_groups_copy_attention_and_share_experts() -> None:
    """Eight groups of one rank: attention is there eight times, experts once over all of them."""
    found = held("deepseek-v3", attention_dp=8, moe_ep=8)
    assert share(found, PartName.ATTENTION) == 1.0
    assert share(found, PartName.EXPERTS) == 1 / 8
    assert share(found, PartName.SHARED_EXPERTS) == 1.0


@pytest.mark.parametrize(("layers", "stages", "expected"), [
    (32, 4, (8, 8, 8, 8)),
    (30, 4, (7, 8, 8, 7)),
    (61, 2, (31, 30)),
    (5, 5, (1, 1, 1, 1, 1)),
])  # fmt: skip
def test_stages_share_the_layers_and_the_last_is_never_longer(
    layers: int, stages: int, expected: tuple[int, ...]
) -> None:
    """Odd layers go to stages before the last one, which has the output matrix."""
    assert stage_layers(layers, stages) == expected


def test_more_stages_than_layers_is_an_error() -> None:
    """A stage without a layer cannot be."""
    with pytest.raises(ValueError, match="do not fill"):
        stage_layers(3, 4)


def test_stages_cover_the_layers_once() -> None:
    """Spans lie side by side from the first layer to the last."""
    spans = stage_spans(61, 7)
    assert spans[0][0] == 0
    assert spans[-1][1] == 61
    assert [a[1] for a in spans[:-1]] == [b[0] for b in spans[1:]]


def test_first_stage_of_a_deep_mixture_holds_its_dense_layers() -> None:
    """DeepSeek's three dense layers come first, so a later stage has more experts and is the fullest."""
    found = held("deepseek-v3", tp=8, moe_tp=8, pp=2)
    assert found.stage == 1
    assert share(found, PartName.EXPERTS) == pytest.approx(30 / 58 / 8)


def test_tied_embedding_is_held_twice_when_stages_split_its_ends() -> None:
    """The first stage looks up, the last one multiplies: both need the matrix."""
    one, two = held("llama-3.2-1b"), held("llama-3.2-1b", pp=2)
    embedding = next(part for part in one.parts if part.name is PartName.EMBEDDING)
    layers = one.total_bytes - embedding.bytes
    assert two.total_bytes == pytest.approx(layers / 2 + embedding.bytes, rel=1e-3)


def test_model_of_unknown_parts_is_dealt_out_evenly() -> None:
    """A total is better than nothing; without one there is no answer."""
    shape = ModelShape(name="m", source="a test", layers=10, weight_bytes=100.0, expert_bytes=60.0)
    found = rank_weights(shape, Layout(tp=2, moe_tp=2))
    assert found is not None
    assert found.total_bytes == 50.0
    assert rank_weights(ModelShape(name="m", source="a test"), Layout()) is None


def test_mxfp4_experts_are_held_wider_than_stored() -> None:
    """Kernels pad gpt-oss's hidden size of 2880 to 3072."""
    assert share(held("gpt-oss-120b"), PartName.EXPERTS) == pytest.approx(3072 / 2880)


def test_vocabulary_must_divide_as_well_as_the_heads() -> None:
    """Qwen3-14B: 40 heads over 5 ranks would do, 151,936 tokens over 5 do not."""
    assert [vocabulary_divides(model("qwen3-14b"), size) for size in (4, 5, 8)] == [
        True,
        False,
        True,
    ]


def test_stage_behind_the_dense_layers_is_the_fullest_of_equally_long_ones() -> None:
    """27 layers over 7 stages: the first has the dense layer, the sixth four layers of experts."""
    assert held("deepseek-v2-lite", pp=7).stage == 5
