"""Does it fit: every byte of the fullest rank, and what is left for KV.

    vLLM           takes a share of the memory; weights, activations, libraries, graphs come out of it, KV is the rest
    SGLang         takes a share of what libraries leave for weights and KV; activations and graphs must fit beside it
    TensorRT-LLM   gives KV a share of what is free after everything else
    llama.cpp      reserves KV for the contexts asked for; a share is kept for the rest

Parts, KV and what is kept free sum up to the device. The driver's context is a part where the share is one of what it
leaves (SGLang, TensorRT-LLM); where it is one of the whole device, the context lies in what is kept free.

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
    position_table_bytes,
    unpacked_latent_bytes,
)
from trimtab.planning.model_parts import RankWeights, stage_layers, stage_weights
from trimtab.planning.precision import with_precision

STORED_KV_BITS: Final = 16.0
HEADROOM_STREAMS: Final = 1.0
UTILISATION: Final = 0.9
BATCH_TOKENS_MAX: Final = 8192
_LARGE_DEVICE_BYTES: Final = 70.0 * GIB


class StepDefaults(msgspec.Struct, frozen=True, kw_only=True):
    """The largest step that an engine takes unless told otherwise: tokens, and streams at once."""

    batch_tokens: int
    streams: int


def step_defaults(device_bytes: float) -> StepDefaults:
    """Return what vLLM's server takes by default: more on devices from 70 GiB on."""
    if device_bytes >= _LARGE_DEVICE_BYTES:
        return StepDefaults(batch_tokens=BATCH_TOKENS_MAX, streams=1024)
    return StepDefaults(batch_tokens=2048, streams=256)


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
    layers: int | None = None,
    kv_bits: float = STORED_KV_BITS,
    batch_tokens_max: int = BATCH_TOKENS_MAX,
) -> KvNeed | None:
    """Return the KV on a rank of a stage of `layers`, or of the longest; None where the model's sizes are not known.

    The model's own KV per token must be that of 16 bit.
    """
    if model.kv_bytes_per_token is None or not model.kv_heads or not model.layers:
        return None
    heads = kv_heads_per_rank(model.kv_heads, layout.tp)
    longest = max(stage_layers(model.layers, min(layout.pp, model.layers)))
    stage = (layers or longest) / model.layers
    narrow = kv_bits / STORED_KV_BITS
    token = model.kv_bytes_per_token * narrow * heads / model.kv_heads * stage
    state = model.state_bytes * stage / layout.tp
    full = token * (1.0 - _windowed_share(model))
    near = min(context_tokens, (model.window_tokens or 0) + batch_tokens_max)
    stream = full * context_tokens + (token - full) * near + state
    return KvNeed(
        token_bytes=token,
        stream_bytes=stream,
        because=_kv_because(model, layout, heads, kv_bits)
        + _saved(token * context_tokens + state, stream, context_tokens),
    )


def _saved(whole: float, stream: float, context: int) -> str:
    """Say what windows save of a stream of a context; nothing where there are none, or none is longer than theirs."""
    share = 1.0 - stream / whole if whole else 0.0
    return f" that save {share:.0%} of {context:,} tokens" if share > 0.005 else ""


def streams_at(
    model: ModelShape, fit: MemoryFit, layout: Layout, *, longest: int, mean: float
) -> float:
    """Return how many streams of a mean context run at once, of those of the longest one that fit.

    Windows hold less of long contexts, and a stream that makes tokens no more than its window; the prompts that are
    being computed are few beside them.
    """
    most = kv_need(model, layout, longest)
    need = kv_need(model, layout, max(1, round(mean)), batch_tokens_max=0)
    if most is None or need is None or not need.stream_bytes:
        return fit.streams
    return fit.streams * most.stream_bytes / need.stream_bytes


def _windowed_share(model: ModelShape) -> float:
    layers = model.kv_layers
    if not model.window_tokens or not layers:
        return 0.0
    return min(1.0, model.windowed_layers / layers)


