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

from trimtab.core.model_parts import PartName, WeightPart
from trimtab.core.nearest import nearest_names
from trimtab.core.ports import EngineFormatError
from trimtab.core.served import ModelShape
from trimtab.engines.gguf import GGUFHeader
from trimtab.engines.model_families import (
    FAMILIES,
    Config,
    Family,
    experts_of,
    layer_kinds,
    linear_layers,
)
from trimtab.engines.model_matrices import count_parts
from trimtab.engines.model_weights import Stored, stored_parts

CONFIG_BYTES_MAX: Final = 4 * 1024 * 1024
KV_BYTES_PER_VALUE: Final = 2.0
"""The cache precision that engines use unless told otherwise: 16 bit."""
_USUAL: Final = ("llama", "mixtral", "qwen3")
_INDEX_KEY_SCALE_BYTES: Final = 4.0


def read_model_config(
    data: bytes,
    *,
    source: str,
    name: str = "",
    kv_bytes_per_value: float = KV_BYTES_PER_VALUE,
    quantization: bytes | None = None,
) -> ModelShape:
    """Read the bytes of a config.json; raises `EngineFormatError`, whose message continues a sentence on the file.

    `quantization`: the bytes of an hf_quant_config.json beside it, where some makers say how weights are stored.
    """
    found = _decoded(data)
    if quantization is not None and "quantization_config" not in found:
        inner = _decoded(quantization).get("quantization")
        if isinstance(inner, dict):
            found["quantization_config"] = {"quant_method": "modelopt", **inner}
    return shape_of_config(found, source=source, name=name, kv_bytes_per_value=kv_bytes_per_value)


def _decoded(data: bytes) -> dict[str, object]:
    if len(data) > CONFIG_BYTES_MAX:
        raise EngineFormatError(f"it has {len(data)} bytes and is no model configuration")
    try:
        found = msgspec.json.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise EngineFormatError("it is no JSON") from error
    if not isinstance(found, dict):
        raise EngineFormatError("it is no JSON object")
    return found


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
    family = FAMILIES.get(kind)
    config = Config(data, family.defaults if family else {})
    layers, hidden = config.need("num_hidden_layers", "n_layer"), config.need("hidden_size")
    latent = config.count("kv_lora_rank")
    heads, kv_heads, head_size = _head_sizes(config, hidden, latent)
    counted = count_parts(config, family) if family else ()
    stored = stored_parts(data, counted) if counted else _uncounted(kind)
    window, windowed = _window(config, family, layers)
    linear = linear_layers(config, layers)
    pair = 1 if latent else 2  # a latent vector is both key and value
    experts, per_token = experts_of(config)
    head, embedding = _of(counted, PartName.HEAD), _of(stored.parts, PartName.EMBEDDING)
    untied = bool(head.parameters)
    return ModelShape(
        name=name or str(data.get("_name_or_path") or kind or "unnamed model"),
        source=source,
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=kv_heads,
        head_size=head_size,
        vocabulary=config.count("vocab_size"),
        parameters=sum(part.parameters for part in counted) if counted else None,
        active_parameters=_active(counted, experts, per_token),
        weight_bytes=sum(part.bytes for part in stored.parts) if stored.parts else None,
        kv_bytes_per_token=_kv_bytes_per_token(
            config, layers - linear, kv_heads * head_size * pair, kv_bytes_per_value
        ),
        lookup_parameters=_of(counted, PartName.EMBEDDING).parameters if untied else 0.0,
        lookup_bytes=embedding.bytes if untied else 0.0,
        expert_bytes=_of(stored.parts, PartName.EXPERTS).bytes,
        latent_kv=latent is not None,
        experts=experts,
        experts_per_token=per_token,
        window_tokens=window,
        windowed_layers=windowed,
        linear_layers=linear,
        state_bytes=_state_bytes(config, linear),
        feed_forward=_feed_forward_width(config, experts),
        latent_rank=latent,
        latent_expanded=_latent_expanded(config) if latent else None,
        context_tokens_max=config.count("max_position_embeddings", "n_positions"),
        parts=stored.parts,
        notes=stored.notes,
    )


def _latent_expanded(config: Config) -> int | None:
    plain, value = config.count("qk_nope_head_dim"), config.count("v_head_dim")
    return plain + value if plain and value else None


def _feed_forward_width(config: Config, experts: int | None) -> int | None:
    """The width of one expert, or of a dense layer."""
    if experts:
        return config.count("moe_intermediate_size", "intermediate_size")
    return config.count("intermediate_size")


def _head_sizes(config: Config, hidden: int, latent: int | None) -> tuple[int, int, int]:
    """Heads, KV heads, values of one KV head; a latent vector with its rotary part counts as one KV head."""
    heads = config.need("num_attention_heads", "n_head")
    kv_heads = 1 if latent else config.above_zero("num_key_value_heads") or heads
    if heads % kv_heads:
        near = max(
            count for count in range(1, heads + 1) if heads % count == 0 and count <= kv_heads
        )
        raise EngineFormatError(
            f"its {heads} heads do not divide over num_key_value_heads {kv_heads}; nearest valid: {near}"
        )
    if latent:
        return heads, kv_heads, latent + (config.count("qk_rope_head_dim") or 0)
    size = config.above_zero("head_dim")
    if size is None and hidden % heads:
        near = heads * max(1, round(hidden / heads))
        raise EngineFormatError(
            f"its hidden_size {hidden} does not divide over {heads} heads and it has no head_dim; nearest valid: {near}"
        )
    return heads, kv_heads, size or hidden // heads


