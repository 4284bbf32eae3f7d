"""Shapes of well-known models by name, from the `config.json` that their makers publish at Hugging Face.

Only what decides operations and bytes is kept, in the keys of those files, and it is read like one of them. Names are
compared without owner, case and what marks a tuned variant ("-Instruct"): those share a shape. Of a name that says that
its weights were quantised ("-AWQ") the size is computed with the usual groups of 128 and a note says so; where the
name does not tell the width, the size is unknown.
"""

import re
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from trimtab.core.served import ModelShape
from trimtab.engines.model_config import KV_BYTES_PER_VALUE, shape_of_config

Fields = Mapping[str, object]


def _dense(
    kind: str, layers: int, hidden: int, heads: int, kv_heads: int, wide: int, vocabulary: int,
    *, tied: bool = False, head: int | None = None, **more: Any,
) -> Fields:  # fmt: skip
    """A configuration in the keys of config.json; `wide` is the intermediate size."""
    return {
        "model_type": kind,
        "num_hidden_layers": layers,
        "hidden_size": hidden,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "intermediate_size": wide,
        "vocab_size": vocabulary,
        "tie_word_embeddings": tied,
        "head_dim": head or hidden // heads,
        "torch_dtype": "bfloat16",
        **more,
    }


def _deepseek(layers: int, hidden: int, heads: int, wide: int, vocabulary: int, **more: Any) -> Fields:  # fmt: skip
    """A model of multi-head latent attention with the ranks that all of DeepSeek's have."""
    ranks: dict[str, Any] = {
        "kv_lora_rank": 512,
        "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64,
        "v_head_dim": 128,
    }
    return _dense("deepseek_v3", layers, hidden, heads, heads, wide, vocabulary, **ranks, **more)


_V3: Final = _deepseek(
    61, 7168, 128, 18432, 129280, q_lora_rank=1536, n_routed_experts=256, num_experts_per_tok=8,
    n_shared_experts=1, moe_intermediate_size=2048, first_k_dense_replace=3, topk_group=4,
    quantization_config={"quant_method": "fp8", "weight_block_size": [128, 128]},
)  # fmt: skip
_OSS: Final[dict[str, Any]] = {
    "head": 64, "num_experts_per_tok": 4, "sliding_window": 128,
    "quantization_config": {"quant_method": "mxfp4"},
}  # fmt: skip
# The maker of these narrows the feed forward and leaves latent attention at 16 bit.
_LATENT_NVFP4: Final = {
    "quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["model.layers.*.self_attn*"],
}  # fmt: skip
_CONTEXT_2507: Final = 262_144
_QWEN3_5: Final[dict[str, Any]] = {
    "head": 256, "linear_key_head_dim": 128, "linear_value_head_dim": 128, "linear_conv_kernel_dim": 4,
    "linear_num_key_heads": 16, "full_attention_interval": 4, "mamba_ssm_dtype": "float32",
    "max_position_embeddings": 262144,
}  # fmt: skip
_MINIMAX: Final = _dense(
    "minimax_m2", 62, 3072, 48, 8, 1536, 200064, head=128, num_local_experts=256, num_experts_per_tok=8,
    max_position_embeddings=196608,
    quantization_config={"quant_method": "fp8", "weight_block_size": [128, 128]},
)  # fmt: skip
_GLM5: Final = _dense(
    "glm_moe_dsa", 78, 6144, 64, 64, 12288, 154880, head=64, kv_lora_rank=512, q_lora_rank=2048,
    qk_nope_head_dim=192, qk_rope_head_dim=64, v_head_dim=256, index_n_heads=32, index_head_dim=128,
    n_routed_experts=256, num_experts_per_tok=8, n_shared_experts=1, moe_intermediate_size=2048,
    first_k_dense_replace=3, topk_group=1, max_position_embeddings=202752,
)  # fmt: skip
_QWEN3_MOE: Final[dict[str, Any]] = {"head": 128, "num_experts": 128, "num_experts_per_tok": 8}
_MIXTRAL: Final[dict[str, Any]] = {"num_local_experts": 8, "num_experts_per_tok": 2}

