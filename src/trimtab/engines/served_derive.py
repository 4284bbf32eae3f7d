"""What a page says only by two of its values together, for each engine: capacity, cache hits in tokens, memory in all.

Each rule needs all of its parts; where one is absent the reading stays unknown.
"""

from collections.abc import Mapping

from trimtab.core.served import Counter, EngineKind, Gauge
from trimtab.engines.served_names import MIB
from trimtab.engines.served_notes import NoteBook
from trimtab.engines.served_rows import PageReading, RankReading
from trimtab.engines.served_series import RankedSeries, rank_order

_SPLIT_REPEATS = "tensor-parallel ranks say the same of the same requests: the lowest was read"

_STAND_IN = (
    (Counter.PREFIX_QUERIES, Counter.PROMPT_TOKENS),
    (Counter.PREFIX_HITS, Counter.CACHED_TOKENS),
)


def derive(kind: EngineKind, page: PageReading, series: RankedSeries, notes: NoteBook) -> None:
    """Add to a page what follows from its values."""
    match kind:
        case EngineKind.VLLM:
            _vllm_capacity(page, series)
        case EngineKind.SGLANG:
            _sglang_capacity(page, series)
            _hits_from_cached(page)
            _drop_repeating_ranks(page, notes)
        case EngineKind.LLAMACPP:
            _llamacpp_prompt(page, notes)
            _hits_from_cached(page)
        case EngineKind.TRTLLM:
            _trtllm_blocks(page, series)
            _hits_from_cached(page)
        case EngineKind.DYNAMO_FRONTEND:
            _dynamo_frontend(page, series, notes)
            _hits_from_cached(page)
        case EngineKind.DCGM:
            _dcgm_total(page, series)
        case EngineKind.NODE:
            _host_memory(page, series)
        case EngineKind.TGI | EngineKind.DYNAMO_WORKER | EngineKind.UNKNOWN:
            pass


def _vllm_capacity(page: PageReading, series: RankedSeries) -> None:
    """Hybrid models have blocks of several sizes: blocks times size is only right where the engine tells no tokens."""
    for rank, labels in series.infos_by_rank("cache_config_info").items():
        tokens = _number(labels, "kv_cache_size_tokens")
        blocks, size = _number(labels, "num_gpu_blocks"), _number(labels, "block_size")
        if tokens is None and blocks is not None and size is not None:
            tokens = blocks * size
        if tokens:
            page.rank(rank).gauges[Gauge.KV_CAPACITY_TOKENS] = tokens
            page.names[Gauge.KV_CAPACITY_TOKENS.value] = "vllm:cache_config_info"


def _number(labels: Mapping[str, str], name: str) -> float | None:
    text = labels.get(name, "")
    return float(text) if text.isascii() and text.isdigit() and len(text) < 16 else None


def _sglang_capacity(page: PageReading, series: RankedSeries) -> None:
    pages, size = series.values("num_pages"), series.values("page_size")
    for rank in pages.keys() & size.keys():
        gauges = page.rank(rank).gauges
        if Gauge.KV_CAPACITY_TOKENS not in gauges and pages[rank] * size[rank] > 0:
            gauges[Gauge.KV_CAPACITY_TOKENS] = pages[rank] * size[rank]
            page.names[Gauge.KV_CAPACITY_TOKENS.value] = "sglang:num_pages"


def _hits_from_cached(page: PageReading) -> None:
    """Cached tokens of prompt tokens are hits of queries, where the engine has no counters of its own for them."""
    if Counter.PREFIX_QUERIES.value in page.names or Counter.PREFIX_HITS.value in page.names:
        return
    for counters in (reading.counters for reading in page.ranks.values()):
        if Counter.CACHED_TOKENS not in counters or Counter.PROMPT_TOKENS not in counters:
            continue
        for ours, theirs in _STAND_IN:
            counters[ours] = counters[theirs]
            page.names[ours.value] = page.names[theirs.value]


def _drop_repeating_ranks(page: PageReading, notes: NoteBook) -> None:
    """Ranks of one scheduler say the same; idle ones do too, and idle ranks that are apart must not vanish."""
    apart = {rank: one for rank, one in page.ranks.items() if rank and one.gauges}
    told = [_load(one) for one in apart.values()]
    if len(told) < 2 or not page.split or any(one != told[0] for one in told):
        return
    if not any(told[0][:2]):
        return
    for rank in sorted(apart, key=rank_order)[1:]:
        del page.ranks[rank]
    notes.add("limit", _SPLIT_REPEATS)


