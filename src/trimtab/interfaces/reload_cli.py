"""`trimtab reload`: a gateway that serves reads its configuration again."""

import asyncio
from typing import Final

import click
import msgspec

from trimtab.interfaces.common import friendly
from trimtab.interfaces.fleet_cli import JSON, URL
from trimtab.interfaces.gateway_ask import ask_gateway
from trimtab.interfaces.web.reload import PATH
from trimtab.runtime.reload import Reloaded, words

WAIT_S_MAX: Final = 30.0


@click.command("reload")
@URL
@JSON
@friendly
def reload_command(url: str, as_json: bool) -> None:
    """Let a gateway read its configuration and its keys again; no stream is dropped.

    What cannot change while it serves is named and waits for the next start. A file that cannot be used changes
    nothing. Off loopback the gateway needs the token in TRIMTAB_ADMIN_TOKEN.

    Exit codes: 0 taken in, 1 refused, 2 usage.
    """
    done = asyncio.run(ask_gateway(url, PATH, b"{}", Reloaded, wait_s=WAIT_S_MAX))
    click.echo(msgspec.json.encode(done).decode() if as_json else words(done))
