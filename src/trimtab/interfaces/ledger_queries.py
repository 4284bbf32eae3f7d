"""`trimtab ledger why|before|without|predictions`: questions to the ledger, answered in words or as JSON."""

import datetime
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import click
import msgspec

from trimtab.core.events import Envelope, RolloutMoved, TriggerMoved, lever_of
from trimtab.core.lever import LeverRecordError
from trimtab.core.narrate import chain
from trimtab.core.narrate_words import duration
from trimtab.core.state import EMPTY
from trimtab.core.types import RolloutState
from trimtab.interfaces.ledger_read import NotThereError, lever_name, reader_of, when
from trimtab.rollout import queries
from trimtab.rollout.short_record import seconds
from trimtab.runtime.ledger_reader import SqliteReader
from trimtab.runtime.ledger_rows import LedgerError

JSON = click.option("--json", "as_json", is_flag=True, help="The answer as JSON.")
TAKEN_BACK: Final = frozenset(
    {RolloutState.ROLLED_BACK, RolloutState.DISABLED, RolloutState.PAUSED, RolloutState.EXPIRED}
)


@click.command()
@click.argument("lever")
@JSON
@click.pass_obj
def why(path: Path, lever: str, as_json: bool) -> None:
    """Say why LEVER is on or off: what bound, what was promised, the look that decided, the last move."""
    with reader_of(path) as reader:
        name = lever_name(reader, lever)
        steps = chain(name, reader.told(name))
        found = queries.why(name, [step.envelope for step in steps])
        status = reader.catch_up(EMPTY).levers[name]
    if as_json:
        click.echo(msgspec.json.encode(found).decode())
        return
    share = f" at {status.share:.0%}" if status.share else ""
    click.echo(f"{name} is {status.state.value}{share}: {status.reason or 'proposed'}\n")
    for each in found:
        click.echo(f"{when(each.at_s)}  [{each.event_id}]")
        click.echo("\n".join(f"  {line}" for line in each.text.splitlines()) + "\n")


@click.command()
@click.argument("reference", metavar="[EVENT|LEVER]", default="")
@click.option("--at", "at_text", help="When it got worse, such as 2026-11-30T08:15:00Z.")
@click.option("--within", default="24h", show_default=True, help="How far back to look.")
@JSON
@click.pass_obj
def before(path: Path, reference: str, at_text: str | None, within: str, as_json: bool) -> None:
    """Say what changed before a regression: first what shares a budget or a phase with it, then by time.

    EVENT tells of the regression: a trigger, a failed look, a move. LEVER: the last time it was taken back. Without
    either --at is needed.
    """
    if not reference and at_text is None:
        raise click.UsageError("name an event or a lever, or say when it got worse with --at")
    try:
        window_s = seconds(within, "--within")
    except LeverRecordError as error:
        raise click.UsageError(str(error)) from error
    with reader_of(path) as reader:
        decided = reader.decided()
        regression = _regression(reader, decided, reference) if reference else None
    at_s = _moment(at_text) if at_text is not None else regression.at_s if regression else 0.0
    found = queries.before(regression, decided, at_s=at_s, window_s=window_s)
    if as_json:
        click.echo(msgspec.json.encode(found).decode())
        return
    if not found:
        click.echo(f"Nothing changed in the {duration(window_s)} before {when(at_s)}.")
    for each in found:
        shared = f" (shares {', '.join(each.shares)})" if each.shares else ""
        click.echo(f"{duration(each.before_s)} before  [{each.event_id}]{shared}")
        click.echo(f"  {f'{each.lever}: ' if each.lever else ''}{each.text}")


