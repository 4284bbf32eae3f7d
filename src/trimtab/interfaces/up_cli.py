"""`trimtab up`: a fleet and its gateway, until Ctrl-C."""

import asyncio
import contextlib
import gc
import os
import signal
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import click
import msgspec
import uvloop
from aiohttp import web
from rich.console import Console

from trimtab.core.config import AttachedServer, Config, ConfigError, FleetConfig
from trimtab.core.ports import LaunchError
from trimtab.interfaces.common import friendly, names_key, read_config, with_options
from trimtab.interfaces.web.failures import failure_routes
from trimtab.interfaces.web.fleet import fleet_routes
from trimtab.interfaces.web.reload import reload_routes
from trimtab.interfaces.web.rollouts import rollout_routes
from trimtab.interfaces.web.routes import page_routes
from trimtab.runtime.clock import SystemClock
from trimtab.runtime.operate import Operator
from trimtab.runtime.reload import Reloader
from trimtab.runtime.serve import serve
from trimtab.runtime.supervisor import System

COLLECT_AFTER = (20_000, 20, 100)
"""When Python looks for cycles: among young objects every 20,000 of them, among all very seldom. The last walks the
prefix index and every kept record while streams wait: 75 to 640 ms were seen within seconds at 1,024 streams.
"""

ADMIN_TOKEN = "TRIMTAB_ADMIN_TOKEN"
"""Names the environment variable with the token that the page needs off loopback."""


@click.command()
@click.option(
    "--attach",
    "attach",
    multiple=True,
    metavar="[NAME=]URL",
    help="A model server that runs already; may be given several times. None is started then.",
)
@click.option(
    "--discover",
    default=None,
    metavar="PLACE",
    help="More such servers: dns://HOST:PORT, or file:PATH, a watched TOML list.",
)
@click.option(
    "--policy",
    type=click.Choice(["round_robin", "least_loaded", "prefix_affine", "prefix_home"]),
    default=None,
    help="Routing [default: prefix_affine in front of attached servers, else round_robin].",
)
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
    attach: tuple[str, ...],
    discover: str | None,
    policy: str | None,
    replicas: int | None,
    port: int | None,
    host: str | None,
    model: str | None,
    ledger_path: str | None,
    config_path: Path | None,
) -> None:
    """Start a fleet and its gateway and leave them running: OpenAI API on /v1, a page on /.

    With --attach the gateway stands in front of servers that run already (vLLM, SGLang, llama.cpp, TGI or another with
    an OpenAI API) and never restarts one. `trimtab reload` or SIGHUP reads the configuration again.

    Ctrl-C drains and stops everything. Off loopback the page, /metrics and /debug need the token in the
    environment variable TRIMTAB_ADMIN_TOKEN. After a crash the next start verifies the ledger: levers that were adopted
    stay on, disabled ones off, and a lever that was being proven goes on at its share.
    """
    # Until somebody can reload, a hang-up asks for nothing that the start does not do by itself; it must not end it.
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    if (attach or discover) and (replicas is not None or model is not None):
        raise click.UsageError("--replicas and --model start replicas; --attach starts none")

    def read() -> Config:
        given = read_config(config_path)
        config = with_options(
            given, replicas=replicas, model=model, port=port, host=host, ledger=ledger_path
        )
        is_named = names_key(config_path, "routing", "policy")
        return _with_policy(_with_servers(config, attach, discover), policy, is_named=is_named)

    gc.freeze()
    gc.set_threshold(*COLLECT_AFTER)
    uvloop.run(_serve(read, Console()))


def _with_servers(config: Config, attach: Sequence[str], discover: str | None) -> Config:
    """Return the configuration with the servers of the command line beside its own; raises `ConfigError`."""
    fleet = config.fleet
    servers = (*fleet.attached, *(_server(text) for text in attach))
    return msgspec.structs.replace(
        config,
        fleet=_checked(
            {
                **msgspec.to_builtins(fleet),
                "attached": msgspec.to_builtins(servers),
                "discover": fleet.discover if discover is None else discover,
            }
        ),
    )


def _checked(values: dict[str, object]) -> FleetConfig:
    try:
        return msgspec.convert(values, FleetConfig)
    except msgspec.ValidationError as error:
        raise ConfigError(f"--discover is dns://HOST:PORT or file:PATH: {error}") from error


def _server(text: str) -> AttachedServer:
    """Read [NAME=]URL; raises `ConfigError`."""
    name, _, url = text.partition("=") if "=" in text.partition("://")[0] else ("", "", text)
    try:
        return msgspec.convert({"name": name, "url": url}, AttachedServer)
    except msgspec.ValidationError as error:
        raise ConfigError(
            f"--attach {text}: it must be http://HOST:PORT or NAME=http://HOST:PORT ({error})"
        ) from error


def _with_policy(config: Config, policy: str | None, *, is_named: bool) -> Config:
    """Return the configuration with the policy that was asked for, or the one that fits the fleet.

    Replicas that trimtab starts begin at the baseline against which levers are proven. Whoever attaches servers has
    their users on them: there prompts go to their prefix from the first request on.
    """
    chosen = policy
    if chosen is None and config.fleet.is_attached and not is_named:
        chosen = "prefix_affine"
    if chosen is None:
        return config
    return msgspec.structs.replace(
        config, routing=msgspec.structs.replace(config.routing, policy=chosen)
    )


async def _serve(read: Callable[[], Config], console: Console) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)

    def say(text: str) -> None:
        console.print(text, highlight=False, markup=False, soft_wrap=True)

    def routes(
        system: System, operator: Callable[[], Operator | None]
    ) -> Iterable[web.AbstractRouteDef]:
        reloader = Reloader(system, read, say)
        loop.add_signal_handler(signal.SIGHUP, _reload, reloader)
        return (
            *page_routes(system),
            *failure_routes(system),
            *fleet_routes(system),
            *reload_routes(system, reloader),
            *rollout_routes(system, operator),
        )

    token = os.environ.get(ADMIN_TOKEN)
    await serve(read(), SystemClock(), stop, say, routes=routes, admin_token=token)


def _reload(reloader: Reloader) -> None:
    """Reload for a signal, which waits for no answer: what was refused has been said."""
    with contextlib.suppress(ConfigError, LaunchError):
        reloader.reload()
