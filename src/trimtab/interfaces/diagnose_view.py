"""Shows an answer on a terminal: what binds and why first, then levers, warnings and sources."""

from collections.abc import Sequence

from rich.console import Console, Group, RenderableType
from rich.markup import escape
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from trimtab.core.narrate_words import UNKNOWN, number, share
from trimtab.interfaces.diagnose_answer import (
    DiagnoseAnswer,
    LeverAnswer,
    PhaseAnswer,
)
from trimtab.interfaces.diagnose_words import (
    OUTCOME_SIGNS,
    Moment,
    headline,
    key_readings,
    lever_head,
    levers_by_standing,
    plain,
    source_words,
    trends,
)

BAR_CELLS = 20
SPARKS = "\u2581\u2582\u2583\u2584\u2585\u2586\u2587\u2588"
OUTCOME_STYLES = {"healthy": "bold green", "bottleneck": "bold red", "cannot_tell": "bold yellow"}
LEVER_SIGNS = {True: ("\u2713", "green"), None: ("?", "yellow"), False: ("\u2715", "dim")}
WARNINGS_SHOWN = 12


def show(answer: DiagnoseAnswer, history: Sequence[Moment] = ()) -> RenderableType:
    """Return the whole answer; with a history the trends of its moments as well."""
    parts: list[RenderableType] = [_head(answer)]
    if len(history) > 1:
        parts.append(_trends(history))
    parts += [_phases(answer.phases), _readings(answer)]
    for title, found in (
        ("For it", answer.supports),
        ("Against it", answer.against),
        ("Ruled out", answer.ruled_out),
        ("Unknown", answer.unknown),
    ):
        parts += _statements(title, [each.text for each in found])
    parts += _statements("What would tell", answer.would_tell)
    parts.append(_budgets(answer))
    parts += _levers(answer.levers)
    parts += _statements("Do not", [each.text for each in answer.do_not])
    parts += _judgements(answer)
    parts += _warnings(answer)
    parts += _statements("Sources", [source_words(each) for each in answer.sources])
    return Group(*parts)


def show_live(answer: DiagnoseAnswer, history: Sequence[Moment], note: str) -> RenderableType:
    """Return what fits on a screen that refreshes: head, trends, phases, readings, the levers proposed."""
    proposed = [each for each in answer.levers if each.proposed]
    return Group(
        _head(answer),
        _trends(history),
        _phases(answer.phases),
        _budgets(answer),
        *_statements("For it", [each.text for each in answer.supports][:4]),
        *_statements("Against it", [each.text for each in answer.against][:2]),
        *_levers(proposed[:3]),
        *_statements("Do not", [each.text for each in answer.do_not][:2]),
        *_statements("Warnings", [each.text for each in answer.warnings][:4]),
        Text(note, style="dim"),
    )


def print_answer(answer: DiagnoseAnswer, console: Console) -> None:
    """Print the whole answer."""
    console.print(show(answer), soft_wrap=False, highlight=False)


def _head(answer: DiagnoseAnswer) -> RenderableType:
    style = OUTCOME_STYLES[answer.outcome.value]
    sign = OUTCOME_SIGNS[answer.outcome]
    because = [] if answer.binding is None else [answer.binding.because]
    told = dict.fromkeys([*because, answer.healthy_because])
    lines = [f"[{style}]{sign}[/] {escape(headline(answer))}", *map(escape, told)]
    return Text.from_markup("\n".join(line for line in lines if line))


def _phases(phases: Sequence[PhaseAnswer]) -> RenderableType:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), title_justify="left")
    for heading, justify in (
        ("phase", "left"), ("bound by", "left"), ("of time", "right"), ("mean", "right"),
        ("used", "right"), ("because", "left"),
    ):  # fmt: skip
        table.add_column(heading, justify=justify, header_style="dim")  # type: ignore[arg-type]
    for each in phases:
        table.add_row(
            each.phase.value,
            plain(each.resource.value) if each.resource else UNKNOWN,
            share(each.share),
            number(each.mean_ms, "ms"),
            share(each.used_share),
            escape(each.because),
        )
    return Group("", table)


def _readings(answer: DiagnoseAnswer) -> RenderableType:
    found = key_readings(answer)
    if not found:
        return Text()
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=False)
    table.add_column()
    table.add_column(justify="right")
    table.add_column(style="dim")
    for name, said, note in found:
        table.add_row(name, escape(said), escape(note))
    return Group(Text("\nRead", style="bold"), table)


def _budgets(answer: DiagnoseAnswer) -> RenderableType:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=False)
    for each in answer.budgets:
        table.add_row(
            each.budget.value,
            _bar(each.used_share),
            share(each.used_share),
            escape(each.basis),
        )
    return Group(Text("\nBudgets used", style="bold"), table)


def _bar(value: float | None) -> str:
    if value is None:
        return "\u00b7" * BAR_CELLS
    full = round(BAR_CELLS * min(1.0, max(0.0, value)))
    return "\u2588" * full + "\u2591" * (BAR_CELLS - full)


def _levers(levers: Sequence[LeverAnswer]) -> list[RenderableType]:
    lines: list[RenderableType] = []
    for title, found in levers_by_standing(levers):
        lines.append(Text(f"\n{title}", style="bold"))
        for each in found:
            sign, style = LEVER_SIGNS[each.proposed]
            told = f"[{style}]{sign} {escape(lever_head(each))}[/]: {escape(each.because)}"
            lines.append(Padding(Text.from_markup(told), (0, 0, 0, 2)))
    return lines


def _judgements(answer: DiagnoseAnswer) -> list[RenderableType]:
    told = [
        f"{each.subject.value}: "
        f"{each.answer.value if each.answer else 'cannot tell'}"
        f"{f' ({each.choice})' if each.choice else ''}. {each.because}"
        f"{f' {each.would_tell}' if each.would_tell else ''}"
        for each in answer.judgements
    ]
    return _statements("Judged from the facts given", told)


def _warnings(answer: DiagnoseAnswer) -> list[RenderableType]:
    told = [each.text for each in answer.warnings]
    more = len(told) - WARNINGS_SHOWN
    if more > 0:
        told = [*told[:WARNINGS_SHOWN], f"and {more} more; --json has them all"]
    return _statements("Warnings", told)


def _statements(title: str, texts: Sequence[str]) -> list[RenderableType]:
    if not texts:
        return []
    lines: list[RenderableType] = [Text(f"\n{title}", style="bold")]
    return lines + [Padding(Text(text), (0, 0, 0, 2)) for text in texts]


def _trends(history: Sequence[Moment]) -> RenderableType:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=False)
    for name, values, said in trends(history):
        table.add_row(name, spark(values), escape(said))
    return Group("", table)


def spark(values: Sequence[float | None], cells: int = 40) -> str:
    """Return the last values as a line of blocks; a dot where there was none."""
    shown = values[-cells:]
    known = [value for value in shown if value is not None]
    top = max(known, default=0.0)
    return "".join(
        "\u00b7"
        if value is None
        else SPARKS[min(7, int(8 * value / top))]
        if top > 0
        else SPARKS[0]
        for value in shown
    )
