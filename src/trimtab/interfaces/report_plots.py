"""The pictures of the report. Each has a title and a description in words; the figures stand in a table beside it.

Baseline and final differ by colour, by position (baseline above) and by line (baseline dashed).
"""

from collections.abc import Sequence

from trimtab.core.budgets import BINDS_AT_SHARE
from trimtab.core.stats_summary import percentile
from trimtab.core.types import Budget, Phase
from trimtab.interfaces.svg import (
    Drawing,
    Scale,
    fitted,
    linear,
    log_ticks,
    logarithmic,
    ticks,
    width_of,
)
from trimtab.runtime.result import BudgetsAt, Distribution, LeverResult, ScopedDiagnosis

WIDTH = 360.0
"""About what a phone shows, so that text keeps its size there."""
QUANTILES = (0.05, 0.25, 0.50, 0.75, 0.95)
METRIC_WORDS = {"ttft_ms": "time to first token", "tpot_ms": "time per output token"}
CURVE_POINTS_MAX = 160


def milliseconds(value: float) -> str:
    """Say a latency: seconds from 10,000 ms on, else milliseconds with three digits at least."""
    if value >= 10_000:
        return f"{value / 1000:.1f} s"
    return f"{value:,.0f} ms" if value >= 100 else f"{value:.3g} ms"


def short_ms(value: float) -> str:
    """Say a tick of a latency axis."""
    return f"{value / 1000:g} s" if value >= 1000 else f"{value:g} ms"


def quantiles(values: Sequence[float]) -> tuple[float, ...]:
    """Return the quantiles that the pictures draw."""
    return tuple(percentile(values, q) for q in QUANTILES)


def curve_picture(found: Distribution) -> str:
    """Draw which share of requests was at most how slow, before and after."""
    height, left, right, top, bottom = 236.0, 38.0, WIDTH - 12.0, 16.0, 196.0
    words = METRIC_WORDS.get(found.metric, found.metric)
    medians = [percentile(side, 0.5) for side in (found.baseline, found.final)]
    drawing = Drawing(
        WIDTH,
        height,
        title=f"Distribution of {words}",
        description=f"Share of requests at most so slow. Median {milliseconds(medians[0])} before "
        f"(n={len(found.baseline)}) and {milliseconds(medians[1])} after (n={len(found.final)}).",
    )
    across = _latency_axis(drawing, [found.baseline, found.final], left, right, top, bottom)
    up = linear(0.0, 1.0, bottom, top)
    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        drawing.line(left, up(share), right, up(share), "grid")
        drawing.text(left - 5, up(share) + 4, f"{share:.0%}", anchor="end")
    for side, css in ((found.baseline, "base"), (found.final, "final")):
        drawing.polyline(_steps(sorted(side), across, up), f"curve {css}")
        median = percentile(side, 0.5)
        drawing.circle(
            across(median), up(0.5), 4, f"dot {css}", title=f"median {milliseconds(median)}"
        )
    _key(drawing, left, height - 8, ("baseline (dashed)", "final (solid)"))
    return drawing.render()


def cuts_picture(found: Sequence[Distribution]) -> str:
    """Draw median, middle half and 5th to 95th percentile by cut, before above after."""
    row, left, right, top = 46.0, 8.0, WIDTH - 12.0, 8.0
    bottom = top + row * len(found)
    words = METRIC_WORDS.get(found[0].metric, found[0].metric) if found else ""
    drawing = Drawing(
        WIDTH,
        bottom + 42.0,
        title=f"{words} by cut",
        description="For each cut two bars: the middle half of the requests, with a mark at the median and a line "
        "from the 5th to the 95th percentile. Upper bar: baseline; lower bar: final.",
    )
    sides = [side for each in found for side in (each.baseline, each.final)]
    clipped = [quantiles(side) for side in sides]
    across = _latency_axis(drawing, clipped, left, right, top, bottom)
    for index, each in enumerate(found):
        at = top + index * row
        n = f"n={len(each.baseline)} before, {len(each.final)} after"
        drawing.text(left, at + 12, fitted(each.cut, WIDTH - width_of(n) - 30), "t strong")
        drawing.text(right, at + 12, n, anchor="end")
        _quantile_bar(drawing, across, at + 21, each.baseline, "base")
        _quantile_bar(drawing, across, at + 33, each.final, "final")
    _key(drawing, left, bottom + 36, ("baseline (upper)", "final (lower)"))
    return drawing.render()


