"""SGLang's names, of the first version of 2024 (label `name`) and of those since (`model_name`).

Two populations meet on one page: the schedulers, one for each data-parallel rank, tell gauges, queue and transfers;
the front end, without ranks, tells tokens, first tokens and end-to-end times. Schedulers of a pipeline repeat each
other. The histogram of inter-token latency divides a gap by its tokens and counts each of them: it is time per token.
"""

from trimtab.core.served import Counter, Distribution, EngineKind, Gauge
from trimtab.engines.served_names import (
    MIB,
    CounterRow,
    DistributionRow,
    GaugeRow,
    NameTable,
    Source,
    VersionRule,
    named,
)

_HITS = {"mode": frozenset({"device_hit", "host_hit", "storage_hit"})}
_PER_TOKEN = "gaps are divided by their tokens here: read as the time of one token"
_NO_QUEUE = "the time to the first token leaves the wait in the queue out in this version"

_GAUGES = (
    GaugeRow(Gauge.RUNNING, named("num_running_reqs", "num_requests_running")),
    GaugeRow(Gauge.WAITING, named("num_queue_reqs", "num_requests_waiting", "queue_req")),
    # The first is of the fullest pool of a hybrid model, which is what requests wait for; the second of KV alone.
    GaugeRow(
        Gauge.KV_USED_SHARE, named("token_usage", "kv_cache_usage_perc"), share=True, renamed=False
    ),
    GaugeRow(
        Gauge.KV_CAPACITY_TOKENS,
        named("max_total_num_tokens", "kv_cache_total_tokens"),
        largest=True,
        renamed=False,
    ),
    GaugeRow(
        Gauge.PREFIX_HIT_SHARE,
        (
            Source("cache_hit_rate", lacking="name"),
            Source("cache_hit_rate", having="name", percent=True),
        ),
        share=True,
        renamed=False,
    ),
    GaugeRow(Gauge.OUTPUT_TOKENS_PER_S, named("gen_throughput")),
    # Nothing is accepted where nothing is drafted, and the engine then says 0 of both.
    GaugeRow(Gauge.ACCEPTED_LENGTH, named("spec_accept_length"), largest=True, zero_is_absent=True),
    GaugeRow(Gauge.ACCEPTANCE_SHARE, named("spec_accept_rate"), share=True, zero_is_absent=True),
    GaugeRow(Gauge.CONTEXT_TOKENS_MAX, named("context_len"), largest=True),
    GaugeRow(Gauge.REQUESTS_MAX, named("max_running_requests"), largest=True),
    GaugeRow(Gauge.BATCH_TOKENS_MAX, named("max_prefill_tokens"), largest=True),
)
_COUNTERS = (
    CounterRow(Counter.PROMPT_TOKENS, named("prompt_tokens")),
    CounterRow(Counter.OUTPUT_TOKENS, named("generation_tokens")),
    CounterRow(Counter.CACHED_TOKENS, named("cached_tokens")),
    CounterRow(Counter.PREFIX_QUERIES, named("prefill_effective_tokens")),
    CounterRow(Counter.PREFIX_HITS, (Source("prefill_effective_tokens", only=_HITS),)),
    CounterRow(Counter.PREEMPTIONS, named("num_retracted_requests")),
    CounterRow(Counter.REQUESTS_FINISHED, named("num_requests")),
    CounterRow(Counter.DRAFTS, named("spec_verify_calls")),
    CounterRow(Counter.TRANSFERS, named("kv_transfer_latency_ms_count")),
    CounterRow(Counter.TRANSFER_BYTES, (Source("kv_transfer_total_mb_sum", scale=MIB),)),
    CounterRow(Counter.TRANSFER_FAILURES, named("num_transfer_failed_reqs")),
)
_DISTRIBUTIONS = (
    DistributionRow(
        Distribution.TTFT,
        (
            Source("time_to_first_token_seconds", lacking="name"),
            Source("time_to_first_token_seconds", having="name", remark=_NO_QUEUE),
        ),
    ),
    DistributionRow(
        Distribution.TPOT,
        (
            Source("time_per_output_token_seconds"),
            Source("inter_token_latency_seconds", remark=_PER_TOKEN),
        ),
    ),
    DistributionRow(Distribution.E2E, named("e2e_request_latency_seconds")),
    DistributionRow(
        Distribution.QUEUE_TIME, named("queue_time_seconds", "waiting_request_latency_seconds")
    ),
    DistributionRow(
        Distribution.PROMPT_LENGTH, named("prompt_tokens_histogram", "request_prompt_tokens")
    ),
    DistributionRow(
        Distribution.OUTPUT_LENGTH,
        named("generation_tokens_histogram", "request_generation_tokens"),
    ),
    DistributionRow(Distribution.TRANSFER_TIME, (Source("kv_transfer_latency_ms", scale=0.001),)),
    DistributionRow(Distribution.TRANSFER_SIZE, (Source("kv_transfer_total_mb", scale=MIB),)),
)

TABLE = NameTable(
    engine=EngineKind.SGLANG,
    prefixes=("sglang:", "sglang_"),
    gauges=_GAUGES,
    counters=_COUNTERS,
    distributions=_DISTRIBUTIONS,
    infos=("cache_config_info",),
    extras=("page_size", "num_pages", "num_used_tokens"),
    versions=(
        VersionRule("2024, by its names", ("num_requests_running",), ("num_running_reqs",)),
        VersionRule("2024, by its names", ("queue_req",), ("num_running_reqs",)),
        VersionRule("2025 or later, by its names", ("num_running_reqs",)),
    ),
    rank_labels=("dp_rank",),
    split_label="tp_rank",
    mirror_labels=("pp_rank", "tp_rank", "moe_ep_rank", "attn_cp_rank"),
    total_labels=("priority",),
    model_labels=("model_name", "name"),
    facts={"engine_type": "engine_type"},
)
