"""Shapes of models: parameters as their makers publish them, KV per token, and broken configurations."""

import json
import struct

import pytest

from trimtab.core.ports import EngineFormatError
from trimtab.core.served import ModelShape
from trimtab.engines.gguf import read_header
from trimtab.engines.model_config import read_model_config, shape_of_gguf
from trimtab.engines.model_names import find_model_shape, known_names

LLAMA = {
    "model_type": "llama",
    "num_hidden_layers": 32,
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 14336,
    "vocab_size": 128256,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}


def read(config: object, **changed: object) -> ModelShape:
    data = {**config, **changed} if isinstance(config, dict) else config
    return read_model_config(json.dumps(data).encode(), source="a test")


# (name, parameters, parameters that a token multiplies, both in billions): model cards and papers
PUBLISHED = [
    ("Llama-3.1-8B", 8.03, None),
    ("Llama-3.1-70B", 70.55, None),
    ("Llama-3.1-405B", 405.85, None),
    ("Llama-3.2-1B", 1.236, None),
    ("Qwen2.5-0.5B", 0.494, None),
    ("Qwen2.5-7B", 7.616, None),
    ("Qwen2.5-72B", 72.71, None),
    ("Qwen3-0.6B", 0.596, None),
    ("Qwen3-32B", 32.76, None),
    ("Qwen3-30B-A3B", 30.53, None),
    ("Qwen3-235B-A22B", 235.09, None),
    ("Mistral-7B-v0.3", 7.248, None),
    ("Mixtral-8x7B-v0.1", 46.70, None),
    ("Mixtral-8x22B-v0.1", 140.62, None),
    ("gemma-2-9b", 9.24, None),
    ("gemma-2-27b", 27.23, None),
    ("DeepSeek-V3", 671.03, None),
    ("DeepSeek-V2-Lite", 15.71, None),
    ("gpt-oss-20b", 20.91, 3.61),
    ("gpt-oss-120b", 116.83, 5.13),
    ("SmolLM2-135M", 0.1345, None),
]


@pytest.mark.parametrize(
    ("name", "billions", "multiplied"), PUBLISHED, ids=lambda value: str(value)
)
def test_counted_parameters_are_those_published(
    name: str, billions: float, multiplied: float | None
) -> None:
    """Counting matrix by matrix gives the published totals to a thousandth."""
    found = find_model_shape(name)
    assert found is not None
    assert found.parameters == pytest.approx(billions * 1e9, rel=2e-3)
    if multiplied is not None:
        active = found.active_parameters - found.lookup_parameters
        assert active == pytest.approx(multiplied * 1e9, rel=3e-3)


def test_dense_model_in_full() -> None:
    """Llama 3.1 8B: 2 x 32 layers x 8 KV heads x 128 x 2 bytes of KV, two bytes a parameter."""
    found = read(LLAMA)
    assert (found.layers, found.heads, found.kv_heads, found.head_size) == (32, 32, 8, 128)
    assert found.kv_bytes_per_token == 131_072
    assert found.weight_bytes == 2 * found.parameters
    assert found.active_parameters == found.parameters
    assert found.lookup_parameters == 128_256 * 4096
    assert (found.latent_kv, found.experts, found.notes) == (False, None, ())


def test_kv_precision_scales_the_cache() -> None:
    """8-bit values take half."""
    data = json.dumps(LLAMA).encode()
    half = read_model_config(data, source="a test", kv_bytes_per_value=1.0)
    assert half.kv_bytes_per_token == 65_536


def test_mixture_of_experts_meets_a_part_of_its_parameters() -> None:
    """Two of Mixtral's eight experts: 12.9 of 46.7 billion."""
    found = find_model_shape("mistralai/Mixtral-8x7B-Instruct-v0.1")
    assert found is not None
    assert (found.experts, found.experts_per_token) == (8, 2)
    assert found.active_parameters == pytest.approx(12.88e9, rel=1e-3)
    assert found.expert_bytes == pytest.approx(2 * 45.1e9, rel=1e-3)


