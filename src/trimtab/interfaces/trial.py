"""What `trimtab quantize` and `trimtab speculate` share: progress while they try, a report, a record to propose."""

from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

import click
import msgspec
from rich.console import Console

from trimtab.interfaces.common import run_until_told
from trimtab.interfaces.files import write_whole
from trimtab.interfaces.tune_console import TuneConsole
from trimtab.levers.speculation_found import Speculated
from trimtab.quality.quantized import Quantized
from trimtab.runtime.clock import SystemClock

PAGE_NAME, LEVER_NAME = "index.html", "lever.toml"
STAYS: Final = 4
"""The exit code where nothing was found that is better than what there is."""

Found = TypeVar("Found", Quantized, Speculated)


def tried(
    headline: tuple[str, str, float],
    work: Callable[[SystemClock, TuneConsole], Coroutine[Any, Any, Found]],
) -> Found:
    """Carry out a trial under a bar; `headline`: its name, what it does, seconds it is expected to take."""
    clock = SystemClock()
    console = TuneConsole(Console(stderr=True), clock.mono_s)
    console.stage(*headline)
    try:
        return run_until_told(work(clock, console))
    finally:
        console.close()


def reported(
    found: Found, record: str | None, report: Path, *, json_name: str, page: Callable[[Found], str]
) -> Found:
    """Write the page, the figures and, where there is one, the lever record; return what names the record."""
    # What an earlier run wrote would pass for this one's.
    (report / LEVER_NAME).unlink(missing_ok=True)
    if record is not None:
        write_whole(report / LEVER_NAME, record)
        found = msgspec.structs.replace(found, lever_record=str(report / LEVER_NAME))
    write_whole(report / PAGE_NAME, page(found))
    write_whole(report / json_name, f"{_figures(found)}\n")
    return found


def told(
    found: Found,
    *,
    as_json: bool,
    show: Callable[[Found, Console], None],
    then: Sequence[str],
) -> None:
    """Print the answer, as JSON or in words; `then`: lines that say where more is and what to do."""
    if as_json:
        click.echo(_figures(found))
        return
    show(found, Console())
    click.echo("")
    for line in then:
        click.echo(line)


def propose_command(found: Quantized | Speculated) -> tuple[str, ...]:
    """Return what proposes the record that was written, nothing where none was."""
    record = found.lever_record
    return () if record is None else (f"trimtab rollout propose {record} --dry-run",)


def _figures(found: Quantized | Speculated) -> str:
    return msgspec.json.format(msgspec.json.encode(found)).decode()