_CONFIGS: Final[Mapping[str, Fields]] = {
    "llama-2-7b": _dense("llama", 32, 4096, 32, 32, 11008, 32000),
    "llama-2-13b": _dense("llama", 40, 5120, 40, 40, 13824, 32000),
    "llama-2-70b": _dense("llama", 80, 8192, 64, 8, 28672, 32000),
    "llama-3.1-8b": _dense("llama", 32, 4096, 32, 8, 14336, 128256),
    "llama-3.1-70b": _dense("llama", 80, 8192, 64, 8, 28672, 128256),
    "llama-3.1-405b": _dense("llama", 126, 16384, 128, 8, 53248, 128256),
    "llama-3.2-1b": _dense("llama", 16, 2048, 32, 8, 8192, 128256, tied=True),
    "llama-3.2-3b": _dense("llama", 28, 3072, 24, 8, 8192, 128256, tied=True),
    "qwen2.5-0.5b": _dense("qwen2", 24, 896, 14, 2, 4864, 151936, tied=True),
    "qwen2.5-1.5b": _dense("qwen2", 28, 1536, 12, 2, 8960, 151936, tied=True),
    "qwen2.5-3b": _dense("qwen2", 36, 2048, 16, 2, 11008, 151936, tied=True),
    "qwen2.5-7b": _dense("qwen2", 28, 3584, 28, 4, 18944, 152064),
    "qwen2.5-14b": _dense("qwen2", 48, 5120, 40, 8, 13824, 152064),
    "qwen2.5-32b": _dense("qwen2", 64, 5120, 40, 8, 27648, 152064),
    "qwen2.5-72b": _dense("qwen2", 80, 8192, 64, 8, 29568, 152064),
    "qwen3-0.6b": _dense("qwen3", 28, 1024, 16, 8, 3072, 151936, tied=True, head=128),
    "qwen3-1.7b": _dense("qwen3", 28, 2048, 16, 8, 6144, 151936, tied=True, head=128),
    "qwen3-4b": _dense("qwen3", 36, 2560, 32, 8, 9728, 151936, tied=True, head=128),
    "qwen3-8b": _dense("qwen3", 36, 4096, 32, 8, 12288, 151936, head=128),
    "qwen3-14b": _dense("qwen3", 40, 5120, 40, 8, 17408, 151936, head=128),
    "qwen3-32b": _dense("qwen3", 64, 5120, 64, 8, 25600, 151936, head=128),
    "qwen3-30b-a3b": _dense(
        "qwen3_moe", 48, 2048, 32, 4, 6144, 151936, moe_intermediate_size=768, **_QWEN3_MOE
    ),
    "qwen3-235b-a22b": _dense(
        "qwen3_moe", 94, 4096, 64, 4, 12288, 151936, moe_intermediate_size=1536, **_QWEN3_MOE
    ),
    "qwen3-coder-480b-a35b": _dense(
        "qwen3_moe", 62, 6144, 96, 8, 8192, 151936, head=128, num_experts=160, num_experts_per_tok=8,
        moe_intermediate_size=2560,
    ),
    "qwen3-next-80b-a3b": _dense(
        "qwen3_next", 48, 2048, 16, 2, 5120, 151936, num_experts=512, num_experts_per_tok=10,
        moe_intermediate_size=512, shared_expert_intermediate_size=512, linear_num_value_heads=32,
        **{**_QWEN3_5, "mamba_ssm_dtype": None},
    ),
    "qwen3.5-397b-a17b": _dense(
        "qwen3_5_moe_text", 60, 4096, 32, 2, 1024, 248320, num_experts=512, num_experts_per_tok=10,
        moe_intermediate_size=1024, shared_expert_intermediate_size=1024, linear_num_value_heads=64, **_QWEN3_5,
    ),
    "minimax-m2.5": _MINIMAX,
    "glm-5": _GLM5,
    "mistral-7b-v0.1": _dense("mistral", 32, 4096, 32, 8, 14336, 32000, sliding_window=4096),
    "mistral-7b-v0.2": _dense("mistral", 32, 4096, 32, 8, 14336, 32000),
    "mistral-7b-v0.3": _dense("mistral", 32, 4096, 32, 8, 14336, 32768),
    "mistral-nemo-2407": _dense("mistral", 40, 5120, 32, 8, 14336, 131072, head=128),
    "mistral-small-24b-2501": _dense("mistral", 40, 5120, 32, 8, 32768, 131072, head=128),
    "mixtral-8x7b-v0.1": _dense("mixtral", 32, 4096, 32, 8, 14336, 32000, **_MIXTRAL),
    "mixtral-8x22b-v0.1": _dense("mixtral", 56, 6144, 48, 8, 16384, 32768, **_MIXTRAL),
    "gemma-2-2b": _dense("gemma2", 26, 2304, 8, 4, 9216, 256000, tied=True, head=256, sliding_window=4096),
    "gemma-2-9b": _dense("gemma2", 42, 3584, 16, 8, 14336, 256000, tied=True, head=256, sliding_window=4096),
    "gemma-2-27b": _dense("gemma2", 46, 4608, 32, 16, 36864, 256000, tied=True, head=128, sliding_window=4096),
    "gemma-3-1b": _dense("gemma3_text", 26, 1152, 4, 1, 6912, 262144, tied=True, head=256, sliding_window=512),
    "gemma-3-4b": _dense("gemma3_text", 34, 2560, 8, 4, 10240, 262208, tied=True, head=256, sliding_window=1024),
    "gemma-3-12b": _dense("gemma3_text", 48, 3840, 16, 8, 15360, 262208, tied=True, head=256, sliding_window=1024),
    "gemma-3-27b": _dense("gemma3_text", 62, 5376, 32, 16, 21504, 262208, tied=True, head=128, sliding_window=1024),
    "deepseek-v3": _V3,
    "deepseek-v3-0324": _V3,
    "deepseek-v3.1": _V3,
    "deepseek-r1": _V3,
    "deepseek-r1-0528": _V3,
    "deepseek-v2-lite": _deepseek(
        27, 2048, 16, 10944, 102400, n_routed_experts=64, num_experts_per_tok=6, n_shared_experts=2,
        moe_intermediate_size=1408, first_k_dense_replace=1,
    ),
    "gpt-oss-20b": _dense("gpt_oss", 24, 2880, 64, 8, 2880, 201088, num_local_experts=32, **_OSS),
    "gpt-oss-120b": _dense("gpt_oss", 36, 2880, 64, 8, 2880, 201088, num_local_experts=128, **_OSS),
    "glm-4.5-air": _dense(
        "glm4_moe", 46, 4096, 96, 8, 10944, 151552, head=128, n_routed_experts=128, num_experts_per_tok=8,
        n_shared_experts=1, moe_intermediate_size=1408, first_k_dense_replace=1, attention_bias=True,
        max_position_embeddings=131072,
    ),
    "kimi-k2": _dense(
        "kimi_k2", 61, 7168, 64, 64, 18432, 163840, kv_lora_rank=512, q_lora_rank=1536, qk_nope_head_dim=128,
        qk_rope_head_dim=64, v_head_dim=128, n_routed_experts=384, num_experts_per_tok=8, n_shared_experts=1,
        moe_intermediate_size=2048, first_k_dense_replace=1, topk_group=1, max_position_embeddings=131072,
        quantization_config={"quant_method": "fp8", "weight_block_size": [128, 128]},
    ),
    "phi-4": _dense("phi3", 40, 5120, 40, 10, 17920, 100352),
    "smollm2-135m": _dense("llama", 30, 576, 9, 3, 1536, 49152, tied=True),
    "smollm2-360m": _dense("llama", 32, 960, 15, 5, 2560, 49152, tied=True),
    "smollm2-1.7b": _dense("llama", 24, 2048, 32, 32, 8192, 49152, tied=True),
    "tinyllama-1.1b": _dense("llama", 22, 2048, 32, 4, 5632, 32000),
}  # fmt: skip

