"""`trimtab rollout`: a person's side of levers. Listing and showing read the ledger, acting asks the gateway.

Exit codes: 0 done; 1 refused, or no such lever; 2 wrong usage.
"""

import asyncio
from pathlib import Path

import click
import msgspec

from trimtab.core.narrate_words import tell_verification
from trimtab.core.state import EMPTY, State
from trimtab.core.types import RolloutAction
from trimtab.interfaces.common import friendly, read_config
from trimtab.interfaces.fleet_cli import JSON, URL, WAIT_S_MAX
from trimtab.interfaces.gateway_ask import ask_gateway
from trimtab.interfaces.rollout_view import in_cut, told_lever, told_line, told_meeting
from trimtab.interfaces.web.rollouts import PATH
from trimtab.rollout import interactions
from trimtab.runtime.clock import SystemClock
from trimtab.runtime.ledger_reader import SqliteReader
from trimtab.runtime.operate import LIVE, Asked, Done

NAME = click.argument("name")
SLICE = click.option("--slice", "cut", default="", help='Only for one cut, such as "label=edit".')
REASON = click.option("--reason", default="", help="Why; it is kept in the ledger.")
LEDGER = click.option(
    "--ledger",
    "ledger_path",
    type=click.Path(path_type=Path, dir_okay=False),
    envvar="TRIMTAB_LEDGER",
    help="Ledger file. Default: $TRIMTAB_LEDGER, else ledger.path of the configuration.",
)
DRY_RUN = click.option("--dry-run", is_flag=True, help="Say what would change; change nothing.")
CONFIG = click.option(
    "--config",
    "config_path",
    type=click.Path(path_type=Path, dir_okay=False),
    help="TOML configuration.",
)


@click.group()
def rollout() -> None:
    """Propose a lever, follow it, hold it, take it back.

    \b
      trimtab rollout propose lever.toml --dry-run   what it would change, on which replicas
      trimtab rollout propose lever.toml --start     expose its first slice
      trimtab rollout show NAME                      what is on, for whom, why, and how to go back
      trimtab rollout rollback NAME --reason ...     all traffic to the baseline, at once

    Off loopback the gateway needs the token in TRIMTAB_ADMIN_TOKEN.
    """


