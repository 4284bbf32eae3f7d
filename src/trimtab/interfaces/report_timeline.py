"""The timeline of a tune: stages on top, below them a lane per lever with its share of traffic and its triggers.

A move's verdict is a shape and a letter as well as a colour: pass is a filled disc, hold a square, fail and error
are crosses; a trigger is a triangle that points down when it fires and up when it lets go.
"""

from collections.abc import Sequence

from trimtab.core.types import RolloutState, Verdict
from trimtab.interfaces.svg import Drawing, Scale, fitted, linear, ticks, width_of
from trimtab.runtime.result import TimelinePoint

WIDTH = 860.0
LEFT, RIGHT = 8.0, WIDTH - 14.0
STAGES = "stage"
ENDED = {RolloutState.ROLLED_BACK, RolloutState.DISABLED, RolloutState.EXPIRED}
"""After these nothing meets the lever any more, whatever its slice was."""
LANE = 112.0
TOP = 48.0


def timeline_picture(points: Sequence[TimelinePoint], duration_s: float) -> str:
    """Draw the whole run over time in seconds."""
    lanes = list(dict.fromkeys(point.lane for point in points if point.lane != STAGES))
    height = TOP + LANE * len(lanes) + 50.0
    drawing = Drawing(
        WIDTH,
        height,
        title="Timeline of rollouts and triggers",
        description=f"Over {duration_s:.0f} seconds: the stages of the run, and for each of {len(lanes)} levers the "
        "share of traffic in its slice, with the verdict at each move and the firing and recovery of triggers.",
    )
    end_s = max([duration_s, *(point.at_s for point in points)])
    across = linear(0.0, end_s, LEFT, RIGHT)
    bottom = TOP + LANE * len(lanes)
    for at_s in ticks(0.0, end_s, about=9):
        drawing.line(across(at_s), TOP - 4, across(at_s), bottom, "grid")
        drawing.text(across(at_s), bottom + 16, f"{at_s:g} s", anchor="middle")
    _stages(drawing, [point for point in points if point.lane == STAGES], across, end_s)
    for index, lane in enumerate(lanes):
        mine = [point for point in points if point.lane == lane]
        _lane(drawing, lane, mine, across, end_s, TOP + index * LANE)
    _key(drawing, bottom + 38)
    return drawing.render()


def _stages(drawing: Drawing, stages: Sequence[TimelinePoint], across: Scale, end_s: float) -> None:
    ends = [*(point.at_s for point in stages[1:]), end_s]
    for index, (point, until_s) in enumerate(zip(stages, ends, strict=False)):
        left, right = across(point.at_s), across(until_s)
        drawing.rect(
            left, 10, right - left - 1.5, 24, f"stage s{index % 2}", title=point.detail, radius=3
        )
        if right - left > 22:
            drawing.text(left + 5, 26, fitted(point.what, right - left - 8))


def _lane(
    drawing: Drawing,
    lane: str,
    points: Sequence[TimelinePoint],
    across: Scale,
    end_s: float,
    top: float,
) -> None:
    up = linear(0.0, 1.0, top + LANE - 14, top + 32)
    drawing.line(LEFT, top + LANE - 14, RIGHT, top + LANE - 14, "axis")
    drawing.text(LEFT, top + 16, lane, "t strong")
    drawing.text(RIGHT, top + 16, "share of traffic in the slice", "t faint", anchor="end")
    moves = [point for point in points if point.share is not None]
    outline: list[tuple[float, float]] = []
    for index, point in enumerate(moves):
        until_s = moves[index + 1].at_s if index + 1 < len(moves) else end_s
        y = up(_share(point))
        outline += [(across(point.at_s), y), (across(until_s), y)]
    if outline:
        floor = up(0.0)
        drawing.polygon([(outline[0][0], floor), *outline, (outline[-1][0], floor)], "share")
        drawing.polyline([(outline[0][0], floor), *outline], "curve final")
    written_to = 0.0
    for point in moves:
        x, y = across(point.at_s), up(_share(point))
        words = f"{point.what.replace('_', ' ')} {_share(point):.0%}"
        _mark(drawing, x, y, point)
        place = min(max(x + 8, written_to), RIGHT - width_of(words))
        if place - x < 46:
            drawing.text(place, y - 7, words)
            written_to = place + width_of(words) + 6
    for point in points:
        if point.share is None:
            _mark(drawing, across(point.at_s), up(0.0) - 8, point)


def _share(point: TimelinePoint) -> float:
    return 0.0 if point.what in ENDED else point.share or 0.0


def _mark(drawing: Drawing, x: float, y: float, point: TimelinePoint) -> None:
    title = f"{point.at_s:.0f} s: {point.what}" + (f", {point.detail}" if point.detail else "")
    if point.share is None:
        side = -7 if "recovered" in point.what else 7
        corners = [(x - 7, y - side), (x + 7, y - side), (x, y + side)]
        drawing.polygon(corners, f"mark {point.verdict or 'none'}", title=title)
        drawing.line(x, y - 60, x, y - 8, f"flag {point.verdict or 'none'}")
        return
    match point.verdict:
        case Verdict.PASS:
            drawing.circle(x, y, 5, "mark pass", title=title)
        case Verdict.HOLD:
            drawing.rect(x - 5, y - 5, 10, 10, "mark hold", title=title)
        case Verdict.FAIL | Verdict.ERROR:
            drawing.line(x - 5, y - 5, x + 5, y + 5, f"cross {point.verdict}", title=title)
            drawing.line(x - 5, y + 5, x + 5, y - 5, f"cross {point.verdict}", title=title)
        case _:
            drawing.circle(x, y, 5, "mark none", title=title)


def _key(drawing: Drawing, y: float) -> None:
    x = LEFT + 6
    verdicts = (("pass", "pass"), ("hold", "hold"), ("fail", "fail or error"), (None, "begin"))
    for verdict, word in verdicts:
        shown = TimelinePoint(at_s=0.0, lane="", what=word, share=0.0, verdict=verdict)
        _mark(drawing, x, y - 4, shown)
        drawing.text(x + 11, y, word)
        x += width_of(word) + 36
    for what, verdict in (("trigger fired", "fail"), ("trigger recovered", "pass")):
        side = -5 if "recovered" in what else 5
        corners = [(x - 6, y - 4 - side), (x + 6, y - 4 - side), (x, y - 4 + side)]
        drawing.polygon(corners, f"mark {verdict}")
        drawing.text(x + 11, y, what)
        x += width_of(what) + 36
