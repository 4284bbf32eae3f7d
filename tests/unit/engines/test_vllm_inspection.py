"""What a running vLLM tells of its layers: counted by group, and compared with what was planned."""

import msgspec
import pytest

from trimtab.core.ports import EngineFormatError
from trimtab.engines.compressed_tensors import CheckpointPlan, ModuleChange, Scheme
from trimtab.engines.gguf_tensors import Group
from trimtab.engines.vllm_inspection import (
    PLAIN,
    counted_layers,
    not_effective,
    read_inspection,
    reload_body,
)

TREE = """\
LlamaForCausalLM()(
  (model): LlamaModel()(
    (embed_tokens): VocabParallelEmbedding(num_embeddings=49152, embedding_dim=576)
    (layers): ModuleList()(
      (0-1, 3): 3 x LlamaDecoderLayer()(
        (self_attn): LlamaAttention()(
          (qkv_proj): QKVParallelLinear(quant=CompressedTensorsW8A8Int8, in_features=576)
          (o_proj): RowParallelLinear(quant=CompressedTensorsW8A8Int8, in_features=576)
        )
        (mlp): LlamaMLP()(
          (down_proj): RowParallelLinear(quant=CompressedTensorsW8A8Int8, in_features=1536)
        )
      )
      (2): LlamaDecoderLayer()(
        (self_attn): LlamaAttention()(
          (qkv_proj): QKVParallelLinear(quant=CompressedTensorsW8A8Int8, in_features=576)
          (o_proj): RowParallelLinear(quant=CompressedTensorsW8A8Int8, in_features=576)
        )
        (mlp): LlamaMLP()(
          (down_proj): RowParallelLinear(in_features=1536, output_features=576)
        )
      )
    )
  )
  (lm_head): ParallelLMHead(num_embeddings=49152)
)"""
INT8 = "CompressedTensorsW8A8Int8"
COUNTED = counted_layers(TREE)


def plan(scheme: Scheme, *kept: int) -> CheckpointPlan:
    changes = tuple(
        ModuleChange(
            module=f"model.layers.{layer}.mlp.down_proj",
            group=Group.FFN_DOWN,
            layer=layer,
            kept="heavy in outliers" if layer in kept else "",
        )
        for layer in range(4)
    )
    return CheckpointPlan(scheme=scheme, changes=changes, ignore=())


def test_layers_are_counted_as_often_as_they_are_told() -> None:
    """Equal layers are told once, with their number; a joined kernel counts for each of its parts."""
    assert COUNTED["ffn_down"] == {INT8: 3, PLAIN: 1}
    assert COUNTED["attention_q"] == COUNTED["attention_v"] == {INT8: 4}
    assert COUNTED["head"] == COUNTED["embedding"] == {PLAIN: 1}


def test_plan_that_runs_as_it_was_written_has_no_difference() -> None:
    """Three layers lowered, the one with outliers kept."""
    assert not_effective(plan(Scheme.W8A8, 2), COUNTED) == ()


@pytest.mark.parametrize(
    ("planned", "words"),
    [
        (plan(Scheme.W8A8), f"ffn_down: 4 {INT8} planned, 3 {INT8}, 1 plain run"),
        (plan(Scheme.FP8, 2), "3 CompressedTensorsW8A8Fp8, 1 plain planned"),
        (plan(Scheme.ROUNDED_INT8), "4 plain planned"),
    ],
)
def test_requested_that_is_not_effective_is_told(planned: CheckpointPlan, words: str) -> None:
    """A layer too few, another scheme, kernels where weights are only rounded."""
    (told,) = not_effective(planned, COUNTED)
    assert words in told


def test_original_that_runs_quantized_is_told() -> None:
    """Nothing was planned, and layers are lowered all the same."""
    assert any("attention_q: 4 plain planned" in one for one in not_effective(None, COUNTED))


def test_answer_without_a_tree_is_an_error() -> None:
    """No object, no rank."""
    with pytest.raises(EngineFormatError):
        read_inspection(b"[]")
    with pytest.raises(EngineFormatError, match="no rank"):
        read_inspection(b'{"results":[]}')
    assert read_inspection(msgspec.json.encode({"results": [TREE]})) == COUNTED


def test_other_weights_are_named_by_their_folder() -> None:
    """As a keyword: the first argument of the method is another."""
    body = msgspec.json.decode(reload_body("/m"))
    assert body == {"method": "reload_weights", "kwargs": {"weights_path": "/m"}}