@rollout.command()
@click.argument("file", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@click.option("--start", is_flag=True, help="Expose its first slice at once.")
@DRY_RUN
@REASON
@URL
@JSON
@friendly
def propose(file: Path, start: bool, dry_run: bool, reason: str, url: str, as_json: bool) -> None:
    """Propose the lever record in FILE (TOML); one that leaves a field unsaid is refused with its path."""
    asked = Asked(
        action=RolloutAction.PROPOSE,
        record=_text(file),
        source=file.name,
        start=start,
        dry_run=dry_run,
        reason=reason,
    )
    _act(url, asked, as_json=as_json)


@rollout.command("list")
@LEDGER
@CONFIG
@JSON
@friendly
def list_levers(ledger_path: Path | None, config_path: Path | None, as_json: bool) -> None:
    """List every lever with its state, share, last verdict and reason."""
    state = _state(ledger_path, config_path)
    if as_json:
        click.echo(msgspec.json.encode(state.levers).decode())
        return
    if state.frozen:
        click.echo(f"promotions are frozen: {state.frozen_because}")
    for name, lever in state.levers.items():
        click.echo(told_line(name, lever, SystemClock().wall_s()))
    if not state.levers:
        click.echo("No lever was proposed.")


@rollout.command()
@NAME
@SLICE
@LEDGER
@CONFIG
@JSON
@friendly
def show(
    name: str, cut: str, ledger_path: Path | None, config_path: Path | None, as_json: bool
) -> None:
    """Say of a lever what is on, for whom, why, what it costs whom, what would switch it off, how to go back."""
    levers = _state(ledger_path, config_path).levers
    if name not in levers:
        raise click.ClickException(f"no lever {name!r}; known: {', '.join(levers) or 'none'}")
    lever = in_cut(name, levers[name], cut) if cut else levers[name]
    if as_json:
        click.echo(msgspec.json.encode(lever).decode())
        return
    click.echo(told_lever(name, lever, SystemClock().wall_s()))


def _action(action: RolloutAction, text: str) -> None:
    @rollout.command(action.value, help=text)
    @NAME
    @REASON
    @URL
    @JSON
    @friendly
    def run(name: str, reason: str, url: str, as_json: bool) -> None:
        _act(url, Asked(action=action, name=name, reason=reason), as_json=as_json)


_action(
    RolloutAction.PAUSE, "Take the traffic off NAME, which is being proven, until it is resumed."
)
_action(RolloutAction.RESUME, "Let the paused NAME go on, from its first share.")
_action(
    RolloutAction.ROLLBACK,
    "Take NAME back: all traffic to the baseline by routing at once, then its replicas. Allowed in every mode.",
)
_action(
    RolloutAction.ADOPT,
    "Adopt NAME at its last share without waiting for its gates, or switch a disabled one on again.",
)
_action(
    RolloutAction.VERIFY,
    "Prove the adopted NAME again, with and without it, beside what changed since it was proven.",
)


@rollout.command()
@LEDGER
@CONFIG
@JSON
@friendly
def matrix(ledger_path: Path | None, config_path: Path | None, as_json: bool) -> None:
    """Show which levers that are on, held off or being proven meet: what both touch, in which traffic."""
    levers = _state(ledger_path, config_path).levers
    records = [
        lever.record
        for lever in levers.values()
        if lever.state in LIVE and lever.record is not None
    ]
    found = interactions.matrix(records)
    if as_json:
        rows = [{"levers": pair, **msgspec.to_builtins(both)} for pair, both in found.items()]
        click.echo(msgspec.json.encode(rows).decode())
        return
    for (one, other), both in found.items():
        click.echo(told_meeting(one, other, both))
    for name, lever in levers.items():
        if lever.verification is not None:
            click.echo(f"{name}: {tell_verification(lever.verification)}")
    if not found:
        click.echo("No two of these levers meet.")


@rollout.command()
@NAME
@DRY_RUN
@SLICE
@REASON
@URL
@JSON
@friendly
def start(name: str, dry_run: bool, cut: str, reason: str, url: str, as_json: bool) -> None:
    """Expose the first slice of the proposed NAME; with --slice it is drawn from that cut alone."""
    asked = Asked(action=RolloutAction.START, name=name, slice=cut, reason=reason, dry_run=dry_run)
    _act(url, asked, as_json=as_json)


@rollout.command()
@NAME
@click.argument("file", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@click.option("--evaluation", default="", help="Its name. Default: the file's.")
@click.option(
    "--floor",
    type=click.FloatRange(0.0, 1.0),
    help="Largest difference between runs of the baseline against itself, as a share of the items.",
)
@click.option("--floor-runs", type=click.IntRange(min=0), default=0, help="In how many such runs.")
@URL
@JSON
@friendly
def score(
    name: str,
    file: Path,
    evaluation: str,
    floor: float | None,
    floor_runs: int,
    url: str,
    as_json: bool,
) -> None:
    """Give NAME's quality gates the scores in FILE: JSON lines of items that both arms were asked, passed or not."""
    asked = Asked(
        action=RolloutAction.SCORE,
        name=name,
        scores=_text(file),
        source=file.name,
        evaluation=evaluation or file.stem,
        floor=floor,
        floor_runs=floor_runs,
    )
    _act(url, asked, as_json=as_json)


@rollout.command()
@NAME
@SLICE
@REASON
@URL
@JSON
@friendly
def disable(name: str, cut: str, reason: str, url: str, as_json: bool) -> None:
    """Switch the adopted NAME off, or for one cut, also while it is proven; no trigger switches it on again."""
    asked = Asked(action=RolloutAction.DISABLE, name=name, slice=cut, reason=reason)
    _act(url, asked, as_json=as_json)


@click.command()
@REASON
@URL
@JSON
@friendly
def freeze(reason: str, url: str, as_json: bool) -> None:
    """Stop every promotion at once, also over a restart. Taking back still happens."""
    _act(url, Asked(action=RolloutAction.FREEZE, reason=reason), as_json=as_json)


@click.command()
@REASON
@URL
@JSON
@friendly
def unfreeze(reason: str, url: str, as_json: bool) -> None:
    """Let promotions go on."""
    _act(url, Asked(action=RolloutAction.UNFREEZE, reason=reason), as_json=as_json)


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise click.ClickException(f"{file} cannot be read: {error}") from error


def _act(url: str, asked: Asked, *, as_json: bool) -> None:
    body = msgspec.json.encode(asked)
    done = asyncio.run(ask_gateway(url, PATH, body, Done, wait_s=WAIT_S_MAX))
    if as_json:
        click.echo(msgspec.json.encode(done).decode())
        return
    if done.name:
        state = done.state.value if done.state else ""
        if asked.dry_run:
            state = f"would be {'started' if asked.action is RolloutAction.START else 'proposed'}"
        click.echo(f"{done.name}: {state}" + (f" at {done.share:.0%}" if done.share else ""))
    for step in done.steps:
        click.echo(f"  {step}")
    if done.frozen:
        click.echo("promotions are frozen")


def _state(ledger_path: Path | None, config_path: Path | None) -> State:
    with SqliteReader(ledger_path or Path(read_config(config_path).ledger.path)) as reader:
        return reader.catch_up(EMPTY)