@click.command()
@click.argument("lever")
@JSON
@click.pass_obj
def without(path: Path, lever: str, as_json: bool) -> None:
    """Say what would be lost by taking LEVER back, from what was measured of it."""
    with reader_of(path) as reader:
        name = lever_name(reader, lever)
        found = queries.without(name, reader.catch_up(EMPTY))
    if as_json:
        click.echo(msgspec.json.encode(found).decode())
        return
    if not found.is_on:
        click.echo(f"{name} is not on: nothing would be lost now.")
    if not found.metrics:
        click.echo(f"What {name} does was not measured: unknown.")
    for each in found.metrics:
        low = "?" if each.low is None else f"{each.low:.2f}"
        high = "?" if each.high is None else f"{each.high:.2f}"
        counted = f"n = {each.n_baseline} and {each.n_candidate}, {each.n_units} units"
        click.echo(f"{each.metric} of {each.cut}: {each.ratio:.2f}x [{low}, {high}] ({counted})")
    for text in found.budgets:
        click.echo(f"budget {text}")
    for other in found.verify:
        click.echo(f"to verify again: {other}, which was proven beside it")


@click.command()
@JSON
@click.pass_obj
def predictions(path: Path, as_json: bool) -> None:
    """Score every prediction of every lever against what was measured, and each technique's record."""
    with reader_of(path) as reader:
        rows = queries.predictions(reader.decided())
    records = queries.track_record(rows)
    if as_json:
        click.echo(msgspec.json.encode({"predictions": rows, "techniques": records}).decode())
        return
    if not rows:
        click.echo("Nothing was predicted.")
    for row in rows:
        click.echo(_told(row))
    for each in records:
        click.echo(_told_record(each))


QUERIES: Final = (why, before, without, predictions)


def answers_as_markdown(reader: SqliteReader) -> Iterator[str]:
    """Yield the scored predictions and each technique's record as Markdown; nothing where nothing was predicted."""
    rows = queries.predictions(reader.decided())
    if not rows:
        return
    yield "\n## Predictions against outcomes\n\n"
    yield from (f"- {_told(row)}\n" for row in rows)
    yield from (f"- {_told_record(each)}\n" for each in queries.track_record(rows))


def _told(row: queries.Scored) -> str:
    promised = f"{row.predicted:.2f}x [{row.predicted_low:.2f}, {row.predicted_high:.2f}]"
    if row.measured is None:
        return f"{row.lever} {row.metric}: predicted {promised}, not measured"
    known = row.measured_low is not None and row.measured_high is not None
    span = f" [{row.measured_low:.2f}, {row.measured_high:.2f}]" if known else " [interval unknown]"
    held = "held" if row.held else "did not hold"
    return (
        f"{row.lever} {row.metric}: predicted {promised}, measured {row.measured:.2f}x{span} "
        f"({row.n_units} units): {held}"
    )


def _told_record(record: queries.Record) -> str:
    if record.error_mean is None or record.error_size is None:
        return f"{record.technique.value}: {record.made} predictions, none measured"
    return (
        f"{record.technique.value}: {record.held} of {record.measured} measured predictions held "
        f"({record.made} made); mean error {record.error_mean:+.2f}, mean size {record.error_size:.2f} in logarithms"
    )


def _regression(reader: SqliteReader, decided: Sequence[Envelope], reference: str) -> Envelope:
    if reference not in reader.levers():
        return _find(reader, reference)
    mine = [each for each in decided if lever_of(each.event) == reference and _bad(each)]
    if not mine:
        raise NotThereError(
            f"{reference} was never taken back: name the event that tells of the regression"
        )
    return mine[-1]


def _find(reader: SqliteReader, reference: str) -> Envelope:
    try:
        return reader.find(reference)
    except LedgerError as error:
        raise NotThereError(str(error)) from error


def _bad(each: Envelope) -> bool:
    event = each.event
    if isinstance(event, TriggerMoved):
        return event.fired
    return isinstance(event, RolloutMoved) and event.after in TAKEN_BACK


def _moment(text: str) -> float:
    try:
        moment = datetime.datetime.fromisoformat(text.replace("Z", "+00:00"))
    except ValueError as error:
        raise click.UsageError(f"--at {text!r} is no time; write 2026-11-30T08:15:00Z") from error
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=datetime.UTC)
    return moment.timestamp()
