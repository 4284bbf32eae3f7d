"""How many parameters each part of a model has, counted matrix by matrix from its configuration.

Per layer, with hidden size h, head size s, H heads, K KV heads, feed forward width f and E experts:
    attention              h H s for queries (twice with a gate) + H s h for the output
    keys and values        2 h K s
    latent attention       h (query rank) + h (rank + rotary) compress; query rank x H (plain + rotary),
                           rank x H (plain + value), H value h expand (DeepSeek-V2, section 2.1)
    linear attention       h (2 keys + 2 values) + 2 h (value heads) + convolution + values x h (Gated DeltaNet, 2024)
    feed forward, expert   3 h f
"""

import math
from typing import Final

from trimtab.core.model_parts import PartName, WeightPart
from trimtab.engines.model_families import Config, Family, experts_of, linear_layers

UNSET_BITS: Final = 0.0
"""Bits of a part before anybody said how it is stored."""


def count_parts(config: Config, family: Family) -> tuple[WeightPart, ...]:
    """Return the parts of a configuration with their parameters; bits are unset. Raises `EngineFormatError`."""
    layers, hidden = config.need("num_hidden_layers"), config.need("hidden_size")
    embedding = config.need("vocab_size") * hidden
    tied = config.flag("tie_word_embeddings", family.tied)
    linear = linear_layers(config, layers)
    found = [
        _part(PartName.EMBEDDING, embedding),
        _part(PartName.HEAD, 0 if tied else embedding),
        *_attention_parts(config, family, layers - linear, layers),
        *_linear_parts(config, linear, layers),
        *_feed_forward(config, family),
        _part(PartName.NORMS, _norms(config, family, layers - linear, layers), 0, layers),
    ]
    return tuple(part for part in found if part.parameters)


def _part(name: PartName, parameters: int, first_layer: int = 0, layers: int = 0) -> WeightPart:
    return WeightPart(
        name=name, parameters=float(parameters), bits=UNSET_BITS, first_layer=first_layer, layers=layers
    )  # fmt: skip


def _norms(config: Config, family: Family, full: int, layers: int) -> int:
    hidden = config.need("hidden_size")
    found = layers * family.norms * hidden + hidden
    heads, kv_heads, size = _heads(config)
    if family.head_norms:
        found += full * 2 * size
    if family.wide_norms:
        found += full * (heads + kv_heads) * size
    return found


def _heads(config: Config) -> tuple[int, int, int]:
    """Heads, KV heads, head size."""
    hidden, heads = config.need("hidden_size"), config.need("num_attention_heads")
    kv_heads = config.count("num_key_value_heads") or heads
    return heads, kv_heads, config.count("head_dim") or hidden // heads


def _attention_parts(
    config: Config, family: Family, full: int, layers: int
) -> tuple[WeightPart, ...]:
    if family.latent and config.has("kv_lora_rank"):
        return _latent_parts(config, layers)
    hidden = config.need("hidden_size")
    heads, kv_heads, size = _heads(config)
    wide, narrow = heads * size, kv_heads * size
    query = hidden * wide * (2 if family.gated else 1)
    keys = 2 * hidden * narrow
    if config.flag("attention_bias", family.qkv_bias):
        query, keys = query + wide, keys + 2 * narrow
    output = wide * hidden + (hidden if family.output_bias else 0)
    sinks = heads if family.sinks else 0
    return (
        _part(PartName.ATTENTION, full * (query + output + sinks), 0, layers),
        _part(PartName.KEY_VALUE, full * keys, 0, layers),
    )


def _latent_parts(config: Config, layers: int) -> tuple[WeightPart, ...]:
    hidden, heads = config.need("hidden_size"), config.need("num_attention_heads")
    rank, rotary = config.need("kv_lora_rank"), config.need("qk_rope_head_dim")
    plain, value = config.need("qk_nope_head_dim"), config.need("v_head_dim")
    query_rank = config.count("q_lora_rank")
    wide = heads * (plain + rotary)
    whole = hidden * (rank + rotary) + rank
    cut = rank * heads * (plain + value) + heads * value * hidden
    whole += hidden * query_rank + query_rank if query_rank else 0
    cut += (query_rank or hidden) * wide
    return (
        _part(PartName.ATTENTION, layers * cut, 0, layers),
        _part(PartName.LATENT, layers * whole, 0, layers),
        _part(PartName.INDEXER, layers * _indexer(config, query_rank or hidden), 0, layers),
    )


def _indexer(config: Config, query_rank: int) -> int:
    """Parameters of one layer's index of sparse attention (DeepSeek-V3.2); 0 for models without."""
    heads, size = config.count("index_n_heads"), config.count("index_head_dim")
    if heads is None or size is None:
        return 0
    hidden = config.need("hidden_size")
    return query_rank * heads * size + hidden * size + 2 * size + hidden * heads


def _linear_parts(config: Config, linear: int, layers: int) -> tuple[WeightPart, ...]:
    if not linear:
        return ()
    hidden = config.need("hidden_size")
    value_heads = config.need("linear_num_value_heads")
    value_size = config.need("linear_value_head_dim")
    keys = config.need("linear_num_key_heads") * config.need("linear_key_head_dim")
    values = value_heads * value_size
    inside = hidden * (2 * keys + 2 * values) + 2 * hidden * value_heads
    convolution = (2 * keys + values) * (config.count("linear_conv_kernel_dim") or 4)
    each = inside + convolution + values * hidden + 2 * value_heads + value_size
    return (_part(PartName.LINEAR, linear * each, 0, layers),)


def _feed_forward(config: Config, family: Family) -> tuple[WeightPart, ...]:
    """Dense layers, and of sparse ones the shared experts, the routed ones and the router."""
    layers, hidden = config.need("num_hidden_layers"), config.need("hidden_size")
    wide = config.need("intermediate_size", "moe_intermediate_size")
    experts, _ = experts_of(config)
    if experts is None:
        return (_part(PartName.DENSE, layers * 3 * hidden * wide, 0, layers),)
    sparse, first = _sparse_layers(config, layers), config.count("first_k_dense_replace") or 0
    each = config.count("moe_intermediate_size") or wide
    expert = 3 * hidden * each + ((2 * each + hidden) if family.expert_bias else 0)
    alone = config.count("shared_expert_intermediate_size")
    shared_wide = alone or (config.count("n_shared_experts") or 0) * each
    shared = 3 * hidden * shared_wide + (hidden if alone else 0)
    bias = family.expert_bias or family.routing_bias or config.has("topk_group")
    router = hidden * experts + (experts if bias else 0)
    dense_layers = first if sparse == layers - first else layers
    span = layers - first
    return (
        _part(PartName.DENSE, (layers - sparse) * 3 * hidden * wide, 0, dense_layers),
        _part(PartName.SHARED_EXPERTS, sparse * shared, first, span),
        _part(PartName.EXPERTS, sparse * experts * expert, first, span),
        _part(PartName.ROUTER, sparse * router, first, span),
    )


def _sparse_layers(config: Config, layers: int) -> int:
    """How many layers have experts; the others are dense."""
    first = config.count("first_k_dense_replace") or 0
    every = config.count("decoder_sparse_step", "moe_layer_freq") or 1
    dense_only = config.get("mlp_only_layers")
    skipped = len(dense_only) if isinstance(dense_only, list) else 0
    return max(0, math.ceil((layers - first) / every) - skipped)
