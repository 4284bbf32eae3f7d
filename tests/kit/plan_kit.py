"""Models, clusters and estimators for tests of planning: times from a table or from a simple law, no engine."""

from collections.abc import Callable, Mapping

import msgspec

from trimtab.core.layout import (
    Cluster,
    Demand,
    EstimateSource,
    Expected,
    Layout,
    Link,
    MemoryFit,
    MemoryPart,
    Span,
)
from trimtab.core.served import Accelerator, ModelShape

GB = 1e9

NVLINK = Link(name="NVLink", bytes_per_s=450e9, latency_us=5.0, peer_access=True, source="test")
NO_PEER = Link(
    name="PCIe no peer", bytes_per_s=15e9, latency_us=25.0, peer_access=False, source="test"
)
UNKNOWN_LINK = Link(
    name="unknown", bytes_per_s=None, latency_us=None, peer_access=None, source="test"
)
NETWORK = Link(
    name="InfiniBand 400", bytes_per_s=50e9, latency_us=8.0, peer_access=None, source="test"
)
DEVICE = Accelerator(
    name="test device",
    flops_16bit=1e15,
    flops_8bit=2e15,
    memory_bytes=80 * GB,
    memory_bytes_per_s=3e12,
    link_bytes_per_s=450e9,
    source="test",
)


def dense(
    *, heads: int = 64, kv_heads: int = 8, layers: int = 80, weight_gb: float = 140.0
) -> ModelShape:
    """A dense model; its KV is that of 128-wide heads at 16 bit."""
    return ModelShape(
        name="dense",
        source="test",
        layers=layers,
        hidden=heads * 128,
        heads=heads,
        kv_heads=kv_heads,
        head_size=128,
        vocabulary=32_000,
        parameters=weight_gb * GB / 2,
        active_parameters=weight_gb * GB / 2,
        weight_bytes=weight_gb * GB,
        kv_bytes_per_token=float(layers * kv_heads * 128 * 2 * 2),
    )


def mixture(
    *,
    experts: int = 256,
    per_token: int = 8,
    latent: bool = True,
    layers: int = 60,
    weight_gb: float = 680.0,
) -> ModelShape:
    """A mixture of experts, with a latent KV unless told otherwise."""
    base = dense(heads=128, kv_heads=1 if latent else 8, layers=layers, weight_gb=weight_gb)
    return msgspec.structs.replace(
        base,
        name="mixture",
        latent_kv=latent,
        experts=experts,
        experts_per_token=per_token,
        expert_bytes=0.95 * weight_gb * GB,
        active_parameters=0.05 * weight_gb * GB,
    )


def cluster(devices: int = 8, nodes: int = 1, link: Link = NVLINK) -> Cluster:
    """Nodes of equal devices; several are joined by a network."""
    return Cluster(
        devices=devices, nodes=nodes, link=link, node_link=NETWORK if nodes > 1 else None
    )


def span(value: float, spread: float | None = 0.2) -> Span:
    """An expected time that may be off by a share both ways."""
    if spread is None:
        return Span(value=value)
    return Span(value=value, low=value / (1.0 + spread), high=value * (1.0 + spread))


class LawEstimator:
    """Memory by weights over ranks; a step's time by weights, streams and a toll for each doubling of ranks.

    `tpot_ms`: overrides the step's time of layouts. Each replica runs at most as many streams as its KV holds.
    """

    def __init__(
        self,
        model: ModelShape,
        *,
        device_gb: float = 80.0,
        tpot_ms: Callable[[Layout, float], float] | None = None,
        spread: float | None = 0.2,
        streams: Callable[[Layout], float] | None = None,
    ) -> None:
        self._model = model
        self._device_bytes = device_gb * GB
        self._tpot_ms = tpot_ms or self._law
        self._spread = spread
        self._streams = streams
        self.calls = 0

    def fit(self, layout: Layout, demand: Demand) -> MemoryFit:
        """Weights are cut over all devices of a replica; KV over heads."""
        weights = (self._model.weight_bytes or 0.0) / layout.devices_per_replica
        usable = 0.9 * self._device_bytes
        left = usable - weights - 2.0 * GB
        whole = demand.context_tokens or demand.input_tokens + demand.output_tokens
        each = (self._model.kv_bytes_per_token or 1.0) / layout.pp
        each /= min(layout.tp, self._model.kv_heads or 1)
        streams = max(0.0, left / (each * whole)) * layout.attention_dp
        if self._streams is not None and left > 0:
            streams = self._streams(layout)
        return MemoryFit(
            parts=(
                MemoryPart(name="weights", bytes=weights, because="cut over the devices"),
                MemoryPart(name="runtime", bytes=2.0 * GB, because="a round figure"),
            ),
            device_bytes=self._device_bytes,
            usable_bytes=usable,
            kept=MemoryPart(
                name="kept free", bytes=self._device_bytes - usable, because="a tenth of the device"
            ),
            kv_bytes=left,
            kv_tokens=max(0.0, streams * whole),
            kv_bytes_per_token_rank=each,
            streams=streams,
            fits=streams >= 1.0,
            because=f"{left / GB:.1f} GB are left for KV",
        )

    def _law(self, layout: Layout, batch: float) -> float:
        weights_ms = 1000.0 * (self._model.weight_bytes or 0.0) / 3e12 / layout.devices_per_replica
        if self._model.experts:
            weights_ms *= 0.2
        return weights_ms + 1.0 * (layout.devices_per_replica > 1) + 0.05 * batch / layout.tp

    def expected(self, layout: Layout, demand: Demand) -> Expected:
        """Streams run until the KV is full; what comes on top waits."""
        self.calls += 1
        room = self.fit(layout, demand).streams
        rate = demand.rate_per_s
        if rate is None:
            asked = demand.concurrency or 1.0
            batch, used = min(asked, room), None
            step = self._tpot_ms(layout, batch)
        else:
            step = self._tpot_ms(layout, 1.0)
            batch = max(1.0, rate * demand.output_tokens * step / 1000.0)
            step = self._tpot_ms(layout, batch)
            used = rate * demand.output_tokens * step / 1000.0 / max(1.0, room)
        prefill = 0.02 * demand.input_tokens / layout.devices_per_replica
        return Expected(
            layout=layout,
            batch=batch,
            ttft_ms=span(prefill * (1.0 + batch / 8.0), self._spread),
            tpot_ms=span(step, self._spread),
            queue_ms=0.0,
            prefill_ms=prefill,
            step_ms=step,
            output_tokens_per_s=(rate * demand.output_tokens if rate else 1000.0 * batch / step),
            communication_share=0.0 if layout.devices_per_replica == 1 else 0.2,
            source=EstimateSource.ROOFLINE,
            utilisation=used,
        )


def table(times: Mapping[str, float]) -> Callable[[Layout, float], float]:
    """Give the measured time per token of a replica's layout by its label, whatever its load; others are slow."""

    def tpot_ms(layout: Layout, batch: float) -> float:
        return times.get(layout.label, 10_000.0)

    return tpot_ms
