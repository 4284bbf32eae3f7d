"""The pictures of a simulation's page."""

from collections.abc import Callable, Sequence
from typing import Final

from trimtab.interfaces.svg import Drawing, fitted, linear, ticks
from trimtab.sim.compare import Comparison, half_of
from trimtab.sim.run import SimResult

WIDTH: Final = 420.0
LEFT: Final = 112.0
WIDE: Final = 880.0
HEIGHT: Final = 240.0

COMPARED: Final[tuple[tuple[str, str, Callable[[SimResult], float | None]], ...]] = (
    ("good requests per second", "{:,.2f}", lambda run: run.summary.goodput_per_s),
    ("TTFT p95", "{:,.0f} ms", lambda run: run.summary.ttft_ms.p95),
    ("TPOT p95", "{:,.1f} ms", lambda run: run.summary.tpot_ms.p95),
    ("input tokens reused", "{:.1%}", lambda run: run.summary.hit_share),
)

COSTS: Final[tuple[tuple[str, str, Callable[[SimResult], float | None]], ...]] = (
    (
        "cost per million output tokens",
        "{:,.3f}",
        lambda run: run.cost_per_million_output_tokens,
    ),
    ("cost per 1,000 good requests", "{:,.3f}", lambda run: run.cost_per_thousand_good),
)


def bars(found: Comparison, name: str, form: str, read: Callable[[SimResult], float | None]) -> str:
    """Draw a metric as a bar for each policy, with its interval over the seeds."""
    row = 28.0
    drawing = Drawing(
        WIDTH,
        row * len(found.policies) + 4,
        title=name,
        description=f"{name} as one bar for each policy.",
    )
    values = {
        policy: [
            value for run in found.runs if run.policy == policy and (value := read(run)) is not None
        ]
        for policy in found.policies
    }
    means = {policy: sum(known) / len(known) for policy, known in values.items() if known}
    across = linear(0.0, max(means.values(), default=1.0) * 1.05 or 1.0, LEFT, WIDTH - 64.0)
    for index, policy in enumerate(found.policies):
        y = row * index
        drawing.text(LEFT - 8, y + 17, fitted(policy, LEFT - 10), anchor="end")
        drawing.rect(LEFT, y + 5, WIDTH - 64.0 - LEFT, 16, "track", radius=2)
        if policy not in means:
            drawing.text(LEFT + 6, y + 17, "unknown", "t faint")
            continue
        mean, half = means[policy], half_of(found.of(policy), values[policy])
        css = "use base" if policy == found.reference else "use after"
        drawing.rect(LEFT, y + 5, across(mean) - LEFT, 16, css, title=form.format(mean), radius=2)
        if half is not None:
            drawing.line(across(mean - half), y + 13, across(mean + half), y + 13, "median")
        drawing.text(WIDTH - 58.0, y + 17, form.format(mean))
    return drawing.render()


def spread_bars(found: Comparison) -> str:
    """Draw each replica's output over the mean, from most to least, as a line for each policy."""
    first = [run for run in found.runs if run.seed == found.seeds[0]]
    drawing = Drawing(
        WIDTH,
        HEIGHT,
        title="Load spread",
        description="Output of each replica over the mean of all.",
    )
    shares = [_shares(run) for run in first]
    top = max((values[0] for values in shares if values), default=1.0)
    up = linear(0.0, max(top, 1.0) * 1.05, HEIGHT - 24, 12)
    across = linear(0.0, 1.0, 36.0, WIDTH - 12)
    for value in ticks(0.0, max(top, 1.0), about=4):
        drawing.line(36, up(value), WIDTH - 12, up(value), "grid")
        drawing.text(30, up(value) + 4, f"{value:g}", anchor="end")
    for run, values in zip(first, shares, strict=True):
        last = max(1, len(values) - 1)
        points = [(across(at / last), up(value)) for at, value in enumerate(values)]
        if len(points) == 1:
            points.append((across(1.0), points[0][1]))
        css = "curve base" if run.policy == found.reference else "curve final"
        drawing.polyline(points, css, title=run.policy)
    drawing.text(36, HEIGHT - 6, "most loaded")
    drawing.text(WIDTH - 12, HEIGHT - 6, "least loaded", anchor="end")
    return drawing.render()


