"""`trimtab ledger`: what happened, one event, one lever's chain in words, whether the ledger is whole, export.

Exit codes: 0 done; 1 the ledger is broken (verify) or knows no such event or lever; 2 wrong usage or no ledger.
"""

import contextlib
import datetime
import os
import sys
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO

import click
import msgspec

from trimtab.core.events import Envelope, kind_of
from trimtab.core.narrate import ChainStep, chain, tell, tell_event
from trimtab.interfaces.common import friendly, read_config
from trimtab.interfaces.ledger_queries import QUERIES, answers_as_markdown
from trimtab.interfaces.ledger_read import NotThereError, UnusableError, lever_name, reader_of, when
from trimtab.runtime.ledger_reader import Filter, SqliteReader
from trimtab.runtime.ledger_rows import LedgerError

BROKEN = 1


@click.group("ledger")
@click.option(
    "--ledger",
    "path",
    type=click.Path(path_type=Path, dir_okay=False),
    envvar="TRIMTAB_LEDGER",
    help="Ledger file, for example out/ledger.sqlite. Default: $TRIMTAB_LEDGER, else ledger.path of "
    "the configuration.",
)
@click.option(
    "--config",
    "config_path",
    type=click.Path(path_type=Path, dir_okay=False),
    help="TOML configuration.",
)
@click.pass_context
@friendly
def ledger(context: click.Context, path: Path | None, config_path: Path | None) -> None:
    """Read the ledger: every event, in order, each linked to its cause."""
    context.obj = path or Path(read_config(config_path).ledger.path)


