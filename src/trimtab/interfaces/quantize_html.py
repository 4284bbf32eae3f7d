"""A walk over the precisions as one page that needs nothing else: styles and the picture are inside."""

from html import escape
from importlib import resources
from typing import Final

from trimtab.interfaces.quantize_picture import FIGURE_HEADS, figures_of, quality_picture
from trimtab.interfaces.quantize_view import (
    HEADS,
    SIGNS,
    kept_words,
    noise_floor_words,
    plan_words,
    repeat_words,
    rows_of,
)
from trimtab.interfaces.report_tables import card, figure, table
from trimtab.quality.quantized import Quantized

HELD_HEADS: Final = ("rung", "group", "tensors by type")
GATE_HEADS: Final = ("rung", "gate", "verdict", "n", "worse by", "interval", "needed", "because")


def page(found: Quantized) -> str:
    """Return the whole page."""
    css = resources.files("trimtab.interfaces").joinpath("report.css").read_text("utf-8")
    kinds = list(found.plan.positions)
    pictures = "".join(
        figure(
            quality_picture(found, kind),
            f"Quality on {kind} against time per output token; whiskers are the intervals of both, the dashed "
            f"line is the margin of {found.plan.margin_nats:g} nats a token.",
            table(FIGURE_HEADS, figures_of(found, kind)),
        )
        for kind in kinds
    )
    sections = (
        ("Quality against speed", card(pictures)),
        ("Every rung", card(table(HEADS, rows_of(found)) + _list(noise_floor_words(found)))),
        ("What stays high, and why", card(_list(kept_words(found)))),
        ("What each rung really holds, read back", card(table(HELD_HEADS, held_rows(found)))),
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


def held_rows(found: Quantized) -> list[tuple[str, ...]]:
    """Return what was read back of every rung, a row for each group of tensors; rungs that hold the same once."""
    rows: list[tuple[str, ...]] = []
    shown: dict[str, dict[str, dict[str, int]]] = {}
    for one in found.results:
        if shown.get(one.rung.name) == one.effective:
            continue
        shown[one.rung.name] = one.effective
        for group, counts in one.effective.items():
            kinds = ", ".join(f"{count} {kind}" for kind, count in counts.items())
            rows.append((one.rung.label, group, kinds))
    return rows


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
    if not lines:
        return ""
    return "<ul>" + "".join(f"<li>{escape(line)}</li>" for line in lines) + "</ul>"
