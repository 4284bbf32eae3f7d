"""The names of TensorRT-LLM's server, with its own prefix `trtllm_` or with the `trtllm:` that others put before it.

Cache hits are counted in blocks since the start; they are turned into tokens where the page tells the size of a block.
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

TABLE = NameTable(
    engine=EngineKind.TRTLLM,
    prefixes=("trtllm_", "trtllm:"),
    gauges=(
        GaugeRow(Gauge.RUNNING, named("num_requests_running")),
        GaugeRow(Gauge.WAITING, named("num_requests_waiting")),
        GaugeRow(Gauge.KV_USED_SHARE, named("kv_cache_utilization"), share=True),
        GaugeRow(Gauge.PREFIX_HIT_SHARE, named("kv_cache_hit_rate"), share=True),
        GaugeRow(
            Gauge.ACCEPTED_LENGTH,
            named("spec_decode_acceptance_length"),
            largest=True,
            zero_is_absent=True,
        ),
        GaugeRow(Gauge.GPU_MEMORY_USED_BYTES, named("gpu_memory_usage_bytes"), largest=True),
        GaugeRow(
            Gauge.REQUESTS_MAX,
            named("max_batch_size_runtime", "max_num_active_requests", "max_batch_size_static"),
            largest=True,
            renamed=False,
        ),
        GaugeRow(Gauge.BATCH_TOKENS_MAX, named("max_num_tokens_runtime"), largest=True),
    ),
    counters=(
        CounterRow(Counter.PROMPT_TOKENS, named("prompt_tokens")),
        CounterRow(Counter.OUTPUT_TOKENS, named("generation_tokens")),
        CounterRow(Counter.CACHED_TOKENS, named("prompt_cached_tokens")),
        CounterRow(Counter.REQUESTS_FINISHED, named("request_success")),
        CounterRow(Counter.REQUESTS_FAILED, named("request_error")),
        CounterRow(Counter.DRAFTED_TOKENS, named("spec_decode_num_draft_tokens")),
        CounterRow(Counter.ACCEPTED_TOKENS, named("spec_decode_num_accepted_tokens")),
        CounterRow(Counter.TRANSFERS, named("kv_transfer_success")),
        CounterRow(Counter.TRANSFER_BYTES, named("kv_transfer_bytes_sum")),
    ),
    distributions=(
        DistributionRow(Distribution.TTFT, named("time_to_first_token_seconds")),
        DistributionRow(Distribution.TPOT, named("time_per_output_token_seconds")),
        DistributionRow(Distribution.E2E, named("e2e_request_latency_seconds")),
        DistributionRow(Distribution.QUEUE_TIME, named("request_queue_time_seconds")),
        DistributionRow(Distribution.PREFILL_TIME, named("request_prefill_time_seconds")),
        DistributionRow(Distribution.DECODE_TIME, named("request_decode_time_seconds")),
        DistributionRow(Distribution.TRANSFER_TIME, named("kv_transfer_latency_seconds")),
        DistributionRow(Distribution.TRANSFER_SIZE, named("kv_transfer_bytes")),
    ),
    position_sources=(Source("spec_decode_accepted_tokens", having="token_position"),),
    position_label="token_position",
    infos=(
        "kv_cache_config_info",
        "model_config_info",
        "parallel_config_info",
        "speculative_config_info",
    ),
    extras=(
        "kv_cache_max_blocks",
        "kv_cache_tokens_per_block",
        "kv_cache_reused_blocks",
        "kv_cache_missed_blocks",
    ),
    rank_labels=("dp_rank",),
    model_labels=("model_name", "model"),
)