def _shares(run: SimResult) -> list[float]:
    mean = sum(run.output_tokens_by_replica) / max(1, len(run.output_tokens_by_replica))
    return sorted((tokens / (mean or 1.0) for tokens in run.output_tokens_by_replica), reverse=True)


def course(runs: Sequence[SimResult]) -> str:
    """Draw arrivals as bars and good requests as a line for each policy, over time."""
    drawing = Drawing(
        WIDE,
        HEIGHT,
        title="Over time",
        description="Requests that arrived in each slice of time, and how many of them met the objective.",
    )
    first = runs[0].course
    count, top = len(first.arrived), max(max(first.arrived, default=1), 1)
    up, across = linear(0.0, top * 1.05, HEIGHT - 26, 10), linear(0.0, count, 52.0, WIDE - 10)
    for value in ticks(0.0, float(top), about=4):
        drawing.line(52, up(value), WIDE - 10, up(value), "grid")
        drawing.text(46, up(value) + 4, f"{value:,.0f}", anchor="end")
    for at, arrived in enumerate(first.arrived):
        height = up(0.0) - up(arrived)
        drawing.rect(across(at), up(arrived), across(1) - across(0) - 1, height, "track")
    for index, run in enumerate(runs):
        points = [(across(at + 0.5), up(good)) for at, good in enumerate(run.course.good)]
        drawing.polyline(points, "curve base" if index == 0 else "curve final", title=run.policy)
    _seconds(drawing, across, count, first.slice_s)
    return drawing.render()


def _seconds(
    drawing: Drawing, across: Callable[[float], float], count: int, slice_s: float
) -> None:
    """Write the seconds of a run of `count` slices under it; what stands at the end does not reach over it."""
    end_s = count * slice_s
    for value in ticks(0.0, end_s, about=6):
        anchor = "end" if value > 0.97 * end_s else "middle"
        drawing.text(across(value / slice_s), HEIGHT - 8, f"{value:,.0f} s", anchor=anchor)


def role_course(run: SimResult) -> str:
    """Draw ready replicas by role over time, prefill at the bottom; a mark for each role change."""
    assert run.roles is not None
    roles, slice_s = run.roles, run.course.slice_s
    drawing = Drawing(
        WIDE,
        HEIGHT + 18,
        title="Roles over time",
        description="Ready replicas by role in slices of time, with a dot for each role change.",
    )
    layers = (("use after", roles.prefill), ("use base", roles.decode), ("track", roles.mixed))
    totals = [sum(counts) for counts in zip(*(values for _, values in layers), strict=True)]
    count, top = max(1, len(totals)), max(totals, default=1) or 1
    up, across = linear(0.0, top * 1.05, HEIGHT - 26, 10), linear(0.0, count, 52.0, WIDE - 10)
    for value in ticks(0.0, float(top), about=4):
        drawing.line(52, up(value), WIDE - 10, up(value), "grid")
        drawing.text(46, up(value) + 4, f"{value:,.0f}", anchor="end")
    for at in range(len(totals)):
        below = 0
        for css, values in layers:
            low, high = up(below), up(below + values[at])
            drawing.rect(across(at), high, across(1) - across(0), low - high, css)
            below += values[at]
    for change in roles.changes:
        x = across(change.at_s / slice_s)
        title = f"replica {change.replica}: {change.role.value}, {change.at_s:,.0f} s"
        drawing.circle(x, HEIGHT - 30, 2.5, "dot base", title=title)
    _seconds(drawing, across, count, slice_s)
    for at, (css, words) in enumerate(
        (("use after", "prefill"), ("use base", "decode"), ("track", "mixed"))
    ):
        drawing.rect(52 + 90.0 * at, HEIGHT + 3, 12, 10, css)
        drawing.text(70 + 90.0 * at, HEIGHT + 12, words)
    drawing.circle(52 + 90.0 * 3, HEIGHT + 8, 2.5, "dot base")
    drawing.text(62 + 90.0 * 3, HEIGHT + 12, f"role change ({len(roles.changes)} in this run)")
    return drawing.render()
