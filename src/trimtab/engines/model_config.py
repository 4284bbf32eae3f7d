"""The shape of a model out of the `config.json` that is published with its weights, or out of a GGUF header.

Parameters are counted matrix by matrix, so that what a token meets (mixtures of experts), what is only looked up
(embeddings) and what a quantised file stores at which width can be told apart. An architecture that is not known gives
its layers, heads and KV cache, but no parameters: a count of the wrong matrices would be believed.

KV per token: layers x KV heads x head size x 2 (keys and values) x bytes per value; with multi-head latent attention
layers x (compressed rank + rotary part) x bytes, which every rank of a tensor-parallel group holds whole.
"""

import math
from collections.abc import Mapping
from typing import Final

import msgspec

from trimtab.core.ports import EngineFormatError
from trimtab.core.served import ModelShape
from trimtab.engines.gguf import GGUFHeader
from trimtab.engines.model_weights import Matrices, stored_bytes

CONFIG_BYTES_MAX: Final = 4 * 1024 * 1024
KV_BYTES_PER_VALUE: Final = 2.0
"""The cache precision that engines use unless told otherwise: 16 bit."""

_COUNT_MAX: Final = 10_000_000


class _Family(msgspec.Struct, frozen=True, kw_only=True):
    """What an architecture has that its configuration does not say; `defaults` for keys it may leave out."""

    tied: bool = False
    qkv_bias: bool = False
    head_norms: bool = False
    norms: int = 2
    output_bias: bool = False
    expert_bias: bool = False
    sinks: bool = False
    window_every: int = 0
    defaults: Mapping[str, int] = {}


# Names are `model_type` of Hugging Face configurations. `window_every` n: each n-th layer sees everything, the others
# a window; 1: all layers have the window.
_GEMMA3_DEFAULTS: Final = {
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "vocab_size": 262_208,
}
_FAMILIES: Final = {
    "llama": _Family(),
    "granite": _Family(),
    "phi3": _Family(),
    "mistral": _Family(window_every=1),
    "mixtral": _Family(window_every=1),
    "qwen2": _Family(qkv_bias=True),
    "qwen2_moe": _Family(qkv_bias=True),
    "qwen3": _Family(head_norms=True),
    "qwen3_moe": _Family(head_norms=True),
    "gemma": _Family(tied=True),
    "gemma2": _Family(tied=True, norms=4, window_every=2),
    "gemma3_text": _Family(
        tied=True, norms=4, head_norms=True, window_every=6, defaults=_GEMMA3_DEFAULTS
    ),
    "gpt_oss": _Family(
        qkv_bias=True, output_bias=True, expert_bias=True, sinks=True, window_every=2
    ),
    "deepseek_v2": _Family(),
    "deepseek_v3": _Family(),
    "kimi_k2": _Family(),
}
_LATENT: Final = ("deepseek_v2", "deepseek_v3", "kimi_k2")


class _Config:
    """Reads counts out of a configuration; a value that is no count is an error that names its key."""

    def __init__(self, data: Mapping[str, object], defaults: Mapping[str, int]) -> None:
        self._data = data
        self._defaults = defaults

    def count(self, *names: str) -> int | None:
        """Return the first of the names that is there; 0 and null are None."""
        for name in names:
            value = self._data.get(name, self._defaults.get(name))
            if value is None or value is False:
                continue
            if isinstance(value, bool) or not isinstance(value, int) or value < 0:
                raise EngineFormatError(f"its {name} is {value!r} and no count")
            if value > _COUNT_MAX:
                raise EngineFormatError(f"its {name} claims {value}")
            return value or None
        return None

    def need(self, *names: str) -> int:
        """Return a count that must be there."""
        found = self.count(*names)
        if found is None:
            raise EngineFormatError(f"it has no {names[0]}")
        return found

    def flag(self, name: str, default: bool) -> bool:
        """Return a truth value; null and absence are the default."""
        value = self._data.get(name)
        return value if isinstance(value, bool) else default

    def has(self, name: str) -> bool:
        """Say whether a key is there with a value."""
        return self._data.get(name) is not None

    def get(self, name: str) -> object:
        """Return a value as it is."""
        return self._data.get(name)


def read_model_config(
    data: bytes, *, source: str, name: str = "", kv_bytes_per_value: float = KV_BYTES_PER_VALUE
) -> ModelShape:
    """Read the bytes of a config.json; raises `EngineFormatError`, whose message continues a sentence on the file."""
    if len(data) > CONFIG_BYTES_MAX:
        raise EngineFormatError(f"it has {len(data)} bytes and is no model configuration")
    try:
        found = msgspec.json.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise EngineFormatError("it is no JSON") from error
    if not isinstance(found, dict):
        raise EngineFormatError("it is no JSON object")
    return shape_of_config(found, source=source, name=name, kv_bytes_per_value=kv_bytes_per_value)


