"""How loaded a server is by its own metrics, in the same words for every engine.

Counts of ranks are added; of the KV shares the largest is what saturates first. What a page does not tell, and what a
rank that vanished would have told, is unknown, never zero.
"""

from collections.abc import Set
from typing import Final

import msgspec

from trimtab.core.evidence import Reading, Readings
from trimtab.core.served import Counter, EngineKind, Gauge, RankSample, ServerSample
from trimtab.engines.base import reading

SATURATED_KV_SHARE: Final = 0.95
"""A rank whose KV share reaches this takes no further request without preempting another."""

_GAUGES: Final = (
    (Gauge.RUNNING, "requests_processing", "requests"),
    (Gauge.WAITING, "requests_deferred", "requests"),
)
_COUNTERS: Final = (
    (Counter.PROMPT_TOKENS, "prompt_tokens_total", "tokens"),
    (Counter.CACHED_TOKENS, "prompt_tokens_cached_total", "tokens"),
    (Counter.PROMPT_SECONDS, "prompt_seconds_total", "s"),
    (Counter.OUTPUT_TOKENS, "tokens_predicted_total", "tokens"),
    (Counter.DECODE_SECONDS, "tokens_predicted_seconds_total", "s"),
    (Counter.PREEMPTIONS, "preemptions_total", "preemptions"),
    (Counter.DRAFTS, "drafts_total", "drafts"),
    (Counter.DRAFTED_TOKENS, "drafted_tokens_total", "tokens"),
    (Counter.ACCEPTED_TOKENS, "accepted_tokens_total", "tokens"),
)
_COUNT_DRAFTS: Final = frozenset({EngineKind.VLLM, EngineKind.SGLANG})
_GROWS: Final = (
    Counter.PROMPT_TOKENS,
    Counter.OUTPUT_TOKENS,
    Counter.REQUESTS_FINISHED,
    Counter.PREFIX_QUERIES,
)


class EngineLoad(msgspec.Struct, frozen=True, kw_only=True):
    """What one page says of a server's load; None is unknown.

    `running`, `waiting`: requests over all ranks; `kv_used_share`: of the fullest rank, `kv_used_share_mean` over the
    ranks; `saturated`: ranks without room for another request; `lost`: ranks that told before and do not now.
    """

    running: int | None = None
    waiting: int | None = None
    kv_used_share: float | None = None
    kv_used_share_mean: float | None = None
    saturated: tuple[str, ...] = ()
    lost: tuple[str, ...] = ()


def load_of(sample: ServerSample, *, ranks_before: Set[str] = frozenset()) -> EngineLoad:
    """Return the load that a page tells. `ranks_before`: the ranks that told of requests on the page before."""
    lost = tuple(sorted(ranks_before - ranks_of(sample)))
    if lost:
        # The others' sum would read as a fall in load.
        return EngineLoad(lost=lost)
    shares = {
        rank.rank: rank.gauges[Gauge.KV_USED_SHARE]
        for rank in sample.ranks
        if Gauge.KV_USED_SHARE in rank.gauges
    }
    return EngineLoad(
        running=_whole(sample.gauge_sum(Gauge.RUNNING)),
        waiting=_whole(sample.gauge_sum(Gauge.WAITING)),
        kv_used_share=max(shares.values(), default=None),
        kv_used_share_mean=sum(shares.values()) / len(shares) if shares else None,
        saturated=tuple(rank for rank, share in shares.items() if share >= SATURATED_KV_SHARE),
    )


def drafts_nothing(sample: ServerSample) -> bool | None:
    """Say whether a page of an engine that counts drafts wherever there are any counts none: then a step gives a token.

    vLLM has these counters only where it speculates, SGLang says 0. Other engines' pages do not tell, nor does one
    without its count of output tokens: None.
    """
    if sample.engine not in _COUNT_DRAFTS or sample.counter_sum(Counter.OUTPUT_TOKENS) is None:
        return None
    if sample.engine is EngineKind.SGLANG and sample.gauge_sum(Gauge.ACCEPTED_LENGTH) is not None:
        return False
    counted = (Counter.DRAFTS, Counter.DRAFTED_TOKENS, Counter.ACCEPTED_TOKENS)
    return not any(sample.counter_sum(counter) for counter in counted)


def ranks_of(sample: ServerSample) -> frozenset[str]:
    """Return the ranks that tell of requests or of KV."""
    return frozenset(rank.rank for rank in sample.ranks if _tells_load(rank))


def _tells_load(rank: RankSample) -> bool:
    return not rank.gauges.keys().isdisjoint((Gauge.RUNNING, Gauge.WAITING, Gauge.KV_USED_SHARE))


def _whole(value: float | None) -> int | None:
    return None if value is None else max(0, round(value))


def has_restarted(before: ServerSample, after: ServerSample) -> bool:
    """Say whether the server began anew between two pages: another start time, or a counter that went back.

    A rank that vanished takes its counts with it; that alone is no restart.
    """
    told = before.started_at_s is not None and after.started_at_s is not None
    if told and before.started_at_s != after.started_at_s:
        return True
    now = {rank.rank: rank.counters for rank in after.ranks}
    return any(
        now[rank.rank].get(counter, rank.counters[counter]) < rank.counters[counter]
        for rank in before.ranks
        if rank.rank in now
        for counter in _GROWS
        if counter in rank.counters
    )


def readings_of_sample(sample: ServerSample, *, source: str) -> Readings:
    """Return a page as readings under the names that a diagnosis of the fleet knows; counters end in `_total`."""
    found: list[Reading] = [
        reading(name, sample.gauge_sum(gauge), unit=unit, source=source, at_s=sample.at_s)
        for gauge, name, unit in _GAUGES
    ]
    found += [
        reading(
            name,
            sample.counter_sum(counter),
            unit=unit,
            source=source,
            at_s=sample.at_s,
            note="since the server started",
        )
        for counter, name, unit in _COUNTERS
    ]
    load = load_of(sample)
    found.append(
        reading(
            "kv_used_share",
            load.kv_used_share_mean,
            unit="share",
            source=source,
            at_s=sample.at_s,
        )
    )
    return Readings(tuple(found))