# Other names of the same shape.
_SAME: Final = {
    "llama-3-8b": "llama-3.1-8b",
    "llama-3-70b": "llama-3.1-70b",
    "llama-3.3-70b": "llama-3.1-70b",
    "qwq-32b": "qwen2.5-32b",
    "deepseek-r1-distill-llama-8b": "llama-3.1-8b",
    "deepseek-r1-distill-llama-70b": "llama-3.1-70b",
    "deepseek-r1-distill-qwen-32b": "qwen2.5-32b",
    "deepseek-r1-distill-qwen-14b": "qwen2.5-14b",
    "deepseek-r1-distill-qwen-7b": "qwen2.5-7b",
    "deepseek-r1-distill-qwen-1.5b": "qwen2.5-1.5b",
    "deepseek-r1-0528-qwen3-8b": "qwen3-8b",
    "qwen3-coder-30b-a3b": "qwen3-30b-a3b",
    "mixtral-8x7b": "mixtral-8x7b-v0.1",
    "mixtral-8x22b": "mixtral-8x22b-v0.1",
    "minimax-m2": "minimax-m2.5",
    "minimax-m2.1": "minimax-m2.5",
    "minimax-m2.7": "minimax-m2.5",
    "glm-5.1": "glm-5",
    "tinyllama-1.1b-v1.0": "tinyllama-1.1b",
}

