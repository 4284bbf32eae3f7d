"""`trimtab replay`: a recorded day decided again under another policy."""

from pathlib import Path

import click
import msgspec
from rich.console import Console
from rich.table import Table

from trimtab.core.narrate_words import UNKNOWN
from trimtab.interfaces.common import friendly
from trimtab.interfaces.simulate_inputs import read_routing
from trimtab.runtime.ledger_reader import SqliteReader
from trimtab.sim.public_policies import PUBLIC
from trimtab.sim.replay import Replayed, replay

SHOWN_MAX = 20
DIFFERS = 1
NOTHING = 4
"""No decision could be made again: nothing is said of the policy, as where `diagnose` cannot tell."""


@click.command("replay")
@click.argument("ledger", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option(
    "--policy",
    required=True,
    help="A policy's name, or a TOML file with a [routing] section; its other sections are not replayed.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
@friendly
def replay_command(ledger: Path, policy: str, as_json: bool) -> None:
    """Decide every request of a LEDGER again under another policy and show what would have differed.

    Each decision is made from the fleet and the request as they were recorded, by the function that routes live
    traffic. Costs are predictions for both choices; to see what a changed decision leads to, use `trimtab simulate`.

    \b
    Examples:
      trimtab replay out/ledger.sqlite --policy round_robin
      trimtab replay out/ledger.sqlite --policy tighter.toml --json

    Exit codes: 0 every decision stays, 1 some differ (or an error), 2 usage, 4 there is nothing to decide again.
    """
    routing, others = read_routing(policy)
    with SqliteReader(ledger) as reader:
        found = replay(
            (envelope.event for envelope in reader.read()),
            routing.policy,
            load_bound=routing.load_bound,
            min_match_tokens=routing.min_match_tokens,
            public={name: build() for name, build in PUBLIC.items()},
        )
    found = msgspec.structs.replace(found, not_replayed=others)
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(found)).decode())
    else:
        _show(found, Console())
    if found.different:
        raise SystemExit(DIFFERS)
    if not found.same:
        raise SystemExit(NOTHING)


def _nothing(found: Replayed) -> str:
    if not found.requests:
        return f"{found.policy}: nothing to decide again, the ledger has no request; record some traffic first"
    return (
        f"{found.policy}: nothing to decide again, none of {found.requests:,} requests was kept with the whole fleet "
        "as its decision saw it"
    )


def _show(found: Replayed, console: Console) -> None:
    made = found.same + found.different
    if found.not_replayed:
        told = ", ".join(f"[{name}]" for name in found.not_replayed)
        console.print(
            f"not replayed: {told}; only where requests go is decided again, for the rest use trimtab simulate",
            markup=False,
            soft_wrap=True,
        )
    if not made:
        console.print(_nothing(found), soft_wrap=True)
        return
    console.print(
        f"{found.policy}: {found.different:,} of {made:,} decisions differ; {found.left_out:,} of "
        f"{found.requests:,} requests cannot be decided again"
    )
    recorded = ", ".join(f"{name} {count:,}" for name, count in sorted(found.by_policy.items()))
    console.print(f"recorded under: {recorded or 'nothing'}", soft_wrap=True)
    console.print(
        f"under the policy of its time {found.faithful:,} of {found.refaithful:,} come out as recorded"
    )
    extra = UNKNOWN if found.extra_ms_mean is None else f"{found.extra_ms_mean:+,.1f} ms"
    console.print(
        f"predicted time of the other choice against the recorded one: {extra} mean, n={found.extra_samples:,}"
    )
    if not found.differing:
        return
    table = Table(show_edge=False, title=f"the first {min(SHOWN_MAX, len(found.differing))}")
    for name in ("request", "label", "recorded", "other", "reason", "extra ms"):
        table.add_column(name, justify="right" if name == "extra ms" else "left")
    for one in found.differing[:SHOWN_MAX]:
        table.add_row(
            one.request_id[:12],
            one.label or "",
            one.recorded or "none",
            one.other or "none",
            one.reason,
            UNKNOWN if one.extra_ms is None else f"{one.extra_ms:+,.1f}",
        )
    console.print(table)