def _uncounted(kind: str) -> Stored:
    near = nearest_names(kind, FAMILIES) if kind else ()
    like = f"; nearest valid: {' or '.join(near or _USUAL)}"
    told = f"model_type {kind!r} is not known: parameters not counted{like}"
    return Stored(notes=(told,))


def _active(
    parts: tuple[WeightPart, ...], experts: int | None, per_token: int | None
) -> float | None:
    """Parameters that one token meets."""
    if not parts:
        return None
    total = sum(part.parameters for part in parts)
    if not experts or not per_token:
        return total
    return total - _of(parts, PartName.EXPERTS).parameters * (1.0 - per_token / experts)


def _of(parts: tuple[WeightPart, ...], name: PartName) -> WeightPart:
    empty = WeightPart(name=name, parameters=0.0, bits=0.0)
    return next((part for part in parts if part.name is name), empty)


def _window(config: Config, family: Family | None, layers: int) -> tuple[int | None, int]:
    """Return the window in tokens and how many layers have it."""
    window = config.count("sliding_window")
    kinds = layer_kinds(config, layers)
    if window is None or not config.flag("use_sliding_window", default=True):
        return None, 0
    if kinds is not None:
        return window, sum(kind == "sliding_attention" for kind in kinds)
    every = config.count("sliding_window_pattern") or (family.window_every if family else 0)
    if not every:
        return None, 0
    return window, layers if every == 1 else layers - layers // every


def _kv_bytes_per_token(
    config: Config, layers: int, values: int, kv_bytes_per_value: float
) -> float:
    """Bytes over the `layers` that keep KV of `values` each, and the keys of an index that sparse attention keeps."""
    index = config.count("index_head_dim") if config.has("kv_lora_rank") else None
    # The index's keys are 8 bit whatever the cache's precision is, with one 32-bit scale (DeepSeek-V3.2).
    indexed = index + _INDEX_KEY_SCALE_BYTES if index else 0.0
    return layers * (values * kv_bytes_per_value + indexed)


def _state_bytes(config: Config, linear: int) -> float:
    """Bytes of one stream's state over the layers of linear attention: a matrix for each value head, and what the
    convolution still needs of earlier tokens."""
    if not linear:
        return 0.0
    heads, value = config.need("linear_num_value_heads"), config.need("linear_value_head_dim")
    key = config.need("linear_key_head_dim")
    keys = config.need("linear_num_key_heads") * key
    width = 4.0 if config.get("mamba_ssm_dtype") == "float32" else 2.0
    kernel = config.count("linear_conv_kernel_dim") or 4
    return linear * (heads * key * value * width + (2 * keys + heads * value) * (kernel - 1) * 2.0)


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
        feed_forward=header.number("expert_feed_forward_length")
        or header.number("feed_forward_length"),
        context_tokens_max=header.context_tokens,
        parts=_gguf_parts(header, layers or 0),
    )


# How GGUF names the tensors of a part, the telling ones first.
_GGUF_PARTS: Final = (
    ("_exps.", PartName.EXPERTS),
    ("_shexp.", PartName.SHARED_EXPERTS),
    ("ffn_gate_inp", PartName.ROUTER),
    ("norm", PartName.NORMS),
    ("token_embd", PartName.EMBEDDING),
    ("output.weight", PartName.HEAD),
    ("attn_q_a", PartName.LATENT),
    ("attn_kv_a", PartName.LATENT),
    ("attn_k.", PartName.KEY_VALUE),
    ("attn_v.", PartName.KEY_VALUE),
    ("ssm_", PartName.LINEAR),
    ("attn_gate", PartName.LINEAR),
    ("attn_", PartName.ATTENTION),
    ("ffn_", PartName.DENSE),
)


def _gguf_parts(header: GGUFHeader, layers: int) -> tuple[WeightPart, ...]:
    """Sum tensors by part; empty if a tensor's type has no known size."""
    values: dict[PartName, float] = {}
    sizes: dict[PartName, float] = {}
    for tensor in header.table:
        if not tensor.size:
            return ()
        found = (part for sign, part in _GGUF_PARTS if _gguf_is(tensor.name, sign))
        name = next(found, PartName.NORMS)
        values[name] = values.get(name, 0.0) + math.prod(tensor.shape)
        sizes[name] = sizes.get(name, 0.0) + tensor.size
    return tuple(
        WeightPart(
            name=name,
            parameters=values[name],
            bits=8.0 * sizes[name] / values[name],
            layers=0 if name in (PartName.EMBEDDING, PartName.HEAD) else layers,
        )
        for name in values
        if values[name]
    )


def _gguf_is(tensor: str, sign: str) -> bool:
    """Whether a tensor's name has a sign; the output matrix is no layer's output projection."""
    return tensor == sign if sign == "output.weight" else sign in tensor
