"""Roofline: what a model's steps must do at least, how long that takes at least, what part of a ceiling was reached.

Per device, with d devices in a tensor-parallel group (operations count a multiplication and an addition as two):

    decode step of b streams at context c:
        operations   b x (2 x multiplied parameters of a token + 4 x heads x head size x sum over layers of context) / d
        bytes        weights touched / d + b x KV of c tokens that one rank holds
    prefill of n tokens after p cached ones:
        operations   2 n x (multiplied parameters - output matrix) / d
                     + 4 x heads x head size x layers x (n p + n^2 / 2) / d
        bytes        weights touched / d
    collectives (two all-reduces a layer): 4 x layers x tokens x hidden x bytes per value x (d - 1) / d, per device

Latent attention (MLA) is counted as decode computes it, on the compressed vectors: an upper estimate for its prefill.
Of E experts with k a token, b tokens touch E x (1 - (1 - k/E)^b) if they choose evenly; skewed choices touch fewer.
A step cannot be shorter than its longest of the three, so measured time over that is a share of a ceiling; no step
overlaps perfectly, and a share that is far below all ceilings means that something else takes the time (kernel starts,
the host, waiting). A share above 1 means that a fact is wrong: the model, the device, the batch, or the time.

Source: Williams, Waterman, Patterson, "Roofline", 2009; all-reduce as a ring, Patarasu and Yuan, 2009.
"""

from typing import Final

import msgspec

from trimtab.core.served import Accelerator, ModelShape
from trimtab.core.types import Resource
from trimtab.diagnosis.roofline_layout import kv_bytes_per_rank

ACTIVATION_BYTES: Final = 2.0
CEILING_NEAR_SHARE: Final = 0.5
"""From this share of a ceiling on, that ceiling is taken to bind; below all of them something else takes the time."""

CEILING_BROKEN_SHARE: Final = 1.05
"""Above this share a fact must be wrong; up to it, clocks and rounding explain it."""


class Work(msgspec.Struct, frozen=True, kw_only=True):
    """What one device does in one step; None where the model's facts do not tell.

    `tokens`: how many tokens the step computes, over all streams.
    """

    tokens: float
    operations: float | None
    weight_bytes: float | None
    kv_bytes: float | None
    collective_bytes: float = 0.0

    @property
    def bytes(self) -> float | None:
        """Bytes read from memory."""
        if self.weight_bytes is None or self.kv_bytes is None:
            return None
        return self.weight_bytes + self.kv_bytes

    @property
    def intensity(self) -> float | None:
        """Operations per byte of memory; a device's own ratio divides memory-bound from compute-bound."""
        return None if not self.bytes or self.operations is None else self.operations / self.bytes


class Floors(msgspec.Struct, frozen=True, kw_only=True):
    """The least milliseconds that each resource allows for a step; None is unknown."""

    compute_ms: float | None
    memory_ms: float | None
    communication_ms: float | None

    @property
    def by_resource(self) -> tuple[tuple[Resource, float], ...]:
        """The known floors, the highest first."""
        pairs = (
            (Resource.COMPUTE, self.compute_ms),
            (Resource.MEMORY_BANDWIDTH, self.memory_ms),
            (Resource.COMMUNICATION, self.communication_ms),
        )
        known = [(resource, ms) for resource, ms in pairs if ms is not None]
        return tuple(sorted(known, key=lambda pair: -pair[1]))

    @property
    def floor_ms(self) -> float | None:
        """The least the whole step can take, None unless compute and memory are both known."""
        if self.compute_ms is None or self.memory_ms is None:
            return None
        return max(self.compute_ms, self.memory_ms, self.communication_ms or 0.0)


class Achieved(msgspec.Struct, frozen=True, kw_only=True):
    """The part (0 to 1) of each ceiling that a measured step reached, and what follows.

    `binds`: the ceiling that was come near to; None where all are far or unknown. `broken`: a share is above what can
    be, so a fact is wrong.
    """

    measured_ms: float
    compute_share: float | None
    memory_share: float | None
    communication_share: float | None
    binds: Resource | None
    broken: bool
    because: str


def decode_work(
    shape: ModelShape, *, batch: float, context_tokens: float, devices: int = 1
) -> Work:
    """Return one decode step of `batch` streams, each `context_tokens` long, on each of `devices`."""
    _check(batch, devices)
    multiplied = _multiplied(shape)
    attention = _attention_operations(shape, context_tokens)
    kv = kv_bytes_of(shape, context_tokens, devices)
    return Work(
        tokens=batch,
        operations=None
        if multiplied is None or attention is None
        else batch * (2.0 * multiplied + attention) / devices,
        weight_bytes=_weights_touched(shape, batch, devices),
        kv_bytes=None if kv is None else batch * kv,
        collective_bytes=_collective_bytes(shape, batch, devices),
    )


def prefill_work(
    shape: ModelShape, *, tokens: float, cached_tokens: float = 0.0, devices: int = 1
) -> Work:
    """Return the prefill of `tokens` uncached tokens of one prompt after `cached_tokens` on each of `devices`."""
    _check(tokens, devices)
    multiplied = _multiplied(shape)
    # A token attends to what stands before it: on average to the cached ones and half of the new ones.
    attention = _attention_operations(shape, cached_tokens + tokens / 2.0)
    # The output matrix is multiplied for the last token only.
    head = (shape.vocabulary or 0) * (shape.hidden or 0)
    return Work(
        tokens=tokens,
        operations=None
        if multiplied is None or attention is None
        else (tokens * (2.0 * (multiplied - head) + attention) + 2.0 * head) / devices,
        weight_bytes=_weights_touched(shape, tokens, devices),
        kv_bytes=kv_bytes_of(shape, cached_tokens, devices),
        collective_bytes=_collective_bytes(shape, tokens, devices),
    )


