"""The nouns of servers that somebody else runs: what their own metrics say, read into the same words for every engine.

A `ServerSample` is one scrape of one source. Series that carry a rank (data-parallel engines, workers) stay apart, so
that a rank that vanished is unknown and one that is saturated is seen; whoever wants the server's total adds them.
What a page does not have is not here: absent is unknown, never zero.
"""

from collections.abc import Mapping
from enum import StrEnum

import msgspec

from trimtab.core.model_parts import WeightPart


class EngineKind(StrEnum):
    """Whose names a page is written in."""

    VLLM = "vllm"
    SGLANG = "sglang"
    LLAMACPP = "llamacpp"
    TGI = "tgi"
    DYNAMO_FRONTEND = "dynamo_frontend"
    DYNAMO_WORKER = "dynamo_worker"
    TRTLLM = "trtllm"
    DCGM = "dcgm"
    NODE = "node"
    UNKNOWN = "unknown"


class Gauge(StrEnum):
    """What is read as it is now. Shares are 0 to 1 whatever unit the page uses."""

    RUNNING = "running_requests"
    WAITING = "waiting_requests"
    SWAPPED = "swapped_requests"
    KV_USED_SHARE = "kv_used_share"
    KV_CAPACITY_TOKENS = "kv_capacity_tokens"
    PREFIX_HIT_SHARE = "prefix_hit_share"
    OUTPUT_TOKENS_PER_S = "output_tokens_per_s"
    ACCEPTANCE_SHARE = "acceptance_share"
    ACCEPTED_LENGTH = "accepted_length"
    SLOTS_BUSY_PER_STEP = "slots_busy_per_step"
    GPU_MEMORY_USED_BYTES = "gpu_memory_used_bytes"
    GPU_MEMORY_TOTAL_BYTES = "gpu_memory_total_bytes"
    GPU_BUSY_SHARE = "gpu_busy_share"
    GPU_POWER_W = "gpu_power_w"
    GPU_POWER_LIMIT_W = "gpu_power_limit_w"
    HOST_MEMORY_USED_BYTES = "host_memory_used_bytes"
    HOST_MEMORY_TOTAL_BYTES = "host_memory_total_bytes"
    CONTEXT_TOKENS_MAX = "context_tokens_max"
    REQUESTS_MAX = "requests_max"
    BATCH_TOKENS_MAX = "batch_tokens_max"


class Counter(StrEnum):
    """What only grows while a server lives; a fall is a restart."""

    PROMPT_TOKENS = "prompt_tokens"
    OUTPUT_TOKENS = "output_tokens"
    CACHED_TOKENS = "cached_tokens"
    PREFIX_QUERIES = "prefix_queries_tokens"
    PREFIX_HITS = "prefix_hits_tokens"
    EXTERNAL_QUERIES = "external_queries_tokens"
    EXTERNAL_HITS = "external_hits_tokens"
    PREEMPTIONS = "preemptions"
    REQUESTS_FINISHED = "requests_finished"
    REQUESTS_FAILED = "requests_failed"
    REQUESTS_REFUSED = "requests_refused"
    DRAFTS = "drafts"
    DRAFTED_TOKENS = "drafted_tokens"
    ACCEPTED_TOKENS = "accepted_tokens"
    PROMPT_SECONDS = "prompt_seconds"
    DECODE_SECONDS = "decode_seconds"
    DECODE_STEPS = "decode_steps"
    TRANSFERS = "transfers"
    TRANSFER_BYTES = "transfer_bytes"
    TRANSFER_FAILURES = "transfer_failures"
    TRANSFERS_EXPIRED = "transfers_expired"
    TRANSFER_DESCRIPTORS = "transfer_descriptors"


class Distribution(StrEnum):
    """What is read as a histogram; times in seconds, lengths in tokens."""

    TTFT = "ttft_s"
    CHUNK_GAP = "chunk_gap_s"
    TPOT = "tpot_s"
    E2E = "e2e_s"
    QUEUE_TIME = "queue_time_s"
    PREFILL_TIME = "prefill_time_s"
    DECODE_TIME = "decode_time_s"
    PROMPT_LENGTH = "prompt_length_tokens"
    OUTPUT_LENGTH = "output_length_tokens"
    STEP_TOKENS = "step_tokens"
    TRANSFER_TIME = "transfer_time_s"
    TRANSFER_POST_TIME = "transfer_post_time_s"
    TRANSFER_SIZE = "transfer_size_bytes"


class Buckets(msgspec.Struct, frozen=True, kw_only=True):
    """A histogram: cumulative counts at finite upper edges (ascending), the count of all, and the sum if told.

    `total` counts the +Inf bucket too: `total` minus the last cumulative count lies above the last edge.
    """

    edges: tuple[float, ...]
    cumulative: tuple[float, ...]
    total: float
    sum: float | None = None


class RankSample(msgspec.Struct, frozen=True, kw_only=True):
    """What one rank says. `rank` is the engine's own label ("0", "1"; "" where the page has no ranks).

    `accepted_by_position`: accepted draft tokens at each draft position, a counter each.
    """

    rank: str
    gauges: Mapping[Gauge, float] = {}
    counters: Mapping[Counter, float] = {}
    distributions: Mapping[Distribution, Buckets] = {}
    accepted_by_position: tuple[float, ...] = ()


class Note(msgspec.Struct, frozen=True, kw_only=True):
    """Something a reader must know about a page: a renamed metric, a unit that was converted, a series left out.

    `kind`: "conflict" (two sources of one value disagree), "unit", "name", "broken" (a series that cannot be), "limit".
    """

    kind: str
    text: str
    metric: str = ""


