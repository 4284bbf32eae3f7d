"""vLLM's names: V0, V1, 0.30 and later, with or without data-parallel `engine` labels.

Prompt tokens include the cached ones in every version. `inter_token_latency_seconds` (before: `time_per_output_token_`
`seconds`) is the gap between two outputs of a request, which with speculation is not the time of one token;
`request_time_per_output_token_seconds` is. A request that its client left counts neither as finished nor as failed.
"""

from trimtab.core.served import Counter, Distribution, EngineKind, Gauge
from trimtab.engines.served_names import (
    CounterRow,
    DistributionRow,
    GaugeRow,
    NameTable,
    Source,
    VersionRule,
    named,
)

_REASON = "finished_reason"
_GAUGES = (
    GaugeRow(Gauge.RUNNING, named("num_requests_running")),
    GaugeRow(Gauge.WAITING, named("num_requests_waiting")),
    GaugeRow(Gauge.SWAPPED, named("num_requests_swapped")),
    GaugeRow(Gauge.KV_USED_SHARE, named("kv_cache_usage_perc", "gpu_cache_usage_perc"), share=True),
    GaugeRow(Gauge.PREFIX_HIT_SHARE, named("gpu_prefix_cache_hit_rate"), share=True),
    GaugeRow(Gauge.OUTPUT_TOKENS_PER_S, named("avg_generation_throughput_toks_per_s")),
    GaugeRow(Gauge.ACCEPTANCE_SHARE, named("spec_decode_draft_acceptance_rate"), share=True),
)
_COUNTERS = (
    CounterRow(Counter.PROMPT_TOKENS, named("prompt_tokens")),
    CounterRow(Counter.OUTPUT_TOKENS, named("generation_tokens")),
    CounterRow(Counter.CACHED_TOKENS, named("prompt_tokens_cached")),
    CounterRow(Counter.PREFIX_QUERIES, named("prefix_cache_queries", "gpu_prefix_cache_queries")),
    CounterRow(Counter.PREFIX_HITS, named("prefix_cache_hits", "gpu_prefix_cache_hits")),
    CounterRow(Counter.EXTERNAL_QUERIES, named("external_prefix_cache_queries")),
    CounterRow(Counter.EXTERNAL_HITS, named("external_prefix_cache_hits")),
    CounterRow(Counter.PREEMPTIONS, named("num_preemptions")),
    CounterRow(
        Counter.REQUESTS_FINISHED,
        (Source("request_success", but={_REASON: frozenset({"abort", "error"})}),),
    ),
    CounterRow(
        Counter.REQUESTS_FAILED,
        (Source("request_success", only={_REASON: frozenset({"error"})}),),
    ),
    CounterRow(Counter.REQUESTS_REFUSED, named("admission_rejections")),
    CounterRow(Counter.DRAFTS, named("spec_decode_num_drafts")),
    CounterRow(Counter.DRAFTED_TOKENS, named("spec_decode_num_draft_tokens")),
    CounterRow(Counter.ACCEPTED_TOKENS, named("spec_decode_num_accepted_tokens")),
    CounterRow(Counter.TRANSFERS, named("nixl_xfer_time_seconds_count")),
    CounterRow(Counter.TRANSFER_BYTES, named("nixl_bytes_transferred_sum")),
    CounterRow(Counter.TRANSFER_FAILURES, named("nixl_num_failed_transfers")),
    CounterRow(Counter.TRANSFERS_EXPIRED, named("nixl_num_kv_expired_reqs")),
    CounterRow(Counter.TRANSFER_DESCRIPTORS, named("nixl_num_descriptors_sum")),
)
_DISTRIBUTIONS = (
    DistributionRow(Distribution.TTFT, named("time_to_first_token_seconds")),
    DistributionRow(
        Distribution.CHUNK_GAP,
        named("inter_token_latency_seconds", "time_per_output_token_seconds"),
    ),
    DistributionRow(Distribution.TPOT, named("request_time_per_output_token_seconds")),
    DistributionRow(Distribution.E2E, named("e2e_request_latency_seconds")),
    DistributionRow(
        Distribution.QUEUE_TIME,
        named("request_queue_time_seconds", "time_in_queue_requests"),
    ),
    DistributionRow(Distribution.PREFILL_TIME, named("request_prefill_time_seconds")),
    DistributionRow(Distribution.DECODE_TIME, named("request_decode_time_seconds")),
    DistributionRow(Distribution.PROMPT_LENGTH, named("request_prompt_tokens")),
    DistributionRow(Distribution.OUTPUT_LENGTH, named("request_generation_tokens")),
    DistributionRow(Distribution.STEP_TOKENS, named("iteration_tokens_total")),
    DistributionRow(Distribution.TRANSFER_TIME, named("nixl_xfer_time_seconds")),
    DistributionRow(Distribution.TRANSFER_POST_TIME, named("nixl_post_time_seconds")),
    DistributionRow(Distribution.TRANSFER_SIZE, named("nixl_bytes_transferred")),
)
_OLD_KV, _NEW_KV = "gpu_cache_usage_perc", "kv_cache_usage_perc"

TABLE = NameTable(
    engine=EngineKind.VLLM,
    prefixes=("vllm:", "vllm_"),
    gauges=_GAUGES,
    counters=_COUNTERS,
    distributions=_DISTRIBUTIONS,
    position_sources=named("spec_decode_num_accepted_tokens_per_pos"),
    infos=("cache_config_info",),
    extras=("cpu_cache_usage_perc",),
    versions=(
        VersionRule("mixed: names of V0 beside newer ones", ("cpu_cache_usage_perc", _NEW_KV)),
        VersionRule("V0, by its names", ("cpu_cache_usage_perc",)),
        VersionRule("V1 before 0.30, by its names", (_OLD_KV,)),
        VersionRule("V1, by its names", (_NEW_KV,)),
    ),
    rank_labels=("engine", "dp_rank", "server"),
    model_labels=("model_name",),
)
