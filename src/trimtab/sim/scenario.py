"""A scenario: everything a simulation is told, read from TOML into one frozen, strict tree.

A key that is not known, a value out of its range and a combination that cannot be are errors that name file, line and
field. Nothing here reads files: whoever does hands over the text.
"""

import re
import tomllib
from typing import Annotated, TypeVar

import msgspec
from msgspec import Meta

from trimtab.core.config import Strict
from trimtab.core.prefix import SLOT_SIMILARITY
from trimtab.core.step_cost import StepCost
from trimtab.sim.fleet import FleetSpec
from trimtab.sim.jobs import HostSpec, ReplicaSpec
from trimtab.sim.records import Objective

T = TypeVar("T")


class ScenarioError(ValueError):
    """A scenario that cannot be simulated; the message names file, line, field and fix."""


Positive = Annotated[float, Meta(gt=0)]


class CostSection(Strict, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a step costs, in milliseconds; `trimtab calibrate` writes this section."""

    overhead_ms: Annotated[float, Meta(ge=0, description="Fixed time of every step.")]
    weights_ms: Annotated[float, Meta(ge=0, description="Time to read the weights once.")]
    token_ms: Annotated[float, Meta(ge=0, description="Time per computed token, once it shows.")]
    stream_ms: Annotated[float, Meta(ge=0, description="Time per decoding stream.")] = 0.0
    context_ms: Annotated[float, Meta(ge=0, description="Time per token of KV read.")] = 0.0
    pair_ms: Annotated[
        float, Meta(ge=0, description="Time per pair of tokens in prefill attention.")
    ] = 0.0
    start_ms: Annotated[
        float, Meta(ge=0, description="Time before a request can be scheduled.")
    ] = 0.0
    source: Annotated[str, Meta(min_length=1, description="How these figures came to be.")] = (
        "the scenario file"
    )


class HostSection(Strict, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A host whose cores several replicas share; replicas with slots only."""

    cores: Annotated[int, Meta(ge=1, le=4096, description="Cores of a host.")]
    threads: Annotated[int, Meta(ge=1, le=4096, description="Threads of a replica.")] = 1
    replicas: Annotated[int, Meta(ge=1, le=1024, description="Replicas on a host.")] = 1
    contention: Annotated[
        float,
        Meta(ge=0, le=10, description="Share by which each other replica at work slows a step."),
    ] = 0.0


class ReplicaSection(Strict, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One replica, all of them alike."""

    cost: CostSection
    kv_tokens: Annotated[int, Meta(ge=1, description="Tokens of KV that a replica holds.")]
    block_tokens: Annotated[int, Meta(ge=1, le=65_536, description="Tokens of a KV block.")] = 16
    budget_tokens: Annotated[
        int, Meta(ge=1, description="Most tokens computed in one step (chunked prefill).")
    ] = 2048
    streams_max: Annotated[int, Meta(ge=1, description="Most requests running at once.")] = 256
    engine: Annotated[
        str,
        Meta(
            pattern="^(paged|slots)$",
            description="paged: blocks that all requests share (vLLM); slots: one chain each (llama.cpp).",
        ),
    ] = "paged"
    similarity: Annotated[
        float,
        Meta(ge=0, le=1, description="Share of a prompt from which on a slot is taken for it."),
    ] = SLOT_SIMILARITY
    host: HostSection | None = None
    """Cores that replicas with slots share; none: each has its own."""


class FleetSection(Strict, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Replicas, gateways and what lies between them."""

    replicas: Annotated[int, Meta(ge=1, le=100_000, description="Replicas at the start.")]
    gateways: Annotated[
        int, Meta(ge=1, le=1_000, description="Gateways; each sees only its own requests.")
    ] = 1
    probe_s: Annotated[float, Meta(gt=0, description="Seconds between reads of the engines.")] = 1.0
    hop_ms: Annotated[float, Meta(ge=0, description="Milliseconds from gateway to replica.")] = 0.0
    start_s: Annotated[float, Meta(ge=0, description="Seconds until a new replica serves.")] = 60.0
    timeout_s: Annotated[float, Meta(gt=0)] | None = None
    """Seconds after which a client without a first token leaves; none: never."""
    in_flight_max: Annotated[int, Meta(ge=1)] | None = None
    """Requests on a replica above which it takes no more and the request is shed; none: no limit."""
    price_per_hour: Annotated[float, Meta(ge=0, description="Price of a replica for an hour.")] = (
        0.0
    )


class RoutingSection(Strict, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where requests go."""

    policy: Annotated[
        str, Meta(description="A policy's name; see `trimtab simulate --policies`.")
    ] = "prefix_affine"
    load_bound: Annotated[
        float, Meta(ge=1.0, le=10.0, description="A candidate's load over the mean at most.")
    ] = 1.25
    min_match_tokens: Annotated[
        int, Meta(ge=0, description="Shorter matches are ignored, in tokens.")
    ] = 32
    index_blocks: Annotated[
        int, Meta(ge=1024, description="Blocks that each gateway's prefix index holds.")
    ] = 1_000_000


class SyntheticSection(Strict, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Made-up sessions that share prefixes; used where no trace is given."""

    rate_per_s: Annotated[float, Meta(gt=0, description="Requests per second, all sessions.")]
    turns: Annotated[int, Meta(ge=1, le=1_000, description="Requests of a session.")] = 8
    groups: Annotated[int, Meta(ge=1, description="Groups of sessions with a shared part.")] = 16
    system_tokens: Annotated[int, Meta(ge=0, description="Tokens that all prompts share.")] = 512
    group_tokens: Annotated[int, Meta(ge=0, description="Tokens that a group shares.")] = 1024
    turn_tokens: Annotated[int, Meta(ge=1, description="New tokens of a turn, mean.")] = 256
    output_tokens: Annotated[int, Meta(ge=1, description="Tokens of an answer, mean.")] = 128
    spread: Annotated[float, Meta(ge=0, le=3, description="Spread of lengths (sigma).")] = 0.5
    think_s: Annotated[float, Meta(ge=0, description="Seconds between turns, mean.")] = 10.0


class WorkloadSection(Strict, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What arrives. Exactly one of a trace and `synthetic`; a trace may also be named on the command line."""

    duration_s: Annotated[float, Meta(gt=0, description="Seconds that are simulated.")] = 3600.0
    trace: str | tuple[str, ...] | None = None
    """Path of a trace, relative to the scenario's folder; several are played one after the other."""
    format: Annotated[
        str,
        Meta(
            pattern="^(mooncake|azure|sessions|jsonl|recorded)$",
            description="Format of the trace.",
        ),
    ] = "mooncake"
    gap_s: Annotated[float, Meta(ge=0, description="Seconds between two traces.")] = 0.0
    copies: Annotated[
        float,
        Meta(
            gt=0,
            le=100_000,
            description=(
                "Times the trace's rate: whole copies are laid over each other, each shifted and sharing nothing; "
                "what is left stretches the gaps."
            ),
        ),
    ] = 1.0
    per_replica: bool = False
    """True: `copies`, or rate and groups of `synthetic`, are for each replica: its load stays when the fleet grows."""
    diurnal_low: Annotated[
        float, Meta(gt=0, le=1, description="Least rate over the mean in a day's shape.")
    ] = 1.0
    diurnal_period_s: Annotated[float, Meta(gt=0, description="Length of that day, seconds.")] = (
        86_400.0
    )
    synthetic: SyntheticSection | None = None


class FaultSection(Strict, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Something that happens to a replica at a time."""

    at_s: Annotated[float, Meta(ge=0, description="When, seconds from the start.")]
    kind: Annotated[
        str,
        Meta(
            pattern="^(kill|lose|drain|add|slow)$",
            description="What: kill restarts, lose does not.",
        ),
    ]
    replica: Annotated[int, Meta(ge=0, description="Which, by number; not for add.")] = 0
    factor: Annotated[float, Meta(gt=0, description="Times as long for each step (slow).")] = 1.0


class ObjectiveSection(Strict, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a request must get to count as good."""

    ttft_ms: Positive | None = None
    tpot_ms: Positive | None = None


class Scenario(Strict, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Everything that a simulation is told."""

    name: Annotated[str, Meta(min_length=1, description="What the reports call it.")]
    replica: ReplicaSection
    fleet: FleetSection
    workload: WorkloadSection
    routing: RoutingSection = RoutingSection()
    objective: ObjectiveSection = ObjectiveSection()
    faults: tuple[FaultSection, ...] = ()
    seed: Annotated[int, Meta(ge=0, description="Seed of everything that is drawn.")] = 1
    warm_s: Annotated[
        float, Meta(ge=0, description="Seconds at the start that no figure counts.")
    ] = 0.0


def parse_scenario(text: str, *, source: str) -> Scenario:
    """Read a scenario's text; raises `ScenarioError` that names file, line and field."""
    try:
        tree = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ScenarioError(f"{source}: {error}") from error
    scenario = _converted(tree, Scenario, text, source)
    _check(scenario, text, source)
    return scenario


class _RoutingFile(Strict, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A file that says nothing but where requests go."""

    routing: RoutingSection


def parse_routing(text: str, *, source: str) -> RoutingSection:
    """Read a policy's file, a TOML text with a [routing] section; raises `ScenarioError`."""
    try:
        tree = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ScenarioError(f"{source}: {error}") from error
    return _converted(tree, _RoutingFile, text, source).routing


def _converted(tree: dict[str, object], kind: type[T], text: str, source: str) -> T:
    try:
        return msgspec.convert(tree, kind)
    except msgspec.ValidationError as error:
        raise ScenarioError(_located(str(error), text, source)) from error


def _located(message: str, text: str, source: str) -> str:
    """Put the line of the key into msgspec's message, which knows only its path."""
    path = re.search(r"`\$\.?([^`]*)`", message)
    unknown = re.search(r"unknown field `([^`]+)`", message)
    key = unknown[1] if unknown else path[1].rpartition(".")[2] if path else ""
    section = (path[1] if unknown else path[1].rpartition(".")[0]) if path else ""
    line = line_of(text, section, key)
    return f"{source}, line {line}: {message}" if line else f"{source}: {message}"


def line_of(text: str, section: str, key: str) -> int | None:
    """Return the line of a key in a section of a TOML text ("" is the top), None if it is not written out."""
    wanted = re.sub(r"\[\d+\]", "", section)
    at = ""
    found = None
    for number, line in enumerate(text.splitlines(), start=1):
        header = re.match(r"\s*\[{1,2}\s*([\w.]+)\s*\]{1,2}", line)
        if header:
            at = header[1]
            if at == f"{wanted}.{key}".strip("."):
                found = found or number
        elif at == wanted and re.match(rf"\s*{re.escape(key)}\s*=", line):
            return number
    return found


def _check(scenario: Scenario, text: str, source: str) -> None:
    def refuse(section: str, key: str, problem: str) -> None:
        line = line_of(text, section, key)
        where = f"{source}, line {line}" if line else source
        raise ScenarioError(f"{where}: {problem} - at `$.{section}.{key}`")

    if scenario.workload.trace is not None and scenario.workload.synthetic is not None:
        refuse("workload", "trace", "give a trace or synthetic sessions, not both")
    if scenario.replica.kv_tokens < scenario.replica.block_tokens:
        refuse("replica", "kv_tokens", "holds no block of block_tokens")
    if scenario.replica.host is not None and scenario.replica.engine != "slots":
        refuse("replica.host", "cores", "cores are shared by replicas with slots only")
    if scenario.warm_s >= scenario.workload.duration_s:
        refuse(
            "", "warm_s", f"must be below the {scenario.workload.duration_s:g} s that are simulated"
        )
    cost = scenario.replica.cost
    if cost.overhead_ms + cost.weights_ms + cost.token_ms <= 0.0:
        refuse(
            "replica.cost", "overhead_ms", "a step must take time: one of the costs must be above 0"
        )
    for number, fault in enumerate(scenario.faults):
        if fault.kind != "add" and fault.replica >= scenario.fleet.replicas:
            refuse(
                f"faults[{number}]",
                "replica",
                f"there are {scenario.fleet.replicas} replicas, numbered from 0",
            )


def replica_spec(scenario: Scenario) -> ReplicaSpec:
    """Return what a replica of the scenario can do."""
    section, host = scenario.replica, scenario.replica.host
    cost = StepCost(
        **{name: getattr(section.cost, name) for name in section.cost.__struct_fields__}
    )
    return ReplicaSpec(
        cost=cost,
        kv_tokens=section.kv_tokens,
        block_tokens=section.block_tokens,
        budget_tokens=section.budget_tokens,
        streams_max=section.streams_max,
        similarity=section.similarity if section.engine == "slots" else None,
        host=None if host is None else HostSpec(**msgspec.structs.asdict(host)),
    )


def fleet_spec(scenario: Scenario, policy: str) -> FleetSpec:
    """Return the fleet of the scenario under a policy."""
    fleet = scenario.fleet
    return FleetSpec(
        replica=replica_spec(scenario),
        replicas=fleet.replicas,
        policy=policy,
        gateways=fleet.gateways,
        probe_s=fleet.probe_s,
        hop_ms=fleet.hop_ms,
        start_s=fleet.start_s,
        timeout_s=fleet.timeout_s,
        in_flight_max=fleet.in_flight_max,
        index_blocks=scenario.routing.index_blocks,
    )


def objective_of(scenario: Scenario) -> Objective:
    """Return what counts as good."""
    return Objective(ttft_ms=scenario.objective.ttft_ms, tpot_ms=scenario.objective.tpot_ms)
