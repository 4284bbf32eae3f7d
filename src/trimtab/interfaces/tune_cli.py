"""`trimtab tune`: the whole loop, once, on a local fleet, with a report."""

from pathlib import Path

import click
import msgspec
from rich.console import Console

from trimtab.core.config import Config, ConfigError
from trimtab.core.config_guard import Auth
from trimtab.interfaces.common import friendly, read_config, run_until_told, with_options
from trimtab.interfaces.report import ReportError, print_summary, write_report
from trimtab.interfaces.tune_console import TuneConsole
from trimtab.interfaces.web.routes import page_routes
from trimtab.runtime.clock import SystemClock
from trimtab.runtime.ledger_file import WriterLock
from trimtab.runtime.tune_plan import TunePlan
from trimtab.runtime.tune_run import run_tune


@click.command()
@click.option(
    "--workload",
    type=click.Choice(["coding", "chat", "mixed"]),
    default="coding",
    show_default=True,
    help="Traffic to tune for.",
)
@click.option(
    "--report",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("out"),
    show_default=True,
    help="Folder for report.html, result.json and the ledger.",
)
@click.option(
    "--replicas", type=click.IntRange(2, 64), default=None, help="Replicas to start [default: 2]."
)
@click.option(
    "--model",
    type=click.Path(path_type=str),
    default=None,
    help="GGUF file [default: the packaged SmolLM2-135M-Instruct].",
)
@click.option(
    "--seed", type=click.IntRange(0), default=1, show_default=True, help="Seed of all arrivals."
)
@click.option(
    "--rate",
    type=click.FloatRange(0.0, min_open=True),
    default=None,
    help="Requests per second of the baseline run [default: beyond what round robin serves].",
)
@click.option(
    "--minutes",
    type=click.FloatRange(2.0, 600.0),
    default=9.0,
    show_default=True,
    help="Time for all stages; rollouts that do not pass in time are taken back.",
)
@click.option(
    "--config",
    "config_path",
    type=click.Path(path_type=Path, dir_okay=False),
    default=None,
    help="TOML configuration.",
)
@friendly
def tune(
    workload: str,
    report: Path,
    replicas: int | None,
    model: str | None,
    seed: int,
    rate: float | None,
    minutes: float,
    config_path: Path | None,
) -> None:
    """Measure a local fleet, say what binds, prove levers one by one on slices of traffic, keep what gains.

    Starts its own replicas and gateway on loopback and stops them at the end. Writes REPORT/report.html (pictures),
    REPORT/result.json (figures) and REPORT/ledger.sqlite (the causal record; see `trimtab ledger`).
    """
    given = read_config(config_path)
    if given.fleet.is_attached:
        raise ConfigError(
            f"{config_path}: fleet.attached and fleet.discover name servers of others, and a tune restarts its "
            "replicas; leave them out, or use `trimtab up`"
        )
    try:
        report.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ReportError(
            f"{report} cannot be made: {error.strerror}. Name another folder with --report"
        ) from error
    config = _config(given, replicas, model, report)
    plan = TunePlan(workload=workload, seed=seed, rate_per_s=rate or 0.0, total_s=minutes * 60.0)
    clock, console = SystemClock(), Console()
    result = run_until_told(
        run_tune(config, plan, TuneConsole(console, clock.mono_s), clock, routes=page_routes)
    )
    paths = write_report(result, report)
    print_summary(result, console)
    for path in paths:
        console.print(f"wrote [bold]{path}[/]")


def _config(config: Config, replicas: int | None, model: str | None, report: Path) -> Config:
    """A tune has a gateway port and a ledger of its own, so that it can run beside a fleet, and needs no key."""
    ledger = _fresh(report / "ledger.sqlite")
    changed = with_options(config, replicas=replicas, model=model, port=0, ledger=str(ledger))
    own = msgspec.structs.replace(changed.tenants, auth=Auth.OFF)
    # One gateway and few sessions, for one comparison: dealt places keep its small slices even.
    levers = msgspec.structs.replace(changed.levers, slices="dealt")
    changed = msgspec.structs.replace(changed, tenants=own, levers=levers)
    if changed.fleet.replicas < 2:
        fleet = msgspec.structs.replace(changed.fleet, replicas=2)
        return msgspec.structs.replace(changed, fleet=fleet)
    return changed


def _fresh(path: Path) -> Path:
    """Keep the ledger of an earlier tune under another name: a record is never overwritten.

    Raises `LedgerError` while that tune still runs: its ledger must not be moved from under it.
    """
    if path.exists():
        lock = WriterLock(path)
        try:
            _move_away(path)
        finally:
            lock.release()
    return path


def _move_away(path: Path) -> None:
    number = 1
    while (old := path.with_name(f"ledger.{number}.sqlite")).exists():
        number += 1
    path.rename(old)
    for ending in ("-wal", "-shm"):
        side = path.with_name(path.name + ending)
        if side.exists():
            side.rename(old.with_name(old.name + ending))