def _load(reading: RankReading) -> tuple[float, float, float]:
    gauges = reading.gauges
    return (
        gauges.get(Gauge.RUNNING, 0.0),
        gauges.get(Gauge.WAITING, 0.0),
        gauges.get(Gauge.KV_USED_SHARE, -1.0),
    )


def _llamacpp_prompt(page: PageReading, notes: NoteBook) -> None:
    for reading in page.ranks.values():
        counters = reading.counters
        if Counter.CACHED_TOKENS in counters and Counter.PROMPT_TOKENS in counters:
            counters[Counter.PROMPT_TOKENS] += counters[Counter.CACHED_TOKENS]
            text = "leaves cached tokens out in this version: they were added"
            notes.add("unit", text, page.names[Counter.PROMPT_TOKENS.value])


def _trtllm_blocks(page: PageReading, series: RankedSeries) -> None:
    size = series.values("kv_cache_tokens_per_block")
    blocks = series.values("kv_cache_max_blocks")
    reused, missed = (
        series.values("kv_cache_reused_blocks"),
        series.values("kv_cache_missed_blocks"),
    )
    for rank, tokens in size.items():
        reading = page.rank(rank)
        if blocks.get(rank, 0.0) * tokens > 0:
            reading.gauges[Gauge.KV_CAPACITY_TOKENS] = blocks[rank] * tokens
            page.names[Gauge.KV_CAPACITY_TOKENS.value] = "trtllm_kv_cache_max_blocks"
        if rank in reused and rank in missed:
            reading.counters[Counter.PREFIX_HITS] = reused[rank] * tokens
            reading.counters[Counter.PREFIX_QUERIES] = (reused[rank] + missed[rank]) * tokens
            page.names[Counter.PREFIX_HITS.value] = "trtllm_kv_cache_reused_blocks"
            page.names[Counter.PREFIX_QUERIES.value] = "trtllm_kv_cache_missed_blocks"


def _dynamo_frontend(page: PageReading, series: RankedSeries, notes: NoteBook) -> None:
    blocks = series.values("model_total_kv_blocks")
    size = series.values("model_kv_cache_block_size")
    for rank in blocks.keys() & size.keys():
        if blocks[rank] * size[rank] > 0:
            page.rank(rank).gauges[Gauge.KV_CAPACITY_TOKENS] = blocks[rank] * size[rank]
            page.names[Gauge.KV_CAPACITY_TOKENS.value] = "dynamo_frontend_model_total_kv_blocks"
    for reading in page.ranks.values():
        gauges = reading.gauges
        if Gauge.RUNNING in gauges and Gauge.WAITING in gauges:
            gauges[Gauge.RUNNING] = max(0.0, gauges[Gauge.RUNNING] - gauges[Gauge.WAITING])
            text = "counts those that wait for their first output too: they were taken off"
            notes.add("unit", text, page.names[Gauge.RUNNING.value])
        elif gauges.get(Gauge.RUNNING) == 0 and Gauge.WAITING not in gauges:
            # What waits is in flight too: where nothing is, nothing waits.
            gauges[Gauge.WAITING] = 0.0
            page.names[Gauge.WAITING.value] = page.names[Gauge.RUNNING.value]


def _dcgm_total(page: PageReading, series: RankedSeries) -> None:
    free, reserved = series.values("DEV_FB_FREE"), series.values("DEV_FB_RESERVED")
    for rank, reading in page.ranks.items():
        gauges = reading.gauges
        used = gauges.get(Gauge.GPU_MEMORY_USED_BYTES)
        if Gauge.GPU_MEMORY_TOTAL_BYTES not in gauges and used is not None and rank in free:
            total = used + (free[rank] + reserved.get(rank, 0.0)) * MIB
            gauges[Gauge.GPU_MEMORY_TOTAL_BYTES] = total
            page.names[Gauge.GPU_MEMORY_TOTAL_BYTES.value] = "DCGM_FI_DEV_FB_FREE"


def _host_memory(page: PageReading, series: RankedSeries) -> None:
    free = series.values("memory_MemAvailable_bytes")
    for rank, reading in page.ranks.items():
        total = reading.gauges.get(Gauge.HOST_MEMORY_TOTAL_BYTES)
        if total is not None and free.get(rank, total + 1) <= total:
            reading.gauges[Gauge.HOST_MEMORY_USED_BYTES] = total - free[rank]
            page.names[Gauge.HOST_MEMORY_USED_BYTES.value] = "node_memory_MemAvailable_bytes"
