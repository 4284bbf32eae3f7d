"""What a reader of the readings must know: sources that contradict each other, and populations that differ.

A contradiction is shown and never settled in silence: both values stand, and the note says which is trusted and why.
Counters are trusted before gauges, for a gauge is one moment of a value that the engine averages as it likes; engines
are trusted before front ends, for a front end sees only what passes through it.
"""

from collections.abc import Iterator
from typing import Final

from trimtab.core.evidence import Readings
from trimtab.core.served import Counter, Distribution, Gauge, Note
from trimtab.diagnosis.served_names import ServedName
from trimtab.diagnosis.served_readings_pool import Pool, pool_of
from trimtab.diagnosis.served_readings_times import leaves_out_waiting, mean_s, population_text
from trimtab.diagnosis.served_window_tells import FRONT_ENDS

RATE_FACTOR_MAX = 2.0
"""A throughput gauge and the counters' rate may differ by this factor before they contradict each other."""

IMPLIED_FACTOR_MAX = 3.0
"""The same for running requests over time per token, which counts requests in prefill too."""

ONE_TOKEN_MAX = 1.5
"""A server whose requests end with fewer output tokens than this only prefills."""

FIRST_TOKEN_FACTOR_MAX = 1.5
FIRST_TOKEN_GAP_MIN_S = 0.05
"""First tokens that a front end sees later than its engines, by more than both of these, wait outside the engines."""

IN_FLIGHT_GAP_MIN = 4.0
"""So many requests more at a front end than at its engines are no matter of the moment of scraping."""

HIT_SHARE_GAP_MAX = 0.10
"""Two hit shares of one window may differ by this much."""


def contradictions(pool: Pool, readings: Readings) -> tuple[Note, ...]:
    """Return what of the readings contradicts itself; the throughput gauge says so in its own note."""
    found = [*_hit_shares(pool, readings), *_front_ends(pool), *_halves(pool)]
    if leaves_out_waiting(pool):
        text = "the mean wait exceeds the mean time to the first token, which leaves the wait out"
        found.append(Note(kind="conflict", text=text, metric=Distribution.TTFT.value))
    if people := population_text(pool):
        found.append(Note(kind="population", text=people, metric=Distribution.E2E.value))
    return tuple(found)


_TRUSTED: Final = {
    Gauge.PREFIX_HIT_SHARE.value: ServedName.PREFIX_HIT_SHARE,
    Counter.REQUESTS_FINISHED.value: ServedName.REQUESTS_FINISHED_PER_S,
    Counter.OUTPUT_TOKENS.value: ServedName.OUTPUT_TOKENS_PER_S,
}
"""The reading that is kept where a figure has two sources, by the metric that a note is about."""


def disputed_names(pool: Pool, readings: Readings) -> dict[str, str]:
    """Return what another source says, by the name of the reading that is trusted in spite of it."""
    notes = (*_hit_shares(pool, readings), *_front_ends(pool))
    found = {
        _TRUSTED[note.metric].value: note.text
        for note in notes
        if note.kind == "conflict" and note.metric in _TRUSTED
    }
    if text := _gauge_and_counters(pool, readings):
        found[ServedName.OUTPUT_TOKENS_PER_S.value] = text
    return found


def throughput_conflict(pool: Pool, readings: Readings) -> str:
    """Return in words what contradicts the throughput gauge, "" if nothing does.

    A rate over a server's life holds its idle hours and contradicts no gauge.
    """
    name, words = (
        ServedName.OUTPUT_IMPLIED_TOKENS_PER_S,
        "running requests over time per token give",
    )
    return _gauge_and_counters(pool, readings) or _against_gauge(
        readings, name, IMPLIED_FACTOR_MAX, words
    )


def _gauge_and_counters(pool: Pool, readings: Readings) -> str:
    """Return in words how the throughput gauge and the counters of the window differ, "" if they do not."""
    counted = pool.origin(Counter.OUTPUT_TOKENS)
    if counted is None or counted.lifetime:
        return ""
    name = ServedName.OUTPUT_TOKENS_PER_S
    return _against_gauge(readings, name, RATE_FACTOR_MAX, "the counters' rate is")


def _against_gauge(readings: Readings, name: ServedName, factor: float, words: str) -> str:
    gauge, told = readings.value(ServedName.OUTPUT_GAUGE_TOKENS_PER_S), readings.value(name)
    # Near zero a ratio says nothing: one request more or less is the difference.
    if gauge is None or told is None or max(gauge, told) <= 1.0 or _near(gauge, told, factor):
        return ""
    return (
        f"the throughput gauge says {gauge:.4g} tokens/s, {words} {told:.4g}: "
        "the gauge is not trusted"
    )


