"""What must be known before a reading is believed: conflicts, impossible shares, last edges, ranks, restarts."""

import math
from collections.abc import Iterator

from trimtab.core.evidence import Evidence, Readings, Unknown
from trimtab.diagnosis.binding import KV_TIGHT_SHARE
from trimtab.diagnosis.served_advice import ServedWarning, WarningKind
from trimtab.diagnosis.served_facts import ServedFacts
from trimtab.diagnosis.served_names import ServedName, high_of, low_of
from trimtab.diagnosis.served_rules_costs import Costs, tokens_per_step_of
from trimtab.diagnosis.served_rules_phases import (
    SLOTS_WRONG_SHARE,
    kv_used,
    preempts,
    slots_running,
)

HITS_WITHOUT_PREFIX_SHARE = 0.05
"""Above this hit share prompts that share nothing make the figure unbelievable."""

CONTRADICTS_FACTOR = 3.0
"""Two ways to tell one rate contradict each other from this factor on."""

HITS_DIFFER_SHARE = 0.2
FAILED_SHARE = 0.01
WIDE_PART = 0.5
"""A bucket that holds the mean too and is wider than this part of it is named: no quantile in it means anything."""

FAR_FROM_CEILING = 6.0

_QUANTILES = (
    ServedName.TTFT_MS_P50,
    ServedName.TTFT_MS_P99,
    ServedName.QUEUE_MS_P50,
    ServedName.TPOT_MS_P50,
    ServedName.TPOT_MS_P99,
    ServedName.PROMPT_LENGTH_P99,
)
_MEAN_OF = {
    ServedName.TTFT_MS_P50: ServedName.TTFT_MS_MEAN,
    ServedName.TTFT_MS_P99: ServedName.TTFT_MS_MEAN,
    ServedName.QUEUE_MS_P50: ServedName.QUEUE_MS_MEAN,
    ServedName.TPOT_MS_P50: ServedName.TPOT_MS_MEAN,
    ServedName.TPOT_MS_P99: ServedName.TPOT_MS_MEAN,
    ServedName.PROMPT_LENGTH_P99: ServedName.PROMPT_LENGTH_MEAN,
}


def warnings_of(
    readings: Readings, facts: ServedFacts, costs: Costs, stale: str = ""
) -> tuple[ServedWarning, ...]:
    """Return every warning that the readings and facts give reason for; `stale` says why they are, if they are."""
    old = (ServedWarning(kind=WarningKind.STALE, text=stale),) if stale else ()
    return (
        *old,
        *_hits(readings, facts),
        *_throughput(readings),
        *_edges(readings),
        *_tokens(readings),
        *_ranks(readings),
        *_failures(readings),
        *_configuration(readings, facts),
        *_far_below(readings, costs),
    )


def hits_untrusted(readings: Readings, facts: ServedFacts) -> str | None:
    """Say why the hit share is no reuse; None if nothing speaks against it, or it is unknown."""
    hits = readings.value(ServedName.PREFIX_HIT_SHARE)
    if hits is None or hits <= HITS_WITHOUT_PREFIX_SHARE:
        return None
    if hits > 1.0:
        return f"a hit share of {hits:.3g} is above 1"
    thrash = preempts(readings) and (kv_used(readings) or 0.0) > KV_TIGHT_SHARE
    if facts.shares_no_prefix:
        more = ": recomputation after preemption counts as hits" if thrash else ""
        return f"{hits:.0%} hits on prompts that share no prefix{more}"
    if thrash:
        return f"requests are preempted: of the {hits:.0%} hits some are recomputation of the same request"
    return None


def _warn(kind: WarningKind, text: str, readings: Readings, *names: str) -> ServedWarning:
    return ServedWarning(kind=kind, text=text, evidence=readings.ids(*names))


def _hits(readings: Readings, facts: ServedFacts) -> Iterator[ServedWarning]:
    window, whole = (
        readings.value(ServedName.PREFIX_HIT_SHARE),
        readings.value(ServedName.PREFIX_HIT_SHARE_LIFETIME),
    )
    names = (ServedName.PREFIX_HIT_SHARE, ServedName.PREFIX_HIT_SHARE_LIFETIME)
    refused = _refused(readings, names)
    if refused is not None:
        yield _warn(WarningKind.HIT_SHARE_IMPOSSIBLE, refused, readings, *names)
    reason = None if refused is not None else hits_untrusted(readings, facts)
    if reason is not None:
        yield _warn(WarningKind.HIT_SHARE_UNTRUSTED, reason, readings, *names)
    if whole is not None and whole <= 1.0 and (window is None or abs(window - whole) > 0.1):
        shown = "unknown" if window is None else f"{window:.1%}"
        text = f"hits since start are {whole:.1%}, in the window {shown}: only the window speaks of now"
        yield _warn(WarningKind.HIT_SHARE_LIFETIME, text, readings, *names)
    proxy, engine = facts.cache.proxy_hit_share, window if window is not None else whole
    if proxy is not None and engine is not None and abs(proxy - engine) > HITS_DIFFER_SHARE:
        text = f"a proxy counts {proxy:.0%} hits, the engine {engine:.0%}: the engine did the work, trust it"
        yield _warn(WarningKind.HIT_SHARE_CONFLICT, text, readings, *names)


