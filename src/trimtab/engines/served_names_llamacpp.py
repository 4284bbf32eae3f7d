"""The names of llama.cpp's server, before and since it counts cached prompt tokens apart.

`prompt_tokens_total` includes the cached tokens where the page has no `prompt_tokens_cached_total`, and leaves them out
where it has. The throughput gauges are means over the streams since they were read last, not the server's throughput;
the drafts' steps are not among the decode steps. There has been no gauge of the KV cache since 2025.
"""

from trimtab.core.served import Counter, EngineKind, Gauge
from trimtab.engines.served_names import CounterRow, GaugeRow, NameTable, VersionRule, named

CACHED = "prompt_tokens_cached"

TABLE = NameTable(
    engine=EngineKind.LLAMACPP,
    prefixes=("llamacpp:", "llamacpp_"),
    gauges=(
        GaugeRow(Gauge.RUNNING, named("requests_processing")),
        GaugeRow(Gauge.WAITING, named("requests_deferred")),
        GaugeRow(Gauge.KV_USED_SHARE, named("kv_cache_usage_ratio"), share=True),
        GaugeRow(Gauge.SLOTS_BUSY_PER_STEP, named("n_busy_slots_per_decode")),
    ),
    counters=(
        CounterRow(Counter.PROMPT_TOKENS, named("prompt_tokens")),
        CounterRow(Counter.CACHED_TOKENS, named(CACHED)),
        CounterRow(Counter.OUTPUT_TOKENS, named("tokens_predicted")),
        CounterRow(Counter.PROMPT_SECONDS, named("prompt_seconds")),
        CounterRow(Counter.DECODE_SECONDS, named("tokens_predicted_seconds")),
        CounterRow(Counter.DECODE_STEPS, named("n_decode")),
        CounterRow(Counter.DRAFTS, named("spec_decode_num_drafts")),
        CounterRow(Counter.DRAFTED_TOKENS, named("spec_decode_num_draft_tokens", "tokens_drafted")),
        CounterRow(
            Counter.ACCEPTED_TOKENS,
            named("spec_decode_num_accepted_tokens", "tokens_drafted_accepted"),
        ),
    ),
    position_sources=named("spec_decode_num_accepted_tokens_per_pos"),
    versions=(
        VersionRule("2026 or later, by its names", (CACHED,)),
        VersionRule("before mid 2025, by its names", ("kv_cache_usage_ratio",)),
        VersionRule("2025, by its names", ("n_decode",)),
    ),
    # The router of several models labels its children; a single server labels nothing.
    model_labels=("model",),
)
