"""What a scenario's numbers may be beyond their ranges: finite, and such that the simulation comes to an end.

TOML can say `inf`, and a short interval over a long time asks for more events than anyone waits for. Both are refused
before anything is simulated.
"""

import math
from collections.abc import Iterator
from typing import Final

from trimtab.core.config import Strict
from trimtab.sim.sections import FaultSection, Scenario

EVENTS_MAX: Final = 100_000_000
"""Most requests, probes, crashes or looks that a scenario may ask for: hours of one core (about 20,000 a second)."""

Problem = tuple[str, str, str]
"""Section, key, what is wrong and what to do."""


def endless(section: Strict, path: str = "") -> Iterator[Problem]:
    """Yield the numbers of a section, and of those below it, that are not finite."""
    for name in section.__struct_fields__:
        yield from _endless(getattr(section, name), path, name)


def _endless(value: object, path: str, key: str) -> Iterator[Problem]:
    if isinstance(value, Strict):
        yield from endless(value, f"{path}.{key}".strip("."))
    elif isinstance(value, tuple):
        for number, one in enumerate(value):
            yield from _endless(one, path, f"{key}[{number}]")
    elif isinstance(value, float) and not math.isfinite(value):
        yield path, key, f"must be a finite number, got {value}"


def too_many(scenario: Scenario) -> Iterator[Problem]:
    """Yield what asks for so many events that the simulation would not end."""
    duration_s, fleet, workload = scenario.workload.duration_s, scenario.fleet, scenario.workload
    made, rollout = workload.synthetic, scenario.rollout
    counts = [
        ("fleet", "probe_s", "probes", duration_s / fleet.probe_s * fleet.gateways, "longer"),
        (
            "fleet",
            "failures_per_hour",
            "crashes",
            fleet.failures_per_hour * duration_s / 3600.0 * fleet.replicas,
            "smaller",
        ),
    ]
    if made is not None:
        times = fleet.replicas if workload.per_replica else 1
        requests = made.rate_per_s * duration_s * times
        counts.append(("workload.synthetic", "rate_per_s", "requests", requests, "smaller"))
    if workload.diurnal_low < 1.0:
        days = duration_s / workload.diurnal_period_s
        counts.append(("workload", "diurnal_period_s", "steps of the day's shape", days, "longer"))
    if rollout is not None:
        looks = duration_s / rollout.look_s
        counts.append(("rollout", "look_s", "looks", looks, "longer"))
    for section, key, what, count, fix in counts:
        if count > EVENTS_MAX:
            yield (
                section,
                key,
                f"asks for {count:,.0f} {what} in {duration_s:g} s, and {EVENTS_MAX:,} are the most; "
                f"give a {fix} one, or a shorter workload.duration_s",
            )


def unheard(scenario: Scenario) -> Iterator[Problem]:
    """Yield what a scenario says and nothing would ever hear: faults that cannot happen, keys of another kind."""
    for number, fault in enumerate(scenario.faults):
        section = f"faults[{number}]"
        if fault.at_s >= scenario.workload.duration_s:
            problem = f"is after the end: {scenario.workload.duration_s:g} s are simulated"
            yield (
                section,
                "at_s",
                f"{problem}; give an earlier time or a longer workload.duration_s",
            )
        yield from _unheard_of(fault, section)
    workload = scenario.workload
    if workload.synthetic is not None and workload.copies != 1.0:
        problem = "multiplies a trace, and these are synthetic sessions"
        yield "workload", "copies", f"{problem}; raise workload.synthetic.rate_per_s instead"


def _unheard_of(fault: FaultSection, section: str) -> Iterator[Problem]:
    slows = fault.kind in {"slow", "slow_link"}
    if slows and fault.factor == 1.0:
        problem = f"{fault.kind} needs a factor other than 1"
        yield section, "factor", f"{problem}: how many times as long a step or transfer takes"
    if not slows and fault.factor != 1.0:
        yield section, "factor", f"is for slow and slow_link; a {fault.kind} has none, leave it out"
    if not slows and fault.for_s is not None:
        yield section, "for_s", f"is for slow and slow_link; a {fault.kind} has none, leave it out"
    if fault.kind != "add" and fault.start_s is not None:
        yield section, "start_s", f"is for add; a {fault.kind} has none, leave it out"
    if fault.kind == "add" and fault.replica != 0:
        yield section, "replica", "an added replica gets the next number; leave it out"
