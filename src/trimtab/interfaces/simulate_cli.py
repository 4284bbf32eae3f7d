"""`trimtab simulate`: what a policy would do to a traffic on a fleet of any size, before anyone changes anything."""

import itertools
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import click
import msgspec
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from trimtab.core.events import Envelope
from trimtab.core.lever import LeverRecord
from trimtab.interfaces.common import friendly
from trimtab.interfaces.files import write_whole
from trimtab.interfaces.simulate_html import page
from trimtab.interfaces.simulate_inputs import read_record, read_scenario, read_trace, with_policies
from trimtab.interfaces.simulate_notes import check_arrived, notes_of
from trimtab.interfaces.simulate_view import show
from trimtab.interfaces.trace_inputs import FORMATS
from trimtab.sim.arrivals import Arrival
from trimtab.sim.compare import Comparison, are_repeats, compared
from trimtab.sim.run import SimResult, policies_of, simulate
from trimtab.sim.sections import Scenario


@click.command("simulate")
@click.argument("scenario", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.argument("further", nargs=-1, metavar="")
@click.option(
    "--trace",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="A trace instead of the scenario's workload.",
)
@click.option(
    "--format",
    "trace_format",
    type=click.Choice(FORMATS),
    help="Format of that trace; by default the scenario's.",
)
@click.option("--replicas", type=click.IntRange(1), help="Replicas instead of the scenario's.")
@click.option("--gateways", type=click.IntRange(1), help="Gateways instead of the scenario's.")
@click.option(
    "--policy",
    help="A policy's name, or a TOML file of sections (routing, roles, local_prefill, speculation).",
)
@click.option(
    "--compare",
    "others",
    multiple=True,
    help="Other policies (names or files), one or more, to compare with the first on the same arrivals.",
)
@click.option("--seed", type=click.IntRange(0), help="First seed; by default the scenario's.")
@click.option(
    "--seeds",
    type=click.IntRange(1, 100),
    default=1,
    show_default=True,
    help="How many seeds to simulate; two or more give intervals.",
)
@click.option(
    "--report",
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder for index.html, result.json and the events of rollouts.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
@click.option("--policies", "list_policies", is_flag=True, help="List the policies and stop.")
@friendly
def simulate_command(
    scenario: Path,
    further: Sequence[str],
    trace: Path | None,
    trace_format: str | None,
    replicas: int | None,
    gateways: int | None,
    policy: str | None,
    others: Sequence[str],
    seed: int | None,
    seeds: int,
    report: Path | None,
    as_json: bool,
    list_policies: bool,
) -> None:
    """Simulate a SCENARIO and print what its users would get.

    The policies are the functions that route live traffic; the engine is a model (see `trimtab calibrate`). The same
    scenario and seed give the same result on any machine.

    \b
    Examples:
      trimtab simulate examples/sessions.toml
      trimtab simulate examples/sessions.toml --compare round_robin cache_tree --seeds 5 --report out/
      trimtab simulate examples/roles.toml --compare examples/policies/local.toml --report out/
      trimtab simulate examples/rollout.toml --report out/
      trimtab simulate examples/mooncake.toml --trace conversation.jsonl --replicas 100

    Exit codes: 0 simulated, 1 an error in the input, 2 usage.
    """
    if further and not others:
        raise click.UsageError(
            f"unexpected argument {further[0]!r}; other policies follow --compare"
        )
    made = read_scenario(scenario, replicas=replicas, gateways=gateways)
    if list_policies:
        click.echo("\n".join(sorted(policies_of(made))))
        return
    arrivals = read_trace(made, scenario.parent, trace, trace_format)
    names = [policy or made.routing.policy, *others, *further]
    variants = with_policies(made, names)
    first = made.seed if seed is None else seed
    proven = read_record(made, scenario.parent)
    found, ledgers = _run(variants, range(first, first + seeds), arrivals, proven, str(scenario))
    found = msgspec.structs.replace(found, notes=notes_of(made, found, traced=arrivals is not None))
    if report is not None:
        for name, lines in ledgers.items():
            write_whole(report / f"{name}.jsonl", "".join(lines))
        write_whole(
            report / "result.json", msgspec.json.format(msgspec.json.encode(found)).decode()
        )
        write_whole(report / "index.html", page(made, found))
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(found)).decode())
        return
    show(made, found, Console())
    if report is not None:
        click.echo(f"report: {report / 'index.html'}")


def _run(
    variants: Sequence[tuple[str, Scenario, str]],
    seeds: Sequence[int],
    trace: Sequence[Arrival] | None,
    record: LeverRecord | None,
    source: str,
) -> tuple[Comparison, dict[str, list[str]]]:
    """Simulate every variant (label, scenario, policy) under every seed, with a bar for each.

    Also returns the events of each rollout as lines of JSON, by the name of their file.
    """
    runs: list[SimResult] = []
    ledgers: dict[str, list[str]] = {}
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[requests]:,} requests"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), disable=not sys.stderr.isatty()) as bars:
        for seed, (label, scenario, policy) in itertools.product(seeds, variants):
            if _seed_changes_nothing(runs, variants):
                break
            total = scenario.workload.duration_s
            bar = bars.add_task(f"{label}, seed {seed}", total=total, requests=0)
            lines: list[str] = []
            run = simulate(
                scenario,
                policy,
                trace=trace,
                seed=seed,
                record=record,
                on_event=_writer(lines),
                on_progress=_progress(bars, bar),
            )
            check_arrived(scenario, run, source, traced=trace is not None)
            if lines:
                ledgers[f"rollout-{label}-{seed}"] = lines
            bars.update(bar, completed=total, requests=run.summary.arrived)
            runs.append(msgspec.structs.replace(run, policy=label))
    found = compared(runs)
    kept = {f"rollout-{run.policy}-{run.seed}" for run in found.runs}
    return found, {name: lines for name, lines in ledgers.items() if name in kept}


def _seed_changes_nothing(
    runs: Sequence[SimResult], variants: Sequence[tuple[str, Scenario, str]]
) -> bool:
    """Say whether the first two seeds gave the same runs, and no rare failure could tell a third one apart."""
    count = len(variants)
    if len(runs) != 2 * count or any(one.fleet.failures_per_hour for _, one, _ in variants):
        return False
    return all(are_repeats(pair) for pair in zip(runs[:count], runs[count:], strict=True))


def _writer(lines: list[str]) -> Callable[[Envelope], None]:
    def heard(envelope: Envelope) -> None:
        lines.append(msgspec.json.encode(envelope).decode() + "\n")

    return heard


def _progress(bars: Progress, bar: TaskID) -> Callable[[float, int], None]:
    def told(now_s: float, requests: int) -> None:
        bars.update(bar, completed=now_s, requests=requests)

    return told
