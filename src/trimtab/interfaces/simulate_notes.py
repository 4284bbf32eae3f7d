"""What a reader must know of a simulation before its figures: what was cut off, and what never came."""

from typing import Final

from trimtab.sim.compare import Comparison
from trimtab.sim.run import SimResult
from trimtab.sim.scenario import ScenarioError
from trimtab.sim.sections import Scenario

RUNNING_SHARE: Final = 0.01
"""Part of the counted requests that still run at the end from which the edge is worth a word."""


def check_arrived(scenario: Scenario, run: SimResult, source: str, *, traced: bool) -> None:
    """Raise `ScenarioError` where no request arrived in the time that is counted: every figure would be of nothing."""
    shown = run.summary
    if shown.arrived:
        return
    begun = sum(run.course.arrived)
    made = scenario.workload.synthetic
    if begun:
        fix = f"all {begun:,} come before or after; change warm_s, cool_s or workload.duration_s"
    elif traced or made is None:
        fix = "the trace begins later; give a longer workload.duration_s"
    else:
        fix = (
            f"sessions of {made.turns:,} turns begin {made.rate_per_s / made.turns:g} times a second; raise "
            f"workload.synthetic.rate_per_s or workload.duration_s"
        )
    raise ScenarioError(
        f"{source}: no request arrives from {shown.from_s:g} to {shown.to_s:g} s under seed {run.seed}: {fix} "
        "- at `$.workload`"
    )


def notes_of(scenario: Scenario, found: Comparison, *, traced: bool) -> tuple[str, ...]:
    """Return what was cut off, a sentence each; nothing where nothing was."""
    return tuple(
        note for note in (_cut(scenario, found) if traced else "", _running(found)) if note
    )


def _cut(scenario: Scenario, found: Comparison) -> str:
    """Say how much of a trace begins before the end, of the first run; how much more there is was not read."""
    return (
        f"{sum(found.runs[0].course.arrived):,} requests of the trace begin within workload.duration_s = "
        f"{scenario.workload.duration_s:g} s; later ones, if there are, were not simulated"
    )


def _running(found: Comparison) -> str:
    """Say which part of the requests had no time to end: they count as not good, whatever a policy does."""
    told = []
    for policy in found.policies:
        mine = [run.summary for run in found.runs if run.policy == policy]
        arrived, running = sum(one.arrived for one in mine), sum(one.in_flight for one in mine)
        if running >= RUNNING_SHARE * max(1, arrived):
            told.append(f"{running / max(1, arrived):.1%} ({policy})")
    if not told:
        return ""
    return (
        f"still running at the end and counted as not good: {', '.join(told)} of the requests; "
        "cool_s leaves the last arrivals out"
    )