def budgets_picture(found: Sequence[BudgetsAt]) -> str:
    """Draw the used share of each budget at every moment: before, predicted, after."""
    row, left, right, head = 19.0, 82.0, WIDTH - 42.0, 26.0
    block = head + row * len(found)
    levers = list(dict.fromkeys(moment.lever for moment in found if moment.lever is not None))
    height = block * len(Budget) + 30.0 + 15.0 * len(levers)
    drawing = Drawing(
        WIDTH,
        height,
        title="The four budgets",
        description="Used share of compute, memory, communication and quality before any lever, as predicted for "
        "each lever, and after it. A budget binds at 95 per cent.",
    )
    across = linear(0.0, 1.0, left, right)
    for index, budget in enumerate(Budget):
        top = index * block
        drawing.text(0, top + 17, budget.value.capitalize(), "t strong")
        for line, moment in enumerate(found):
            number = f" {levers.index(moment.lever) + 1}" if moment.lever else ""
            label = f"{moment.when}{number}"
            _budget_bar(drawing, across, top + head + line * row, moment, budget, label)
        drawing.line(
            across(BINDS_AT_SHARE),
            top + head - 3,
            across(BINDS_AT_SHARE),
            top + block - 4,
            "limit",
            title="a budget binds here",
        )
    foot = block * len(Budget) + 14.0
    for share in (0.0, 0.5, 1.0):
        drawing.text(across(share), foot, f"{share:.0%}", anchor="middle")
    for index, lever in enumerate(levers):
        drawing.text(0, foot + 20 + 15 * index, fitted(f"{index + 1} {lever}", WIDTH))
    return drawing.render()


def phases_picture(found: Sequence[ScopedDiagnosis]) -> str:
    """Draw how the time of requests was shared between the phases, by diagnosis."""
    row, left, right = 44.0, 0.0, WIDTH
    drawing = Drawing(
        WIDTH,
        row * len(found) + 26,
        title="Where the time of requests went",
        description="For each diagnosis one bar, divided between queue, prefill, transfer and decode.",
    )
    for index, each in enumerate(found):
        top = index * row
        drawing.text(left, top + 13, fitted(each.scope, WIDTH - 90), "t strong")
        drawing.text(right, top + 13, f"n={each.diagnosis.samples}", anchor="end")
        at = left
        for phase in each.diagnosis.phases:
            width = (phase.share or 0.0) * (right - left)
            label = f"{phase.phase.value} {phase.share:.0%}" if phase.share else ""
            drawing.rect(
                at, top + 19, width - 1, 18, f"phase {phase.phase.value}", title=label, radius=2
            )
            if label and width > width_of(label) + 8:
                drawing.text(at + 5, top + 32, label, f"t on {phase.phase.value}")
            at += width
    at, foot = left, row * len(found) + 20
    for kind in Phase:
        drawing.rect(at, foot - 9, 10, 10, f"phase {kind.value}", radius=2)
        drawing.text(at + 15, foot, kind.value)
        at += 15 + width_of(kind.value) + 18
    return drawing.render()


