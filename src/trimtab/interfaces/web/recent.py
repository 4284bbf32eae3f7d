"""Recent requests in figures: how they ended, TTFT, TPOT, time by phase, reused tokens; each with window and n."""

from collections.abc import Iterable, Sequence

import msgspec

from trimtab.core.record import RequestRecord
from trimtab.core.stats_summary import percentile
from trimtab.core.types import Phase

WINDOWS_S = (60.0, 300.0)
"""Windows of the table; the longest is also that of the plots."""

BIN_S = 15.0
"""Width of a bin of the plots."""


class Latency(msgspec.Struct, frozen=True, kw_only=True):
    """Quantiles of a latency over `n` requests for which it is known; None without any."""

    n: int
    p50: float | None = None
    p95: float | None = None


class RecentWindow(msgspec.Struct, frozen=True, kw_only=True):
    """Requests that finished within the last `window_s` seconds, or since the start where that is later.

    `ended` counts those that did not end well by the class of their error. `complete` False: older records had
    already been dropped, so the counts are of the newest only.
    """

    window_s: float
    n: int
    ok: int
    ended: dict[str, int]
    ttft_ms: Latency
    tpot_ms: Latency
    complete: bool


class PhaseTimes(msgspec.Struct, frozen=True, kw_only=True):
    """Mean time by phase of requests that ended well, in ms, over those for which it is known; None without any."""

    n: int
    queue: float | None = None
    prefill: float | None = None
    transfer: float | None = None
    decode: float | None = None


class Reused(msgspec.Struct, frozen=True, kw_only=True):
    """Prompt tokens that an engine reported as reused, as a share of all, over `n` requests that say both."""

    n: int
    share: float | None = None
    window_s: float = max(WINDOWS_S)


class Bin(msgspec.Struct, frozen=True, kw_only=True):
    """Requests that finished within one bin; `ago_s` is how long before the page's moment it began."""

    ago_s: float
    n: int
    ttft_ms: Latency
    tpot_ms: Latency
    phases_ms: PhaseTimes


class Recent(msgspec.Struct, frozen=True, kw_only=True):
    """Windows, shortest first, and bins, oldest first. The last bin is not over yet."""

    windows: tuple[RecentWindow, ...]
    bins: tuple[Bin, ...]
    bin_s: float


def recent(
    records: Sequence[RequestRecord], *, now_s: float, since_s: float, records_max: int
) -> Recent:
    """Summarise records in the order in which they finished.

    `since_s`: when recording began; `records_max`: how many are kept before the oldest are dropped.
    """
    oldest_s = records[0].finished_at_s if len(records) >= records_max else since_s
    fresh = _newer(records, now_s - max(WINDOWS_S) - BIN_S)
    up_s = max(0.0, now_s - since_s)
    lengths = sorted({min(window_s, up_s) for window_s in WINDOWS_S})
    windows = tuple(_window(fresh, window_s, now_s, oldest_s) for window_s in lengths)
    return Recent(windows=windows, bins=_bins(fresh, now_s, since_s), bin_s=BIN_S)


def _newer(records: Sequence[RequestRecord], than_s: float) -> list[RequestRecord]:
    found: list[RequestRecord] = []
    for record in reversed(records):
        if record.finished_at_s < than_s:
            break
        found.append(record)
    found.reverse()
    return found


def _window(
    records: Iterable[RequestRecord], window_s: float, now_s: float, oldest_s: float
) -> RecentWindow:
    start_s = now_s - window_s
    inside = [record for record in records if record.finished_at_s >= start_s]
    ended: dict[str, int] = {}
    for record in inside:
        if not record.ok:
            ended[record.error.value] = ended.get(record.error.value, 0) + 1
    return RecentWindow(
        window_s=window_s,
        n=len(inside),
        ok=sum(record.ok for record in inside),
        ended=dict(sorted(ended.items())),
        ttft_ms=_latency(record.ttft_ms for record in inside),
        tpot_ms=_latency(record.tpot_ms for record in inside),
        complete=oldest_s <= start_s,
    )


def _bins(records: Iterable[RequestRecord], now_s: float, since_s: float) -> tuple[Bin, ...]:
    # Bins stand on the wall clock, so that a request stays in its bin while the plot moves on.
    last = int(now_s // BIN_S)
    first = max(int(since_s // BIN_S), last - int(max(WINDOWS_S) // BIN_S) + 1)
    by_bin: dict[int, list[RequestRecord]] = {number: [] for number in range(first, last + 1)}
    for record in records:
        number = int(record.finished_at_s // BIN_S)
        if number in by_bin:
            by_bin[number].append(record)
    return tuple(
        Bin(
            ago_s=now_s - number * BIN_S,
            n=len(inside),
            ttft_ms=_latency(record.ttft_ms for record in inside),
            tpot_ms=_latency(record.tpot_ms for record in inside),
            phases_ms=_phases([record for record in inside if record.ok]),
        )
        for number, inside in by_bin.items()
    )


def _phases(records: Sequence[RequestRecord]) -> PhaseTimes:
    known = {
        phase.value: [
            value
            for record in records
            if (value := getattr(record.phases, f"{phase.value}_ms")) is not None
        ]
        for phase in Phase
    }
    means = {name: sum(values) / len(values) for name, values in known.items() if values}
    return PhaseTimes(n=max(len(values) for values in known.values()), **means)


def reused_by_replica(records: Sequence[RequestRecord], *, now_s: float) -> dict[str, Reused]:
    """Return what each replica reported as reused, over the longest window."""
    tokens: dict[str, list[int]] = {}
    for record in _newer(records, now_s - max(WINDOWS_S)):
        prompt, delivered = record.tokens.prompt, record.tokens.delivered
        if record.replica is None or not prompt or delivered is None:
            continue
        sums = tokens.setdefault(record.replica, [0, 0, 0])
        sums[0], sums[1], sums[2] = sums[0] + 1, sums[1] + delivered, sums[2] + prompt
    return {
        replica: Reused(n=n, share=min(1.0, delivered / prompt))
        for replica, (n, delivered, prompt) in tokens.items()
    }


def _latency(values: Iterable[float | None]) -> Latency:
    known = [value for value in values if value is not None]
    if not known:
        return Latency(n=0)
    return Latency(n=len(known), p50=percentile(known, 0.5), p95=percentile(known, 0.95))
