"""Shows a plan on a terminal: the layout and why first, then memory, the others, what would settle the rest."""

from collections.abc import Sequence

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.markup import escape
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from trimtab.interfaces import plan_words as words
from trimtab.interfaces.plan_answer import PlanAnswer

LEFT = ("layout", "replica", "because", "on the fullest rank", "from", "")
WHOLE = ("layout", "replica")
"""Columns that are never folded: what the others speak of."""
HEAD_WORD = 10
"""Letters of a head's word that are kept together."""
GAP = 2


def print_answer(answer: PlanAnswer, console: Console) -> None:
    """Print the whole answer."""
    console.print(show(answer), highlight=False)


def show(answer: PlanAnswer) -> RenderableType:
    """Return the whole answer."""
    style = "bold green" if answer.found else "bold red"
    best = answer.layouts[0]
    carried = answer.capacity.unit if answer.capacity else ""
    return Group(
        Text(words.headline(answer), style=style),
        Text(words.asked_words(answer), style="dim"),
        *_table(f"Memory of {best.label}", words.MEMORY_HEADS, words.memory_rows(best.memory)),
        Padding(Text(words.kv_words(best.memory)), (0, 0, 0, 2)),
        *_table(
            "Layouts", words.LAYOUT_HEADS[:-1], [row[:-1] for row in words.layout_rows(answer)]
        ),
        *_lines("Why", [f"{row[0]}: {row[-1]}" for row in words.layout_rows(answer) if row[-1]]),
        *_lines("Ruled out", words.ruled_out(answer)),
        *_lines("Impossible", words.impossible_words(answer)),
        *_table(
            "What each device adds to a replica", words.GROWTH_HEADS, words.growth_rows(answer)
        ),
        *_table(
            f"What each device adds to the fleet ({carried})",
            words.SPREAD_HEADS,
            words.spread_rows(answer),
        ),
        *_lines("What would do", [answer.relief.because] if answer.relief else []),
        *_lines("Capacity", list(words.capacity_words(answer))),
        *_lines("Split of prefill and decode", [words.split_words(answer)]),
        *_lines("Uncertain", answer.uncertain),
        *_lines(
            "Measurements that would settle it",
            [
                f"{place}. {words.measurement_words(each)}"
                for place, each in enumerate(answer.measurements, start=1)
            ],
        ),
        *_lines("Unknown", answer.unknown),
        *_lines("Sources", words.source_words(answer)),
    )


class _Columns:
    """A table whose names and figures are whole on any usual terminal: what is narrow folds between words."""

    def __init__(self, heads: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        self._heads = heads
        self._rows = rows

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Give the table; gaps are halved before any cell is folded, and the widest are folded first."""
        natural = [max(map(len, cells)) for cells in self._cells()]
        gap = GAP if sum(natural) + GAP * (len(natural) - 1) <= options.max_width else 1
        least = [
            width if head in WHOLE else _narrowest(cells)
            for head, width, cells in zip(self._heads, natural, self._cells(), strict=True)
        ]
        room = options.max_width - gap * (len(natural) - 1)
        yield self._build(_shrink(natural, least, room), gap)

    def _cells(self) -> list[tuple[str, ...]]:
        return list(zip(self._heads, *self._rows, strict=True))

    def _build(self, widths: Sequence[int], gap: int) -> Table:
        table = Table(box=None, pad_edge=False, padding=(0, gap, 0, 0))
        for head, width in zip(self._heads, widths, strict=True):
            left = head in LEFT
            table.add_column(
                head, justify="left" if left else "right", header_style="dim", width=width
            )
        for row in self._rows:
            table.add_row(*(escape(cell) for cell in row))
        return table


def _narrowest(cells: Sequence[str]) -> int:
    """Return the width that breaks no word of a column but a long one of its head, which comes first."""
    head, *rest = cells
    words = [part for cell in rest for part in cell.split()]
    return max([1, *map(len, words), *(min(HEAD_WORD, len(part)) for part in head.split())])


def _shrink(natural: Sequence[int], least: Sequence[int], room: int) -> list[int]:
    """Return widths that fit `room`, the widest made narrower first and none narrower than its least."""
    widths = list(natural)
    while sum(widths) > room:
        spare = [place for place, width in enumerate(widths) if width > least[place]]
        if not spare:
            break
        widths[max(spare, key=lambda place: widths[place])] -= 1
    return widths


def _table(title: str, heads: Sequence[str], rows: Sequence[Sequence[str]]) -> list[RenderableType]:
    if not rows:
        return []
    return [Text(f"\n{title}", style="bold"), Padding(_Columns(heads, rows), (0, 0, 0, 2))]


def _lines(title: str, texts: Sequence[str]) -> list[RenderableType]:
    if not texts:
        return []
    shown: list[RenderableType] = [Text(f"\n{title}", style="bold")]
    return shown + [Padding(Text(text), (0, 0, 0, 2)) for text in texts]
