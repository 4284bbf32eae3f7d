"""The picture of a comparison: CPU per streamed event of every proxy, with its interval over rounds."""

from collections.abc import Sequence
from typing import Final

from bench.proxy.results import US, Interval, Row, interval
from trimtab.interfaces.svg import Drawing, Scale, log_ticks, logarithmic

WIDTH: Final = 720.0
LEFT: Final = 150.0
RIGHT: Final = 30.0
TOP: Final = 34.0
ROW_HEIGHT: Final = 20.0
GAP: Final = 26.0
STYLE: Final = (
    "<style>.t,.s{font:11px system-ui,sans-serif;fill:#222}.s{fill:#666}.h{font:bold 12px "
    "system-ui,sans-serif;fill:#222}.g{stroke:#ddd}.i{stroke:#777;stroke-width:2}"
    ".d{fill:#777}.u{fill:#0a6b8a}.v{stroke:#0a6b8a;stroke-width:2}</style>"
)


def draw(rows: Sequence[Row], proxies: Sequence[str]) -> str:
    """Return the picture as SVG: a block per number of streams, a line per proxy, a dot with its 95% interval."""
    groups = [
        (streams, _costs(rows, proxies, streams)) for streams in sorted({r.streams for r in rows})
    ]
    seen = [cost for _, costs in groups for _, cost in costs]
    low = min(cost.low or cost.value for cost in seen) / 1.25
    high = max(cost.high or cost.value for cost in seen) * 1.25
    scale = logarithmic(low, high, LEFT, WIDTH - RIGHT)
    height = TOP + sum(GAP + ROW_HEIGHT * len(costs) for _, costs in groups) + 24
    picture = Drawing(
        WIDTH,
        height,
        title="CPU of a proxy per streamed event",
        description="Median over interleaved rounds and its 95% bootstrap interval; less is better.",
    )
    for value in log_ticks(low, high):
        picture.line(scale(value), TOP - 6, scale(value), height - 22, "g")
        picture.text(scale(value), height - 8, f"{value:g} µs", "s", anchor="middle")
    picture.text(8, 16, "CPU of the proxy per streamed event (logarithmic), median and 95%", "h")
    y = TOP
    for streams, costs in groups:
        picture.text(8, y + 12, f"{streams:,} streams", "h")
        y += GAP
        for name, cost in costs:
            _row(picture, scale, y, name, cost)
            y += ROW_HEIGHT
    return picture.render().replace("<title>", STYLE + "<title>", 1)


def _row(picture: Drawing, scale: Scale, y: float, name: str, cost: Interval) -> None:
    ours = name == US
    picture.text(LEFT - 12, y + 4, name, "t", anchor="end")
    if cost.low is not None and cost.high is not None:
        picture.line(scale(cost.low), y, scale(cost.high), y, "v" if ours else "i")
    picture.circle(scale(cost.value), y, 4.5, "u" if ours else "d", title=cost.text(".1f"))


def _costs(rows: Sequence[Row], proxies: Sequence[str], streams: int) -> list[tuple[str, Interval]]:
    found = []
    for proxy in proxies:
        mine = [row for row in rows if row.proxy == proxy and row.streams == streams]
        cost = interval([r.cpu_us_per_event for r in mine if r.cpu_us_per_event is not None])
        if cost is not None:
            found.append((proxy, cost))
    return sorted(found, key=lambda each: each[1].value)