def _near(one: float, other: float, factor: float) -> bool:
    return max(one, other) <= factor * max(min(one, other), 1e-9)


def _hit_shares(pool: Pool, readings: Readings) -> Iterator[Note]:
    """Compare the engine's own hit rate with the counters of the window."""
    told = pool.gauges(Gauge.PREFIX_HIT_SHARE)
    counted = pool.origin(Counter.PREFIX_HITS, Counter.PREFIX_QUERIES)
    share = readings.value(ServedName.PREFIX_HIT_SHARE)
    if told is None or counted is None or share is None:
        return
    mean = sum(told[0]) / len(told[0])
    if abs(mean - share) > HIT_SHARE_GAP_MAX:
        text = (
            f"hit rate {mean:.1%} by the gauge and {share:.1%} by the counters of the window: "
            "the counters are trusted, the gauge speaks of a stretch that the engine chooses"
        )
        yield Note(kind="conflict", text=text, metric=Gauge.PREFIX_HIT_SHARE.value)


def _halves(pool: Pool) -> Iterator[Note]:
    """Tell servers that only prefill from servers that decode: their requests are halves of the same ones."""
    lengths = {
        window.source: mean_s(pool_of((window,), pool.id_prefix), Distribution.OUTPUT_LENGTH)
        for window in pool.windows
    }
    known = {source: length for source, length in lengths.items() if length is not None}
    prefill = [source for source, length in known.items() if length <= ONE_TOKEN_MAX]
    if prefill and len(prefill) < len(known):
        text = (
            f"{', '.join(prefill)} makes one token a request, as a server that only prefills does: "
            "means over all sources mix two halves of the same requests; read each source by itself"
        )
        yield Note(kind="population", text=text, metric=Distribution.OUTPUT_LENGTH.value)


def _front_ends(pool: Pool) -> Iterator[Note]:
    """Compare what front ends and the engines behind them say of the same requests."""
    front = tuple(one for one in pool.windows if one.engine in FRONT_ENDS)
    engines = tuple(one for one in pool.windows if one.engine not in FRONT_ENDS)
    if not front or not engines:
        return
    before, behind = pool_of(front, pool.id_prefix), pool_of(engines, pool.id_prefix)
    yield from _before_the_engines(before, behind)
    for counter in (Counter.REQUESTS_FINISHED, Counter.OUTPUT_TOKENS):
        one, other = before.rate(counter), behind.rate(counter)
        if isinstance(one, str) or isinstance(other, str):
            continue
        if max(one.value, other.value) > 0.1 and not _near(one.value, other.value, RATE_FACTOR_MAX):
            text = (
                f"{counter.value} per second: {one.value:.4g} at the front end, "
                f"{other.value:.4g} at the engines, which are trusted"
            )
            yield Note(kind="conflict", text=text, metric=counter.value)


def _before_the_engines(before: Pool, behind: Pool) -> Iterator[Note]:
    """Tell first tokens that are late at the front end and in time at the engines: the wait is between the two."""
    there, here = _in_flight(before), _in_flight(behind)
    if (
        there is not None
        and here is not None
        and there > RATE_FACTOR_MAX * here + IN_FLIGHT_GAP_MIN
    ):
        text = (
            f"{there:,.0f} requests in flight at the front end, {here:,.0f} at the engines: the others wait "
            "before them, and no engine's queue shows it"
        )
        yield Note(kind="conflict", text=text, metric=Gauge.WAITING.value)
    seen, made = (mean_s(each, Distribution.TTFT) for each in (before, behind))
    if seen is None or made is None:
        return
    if seen > FIRST_TOKEN_FACTOR_MAX * made and seen - made > FIRST_TOKEN_GAP_MIN_S:
        text = (
            f"mean time to the first token {seen * 1000:,.0f} ms at the front end, {made * 1000:,.0f} ms at the "
            "engines: the rest passes before or around them, and no engine's queue shows it"
        )
        yield Note(kind="conflict", text=text, metric=Distribution.TTFT.value)


def _in_flight(pool: Pool) -> float | None:
    """Return running and waiting requests together, None unless every rank tells both."""
    told = [pool.gauges(gauge) for gauge in (Gauge.RUNNING, Gauge.WAITING)]
    if any(pool.untold(gauge) for gauge in (Gauge.RUNNING, Gauge.WAITING)):
        return None
    values = [sum(found[0]) for found in told if found is not None and not found[1].lost]
    return sum(values) if len(values) == len(told) else None
