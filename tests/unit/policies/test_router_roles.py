"""Routing beside replicas that prefill for others: they take no whole requests, unless roles do not count for one."""

import random

from router_kit import query

from trimtab.core.cost import START_COST
from trimtab.core.lever import Comparison
from trimtab.core.prefix import PrefixIndex
from trimtab.core.traffic import CandidatePlan, TrafficPlan
from trimtab.core.types import ReplicaState, Role
from trimtab.policies.loadstate import LoadState
from trimtab.policies.router import Router, explained
from trimtab.policies.routing import build_policies

ROLES = {"r0": Role.DECODE, "r1": Role.PREFILL, "r2": Role.DECODE}
BASELINE_FOR_ALL = TrafficPlan(
    policy="round_robin",
    candidate=CandidatePlan(
        lever="split",
        share=0.0,
        policy=None,
        replicas=(),
        comparison=Comparison.SWITCHBACK,
        started_at_s=0.0,
        block_s=10.0,
        edge_s=1.0,
        roles=True,
    ),
)


def router() -> Router:
    """Round robin over three replicas, the second of which prefills."""
    load = LoadState()
    for replica, role in ROLES.items():
        load.set_replica(
            id=replica,
            url=f"http://{replica}",
            role=role,
            revision="v",
            state=ReplicaState.READY,
            slots=4,
        )
    plan = TrafficPlan(policy="round_robin")
    policies = build_policies(START_COST)
    return Router(load, PrefixIndex(10_000, 16), policies, random.Random(1), plan=plan)


def served(of: Router, plan: TrafficPlan) -> set[str | None]:
    """Where six requests go."""
    first = of.load.in_flight
    names = [f"q{at}" for at in range(first, first + 6)]
    return {of.route(query(name), plan).decision.replica for name in names}


def test_replica_that_prefills_takes_no_whole_request() -> None:
    """It is ready, and in the pool for prompts sent ahead."""
    of = router()
    assert served(of, of.plan) == {"r0", "r2"}
    assert [replica for replica, _ in of.load.prefill_pool()] == ["r1"]


def test_roles_do_not_count_for_a_request_of_the_baseline_arm() -> None:
    """Then it serves whole requests as the others do, and what was seen says so, so that it can be decided again."""
    of = router()
    assert served(of, BASELINE_FOR_ALL) == {"r0", "r1", "r2"}
    routed = of.route(query("last"), BASELINE_FOR_ALL)
    told = explained(routed)
    roles = {one.id: one.role for one in told.view.replicas}
    assert (roles["r1"], roles["r0"]) == (Role.MIXED, Role.DECODE)
    again = routed.policy.decide(told.view, told.asked, routed.draw)
    assert again.replica == routed.decision.replica


def test_whole_view_leaves_the_load_state_as_it_was() -> None:
    """Deciding changes nothing: the next request by roles finds them."""
    of = router()
    served(of, BASELINE_FOR_ALL)
    assert of.load.ready() == ("r0", "r2")
    assert served(of, of.plan) == {"r0", "r2"}
