"""The words of an answer that terminal and page share."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import msgspec

from trimtab.core.evidence import Evidence, Reading, Readings
from trimtab.core.narrate_words import UNKNOWN, number, share
from trimtab.diagnosis.served_advice import Activity, Outcome
from trimtab.diagnosis.served_names import ServedName, high_of, low_of

if TYPE_CHECKING:
    from trimtab.interfaces.diagnose_answer import DiagnoseAnswer, LeverAnswer, SourceAnswer

OUTCOME_SIGNS: Final = {
    Outcome.HEALTHY: "\u2713 healthy",
    Outcome.BOTTLENECK: "! bottleneck",
    Outcome.CANNOT_TELL: "? cannot tell",
}
"""Outcomes as sign and word, so that colour is never alone."""

ACTIVITY_WORDS: Final = {
    Activity.WORKING: "working",
    Activity.IDLE: "idle",
    Activity.SATURATED: "saturated",
    Activity.STALE: "stale: its numbers stand still",
    Activity.UNKNOWN: "activity unknown",
}

KEY_READINGS: Final[tuple[tuple[ServedName, str], ...]] = (
    (ServedName.RUNNING_MEAN, "Running requests, mean"),
    (ServedName.WAITING_MEAN, "Waiting requests, mean"),
    (ServedName.KV_USED_SHARE_MEAN, "KV used, mean"),
    (ServedName.KV_USED_SHARE_MAX, "KV used, largest"),
    (ServedName.TTFT_MS_MEAN, "TTFT mean"),
    (ServedName.TTFT_MS_P50, "TTFT p50"),
    (ServedName.TTFT_MS_P99, "TTFT p99"),
    (ServedName.QUEUE_MS_MEAN, "Queue time mean"),
    (ServedName.TPOT_MS_MEAN, "TPOT mean"),
    (ServedName.TPOT_MS_P50, "TPOT p50"),
    (ServedName.TPOT_MS_P99, "TPOT p99"),
    (ServedName.CHUNK_GAP_MS_MEAN, "Chunk gap mean"),
    (ServedName.E2E_MS_MEAN, "End to end mean"),
    (ServedName.PROMPT_LENGTH_MEAN, "Prompt length mean"),
    (ServedName.PROMPT_LENGTH_P99, "Prompt length p99"),
    (ServedName.OUTPUT_TOKENS_PER_S, "Output tokens per second"),
    (ServedName.OUTPUT_GAUGE_TOKENS_PER_S, "Output tokens per second, engine's gauge"),
    (ServedName.PREFIX_HIT_SHARE, "Prefix hits"),
    (ServedName.PREEMPTIONS, "Preemptions"),
    (ServedName.DRAFT_ACCEPTANCE_SHARE, "Draft acceptance"),
    (ServedName.ACCEPTED_LENGTH_WITH_BONUS, "Acceptance length with the bonus token"),
    (ServedName.ACCEPTED_LENGTH_WITHOUT_BONUS, "Acceptance length without the bonus token"),
    (ServedName.TRANSFER_MS_MEAN, "Transfer mean"),
    (ServedName.TRANSFER_BYTES_PER_S, "Transfer rate"),
    (ServedName.GPU_MEMORY_USED_SHARE, "GPU memory used"),
    (ServedName.GPU_BUSY_SHARE, "GPU busy"),
)

TRENDS: Final[tuple[tuple[ServedName, str], ...]] = (
    (ServedName.RUNNING_MEAN, "Running requests"),
    (ServedName.WAITING_MEAN, "Waiting requests"),
    (ServedName.KV_USED_SHARE_MAX, "KV used, largest"),
    (ServedName.TTFT_MS_MEAN, "TTFT mean"),
    (ServedName.TPOT_MS_MEAN, "TPOT mean"),
    (ServedName.OUTPUT_TOKENS_PER_S, "Output tokens per second"),
)


class Moment(msgspec.Struct, frozen=True, kw_only=True):
    """What a watch remembers of one refresh: when, what binds, and the values of its trends by reading name."""

    at_s: float
    outcome: Outcome
    binding: str
    values: dict[str, float]


def moment_of(answer: "DiagnoseAnswer") -> Moment:
    """Return what a watch remembers of an answer."""
    values = {
        name.value: found.value
        for name, _ in TRENDS
        if (found := answer.readings.get(name.value)) is not None and found.value is not None
    }
    return Moment(
        at_s=answer.at_s, outcome=answer.outcome, binding=binding_words(answer), values=values
    )


def plain(value: str) -> str:
    """Return the value of a closed set as words."""
    return value.replace("_", " ")


def said_reading(reading: Reading, readings: Readings) -> str:
    """Say a reading as a person reads it; a quantile above the last edge is "> edge", never the edge."""
    if not isinstance(reading, Evidence):
        return UNKNOWN
    base, sign, where = reading.name.partition("@")
    low = readings.get(f"{low_of(base)}{sign}{where}")
    high = readings.get(f"{high_of(base)}{sign}{where}")
    if isinstance(low, Evidence) and not isinstance(high, Evidence):
        return f"> {said_value(low.value, low.unit)}"
    return said_value(reading.value, reading.unit)


def said_value(value: float | None, unit: str) -> str:
    """Say a value: shares in per cent with a decimal, latencies from 10,000 ms on in seconds, bytes with a prefix."""
    if value is None:
        return UNKNOWN
    match unit:
        case "share":
            return f"{100.0 * value:.1f}%".replace(".0%", "%")
        case "ms" if abs(value) >= 10_000:
            return f"{value / 1000:,.1f} s".replace(".0 s", " s")
        case "tokens/draft":
            return f"{value:.2f} {unit}"
        case "bytes" | "bytes/s":
            return f"{_bytes(value)}{unit.removeprefix('bytes')}"
        case _:
            return number(value, unit)


def _bytes(value: float) -> str:
    for factor, prefix in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= factor:
            return f"{value / factor:.3g} {prefix}B"
    return f"{value:.0f} B"


def binding_words(answer: "DiagnoseAnswer") -> str:
    """Say what binds."""
    if answer.binding is None:
        return "nothing binds" if answer.outcome is Outcome.HEALTHY else "what binds cannot be told"
    return f"{answer.binding.phase.value} is bound by {plain(answer.binding.resource.value)}"


def headline(answer: "DiagnoseAnswer") -> str:
    """Say the answer in one line."""
    of_time = ""
    if answer.binding is not None and answer.binding.share is not None:
        of_time = f", {share(answer.binding.share)} of request time"
    return (
        f"{binding_words(answer)}{of_time} (confidence {share(answer.confidence)}; "
        f"{ACTIVITY_WORDS[answer.activity]})"
    )


def levers_by_standing(
    levers: "Sequence[LeverAnswer]",
) -> "list[tuple[str, list[LeverAnswer]]]":
    """Return the levers under what is said of them, each group narrowest first; empty groups are left out."""
    standings = (
        ("Levers, narrowest first", True),
        ("Levers of which it cannot be told", None),
        ("Levers weighed and left", False),
    )
    groups = [
        (title, [each for each in levers if each.proposed is told]) for title, told in standings
    ]
    return [(title, found) for title, found in groups if found]


def lever_head(lever: "LeverAnswer") -> str:
    """Say a lever's name and its ceiling."""
    gain = (
        "gain unknown"
        if lever.gain_share_max is None
        else f"at most {share(lever.gain_share_max)} of request time"
    )
    return f"{plain(lever.lever)}, {gain}"


