"""What a person knows of servers that their metrics do not say: model, hardware, targets, configuration, measurements.

Every field may be left out: a rule that needs one that is missing says "cannot tell" and names it. All structs are
strict, so that a file of facts with a misspelt key is refused and not half read.
"""

from collections.abc import Mapping
from enum import StrEnum

import msgspec

from trimtab.core.cost import CostModel
from trimtab.core.served import Accelerator, ModelShape


class PromptTag(StrEnum):
    """What is known of the prompts beforehand."""

    NO_SHARED_PREFIX = "no shared prefix"
    SHARED_PREFIX = "shared prefix"


class Link(StrEnum):
    """How accelerators of one server reach each other."""

    NVLINK = "nvlink"
    PCIE_PEER = "pcie with peer access"
    PCIE = "pcie without peer access"


class Goal(StrEnum):
    """What a parallel layout is for."""

    THROUGHPUT = "throughput"
    LATENCY = "latency"


class ExpertExchange(StrEnum):
    """How ranks of an expert-parallel layout exchange tokens."""

    ALL_TO_ALL = "all-to-all"
    ALL_REDUCE = "all-reduce"


class _Strict(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A fact that refuses keys it does not know."""


class TpotRatio(_Strict, frozen=True, kw_only=True):
    """Measured TPOT with speculation over TPOT without it, at one batch; below 1 it pays."""

    batch: float
    ratio: float


class SpeculationFacts(_Strict, frozen=True, kw_only=True):
    """What was measured of speculation. Times in milliseconds.

    `ratios`: by batch. `is_on`: whether it drafts now. `batches`: those met live, in order. `step_ms`,
    `proposer_ms`: one decode step, and what drafting for it costs; `tokens_per_draft` are accepted ones.
    `waiting_share`: part of the test in which requests waited. `uncombinable`: what the engine's version cannot
    combine with speculation; `wanted_with`: what the traffic combines it with.
    """

    ratios: tuple[TpotRatio, ...] = ()
    is_on: bool | None = None
    batches: tuple[float, ...] = ()
    step_ms: float | None = None
    proposer_ms: float | None = None
    tokens_per_draft: float | None = None
    waiting_share: float | None = None
    uncombinable: tuple[str, ...] | None = None
    wanted_with: tuple[str, ...] = ()


class ArmTimes(_Strict, frozen=True, kw_only=True):
    """One side of a comparison as clients and server counted it. Milliseconds and tokens, per request means.

    `tpot_ms`: as the server's own histogram tells it. `batch`: running requests of a rank; times per token at
    different batches do not compare.
    """

    tpot_ms: float | None = None
    batch: float | None = None
    chunk_gap_ms: float | None = None
    tokens_per_chunk: float | None = None
    e2e_ms: float | None = None
    ttft_ms: float | None = None
    output_tokens: float | None = None
    chunks: float | None = None


class AcceptanceSlice(_Strict, frozen=True, kw_only=True):
    """Draft acceptance of one part of the traffic (a temperature, a label), on two days or in two arms."""

    name: str
    share_before: float
    share_after: float
    acceptance_before: float
    acceptance_after: float


class ValiditySlice(_Strict, frozen=True, kw_only=True):
    """Valid answers of one slice: counts of baseline and candidate, and the slice's part of the traffic."""

    name: str
    traffic_share: float
    valid_before: int
    n_before: int
    valid_after: int
    n_after: int


class OutputDifference(_Strict, frozen=True, kw_only=True):
    """Part of prompts whose greedy outputs differ: between arms, and between two runs of the baseline.

    `n` counts prompts on each side.
    """

    between_arms: float
    n: int
    baseline_twice: float | None = None
    n_twice: int | None = None


class CacheFacts(_Strict, frozen=True, kw_only=True):
    """What others than the engine say of prefix caching. Shares 0 to 1.

    `proxy_hit_share`: as a proxy counts it. `reuse_ceiling_share`, `reuse_after_fix_share`: what the prompts allow as
    they are, and after the fix that the prompt lint names.
    `salted_predicted_share`, `salted_engine_share`: hits that a router promised, and that engines had, for requests
    with a salt. `enabled`: whether the engine caches at all. `same_tenant_hit`, `other_tenant_hit`: what a test of
    isolation saw. `sessions_stay`: each session always goes to the same server, so that no other can hold its prefix.
    """

    proxy_hit_share: float | None = None
    reuse_ceiling_share: float | None = None
    reuse_after_fix_share: float | None = None
    salted_predicted_share: float | None = None
    salted_engine_share: float | None = None
    enabled: bool | None = None
    same_tenant_hit: bool | None = None
    other_tenant_hit: bool | None = None
    sessions_stay: bool | None = None


class ReplicaLoad(_Strict, frozen=True, kw_only=True):
    """One server as a router may see it; what is left out is read from the source of that name.

    `match_share`: part of the request's prompt that it holds (0 to 1).
    """

    name: str
    kv_used_share: float | None = None
    waiting: float | None = None
    in_flight: float | None = None
    match_share: float | None = None


class BalanceFacts(_Strict, frozen=True, kw_only=True):
    """The servers behind one router and how it counts.

    `routers` routers share the traffic and each sees its own requests only; `seen_gap` is the difference in requests
    in flight that one of them sees, `threshold` from which on it balances.
    """

    replicas: tuple[ReplicaLoad, ...] = ()
    routers: int | None = None
    seen_gap: float | None = None
    true_gap: float | None = None
    threshold: float | None = None


class LayoutTime(_Strict, frozen=True, kw_only=True):
    """A measured TPOT at batch 1 of a tensor-parallel layout."""

    tensor_parallel: int
    tpot_ms: float


class LayoutFacts(_Strict, frozen=True, kw_only=True):
    """What decides a parallel layout. Counts are of accelerators unless said.

    `fits_on`: the fewest that hold the model with its KV. `tensor_parallel`: as asked for, `tensor_parallel_now` as it
    is; `tpot_ms_target`: for single streams. `tokens_per_step`:
    of one engine step. `expert_load_max_over_mean`: load of the busiest rank of experts over the mean.
    `kv_replication`: the engine copies KV heads where there are fewer than ranks. `latent_attention`: one compressed
    KV head (MLA).
    """

    accelerators: int | None = None
    link: Link | None = None
    goal: Goal | None = None
    fits_on: int | None = None
    measured: tuple[LayoutTime, ...] = ()
    tensor_parallel: int | None = None
    tensor_parallel_now: int | None = None
    tpot_ms_target: float | None = None
    heads: int | None = None
    kv_heads: int | None = None
    kv_replication: bool = False
    latent_attention: bool = False
    experts: int | None = None
    experts_per_token: int | None = None
    tokens_per_step: float | None = None
    exchange: ExpertExchange | None = None
    expert_load_max_over_mean: float | None = None


class TransferFacts(_Strict, frozen=True, kw_only=True):
    """What is known of moving KV between servers beside its counters. Bytes per second, milliseconds."""

    link_bytes_per_s: float | None = None
    transport: str | None = None
    same_node: bool | None = None
    first_ms: float | None = None


class HandOffFacts(_Strict, frozen=True, kw_only=True):
    """One hand-off from a prefill to a decode server, or the stream of those that failed. Tokens, milliseconds.

    `cached_on_decode`: tokens of the prompt that the decode server says it had; `moved` what was handed over.
    `failed_per_min`, `blocks_each`, `blocks_pool`, `hold_s`, `timeout_s`: blocks that failed hand-offs keep.
    """

    transfer_failed: bool | None = None
    retries_left: int | None = None
    local_limit_tokens: int | None = None
    prompt_tokens: int | None = None
    uncached_tokens: int | None = None
    output_tokens: int | None = None
    moved_tokens: int | None = None
    cached_on_decode: int | None = None
    transfer_ms: float | None = None
    hop_ms: float | None = None
    prefill_queue_ms: float | None = None
    local_stall_ms: float | None = None
    stalled_streams: int | None = None
    chunk_tokens: int | None = None
    failed_per_min: float | None = None
    blocks_each: float | None = None
    blocks_pool: float | None = None
    hold_s: float | None = None
    timeout_s: float | None = None


class GapChange(_Strict, frozen=True, kw_only=True):
    """ITL of two arms: mean, median and the first gap of a stream, in milliseconds."""

    mean_before: float | None = None
    mean_after: float | None = None
    median_before: float | None = None
    median_after: float | None = None
    first_before: float | None = None
    first_after: float | None = None


class ServedFacts(_Strict, frozen=True, kw_only=True):
    """Everything a person may tell beside metrics. `accelerators` hold one copy of the model.

    `requested` and `effective` are configurations as text by key. `cost` is what prefill and decode were measured
    to cost on a replica; without it they are predicted from model and accelerator.
    """

    model: ModelShape | None = None
    accelerator: Accelerator | None = None
    accelerators: int | None = None
    ttft_ms_target: float | None = None
    tpot_ms_target: float | None = None
    prompts: tuple[PromptTag, ...] = ()
    requested: Mapping[str, str] = {}
    effective: Mapping[str, str] = {}
    slots: int | None = None
    cost: CostModel | None = None
    cache: CacheFacts = CacheFacts()
    speculation: SpeculationFacts | None = None
    arms: tuple[ArmTimes, ArmTimes] | None = None
    acceptance: tuple[AcceptanceSlice, ...] = ()
    validity: tuple[ValiditySlice, ...] = ()
    outputs: OutputDifference | None = None
    balance: BalanceFacts | None = None
    layout: LayoutFacts | None = None
    transfer: TransferFacts | None = None
    hand_off: HandOffFacts | None = None
    gaps: GapChange | None = None

    @property
    def shares_no_prefix(self) -> bool:
        """Say whether the prompts are known to share nothing."""
        return PromptTag.NO_SHARED_PREFIX in self.prompts

    @property
    def block_tokens(self) -> int | None:
        """Tokens of a block of KV as the server says (SGLang calls it a page), None if it does not."""
        told = (self.effective.get(key, "") for key in ("block_size", "page_size"))
        sizes = (int(text) for text in told if text.isascii() and text.isdigit() and len(text) < 6)
        return next((size for size in sizes if size > 0), None)
