"""The nouns of planning: a parallel layout, the link between devices, what is asked of them, and what is expected.

A layout says how one copy of a model is spread and how many copies there are. Attention is dealt out by tensor
parallelism over `tp` ranks, copied over `attention_dp` groups that take different requests, and cut by depth into `pp`
stages. A mixture's routed experts live on the same `tp` x `attention_dp` ranks of a stage, dealt out as `moe_ep` groups
of whole experts, each expert cut over `moe_tp` ranks.
"""

from enum import StrEnum

import msgspec

NEAREST_SAID = 6
"""An error names no more choices than a reader takes in."""


class PlanInputError(ValueError):
    """An input that cannot be. `field`: which one, as the caller named it; `nearest`: valid values next to it.

    Its message is one sentence that names both.
    """

    def __init__(self, field: str, problem: str, nearest: tuple[str, ...] = ()) -> None:
        more = len(nearest) - NEAREST_SAID
        rest = f" or {more} more" if more > 0 else ""
        near = f"; nearest valid: {' or '.join(nearest[:NEAREST_SAID])}{rest}" if nearest else ""
        super().__init__(f"{field}: {problem}{near}")
        self.field = field
        self.nearest = nearest


class Layout(msgspec.Struct, frozen=True, kw_only=True, order=True):
    """How copies of a model are spread over devices. `moe_tp` and `moe_ep` are 1 for dense models.

    For a mixture of experts `moe_tp` x `moe_ep` = `tp` x `attention_dp`.
    """

    tp: int = 1
    pp: int = 1
    attention_dp: int = 1
    moe_tp: int = 1
    moe_ep: int = 1
    replicas: int = 1

    @property
    def devices_per_replica(self) -> int:
        """Devices that hold one copy of the model."""
        return self.tp * self.pp * self.attention_dp

    @property
    def devices(self) -> int:
        """All devices."""
        return self.devices_per_replica * self.replicas

    @property
    def label(self) -> str:
        """The layout in words such as "TP4 EP4 PP2 x3"; "one device" for a single one."""
        sizes = (
            ("TP", self.tp),
            ("DP", self.attention_dp),
            ("EP", self.moe_ep),
            ("PP", self.pp),
        )
        words = [f"{name}{size}" for name, size in sizes if size > 1]
        spread = " ".join(words) or "one device"
        return spread if self.replicas == 1 else f"{spread} x{self.replicas}"


class Link(msgspec.Struct, frozen=True, kw_only=True):
    """What joins devices. Bytes per second in one direction for each device; latency of one message in microseconds.

    `peer_access`: devices reach each other's memory without the host; None is unknown.
    """

    name: str
    bytes_per_s: float | None
    latency_us: float | None
    peer_access: bool | None
    source: str


class Cluster(msgspec.Struct, frozen=True, kw_only=True):
    """The devices there are: `devices` on each of `nodes`, joined by `link` in a node and `node_link` between nodes."""

    devices: int
    nodes: int
    link: Link
    node_link: Link | None = None

    @property
    def total(self) -> int:
        """All devices."""
        return self.devices * self.nodes

    @property
    def joint(self) -> Link | None:
        """The link between nodes; one node is joined to no other."""
        return self.node_link if self.nodes > 1 else None


class Demand(msgspec.Struct, frozen=True, kw_only=True):
    """What traffic asks of the whole fleet: mean tokens of a request, and streams at once or requests per second.

    `prefix_share`: part (0 to 1) of input tokens that a cache holds. `context_tokens`: the longest context to be
    possible; None: input plus output. `draft_tokens` and `draft_acceptance`: speculation, 0 tokens without.
    """

    input_tokens: int
    output_tokens: int
    concurrency: float | None = None
    rate_per_s: float | None = None
    prefix_share: float = 0.0
    context_tokens: int | None = None
    draft_tokens: int = 0
    draft_acceptance: float | None = None


class Targets(msgspec.Struct, frozen=True, kw_only=True):
    """What users must get, in milliseconds; None asks nothing. Means, as estimates are means."""

    ttft_ms: float | None = None
    tpot_ms: float | None = None


class EstimateSource(StrEnum):
    """What an estimate rests on, the best first."""

    MEASURED = "measured"
    KERNEL_TABLES = "kernel_tables"
    EXTENDED_TABLES = "extended_tables"
    """Kernel tables with parts of a step by a formula that no measured server stands behind."""
    ROOFLINE = "roofline"


class Span(msgspec.Struct, frozen=True, kw_only=True):
    """An expected value with the interval that holds the measured one in `cover` of cases; None bounds are unknown."""

    value: float
    low: float | None = None
    high: float | None = None
    cover: float = 0.9


class MemoryPart(msgspec.Struct, frozen=True, kw_only=True):
    """One use of a device's memory in bytes, and how the figure came about."""

    name: str
    bytes: float
    because: str


class MemoryFit(msgspec.Struct, frozen=True, kw_only=True):
    """Every byte of the fullest rank: `parts` before the KV cache, what is left for it, and what is kept free.

    The three sum up to `device_bytes`, the memory of a device; parts and KV alone to `usable_bytes`. `kv_bytes`: left
    for KV on a rank, negative where the rest does not even fit; `kv_tokens`: tokens of KV a replica holds at once;
    `streams`: how many streams of the longest context those are; `fits`: at least one stream does, with headroom kept.
    """

    parts: tuple[MemoryPart, ...]
    device_bytes: float
    usable_bytes: float
    kept: MemoryPart
    kv_bytes: float
    kv_tokens: float
    kv_bytes_per_token_rank: float
    streams: float
    fits: bool
    because: str


class Expected(msgspec.Struct, frozen=True, kw_only=True):
    """What a layout is expected to do under a demand. Milliseconds; tokens per second of all replicas together.

    `batch`: running streams of one replica; `ttft_ms` holds waiting (`queue_ms`), prefill and scheduling;
    `communication_share`: part (0 to 1) of a decode step that collectives take, None where it is not known.
    """

    layout: Layout
    batch: float
    ttft_ms: Span
    tpot_ms: Span
    queue_ms: float
    prefill_ms: float
    step_ms: float
    output_tokens_per_s: float
    communication_share: float | None
    source: EstimateSource
    utilisation: float | None = None
    notes: tuple[str, ...] = ()