def test_latent_attention_has_one_kv_head() -> None:
    """DeepSeek V3: (512 + 64) values a layer, both key and value, one head that every rank needs."""
    found = find_model_shape("deepseek-ai/DeepSeek-V3")
    assert found is not None
    assert (found.kv_heads, found.head_size, found.latent_kv) == (1, 576, True)
    assert found.kv_bytes_per_token == 61 * 576 * 2


def test_windows_are_counted_by_layer() -> None:
    """Gemma 2 every other layer, Gemma 3 five of six, Mistral 0.1 all, Qwen2 none though it names a window."""
    names = ("gemma-2-9b", "gemma-3-27b", "Mistral-7B-v0.1", "gpt-oss-120b")
    shapes = [find_model_shape(name) for name in names]
    assert [(s.windowed_layers, s.window_tokens) for s in shapes if s] == [
        (21, 4096),
        (52, 1024),
        (32, 4096),
        (18, 128),
    ]
    off = read(LLAMA, model_type="qwen2", sliding_window=4096, use_sliding_window=False)
    assert (off.windowed_layers, off.window_tokens) == (0, None)
    listed = read(
        LLAMA, sliding_window=512, layer_types=["sliding_attention", "full_attention"] * 16
    )
    assert (listed.windowed_layers, listed.window_tokens) == (16, 512)


@pytest.mark.parametrize(
    ("quantization", "bits"),
    [
        ({"quant_method": "gptq", "bits": 4, "group_size": 128}, 4 + 20 / 128),
        ({"quant_method": "awq", "w_bit": 4, "q_group_size": 64}, 4 + 20 / 64),
        ({"quant_method": "fp8"}, 8),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, 4.5),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, 4.5),
        (
            {
                "quant_method": "compressed-tensors",
                "config_groups": {"group_0": {"weights": {"num_bits": 8, "group_size": None}}},
            },
            8,
        ),
    ],
)
def test_quantized_checkpoint_shrinks_layers_only(
    quantization: dict[str, object], bits: float
) -> None:
    """Embedding, output matrix and norms keep 16 bit; everything else takes its bits with their scales."""
    plain, found = read(LLAMA), read(LLAMA, quantization_config=quantization)
    kept = 2 * 128_256 * 4096 + 65 * 4096
    expected = 2 * kept + (plain.parameters - kept) * bits / 8
    assert found.weight_bytes == pytest.approx(expected)
    assert found.parameters == plain.parameters


def test_unknown_quantization_leaves_the_size_unknown() -> None:
    """A size that is guessed would be believed."""
    found = read(LLAMA, quantization_config={"quant_method": "new"})
    assert found.weight_bytes is None
    assert any("'new'" in note for note in found.notes)


def test_name_of_a_quantized_variant_tells_its_size_with_a_note() -> None:
    """The 4-bit 8B takes a third of the 16-bit one; a name that tells no width leaves the size unknown."""
    four, odd = find_model_shape("Qwen2.5-7B-Instruct-AWQ"), find_model_shape("Qwen2.5-7B-GGUF")
    assert four is not None
    assert odd is not None
    assert four.weight_bytes == pytest.approx(5.6e9, rel=0.03)
    assert any("read from the name (awq)" in note for note in four.notes)
    assert odd.weight_bytes is None


@pytest.mark.parametrize("name", known_names())
def test_every_known_name_gives_a_whole_shape(name: str) -> None:
    """With an owner before it and a tuning behind it, too."""
    found = find_model_shape(f"someone/{name.upper()}-Instruct")
    assert found is not None
    assert found.parameters >= found.active_parameters > found.lookup_parameters
    assert found.weight_bytes > 0
    assert found.kv_bytes_per_token > 0


def test_name_that_nobody_knows_is_none() -> None:
    """A near miss is no hit: another size is another model."""
    assert [find_model_shape(name) for name in ("", "llama", "llama-3.1-9b", "gpt-5")] == [None] * 4


def test_unknown_architecture_gives_its_cache_but_no_parameters() -> None:
    """Heads and layers mean the same everywhere, matrices do not."""
    found = read(LLAMA, model_type="mamba9")
    assert (found.parameters, found.active_parameters, found.weight_bytes) == (None, None, None)
    assert found.kv_bytes_per_token == 131_072
    assert "mamba9" in found.notes[0]


