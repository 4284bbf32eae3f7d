"""What a comparison says: medians over rounds, and intervals over pairs of the same round."""

import random
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Final

RESAMPLES: Final = 4_000
LEVEL: Final = 0.95
US: Final = "trimtab"


@dataclass(frozen=True)
class Row:
    """One proxy in one round at one number of streams.

    `added_ms`: time to the first event less the time that the engine took for it. `cpu_us_per_event` is None where
    there is no proxy.
    """

    proxy: str
    round: int
    streams: int
    offered_per_s: float
    events_per_s: float
    cpu_us_per_event: float | None
    cpu_share: float | None
    added_ms_p50: float | None
    added_ms_p99: float | None
    resident_mib: float | None
    completed: int
    failed: int
    samples: int

    def as_json(self) -> dict[str, object]:
        """Return the row for a file."""
        return asdict(self)


@dataclass(frozen=True)
class Interval:
    """A median over rounds with its bootstrap interval; of fewer than two rounds there is no interval."""

    value: float
    low: float | None
    high: float | None
    n: int

    def text(self, form: str = ".2f") -> str:
        """Return value and interval in words."""
        said = format(self.value, form)
        if self.low is None or self.high is None:
            return f"{said} (n={self.n})"
        return f"{said} [{format(self.low, form)}, {format(self.high, form)}]"


def quantile(values: Sequence[float], share: float) -> float | None:
    """Return the value below which a share of values lies, None of none."""
    if not values:
        return None
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def interval(values: Sequence[float], seed: int = 1) -> Interval | None:
    """Return the median with a percentile bootstrap interval over the values, None of none."""
    if not values:
        return None
    median = statistics.median(values)
    if len(values) < 2:
        return Interval(median, None, None, len(values))
    rng = random.Random(seed)
    drawn = sorted(statistics.median(rng.choices(values, k=len(values))) for _ in range(RESAMPLES))
    cut = int(RESAMPLES * (1.0 - LEVEL) / 2.0)
    return Interval(median, drawn[cut], drawn[-1 - cut], len(values))


def paired(
    rows: Iterable[Row],
    other: str,
    streams: int,
    value: Callable[[Row], float | None],
    join: Callable[[float, float], float],
) -> list[float]:
    """Return ours joined with another's, pair by pair of the same round."""
    by_round: dict[tuple[str, int], float] = {}
    for row in rows:
        seen = value(row)
        if row.streams == streams and seen is not None:
            by_round[row.proxy, row.round] = seen
    rounds = sorted(number for proxy, number in by_round if proxy == US)
    return [
        join(by_round[US, number], by_round[other, number])
        for number in rounds
        if (other, number) in by_round
    ]


def cost_ratio(rows: Sequence[Row], other: str, streams: int) -> Interval | None:
    """Return CPU per event, ours over another's."""
    return interval(
        paired(rows, other, streams, lambda row: row.cpu_us_per_event, lambda a, b: a / b)
    )


def tail_difference(rows: Sequence[Row], other: str, streams: int) -> Interval | None:
    """Return added TTFT p99, ours less another's, in milliseconds."""
    return interval(paired(rows, other, streams, lambda row: row.added_ms_p99, lambda a, b: a - b))


def table(rows: Sequence[Row], proxies: Sequence[str]) -> str:
    """Return the comparison as a Markdown table."""
    lines = [
        "| streams | proxy | CPU µs per event | events per second (offered) | added TTFT p50 ms"
        " | added TTFT p99 ms | memory MiB | failed streams | trimtab's CPU over it |",
        "|---:|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for streams in sorted({row.streams for row in rows}):
        for proxy in proxies:
            mine = [row for row in rows if row.streams == streams and row.proxy == proxy]
            if mine:
                lines.append(_line(rows, mine, proxy, streams))
    return "\n".join(lines)


def _line(rows: Sequence[Row], mine: Sequence[Row], proxy: str, streams: int) -> str:
    ratio = None if proxy == US else cost_ratio(rows, proxy, streams)
    cells = (
        str(streams),
        proxy,
        _cell(interval(_known(row.cpu_us_per_event for row in mine)), ".1f"),
        f"{statistics.median(row.events_per_s for row in mine):,.0f} ({mine[0].offered_per_s:,.0f})",
        _cell(interval(_known(row.added_ms_p50 for row in mine)), ".2f"),
        _cell(interval(_known(row.added_ms_p99 for row in mine)), ".1f"),
        _median(_known(row.resident_mib for row in mine)),
        f"{sum(row.failed for row in mine)} of {sum(row.failed + row.completed for row in mine)}",
        "" if ratio is None else ratio.text(),
    )
    return f"| {' | '.join(cells)} |"


def _known(values: Iterable[float | None]) -> list[float]:
    return [value for value in values if value is not None]


def _cell(seen: Interval | None, form: str) -> str:
    return "" if seen is None else seen.text(form)


def _median(values: Sequence[float]) -> str:
    return f"{statistics.median(values):.0f}" if values else ""
