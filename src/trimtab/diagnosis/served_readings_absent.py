"""Why a value is not told, and what would tell it: a flag of the engine, a newer version, another source.

Absent is unknown, never zero; an answer that says only "unknown" leaves the reader where they were.
"""

from collections.abc import Sequence

from trimtab.core.served import Counter, Distribution, EngineKind, Gauge

Key = Gauge | Counter | Distribution

_SPECULATION = frozenset({Counter.DRAFTS, Counter.DRAFTED_TOKENS, Counter.ACCEPTED_TOKENS})
_TRANSFER = frozenset(
    {
        Counter.TRANSFERS,
        Counter.TRANSFER_BYTES,
        Counter.TRANSFER_FAILURES,
        Counter.TRANSFER_DESCRIPTORS,
        Distribution.TRANSFER_TIME,
        Distribution.TRANSFER_POST_TIME,
        Distribution.TRANSFER_SIZE,
    }
)
_DEVICE = frozenset(
    {Gauge.GPU_MEMORY_USED_BYTES, Gauge.GPU_MEMORY_TOTAL_BYTES, Gauge.GPU_BUSY_SHARE}
)
_PREFIX = frozenset(
    {Counter.PREFIX_HITS, Counter.PREFIX_QUERIES, Counter.CACHED_TOKENS, Gauge.PREFIX_HIT_SHARE}
)

_LLAMACPP_TIMES = (
    "llama.cpp's server keeps no histograms of requests; each answer's `timings` has its own times"
)
_SWITCH = {
    EngineKind.VLLM: "vLLM tells it unless it runs with --disable-log-stats",
    EngineKind.SGLANG: "SGLang tells what it has with --enable-metrics; newer versions have more",
    EngineKind.LLAMACPP: "llama.cpp's server tells what it has with --metrics",
    EngineKind.TGI: "TGI's own page does not have it",
    EngineKind.DYNAMO_FRONTEND: "the front end does not have it: add the workers' metrics",
    EngineKind.DYNAMO_WORKER: "the worker's page does not have it: add the engine's own metrics",
    EngineKind.TRTLLM: "TensorRT-LLM's server needs return_perf_metrics and enable_iter_perf_stats",
}


def reason_for(keys: Sequence[Key], engines: Sequence[EngineKind]) -> str:
    """Return in words why none of `keys` is told by `engines`, with what would tell it."""
    named = " or ".join(key.value for key in keys)
    wanted = set(keys)
    if wanted & _DEVICE:
        return f"no source tells {named}: add the page of a GPU exporter (DCGM) as a source"
    if wanted & _SPECULATION:
        return f"no source tells {named}: no speculation, or a version that does not count it"
    if wanted & _TRANSFER:
        return f"no source tells {named}: no KV is transferred, or the connector does not count it"
    if EngineKind.LLAMACPP in engines and any(isinstance(key, Distribution) for key in keys):
        return f"no source tells {named}: {_LLAMACPP_TIMES}"
    if EngineKind.VLLM in engines and wanted & _PREFIX:
        return f"no source tells {named}: vLLM counts hits with --enable-prefix-caching"
    hints = [_SWITCH[engine] for engine in engines if engine in _SWITCH]
    return f"no source tells {named}" + (f": {'; '.join(hints)}" if hints else "")
