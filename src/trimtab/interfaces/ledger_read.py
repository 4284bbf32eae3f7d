"""How the commands of `trimtab ledger` open a ledger, name a lever and write a time."""

import contextlib
import datetime
from collections.abc import Iterator
from pathlib import Path

import click

from trimtab.core.events import lever_of
from trimtab.runtime.ledger_reader import SqliteReader
from trimtab.runtime.ledger_rows import LedgerError


class UnusableError(click.ClickException):
    """There is no ledger, or it cannot be read or written."""

    exit_code = 2


class NotThereError(click.ClickException):
    """The ledger knows no such event or lever."""

    exit_code = 1


@contextlib.contextmanager
def reader_of(path: Path) -> Iterator[SqliteReader]:
    """Give a reader of the file; what is wrong with it ends the command."""
    try:
        with SqliteReader(path) as reader:
            yield reader
    except LedgerError as error:
        raise UnusableError(str(error)) from error


def lever_name(reader: SqliteReader, wanted: str) -> str:
    """Return the lever that a name, or the id of one of its events, means; raises `NotThereError`."""
    names = reader.levers()
    if wanted in names:
        return wanted
    with contextlib.suppress(LedgerError):
        name = lever_of(reader.find(wanted).event)
        if name is not None:
            return name
    known = ", ".join(names) or "none"
    raise NotThereError(f"{reader.path} knows no lever {wanted!r}. Levers in it: {known}")


def when(at_s: float) -> str:
    """Return a time as text, in UTC."""
    moment = datetime.datetime.fromtimestamp(at_s, tz=datetime.UTC)
    return moment.isoformat(sep=" ", timespec="milliseconds").replace("+00:00", "Z")
