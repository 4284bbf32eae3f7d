"""Writes a tune's report: a page with pictures, the figures as JSON, and a summary in the terminal."""

import os
import tempfile
from pathlib import Path

import msgspec
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from trimtab.interfaces.report_html import render
from trimtab.interfaces.report_words import effect, headline_rows, kv_through
from trimtab.runtime.result import TuneResult

PAGE = "report.html"
FIGURES = "result.json"


class ReportError(RuntimeError):
    """A report that could not be written; the message names the file and the reason."""


def write_report(result: TuneResult, folder: Path) -> tuple[Path, ...]:
    """Write `report.html` and `result.json` into a folder and return their paths.

    Each file takes its name only when it is complete and on the disk. Raises `ReportError`.
    """
    page = render(result)
    figures = msgspec.json.format(msgspec.json.encode(result), indent=2).decode() + "\n"
    return (_write(folder / PAGE, page), _write(folder / FIGURES, figures))


def print_summary(result: TuneResult, console: Console) -> None:
    """Print what was found: figures before and after, each lever's outcome, triggers, the ledger."""
    console.print(_figures(result))
    for lever in result.levers:
        style = "bold green" if lever.verdict.startswith("adopted") else "bold"
        console.print(
            f"[{style}]{escape(lever.name)}: {escape(lever.verdict)}[/]  {escape(lever.because)}"
        )
        for found in lever.measured:
            console.print(f"  {escape(effect(found))}", highlight=False)
        for cut, why in sorted(lever.cuts_refused.items()):
            console.print(f"  refused for {escape(cut)}: {escape(why)}", highlight=False)
    for trigger in result.triggers:
        back = trigger.recovered_at_s
        recovered = "not recovered within the run" if back is None else f"recovered at {back:.0f} s"
        console.print(
            f"[bold]trigger[/] {escape(trigger.lever)}: {escape(trigger.trigger)} fired at "
            f"{trigger.fired_at_s:.0f} s ({trigger.value:.3g} against {trigger.threshold:.3g}), {recovered}; "
            f"KV kept: {kv_through(trigger)}",
            highlight=False,
        )
    state = "verified" if result.ledger.verified else "[bold red]NOT verified[/]"
    console.print(f"ledger {escape(result.ledger.path)}: {result.ledger.events} events, {state}")


def _figures(result: TuneResult) -> Table:
    title = f"{result.workload}: {result.baseline.n} requests before, {result.final.n} after"
    table = Table(title=title, title_justify="left", header_style="bold")
    table.add_column("")
    for heading in ("baseline", "final", "change"):
        table.add_column(heading, justify="right")
    for name, before, after, change in headline_rows(result.baseline, result.final):
        table.add_row(name, before, after, change)
    return table


def _write(path: Path, text: str) -> Path:
    try:
        fd, part = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(fd, "w", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            # A report is for everybody who may read the folder; mkstemp makes files for one.
            Path(part).chmod(0o644)
            Path(part).replace(path)
        finally:
            Path(part).unlink(missing_ok=True)
    except OSError as error:
        raise ReportError(f"{path} cannot be written: {error.strerror or error}") from error
    return path
