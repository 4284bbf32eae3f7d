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
    quantization_config={"quant_method": "fp8"},
)  # fmt: skip
_OSS: Final[dict[str, Any]] = {
    "head": 64, "num_experts_per_tok": 4, "sliding_window": 128,
    "quantization_config": {"quant_method": "mxfp4"},
}  # fmt: skip
_QWEN3_MOE: Final[dict[str, Any]] = {"head": 128, "num_experts": 128, "num_experts_per_tok": 8}
_MIXTRAL: Final[dict[str, Any]] = {"num_local_experts": 8, "num_experts_per_tok": 2}

_CONFIGS: Final[Mapping[str, Fields]] = {
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
    "mixtral-8x7b": "mixtral-8x7b-v0.1",
    "mixtral-8x22b": "mixtral-8x22b-v0.1",
}

_TUNED: Final = re.compile(r"-(instruct|chat|it|pt|base|hf|thinking|2507)(?=-|$)")
_QUANTIZED: Final = re.compile(
    r"-((?:awq|gptq|fp8|fp4|nvfp4|w4a16|w8a8|int4|int8|bnb|4bit|8bit|gguf|q\d\w*|quantized)\b.*)$"
)
# What a suffix says about the width of the weights, the narrow ones first.
_WIDTHS: Final = (
    (re.compile("nvfp4|fp4"), {"quant_method": "modelopt", "quant_algo": "NVFP4"}),
    (re.compile("int8|8bit|w8a"), {"quant_method": "gptq", "bits": 8, "group_size": -1}),
    (re.compile("fp8"), {"quant_method": "fp8"}),
    (re.compile("awq|int4|4bit|w4a"), {"quant_method": "gptq", "bits": 4, "group_size": 128}),
)


def known_names() -> tuple[str, ...]:
    """Return the names in the table, sorted."""
    return tuple(sorted((*_CONFIGS, *_SAME)))


def find_model_shape(
    name: str, *, kv_bytes_per_value: float = KV_BYTES_PER_VALUE
) -> ModelShape | None:
    """Return the shape of a model by its name, with or without owner; None for a name that is not in the table."""
    plain = name.rstrip("/").rpartition("/")[2].lower().removeprefix("meta-")
    stripped = _QUANTIZED.sub("", plain)
    key = _TUNED.sub("", stripped).replace("qwen2.5-coder-", "qwen2.5-")
    key = _SAME.get(key, key)
    config = _CONFIGS.get(key)
    if config is None:
        return None
    source = f"config.json that the makers of {key} publish"
    suffix = plain[len(stripped) + 1 :]
    if not suffix:
        return shape_of_config(
            config, source=source, name=name, kv_bytes_per_value=kv_bytes_per_value
        )
    width = next((found for pattern, found in _WIDTHS if pattern.search(suffix)), None)
    narrow = {**config, "quantization_config": width or {"quant_method": suffix}}
    shape = shape_of_config(narrow, source=source, name=name, kv_bytes_per_value=kv_bytes_per_value)
    note = f"the width of the weights was read from the name ({suffix})"
    return msgspec.structs.replace(shape, notes=(*shape.notes, note)) if width else shape
