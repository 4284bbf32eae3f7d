"""Does it fit: every byte of the fullest rank, and what is left for KV.

    vLLM           takes a share of the memory; weights, activations, libraries, graphs come out of it, KV is the rest
    SGLang         takes a share for weights and KV alone; activations, libraries, graphs must fit beside it
    TensorRT-LLM   gives KV a share of what is free after everything else
    llama.cpp      reserves KV for the contexts asked for; a share is kept for the rest

    KV of a token on a rank     layers of the stage x 2 x max(1, KV heads / TP) x head size x bytes; latent KV whole
    KV of a stream              full layers x context + windowed layers x min(context, window + step's tokens) + state

A replica holds as many tokens as its fullest stage does, times its attention groups. Total memory is what the driver
gives to programs where that is known, and the sheet's figure otherwise.
"""

from typing import Final

import msgspec

from trimtab.core.layout import Demand, Layout, MemoryFit, MemoryPart, PlanInputError
from trimtab.core.served import Accelerator, EngineKind, ModelShape
from trimtab.diagnosis.roofline_layout import kv_heads_per_rank
from trimtab.planning.activations import (
    CONTEXT_BYTES,
    GIB,
    activation_bytes,
    graph_bytes,
    library_bytes,
    unpacked_latent_bytes,
)
from trimtab.planning.model_parts import RankWeights, rank_weights, stage_layers
from trimtab.planning.precision import with_precision

STORED_KV_BITS: Final = 16
HEADROOM_STREAMS: Final = 1.0
UTILISATION: Final = 0.9
BATCH_TOKENS_MAX: Final = 8192
STREAMS_MAX: Final = 256


class KvNeed(msgspec.Struct, frozen=True, kw_only=True):
    """KV on a rank: bytes of one token in full layers, of one stream at a context, and how that came about."""

    token_bytes: float
    stream_bytes: float
    because: str


def context_of(model: ModelShape, demand: Demand) -> int:
    """Return the longest context to hold; raises `PlanInputError` for none, or one beyond the model."""
    context = demand.context_tokens or demand.input_tokens + demand.output_tokens
    most = model.context_tokens_max
    if context < 1:
        raise PlanInputError("context", f"{context} tokens hold nothing", ("1",))
    if most is not None and context > most:
        raise PlanInputError(
            "context",
            f"{context:,} tokens are beyond the {most:,} that {model.name} was made for",
            (str(most),),
        )
    return context


def kv_need(
    model: ModelShape,
    layout: Layout,
    context_tokens: int,
    *,
    kv_bits: int = STORED_KV_BITS,
    batch_tokens_max: int = BATCH_TOKENS_MAX,
) -> KvNeed | None:
    """Return the KV on a rank of the fullest stage; None where the model's sizes are not known.

    The model's own KV per token must be that of 16 bit.
    """
    if model.kv_bytes_per_token is None or not model.kv_heads or not model.layers:
        return None
    heads = kv_heads_per_rank(model.kv_heads, layout.tp)
    stage = max(stage_layers(model.layers, min(layout.pp, model.layers))) / model.layers
    narrow = kv_bits / STORED_KV_BITS
    token = model.kv_bytes_per_token * narrow * heads / model.kv_heads * stage
    state = model.state_bytes * stage / layout.tp
    full = token * (1.0 - _windowed_share(model))
    near = min(context_tokens, (model.window_tokens or 0) + batch_tokens_max)
    stream = full * context_tokens + (token - full) * near + state
    return KvNeed(
        token_bytes=token,
        stream_bytes=stream,
        because=_kv_because(model, layout, heads, kv_bits),
    )


def _windowed_share(model: ModelShape) -> float:
    layers = model.kv_layers
    if not model.window_tokens or not layers:
        return 0.0
    return min(1.0, model.windowed_layers / layers)


def _kv_because(model: ModelShape, layout: Layout, heads: float, kv_bits: int) -> str:
    if model.latent_kv:
        copies = f", copied on {layout.tp} ranks" if layout.tp > 1 else ""
        held = f"one latent vector a layer{copies}"
    else:
        held = f"{heads:g} of {model.kv_heads} KV heads on a rank"
        if layout.tp > (model.kv_heads or 1):
            held += f", {layout.tp // (model.kv_heads or 1)} copies over the group"
    window = f", {model.windowed_layers} layers with a window" if model.windowed_layers else ""
    linear = f", {model.linear_layers} layers with a state instead" if model.linear_layers else ""
    return f"{held}, {kv_bits} bit{window}{linear}"