@ledger.command("list")
@click.option("--kind", help="Only events of this kind, for example rollout_moved.")
@click.option("--lever", help="Only events about this lever.")
@click.option(
    "--limit", type=click.IntRange(min=1), default=50, show_default=True, help="The newest so many."
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line, complete.")
@click.pass_obj
def list_events(path: Path, kind: str | None, lever: str | None, limit: int, as_json: bool) -> None:
    """List events, oldest first."""
    with reader_of(path) as reader:
        found = reader.last(Filter(kind=kind, lever=lever), limit=limit)
    if as_json:
        _print_json(found)
        return
    if not found:
        click.echo("No such events.")
        return
    if sys.stdout.isatty():
        _print_table(found)
        return
    for each in found:
        click.echo(
            f"{each.seq}\t{each.id}\t{when(each.at_s)}\t{kind_of(each.event)}\t{_head_line(each)}"
        )


@ledger.command()
@click.argument("reference", metavar="ID")
@click.option("--json", "as_json", is_flag=True, help="The event as JSON.")
@click.pass_obj
def show(path: Path, reference: str, as_json: bool) -> None:
    """Show one event by its id, the start of its id, or its seq."""
    with reader_of(path) as reader:
        try:
            found = reader.find(reference)
        except LedgerError as error:
            raise NotThereError(str(error)) from error
    if as_json:
        _print_json([found])
        return
    click.echo(
        f"event  {found.seq}  {found.id}\nkind   {kind_of(found.event)}\n"
        f"at     {when(found.at_s)}\ncause  {found.cause_id or 'none'}\nhash   {found.hash}\n"
    )
    click.echo(tell_event(found.event))
    click.echo("\n" + msgspec.json.format(msgspec.json.encode(found.event), indent=2).decode())


@ledger.command("chain")
@click.argument("lever")
@click.option("--json", "as_json", is_flag=True, help="The events as JSON, one a line.")
@click.pass_obj
def chain_of(path: Path, lever: str, as_json: bool) -> None:
    """Tell a lever's whole causal record in words. LEVER: its name, or the id of one of its events."""
    with reader_of(path) as reader:
        name = lever_name(reader, lever)
        steps = chain(name, reader.told(name))
    if as_json:
        _print_json([step.envelope for step in steps])
        return
    start_s = steps[0].envelope.at_s
    click.echo(f"Lever {name}: {len(steps)} events from {when(start_s)}\n")
    for step in steps:
        click.echo(f"+{step.envelope.at_s - start_s:.1f} s  [{step.envelope.id}]")
        click.echo(f"{_indented(step)}\n")


@ledger.command()
@click.option("--json", "as_json", is_flag=True, help="The result as JSON.")
@click.pass_obj
def verify(path: Path, as_json: bool) -> None:
    """Check every hash, the order and the causes. Exit code 1 if something is wrong."""
    with reader_of(path) as reader:
        found = reader.verify()
    if as_json:
        click.echo(msgspec.json.encode(found).decode())
    elif found.ok:
        folded = (
            f"; up to {found.folded_through_seq} folded by retention"
            if found.folded_through_seq
            else ""
        )
        lost = f"; {found.lost} events could not be stored" if found.lost else ""
        click.echo(
            f"{path}: {found.events} events are whole, up to {found.head_seq}{folded}{lost}\n"
            f"head {found.head_hash}"
        )
    else:
        click.echo(f"{path}: broken at event {found.bad_seq}: {found.problem}", err=True)
    if not found.ok:
        raise SystemExit(BROKEN)


@ledger.command()
@click.option(
    "--format",
    "style",
    type=click.Choice(["jsonl", "markdown"]),
    default="jsonl",
    show_default=True,
    help="jsonl: every event, complete. markdown: every lever's chain in words, predictions against outcomes.",
)
@click.option(
    "--out",
    type=click.Path(path_type=Path, dir_okay=False),
    help="File to write, whole or not at all. Default: standard output.",
)
@click.pass_obj
def export(path: Path, style: str, out: Path | None) -> None:
    """Export the ledger for other tools or for reading."""
    with reader_of(path) as reader, _output(out) as file:
        parts = _jsonl(reader) if style == "jsonl" else _markdown(reader)
        for part in parts:
            file.write(part)
    if out is not None:
        click.echo(f"wrote {out}")


def _head_line(each: Envelope) -> str:
    return tell_event(each.event).partition("\n")[0]


def _indented(step: ChainStep) -> str:
    return "\n".join(f"  {line}" for line in tell(step).splitlines())


def _print_json(envelopes: Iterable[Envelope]) -> None:
    for each in envelopes:
        click.echo(msgspec.json.encode(each).decode())


def _print_table(envelopes: Iterable[Envelope]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False)
    for heading, wraps in (("seq", False), ("id", False), ("time", False), ("event", True)):
        table.add_column(
            heading, no_wrap=not wraps, justify="right" if heading == "seq" else "left"
        )
    for each in envelopes:
        clock = datetime.datetime.fromtimestamp(each.at_s, tz=datetime.UTC)
        table.add_row(
            str(each.seq), each.id, f"{clock:%H:%M:%S}", Text(_head_line(each), overflow="fold")
        )
    Console().print(table)


def _jsonl(reader: SqliteReader) -> Iterator[str]:
    for each in reader.stream(Filter()):
        yield msgspec.json.encode(each).decode() + "\n"


def _markdown(reader: SqliteReader) -> Iterator[str]:
    yield f"# Levers in {reader.path.name}\n"
    for name in reader.levers():
        yield f"\n## {name}\n"
        for step in chain(name, reader.told(name)):
            first, *rest = tell(step).splitlines()
            yield f"\n- {when(step.envelope.at_s)} `{step.envelope.id}`: {first}\n"
            yield from (f"  - {line.strip()}\n" for line in rest)
    yield from answers_as_markdown(reader)


@contextlib.contextmanager
def _output(out: Path | None) -> Iterator[IO[str]]:
    """Give a file that takes its name only when it is complete."""
    if out is None:
        yield sys.stdout
        return
    try:
        fd, name = tempfile.mkstemp(dir=out.parent, prefix=f".{out.name}.")
    except OSError as error:
        raise UnusableError(f"{out} cannot be written: {error.strerror}") from error
    part = Path(name)
    try:
        with os.fdopen(fd, "w", encoding="utf-8") as file:
            yield file
        part.replace(out)
    except OSError as error:
        raise UnusableError(f"{out} cannot be written: {error.strerror}") from error
    finally:
        part.unlink(missing_ok=True)


for _query in QUERIES:
    ledger.add_command(_query)
