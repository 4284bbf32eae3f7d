"""A scenario: everything a simulation is told, read from TOML into one frozen, strict tree.

A key that is not known, a value out of its range and a combination that cannot be are errors that name file, line and
field. Nothing here reads files: whoever does hands over the text.
"""

import re
import tomllib
from collections.abc import Iterator
from typing import TypeVar

import msgspec

from trimtab.core.config import Strict
from trimtab.sim.limits import endless, too_many, unheard
from trimtab.sim.sections import (
    LocalPrefillSection,
    RolesSection,
    RoutingSection,
    Scenario,
    SpeculationSection,
)

T = TypeVar("T")


class ScenarioError(ValueError):
    """A scenario that cannot be simulated; the message names file, line, field and fix."""


def parse_scenario(text: str, *, source: str) -> Scenario:
    """Read a scenario's text; raises `ScenarioError` that names file, line and field."""
    scenario = _parsed(text, Scenario, source)
    check(scenario, text, source)
    return scenario


class Variant(Strict, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A policy's file: sections that stand in for the scenario's. At least one; those not there stay."""

    routing: RoutingSection | None = None
    roles: RolesSection | None = None
    local_prefill: LocalPrefillSection | None = None
    speculation: SpeculationSection | None = None


def parse_variant(text: str, *, source: str) -> Variant:
    """Read a policy's file, a TOML text of [routing], [roles], [local_prefill] or [speculation].

    Raises `ScenarioError`.
    """
    variant = _parsed(text, Variant, source)
    if variant == Variant():
        raise ScenarioError(
            f"{source}: says nothing; a policy's file has [routing], [roles], [local_prefill] or [speculation]"
        )
    return variant


def varied(scenario: Scenario, variant: Variant, *, source: str) -> Scenario:
    """Return the scenario with a variant's sections; raises `ScenarioError` if the two do not go together."""
    told = {
        name: getattr(variant, name)
        for name in variant.__struct_fields__
        if getattr(variant, name) is not None
    }
    made = msgspec.structs.replace(scenario, **told)
    check(made, "", source)
    return made


def parse_routing(text: str, *, source: str) -> RoutingSection:
    """Read a policy's file for its [routing] section alone; raises `ScenarioError` without one."""
    routing = parse_variant(text, source=source).routing
    if routing is None:
        raise ScenarioError(f"{source}: has no [routing] section, which is what is asked for here")
    return routing


def other_sections(text: str, *, source: str) -> tuple[str, ...]:
    """Return the sections of a policy's file beside [routing]; raises `ScenarioError`."""
    variant = parse_variant(text, source=source)
    return tuple(
        name
        for name in variant.__struct_fields__
        if name != "routing" and getattr(variant, name) is not None
    )


def _parsed(text: str, kind: type[T], source: str) -> T:
    try:
        tree = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ScenarioError(f"{source}: {error}") from error
    try:
        return msgspec.convert(tree, kind)
    except msgspec.ValidationError as error:
        raise ScenarioError(_located(str(error), text, source)) from error


def _located(message: str, text: str, source: str) -> str:
    """Put the line of the key into msgspec's message, which knows only its path."""
    path = re.search(r"`\$\.?([^`]*)`", message)
    unknown = re.search(r"unknown field `([^`]+)`", message)
    missing = re.search(r"missing required field `([^`]+)`", message)
    told = path[1] if path else ""
    # A list of values is one key: which of them it is stays in the message.
    key = (
        unknown[1]
        if unknown
        else ""
        if missing
        else re.sub(r"\[\d+\]$", "", told).rpartition(".")[2]
    )
    section = told if unknown or missing else told.rpartition(".")[0]
    line = line_of(text, section, key)
    return f"{source}, line {line}: {message}" if line else f"{source}: {message}"


def line_of(text: str, section: str, key: str) -> int | None:
    """Return the line of a key in a section of a TOML text, None if it is not written out.

    "" is the top; "faults[1]" is the second `[[faults]]`; with a key of "" or one that is a section, its header.
    """
    number = re.search(r"\[(\d+)\]", section)
    wanted = re.sub(r"\[\d+\]", "", section)
    left = int(number[1]) + 1 if number else 0
    at, found, inside = "", None, wanted == ""
    for at_line, line in enumerate(text.splitlines(), start=1):
        header = re.match(r"\s*\[{1,2}\s*([\w.]+)\s*\]{1,2}", line)
        if header:
            at = header[1]
            left -= at == wanted
            inside = at == wanted and left <= 0
            if at == f"{wanted}.{key}".strip(".") and left <= 0:
                found = found or at_line
        elif inside and key and re.match(rf"\s*{re.escape(key)}\s*=", line):
            return at_line
    return found


def check(scenario: Scenario, text: str, source: str) -> None:
    """Raise `ScenarioError` for a combination that cannot be; `text` is where its lines are looked up."""
    for section, key, problem in _problems(scenario):
        line = line_of(text, section, key.partition("[")[0]) or line_of(text, section, "")
        where = f"{source}, line {line}" if line else source
        path = f"{section}.{key}".strip(".")
        raise ScenarioError(f"{where}: {problem} - at `$.{path}`")


def _problems(scenario: Scenario) -> Iterator[tuple[str, str, str]]:
    """Yield (section, key, problem) for what cannot be."""
    replica, workload, cost = scenario.replica, scenario.workload, scenario.replica.cost
    yield from endless(scenario)
    yield from too_many(scenario)
    if workload.trace is not None and workload.synthetic is not None:
        yield "workload", "trace", "give a trace or synthetic sessions, not both"
    if replica.kv_tokens < replica.block_tokens:
        yield "replica", "kv_tokens", "holds no block of block_tokens"
    if replica.host is not None and replica.engine != "slots":
        yield "replica.host", "cores", "cores are shared by replicas with slots only"
    if scenario.warm_s >= workload.duration_s:
        yield "", "warm_s", f"must be below the {workload.duration_s:g} s that are simulated"
    if scenario.warm_s + scenario.cool_s >= workload.duration_s:
        problem = f"leaves nothing to count of {workload.duration_s:g} s after warm_s"
        yield "", "cool_s", f"{problem}; give less, or a longer workload.duration_s"
    if cost.overhead_ms + cost.weights_ms + cost.token_ms <= 0.0:
        problem = "a step must take time: one of the costs must be above 0"
        yield "replica.cost", "overhead_ms", problem
    for number, fault in enumerate(scenario.faults):
        if fault.kind != "add" and fault.replica >= scenario.fleet.replicas:
            there = f"there are {scenario.fleet.replicas} replicas, numbered from 0"
            yield f"faults[{number}]", "replica", there
        if fault.kind == "slow_link" and scenario.roles is None:
            yield f"faults[{number}]", "kind", "without [roles] no KV is on any link"
    yield from unheard(scenario)
    yield from _role_problems(scenario)
    yield from _speculation_problems(scenario)
    yield from _rollout_problems(scenario)


def _role_problems(scenario: Scenario) -> Iterator[tuple[str, str, str]]:
    roles, objective = scenario.roles, scenario.objective
    if roles is None:
        return
    if scenario.replica.engine == "slots":
        yield "roles", "prefill", 'replicas with slots hand no KV over; use engine = "paged"'
    if roles.prefill >= scenario.fleet.replicas:
        yield "roles", "prefill", "leaves no replica to decode; at least one must"
    control = roles.control
    if control is None:
        return
    if objective.ttft_ms is None or objective.tpot_ms is None:
        problem = "role control needs both targets: give objective.ttft_ms and objective.tpot_ms"
        yield "roles.control", "tick_s", problem
    if control.act_below >= control.act_above:
        yield "roles.control", "act_below", "must be below act_above: between them nothing moves"


def _speculation_problems(scenario: Scenario) -> Iterator[tuple[str, str, str]]:
    rollout = scenario.rollout
    candidate = None if rollout is None else rollout.candidate
    told = {
        "speculation": scenario.speculation,
        "rollout.candidate.speculation": None if candidate is None else candidate.speculation,
    }
    for section, speculation in told.items():
        if speculation is None:
            continue
        if scenario.replica.engine == "slots":
            yield section, "depth", 'replicas with slots do not draft; use engine = "paged"'
        labels = [one.label for one in speculation.acceptance]
        for number, one in enumerate(speculation.acceptance):
            where = f"{section}.acceptance[{number}]"
            if labels.index(one.label) < number:
                yield where, "label", f"label {one.label!r} is told twice"
            if list(one.by_position) != sorted(one.by_position, reverse=True):
                problem = "must not rise: a draft's token counts only if all before it did"
                yield where, "by_position", problem


def _rollout_problems(scenario: Scenario) -> Iterator[tuple[str, str, str]]:
    rollout = scenario.rollout
    if rollout is None:
        return
    if (rollout.policy is None) == (rollout.candidate is None):
        yield "rollout", "policy", "give a policy or a [rollout.candidate], one of the two"
    if list(rollout.shares) != sorted(set(rollout.shares)):
        yield "rollout", "shares", "must rise strictly"
    if 2 * rollout.edge_s >= rollout.block_s:
        yield "rollout", "edge_s", "leaves nothing of block_s: edges on both sides are dropped"
    if rollout.start_s >= scenario.workload.duration_s:
        yield "rollout", "start_s", "is after the end of what is simulated"
    if rollout.candidate is not None and rollout.candidate.replicas >= scenario.fleet.replicas:
        yield "rollout.candidate", "replicas", "leaves no replica to compare with"
    if scenario.roles is not None and scenario.roles.control is not None and rollout.candidate:
        problem = "role control and a candidate's replicas would move the same replicas"
        yield "rollout.candidate", "replicas", problem
