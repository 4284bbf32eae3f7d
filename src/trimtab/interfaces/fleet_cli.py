"""`trimtab fleet`: one replica more or less, or another role for one, in a fleet that serves."""

import asyncio
from typing import Final

import click
import msgspec

from trimtab.core.types import FleetAction, Role
from trimtab.interfaces.common import friendly
from trimtab.interfaces.gateway_ask import ask_gateway
from trimtab.interfaces.web.fleet import PATH, ROLES_PATH, Asked, AskedRole
from trimtab.runtime.resize import Resized
from trimtab.runtime.role_keeper import RoleChanged

WAIT_S_MAX: Final = 300.0
"""A replica starts within a minute or two and drains within one."""

URL = click.option(
    "--url", default="http://127.0.0.1:8400", show_default=True, help="The gateway of the fleet."
)
FORCE = click.option("--force", is_flag=True, help="Do it whatever the check says.")
JSON = click.option("--json", "as_json", is_flag=True, help="Print the answer as JSON.")


@click.group()
def fleet() -> None:
    """Add a replica to a fleet that serves, remove one, or give one another role.

    Off loopback the gateway needs the token in TRIMTAB_ADMIN_TOKEN.
    """


@fleet.command()
@URL
@FORCE
@JSON
@friendly
def add(url: str, force: bool, as_json: bool) -> None:
    """Start one more replica; returns once it serves.

    Exit codes: 0 it serves, 1 refused or it could not be had, 2 usage.
    """
    _print(url, Asked(action=FleetAction.ADD, force=force), as_json=as_json)


@fleet.command()
@click.argument("replica")
@URL
@FORCE
@JSON
@friendly
def remove(replica: str, url: str, force: bool, as_json: bool) -> None:
    """Drain REPLICA and let it leave, if the others carry its load: N/(N-1) of theirs.

    Exit codes: 0 it has left, 1 refused or it did not drain (it serves on), 2 usage.
    """
    _print(url, Asked(action=FleetAction.REMOVE, replica=replica, force=force), as_json=as_json)


@fleet.command()
@click.argument("replica")
@click.argument("role", type=click.Choice([each.value for each in Role]))
@URL
@JSON
@friendly
def role(replica: str, role: str, url: str, as_json: bool) -> None:
    """Let REPLICA prefill for the others (prefill), or take whole requests again (mixed or decode).

    It drains and waits for its hand-overs first, and restarts where roles.prefill_engine gives the role settings of
    its own. While a lever is proven roles stay.

    Exit codes: 0 done, 1 refused or it did not drain (it serves on as before), 2 usage.
    """
    body = msgspec.json.encode(AskedRole(replica=replica, role=Role(role)))
    done = asyncio.run(ask_gateway(url, ROLES_PATH, body, RoleChanged, wait_s=WAIT_S_MAX))
    if as_json:
        click.echo(msgspec.json.encode(done).decode())
        return
    roles = ", ".join(f"{name} {each.value}" for name, each in done.roles.items())
    own = f", restarted with {done.restarted_with}" if done.restarted_with else ""
    click.echo(f"{done.replica} serves as {done.role.value} now{own}; roles: {roles}")


def _print(url: str, asked: Asked, *, as_json: bool) -> None:
    body = msgspec.json.encode(asked)
    done = asyncio.run(ask_gateway(url, PATH, body, Resized, wait_s=WAIT_S_MAX))
    if as_json:
        click.echo(msgspec.json.encode(done).decode())
        return
    verb = "serves" if done.action is FleetAction.ADD else "has left"
    click.echo(f"{done.replica} {verb} ({done.because}); replicas: {', '.join(done.replicas)}")
