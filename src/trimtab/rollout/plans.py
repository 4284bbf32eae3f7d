"""From one traffic plan to the next as a rollout moves: the same plans for a live fleet and a simulated one."""

import msgspec

from trimtab.core.cuts import Cut
from trimtab.core.lever import LeverRecord
from trimtab.core.traffic import CandidatePlan, Preference, Reserve, TrafficPlan


def with_slice(
    plan: TrafficPlan,
    record: LeverRecord,
    *,
    share: float,
    policy: str | None,
    replicas: tuple[str, ...],
    now_s: float,
    without: tuple[Cut, ...] = (),
) -> TrafficPlan:
    """Return the plan that exposes the first slice; its clock of blocks starts now.

    `without`: cuts that are kept off it, beside those that its record names.
    """
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
        without=(*record.without, *without),
        sticky_by=record.ramp.sticky_by,
    )
    return msgspec.structs.replace(plan, candidate=candidate)


def with_cuts_out(plan: TrafficPlan, cuts: tuple[Cut, ...]) -> TrafficPlan:
    """Return the plan in which these cuts are kept off the slice too; raises RuntimeError without a slice."""
    if plan.candidate is None:
        raise RuntimeError("no lever is being proven: there is no slice to take a cut from")
    out = plan.candidate.without
    more = tuple(cut for cut in cuts if cut not in out)
    smaller = msgspec.structs.replace(plan.candidate, without=(*out, *more))
    return msgspec.structs.replace(plan, candidate=smaller)


def with_share(plan: TrafficPlan, share: float) -> TrafficPlan:
    """Return the plan with another share of the slice, whose blocks keep counting; raises RuntimeError without one."""
    if plan.candidate is None:
        raise RuntimeError("no lever is being proven: there is no slice to grow")
    grown = msgspec.structs.replace(plan.candidate, share=share)
    return msgspec.structs.replace(plan, candidate=grown)


def own_replicas(plan: TrafficPlan, lever: str, replicas: tuple[str, ...]) -> tuple[str, ...]:
    """Return where a revision lever runs by the plan, else where it would: the last replica that no other one has.

    Empty where every replica has a lever already.
    """
    held = {each.lever: each.replicas for each in plan.preferences if each.replicas}
    if plan.candidate is not None and plan.candidate.replicas:
        held[plan.candidate.lever] = plan.candidate.replicas
    if lever in held:
        return held[lever]
    taken = {replica for theirs in held.values() for replica in theirs}
    return tuple(replica for replica in replicas if replica not in taken)[-1:]


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
    without: tuple[Cut, ...] = (),
) -> TrafficPlan:
    """Return the plan that gives a lever what it was proven for: a routing policy for all, or replicas for cuts.

    `without`: cuts that stay as they were. So does the holdback share that the record names.
    """
    plan = without_slice(plan)
    if record.prefill:
        # Roles are the fleet's own: without a slice they count for all traffic.
        return plan
    holdback = record.ramp.holdback_share
    if policy is not None:
        reserved = with_reserve(plan, record, policy=plan.policy, cuts=without)
        return msgspec.structs.replace(reserved, policy=policy)
    wanted = Preference(
        lever=record.name,
        cuts=cuts,
        replicas=replicas,
        without=without,
        holdback_share=holdback,
    )
    return msgspec.structs.replace(plan, preferences=(*plan.preferences, wanted))


def with_reserve(
    plan: TrafficPlan, record: LeverRecord, *, policy: str, cuts: tuple[Cut, ...]
) -> TrafficPlan:
    """Return the plan in which a routing lever leaves these cuts, and its holdback share, to another policy."""
    others = tuple(each for each in plan.reserves if each.lever != record.name)
    left = tuple(dict.fromkeys((*record.without, *cuts)))
    share = record.ramp.holdback_share
    mine = Reserve(lever=record.name, policy=policy, cuts=left, holdback_share=share)
    kept = (*others, mine) if left or share else others
    return msgspec.structs.replace(plan, reserves=kept)


def left_out(plan: TrafficPlan, record: LeverRecord) -> tuple[Cut, ...]:
    """Return the cuts that an adopted lever is kept off by a plan."""
    kept = [each.without for each in plan.preferences if each.lever == record.name]
    left = [each.cuts for each in plan.reserves if each.lever == record.name]
    return (*kept, *left, record.without)[0]


def with_lever_off(
    plan: TrafficPlan, record: LeverRecord, *, baseline_policy: str, routes: bool
) -> TrafficPlan:
    """Return the plan without an adopted lever. `routes`: it was a routing policy, so the baseline's comes back."""
    kept = tuple(each for each in plan.preferences if each.lever != record.name)
    reserves = tuple(each for each in plan.reserves if each.lever != record.name)
    routes = routes and record.prefill == 0
    policy = baseline_policy if routes else plan.policy
    return msgspec.structs.replace(plan, policy=policy, preferences=kept, reserves=reserves)
