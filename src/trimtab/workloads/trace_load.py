"""A recorded trace as a load: how long its requests are, how many come in its busiest stretch, what they share.

Arrivals are counted in windows of equal length. The shared part is what a cache that forgets nothing would have held: a
block counts as held once an earlier request had the same blocks up to it. Real caches hold less, so it is the most that
a prefix can save.
"""

import math
from collections.abc import Sequence

import msgspec

from trimtab.workloads.base import WorkloadError
from trimtab.workloads.traces import TraceRecord

WINDOW_S = 60.0


class TraceLoad(msgspec.Struct, frozen=True, kw_only=True):
    """Requests of a trace. Tokens are means; `context_tokens_max` is the longest input with its output.

    `rates_per_s`: arrivals per second in each window of `window_s`, the last one left out unless it is whole.
    `prefix_share_max`: part (0 to 1) of input tokens that an endless cache would have held.
    """

    source: str
    requests: int
    span_s: float
    input_tokens: int
    output_tokens: int
    context_tokens_max: int
    rate_per_s_mean: float
    rate_per_s_max: float
    window_s: float
    rates_per_s: tuple[float, ...]
    prefix_share_max: float


def load_of_trace(
    records: Sequence[TraceRecord],
    *,
    source: str,
    block_tokens: int,
    window_s: float = WINDOW_S,
) -> TraceLoad:
    """Return the load of recorded requests; raises `WorkloadError` where there are fewer than two."""
    if len(records) < 2:
        raise WorkloadError(f"{source}: {len(records)} requests tell no rate; give at least two")
    times = [record.at_s for record in records]
    span_s = max(times) - min(times)
    if span_s <= 0.0:
        raise WorkloadError(f"{source}: all requests come at once; times that differ tell a rate")
    window_s = min(window_s, span_s)
    rates = _rates(times, span_s, window_s)
    count = len(records)
    return TraceLoad(
        source=source,
        requests=count,
        span_s=span_s,
        input_tokens=max(1, round(sum(record.input_tokens for record in records) / count)),
        output_tokens=max(1, round(sum(record.output_tokens for record in records) / count)),
        context_tokens_max=max(record.input_tokens + record.output_tokens for record in records),
        rate_per_s_mean=count / span_s,
        rate_per_s_max=max(rates),
        window_s=window_s,
        rates_per_s=rates,
        prefix_share_max=_shared(records, block_tokens),
    )


def _rates(times: Sequence[float], span_s: float, window_s: float) -> tuple[float, ...]:
    whole = max(1, math.floor(span_s / window_s + 1e-9))
    counts = [0] * (whole + 1)
    start_s = min(times)
    for at_s in times:
        counts[min(whole, int((at_s - start_s) / window_s))] += 1
    return tuple(count / window_s for count in counts[:whole])


def _shared(records: Sequence[TraceRecord], block_tokens: int) -> float:
    """Part of all input tokens whose blocks, with all before them, an earlier request had."""
    seen: set[tuple[str, int, int]] = set()
    held = total = 0
    for record in records:
        total += record.input_tokens
        matching = True
        blocks = [block for first, count in record.runs for block in range(first, first + count)]
        for place, block in enumerate(blocks):
            key = (record.scope, place, block)
            if matching and key in seen:
                held += min(block_tokens, record.input_tokens - place * block_tokens)
            else:
                matching = False
                seen.add(key)
    return held / total if total else 0.0