def key_readings(answer: "DiagnoseAnswer") -> list[tuple[str, str, str]]:
    """Return (name, value, note) of the readings that people ask for first; unknown ones are left out."""
    found = []
    for name, words in KEY_READINGS:
        reading = answer.readings.get(name.value)
        if reading is not None and reading.value is not None:
            n = f"n={reading.samples:,}" if reading.samples is not None else ""
            note = "; ".join(part for part in (n, reading.note) if part)
            found.append((words, reading.said, note))
    return found


def trends(history: Sequence[Moment]) -> list[tuple[str, list[float | None], str]]:
    """Return (name, values, the last one in words) of every trend that was ever known."""
    found = []
    for name, words in TRENDS:
        values = [moment.values.get(name.value) for moment in history]
        if any(value is not None for value in values):
            found.append((words, values, said_value(values[-1], _unit(name))))
    return found


def _unit(name: ServedName) -> str:
    text = name.value
    if "_share" in text:
        return "share"
    return "ms" if "_ms_" in text else ""


def source_words(source: "SourceAnswer") -> str:
    """Say what a source is and how it was read."""
    if source.failed:
        return f"{source.source}: not read, {source.failed}"
    what = " ".join(part for part in (source.engine, source.version, source.model) if part)
    if source.lifetime:
        length = "since its start"
        if source.window_s is not None:
            length += f", {source.window_s:,.0f} s"
    else:
        length = "a window of unknown length"
        if source.window_s is not None:
            length = f"a window of {source.window_s:,.1f} s"
    ranks = f", {len(source.ranks)} ranks" if len(source.ranks) > 1 else ""
    lost = f", lost: {', '.join(source.lost_ranks)}" if source.lost_ranks else ""
    restarts = f", restarts: {source.restarts}" if source.restarts else ""
    scrapes = "1 scrape" if source.scrapes == 1 else f"{source.scrapes} scrapes"
    return f"{source.source}: {what}, {scrapes}, {length}{ranks}{lost}{restarts}"
