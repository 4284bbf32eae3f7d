"""What servers say of their own configuration and of the batches they met, added to what a person told of them."""

from collections.abc import Sequence

import msgspec

from trimtab.core.served import EngineKind, Gauge, ServerWindow
from trimtab.diagnosis.served_facts import ServedFacts

_NO_ENGINES = (EngineKind.DCGM, EngineKind.NODE, EngineKind.DYNAMO_FRONTEND, EngineKind.UNKNOWN)
_CACHING = ("enable_prefix_caching", "prefix_caching", "enable_caching", "enable_block_reuse")
_TRUE, _FALSE = ("true", "1", "yes", "on"), ("false", "0", "no", "off")


def facts_with(facts: ServedFacts, windows: Sequence[ServerWindow]) -> ServedFacts:
    """Return the facts with the servers' own configuration where the person told nothing else.

    `effective` gets what all servers agree on, the kind of engine as "engine" included; `slots` the limit of requests
    of a rank, if all ranks have the same; `cache.enabled` what the engine says of prefix caching;
    `speculation.batches`, beside measured ratios, the running requests of a rank at each scrape of one server.
    """
    effective = {**_agreed(windows), **facts.effective}
    slots = facts.slots if facts.slots is not None else _slots(windows)
    cache = facts.cache
    if cache.enabled is None:
        cache = msgspec.structs.replace(cache, enabled=_caching(effective))
    speculation = facts.speculation
    if speculation is not None and speculation.ratios and not speculation.batches:
        speculation = msgspec.structs.replace(speculation, batches=_batches(windows))
    return msgspec.structs.replace(
        facts, effective=effective, slots=slots, cache=cache, speculation=speculation
    )


def _batches(windows: Sequence[ServerWindow]) -> tuple[float, ...]:
    """Return the batches that one server met, in order; of several servers there is no one order."""
    serving = [
        window for window in windows if any(Gauge.RUNNING in each for each in window.moments)
    ]
    if len(serving) != 1 or serving[0].engine in _NO_ENGINES or len(serving[0].moments) < 2:
        return ()
    ranks = sum(Gauge.RUNNING in rank.gauges for rank in serving[0].ranks)
    seen = [each[Gauge.RUNNING] / ranks for each in serving[0].moments if Gauge.RUNNING in each]
    return tuple(max(1.0, batch) for batch in seen if batch > 0)


def _agreed(windows: Sequence[ServerWindow]) -> dict[str, str]:
    told = [
        {**window.configured, "engine": window.engine.value}
        for window in windows
        if window.engine not in _NO_ENGINES
    ]
    if not told:
        return {}
    first = told[0]
    return {
        key: value for key, value in first.items() if all(each.get(key) == value for each in told)
    }


def _slots(windows: Sequence[ServerWindow]) -> int | None:
    limits = {
        rank.gauges[Gauge.REQUESTS_MAX]
        for window in windows
        for rank in window.ranks
        if rank.gauges.get(Gauge.REQUESTS_MAX, 0.0) > 0
    }
    return int(limits.pop()) if len(limits) == 1 else None


def _caching(effective: dict[str, str]) -> bool | None:
    for text in (effective[key].strip().lower() for key in _CACHING if key in effective):
        if text in _TRUE + _FALSE:
            return text in _TRUE
    return None
