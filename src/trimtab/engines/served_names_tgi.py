"""The names of text-generation-inference: counters without `_total`, nothing labelled with the model.

There is no time to the first token, no occupancy of the KV cache and no hit counter. `skipped_tokens` is a summary
over decode steps, not requests, and says nothing of how many tokens were drafted: it is not read.
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

_DECODE = {"method": frozenset({"decode"})}

TABLE = NameTable(
    engine=EngineKind.TGI,
    prefixes=("tgi_",),
    gauges=(
        GaugeRow(Gauge.RUNNING, named("batch_current_size")),
        GaugeRow(Gauge.WAITING, named("queue_size")),
    ),
    counters=(
        CounterRow(Counter.PROMPT_TOKENS, named("request_input_length_sum")),
        CounterRow(Counter.OUTPUT_TOKENS, named("request_generated_tokens_sum")),
        CounterRow(Counter.REQUESTS_FINISHED, named("request_success")),
        CounterRow(Counter.REQUESTS_FAILED, named("request_failure")),
        CounterRow(Counter.DECODE_STEPS, (Source("batch_inference_count", only=_DECODE),)),
    ),
    distributions=(
        DistributionRow(Distribution.E2E, named("request_duration")),
        DistributionRow(Distribution.QUEUE_TIME, named("request_queue_duration")),
        DistributionRow(Distribution.TPOT, named("request_mean_time_per_token_duration")),
        DistributionRow(Distribution.PROMPT_LENGTH, named("request_input_length")),
        DistributionRow(Distribution.OUTPUT_LENGTH, named("request_generated_tokens")),
    ),
)
