"""From one traffic plan to the next as a rollout moves: the same plans for a live fleet and a simulated one."""

import msgspec

from trimtab.core.cuts import Cut
from trimtab.core.lever import LeverRecord
from trimtab.core.traffic import CandidatePlan, Preference, TrafficPlan


def with_slice(
    plan: TrafficPlan,
    record: LeverRecord,
    *,
    share: float,
    policy: str | None,
    replicas: tuple[str, ...],
    now_s: float,
) -> TrafficPlan:
    """Return the plan that exposes the first slice; its clock of blocks starts now."""
    candidate = CandidatePlan(
        lever=record.name,
        share=share,
        policy=policy,
        replicas=replicas,
        comparison=record.ramp.comparison,
        started_at_s=now_s,
        block_s=record.ramp.block_s,
        edge_s=record.ramp.edge_s,
        cuts=record.cuts,
        roles=record.prefill > 0,
    )
    return msgspec.structs.replace(plan, candidate=candidate)


def with_share(plan: TrafficPlan, share: float) -> TrafficPlan:
    """Return the plan with another share of the slice, whose blocks keep counting; raises RuntimeError without one."""
    if plan.candidate is None:
        raise RuntimeError("no lever is being proven: there is no slice to grow")
    grown = msgspec.structs.replace(plan.candidate, share=share)
    return msgspec.structs.replace(plan, candidate=grown)


def without_slice(plan: TrafficPlan) -> TrafficPlan:
    """Return the plan in which no traffic meets a candidate."""
    return msgspec.structs.replace(plan, candidate=None)


def with_adopted(
    plan: TrafficPlan,
    record: LeverRecord,
    *,
    policy: str | None,
    cuts: tuple[Cut, ...],
    replicas: tuple[str, ...],
) -> TrafficPlan:
    """Return the plan that gives a lever what it was proven for: a routing policy for all, or replicas for cuts."""
    plan = without_slice(plan)
    if record.prefill:
        # Roles are the fleet's own: without a slice they count for all traffic.
        return plan
    if policy is not None:
        return msgspec.structs.replace(plan, policy=policy)
    wanted = Preference(lever=record.name, cuts=cuts, replicas=replicas)
    return msgspec.structs.replace(plan, preferences=(*plan.preferences, wanted))


def with_lever_off(
    plan: TrafficPlan, record: LeverRecord, *, baseline_policy: str, routes: bool
) -> TrafficPlan:
    """Return the plan without an adopted lever. `routes`: it was a routing policy, so the baseline's comes back."""
    kept = tuple(each for each in plan.preferences if each.lever != record.name)
    routes = routes and record.prefill == 0
    policy = baseline_policy if routes else plan.policy
    return msgspec.structs.replace(plan, policy=policy, preferences=kept)
