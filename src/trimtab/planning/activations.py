"""The peak of memory that a step needs beside weights and KV: activations, logits and the sampler, graphs, libraries.

Engines find the peak by running their largest step once. It is the larger of two that do not overlap, and what fused
experts keep as workspace lies beside it:

    forward   T tokens: 5 h for hidden values, residuals and their copies, plus the wider of
              queries, keys and values twice: 2 (H + 2 K) s / TP, and dense: 3 f / TP
    sampler   S streams x vocabulary, gathered whole on every rank of the last stage: logits in 16 and 32 bit,
              probabilities and sums; stages before the last only run forward
    experts   k (max(2 f / experts' TP, h) + max(f / experts' TP, h)) for each of the group's tokens, in chunks

in values of 16 bit, but for the sampler. Constants were read off 50 published start-up reports of vLLM 0.19 on H100
(llm-d-planner, accuracy report) and are typical, not exact: they differ by engine, version and driver.
"""

from typing import Final

from trimtab.core.layout import Layout
from trimtab.core.model_parts import PartName
from trimtab.core.served import EngineKind, ModelShape

GIB: Final = float(1 << 30)
ACTIVATION_BYTES: Final = 2.0
HIDDEN_COPIES: Final = 5.0
SAMPLER_BYTES: Final = 15.5
"""Bytes per stream and token of the vocabulary: 1.89 GiB at 1,024 streams of Llama 3.1 8B, 2.21 of Qwen3 8B."""

SAMPLER_BYTES_BEFORE_0_17: Final = 40.0
"""The same before vLLM 0.17: 5.64 GiB of Qwen3 14B at 1,024 streams, 1.26 of Llama 3 8B at 256."""

EXPERT_CHUNK_TOKENS: Final = 32_768
"""Fused experts work through more tokens than these in chunks (vLLM's default)."""

CONTEXT_BYTES: Final = 0.5 * GIB
"""A CUDA context with its modules; engines leave it outside of their share of the memory."""

LIBRARY_BYTES: Final = 0.25 * GIB
COLLECTIVE_BYTES_FAST: Final = 1.85 * GIB
COLLECTIVE_BYTES_SLOW: Final = 0.2 * GIB
"""Buffers of collectives on a rank of a tensor-parallel group: fast links get buffers for fused all-reduces too."""

FAST_LINK_BYTES_PER_S: Final = 200e9
GRAPH_BASE_BYTES: Final = 0.4 * GIB
GRAPH_LAYER_BYTES: Final = 0.012 * GIB
"""Captured graphs: reported 0.51 to 1.85 GiB, the more the deeper the model is."""


def activation_bytes(
    model: ModelShape,
    layout: Layout,
    *,
    batch_tokens: int,
    streams: int,
    sampler_bytes: float = SAMPLER_BYTES,
) -> float | None:
    """Return the peak of the largest step on a rank; None where the model's sizes are not known.

    `layout` with stages: the peak of the last one, which samples, or of the others, whichever is higher.
    """
    if not model.hidden or not model.heads:
        return None
    forward = _forward_bytes(model, layout, batch_tokens)
    # A step does not sample for more streams than it has tokens.
    sampled = float(min(streams, batch_tokens)) * (model.vocabulary or 0) * sampler_bytes
    return max(forward, sampled) + _expert_bytes(model, layout, batch_tokens)


def _forward_bytes(model: ModelShape, layout: Layout, batch_tokens: int) -> float:
    hidden, heads = model.hidden or 0, model.heads or 0
    size = hidden // heads if model.latent_kv or not model.head_size else model.head_size
    kv_heads = heads if model.latent_kv else (model.kv_heads or heads)
    attention = 2.0 * (heads + 2 * kv_heads) * size / layout.tp
    dense = 3.0 * _dense_width(model) / layout.tp
    per_token = HIDDEN_COPIES * hidden + max(attention, dense)
    return batch_tokens * per_token * ACTIVATION_BYTES


def _expert_bytes(model: ModelShape, layout: Layout, batch_tokens: int) -> float:
    """Workspace of the routed experts for the tokens of all attention groups; 0 for dense models."""
    if not model.experts or not model.experts_per_token or not model.hidden:
        return 0.0
    tokens = min(batch_tokens * layout.attention_dp, EXPERT_CHUNK_TOKENS)
    width = (model.feed_forward or model.hidden) / max(1, layout.moe_tp)
    hidden = float(model.hidden)
    each = max(2.0 * width, hidden) + max(width, hidden)
    return tokens * model.experts_per_token * each * ACTIVATION_BYTES


def _dense_width(model: ModelShape) -> float:
    """The width of a dense layer's feed forward; 0 for models whose layers all have experts."""
    hidden = model.hidden or 1
    for part in model.parts:
        if part.name is PartName.DENSE and part.layers:
            return part.parameters / (3.0 * hidden * part.layers)
    return 0.0 if model.experts else float(model.feed_forward or 4 * hidden)


def library_bytes(layout: Layout, link_bytes_per_s: float | None) -> float:
    """Return what libraries take on a rank beside the context: kernels, workspaces, buffers of collectives."""
    if layout.tp * layout.attention_dp == 1:
        return LIBRARY_BYTES
    fast = link_bytes_per_s is not None and link_bytes_per_s >= FAST_LINK_BYTES_PER_S
    return LIBRARY_BYTES + (COLLECTIVE_BYTES_FAST if fast else COLLECTIVE_BYTES_SLOW)


def graph_bytes(layers: int, engine: EngineKind) -> float:
    """Return what captured graphs take for the layers of a stage; llama.cpp captures none that stay."""
    if engine is EngineKind.LLAMACPP:
        return 0.0
    return GRAPH_BASE_BYTES + GRAPH_LAYER_BYTES * layers


def position_table_bytes(model: ModelShape) -> float:
    """Return the table of rotary positions that engines load with the weights: every position of the longest context.

    Whole on every rank, 16 bit: 0.03 GiB of Llama 3.1 8B, which reports 14.99 GiB for 14.96 of weights.
    """
    if not model.context_tokens_max or not model.head_size:
        return 0.0
    rotary = model.head_size - (model.latent_rank or 0)
    return model.context_tokens_max * rotary * ACTIVATION_BYTES


def unpacked_latent_bytes(model: ModelShape, layout: Layout, layers: int) -> float:
    """Return what engines keep of latent projections in 16 bit beside the stored ones, to multiply them into queries.

    Only quantised checkpoints need it: the stored matrices cannot be used as they are.
    """
    attention = next((part for part in model.parts if part.name is PartName.ATTENTION), None)
    if not model.latent_kv or attention is None or attention.bits >= 16.0:
        return 0.0
    values = (model.latent_rank or 0) * (model.heads or 0) * (model.latent_expanded or 0)
    return layers * values * ACTIVATION_BYTES / layout.tp