# Longest contexts of names whose configuration above leaves them out; the longest beginning that fits counts.
_CONTEXTS: Final = {
    "llama-2-": 4096, "llama-3-": 8192, "llama-3.": 131072, "qwen2.5-": 32768, "qwq-": 40960, "qwen3-": 40960,
    "qwen3-coder-": 262144, "mistral-7b-": 32768, "mistral-nemo-": 131072, "mistral-small-": 32768,
    "mixtral-8x7b": 32768, "mixtral-8x22b": 65536, "gemma-2-": 8192, "gemma-3-": 131072, "gemma-3-1b": 32768,
    "deepseek-v": 163840, "deepseek-r1": 163840, "deepseek-r1-distill": 131072, "gpt-oss-": 131072,
    "phi-4": 16384, "smollm2-": 8192, "tinyllama-": 2048,
}  # fmt: skip

_TUNED: Final = re.compile(r"-(instruct|chat|it|pt|base|hf|thinking|2507)(?=-|$)")
_QUANTIZED: Final = re.compile(
    r"-((?:awq|gptq|fp8|fp4|nvfp4|w4a16|w8a8|int4|int8|bnb|4bit|8bit|gguf|q\d\w*|quantized)\b.*)$"
)
# What a suffix says about the width of the weights, the narrow ones first.
_WIDTHS: Final[tuple[tuple[re.Pattern[str], dict[str, Any]], ...]] = (
    (re.compile("nvfp4|fp4"), {"quant_method": "modelopt", "quant_algo": "NVFP4"}),
    (re.compile("int8|8bit|w8a"), {"quant_method": "gptq", "bits": 8, "group_size": -1}),
    (re.compile("fp8"), {"quant_method": "fp8", "weight_block_size": [128, 128]}),
    (re.compile("awq|int4|4bit|w4a"), {"quant_method": "gptq", "bits": 4, "group_size": 128}),
)


def known_names() -> tuple[str, ...]:
    """Return the names in the table, sorted."""
    return tuple(sorted((*_CONFIGS, *_SAME)))


class NamedConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The configuration that a name stands for. `suffix`: what the name says of narrow weights, and if it is known."""

    key: str
    fields: Fields
    suffix: str = ""
    width_known: bool = True


def find_model_config(name: str) -> NamedConfig | None:
    """Return the configuration of a model by its name, in the keys of config.json; None if it is not in the table."""
    plain = name.rstrip("/").rpartition("/")[2].lower().removeprefix("meta-")
    stripped = _QUANTIZED.sub("", plain)
    key = _TUNED.sub("", stripped).replace("qwen2.5-coder-", "qwen2.5-")
    asked, key = key, _SAME.get(key, key)
    config = _CONFIGS.get(key)
    if config is None:
        return None
    config = {"max_position_embeddings": _context(asked, plain), **config}
    suffix = plain[len(stripped) + 1 :]
    if not suffix:
        return NamedConfig(key=key, fields=config)
    width = next((found for pattern, found in _WIDTHS if pattern.search(suffix)), None)
    if width and width.get("quant_algo") == "NVFP4" and "kv_lora_rank" in config:
        width = _LATENT_NVFP4
    narrow = {**config, "quantization_config": width or {"quant_method": suffix}}
    return NamedConfig(key=key, fields=narrow, suffix=suffix, width_known=width is not None)


def find_model_shape(
    name: str, *, kv_bytes_per_value: float = KV_BYTES_PER_VALUE
) -> ModelShape | None:
    """Return the shape of a model by its name, with or without owner; None for a name that is not in the table."""
    found = find_model_config(name)
    if found is None:
        return None
    source = f"config.json that the makers of {found.key} publish"
    shape = shape_of_config(
        found.fields, source=source, name=name, kv_bytes_per_value=kv_bytes_per_value
    )
    if not found.suffix or not found.width_known:
        return shape
    note = f"the width of the weights was read from the name ({found.suffix})"
    return msgspec.structs.replace(shape, notes=(*shape.notes, note))


def _context(key: str, plain: str) -> int | None:
    """The longest context of a name, None where the table does not tell."""
    if "2507" in plain:
        return _CONTEXT_2507
    fitting = [start for start in _CONTEXTS if key.startswith(start)]
    return _CONTEXTS[max(fitting, key=len)] if fitting else None
