"""The names of Dynamo: its front end, and its workers as they or the front end tell of them.

The front end divides a gap by its tokens and counts each of them, so its inter-token latency is time per token. Its
requests in flight include those that wait for their first output, which it also counts as queued. A worker's page also
carries the names of the engine inside it, which say more and are read first. Occupancy is called a percent and is a
share.
"""

from trimtab.core.served import Counter, Distribution, EngineKind, Gauge
from trimtab.engines.served_names import (
    CounterRow,
    DistributionRow,
    GaugeRow,
    NameTable,
    Source,
    named,
)

INFLIGHT, QUEUED = "inflight_requests", "queued_requests"
_PER_TOKEN = "gaps are divided by their tokens here: read as the time of one token"
_OK, _ERROR = {"status": frozenset({"success"})}, {"status": frozenset({"error"})}
_CLIENT = {"error_type": frozenset({"cancelled"})}
_WORKER_GAUGES = (
    GaugeRow(Gauge.RUNNING, named("worker_request_active_slots")),
    GaugeRow(Gauge.WAITING, named("worker_num_requests_waiting", "worker_waiting_requests")),
    GaugeRow(Gauge.REQUESTS_MAX, named("worker_request_total_slots"), largest=True),
)

FRONTEND = NameTable(
    engine=EngineKind.DYNAMO_FRONTEND,
    prefixes=("dynamo_frontend_", "nv_llm_http_service_"),
    gauges=(
        GaugeRow(Gauge.RUNNING, named(INFLIGHT)),
        GaugeRow(Gauge.WAITING, named(QUEUED)),
        GaugeRow(Gauge.REQUESTS_MAX, named("model_max_num_seqs"), largest=True),
        GaugeRow(Gauge.BATCH_TOKENS_MAX, named("model_max_num_batched_tokens"), largest=True),
        GaugeRow(Gauge.CONTEXT_TOKENS_MAX, named("model_context_length"), largest=True),
    ),
    counters=(
        CounterRow(
            Counter.REQUESTS_FINISHED,
            (Source("requests", only=_OK), Source("request_success_count")),
        ),
        CounterRow(Counter.REQUESTS_FAILED, (Source("requests", only=_ERROR, but=_CLIENT),)),
        CounterRow(Counter.PROMPT_TOKENS, named("input_sequence_tokens_sum")),
        CounterRow(
            Counter.OUTPUT_TOKENS,
            named("output_tokens", "output_sequence_tokens_sum"),
            renamed=False,
        ),
        CounterRow(Counter.CACHED_TOKENS, named("cached_tokens_sum")),
    ),
    distributions=(
        DistributionRow(Distribution.TTFT, named("time_to_first_token_seconds")),
        DistributionRow(
            Distribution.TPOT, (Source("inter_token_latency_seconds", remark=_PER_TOKEN),)
        ),
        DistributionRow(Distribution.E2E, named("request_duration_seconds")),
        DistributionRow(Distribution.PROMPT_LENGTH, named("input_sequence_tokens")),
        DistributionRow(Distribution.OUTPUT_LENGTH, named("output_sequence_tokens")),
    ),
    extras=("model_total_kv_blocks", "model_kv_cache_block_size"),
    model_labels=("model",),
)

WORKERS_OF_FRONTEND = NameTable(
    engine=EngineKind.DYNAMO_WORKER,
    prefixes=("dynamo_frontend_",),
    gauges=_WORKER_GAUGES,
    extras=("worker_active_decode_blocks",),
    rank_labels=("worker_id",),
    rank_suffix_labels=("dp_rank",),
)

WORKER = NameTable(
    engine=EngineKind.DYNAMO_WORKER,
    prefixes=("dynamo_component_",),
    gauges=(
        GaugeRow(Gauge.RUNNING, named(INFLIGHT)),
        GaugeRow(
            Gauge.KV_USED_SHARE,
            named("gpu_cache_usage_percent", "kvstats_gpu_cache_usage_percent"),
            share=True,
        ),
        GaugeRow(
            Gauge.PREFIX_HIT_SHARE,
            named("gpu_prefix_cache_hit_rate", "kvstats_gpu_prefix_cache_hit_rate"),
            share=True,
        ),
    ),
    counters=(
        CounterRow(Counter.REQUESTS_FINISHED, named("requests")),
        CounterRow(Counter.REQUESTS_FAILED, named("errors")),
    ),
    distributions=(DistributionRow(Distribution.E2E, named("request_duration_seconds")),),
    rank_labels=("dp_rank",),
    model_labels=("model",),
)