def test_text_part_of_a_model_with_images_is_read() -> None:
    """Gemma 3 keeps its language model in `text_config` and leaves out what is the default."""
    text = {
        "model_type": "gemma3_text",
        "hidden_size": 2560,
        "intermediate_size": 10240,
        "num_hidden_layers": 34,
        "sliding_window": 1024,
    }
    found = read({"model_type": "gemma3", "torch_dtype": "bfloat16", "text_config": text})
    assert (found.heads, found.kv_heads, found.head_size, found.windowed_layers) == (8, 4, 256, 29)
    assert found.parameters == pytest.approx(3.88e9, rel=1e-3)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "no JSON"),
        (b"\xff\xfe", "no JSON"),
        (b"[" * 100_000, "no JSON"),
        (b"[1]", "no JSON object"),
        (b"{}", "num_hidden_layers"),
        (json.dumps({**LLAMA, "hidden_size": "4096"}).encode(), "hidden_size is '4096'"),
        (json.dumps({**LLAMA, "num_attention_heads": -1}).encode(), "num_attention_heads is -1"),
        (json.dumps({**LLAMA, "vocab_size": 10**12}).encode(), "vocab_size claims"),
        (b" " * (4 * 1024 * 1024 + 1), "no model configuration"),
    ],
    ids=["empty", "bytes", "deep", "list", "bare", "text", "negative", "huge", "long"],
)
def test_broken_configuration_says_what_is_wrong(data: bytes, message: str) -> None:
    """Typed errors only, with the key where there is one."""
    with pytest.raises(EngineFormatError, match=message):
        read_model_config(data, source="a test")


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value)) + value.encode()


def gguf(fields: dict[str, int], tensors: dict[str, int]) -> bytes:
    """A GGUF file of 16-bit tensors of one dimension, whole."""
    head = text("general.architecture") + struct.pack("<I", 8) + text("llama")
    for name, number in fields.items():
        head += text(f"llama.{name}") + struct.pack("<II", 4, number)
    offset = 0
    for name, values in tensors.items():
        head += text(name) + struct.pack("<IQIQ", 1, values, 1, offset)
        offset += 2 * values
    whole = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), 1 + len(fields)) + head
    return whole + bytes(-len(whole) % 32) + bytes(offset)


def test_gguf_header_gives_the_shape() -> None:
    """Experts, looked-up embedding and stored size out of the tensors, heads out of the fields."""
    fields = {
        "block_count": 2,
        "embedding_length": 64,
        "attention.head_count": 4,
        "attention.head_count_kv": 2,
        "expert_count": 8,
        "expert_used_count": 2,
    }
    tensors = {
        "token_embd.weight": 640,
        "output.weight": 640,
        "blk.0.attn_q.weight": 320,
        "blk.0.ffn_up_exps.weight": 1600,
    }
    data = gguf(fields, tensors)
    found = shape_of_gguf(read_header(data, file_bytes=len(data)), source="a test")
    assert (found.layers, found.heads, found.kv_heads, found.head_size) == (2, 4, 2, 16)
    assert (found.parameters, found.active_parameters) == (3200, 2000)
    assert (found.lookup_parameters, found.weight_bytes, found.expert_bytes) == (640, 6400, 3200)
    assert found.kv_bytes_per_token == 2 * 2 * 32 * 2.0
    assert {part.name.value: part.parameters for part in found.parts} == {
        "embedding": 640,
        "output matrix": 640,
        "attention": 320,
        "routed experts": 1600,
    }
    assert {part.bits for part in found.parts} == {16.0}


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"num_local_experts": 8}, "num_experts_per_tok"),
        ({"num_local_experts": 8, "num_experts_per_tok": 0}, "num_experts_per_tok"),
        ({"num_experts_per_tok": 2}, "num_local_experts"),
        ({"num_key_value_heads": 64}, "num_key_value_heads 64; nearest valid: 32"),
        ({"num_key_value_heads": 5}, "num_key_value_heads 5; nearest valid: 4"),
    ],
)
def test_half_a_mixture_and_kv_heads_that_cannot_be_are_refused(
    changed: dict[str, int], told: str
) -> None:
    """A mixture is never taken for a dense model of an eighth of its size; heads share KV heads evenly."""
    with pytest.raises(EngineFormatError, match=told):
        read(LLAMA | {"model_type": "minimax_m2"}, **changed)


