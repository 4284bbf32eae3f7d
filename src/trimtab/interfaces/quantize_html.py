"""A walk over the precisions as one page that needs nothing else: styles and the picture are inside."""

from html import escape
from importlib import resources
from typing import Final

from trimtab.core.types import Verdict
from trimtab.interfaces.quantize_view import (
    HEADS,
    SIGNS,
    kept_words,
    plan_words,
    repeat_words,
    rows_of,
)
from trimtab.interfaces.report_tables import card, figure, table
from trimtab.interfaces.svg import Drawing, linear, ticks
from trimtab.quality.ladder import RungResult
from trimtab.quality.quantized import Quantized
from trimtab.quality.rung_results import loss_gate

WIDTH: Final = 560.0
HEIGHT: Final = 320.0
GATE_HEADS: Final = ("rung", "gate", "verdict", "n", "worse by", "interval", "needed", "because")
HARM_SHOWN_MAX: Final = 12.0
"""Rungs that are worse than so many margins stand at the picture's edge."""


def page(found: Quantized) -> str:
    """Return the whole page."""
    css = resources.files("trimtab.interfaces").joinpath("report.css").read_text("utf-8")
    kinds = list(found.plan.positions)
    pictures = "".join(
        figure(
            quality_picture(found, kind),
            f"Quality on {kind} against time per output token; whiskers are the intervals of the gate, the dashed "
            f"line is the margin of {found.plan.margin_nats:g} nats a token.",
            "",
        )
        for kind in kinds
    )
    sections = (
        ("Quality against speed", card(pictures)),
        ("Every rung", card(table(HEADS, rows_of(found)))),
        ("What stays high, and why", card(_list(kept_words(found)))),
        ("Every gate", card(table(GATE_HEADS, _gates(found)))),
        (
            "What was measured",
            card(
                _list(
                    (
                        *plan_words(found.plan),
                        found.original_note,
                        repeat_words(found),
                        *found.notes,
                    )
                )
            ),
        ),
    )
    body = "".join(f"<section><h2>{title}</h2>{inside}</section>" for title, inside in sections)
    confirmed = "" if found.confirmation is None else f"<p>{escape(found.confirmation.because)}</p>"
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        f"<title>trimtab quantize: {escape(found.choice.rung)}</title><style>{css}</style></head><body>"
        f"<header><h1>{escape(found.choice.rung)}</h1>"
        f'<p class="lead">{escape(found.choice.because)}</p>{confirmed}</header>'
        f"<main>{body}</main><footer>{escape(found.machine)}; {found.took_s:,.0f} s</footer></body></html>\n"
    )


def quality_picture(found: Quantized, kind: str) -> str:
    """Draw the harm on one kind of text over TPOT as a part of the original's, a mark for each rung."""
    margin = found.plan.margin_nats
    shown = [
        one for one in found.results if _tpot(one) is not None and _harm(one, kind) is not None
    ]
    drawing = Drawing(
        WIDTH,
        HEIGHT,
        title=f"Quality on {kind} against TPOT",
        description="Left is faster, low is better. Verdicts are told by the marks' letters as well as their colour.",
    )
    left, right, top, bottom = 62.0, WIDTH - 16.0, 14.0, HEIGHT - 44.0
    if not shown:
        drawing.text(left, top + 20, "nothing was measured", "t faint")
        return drawing.render()
    tpots = [_tpot(one) or 1.0 for one in shown]
    across = linear(min(0.9, *tpots) - 0.05, max(1.05, *tpots) + 0.05, left, right)
    harms = [min(_harm(one, kind) or 0.0, HARM_SHOWN_MAX * margin) for one in shown]
    low, high = min(-margin, *harms), max(2 * margin, *harms)
    up = linear(low, high * 1.08, bottom, top)
    for value in ticks(low, high, about=5):
        drawing.line(left, up(value), right, up(value), "grid")
        drawing.text(left - 6, up(value) + 4, f"{value:+.3g}", anchor="end")
    for value in ticks(min(0.9, *tpots), max(1.05, *tpots), about=6):
        drawing.text(across(value), bottom + 16, f"{value:.2f}", anchor="middle")
    drawing.line(left, up(margin), right, up(margin), "limit", title="margin")
    for number, one in enumerate(shown):
        _mark(drawing, one, kind, across(tpots[number]), up(harms[number]), found.choice.rung)
    drawing.text(right, HEIGHT - 8, "TPOT, part of the original's", anchor="end")
    return drawing.render()


def _mark(drawing: Drawing, one: RungResult, kind: str, x: float, y: float, chosen: str) -> None:
    verdict = one.kinds.get(kind, Verdict.HOLD)
    css = "dot final" if verdict is Verdict.PASS else "dot base"
    harm = _harm(one, kind)
    drawing.circle(
        x,
        y,
        6 if one.rung.label == chosen else 4,
        css,
        title=f"{one.rung.label}: {harm:+.4f} nats, {SIGNS[verdict]}",
    )
    drawing.text(x + 8, y + 4, f"{SIGNS[verdict][0]} {one.rung.label}")


def _tpot(one: RungResult) -> float | None:
    return one.speed.tpot_ms.ratio if one.speed else None


def _harm(one: RungResult, kind: str) -> float | None:
    gate = one.quality.get(loss_gate(kind))
    return gate.harm if gate else None


def _gates(found: Quantized) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    for one in found.results:
        for name, gate in one.quality.items():
            interval = gate.interval
            rows.append(
                (
                    one.rung.label,
                    name,
                    SIGNS[gate.verdict],
                    str(gate.n),
                    "unknown" if gate.harm is None else f"{gate.harm:+.4f} {gate.margin.unit}",
                    "unknown"
                    if interval is None
                    else f"[{interval.low:+.4f}, {interval.high:+.4f}]",
                    "unknown" if gate.needed is None else f"{gate.needed:,}",
                    gate.because,
                )
            )
    return rows


def _list(lines: tuple[str, ...]) -> str:
    return "<ul>" + "".join(f"<li>{escape(line)}</li>" for line in lines) + "</ul>"