def shape_of_config(
    whole: Mapping[str, object],
    *,
    source: str,
    name: str = "",
    kv_bytes_per_value: float = KV_BYTES_PER_VALUE,
) -> ModelShape:
    """Return the shape that a decoded configuration describes; of one with images, the part that writes text."""
    inner = whole.get("text_config") or whole.get("llm_config")
    data = {**whole, **inner} if isinstance(inner, dict) else dict(whole)
    kind = str(data.get("model_type", ""))
    family = _FAMILIES.get(kind)
    config = _Config(data, family.defaults if family else {})
    layers, hidden = config.need("num_hidden_layers", "n_layer"), config.need("hidden_size")
    heads = config.need("num_attention_heads", "n_head")
    latent = config.count("kv_lora_rank")
    kv_heads = 1 if latent else config.count("num_key_value_heads") or heads
    head_size = config.count("head_dim") or hidden // heads
    if latent:
        head_size = latent + (config.count("qk_rope_head_dim") or 0)
    if head_size < 1:
        raise EngineFormatError(f"its {heads} heads do not fit into hidden_size {hidden}")
    matrices, notes = _matrices(config, kind, family)
    window, windowed = _window(config, family, layers)
    stored = stored_bytes(data, matrices)
    pair = 1 if latent else 2  # a latent vector is both key and value
    experts, per_token = _experts(config)
    return ModelShape(
        name=name or str(data.get("_name_or_path") or kind or "unnamed model"),
        source=source,
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=kv_heads,
        head_size=head_size,
        vocabulary=config.count("vocab_size"),
        parameters=matrices.total if matrices else None,
        active_parameters=_active(matrices, experts, per_token),
        weight_bytes=stored.total,
        kv_bytes_per_token=float(layers * kv_heads * head_size * pair) * kv_bytes_per_value,
        lookup_parameters=matrices.lookup if matrices else 0.0,
        lookup_bytes=stored.lookup,
        expert_bytes=stored.experts,
        latent_kv=latent is not None,
        experts=experts,
        experts_per_token=per_token,
        window_tokens=window,
        windowed_layers=windowed,
        notes=(*notes, *stored.notes),
    )


def _active(matrices: Matrices | None, experts: int | None, per_token: int | None) -> float | None:
    if matrices is None:
        return None
    if not experts or not per_token:
        return matrices.total
    return matrices.total - matrices.experts * (1.0 - per_token / experts)


def _experts(config: _Config) -> tuple[int | None, int | None]:
    experts = config.count("num_local_experts", "num_experts", "n_routed_experts")
    per_token = config.count("num_experts_per_tok", "experts_per_token")
    if experts and per_token and per_token > experts:
        raise EngineFormatError(f"its tokens meet {per_token} of {experts} experts")
    return (experts, per_token) if experts and per_token else (None, None)


def _window(config: _Config, family: _Family | None, layers: int) -> tuple[int | None, int]:
    """Return the window in tokens and how many layers have it."""
    window = config.count("sliding_window")
    kinds = config.get("layer_types")
    if window is None or not config.flag("use_sliding_window", default=True):
        return None, 0
    if isinstance(kinds, list):
        return window, sum(kind == "sliding_attention" for kind in kinds)
    every = config.count("sliding_window_pattern") or (family.window_every if family else 0)
    if not every:
        return None, 0
    return window, layers if every == 1 else layers - layers // every


def _matrices(
    config: _Config, kind: str, family: _Family | None
) -> tuple[Matrices | None, tuple[str, ...]]:
    if family is None:
        return None, (f"architecture {kind or 'unnamed'!r} is not known: parameters not counted",)
    layers, hidden = config.need("num_hidden_layers"), config.need("hidden_size")
    embedding = config.need("vocab_size") * hidden
    tied = config.flag("tie_word_embeddings", family.tied)
    latent = kind in _LATENT and config.has("kv_lora_rank")
    attention = _latent_attention(config) if latent else _attention(config, family)
    dense, experts, router = _feed_forward(config, family)
    norms = layers * family.norms * hidden + hidden
    return (
        Matrices(
            embedding=float(embedding),
            head=0.0 if tied else float(embedding),
            attention=float(layers * attention),
            dense=float(dense),
            experts=float(experts),
            other=float(norms + router),
            tied=tied,
        ),
        (),
    )


