"""Step times by a roofline, for devices and models that no kernel was measured for: what the work takes at usual rates.

    step  = max(operations / (peak x 0.6), bytes / (bandwidth x 0.75)) + layers x 20 us + collectives
    collectives: two all-reduces a layer on a ring, each 2 (d - 1) / d x bytes / rate + 2 x latency

Operations and bytes are those of `diagnosis.roofline`, bytes of weights those of the fullest rank. The shares of peak
rates are what large matrices and long reads reach, and the time per layer is what small kernels take one after another;
they are usual values, not measured on the device: nine of ten measured servers were off by up to 2.1 times per output
token and 3 times for the first one (`measured_errors`).
"""

from typing import Final

import msgspec

from trimtab.core.layout import EstimateSource, Layout, Link
from trimtab.core.model_parts import PartName
from trimtab.core.served import Accelerator, ModelShape
from trimtab.diagnosis.roofline import (
    ACTIVATION_BYTES,
    Work,
    decode_work,
    experts_touched_share,
    floors_of,
    kv_bytes_of,
    prefill_work,
)
from trimtab.planning.correction import Phase
from trimtab.planning.kernel_port import Parted
from trimtab.planning.measured_errors import roofline_off_by
from trimtab.planning.model_parts import rank_weights

COMPUTE_SHARE: Final = 0.6
BANDWIDTH_SHARE: Final = 0.75
LAYER_MS: Final = 0.02
MESSAGE_US: Final = 10.0
"""Latency of a message where the link does not tell it."""

NO_KERNELS: Final = "no kernel was measured for this"
_OFF_BY: Final = (
    f"nine of ten are off by up to {roofline_off_by(Phase.DECODE):.1f} times per output token and "
    f"{roofline_off_by(Phase.FIRST_TOKEN):.1f} times for the first one"
)
_COLLECTIVES_PER_LAYER: Final = 2
_LOOKED_UP: Final = (PartName.EMBEDDING,)


def collective_ms(model: ModelShape, ranks: int, tokens: float, link: Link | None) -> float:
    """Return the collectives of one step of `tokens` tokens over `ranks`; 0 on one, or where nothing is known."""
    if ranks < 2 or not model.layers or not model.hidden or link is None:
        return 0.0
    latency_ms = (MESSAGE_US if link.latency_us is None else link.latency_us) / 1000.0
    moved = 2.0 * (ranks - 1) / ranks * tokens * model.hidden * ACTIVATION_BYTES
    sent_ms = 0.0 if not link.bytes_per_s else 1000.0 * moved / link.bytes_per_s
    return _COLLECTIVES_PER_LAYER * model.layers * (sent_ms + 2.0 * latency_ms)