def effects_picture(found: Sequence[LeverResult]) -> str:
    """Draw each measured ratio with its interval over the predicted range; 1 is no effect."""
    rows = [(lever, effect) for lever in found for effect in lever.measured if effect.ratio]
    row, left, right, top = 40.0, 10.0, WIDTH - 10.0, 6.0
    bottom = top + row * len(rows)
    drawing = Drawing(
        WIDTH,
        bottom + 40.0,
        title="Effects against their predictions",
        description="For each lever and metric the measured ratio of candidate to baseline with its interval, over "
        "the predicted range. Below 1 is less than the baseline.",
    )
    ends = [1.0]
    for _, effect in rows:
        known = (effect.ratio, effect.predicted_low, effect.predicted_high)
        ends += [value for value in known if value is not None]
        if effect.interval is not None:
            ends += [max(0.0, effect.interval.low), min(4.0, effect.interval.high)]
    across = linear(max(0.0, min(ends) - 0.1), max(ends) + 0.1, left, right)
    for value in ticks(max(0.0, min(ends) - 0.1), max(ends) + 0.1):
        drawing.line(across(value), top, across(value), bottom, "grid")
        drawing.text(across(value), bottom + 15, f"{value:g}", anchor="middle")
    drawing.line(across(1.0), top, across(1.0), bottom, "one", title="no effect")
    for index, (lever, effect) in enumerate(rows):
        at = top + index * row
        words = f"{lever.name}: {effect.metric}, {effect.cut}"
        n = f"n={effect.n_candidate}/{effect.n_baseline}"
        drawing.text(left, at + 12, fitted(words, right - left - width_of(n) - 8), "t strong")
        drawing.text(right, at + 12, n, anchor="end")
        if effect.predicted_low is not None and effect.predicted_high is not None:
            low, high = across(effect.predicted_low), across(effect.predicted_high)
            drawing.rect(low, at + 18, high - low, 12, "predicted", title="predicted range")
        if effect.interval is not None:
            low, high = across(effect.interval.low), across(effect.interval.high)
            drawing.line(low, at + 24, high, at + 24, "whisker final")
        drawing.circle(across(effect.ratio or 0.0), at + 24, 4.5, "dot final")
    drawing.text(left, bottom + 33, "dot and line: measured, interval; band: predicted")
    return drawing.render()


def _latency_axis(
    drawing: Drawing,
    sides: Sequence[Sequence[float]],
    left: float,
    right: float,
    top: float,
    bottom: float,
) -> Scale:
    values = [value for side in sides for value in side if value > 0]
    low, high = (min(values) * 0.9, max(values) * 1.1) if values else (1.0, 10.0)
    across = logarithmic(low, high, left, right)
    for value in log_ticks(low, high):
        drawing.line(across(value), top, across(value), bottom, "grid")
        drawing.text(
            min(max(across(value), 14), right - 8), bottom + 15, short_ms(value), anchor="middle"
        )
    return across


def _steps(ordered: Sequence[float], across: Scale, up: Scale) -> list[tuple[float, float]]:
    n = len(ordered)
    every = max(1, n // CURVE_POINTS_MAX)
    picked = sorted({*range(0, n, every), n - 1})
    start = [(across(ordered[0]), up(0.0))] if n else []
    return start + [(across(ordered[index]), up((index + 1) / n)) for index in picked]


def _quantile_bar(
    drawing: Drawing, across: Scale, y: float, values: Sequence[float], css: str
) -> None:
    p05, p25, p50, p75, p95 = quantiles(values)
    drawing.line(across(p05), y, across(p95), y, f"whisker {css}")
    title = f"median {milliseconds(p50)}, middle half {milliseconds(p25)} to {milliseconds(p75)}"
    drawing.rect(
        across(p25), y - 4.5, max(2.0, across(p75) - across(p25)), 9, f"box {css}", title=title
    )
    drawing.line(across(p50), y - 4.5, across(p50), y + 4.5, "median")


def _budget_bar(
    drawing: Drawing, across: Scale, y: float, moment: BudgetsAt, budget: Budget, label: str
) -> None:
    use = next((each for each in moment.uses if each.budget is budget), None)
    left, right = across(0.0), across(1.0)
    drawing.text(left - 8, y + 11, fitted(label, left - 10), anchor="end")
    drawing.rect(left, y, right - left, 13, "track", radius=2)
    if use is None or use.used_share is None:
        drawing.text(left + 6, y + 11, "unknown", "t faint")
        return
    css = "base" if moment.when == "before" else moment.when
    drawing.rect(
        left, y, across(use.used_share) - left, 13, f"use {css}", title=use.basis, radius=2
    )
    drawing.text(right + 6, y + 11, f"{use.used_share:.0%}")


def _key(drawing: Drawing, x: float, y: float, words: tuple[str, str]) -> None:
    for css, word in zip(("base", "final"), words, strict=True):
        drawing.line(x, y - 4, x + 20, y - 4, f"curve {css}")
        drawing.text(x + 26, y, word)
        x += 26 + width_of(word) + 22