def _attention(config: _Config, family: _Family) -> int:
    """Parameters of one layer's attention."""
    hidden, heads = config.need("hidden_size"), config.need("num_attention_heads")
    kv_heads = config.count("num_key_value_heads") or heads
    size = config.count("head_dim") or hidden // heads
    wide, narrow = heads * size, kv_heads * size
    found = hidden * (wide + 2 * narrow) + wide * hidden
    if config.flag("attention_bias", family.qkv_bias):
        found += wide + 2 * narrow
    if family.output_bias:
        found += hidden
    if family.head_norms:
        found += 2 * size
    return found + (heads if family.sinks else 0)


def _latent_attention(config: _Config) -> int:
    """Parameters of one layer of multi-head latent attention (DeepSeek-V2, section 2.1)."""
    hidden, heads = config.need("hidden_size"), config.need("num_attention_heads")
    rank, rotary = config.need("kv_lora_rank"), config.need("qk_rope_head_dim")
    plain, value = config.need("qk_nope_head_dim"), config.need("v_head_dim")
    query_rank = config.count("q_lora_rank")
    wide = heads * (plain + rotary)
    query = hidden * query_rank + query_rank * (wide + 1) if query_rank else hidden * wide
    compressed = hidden * (rank + rotary) + rank * (heads * (plain + value) + 1)
    return query + compressed + heads * value * hidden


def _feed_forward(config: _Config, family: _Family) -> tuple[int, int, int]:
    """Parameters of all layers: dense matrices (shared experts too), routed experts, routers."""
    layers, hidden = config.need("num_hidden_layers"), config.need("hidden_size")
    wide = config.need("intermediate_size", "moe_intermediate_size")
    experts, _ = _experts(config)
    if experts is None:
        return layers * 3 * hidden * wide, 0, 0
    sparse = _sparse_layers(config, layers)
    each = config.count("moe_intermediate_size") or wide
    expert = 3 * hidden * each + ((2 * each + hidden) if family.expert_bias else 0)
    shared = (config.count("n_shared_experts") or 0) * each
    alone = config.count("shared_expert_intermediate_size")
    shared_parameters = 3 * hidden * (alone or shared) + (hidden if alone else 0)
    router = hidden * experts + (experts if family.expert_bias or config.has("topk_group") else 0)
    dense = (layers - sparse) * 3 * hidden * wide + sparse * shared_parameters
    return dense, sparse * experts * expert, sparse * router


def _sparse_layers(config: _Config, layers: int) -> int:
    """How many layers have experts; the others are dense."""
    first = config.count("first_k_dense_replace") or 0
    every = config.count("decoder_sparse_step", "moe_layer_freq") or 1
    dense_only = config.get("mlp_only_layers")
    skipped = len(dense_only) if isinstance(dense_only, list) else 0
    return max(0, math.ceil((layers - first) / every) - skipped)


def shape_of_gguf(
    header: GGUFHeader,
    *,
    source: str,
    name: str = "",
    kv_bytes_per_value: float = KV_BYTES_PER_VALUE,
) -> ModelShape:
    """Return the shape that a GGUF header describes; its weights are counted and sized as they are stored."""
    heads, hidden = header.number("attention.head_count"), header.number("embedding_length")
    latent = header.number("attention.kv_lora_rank")
    rotary = header.number("rope.dimension_count") or 0
    layers = header.number("block_count")
    size = header.number("attention.key_length") or (hidden // heads if hidden and heads else None)
    values = header.kv_values_per_token
    if latent and layers:
        size, values = latent + rotary, layers * (latent + rotary)
    experts, per_token = header.number("expert_count"), header.number("expert_used_count")
    total = float(sum(header.values.values()))
    routed = float(sum(n for tensor, n in header.values.items() if "_exps." in tensor))
    untied = "output.weight" in header.values
    lookup = float(header.values.get("token_embd.weight", 0)) if untied else 0.0
    stored = float(header.data_end - header.data_start)
    each = stored / total if total else 0.0  # one average width: the header's tensors differ little
    active = total - routed * (1.0 - per_token / experts) if experts and per_token else total
    return ModelShape(
        name=name or str(header.fields.get("general.name") or header.architecture),
        source=source,
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=1 if latent else header.number("attention.head_count_kv") or heads,
        head_size=size,
        vocabulary=header.vocabulary,
        parameters=total or None,
        active_parameters=active or None,
        weight_bytes=stored or None,
        kv_bytes_per_token=None if values is None else values * kv_bytes_per_value,
        lookup_parameters=lookup,
        lookup_bytes=lookup * each,
        expert_bytes=routed * each,
        latent_kv=latent is not None,
        experts=experts or None,
        experts_per_token=(per_token or None) if experts else None,
        window_tokens=header.number("attention.sliding_window"),
    )
