"""The pictures of an answer's page: phases, budgets and small charts of a watch."""

from collections.abc import Sequence

from trimtab.core.budgets import BINDS_AT_SHARE
from trimtab.core.narrate_words import number
from trimtab.core.types import Phase
from trimtab.interfaces.diagnose_answer import BudgetAnswer, PhaseAnswer
from trimtab.interfaces.diagnose_words import plain
from trimtab.interfaces.svg import Drawing, linear, ticks, width_of

WIDTH = 360.0


def phases_bar(phases: Sequence[PhaseAnswer]) -> str:
    """Draw how the time of all requests is shared between the phases, with what binds each."""
    row, top = 22.0, 34.0
    drawing = Drawing(
        WIDTH,
        top + row * len(phases),
        title="Where the time of requests goes",
        description="One bar, divided between queue, prefill, transfer and decode; below it each phase with its "
        "binding resource.",
    )
    drawing.rect(0, 0, WIDTH, 20, "track", radius=2)
    at = 0.0
    for each in phases:
        width = min(1.0, max(0.0, each.share or 0.0)) * WIDTH
        words = f"{each.phase.value} {each.share:.0%}" if each.share else ""
        drawing.rect(at, 0, width - 1, 20, f"phase {each.phase.value}", title=words, radius=2)
        at += width
    for index, each in enumerate(phases):
        y = top + row * index + 10
        drawing.rect(0, y - 10, 10, 10, f"phase {each.phase.value}", radius=2)
        part = "unknown" if each.share is None else f"{each.share:.0%}"
        bound = plain(each.resource.value) if each.resource else "unknown"
        drawing.text(16, y, f"{each.phase.value} {part}", "t strong")
        drawing.text(WIDTH, y, f"bound by {bound}", anchor="end")
    if not phases:
        drawing.text(6, 14, f"{', '.join(kind.value for kind in Phase)}: unknown", "t faint")
    return drawing.render()


def budgets_bars(budgets: Sequence[BudgetAnswer]) -> str:
    """Draw the used share of each budget."""
    row, left, right = 26.0, 104.0, WIDTH - 42.0
    drawing = Drawing(
        WIDTH,
        row * len(budgets) + 20,
        title="The four budgets",
        description="Used share of compute, memory, communication and quality. A budget binds at 95 per cent.",
    )
    across = linear(0.0, 1.0, left, right)
    for index, each in enumerate(budgets):
        y = row * index
        drawing.text(left - 8, y + 14, each.budget.value, anchor="end")
        drawing.rect(left, y + 3, right - left, 14, "track", radius=2)
        if each.used_share is None:
            drawing.text(left + 6, y + 14, "unknown", "t faint")
            continue
        width = across(each.used_share) - left
        drawing.rect(left, y + 3, width, 14, "use after", title=each.basis, radius=2)
        drawing.text(right + 6, y + 14, f"{each.used_share:.0%}")
    foot = row * len(budgets)
    drawing.line(
        across(BINDS_AT_SHARE), 0, across(BINDS_AT_SHARE), foot, "limit", title="binds here"
    )
    for value in (0.0, 0.5, 1.0):
        drawing.text(across(value), foot + 14, f"{value:.0%}", anchor="middle")
    return drawing.render()


def trend_chart(name: str, times: Sequence[float], values: Sequence[float | None]) -> str:
    """Draw one value over time; a gap where it was unknown."""
    height, left, right, top, bottom = 112.0, 44.0, WIDTH - 8.0, 10.0, 88.0
    known = [value for value in values if value is not None]
    high = max(known, default=0.0) or 1.0
    drawing = Drawing(
        WIDTH,
        height,
        title=name,
        description=f"{name} over the last {times[-1] - times[0]:.0f} seconds, from {number(min(known, default=0.0))} "
        f"to {number(max(known, default=0.0))}.",
    )
    up = linear(0.0, high * 1.05, bottom, top)
    across = linear(times[0], times[-1], left, right)
    for value in ticks(0.0, high, about=3):
        drawing.line(left, up(value), right, up(value), "grid")
        drawing.text(left - 5, up(value) + 4, number(value), anchor="end")
    run: list[tuple[float, float]] = []
    for at_s, known_value in [*zip(times, values, strict=True), (times[-1], None)]:
        if known_value is not None:
            run.append((across(at_s), up(known_value)))
        elif run:
            drawing.polyline(run, "curve final")
            drawing.circle(*run[-1], 2.5, "dot final")
            run = []
    start = f"{times[-1] - times[0]:.0f} s ago"
    drawing.text(left, height - 8, start)
    drawing.text(right - width_of("now"), height - 8, "now")
    return drawing.render()