class ServerSample(msgspec.Struct, frozen=True, kw_only=True):
    """One scrape of one source at one time (seconds of the caller's clock).

    `configured`: what the engine says of its own configuration (`vllm:cache_config_info` and its like), as text.
    `started_at_s`: the process's start on the wall clock, if told. `names`: which of the page's metric names each
    value was read from, for `sources` in answers.
    """

    source: str
    at_s: float
    engine: EngineKind
    version: str | None = None
    model: str | None = None
    started_at_s: float | None = None
    ranks: tuple[RankSample, ...] = ()
    configured: Mapping[str, str] = {}
    names: Mapping[str, str] = {}
    notes: tuple[Note, ...] = ()

    def gauge_sum(self, gauge: Gauge) -> float | None:
        """Return the sum of a gauge over all ranks, None if no rank tells it."""
        told = [rank.gauges[gauge] for rank in self.ranks if gauge in rank.gauges]
        return sum(told) if told else None

    def counter_sum(self, counter: Counter) -> float | None:
        """Return the sum of a counter over all ranks, None if no rank tells it."""
        told = [rank.counters[counter] for rank in self.ranks if counter in rank.counters]
        return sum(told) if told else None


class ServerWindow(msgspec.Struct, frozen=True, kw_only=True):
    """What a source said over a stretch of time: rates and histograms of the window, gauges averaged over its scrapes.

    `lifetime`: there was one scrape only, so counters and histograms speak of the whole time since the start and
    `length_s` is unknown unless the page tells when the process started. `lost_ranks`: ranks seen before and not at
    the end. `restarts`: counter resets found between scrapes.
    """

    source: str
    engine: EngineKind
    version: str | None
    model: str | None
    lifetime: bool
    start_s: float
    end_s: float
    length_s: float | None
    scrapes: int
    ranks: tuple[RankSample, ...]
    """Per rank: gauges as means over the scrapes, counters and histograms as growth over the window."""
    gauges_max: tuple[Mapping[Gauge, float], ...] = ()
    """For each rank of `ranks`, the largest value of its gauges over the scrapes."""
    moments: tuple[Mapping[Gauge, float], ...] = ()
    """At each scrape, oldest first, running and waiting requests over `ranks`; empty where one of them was absent."""
    totals: tuple[RankSample, ...] = ()
    """Per rank, what the last scrape says: counters and histograms since the start of the server."""
    lost_ranks: tuple[str, ...] = ()
    restarts: int = 0
    configured: Mapping[str, str] = {}
    names: Mapping[str, str] = {}
    notes: tuple[Note, ...] = ()


class ModelShape(msgspec.Struct, frozen=True, kw_only=True):
    """What of a model decides operations and bytes. All counts are of the whole model; unknown fields are None.

    `kv_bytes_per_token` at the cache precision given; `weight_bytes` as stored; `active_parameters` are those that one
    token meets (all of them but for mixtures of experts). `source`: where it was read.

    `lookup_parameters`, `lookup_bytes`: those that are only looked up and never multiplied (an input embedding that is
    no output matrix too). `expert_bytes`: the part of `weight_bytes` that routed experts take. `latent_kv`: keys and
    values are one compressed vector that every rank needs whole (MLA); such a model has one KV head. `experts` and
    `experts_per_token`: the routed experts of a layer and how many a token meets, None for dense models.
    `window_tokens`, `windowed_layers`: how many layers keep only that many tokens of KV. `linear_layers`: layers that
    keep a state of fixed size instead of KV, `state_bytes` a stream over all of them. `parts`: the weights by what they
    are for, empty where only their total is known. `feed_forward`: the width of a dense layer, or of one expert.
    `context_tokens_max`: the longest context that the model was made for. `latent_rank`, `latent_expanded`: of MLA, the
    width of the compressed vector and what a head expands it to, keys and values together.
    """

    name: str
    source: str
    layers: int | None = None
    hidden: int | None = None
    heads: int | None = None
    kv_heads: int | None = None
    head_size: int | None = None
    vocabulary: int | None = None
    parameters: float | None = None
    active_parameters: float | None = None
    weight_bytes: float | None = None
    kv_bytes_per_token: float | None = None
    lookup_parameters: float = 0.0
    lookup_bytes: float = 0.0
    expert_bytes: float = 0.0
    latent_kv: bool = False
    experts: int | None = None
    experts_per_token: int | None = None
    window_tokens: int | None = None
    windowed_layers: int = 0
    linear_layers: int = 0
    state_bytes: float = 0.0
    feed_forward: int | None = None
    latent_rank: int | None = None
    latent_expanded: int | None = None
    context_tokens_max: int | None = None
    parts: tuple[WeightPart, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def kv_layers(self) -> int | None:
        """Layers that keep KV: all but those of linear attention."""
        return None if self.layers is None else self.layers - self.linear_layers


class Accelerator(msgspec.Struct, frozen=True, kw_only=True):
    """Peak rates of one device, dense, without sparsity. Bytes per second, operations per second, bytes.

    `measured`: found on this machine and not taken from a data sheet. `source`: the sheet or how it was measured.
    `visible_bytes`: what its driver gives to programs, which is not the figure on the sheet; None if nobody told.
    """

    name: str
    flops_16bit: float | None
    flops_8bit: float | None
    memory_bytes: float | None
    memory_bytes_per_s: float | None
    link_bytes_per_s: float | None
    source: str
    measured: bool = False
    visible_bytes: float | None = None
