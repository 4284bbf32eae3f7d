"""A simulation on the terminal: a table of what users get and the fleet does, and the paired differences."""

from collections.abc import Sequence
from typing import Final

from rich.console import Console
from rich.table import Table

from trimtab.interfaces.simulate_parts import Part, parts_of
from trimtab.interfaces.simulate_words import NOTHING_DRAWN, Read, cell
from trimtab.sim.compare import NOTHING_DRAWN as VERDICT_NOTHING_DRAWN
from trimtab.sim.compare import Comparison, Difference
from trimtab.sim.run import SimResult
from trimtab.sim.sections import Scenario

COLUMNS: Final[tuple[tuple[str, str, Read], ...]] = (
    ("TTFT mean", "{:,.0f} ms", lambda run: run.summary.ttft_ms.mean),
    ("TTFT p95", "{:,.0f} ms", lambda run: run.summary.ttft_ms.p95),
    ("TPOT mean", "{:,.1f} ms", lambda run: run.summary.tpot_ms.mean),
    ("TPOT p95", "{:,.1f} ms", lambda run: run.summary.tpot_ms.p95),
    ("E2E p95", "{:,.0f} ms", lambda run: run.summary.e2e_ms.p95),
    ("good", "{:.1%}", lambda run: run.summary.good_share),
    ("reused", "{:.1%}", lambda run: run.summary.hit_share),
    ("lost", "{:.1%}", lambda run: run.summary.lost_share),
    ("most/mean", "{:.2f}", lambda run: run.summary.spread),
    ("output tok/s", "{:,.0f}", lambda run: run.summary.output_tokens_per_s),
)


def show(scenario: Scenario, found: Comparison, console: Console) -> None:
    """Print a comparison."""
    first = found.runs[0]
    shown = first.summary
    console.print(
        f"[bold]{scenario.name}[/bold]: {first.replicas:,} replicas, {scenario.fleet.gateways} gateways, "
        f"{shown.arrived:,} requests from {shown.from_s:g} to {shown.to_s:g} s, "
        f"{len(found.seeds)} seed{'s' if len(found.seeds) > 1 else ''} from {found.seeds[0]}"
    )
    console.print(f"engine model: {scenario.replica.cost.source}")
    table = Table(show_edge=False)
    table.add_column("")
    for policy in found.policies:
        table.add_column(policy, justify="right")
    by_policy = [[run for run in found.runs if run.policy == policy] for policy in found.policies]
    for name, form, read in COLUMNS:
        table.add_row(name, *(cell(runs, form, read) for runs in by_policy))
    for name in ("finished", "shed", "failed", "in_flight"):
        totals = [sum(getattr(run.summary, name) for run in runs) for runs in by_policy]
        table.add_row(name.replace("_", " "), *(f"{total:,}" for total in totals))
    console.print(table)
    for note in found.notes:
        console.print(note, soft_wrap=True)
    for part in parts_of(found):
        _show_part(part, console)
    if not found.drawn:
        console.print(NOTHING_DRAWN, soft_wrap=True, markup=False)
    if found.differences:
        _show_differences(found, console)


def _show_part(part: Part, console: Console) -> None:
    table = Table(show_edge=False, title=part.title, title_justify="left", title_style="bold")
    for at, head in enumerate(part.heads):
        table.add_column(head, justify="left" if at == 0 or head == "reason" else "right")
    for row in part.rows:
        table.add_row(*row)
    console.print(table)
    if part.note:
        console.print(part.note, soft_wrap=True)


def _show_differences(found: Comparison, console: Console) -> None:
    """Print the differences that were shown; with one seed say that none can be."""
    if not found.drawn:
        return
    if len(found.seeds) < 2:
        console.print("One seed: whether a difference is chance is unknown; --seeds 5 tells.")
        return
    console.print(f"against {found.reference}, paired by seed, 95% intervals:")
    for one in found.differences:
        if one.verdict in {"better", "worse"}:
            console.print(
                f"  {one.policy}: {one.metric} {one.verdict}, {interval(one)}", soft_wrap=True
            )
    for policy in dict.fromkeys(one.policy for one in found.differences if one.low is None):
        console.print(f"  {policy}: {VERDICT_NOTHING_DRAWN}", soft_wrap=True)
    same = [one for one in found.differences if one.verdict == "no difference shown"]
    if same:
        told = ", ".join(f"{one.policy} {one.metric}" for one in same)
        console.print(f"  no difference shown: {told}", soft_wrap=True)


def ends(runs: Sequence[SimResult]) -> str:
    """Return how the requests of all seeds ended."""
    totals = [
        sum(getattr(run.summary, name) for run in runs)
        for name in ("finished", "shed", "failed", "in_flight")
    ]
    return "/".join(f"{total:,}" for total in totals)


def interval(one: Difference) -> str:
    """Return a difference with its interval, which is unknown with one seed and where nothing is drawn."""
    if one.low is None or one.high is None:
        return f"{one.difference:+,.4g} (unknown)"
    return f"{one.difference:+,.4g} [{one.low:+,.4g}, {one.high:+,.4g}]"