def _kv_because(model: ModelShape, layout: Layout, heads: float, kv_bits: float) -> str:
    if model.latent_kv:
        copies = f", copied on {layout.tp} ranks" if layout.tp > 1 else ""
        held = f"one latent vector a layer{copies}"
    else:
        held = f"{heads:g} of {model.kv_heads} KV heads on a rank"
        if layout.tp > (model.kv_heads or 1):
            held += f", {layout.tp // (model.kv_heads or 1)} copies over the group"
    window = f", {model.windowed_layers} layers with a window" if model.windowed_layers else ""
    linear = f", {model.linear_layers} layers with a state instead" if model.linear_layers else ""
    return f"{held}, {kv_bits:g} bit{window}{linear}"


def memory_fit(
    model: ModelShape,
    accelerator: Accelerator,
    layout: Layout,
    demand: Demand,
    *,
    precision: str | None = None,
    kv_bits: float | None = None,
    batch_tokens_max: int | None = None,
    streams_max: int | None = None,
    utilisation: float = UTILISATION,
    engine: EngineKind = EngineKind.VLLM,
    kv_space_bytes: float | None = None,
) -> MemoryFit:
    """Account for every byte of the fullest rank of one replica.

    `kv_space_bytes`: KV that is reserved outright, as on CPU. `batch_tokens_max`, `streams_max`: the largest step; None
    takes what engines default to on such a device. Raises `PlanInputError` for a context beyond the model,
    an unknown precision, or facts that are missing to say anything.
    """
    if precision is not None:
        model = with_precision(model, precision)
    context = context_of(model, demand)
    device, told = _device_bytes(accelerator)
    defaults = step_defaults(device)
    step = StepDefaults(
        batch_tokens=batch_tokens_max or defaults.batch_tokens,
        streams=streams_max or defaults.streams,
    )
    stages = stage_weights(model, layout)
    if not stages:
        why = "".join(f"; {note}" for note in model.notes)
        raise PlanInputError("model", f"the size of the weights of {model.name} is not known{why}")
    found = []
    for weights in stages:
        need = kv_need(
            model,
            layout,
            context,
            layers=weights.layers,
            kv_bits=kv_bits or STORED_KV_BITS,
            batch_tokens_max=step.batch_tokens,
        )
        if need is None:
            raise PlanInputError("model", f"the KV cache of {model.name} is not known")
        parts = (
            *_weight_parts(model, layout, weights),
            *_step_parts(model, layout, weights, engine, step, accelerator),
            *_context_parts(engine),
        )
        kv = kv_space_bytes
        if kv is None:
            kv = _left_for_kv(parts, device, utilisation, engine)
        kept = _kept_free(parts, kv, device, _kept_because(utilisation, engine))
        room = _Room(device=device, kept=kept, kv=kv, context=context, told=told)
        found.append(_fit(parts, layout, need, room))
    return min(found, key=lambda fit: (fit.streams, fit.kv_bytes))


