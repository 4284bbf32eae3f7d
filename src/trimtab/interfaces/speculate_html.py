"""What measuring drafting found as one page that needs nothing else: styles and pictures are inside."""

from html import escape
from importlib import resources
from typing import Final

from trimtab.interfaces.report_tables import card, figure, table
from trimtab.interfaces.speculate_view import (
    CHOICE_HEADS,
    CUT_HEADS,
    DEPTH_HEADS,
    POINT_HEADS,
    STEP_HEADS,
    choice_rows,
    cut_rows,
    depth_rows,
    point_rows,
    step_rows,
    summary_words,
)
from trimtab.interfaces.svg import Drawing, Scale, linear, logarithmic, ticks
from trimtab.levers.speculation_depths import PointFigures
from trimtab.levers.speculation_found import Speculated

WIDTH: Final = 560.0
HEIGHT: Final = 320.0
LEFT, RIGHT, TOP, BOTTOM = 56.0, WIDTH - 70.0, 14.0, HEIGHT - 44.0


def page(found: Speculated) -> str:
    """Return the whole page."""
    css = resources.files("trimtab.interfaces").joinpath("report.css").read_text("utf-8")
    points = table(POINT_HEADS, point_rows(found))
    pictures = figure(
        gain_picture(found),
        "Output tokens per second of all streams with drafts, over none at the same batch, by depth; whiskers are 95% "
        "intervals of the rounds. Below the line drafting loses.",
        points,
    ) + figure(
        prediction_picture(found),
        "Milliseconds a token: predicted from recorded answers and measured steps (line) and measured in closed loops "
        "(dots), at the chosen depth and without drafts.",
        points,
    )
    sections = (
        ("What it gains, by batch and depth", card(pictures)),
        ("Depth by batch", card(table(CHOICE_HEADS, choice_rows(found)))),
        ("By traffic, one stream", card(table(CUT_HEADS, cut_rows(found.cuts)))),
        ("By repetition of the prompt", card(table(CUT_HEADS, cut_rows(found.repetition)))),
        ("What is drafted", card(table(DEPTH_HEADS, depth_rows(found)))),
        ("What a step costs", card(table(STEP_HEADS, step_rows(found)))),
        ("What was measured", card(_list((*summary_words(found), *found.notes)))),
    )
    body = "".join(f"<section><h2>{title}</h2>{inside}</section>" for title, inside in sections)
    head = "drafting pays" if found.pays else "drafting stays off"
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        f"<title>trimtab speculate: {head}</title><style>{css}</style></head><body>"
        f"<header><h1>{head}</h1>"
        f'<p class="lead">{escape(found.because)}</p></header>'
        f"<main>{body}</main><footer>{escape(found.machine)}; {found.took_s:,.0f} s</footer></body></html>\n"
    )


def gain_picture(found: Speculated) -> str:
    """Draw tokens per second over none by batch, a line for each depth."""
    drawing = Drawing(
        WIDTH,
        HEIGHT,
        title="Gain of drafting by batch",
        description="One line a depth; above 1 drafting gives more tokens per second.",
    )
    shown = [one for one in found.points if one.tokens_per_s is not None]
    ratios = [one.tokens_per_s.ratio or 1.0 for one in shown if one.tokens_per_s]
    batches = sorted({one.batch for one in found.points})
    across = logarithmic(batches[0], max(batches[-1], batches[0] + 1), LEFT, RIGHT)
    low, high = min(0.9, *ratios) * 0.95, max(1.1, *ratios) * 1.05
    up = linear(low, high, BOTTOM, TOP)
    _axes(drawing, batches, across, ticks(low, high), up)
    drawing.line(LEFT, up(1.0), RIGHT, up(1.0), "limit", title="no gain")
    for depth in sorted({one.depth for one in shown}):
        _gain_line(drawing, [one for one in shown if one.depth == depth], across, up, found)
    drawing.text(RIGHT, HEIGHT - 8, "streams at once", anchor="end")
    return drawing.render()


def _gain_line(
    drawing: Drawing,
    points: list[PointFigures],
    across: Scale,
    up: Scale,
    found: Speculated,
) -> None:
    depth = points[0].depth
    chosen = depth == found.speculation.draft_tokens_max
    css = "final" if chosen else "base"
    line = [(across(one.batch), up(_ratio(one))) for one in points]
    drawing.polyline(line, f"curve {css}", title=f"depth {depth}")
    for one, (x, y) in zip(points, line, strict=True):
        bounds = one.tokens_per_s.interval if one.tokens_per_s else None
        if bounds is not None:
            drawing.line(x, up(bounds.low), x, up(bounds.high), f"whisker {css}")
        drawing.circle(
            x, y, 4, f"dot {css}", title=f"depth {depth}, {one.batch} streams: {_ratio(one):.2f}"
        )
    drawing.text(line[-1][0] + 8, line[-1][1] + 4, f"depth {depth}")


def _ratio(one: PointFigures) -> float:
    return (one.tokens_per_s.ratio if one.tokens_per_s else None) or 1.0


def prediction_picture(found: Speculated) -> str:
    """Draw predicted and measured milliseconds a token by batch, without drafts and at the chosen depth."""
    drawing = Drawing(
        WIDTH,
        HEIGHT,
        title="Predicted against measured time per token",
        description="Lines are predicted, dots measured.",
    )
    depths = (0, found.speculation.draft_tokens_max or 0)
    shown = [one for one in found.points if one.depth in depths]
    batches = sorted({one.batch for one in shown})
    values = [each for one in shown for each in (one.predicted_tpot_ms, one.measured_tpot_ms)]
    across = logarithmic(batches[0], max(batches[-1], batches[0] + 1), LEFT, RIGHT)
    up = linear(0.0, max(values) * 1.05, BOTTOM, TOP)
    _axes(drawing, batches, across, ticks(0.0, max(values)), up)
    for depth in depths:
        here = [one for one in shown if one.depth == depth]
        css = "final" if depth else "base"
        line = [(across(one.batch), up(one.predicted_tpot_ms)) for one in here]
        words = f"depth {depth}" if depth else "no drafts"
        drawing.polyline(line, f"curve {css}", title=f"{words}, predicted")
        for one in here:
            told = f"{words}, {one.batch} streams: {one.measured_tpot_ms:.1f} ms, {one.error:+.0%}"
            drawing.circle(across(one.batch), up(one.measured_tpot_ms), 4, f"dot {css}", title=told)
        drawing.text(line[-1][0] + 8, line[-1][1] + 4, words)
    drawing.text(RIGHT, HEIGHT - 8, "streams at once", anchor="end")
    return drawing.render()


def _axes(
    drawing: Drawing,
    batches: list[int],
    across: Scale,
    values: tuple[float, ...],
    up: Scale,
) -> None:
    for value in values:
        drawing.line(LEFT, up(value), RIGHT, up(value), "grid")
        drawing.text(LEFT - 6, up(value) + 4, f"{value:g}", anchor="end")
    for batch in batches:
        drawing.text(across(batch), BOTTOM + 16, str(batch), anchor="middle")


def _list(lines: tuple[str, ...]) -> str:
    return "<ul>" + "".join(f"<li>{escape(line)}</li>" for line in lines) + "</ul>"
