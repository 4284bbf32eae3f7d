"""From a scenario's sections to what the parts of a simulation are told."""

import msgspec

from trimtab.core.cost import CostModel
from trimtab.core.lever import LeverRecord
from trimtab.core.step_cost import StepCost
from trimtab.policies.local_prefill import PrefillPlace, PrefillRules
from trimtab.policies.prefill_pool import LinkRate
from trimtab.policies.roles import RoleRules
from trimtab.policies.speculation_depth import DepthRules
from trimtab.sim.drafts import DraftSpec
from trimtab.sim.fleet_parts import FleetSpec, RoleControlSpec, RolesSpec
from trimtab.sim.jobs import HostSpec, ReplicaSpec
from trimtab.sim.lever_records import record_of
from trimtab.sim.links import LinkSpec
from trimtab.sim.records import Objective
from trimtab.sim.rollout import Candidate, RolloutSpec
from trimtab.sim.sections import RoleControlSection, Scenario, SpeculationSection

_ALWAYS = {"conditional": None, "local": PrefillPlace.LOCAL, "remote": PrefillPlace.REMOTE}


def replica_spec(scenario: Scenario) -> ReplicaSpec:
    """Return what a replica of the scenario can do."""
    section, host = scenario.replica, scenario.replica.host
    cost = StepCost(**{name: getattr(section.cost, name) for name in StepCost.__struct_fields__})
    return ReplicaSpec(
        cost=cost,
        kv_tokens=section.kv_tokens,
        block_tokens=section.block_tokens,
        budget_tokens=section.budget_tokens,
        streams_max=section.streams_max,
        similarity=section.similarity if section.engine == "slots" else None,
        host=None if host is None else HostSpec(**msgspec.structs.asdict(host)),
        drafts=None if scenario.speculation is None else draft_spec(scenario.speculation),
    )


def draft_spec(section: SpeculationSection) -> DraftSpec:
    """Return how a replica drafts."""
    return DraftSpec(
        acceptance={one.label: one.by_position for one in section.acceptance},
        depth=section.depth,
        draft_ms=section.draft_ms,
        rules=DepthRules(depth_max=section.depth_max),
    )


def routing_cost(scenario: Scenario) -> CostModel:
    """Return the cost model that routing predicts with: the replica's own, at the context of half of its KV."""
    spec = replica_spec(scenario)
    context = spec.kv_tokens / 2.0 / spec.streams_max
    return spec.cost.as_cost_model(context_tokens=context, chunk_tokens=spec.budget_tokens)


def roles_spec(scenario: Scenario) -> RolesSpec | None:
    """Return the roles of the scenario and how KV moves between them; None: replicas serve whole requests."""
    roles, local = scenario.roles, scenario.local_prefill
    if roles is None:
        return None
    link = LinkSpec(bytes_per_s=roles.link_bytes_per_s, setup_ms=roles.setup_ms)
    token_ms = 1000.0 * roles.kv_bytes_per_token / roles.link_bytes_per_s
    return RolesSpec(
        prefill=roles.prefill,
        rules=PrefillRules(
            chunk_tokens=local.chunk_tokens,
            stall_chunk_tokens=scenario.replica.budget_tokens,
            prefill_chunk_tokens=roles.prefill_budget_tokens or 0,
            stall_weight=local.stall_weight,
            margin=local.margin,
            always=_ALWAYS[local.mode],
        ),
        link=link,
        kv_bytes_per_token=roles.kv_bytes_per_token,
        cost=routing_cost(scenario),
        told=LinkRate(setup_ms=link.setup_ms, ms_per_token=token_ms),
        timeout_s=roles.transfer_timeout_s,
        prefill_budget_tokens=roles.prefill_budget_tokens,
        prefill_streams_max=roles.prefill_streams_max,
        change_s=roles.change_s,
        keeps_cache=roles.keeps_cache,
        control=None if roles.control is None else _control_spec(scenario, roles.control),
    )


def _control_spec(scenario: Scenario, section: RoleControlSection) -> RoleControlSpec:
    objective = scenario.objective
    assert objective.ttft_ms is not None
    assert objective.tpot_ms is not None
    values = msgspec.structs.asdict(section)
    tick_s = values.pop("tick_s")
    return RoleControlSpec(
        rules=RoleRules(**values),
        tick_s=tick_s,
        ttft_ms=objective.ttft_ms,
        tpot_ms=objective.tpot_ms,
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
        probe_late_s=fleet.probe_late_s,
        start_s=fleet.start_s,
        drain_s=fleet.drain_s,
        timeout_s=fleet.timeout_s,
        in_flight_max=fleet.in_flight_max,
        index_blocks=scenario.routing.index_blocks,
        turns_wait=scenario.workload.turns_wait,
        roles=roles_spec(scenario),
    )


def rollout_spec(scenario: Scenario, record: LeverRecord | None) -> RolloutSpec | None:
    """Return what the scenario rolls out, None if nothing. `record`: of the file that it names.

    Raises `LeverRecordError` for a record that leaves something unsaid.
    """
    section = scenario.rollout
    if section is None:
        return None
    told = section.candidate
    candidate = None
    if told is not None:
        spec = replica_spec(scenario)
        candidate = Candidate(
            replicas=told.replicas,
            spec=msgspec.structs.replace(
                spec,
                budget_tokens=told.budget_tokens or spec.budget_tokens,
                drafts=spec.drafts if told.speculation is None else draft_spec(told.speculation),
            ),
            change_s=told.change_s,
            slower=told.slower,
        )
    return RolloutSpec(
        record=record_of(section) if record is None else record,
        policy=section.policy,
        candidate=candidate,
        start_s=section.start_s,
        look_s=section.look_s,
    )


def objective_of(scenario: Scenario) -> Objective:
    """Return what counts as good."""
    return Objective(ttft_ms=scenario.objective.ttft_ms, tpot_ms=scenario.objective.tpot_ms)
