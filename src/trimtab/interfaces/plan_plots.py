"""The pictures of a plan's page: where a rank's memory goes, and what more devices do to the time per token."""

from collections.abc import Sequence
from typing import Final

from trimtab.interfaces.plan_answer import MemoryAnswer
from trimtab.interfaces.svg import Drawing, fitted, linear, logarithmic, ticks
from trimtab.planning.steps import Growth

WIDTH: Final = 360.0
GB: Final = 1e9


def memory_bar(memory: MemoryAnswer) -> str:
    """Draw each use of memory where it begins and ends, from the first byte to the device's last."""
    row, left, right = 24.0, 128.0, WIDTH - 54.0
    uses = [(each.name, each.bytes) for each in memory.parts]
    uses.append(("left for KV", max(0.0, memory.kv_bytes)))
    drawing = Drawing(
        WIDTH,
        row * len(uses) + 22,
        title="Where a rank's memory goes",
        description="One bar for each use, each beginning where the one above ends. The dashed line is what the engine "
        "may take.",
    )
    top = max(memory.device_bytes, sum(size for _, size in uses))
    across = linear(0.0, top, left, right)
    at = 0.0
    for index, (name, size) in enumerate(uses):
        y = row * index
        drawing.text(left - 8, y + 14, fitted(name, left - 12), anchor="end")
        drawing.rect(left, y + 3, right - left, 14, "track", radius=2)
        css = "use base" if index == len(uses) - 1 else "use after"
        width = max(1.0, across(at + size) - across(at))
        drawing.rect(
            across(at), y + 3, width, 14, css, title=f"{name} {size / GB:.2f} GB", radius=2
        )
        drawing.text(right + 6, y + 14, f"{size / GB:.1f} GB")
        at += size
    foot = row * len(uses)
    edge = across(memory.usable_bytes)
    drawing.line(edge, 0, edge, foot, "limit", title="the engine may take this much")
    for value in ticks(0.0, top / GB, about=4):
        drawing.text(across(value * GB), foot + 14, f"{value:g}", anchor="middle")
    return drawing.render()


def growth_chart(rows: Sequence[Growth], target_ms: float | None) -> str:
    """Draw the time per output token over devices of a replica, both by factors, with the target."""
    height, left, right, top, bottom = 200.0, 44.0, WIDTH - 14.0, 12.0, 168.0
    drawing = Drawing(
        WIDTH,
        height,
        title="Time per output token as a replica grows",
        description="Milliseconds over devices, a dot for each size with its interval.",
    )
    if not rows:
        drawing.text(left, top + 20, "no size fits", "t faint")
        return drawing.render()
    values = [each.tpot_ms.high or each.tpot_ms.value for each in rows]
    high = max([*values, target_ms or 0.0]) * 1.08
    up = linear(0.0, high, bottom, top)
    across = logarithmic(rows[0].devices, rows[-1].devices, left + 14, right - 14)
    for value in ticks(0.0, high, about=4):
        drawing.line(left, up(value), right, up(value), "grid")
        drawing.text(left - 6, up(value) + 4, f"{value:g}", anchor="end")
    if target_ms is not None:
        drawing.line(left, up(target_ms), right, up(target_ms), "limit", title="target")
    drawing.polyline(
        [(across(each.devices), up(each.tpot_ms.value)) for each in rows], "curve final"
    )
    for each in rows:
        x, span = across(each.devices), each.tpot_ms
        if span.low is not None and span.high is not None:
            drawing.line(x, up(span.low), x, up(span.high), "whisker final")
        told = f"{each.layout.label}: {span.value:.3g} ms"
        drawing.circle(x, up(span.value), 4, "dot final", title=told)
        drawing.text(x, bottom + 16, str(each.devices), anchor="middle")
    drawing.text(right, height - 2, "devices", anchor="end")
    return drawing.render()