def _refused(readings: Readings, names: tuple[str, ...]) -> str | None:
    """Say that a hit share cannot be one: a reader refused it, or it is above 1."""
    for item in (readings.get(name) for name in names):
        if isinstance(item, Unknown) and ("above 1" in item.reason or "no share" in item.reason):
            return f"{item.name}: {item.reason}"
        if isinstance(item, Evidence) and item.value > 1.0:
            return f"{item.name} of {item.value:.3g} is above 1: the ratio is upside down, or two kinds of tokens"
    return None


def _throughput(readings: Readings) -> Iterator[ServedWarning]:
    gauge, rate = (
        readings.value(ServedName.OUTPUT_GAUGE_TOKENS_PER_S),
        readings.get(ServedName.OUTPUT_TOKENS_PER_S),
    )
    if gauge is None:
        return
    # A rate over a server's life holds its idle hours and contradicts no gauge.
    counted = rate.value if isinstance(rate, Evidence) and not is_since_start(rate) else None
    told = (
        (counted, "the counters give"),
        (_implied(readings), "running streams at their TPOT make"),
    )
    for other, how in told:
        if other is None or max(gauge, other) <= 1.0:
            continue
        if max(gauge, other) >= CONTRADICTS_FACTOR * min(gauge, other):
            text = f"the throughput gauge says {gauge:,.1f} tokens/s, {how} {other:,.0f}: do not trust the gauge"
            names = (
                ServedName.OUTPUT_GAUGE_TOKENS_PER_S,
                ServedName.OUTPUT_TOKENS_PER_S,
                ServedName.OUTPUT_IMPLIED_TOKENS_PER_S,
                ServedName.RUNNING_MEAN,
                ServedName.TPOT_MS_MEAN,
            )
            yield _warn(WarningKind.GAUGE_CONTRADICTS, text, readings, *names)
            return


def _implied(readings: Readings) -> float | None:
    """Return the output rate that running streams and their time per token imply, None if either is unknown."""
    told = readings.value(ServedName.OUTPUT_IMPLIED_TOKENS_PER_S)
    running, token = (
        readings.value(ServedName.RUNNING_MEAN),
        readings.value(ServedName.TPOT_MS_MEAN),
    )
    return told if told is not None or running is None or not token else 1000.0 * running / token


def bounds_of(readings: Readings, name: str) -> tuple[float, float] | None:
    """Return what a quantile lies between; the upper end is infinite above the last edge. None if unknown."""
    low, high = readings.value(low_of(name)), readings.value(high_of(name))
    if low is not None:
        return low, math.inf if high is None else high
    reading = readings.get(name)
    if not isinstance(reading, Evidence):
        return None
    if reading.interval is not None:
        return reading.interval.low, reading.interval.high
    return reading.value, reading.value


def _edges(readings: Readings) -> Iterator[ServedWarning]:
    for name in _QUANTILES:
        bounds, mean = bounds_of(readings, name), readings.value(_MEAN_OF[name])
        if bounds is None:
            continue
        low, high = bounds
        beside = "" if mean is None else f", mean {mean:,.1f}"
        unit, ids = "tokens" if "length" in name else "ms", (name, low_of(name), high_of(name))
        if math.isinf(high):
            edge = f"{low / 1000.0:g} s" if unit == "ms" else f"{low:,.0f} {unit}"
            text = f"{_said(name)} > {edge}, the last edge of its histogram{beside}"
            yield _warn(WarningKind.ABOVE_LAST_EDGE, text, readings, *ids)
        elif mean and high - low > WIDE_PART * mean and low <= mean <= high:
            text = f"{_said(name)} lies between {low:,.4g} and {high:,.4g} {unit}{beside}: no finer figure is known"
            yield _warn(WarningKind.WIDE_BUCKET, text, readings, *ids)


def _said(name: str) -> str:
    """Return a quantile's name as people say it: "TTFT p50"."""
    words = name.replace("_ms_", " ").replace("_", " ")
    return words.replace("ttft", "TTFT").replace("tpot", "TPOT")


def _tokens(readings: Readings) -> Iterator[ServedWarning]:
    gap = readings.value(ServedName.CHUNK_GAP_MS_MEAN)
    per_step = readings.value(ServedName.TOKENS_PER_CHUNK_MEAN) or tokens_per_step_of(readings)
    token = readings.value(ServedName.TPOT_MS_MEAN)
    if gap is not None and per_step > 1.1:
        shown = f"{token:.3g} ms per token" if token is not None else "TPOT is not told"
        text = f"chunks come every {gap:.3g} ms with {per_step:.2f} tokens each; {shown}: a chunk gap is no token time"
        names = (ServedName.CHUNK_GAP_MS_MEAN, ServedName.TPOT_MS_MEAN)
        yield _warn(WarningKind.CHUNKS_ARE_NOT_TOKENS, text, readings, *names)
    queue, first = (
        readings.value(ServedName.QUEUE_MS_MEAN),
        readings.value(ServedName.TTFT_MS_MEAN),
    )
    told = readings.get(ServedName.TTFT_MS_MEAN)
    summed = isinstance(told, Evidence) and "leave out the wait" in told.note
    if queue is not None and first is not None and (queue > first or summed):
        text = f"the engine's TTFT leaves out waiting ({queue:,.0f} ms)"
        text += f": a user waits {first:,.0f} ms for the first token" if summed else ""
        names = (ServedName.QUEUE_MS_MEAN, ServedName.TTFT_MS_MEAN)
        yield _warn(WarningKind.TTFT_WITHOUT_QUEUE, text, readings, *names)


