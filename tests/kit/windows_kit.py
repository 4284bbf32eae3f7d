"""Scrapes of servers, made in the words that engines are read into."""

from collections.abc import Mapping

from trimtab.core.served import (
    Buckets,
    Counter,
    Distribution,
    EngineKind,
    Gauge,
    RankSample,
    ServerSample,
    ServerWindow,
)
from trimtab.diagnosis.served_window import window_of


def rank(
    name: str = "0",
    *,
    gauges: Mapping[Gauge, float] | None = None,
    counters: Mapping[Counter, float] | None = None,
    distributions: Mapping[Distribution, Buckets] | None = None,
    positions: tuple[float, ...] = (),
) -> RankSample:
    return RankSample(
        rank=name,
        gauges=gauges or {},
        counters=counters or {},
        distributions=distributions or {},
        accepted_by_position=positions,
    )


def scrape(
    *ranks: RankSample,
    at_s: float = 100.0,
    source: str = "server",
    engine: EngineKind = EngineKind.VLLM,
    version: str | None = None,
    model: str | None = None,
    started_at_s: float | None = None,
    names: Mapping[str, str] | None = None,
) -> ServerSample:
    return ServerSample(
        source=source,
        at_s=at_s,
        engine=engine,
        version=version,
        model=model,
        started_at_s=started_at_s,
        ranks=ranks,
        names=names or {},
    )


def lived(*ranks: RankSample, engine: EngineKind = EngineKind.VLLM) -> ServerWindow:
    """Give the window of one scrape, which speaks of the time since the start."""
    return window_of([scrape(*ranks, engine=engine)])


def grew(
    *ranks: RankSample,
    seconds: float = 10.0,
    source: str = "server",
    engine: EngineKind = EngineKind.VLLM,
) -> ServerWindow:
    """Give the window in which counters and histograms grew from nothing to what `ranks` say."""
    before = [
        rank(
            each.rank,
            gauges=each.gauges,
            counters=dict.fromkeys(each.counters, 0.0),
            distributions={key: emptied(one) for key, one in each.distributions.items()},
        )
        for each in ranks
    ]
    first = scrape(*before, at_s=100.0, source=source, engine=engine)
    return window_of([first, scrape(*ranks, at_s=100.0 + seconds, source=source, engine=engine)])


def emptied(buckets: Buckets) -> Buckets:
    return Buckets(
        edges=buckets.edges,
        cumulative=(0.0,) * len(buckets.edges),
        total=0.0,
        sum=None if buckets.sum is None else 0.0,
    )


def spread(total: float, mean: float, edges: tuple[float, ...] = (), *below: float) -> Buckets:
    """Give a histogram of `total` values with a mean, and cumulative counts at its edges."""
    return Buckets(edges=edges, cumulative=below, total=total, sum=total * mean)