def _check(tokens: float, devices: int) -> None:
    if tokens <= 0 or devices < 1:
        raise ValueError(f"a step needs tokens and a device, got {tokens} on {devices}")


def kv_bytes_of(shape: ModelShape, context_tokens: float, devices: int = 1) -> float | None:
    """Bytes of KV of one stream on each device; layers with a window keep no more than that."""
    each = kv_bytes_per_rank(shape, devices)
    if each is None or not shape.layers:
        return None
    return each / shape.layers * _layer_tokens(shape, shape.layers, context_tokens)


def _layer_tokens(shape: ModelShape, layers: int, context_tokens: float) -> float:
    """Tokens in sight, summed over the layers."""
    windowed = min(layers, shape.windowed_layers) if shape.window_tokens else 0
    near = min(context_tokens, float(shape.window_tokens or 0))
    return (layers - windowed) * context_tokens + windowed * near


def _multiplied(shape: ModelShape) -> float | None:
    if shape.active_parameters is None:
        return None
    return shape.active_parameters - shape.lookup_parameters


def _attention_operations(shape: ModelShape, context_tokens: float) -> float | None:
    """Operations of one token's attention over all layers: two products of two operations a value."""
    if not shape.layers or not shape.heads or not shape.head_size:
        return None
    layers = shape.layers - shape.linear_layers
    return 4.0 * shape.heads * shape.head_size * _layer_tokens(shape, layers, context_tokens)


def _weights_touched(shape: ModelShape, tokens: float, devices: int) -> float | None:
    if shape.weight_bytes is None:
        return None
    always = shape.weight_bytes - shape.lookup_bytes - shape.expert_bytes
    return (always + shape.expert_bytes * experts_touched_share(shape, tokens)) / devices


def experts_touched_share(shape: ModelShape, tokens: float) -> float:
    """Part (0 to 1) of the routed experts that a step of `tokens` tokens reads, if they choose evenly."""
    if not shape.experts or not shape.experts_per_token:
        return 1.0
    return float(1.0 - (1.0 - shape.experts_per_token / shape.experts) ** max(1.0, tokens))


def _collective_bytes(shape: ModelShape, tokens: float, devices: int) -> float:
    if devices < 2 or not shape.layers or not shape.hidden:
        return 0.0
    moved = 4.0 * shape.layers * tokens * shape.hidden * ACTIVATION_BYTES
    return moved * (devices - 1) / devices


def floors_of(work: Work, device: Accelerator, *, operand_bits: int = 16) -> Floors:
    """Return the least times of a step on a device. `operand_bits` 8 only if weights and activations are 8 bit."""
    rate = device.flops_8bit if operand_bits == 8 else device.flops_16bit
    communication = _ms(work.collective_bytes, device.link_bytes_per_s)
    return Floors(
        compute_ms=_ms(work.operations, rate),
        memory_ms=_ms(work.bytes, device.memory_bytes_per_s),
        communication_ms=communication if work.collective_bytes else 0.0,
    )


def _ms(amount: float | None, per_s: float | None) -> float | None:
    return None if amount is None or not per_s else 1000.0 * amount / per_s


def achieved(floors: Floors, measured_ms: float) -> Achieved:
    """Compare a measured step with its floors; raises ValueError unless the time is above 0."""
    if measured_ms <= 0.0:
        raise ValueError(f"a step takes time, got {measured_ms} ms")
    ranked = floors.by_resource
    top = ranked[0][1] / measured_ms if ranked else 0.0
    broken = top > CEILING_BROKEN_SHARE
    near = bool(ranked) and not broken and top >= CEILING_NEAR_SHARE
    return Achieved(
        measured_ms=measured_ms,
        compute_share=_share(floors.compute_ms, measured_ms),
        memory_share=_share(floors.memory_ms, measured_ms),
        communication_share=_share(floors.communication_ms, measured_ms),
        binds=ranked[0][0] if near else None,
        broken=broken,
        because=_because(floors, measured_ms, broken),
    )


def _share(floor_ms: float | None, measured_ms: float) -> float | None:
    return None if floor_ms is None else floor_ms / measured_ms


def _because(floors: Floors, measured_ms: float, broken: bool) -> str:
    ranked = floors.by_resource
    if not ranked:
        return "neither the model's work nor the device's rates are known"
    parts = ", ".join(
        f"{resource.value.replace('_', ' ')} needs at least {ms:.3g} ms ({ms / measured_ms:.0%})"
        for resource, ms in ranked
        if ms > 0.0
    )
    if broken:
        return f"a step of {measured_ms:.3g} ms is shorter than it can be: {parts}; a fact is wrong"
    missing = [
        name
        for name, ms in (("compute", floors.compute_ms), ("memory bandwidth", floors.memory_ms))
        if ms is None
    ]
    unknown = f"; the ceiling of {' and '.join(missing)} is unknown" if missing else ""
    return f"of a step of {measured_ms:.3g} ms {parts or 'nothing is explained'}{unknown}"


def kv_capacity_tokens(
    shape: ModelShape, device: Accelerator, *, devices: int = 1, memory_share: float = 0.9
) -> float | None:
    """Tokens of KV that fit beside the weights in a share of the memory; 0 where the weights do not fit.

    Counts full context in every layer, as engines reserve it that do not know windows. None is unknown.
    """
    each = kv_bytes_per_rank(shape, devices)
    if device.memory_bytes is None or shape.weight_bytes is None or not each:
        return None
    return max(0.0, (device.memory_bytes * memory_share - shape.weight_bytes / devices) / each)
