"""Why a value is not told, and what would tell it: a flag of the engine, a newer version, another source.

Absent is unknown, never zero; an answer that says only "unknown" leaves the reader where they were.
"""

from collections.abc import Sequence

from trimtab.core.served import Counter, Distribution, EngineKind, Gauge

Key = Gauge | Counter | Distribution

_SPECULATION: frozenset[Key] = frozenset(
    {
        Counter.DRAFTS,
        Counter.DRAFTED_TOKENS,
        Counter.ACCEPTED_TOKENS,
        Gauge.ACCEPTANCE_SHARE,
        Gauge.ACCEPTED_LENGTH,
    }
)
_TRANSFER: frozenset[Key] = frozenset(
    {
        Counter.TRANSFERS,
        Counter.TRANSFER_BYTES,
        Counter.TRANSFER_FAILURES,
        Counter.TRANSFERS_EXPIRED,
        Counter.TRANSFER_DESCRIPTORS,
        Distribution.TRANSFER_TIME,
        Distribution.TRANSFER_POST_TIME,
        Distribution.TRANSFER_SIZE,
    }
)
_DEVICE: frozenset[Key] = frozenset(
    {Gauge.GPU_MEMORY_USED_BYTES, Gauge.GPU_MEMORY_TOTAL_BYTES, Gauge.GPU_BUSY_SHARE}
)
_PREFIX: frozenset[Key] = frozenset(
    {Counter.PREFIX_HITS, Counter.PREFIX_QUERIES, Counter.CACHED_TOKENS, Gauge.PREFIX_HIT_SHARE}
)
_KV: frozenset[Key] = frozenset({Gauge.KV_USED_SHARE, Gauge.KV_CAPACITY_TOKENS})
_HOST: frozenset[Key] = frozenset({Gauge.HOST_MEMORY_USED_BYTES, Gauge.HOST_MEMORY_TOTAL_BYTES})
_WHATEVER_THE_ENGINE = (
    (_HOST, "add the page of a node exporter as a source"),
    (_DEVICE, "add the page of a GPU exporter (DCGM) as a source"),
    (_SPECULATION, "there is no speculation, or this version does not count it"),
    (_TRANSFER, "no KV is transferred, or this connector does not count it"),
)

_BY_ENGINE: dict[EngineKind, tuple[tuple[frozenset[Key], str], ...]] = {
    EngineKind.VLLM: (
        (_PREFIX, "vLLM counts hits with --enable-prefix-caching"),
        (frozenset({Gauge.OUTPUT_TOKENS_PER_S}), "vLLM's V1 has no such gauge, only the counter"),
    ),
    EngineKind.LLAMACPP: (
        (_KV, "newer llama.cpp servers have no KV gauge: their /slots page (--slots) tells it"),
        (frozenset({Counter.PREEMPTIONS}), "llama.cpp's server preempts no request"),
        (
            frozenset({Counter.REQUESTS_FINISHED, Counter.REQUESTS_FAILED}),
            "llama.cpp's server counts no requests: a proxy in front of it does",
        ),
        (
            frozenset(Distribution),
            "llama.cpp's server keeps no histograms; each answer's `timings` has its own times",
        ),
    ),
    EngineKind.TGI: (
        (_KV, "TGI has no KV gauge: its batch sizes and its start-up log are all there is"),
    ),
}
_OTHERWISE = {
    EngineKind.VLLM: (
        "the page is cut short, vLLM runs with --disable-log-stats, or its version renamed it"
    ),
    EngineKind.SGLANG: "this version of SGLang does not tell it: newer versions have more metrics",
    EngineKind.LLAMACPP: "this version of llama.cpp's server does not tell it",
    EngineKind.TGI: "TGI's page does not have it",
    EngineKind.DYNAMO_FRONTEND: "the front end does not have it: add the workers' pages",
    EngineKind.DYNAMO_WORKER: "the worker's page does not have it: add the engine's own page",
    EngineKind.TRTLLM: (
        "TensorRT-LLM's server tells more with return_perf_metrics and enable_iter_perf_stats"
    ),
    EngineKind.UNKNOWN: "the page is of no engine that is known here",
}


def reason_for(keys: Sequence[Key], engines: Sequence[EngineKind]) -> str:
    """Return in words why none of `keys` is told by `engines`, with what would tell it."""
    absent = f"no source tells {' or '.join(key.value for key in keys)}"
    for group, words in _WHATEVER_THE_ENGINE:
        if group & set(keys):
            return f"{absent}: {words}"
    hints = dict.fromkeys(hint for engine in engines if (hint := _hint(keys, engine)))
    return f"{absent}: {'; '.join(hints)}" if hints else absent


def _hint(keys: Sequence[Key], engine: EngineKind) -> str:
    for group, words in _BY_ENGINE.get(engine, ()):
        if group & set(keys):
            return words
    return _OTHERWISE.get(engine, "")
