"""What `trimtab simulate` reads: scenarios, traces, and policies named or in files."""

import gzip
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Final

import msgspec

from trimtab.sim.arrivals import Arrival, from_records
from trimtab.sim.run import check_policy
from trimtab.sim.scenario import (
    RoutingSection,
    Scenario,
    ScenarioError,
    parse_routing,
    parse_scenario,
)
from trimtab.workloads.base import WorkloadError
from trimtab.workloads.trace_files import (
    AZURE_BLOCK_TOKENS,
    MOONCAKE_BLOCK_TOKENS,
    azure_records,
    coding_records,
    mooncake_records,
)

FORMATS: Final = ("mooncake", "azure", "sessions")
SESSION_GAP_S: Final = 30.0


def read_scenario(path: Path, *, replicas: int | None, gateways: int | None) -> Scenario:
    """Read a scenario with options over it; raises `ScenarioError`."""
    scenario = parse_scenario(_text(path), source=str(path))
    changes = {"replicas": replicas, "gateways": gateways}
    given = {name: value for name, value in changes.items() if value is not None}
    if not given:
        return scenario
    return msgspec.structs.replace(scenario, fleet=msgspec.structs.replace(scenario.fleet, **given))


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ScenarioError(f"{path} cannot be read: {error}") from error


def with_policies(scenario: Scenario, names: Sequence[str]) -> list[tuple[str, Scenario, str]]:
    """Return (label, scenario, policy) for each name, which may be a file with a [routing] section.

    Raises `ScenarioError` for a policy that is not known or named twice.
    """
    made = []
    for name in names:
        if name.endswith(".toml"):
            path = Path(name)
            routing = parse_routing(_text(path), source=name)
            variant = msgspec.structs.replace(scenario, routing=routing)
            made.append((path.stem, variant, routing.policy))
        else:
            made.append((name, scenario, name))
        check_policy(made[-1][1], made[-1][2])
    labels = [label for label, _, _ in made]
    twice = next((label for label in labels if labels.count(label) > 1), None)
    if twice is not None:
        raise ScenarioError(f"policy {twice} is named twice; name each once")
    return made


def read_routing(name: str) -> RoutingSection:
    """Return the routing of a policy's file, or the defaults with a policy's name; raises `ScenarioError`."""
    if name.endswith(".toml"):
        return parse_routing(_text(Path(name)), source=name)
    return RoutingSection(policy=name)


def read_trace(
    scenario: Scenario, folder: Path, path: Path | None, file_format: str | None
) -> list[Arrival] | None:
    """Read the trace that options or the scenario name; None if there is none. Raises `WorkloadError`."""
    if path is None and scenario.workload.trace is not None:
        path = folder / scenario.workload.trace
    if path is None:
        return None
    kind, block = file_format or scenario.workload.format, scenario.replica.block_tokens
    try:
        with _opened(path) as lines:
            return _arrivals(kind, lines, str(path), block, scenario.seed)
    except (OSError, UnicodeDecodeError, EOFError) as error:
        raise WorkloadError(f"{path} cannot be read: {error}") from error


def _opened(path: Path) -> IO[str]:
    if path.suffix == ".gz":
        return gzip.open(path, "rt", encoding="utf-8")
    return path.open(encoding="utf-8")


def _arrivals(
    kind: str, lines: Iterator[str], file: str, block_tokens: int, seed: int
) -> list[Arrival]:
    match kind:
        case "mooncake":
            records = mooncake_records(lines, file=file)
            return from_records(
                records, trace_block_tokens=MOONCAKE_BLOCK_TOKENS, block_tokens=block_tokens
            )
        case "azure":
            return from_records(
                azure_records(lines, file=file),
                trace_block_tokens=AZURE_BLOCK_TOKENS,
                block_tokens=block_tokens,
                shared=False,
            )
        case _:
            records, size = coding_records(
                lines, random.Random(seed), file=file, session_gap_s=SESSION_GAP_S
            )
            return from_records(records, trace_block_tokens=size, block_tokens=block_tokens)
