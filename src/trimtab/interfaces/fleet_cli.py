"""`trimtab fleet`: one replica more or less in a fleet that serves."""

import asyncio
import os
from typing import Final, TypeVar

import aiohttp
import click
import msgspec

from trimtab.core.types import FleetAction
from trimtab.interfaces.common import friendly
from trimtab.interfaces.up_cli import ADMIN_TOKEN
from trimtab.interfaces.web.fleet import PATH, Asked
from trimtab.runtime.resize import Resized
from trimtab.runtime.served_sources import SourceError

WAIT_S_MAX: Final = 300.0
"""A replica starts within a minute or two and drains within one."""

URL = click.option(
    "--url", default="http://127.0.0.1:8400", show_default=True, help="The gateway of the fleet."
)
FORCE = click.option("--force", is_flag=True, help="Do it whatever the check says.")
T = TypeVar("T")

JSON = click.option("--json", "as_json", is_flag=True, help="Print the answer as JSON.")


class _Error(msgspec.Struct):
    message: str


class _Refused(msgspec.Struct):
    error: _Error


@click.group()
def fleet() -> None:
    """Add a replica to a fleet that serves, or remove one.

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


def _print(url: str, asked: Asked, *, as_json: bool) -> None:
    done = post(url, PATH, asked, Resized)
    if as_json:
        click.echo(msgspec.json.encode(done).decode())
        return
    verb = "serves" if done.action is FleetAction.ADD else "has left"
    click.echo(f"{done.replica} {verb} ({done.because}); replicas: {', '.join(done.replicas)}")


def post(url: str, path: str, asked: msgspec.Struct, answer: type[T]) -> T:
    """Ask a serving gateway to act and return what came of it; raises `SourceError` with what it said."""
    return asyncio.run(_post(url, path, msgspec.json.encode(asked), answer))


async def _post(url: str, path: str, body: bytes, answer: type[T]) -> T:
    token = os.environ.get(ADMIN_TOKEN)
    headers = {"Content-Type": "application/json"}
    if token:
        headers["Authorization"] = f"Bearer {token}"
    timeout = aiohttp.ClientTimeout(total=WAIT_S_MAX)
    try:
        async with (
            aiohttp.ClientSession(timeout=timeout) as session,
            session.post(url.rstrip("/") + path, data=body, headers=headers) as response,
        ):
            return _read(await response.read(), response.status, url, answer)
    except (aiohttp.ClientError, TimeoutError) as error:
        raise SourceError(f"{url} does not answer: {error!r}") from error


def _read(body: bytes, status: int, url: str, answer: type[T]) -> T:
    try:
        if status == 200:
            return msgspec.json.decode(body, type=answer)
        said = msgspec.json.decode(body, type=_Refused).error.message
    except msgspec.MsgspecError as error:
        raise SourceError(f"{url} is no gateway of a fleet (status {status})") from error
    raise SourceError(said)