def _ranks(readings: Readings) -> Iterator[ServedWarning]:
    ranks, full = (
        readings.value(ServedName.RANKS),
        readings.value(ServedName.RANKS_SATURATED),
    )
    if full and ranks is not None and full < ranks:
        mean, most = (
            readings.value(ServedName.KV_USED_SHARE_MEAN),
            readings.value(ServedName.KV_USED_SHARE_MAX),
        )
        shown = (
            "" if mean is None or most is None else f": KV usage mean {mean:.1%}, max {most:.0%}"
        )
        count = "one rank is" if full == 1 else f"{full:.0f} ranks are"
        names = (ServedName.RANKS_SATURATED, ServedName.KV_USED_SHARE_MAX, ServedName.RANKS)
        yield _warn(
            WarningKind.RANK_SATURATED, f"{count} saturated of {ranks:.0f}{shown}", readings, *names
        )
    lost = readings.value(ServedName.RANKS_LOST)
    if lost:
        text = f"{lost:.0f} ranks vanished: what they do is unknown, totals are not a fall in load"
        yield _warn(WarningKind.RANK_LOST, text, readings, ServedName.RANKS_LOST)
    restarts = readings.value(ServedName.RESTARTS)
    if restarts:
        text = f"{restarts:.0f} restarts in the window: its counters began anew"
        yield _warn(WarningKind.RESTARTED, text, readings, ServedName.RESTARTS)
    lifetime = ServedName.PREFIX_HIT_SHARE_LIFETIME
    if any(is_since_start(item) for item in readings.items if item.name != lifetime):
        text = "one scrape only: counters and histograms speak of the time since start, gauges of a moment"
        yield ServedWarning(kind=WarningKind.SINCE_START, text=text)


def is_since_start(reading: object) -> bool:
    """Say whether a reading speaks of the time since the server's start."""
    return isinstance(reading, Evidence) and "since start" in reading.note


def _failures(readings: Readings) -> Iterator[ServedWarning]:
    failed = readings.value(ServedName.REQUESTS_FAILED_SHARE)
    if failed is not None and failed > FAILED_SHARE:
        text = f"{failed:.1%} of the requests fail"
        yield _warn(WarningKind.FAILURES, text, readings, ServedName.REQUESTS_FAILED_SHARE)
    moved = readings.value(ServedName.TRANSFER_FAILURES)
    if moved:
        text = f"{moved:.0f} transfers of KV failed: each must end in a local prefill or one error"
        yield _warn(WarningKind.TRANSFER_FAILURES, text, readings, ServedName.TRANSFER_FAILURES)
    expired = readings.value(ServedName.TRANSFERS_EXPIRED)
    if expired:
        text = (
            f"{expired:.0f} prompts were never fetched: their blocks were kept until they expired"
        )
        yield _warn(WarningKind.TRANSFER_FAILURES, text, readings, ServedName.TRANSFERS_EXPIRED)


def _configuration(readings: Readings, facts: ServedFacts) -> Iterator[ServedWarning]:
    told = slots_running(readings, facts)
    if told is not None and told > SLOTS_WRONG_SHARE:
        text = f"{told:.1f} times as many requests run as there are slots: the limit told is not the one in effect"
        yield _warn(WarningKind.CONFIGURATION_DIFFERS, text, readings, ServedName.RUNNING_MEAN)
    for key, wanted in sorted(facts.requested.items()):
        found = facts.effective.get(key)
        if found is not None and found.strip().lower() != wanted.strip().lower():
            text = f"{key}: {wanted} was requested, {found} is in effect"
            yield ServedWarning(kind=WarningKind.CONFIGURATION_DIFFERS, text=text)


def _far_below(readings: Readings, costs: Costs) -> Iterator[ServedWarning]:
    observed = readings.value(ServedName.TPOT_MS_MEAN)
    if costs.token_ms is None or observed is None or costs.token_ms <= 0:
        return
    ratio = observed / costs.token_ms
    if ratio >= FAR_FROM_CEILING:
        text = (
            f"a token takes {ratio:.0f} times what {costs.source} allows: no ceiling of the hardware binds, "
            "look for stalls, overhead or a wrong --model or --hardware"
        )
        names = (ServedName.TPOT_MS_MEAN, ServedName.RUNNING_MEAN)
        yield _warn(WarningKind.BELOW_CEILINGS, text, readings, *names)
