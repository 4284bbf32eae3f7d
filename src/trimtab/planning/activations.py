"""The peak of memory that a step needs beside weights and KV: activations, logits and the sampler, graphs, libraries.

Engines find the peak by running their largest step once. It is the larger of two that do not overlap:

    forward   T tokens: 3 h for the stream of hidden values, plus the widest of
              queries, keys and values twice: 2 (H + 2 K) s / TP; dense: 3 f / TP; routed experts: 2 k h (their inputs
              and outputs for each of k experts a token, over all attention groups' tokens, in chunks)
    sampler   S streams x vocabulary, gathered whole on every rank of the last stage: logits in 16 and 32 bit, sorted
              copies with their indices, probabilities and sums

in values of 16 bit, but for the sampler, whose bytes per value were read off published start-up reports. What libraries
take differs by driver and version: those figures are typical ones, and the answer says so.
"""

from typing import Final

from trimtab.core.layout import Layout
from trimtab.core.model_parts import PartName
from trimtab.core.served import EngineKind, ModelShape

GIB: Final = float(1 << 30)
ACTIVATION_BYTES: Final = 2.0
HIDDEN_COPIES: Final = 3.0
SAMPLER_BYTES: Final = 42.0
"""Bytes per stream and token of the vocabulary: 1.26 GiB at 256 streams of Llama 3 8B (vLLM pull request 10511)."""

EXPERT_CHUNK_TOKENS: Final = 32_768
"""Fused experts work through more tokens than these in chunks (vLLM's default)."""

CONTEXT_BYTES: Final = 0.5 * GIB
"""A CUDA context with its modules; engines leave it outside of their share of the memory."""

LIBRARY_BYTES: Final = 0.15 * GIB
COLLECTIVE_BYTES: Final = 0.6 * GIB
"""Buffers of collectives on a rank of a group: NCCL's channels and the engines' own all-reduce."""

GRAPH_BASE_BYTES: Final = 0.2 * GIB
GRAPH_LAYER_BYTES: Final = 0.01 * GIB
"""Captured graphs: 0.5 GiB for 32 layers, 0.8 for 64, at the usual sizes of batches."""


def activation_bytes(
    model: ModelShape, layout: Layout, *, batch_tokens: int, streams: int
) -> float | None:
    """Return the peak of the largest step on a rank; None where the model's sizes are not known."""
    if not model.hidden or not model.heads:
        return None
    forward = _forward_bytes(model, layout, batch_tokens)
    sampler = float(streams) * (model.vocabulary or 0) * SAMPLER_BYTES
    return max(forward, sampler)


def _forward_bytes(model: ModelShape, layout: Layout, batch_tokens: int) -> float:
    hidden, heads = model.hidden or 0, model.heads or 0
    size = hidden // heads if model.latent_kv or not model.head_size else model.head_size
    kv_heads = heads if model.latent_kv else (model.kv_heads or heads)
    attention = 2.0 * (heads + 2 * kv_heads) * size / layout.tp
    dense = 3.0 * _dense_width(model) / layout.tp
    per_token = HIDDEN_COPIES * hidden + max(attention, dense)
    found = batch_tokens * per_token
    if model.experts and model.experts_per_token:
        tokens = min(batch_tokens * layout.attention_dp, EXPERT_CHUNK_TOKENS)
        routed = tokens * 2.0 * model.experts_per_token * hidden
        found = max(found, batch_tokens * HIDDEN_COPIES * hidden + routed)
    return found * ACTIVATION_BYTES


def _dense_width(model: ModelShape) -> float:
    """The width of a dense layer's feed forward, or of the shared experts."""
    hidden = model.hidden or 1
    for part in model.parts:
        if part.name is PartName.DENSE and part.layers:
            return part.parameters / (3.0 * hidden * part.layers)
    return 0.0 if model.experts else float(model.feed_forward or 4 * hidden)


def library_bytes(layout: Layout) -> float:
    """Return what libraries take on a rank beside the context: kernels, workspaces, buffers of collectives."""
    shared = layout.devices_per_replica > 1
    return LIBRARY_BYTES + (COLLECTIVE_BYTES if shared else 0.0)


def graph_bytes(layers: int, engine: EngineKind) -> float:
    """Return what captured graphs take for the layers of a stage; llama.cpp captures none that stay."""
    if engine is EngineKind.LLAMACPP:
        return 0.0
    return GRAPH_BASE_BYTES + GRAPH_LAYER_BYTES * layers


def unpacked_latent_bytes(model: ModelShape, layout: Layout, layers: int) -> float:
    """Return what engines keep of latent projections in 16 bit beside the stored ones, to multiply them into queries.

    Only quantised checkpoints need it: the stored matrices cannot be used as they are.
    """
    attention = next((part for part in model.parts if part.name is PartName.ATTENTION), None)
    if not model.latent_kv or attention is None or attention.bits >= 16.0 or not model.layers:
        return 0.0
    rank = model.latent_rank or 0
    values = rank * (model.heads or 0) * (model.latent_expanded or 0)
    return layers * values * ACTIVATION_BYTES / layout.tp