class RooflineTimes:
    """Times of one layout computed from a model's sizes and a device's rates."""

    def __init__(
        self,
        model: ModelShape,
        accelerator: Accelerator,
        layout: Layout,
        *,
        operand_bits: int = 16,
        kv_share: float = 1.0,
        link: Link | None = None,
        exchange: bool = True,
        experts: bool = True,
        because: str = NO_KERNELS,
    ) -> None:
        """`kv_share`: bytes of a value in the KV cache over those of 16 bit. `link`: joins the ranks of a stage.

        `exchange`, `experts` False: leave those out of a mixture's steps. `because`: why no measured kernels are used.
        """
        self.source = EstimateSource.ROOFLINE
        self.extended = False
        self.notes: tuple[str, ...] = (
            f"step times from a roofline at usual rates: {because}; {_OFF_BY}",
        )
        self._model = model
        self._device = accelerator
        self._layout = layout
        self._operand_bits = 8 if operand_bits <= 8 else 16
        self._kv_share = kv_share
        self._link = link
        self._exchange = exchange
        whole = rank_weights(model, Layout(tp=layout.tp, attention_dp=layout.attention_dp,
                                           moe_tp=layout.moe_tp, moe_ep=layout.moe_ep))  # fmt: skip
        parts = whole.parts if whole else ()
        self._always = sum(
            part.bytes for part in parts if part.name not in (*_LOOKED_UP, PartName.EXPERTS)
        )
        self._experts = sum(part.bytes for part in parts if part.name is PartName.EXPERTS) * experts
        # what experts multiply for a token is left out of the work, which counts it
        self._left_out = 0.0 if experts else _expert_operations(model) / layout.tp

    def decode_ms(self, batch: float, context_tokens: float) -> float:
        """Return one decode step of a batch at a context."""
        work = decode_work(
            self._model, batch=batch, context_tokens=context_tokens, devices=self._layout.tp
        )
        kv = kv_bytes_of(self._model, context_tokens, self._layout.tp) or 0.0
        return self._step_ms(work, batch, batch * kv * self._kv_share)

    def communication_ms(self, batch: float, context_tokens: float) -> float | None:
        """Return the collectives' part of a decode step."""
        return self._collectives_ms(batch)

    def prefill_ms(
        self, prompt_tokens: float, cached_tokens: float, *, busy_share: float = 1.0
    ) -> float:
        """Return one step that computes a whole prompt, with all attention groups at it."""
        fresh = max(1.0, prompt_tokens - cached_tokens)
        work = prefill_work(
            self._model, tokens=fresh, cached_tokens=cached_tokens, devices=self._layout.tp
        )
        return self._step_ms(work, fresh, 0.0)

    def beside_ms(
        self,
        chunk_tokens: float,
        prompt_tokens: float,
        cached_tokens: float,
        batch: float,
        *,
        busy_share: float = 1.0,
    ) -> float:
        """Return what a prompt's chunk adds to a step of decoding streams; the weights are read anyway."""
        before = cached_tokens + max(0.0, (prompt_tokens - cached_tokens - chunk_tokens) / 2.0)
        work = prefill_work(
            self._model, tokens=chunk_tokens, cached_tokens=before, devices=self._layout.tp
        )
        compute = self._compute_ms(work)
        return compute + self._collectives_ms(batch + chunk_tokens) - self._collectives_ms(batch)

    def _compute_ms(self, work: Work) -> float:
        operations = max(0.0, (work.operations or 0.0) - self._left_out * work.tokens)
        left = msgspec.structs.replace(work, operations=operations)
        floors = floors_of(left, self._device, operand_bits=self._operand_bits)
        return (floors.compute_ms or 0.0) / COMPUTE_SHARE

    def _step_ms(self, work: Work, tokens: float, kv_bytes: float) -> float:
        rate = self._device.memory_bytes_per_s
        touched = experts_touched_share(self._model, tokens * self._layout.attention_dp)
        read = (self._always + self._experts * touched) or (work.weight_bytes or 0.0)
        memory = 0.0 if not rate else 1000.0 * (read + kv_bytes) / rate / BANDWIDTH_SHARE
        layers = (self._model.layers or 0) * LAYER_MS
        return max(self._compute_ms(work), memory) + layers + self._collectives_ms(tokens)

    def _collectives_ms(self, tokens: float) -> float:
        """Return all-reduces of attention and feed forward; of attention groups, the exchange of their tokens."""
        layout = self._layout
        if layout.attention_dp == 1:
            dealt = layout.tp > 1 and (self._exchange or layout.moe_ep == layout.moe_tp == 1)
            whole = collective_ms(self._model, layout.tp, tokens, self._link)
            return whole if dealt else whole / _COLLECTIVES_PER_LAYER
        own = collective_ms(self._model, layout.tp, tokens, self._link) / _COLLECTIVES_PER_LAYER
        ranks = layout.tp * layout.attention_dp
        gathered = tokens * layout.attention_dp
        both = collective_ms(self._model, ranks, gathered, self._link) / _COLLECTIVES_PER_LAYER
        return own + (both if self._exchange else 0.0)


def parted_roofline(
    model: ModelShape,
    accelerator: Accelerator,
    layout: Layout,
    *,
    operand_bits: int = 16,
    kv_share: float = 1.0,
    link: Link | None = None,
    because: str = NO_KERNELS,
) -> Parted:
    """Return a mixture's times, and those without its exchange and without its experts."""

    def times(*, exchange: bool = True, experts: bool = True) -> RooflineTimes:
        return RooflineTimes(
            model, accelerator, layout, operand_bits=operand_bits, kv_share=kv_share, link=link,
            exchange=exchange, experts=experts, because=because,
        )  # fmt: skip

    return Parted(
        whole=times(),
        no_exchange=times(exchange=False),
        no_experts=times(exchange=False, experts=False),
    )


def _expert_operations(model: ModelShape) -> float:
    """Return what the routed experts multiply and add for one token."""
    stored = sum(part.parameters for part in model.parts if part.name is PartName.EXPERTS)
    chosen = (model.experts_per_token or 0) / (model.experts or 1)
    return 2.0 * stored * chosen
