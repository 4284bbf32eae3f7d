"""Shows a plan on a terminal: the layout and why first, then memory, the others, what would settle the rest."""

from collections.abc import Sequence

from rich.console import Console, Group, RenderableType
from rich.markup import escape
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from trimtab.interfaces import plan_words as words
from trimtab.interfaces.plan_answer import PlanAnswer

LEFT = ("layout", "replica", "because", "on the fullest rank", "from", "")


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


def _table(title: str, heads: Sequence[str], rows: Sequence[Sequence[str]]) -> list[RenderableType]:
    if not rows:
        return []
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for head in heads:
        left = head in LEFT
        table.add_column(
            head, justify="left" if left else "right", header_style="dim", no_wrap=not left
        )
    for row in rows:
        table.add_row(*(escape(cell) for cell in row))
    return [Text(f"\n{title}", style="bold"), Padding(table, (0, 0, 0, 2))]


def _lines(title: str, texts: Sequence[str]) -> list[RenderableType]:
    if not texts:
        return []
    shown: list[RenderableType] = [Text(f"\n{title}", style="bold")]
    return shown + [Padding(Text(text), (0, 0, 0, 2)) for text in texts]
