"""A plan's tables on terminals of any width."""

import io

import pytest
from rich.console import Console

from trimtab.interfaces.plan_view import _table
from trimtab.interfaces.plan_words import GROWTH_HEADS, LAYOUT_HEADS

LAYOUTS = [
    ("TP2 DP4 x2", "16", "✓ chosen", "1,576 (1,286 to 2,160)", "31.2 (23.2 to 41.9)",
     "1,984", "49.68", "kernel tables"),
    ("one device", "1", "✕ misses", "576 (286 to 1,160)", "31.2 (23.2 to 41.9)",
     "1,984", "1,984", "kernel tables"),
]  # fmt: skip
GROWTH = [
    ("1", "one device", "31.2 (23.2 to 41.9)", "991.9", "991.9", "", "unknown", "0%", "KV too small"),
    ("16", "TP2 PP2 DP4", "1,131.2 (1,023.2 to 2,141.9)", "12,991.9", "1,496", "+1.25e+03", "100%", "14.6%", "meets"),
]  # fmt: skip


@pytest.mark.parametrize("width", [80, 100, 160])
@pytest.mark.parametrize(("heads", "rows"), [(LAYOUT_HEADS[:-1], LAYOUTS), (GROWTH_HEADS, GROWTH)])
def test_no_terminal_of_80_columns_or_more_hides_a_name_or_a_figure(
    width: int, heads: tuple[str, ...], rows: list[tuple[str, ...]]
) -> None:
    """Names of layouts stay in one piece, and no word of any cell is broken or left out."""
    file = io.StringIO()
    console = Console(file=file, width=width)
    for each in _table("Table", heads, rows):
        console.print(each)
    printed = file.getvalue()
    words = printed.split()
    assert [
        row[heads.index("layout" if "layout" in heads else "replica")] in printed for row in rows
    ] == [True, True]
    missing = [
        word for row in (heads, *rows) for cell in row for word in cell.split() if word not in words
    ]
    assert missing == []
    assert max(len(line) for line in printed.splitlines()) <= width
