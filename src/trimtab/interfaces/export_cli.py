"""`trimtab export`: Prometheus rules and a Grafana dashboard, made of the metrics that the gateway has."""

from pathlib import Path

import click
import msgspec

from trimtab.interfaces.common import friendly
from trimtab.interfaces.exports_grafana import dashboard
from trimtab.interfaces.exports_rules import rules_yaml
from trimtab.interfaces.files import write_whole

_OUT = click.option(
    "-o",
    "--output",
    "output",
    type=click.Path(path_type=Path, dir_okay=False),
    default=None,
    help="File to write [default: standard output].",
)


@click.group("export")
def export() -> None:
    """Print what other systems load: rules for Prometheus, a dashboard for Grafana."""


@export.command("prometheus-rules")
@_OUT
@friendly
def prometheus_rules(output: Path | None) -> None:
    """Print recording rules and alerts over the metrics of the gateway, as YAML."""
    _give(rules_yaml(), output)


@export.command("grafana")
@_OUT
@friendly
def grafana(output: Path | None) -> None:
    """Print a dashboard of the metrics of the gateway, as JSON to import."""
    _give(msgspec.json.format(msgspec.json.encode(dashboard())).decode() + "\n", output)


def _give(text: str, output: Path | None) -> None:
    if output is None:
        click.echo(text, nl=False)
        return
    write_whole(output, text)
    click.echo(f"wrote {output}")
