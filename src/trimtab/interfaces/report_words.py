"""How the report says its figures: always with n, with an interval where there is one, unknown where there is none."""

import math

from trimtab.core.narrate_words import UNKNOWN, number, ratio_interval, share
from trimtab.core.stats_types import Interval
from trimtab.core.types import Verdict
from trimtab.interfaces.report_plots import milliseconds
from trimtab.runtime.result import Latency, Measured, RunSummary, TriggerResult

VERDICT_SIGNS = {
    Verdict.PASS.value: "\u2713 pass",
    Verdict.HOLD.value: "\u2016 hold",
    Verdict.FAIL.value: "\u2715 fail",
    Verdict.ERROR.value: "! error",
}
"""Verdicts as sign and word, so that colour is never alone."""


def latency(value: float | None) -> str:
    """Say a latency, or that it is unknown."""
    return UNKNOWN if value is None else milliseconds(value)


def mean(found: Latency) -> str:
    """Say a mean with its 95% interval, in the same unit, and n."""
    if found.mean is None:
        return f"{UNKNOWN} (n={found.n})"
    spread = f"{_between(found.mean_interval)}, " if found.mean_interval else "interval unknown, "
    return f"{found.mean:,.{0 if found.mean >= 100 else 1}f} ms ({spread}n={found.n})"


def interval(found: Interval | None) -> str:
    """Say an interval and its level, as a cell of a table."""
    if found is None:
        return UNKNOWN
    ends = [number(end) if math.isfinite(end) else "open" for end in (found.low, found.high)]
    return f"{ends[0]} to {ends[1]} ({found.level:.0%})"


def _between(interval: Interval) -> str:
    digits = 0 if interval.high >= 100 else 1
    low, high = max(0.0, interval.low), interval.high
    return f"{low:,.{digits}f} to {high:,.{digits}f}"


def change(before: float | None, after: float | None) -> str:
    """Say after over before, as a factor."""
    if before is None or after is None or before <= 0:
        return UNKNOWN
    return f"{after / before:.2f}x"


def count(value: float | None) -> str:
    """Say a count with thousands separated."""
    return UNKNOWN if value is None else f"{value:,.0f}"


def rate(value: float | None) -> str:
    """Say a rate with one decimal."""
    return UNKNOWN if value is None else f"{value:,.1f}"


def shares(summary: RunSummary) -> str:
    """Say each replica's share of the output tokens."""
    if not summary.output_share_by_replica:
        return UNKNOWN
    return ", ".join(
        f"{replica} {share(part)}"
        for replica, part in sorted(summary.output_share_by_replica.items())
    )


def effect(found: Measured) -> str:
    """Say a measured ratio against its prediction."""
    predicted = number(found.predicted_ratio)
    if found.predicted_low is not None and found.predicted_high is not None:
        predicted += f" ({number(found.predicted_low)} to {number(found.predicted_high)})"
    return (
        f"{found.metric}, {found.cut}: {number(found.ratio)} of the baseline ({ratio_interval(found.interval)}, "
        f"n={found.n_candidate} against {found.n_baseline}, {found.n_units} units); predicted {predicted}"
    )


def verdict_css(verdict: str) -> str:
    """Return the class of a lever's outcome or a gate's verdict."""
    if verdict in VERDICT_SIGNS:
        return verdict
    if verdict.startswith("adopted"):
        return "pass"
    if verdict in {"rolled back", "disabled", "expired"}:
        return "fail"
    return "hold" if verdict in {"paused", "canary", "ramping", "proving"} else "none"


def figures(before: RunSummary, after: RunSummary, field: str) -> tuple[float | None, float | None]:
    """Return one figure of both runs; of a run in which no request ended well it is unknown."""
    first, last = (getattr(run, field) if run.n else None for run in (before, after))
    return first, last


def headline_rows(before: RunSummary, after: RunSummary) -> list[tuple[str, str, str, str]]:
    """Return (figure, baseline, final, change) for the table of headline figures."""
    rows: list[tuple[str, str, str, str]] = []
    for name, first, last in (
        ("TTFT", before.ttft_ms, after.ttft_ms),
        ("TPOT", before.tpot_ms, after.tpot_ms),
        ("End to end", before.e2e_ms, after.e2e_ms),
        ("Longest gap between chunks", before.chunk_gap_ms, after.chunk_gap_ms),
    ):
        rows.append((f"{name}, mean", mean(first), mean(last), change(first.mean, last.mean)))
        for label, q in (("median", "p50"), ("95th percentile", "p95")):
            pair = (getattr(first, q), getattr(last, q))
            rows.append((f"{name}, {label}", latency(pair[0]), latency(pair[1]), change(*pair)))
    for name, field, say in (
        ("Output tokens per second of makespan", "output_tokens_per_s", rate),
        ("Makespan, s", "makespan_s", rate),
        ("Prompt tokens", "prompt_tokens", count),
        ("Prompt tokens from cache", "cached_tokens", count),
        ("Prompt tokens computed", "computed_tokens", count),
        ("Output tokens", "output_tokens", count),
    ):
        pair = figures(before, after, field)
        rows.append((name, say(pair[0]), say(pair[1]), change(*pair)))
    for name, field in (
        ("Output tokens per decode step", "accepted_per_step"),
        ("Draft acceptance", "draft_acceptance"),
    ):
        pair = (getattr(before, field), getattr(after, field))
        rows.append((name, number(pair[0]), number(pair[1]), change(*pair)))
    rows.append(("Requests that ended well", count(before.n), count(after.n), ""))
    rows.append(("Requests that failed", count(before.errors), count(after.errors), ""))
    rows.append(("Share of output tokens", shares(before), shares(after), ""))
    lateness = (before.lateness_ms_p95, after.lateness_ms_p95)
    rows.append(
        ("Lateness of sends, 95th percentile", latency(lateness[0]), latency(lateness[1]), "")
    )
    return rows


def kv_through(trigger: TriggerResult) -> str:
    """Say how much of what restarted replicas held came through the restart."""
    if trigger.kv_tokens_saved is None or trigger.kv_tokens_restored is None:
        return "nothing restarted"
    return f"{trigger.kv_tokens_restored:,} of {trigger.kv_tokens_saved:,} tokens"