class _Room(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes of a device, those that stay free, those left for KV; and the context to hold."""

    device: float
    kept: MemoryPart
    kv: float
    context: int
    told: str

    @property
    def usable(self) -> float:
        """Bytes that parts and KV take together."""
        return self.device - self.kept.bytes


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
    bits = {part.name: part.bits for part in reversed(model.parts)}
    found = [
        MemoryPart(
            name=f"weights: {part.name.value}",
            bytes=part.bytes,
            because=f"{part.share:.3g} of them{stage}, {bits.get(part.name, 16.0):.3g} bit",
        )
        for part in weights.parts
    ]
    positions = position_table_bytes(model)
    if positions:
        found.append(
            MemoryPart(
                name="weights: position table",
                bytes=positions,
                because=f"{model.context_tokens_max:,} positions, loaded with the weights",
            )
        )
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


def _step_parts(
    model: ModelShape,
    layout: Layout,
    weights: RankWeights,
    engine: EngineKind,
    step: StepDefaults,
    accelerator: Accelerator,
) -> tuple[MemoryPart, ...]:
    samples = weights.stage == layout.pp - 1
    peak = activation_bytes(
        model,
        layout,
        batch_tokens=step.batch_tokens,
        streams=step.streams if samples else 0,
    )
    sampling = f", or of sampling for {step.streams:,} streams" if samples else ""
    return (
        MemoryPart(
            name="activations",
            bytes=peak or 0.0,
            because=f"peak of a step of {step.batch_tokens:,} tokens{sampling}"
            if peak
            else "unknown: the model's sizes are not told",
        ),
        MemoryPart(
            name="graphs",
            # A device that was measured here is the host's processor, which captures none.
            bytes=0.0 if accelerator.measured else graph_bytes(weights.layers, engine),
            because="none on a processor" if accelerator.measured else "typical, by layers",
        ),
        MemoryPart(
            name="libraries",
            bytes=library_bytes(layout, accelerator.link_bytes_per_s),
            because="typical: kernels, workspaces, buffers of collectives",
        ),
    )


def _context_parts(engine: EngineKind) -> tuple[MemoryPart, ...]:
    if engine not in (EngineKind.SGLANG, EngineKind.TRTLLM):
        return ()
    because = "typical: the driver's context with its modules, outside of the engine's share"
    return (MemoryPart(name="driver's context", bytes=CONTEXT_BYTES, because=because),)


def _left_for_kv(
    parts: tuple[MemoryPart, ...], device: float, share: float, engine: EngineKind
) -> float:
    """Return the bytes left for KV, negative where the rest does not fit."""
    free = device - sum(part.bytes for part in parts)
    match engine:
        case EngineKind.SGLANG:
            beside = sum(part.bytes for part in parts if part.name == "libraries")
            weights = sum(part.bytes for part in parts if part.name.startswith("weights"))
            return min(share * (device - CONTEXT_BYTES - beside) - weights, free)
        case EngineKind.TRTLLM:
            return share * free if free > 0.0 else free
        case _:
            return free - (1.0 - share) * device


def _kept_free(parts: tuple[MemoryPart, ...], kv: float, device: float, because: str) -> MemoryPart:
    taken = sum(part.bytes for part in parts) + kv
    return MemoryPart(name="kept free", bytes=device - taken, because=because)


def _kept_because(share: float, engine: EngineKind) -> str:
    match engine:
        case EngineKind.SGLANG:
            return (
                f"weights and KV take {share:.0%} of what context and libraries leave; activations and graphs lie "
                "in the rest, and this is what they leave of it"
            )
        case EngineKind.TRTLLM:
            return f"KV takes {share:.0%} of what all else leaves"
        case _:
            return (
                f"the engine takes {share:.0%} of the device; the driver's context lies in the rest"
            )


def _fit(parts: tuple[MemoryPart, ...], layout: Layout, need: KvNeed, room: _Room) -> MemoryFit:
    groups = layout.attention_dp
    streams = max(0.0, room.kv / need.stream_bytes) * groups if need.stream_bytes else 0.0
    fits = streams >= HEADROOM_STREAMS * groups
    return MemoryFit(
        parts=parts,
        device_bytes=room.device,
        usable_bytes=room.usable,
        kept=room.kept,
        kv_bytes=room.kv,
        kv_tokens=streams * room.context,
        kv_bytes_per_token_rank=need.token_bytes,
        streams=streams,
        fits=fits,
        because=f"{_fit_because(parts, need, room, streams, fits)}; KV: {need.because}",
    )


def _fit_because(
    parts: tuple[MemoryPart, ...], need: KvNeed, room: _Room, streams: float, fits: bool
) -> str:
    taken = sum(part.bytes for part in parts) / GIB
    size = (
        f"{taken:.1f} GiB before KV of {room.usable / GIB:.1f} GiB usable of "
        f"{room.device / GIB:.1f} GiB {room.told}"
    )
    kv = room.kv / GIB
    if fits:
        return f"{size}; {kv:.1f} GiB for KV hold {streams:.1f} streams of {room.context:,} tokens"
    if kv <= 0.0:
        return f"{size}: nothing is left for KV, {-kv:.1f} GiB are missing"
    short = need.stream_bytes / GIB - kv
    return (
        f"{size}; {kv:.1f} GiB for KV do not hold one stream of {room.context:,} tokens, "
        f"{short:.1f} GiB are missing"
    )
