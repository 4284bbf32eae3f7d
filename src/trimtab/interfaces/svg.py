"""Small helpers that write SVG by hand: shapes, text, scales, ticks. Colours are CSS classes of the page.

Everything is escaped here, so callers pass plain text. Coordinates are in pixels of the drawing's own size, chosen so
that text stays readable when a phone shows it at half that size or a desktop at twice.
"""

import math
from collections.abc import Callable, Sequence
from html import escape

Scale = Callable[[float], float]

_TEXT_WIDTH = 0.56
"""Mean width of a character over its font size, in a system sans-serif."""


class Drawing:
    """One SVG picture with a title and a description for those who cannot see it."""

    def __init__(self, width: float, height: float, *, title: str, description: str) -> None:
        self.width = width
        self.height = height
        self._title = title
        self._description = description
        self._parts: list[str] = []

    def line(
        self, x1: float, y1: float, x2: float, y2: float, css: str, *, title: str = ""
    ) -> None:
        """Draw a straight line."""
        places = f'x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"'
        self._add("line", f'{places} class="{css}"', title)

    def rect(
        self,
        x: float,
        y: float,
        width: float,
        height: float,
        css: str,
        *,
        title: str = "",
        radius: float = 0,
    ) -> None:
        """Draw a rectangle; one without width is not drawn."""
        if width <= 0 or height <= 0:
            return
        size = f'x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" rx="{radius:g}"'
        self._add("rect", f'{size} class="{css}"', title)

    def circle(self, x: float, y: float, radius: float, css: str, *, title: str = "") -> None:
        """Draw a circle around (x, y)."""
        self._add("circle", f'cx="{x:.1f}" cy="{y:.1f}" r="{radius:g}" class="{css}"', title)

    def polyline(self, points: Sequence[tuple[float, float]], css: str, *, title: str = "") -> None:
        """Draw connected lines, not filled."""
        places = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        self._add("polyline", f'points="{places}" class="{css}"', title)

    def polygon(self, points: Sequence[tuple[float, float]], css: str, *, title: str = "") -> None:
        """Draw a closed, filled shape."""
        places = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        self._add("polygon", f'points="{places}" class="{css}"', title)

    def text(
        self, x: float, y: float, words: str, css: str = "t", *, anchor: str = "start"
    ) -> None:
        """Write words with their baseline at (x, y); `anchor`: start, middle or end."""
        self._parts.append(
            f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" class="{css}">{escape(words)}</text>'
        )

    def render(self) -> str:
        """Return the picture as markup to be put into a page."""
        return (
            f'<svg role="img" viewBox="0 0 {self.width:g} {self.height:g}" '
            f'style="max-width:{self.width * 1.35:g}px" xmlns="http://www.w3.org/2000/svg">'
            f"<title>{escape(self._title)}</title><desc>{escape(self._description)}</desc>"
            + "".join(self._parts)
            + "</svg>"
        )

    def _add(self, tag: str, attributes: str, title: str) -> None:
        inner = f"<title>{escape(title)}</title>" if title else ""
        self._parts.append(f"<{tag} {attributes}>{inner}</{tag}>")


def linear(low: float, high: float, start: float, end: float) -> Scale:
    """Return the scale that takes [low, high] to [start, end]; values outside stay at the ends."""
    span = high - low or 1.0

    def scale(value: float) -> float:
        return start + (end - start) * min(1.0, max(0.0, (value - low) / span))

    return scale


def logarithmic(low: float, high: float, start: float, end: float) -> Scale:
    """Return the logarithmic scale that takes [low, high], both above 0, to [start, end]."""
    inner = linear(math.log(low), math.log(max(high, low * 1.0001)), start, end)

    def scale(value: float) -> float:
        return inner(math.log(max(value, low)))

    return scale


def ticks(low: float, high: float, *, about: int = 5) -> tuple[float, ...]:
    """Return round values within [low, high], about so many: steps of 1, 2 or 5 times a power of ten."""
    if high <= low:
        return (low,)
    raw = (high - low) / max(1, about)
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= raw * 0.999)
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    return tuple(round(each * step, 10) for each in range(first, last + 1))


def log_ticks(low: float, high: float, *, most: int = 7) -> tuple[float, ...]:
    """Return 1, 2 and 5 times powers of ten within [low, high]; fewer if those are too many, even
    steps if they are too few.
    """
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for factors in ((1, 2, 5), (1, 3), (1,)):
        found = [factor * 10.0**power for power in powers for factor in factors]
        inside = tuple(value for value in found if low * 0.999 <= value <= high * 1.001)
        if len(inside) <= most:
            break
    return inside if len(inside) >= 3 else ticks(low, high, about=4)


def fitted(words: str, width: float, *, size: float = 11.0) -> str:
    """Return the words, cut off with an ellipsis where they would be wider than `width`."""
    most = max(1, int(width / (size * _TEXT_WIDTH)))
    return words if len(words) <= most else f"{words[: max(1, most - 1)].rstrip()}\u2026"


def width_of(words: str, *, size: float = 11.0) -> float:
    """Estimate how wide words are."""
    return len(words) * size * _TEXT_WIDTH
