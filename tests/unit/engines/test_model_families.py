"""Families beyond plain transformers: hybrids, sparse attention, wide norms; and what checkpoints leave wide."""

import json

import pytest

from trimtab.core.model_parts import PartName
from trimtab.core.ports import EngineFormatError
from trimtab.core.served import ModelShape
from trimtab.engines.model_config import read_model_config
from trimtab.engines.model_names import find_model_shape, known_names

# (name, parameters in billions) as their makers publish them
PUBLISHED = [
    ("Qwen3.5-397B-A17B", 396.3),
    ("MiniMax-M2.5", 228.7),
    ("GLM-5", 743.9),
    ("Kimi-K2", 1026.4),
    ("GLM-4.5-Air", 106.9),
    ("Qwen3-Next-80B-A3B", 79.7),
    ("Qwen3-Coder-480B-A35B", 480.2),
]
MEASURED_MODELS = [
    "Qwen/Qwen3-235B-A22B-FP8",
    "Qwen/Qwen3-32B",
    "Qwen/Qwen3.5-397B-A17B",
    "deepseek-ai/DeepSeek-R1",
    "deepseek-ai/DeepSeek-V3",
    "meta-llama/Llama-3.1-8B-Instruct",
    "meta-llama/Llama-3.1-70B",
    "zhipuai/GLM-5",
    "nvidia/DeepSeek-R1-NVFP4",
    "nvidia/DeepSeek-V3.1-NVFP4",
    "nvidia/Qwen3-32B-NVFP4",
    "openai/gpt-oss-120b",
    "MiniMaxAI/MiniMax-M2.5",
]


def model(name: str) -> ModelShape:
    found = find_model_shape(name)
    assert found is not None
    return found


@pytest.mark.parametrize(("name", "billions"), PUBLISHED, ids=lambda value: str(value))
def test_counted_parameters_are_those_published(name: str, billions: float) -> None:
    """Counting part by part gives the published totals to a thousandth."""
    assert model(name).parameters == pytest.approx(billions * 1e9, rel=1e-3)


@pytest.mark.parametrize("name", MEASURED_MODELS)
def test_models_that_others_measured_are_known_in_full(name: str) -> None:
    """Size, KV, parts and longest context of each."""
    found = model(name)
    assert found.parts
    assert found.weight_bytes
    assert found.kv_bytes_per_token
    assert found.context_tokens_max


@pytest.mark.parametrize("name", known_names())
def test_parts_sum_up_to_the_model(name: str) -> None:
    """Nothing is counted twice or lost between parts and totals."""
    found = model(name)
    assert sum(part.parameters for part in found.parts) == pytest.approx(found.parameters)
    assert sum(part.bytes for part in found.parts) == pytest.approx(found.weight_bytes)
    assert found.context_tokens_max


def test_hybrid_keeps_kv_in_its_full_layers_only() -> None:
    """Qwen3.5 397B: 15 of 60 layers, 2 KV heads of 256, keys and values of 2 bytes."""
    found = model("Qwen3.5-397B-A17B")
    assert (found.layers, found.linear_layers, found.kv_layers) == (60, 45, 15)
    assert found.kv_bytes_per_token == 15 * 2 * 256 * 2 * 2
    assert found.state_bytes == 45 * (64 * 128 * 128 * 4 + (2 * 16 * 128 + 64 * 128) * 3 * 2)


def test_sparse_attention_keeps_index_keys_beside_the_latent() -> None:
    """GLM-5: 576 values of 2 bytes and an index key of 128 bytes with its scale, in 78 layers."""
    assert model("GLM-5").kv_bytes_per_token == 78 * (576 * 2 + 128 + 4)


def test_modules_that_a_checkpoint_leaves_out_stay_wide() -> None:
    """A list of all attention modules by layer, or one with a wildcard, keeps attention at 16 bit."""
    config = {
        "model_type": "llama", "num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4,
        "num_key_value_heads": 2, "intermediate_size": 128, "vocab_size": 256, "torch_dtype": "bfloat16",
    }  # fmt: skip
    listed = ["model.layers.0.self_attn", "model.layers.1.self_attn"]
    for left_out in (listed, ["model.layers.*.self_attn*"], ["re:.*self_attn.*"]):
        quantized = {"quant_method": "fp8", "modules_to_not_convert": left_out}
        found = read_model_config(
            json.dumps({**config, "quantization_config": quantized}).encode(), source="a test"
        )
        widths = {part.name: part.bits for part in found.parts}
        assert (widths[PartName.ATTENTION], widths[PartName.KEY_VALUE]) == (16.0, 16.0)
        assert widths[PartName.DENSE] == 8.0


def test_single_exceptions_do_not_widen_a_part() -> None:
    """Norms of latent attention are on such lists and say nothing about its matrices."""
    found = model("GLM-5")
    config = {
        "model_type": "llama", "num_hidden_layers": 4, "hidden_size": 64, "num_attention_heads": 4,
        "intermediate_size": 128, "vocab_size": 256, "torch_dtype": "bfloat16",
        "quantization_config": {
            "quant_method": "fp8",
            "modules_to_not_convert": [
                "lm_head", "model.layers.0.self_attn", "model.layers.0.self_attn.kv_a_layernorm",
            ],
        },
    }  # fmt: skip
    read = read_model_config(json.dumps(config).encode(), source="a test")
    assert {part.bits for part in read.parts if part.name is PartName.ATTENTION} == {8.0}
    assert found.latent_kv


def test_four_bit_floats_have_eight_bit_scales() -> None:
    """NVFP4 in compressed-tensors: 4 bits and 8 for each 16 values."""
    weights = {"num_bits": 4, "type": "float", "group_size": 16}
    config = {
        "model_type": "llama", "num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4,
        "intermediate_size": 128, "vocab_size": 256, "torch_dtype": "bfloat16",
        "quantization_config": {
            "quant_method": "compressed-tensors", "config_groups": {"group_0": {"weights": weights}},
        },
    }  # fmt: skip
    read = read_model_config(json.dumps(config).encode(), source="a test")
    assert {part.bits for part in read.parts if part.name is PartName.DENSE} == {4.5}


def test_model_without_layers_is_an_error_that_names_the_key() -> None:
    """Zero layers are no model."""
    with pytest.raises(EngineFormatError, match="num_hidden_layers"):
        read_model_config(
            b'{"model_type": "llama", "num_hidden_layers": 0, "hidden_size": 64}', source="a test"
        )


def test_file_beside_the_configuration_tells_how_weights_are_stored() -> None:
    """Makers that quantise afterwards say so in an hf_quant_config.json, with the modules that they leave out."""
    config = {
        "model_type": "llama", "num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4,
        "intermediate_size": 128, "vocab_size": 256, "torch_dtype": "bfloat16",
    }  # fmt: skip
    beside = {
        "quantization": {"quant_algo": "NVFP4", "exclude_modules": ["model.layers.*.self_attn*"]}
    }
    read = read_model_config(
        json.dumps(config).encode(), source="a test", quantization=json.dumps(beside).encode()
    )
    widths = {part.name: part.bits for part in read.parts}
    assert (widths[PartName.DENSE], widths[PartName.ATTENTION]) == (4.5, 16.0)
