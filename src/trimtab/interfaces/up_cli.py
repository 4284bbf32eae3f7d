"""`trimtab up`: a fleet and its gateway, until Ctrl-C."""

import asyncio
import os
import signal
from pathlib import Path

import click
from rich.console import Console

from trimtab.core.config import Config
from trimtab.interfaces.common import friendly, read_config, with_options
from trimtab.interfaces.web.fleet import fleet_routes
from trimtab.interfaces.web.rollouts import rollout_routes
from trimtab.interfaces.web.routes import page_routes
from trimtab.runtime.clock import SystemClock
from trimtab.runtime.serve import serve

ADMIN_TOKEN = "TRIMTAB_ADMIN_TOKEN"
"""Names the environment variable with the token that the page needs off loopback."""


@click.command()
@click.option(
    "--replicas", type=click.IntRange(1, 64), default=None, help="Replicas to start [default: 2]."
)
@click.option(
    "--port", type=click.IntRange(0, 65535), default=None, help="Gateway port [default: 8400]."
)
@click.option("--host", default=None, help="Address to listen on [default: 127.0.0.1].")
@click.option(
    "--model",
    type=click.Path(path_type=str),
    default=None,
    help="GGUF file [default: the packaged SmolLM2-135M-Instruct].",
)
@click.option(
    "--ledger",
    "ledger_path",
    type=click.Path(path_type=str),
    default=None,
    help="Ledger file [default: trimtab-ledger.sqlite].",
)
@click.option(
    "--config",
    "config_path",
    type=click.Path(path_type=Path, dir_okay=False),
    default=None,
    help="TOML configuration.",
)
@friendly
def up(
    replicas: int | None,
    port: int | None,
    host: str | None,
    model: str | None,
    ledger_path: str | None,
    config_path: Path | None,
) -> None:
    """Start a fleet and its gateway and leave them running: OpenAI API on /v1, a page on /.

    Ctrl-C drains and stops everything. Off loopback the page, /metrics and /debug need the token in the
    environment variable TRIMTAB_ADMIN_TOKEN. After a crash the next start verifies the ledger: levers that were adopted
    stay on, disabled ones off, and a lever that was being proven goes on at its share.
    """
    config = with_options(
        read_config(config_path),
        replicas=replicas,
        model=model,
        port=port,
        host=host,
        ledger=ledger_path,
    )
    asyncio.run(_serve(config, Console()))


async def _serve(config: Config, console: Console) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)

    def say(text: str) -> None:
        console.print(text, highlight=False, markup=False, soft_wrap=True)

    await serve(
        config,
        SystemClock(),
        stop,
        say,
        routes=lambda system, operator: (
            *page_routes(system),
            *fleet_routes(system),
            *rollout_routes(system, operator),
        ),
        admin_token=os.environ.get(ADMIN_TOKEN),
    )
