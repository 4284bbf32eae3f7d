"""Draws quality against speed: a numbered mark for each rung, whiskers for both intervals, the margin, a legend."""

from typing import Final, NamedTuple

from trimtab.core.stats import Interval
from trimtab.core.types import Verdict
from trimtab.interfaces.quantize_view import SIGNS, harm_words, ratio_words
from trimtab.interfaces.svg import Drawing, Scale, linear, ticks
from trimtab.quality.ladder import RungResult
from trimtab.quality.quantized import Quantized
from trimtab.quality.rung_results import loss_gate

WIDTH: Final = 620.0
PLOT_HEIGHT: Final = 300.0
LEGEND_LINE: Final = 17.0
LEGEND_COLUMNS: Final = 2
LEFT: Final = 62.0
TOP: Final = 14.0
RIGHT: Final = WIDTH - 16.0
HARM_SHOWN_MAX: Final = 12.0
"""Rungs that are worse than so many margins stand at the picture's edge."""


FIGURE_HEADS: Final = (
    "mark",
    "rung",
    "verdict",
    "nats a token worse",
    "TPOT, part of the original's",
)


class _Mark(NamedTuple):
    number: int
    rung: RungResult
    harm: float
    interval: Interval | None
    tpot: float
    tpot_interval: Interval | None


def quality_picture(found: Quantized, kind: str) -> str:
    """Draw the harm on one kind of text over TPOT as a part of the original's, a mark for each rung."""
    margin = found.plan.margin_nats
    marks = _marks(found, kind)
    rows = -(-max(1, len(marks)) // LEGEND_COLUMNS)
    drawing = Drawing(
        WIDTH,
        PLOT_HEIGHT + LEGEND_LINE * rows + 12.0,
        title=f"Quality on {kind} against TPOT",
        description="Left is faster, low is better. Verdicts are told in words as well as by colour.",
    )
    if not marks:
        drawing.text(LEFT, TOP + 20, "nothing was measured", "t faint")
        return drawing.render()
    across = _across(marks)
    up, bounds = _up(marks, margin)
    _axes(drawing, across, up, marks, bounds)
    drawing.line(LEFT, up(margin), RIGHT, up(margin), "limit", title=f"margin {margin:g}")
    for mark in marks:
        _whiskers(drawing, mark, kind, across, up)
    for mark in marks:
        _dot(drawing, mark, kind, (across(mark.tpot), up(mark.harm)), found.choice.rung)
    for place, mark in enumerate(marks):
        _legend(drawing, mark, kind, divmod(place, rows), found.choice.rung)
    return drawing.render()


def figures_of(found: Quantized, kind: str) -> list[tuple[str, ...]]:
    """Return what the picture shows as rows: number, rung, verdict on the kind, harm, TPOT."""
    return [
        (
            str(mark.number),
            mark.rung.rung.label,
            SIGNS[_verdict(mark, kind)],
            harm_words(mark.rung, kind),
            ratio_words(mark.rung.speed.tpot_ms if mark.rung.speed else None),
        )
        for mark in _marks(found, kind)
    ]


def _marks(found: Quantized, kind: str) -> list[_Mark]:
    marks: list[_Mark] = []
    for number, one in enumerate(found.results, start=1):
        gate = one.quality.get(loss_gate(kind))
        tpot = one.speed.tpot_ms if one.speed else None
        if gate is None or gate.harm is None or tpot is None or tpot.ratio is None:
            continue
        marks.append(_Mark(number, one, gate.harm, gate.interval, tpot.ratio, tpot.interval))
    return marks


def _across(marks: list[_Mark]) -> Scale:
    tpots = [mark.tpot for mark in marks]
    return linear(min(0.9, *tpots) - 0.05, max(1.05, *tpots) + 0.05, LEFT, RIGHT)


def _up(marks: list[_Mark], margin: float) -> tuple[Scale, tuple[float, float]]:
    most = HARM_SHOWN_MAX * margin
    highs = [mark.interval.high if mark.interval else mark.harm for mark in marks]
    lows = [mark.interval.low if mark.interval else mark.harm for mark in marks]
    low = max(min(-margin, *lows), -most)
    high = min(max(2 * margin, *highs), most)
    return linear(low, high, PLOT_HEIGHT - 44.0, TOP), (low, high)


def _axes(
    drawing: Drawing, across: Scale, up: Scale, marks: list[_Mark], bounds: tuple[float, float]
) -> None:
    for value in ticks(*bounds, about=5):
        drawing.line(LEFT, up(value), RIGHT, up(value), "grid")
        drawing.text(LEFT - 6, up(value) + 4, f"{value:+.3g}", anchor="end")
    tpots = [mark.tpot for mark in marks]
    for value in ticks(min(0.9, *tpots), max(1.05, *tpots), about=6):
        drawing.text(across(value), PLOT_HEIGHT - 28, f"{value:.2f}", anchor="middle")
    drawing.text(RIGHT, PLOT_HEIGHT - 8, "TPOT, part of the original's", anchor="end")
    drawing.text(LEFT, PLOT_HEIGHT - 8, "up: nats a token worse", "t faint")


def _whiskers(drawing: Drawing, mark: _Mark, kind: str, across: Scale, up: Scale) -> None:
    css = f"whisker {_colour(mark, kind)}"
    x, y = across(mark.tpot), up(mark.harm)
    if mark.interval is not None:
        drawing.line(x, up(mark.interval.low), x, up(mark.interval.high), css)
    if mark.tpot_interval is not None:
        drawing.line(across(mark.tpot_interval.low), y, across(mark.tpot_interval.high), y, css)


def _dot(drawing: Drawing, mark: _Mark, kind: str, place: tuple[float, float], chosen: str) -> None:
    x, y = place
    radius = 6 if mark.rung.rung.label == chosen else 4
    title = f"{mark.rung.rung.label}: {mark.harm:+.4f} nats, {SIGNS[_verdict(mark, kind)]}"
    drawing.circle(x, y, radius, f"dot {_colour(mark, kind)}", title=title)
    drawing.text(x + 7, y - 5, str(mark.number))


def _legend(drawing: Drawing, mark: _Mark, kind: str, place: tuple[int, int], chosen: str) -> None:
    column, row = place
    x = LEFT + column * (RIGHT - LEFT) / LEGEND_COLUMNS
    y = PLOT_HEIGHT + LEGEND_LINE * (row + 0.5)
    label = mark.rung.rung.label
    words = f"{mark.number}  {label}: {SIGNS[_verdict(mark, kind)]}"
    drawing.text(x, y, f"{words} \u2190" if label == chosen else words)


def _verdict(mark: _Mark, kind: str) -> Verdict:
    return mark.rung.kinds.get(kind, Verdict.HOLD)


def _colour(mark: _Mark, kind: str) -> str:
    return "final" if _verdict(mark, kind) is Verdict.PASS else "base"