@pytest.mark.parametrize(
    ("family", "experts"), [("mixtral", (8, 2)), ("qwen3_moe", (128, 8)), ("gpt_oss", (128, 4))]
)
def test_mixture_that_leaves_its_experts_out_has_those_of_its_makers(
    family: str, experts: tuple[int, int]
) -> None:
    """The configuration's class has them as defaults; without them it would look like a dense model."""
    found = read(LLAMA | {"model_type": family})
    assert (found.experts, found.experts_per_token) == experts


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"num_key_value_heads": 0}, "num_key_value_heads is 0; nearest valid: 1"),
        ({"head_dim": 0}, "head_dim is 0; nearest valid: 1"),
        ({"hidden_size": 4097}, "hidden_size 4097 does not divide over 32 heads.*nearest valid: 4096"),
        ({"layer_types": ["full_attention"] * 3}, "layer_types names 3 of 32 layers"),
        ({"quantization_config": "fp8"}, "quantization_config is 'fp8'.*quant_method.*fp8"),
        ({"quantization_config": []}, "quantization_config is .* no object"),
        ({"num_hidden_layers": -4}, "num_hidden_layers is -4 and no count; nearest valid: 1"),
        ({"num_hidden_layers": "32"}, "num_hidden_layers is '32' and no count; nearest valid: 32"),
        ({"num_hidden_layers": 32.0}, "num_hidden_layers is 32.0 and no count; nearest valid: 32"),
        ({"num_hidden_layers": "many"}, "num_hidden_layers is 'many' and no count; nearest valid: 1"),
        ({"num_hidden_layers": 10**30}, "num_hidden_layers .*; nearest valid: 20000000"),
        ({"num_hidden_layers": 10**15}, "num_hidden_layers claims .*; nearest valid: 20000000"),
        ({"num_experts": 128, "num_experts_per_tok": 200}, "num_experts_per_tok is 200 of 128.*: 128"),
        ({"model_type": "mixtral", "num_local_experts": 0}, "num_local_experts is 0.*usual: 8"),
    ],
)  # fmt: skip
def test_nonsense_is_refused_by_its_key_with_the_nearest(
    changed: dict[str, object], told: str
) -> None:
    """Read around, each of these would be planned as some other model."""
    with pytest.raises(EngineFormatError, match=told):
        read(LLAMA | {"num_hidden_layers": 32}, **changed)


def test_unknown_family_and_quantisation_name_their_keys_with_the_nearest() -> None:
    """What is known of them stands; what is not says which key to look at."""
    family = read(LLAMA, model_type="lama9")
    method = read(LLAMA, quantization_config={"quant_method": "gtpq"})
    assert (family.weight_bytes, method.weight_bytes) == (None, None)
    assert "model_type 'lama9' is not known" in family.notes[0]
    assert "nearest valid: llama" in family.notes[0]
    assert "quant_method 'gtpq'" in method.notes[-1]
    assert "nearest valid: gptq" in method.notes[-1]


def test_layers_that_draft_tokens_are_named_beyond_the_others() -> None:
    """Their kinds follow those of the layers, and are not among them."""
    kinds = ["full_attention"] * 31 + ["sliding_attention"] * 3
    found = read(LLAMA | {"num_hidden_layers": 32}, sliding_window=512, layer_types=kinds)
    assert found.windowed_layers == 1


def test_precision_that_nobody_knows_is_refused_with_the_nearest() -> None:
    """Taken for 16 bit it would be planned on twice the devices, or half of them."""
    with pytest.raises(EngineFormatError, match=r"torch_dtype 'bfloat17'.*nearest valid: bfloat16"):
        read(LLAMA | {"torch_dtype": "bfloat17"})


def test_dense_model_that_names_no_experts_is_dense() -> None:
    """Configurations of families with both kinds leave the mixture's keys in, as 0 or null."""
    for none in (0, None):
        shape = read(LLAMA, num_experts=none, num_experts_per_tok=8)
        assert (shape.experts, shape.experts_per_token) == (None, None)
