"""What `trimtab simulate` reads: scenarios, traces, and policies named or in files."""

from collections.abc import Sequence
from pathlib import Path

import msgspec

from trimtab.core.lever import LeverRecord, LeverRecordError, check_record
from trimtab.interfaces.trace_inputs import read_arrivals
from trimtab.sim.arrivals import Arrival
from trimtab.sim.run import check_policy, horizon_of
from trimtab.sim.scenario import (
    ScenarioError,
    check,
    other_sections,
    parse_routing,
    parse_scenario,
    parse_variant,
    varied,
)
from trimtab.sim.sections import RoutingSection, Scenario


def read_scenario(path: Path, *, replicas: int | None, gateways: int | None) -> Scenario:
    """Read a scenario with options over it; raises `ScenarioError`."""
    scenario = parse_scenario(_text(path), source=str(path))
    changes = {"replicas": replicas, "gateways": gateways}
    given = {name: value for name, value in changes.items() if value is not None}
    if not given:
        return scenario
    fleet = msgspec.structs.replace(scenario.fleet, **given)
    made = msgspec.structs.replace(scenario, fleet=fleet)
    check(made, _text(path), f"{path} with the options given")
    return made


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ScenarioError(f"{path} cannot be read: {error}") from error


def with_policies(scenario: Scenario, names: Sequence[str]) -> list[tuple[str, Scenario, str]]:
    """Return (label, scenario, policy) for each name, or file with sections that stand in for the scenario's.

    Raises `ScenarioError` for a policy that is not known or named twice.
    """
    made = []
    for name in names:
        if name.endswith(".toml"):
            path = Path(name)
            variant = varied(scenario, parse_variant(_text(path), source=name), source=name)
            made.append((path.stem, variant, variant.routing.policy))
        else:
            made.append((name, scenario, name))
        check_policy(made[-1][1], made[-1][2])
    labels = [label for label, _, _ in made]
    twice = next((label for label in labels if labels.count(label) > 1), None)
    if twice is not None:
        raise ScenarioError(f"policy {twice} is named twice; name each once")
    return made


def read_routing(name: str) -> tuple[RoutingSection, tuple[str, ...]]:
    """Return the routing of a policy's file, or the defaults with a policy's name, and the file's other sections.

    Raises `ScenarioError`.
    """
    if name.endswith(".toml"):
        text = _text(Path(name))
        return parse_routing(text, source=name), other_sections(text, source=name)
    return RoutingSection(policy=name), ()


def read_trace(
    scenario: Scenario, folder: Path, path: Path | None, file_format: str | None
) -> list[Arrival] | None:
    """Read the trace that options or the scenario name; None if there is none. Raises `WorkloadError`."""
    named = scenario.workload.trace
    if path is not None:
        paths = [path]
    elif named is not None:
        paths = [folder / name for name in ((named,) if isinstance(named, str) else named)]
    else:
        return None
    return read_arrivals(
        paths,
        file_format or scenario.workload.format,
        block_tokens=scenario.replica.block_tokens,
        seed=scenario.seed,
        gap_s=scenario.workload.gap_s,
        horizon_s=horizon_of(scenario),
    )


def read_record(scenario: Scenario, folder: Path) -> LeverRecord | None:
    """Read the lever record that the scenario's rollout names, None if it names none; raises `ScenarioError`."""
    if scenario.rollout is None or scenario.rollout.record is None:
        return None
    path = folder / scenario.rollout.record
    try:
        return check_record(msgspec.json.decode(_text(path), type=LeverRecord))
    except (msgspec.DecodeError, LeverRecordError) as error:
        raise ScenarioError(f"{path}: {error} - at `$.rollout.record`") from error
