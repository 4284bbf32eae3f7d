"""`trimtab keys`: the API keys of tenants, and the proof that tenants are kept apart."""

import asyncio
import datetime
import sys
from pathlib import Path

import click
import msgspec

from trimtab.core.tenants import ApiKey, IsolationVerdict, KeyBook, TenantError, new_key
from trimtab.interfaces.common import friendly
from trimtab.interfaces.gateway_ask import ask_gateway
from trimtab.runtime.clock import SystemClock
from trimtab.runtime.isolation import ROUTE, IsolationReport
from trimtab.runtime.keys import change_keys, default_keys_path, fresh_key, read_keys

KEY_LINE_MAX = 4096
SELFTEST_S = 600.0
"""A replica gets two minutes for its three requests, but most need seconds."""

keys_option = click.option(
    "--keys",
    "path",
    type=click.Path(path_type=Path, dir_okay=False),
    default=None,
    help="File of the keys [default: ~/.local/state/trimtab/keys.json].",
)


@click.group()
def keys() -> None:
    """Add, list and revoke the API keys of tenants; prove that their caches are apart.

    Once a key was added, requests to /v1 need one. A gateway that runs takes changes within a second.
    """


@keys.command()
@click.argument("tenant")
@click.option("--stdin", "from_stdin", is_flag=True, help="Take a key that there is, from a line.")
@keys_option
@friendly
def add(tenant: str, from_stdin: bool, path: Path | None) -> None:
    """Make a key for a tenant and print it: it is shown this once and kept hashed.

    Output is the key alone, so that it can go into a file or a variable; its id goes to standard error.
    """
    key = _given() if from_stdin else fresh_key()
    made = new_key(key, tenant, at_s=SystemClock().wall_s())
    change_keys(path or default_keys_path(), lambda book: book.with_key(made))
    click.echo(f"key {made.id} of tenant {tenant}: kept hashed, not shown again", err=True)
    if not from_stdin:
        click.echo(key)


def _given() -> str:
    line = sys.stdin.readline(KEY_LINE_MAX).strip()
    if not line:
        raise TenantError("no key came on standard input")
    return line


@keys.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@keys_option
@friendly
def list_keys(as_json: bool, path: Path | None) -> None:
    """List all keys by id and tenant, revoked ones too; the keys themselves are nowhere."""
    book = read_keys(path or default_keys_path()) or KeyBook()
    if as_json:
        shown = [
            {
                "id": key.id,
                "tenant": key.tenant,
                "created_at_s": key.created_at_s,
                "revoked_at_s": key.revoked_at_s,
            }
            for key in book.keys
        ]
        click.echo(msgspec.json.encode({"keys": shown}).decode())
        return
    if not book.keys:
        click.echo("no keys; requests to /v1 need none")
    for key in book.keys:
        click.echo(f"{key.id}  {key.tenant:<24}  {_state(key)}")


def _state(key: ApiKey) -> str:
    if key.revoked_at_s is None:
        return f"in use since {_day(key.created_at_s)}"
    return f"revoked {_day(key.revoked_at_s)}"


def _day(at_s: float) -> str:
    return datetime.datetime.fromtimestamp(at_s, datetime.UTC).strftime("%Y-%m-%d %H:%M UTC")


@keys.command()
@click.argument("key_id")
@keys_option
@friendly
def revoke(key_id: str, path: Path | None) -> None:
    """Revoke a key by its id: within a second it opens nothing."""
    now_s = SystemClock().wall_s()
    change_keys(path or default_keys_path(), lambda book: book.without_key(key_id, at_s=now_s))
    click.echo(f"key {key_id} revoked; its tenant's other keys stay")


@keys.command()
@click.option(
    "--url",
    default="http://127.0.0.1:8400",
    show_default=True,
    help="The gateway; off loopback TRIMTAB_ADMIN_TOKEN is sent along.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the report as one JSON object.")
@friendly
def selftest(url: str, as_json: bool) -> None:
    """Ask every replica whether the same tenant hits its cache and another one does not.

    Exit code 0: proven on all replicas; 1: one leaks, or an error; 3: not proven, as where caching is off.
    """
    report = asyncio.run(ask_gateway(url, ROUTE, b"{}", IsolationReport, wait_s=SELFTEST_S))
    if as_json:
        click.echo(msgspec.json.encode(report).decode())
    else:
        for one in report.replicas:
            click.echo(f"{one.replica}  {_words(one.verdict)}: {one.because}")
        click.echo(f"isolation of tenants: {_words(report.verdict)} (n={report.n} replicas)")
    match report.verdict:
        case IsolationVerdict.PROVEN:
            return
        case IsolationVerdict.NOT_PROVEN:
            raise SystemExit(3)
        case IsolationVerdict.LEAKS | IsolationVerdict.ERROR:
            raise SystemExit(1)


def _words(verdict: IsolationVerdict) -> str:
    return verdict.value.replace("_", " ")
