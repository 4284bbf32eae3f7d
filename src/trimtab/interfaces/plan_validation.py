"""Shows a validation of the planner's estimates: errors by hardware, engine and model, and layouts chosen."""

from collections.abc import Sequence
from typing import Final

from rich.console import Console
from rich.text import Text

from trimtab.planning.validate import VERDICT_ROWS, Part, Validation

UNITS: Final = (
    "coverage, mdape and p90 in percent; covers, right_split and regret are fractions; "
    "kN: N measured rows of the group calibrate and are not scored"
)
_SECTIONS: Final = (
    ("", ("rows",)),
    ("TPOT error", ("k0", "k2", "k4", "p90")),
    ("TTFT error", ("k0", "k2", "k4", "p90")),
    ("", ("cover",)),
    ("unmeasured", ("right", "lost")),
    ("2 measured", ("right", "lost")),
)
"""Heads over heads of columns."""

_EXPLAINED: Final = (
    "All in percent. rows: those with an estimate; kN: median error where N measured rows of a group calibrate and are "
    "not scored; p90, and cover (measured times inside their interval): of k4; right, and lost (regret): of layouts "
    "chosen with nothing measured, and with two proposed measurements."
)
_GAP: Final = 1
_SECTION_GAP: Final = 2
_WIDTH: Final = 4
_FEW_DIGITS: Final = 100.0


def print_validation(validation: Validation, console: Console) -> None:
    """Print everything first, then each group under its name; numbers are percent, a dash is unknown."""
    parts = [("everything", validation.overall), *validation.groups.items()]
    rows = [_cells(part) for _, part in parts]
    widths = [
        max(len(head), _WIDTH if place else 0, *(len(row[place]) for row in rows))
        for place, head in enumerate(_heads())
    ]
    _line(console, f"Estimates against measured layouts (seed {validation.seed})", "bold")
    _line(console, _titles(widths), "dim")
    _line(console, _joined(_heads(), widths), "dim")
    for (label, part), row in zip(parts, rows, strict=True):
        _line(console, label + _few(part), "" if part is not validation.overall else "bold")
        _line(console, _joined(row, widths), "" if part is not validation.overall else "bold")
    for text in (_EXPLAINED, f"As JSON: {UNITS}.", *validation.notes):
        console.print(Text(text))
    for label, why in validation.refused.items():
        console.print(Text(f"left out: {label}: {why}"))


def _line(console: Console, text: str, style: str) -> None:
    console.print(Text(text, style=style, overflow="fold"))


def _few(part: Part) -> str:
    if not part.few_rows:
        return ""
    scored = min(score.rows for score in (part.k0, part.k2, part.k4))
    return f" ({scored} scored at k4, under {VERDICT_ROWS}: no verdict)"


def _heads() -> list[str]:
    return [head for _, heads in _SECTIONS for head in heads]


def _titles(widths: Sequence[int]) -> str:
    """Return the upper heads, each above the columns that it speaks of."""
    left, found = iter(widths), ""
    for title, heads in _SECTIONS:
        width = sum(next(left) for _ in heads) + _GAP * (len(heads) - 1)
        found += title.rjust(width) + " " * _SECTION_GAP
    return found.rstrip()


def _joined(cells: Sequence[str], widths: Sequence[int]) -> str:
    """Return a row of right-aligned cells, those of a section nearer together."""
    filled = iter([cell.rjust(width) for cell, width in zip(cells, widths, strict=True)])
    sections = [(" " * _GAP).join(next(filled) for _ in heads) for _, heads in _SECTIONS]
    return (" " * _SECTION_GAP).join(sections).rstrip()


def _cells(part: Part) -> list[str]:
    k0, k2, k4 = part.k0, part.k2, part.k4
    return [
        str(k0.rows),
        *(_percent(each.tpot_mdape) for each in (k0, k2, k4)),
        _percent(k4.tpot_p90),
        *(_percent(each.ttft_mdape) for each in (k0, k2, k4)),
        _percent(k4.ttft_p90),
        _share(k4.interval_cover),
        *(_share(each) for each in (part.right_split, part.regret)),
        *(_share(each) for each in (part.right_split_2, part.regret_2)),
    ]


def _percent(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.1f}" if value < _FEW_DIGITS else f"{value:.0f}"


def _share(value: float | None) -> str:
    return "-" if value is None else f"{100.0 * value:.0f}"