def memory_fit(
    model: ModelShape,
    accelerator: Accelerator,
    layout: Layout,
    demand: Demand,
    *,
    precision: str | None = None,
    kv_bits: int | None = None,
    batch_tokens_max: int = BATCH_TOKENS_MAX,
    streams_max: int = STREAMS_MAX,
    utilisation: float = UTILISATION,
    engine: EngineKind = EngineKind.VLLM,
    kv_space_bytes: float | None = None,
) -> MemoryFit:
    """Account for every byte of the fullest rank of one replica.

    `kv_space_bytes`: KV that is reserved outright, as on CPU. Raises `PlanInputError` for a context beyond the model,
    an unknown precision, or facts that are missing to say anything.
    """
    if precision is not None:
        model = with_precision(model, precision)
    context = context_of(model, demand)
    device, device_told = _device_bytes(accelerator)
    weights = rank_weights(model, layout)
    if weights is None:
        raise PlanInputError("model", f"the size of the weights of {model.name} is not known")
    bits = kv_bits or STORED_KV_BITS
    need = kv_need(model, layout, context, kv_bits=bits, batch_tokens_max=batch_tokens_max)
    if need is None:
        raise PlanInputError("model", f"the KV cache of {model.name} is not known")
    parts = (
        *_weight_parts(model, layout, weights),
        *_step_parts(model, layout, weights.layers, engine, batch_tokens_max, streams_max),
    )
    usable, kv = _left_for_kv(parts, device, utilisation, engine)
    if kv_space_bytes is not None:
        kv = kv_space_bytes
    return _fit(parts, layout, need, device=device, usable=usable, kv=kv, context=context,
                told=device_told)  # fmt: skip


def _device_bytes(accelerator: Accelerator) -> tuple[float, str]:
    if accelerator.visible_bytes is not None:
        return accelerator.visible_bytes, "as its driver gives it to programs"
    if accelerator.memory_bytes is not None:
        return accelerator.memory_bytes, "as the sheet states it"
    raise PlanInputError("hardware", f"the memory of {accelerator.name} is not known")


def _weight_parts(
    model: ModelShape, layout: Layout, weights: RankWeights
) -> tuple[MemoryPart, ...]:
    stage = f" of stage {weights.stage + 1} of {layout.pp}" if layout.pp > 1 else ""
    if not weights.parts:
        return (
            MemoryPart(
                name="weights", bytes=weights.total_bytes, because=f"dealt out evenly{stage}"
            ),
        )
    found = [
        MemoryPart(
            name=f"weights: {part.name.value}",
            bytes=part.bytes,
            because=f"{part.share:.3g} of them{stage}, {_bits(model, part.name.value):.3g} bit",
        )
        for part in weights.parts
    ]
    unpacked = unpacked_latent_bytes(model, layout, weights.layers)
    if unpacked:
        found.append(
            MemoryPart(
                name="weights: latent projections, unpacked",
                bytes=unpacked,
                because="engines keep them in 16 bit beside the quantised ones",
            )
        )
    return tuple(found)


def _bits(model: ModelShape, name: str) -> float:
    return next((part.bits for part in model.parts if part.name.value == name), 16.0)


def _step_parts(
    model: ModelShape,
    layout: Layout,
    layers: int,
    engine: EngineKind,
    batch_tokens: int,
    streams: int,
) -> tuple[MemoryPart, ...]:
    peak = activation_bytes(model, layout, batch_tokens=batch_tokens, streams=streams)
    return (
        MemoryPart(
            name="activations",
            bytes=peak or 0.0,
            because=f"peak of a step of {batch_tokens:,} tokens, or of sampling for {streams} streams"
            if peak
            else "unknown: the model's sizes are not told",
        ),
        MemoryPart(name="graphs", bytes=graph_bytes(layers, engine), because="typical, by layers"),
        MemoryPart(
            name="libraries",
            bytes=library_bytes(layout),
            because="typical: kernels, workspaces, buffers of collectives",
        ),
    )


def _left_for_kv(
    parts: tuple[MemoryPart, ...], device: float, share: float, engine: EngineKind
) -> tuple[float, float]:
    """Return (bytes that the engine may take, bytes left for KV)."""
    taken = sum(part.bytes for part in parts)
    weights = sum(part.bytes for part in parts if part.name.startswith("weights"))
    match engine:
        case EngineKind.SGLANG:
            usable = share * device
            return usable, min(usable - weights, device - CONTEXT_BYTES - taken)
        case EngineKind.TRTLLM:
            free = device - CONTEXT_BYTES - taken
            return device - CONTEXT_BYTES, share * free if free > 0.0 else free
        case _:
            return share * device, share * device - taken


def _fit(
    parts: tuple[MemoryPart, ...],
    layout: Layout,
    need: KvNeed,
    *,
    device: float,
    usable: float,
    kv: float,
    context: int,
    told: str,
) -> MemoryFit:
    groups = layout.attention_dp
    streams = max(0.0, kv / need.stream_bytes) * groups if need.stream_bytes else 0.0
    fits = streams >= HEADROOM_STREAMS * groups
    taken = sum(part.bytes for part in parts)
    size = f"{taken / GIB:.1f} GiB before KV of {usable / GIB:.1f} GiB usable of {device / GIB:.1f} GiB {told}"
    if fits:
        because = (
            f"{size}; {kv / GIB:.1f} GiB for KV hold {streams:.1f} streams of {context:,} tokens"
        )
    elif kv <= 0.0:
        because = f"{size}: nothing is left for KV, {-kv / GIB:.1f} GiB are missing"
    else:
        short = need.stream_bytes - kv
        because = (
            f"{size}; {kv / GIB:.1f} GiB for KV do not hold one stream of {context:,} tokens, "
            f"{short / GIB:.1f} GiB are missing"
        )
    return MemoryFit(
        parts=parts,
        device_bytes=device,
        usable_bytes=usable,
        kv_bytes=kv,
        kv_tokens=streams * context,
        kv_bytes_per_token_rank=need.token_bytes,
        streams=streams,
        fits=fits,
        because=f"{because}; KV: {need.because}",
    )
