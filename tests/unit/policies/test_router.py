"""The router brings plan, index, load and policy together, and folds outcomes back."""

import random

import msgspec
import pytest

from trimtab.core.cost import CostModel
from trimtab.core.cuts import Cut, Dimension
from trimtab.core.decision import FleetView, RouteReason, RouteRequest, RoutingDecision, listed
from trimtab.core.lever import Comparison
from trimtab.core.ports import RequestFacts
from trimtab.core.prefix import BlockHasher, PrefixIndex
from trimtab.core.traffic import CandidatePlan, Preference, TrafficPlan
from trimtab.core.types import Arm, Constraint, ReplicaState, Role
from trimtab.policies.estimates import LABELS_MAX, OutputExpectation
from trimtab.policies.loadstate import LoadState
from trimtab.policies.router import RouteQuery, Router
from trimtab.policies.routing import build_policies
from trimtab.runtime.prompt import read_prompt
from trimtab.runtime.secret import Secret

HASHER = BlockHasher(b"k", 16)
COST = CostModel(
    prefill_base_ms=1.0,
    prefill_ms_per_token=10.0,
    step_base_ms=20.0,
    step_ms_per_stream=5.0,
    prefill_samples=1,
    step_samples=1,
    source="test",
)
CANDIDATE = CandidatePlan(
    lever="speculation",
    share=1.0,
    policy=None,
    replicas=("b",),
    comparison=Comparison.SIDE_BY_SIDE,
    started_at_s=0.0,
    block_s=10.0,
    edge_s=1.0,
)


class Spy:
    """Wraps a policy and keeps what it was asked."""

    def __init__(self, policy: object) -> None:
        self.policy = policy
        self.asked: list[tuple[FleetView, RouteRequest, float]] = []
        self.name = "spy"

    def decide(self, view: FleetView, request: RouteRequest, rng_draw: float) -> RoutingDecision:
        self.asked.append((view, request, rng_draw))
        return self.policy.decide(view, request, rng_draw)  # type: ignore[attr-defined, no-any-return]


def router(*replicas: str, plan: TrafficPlan | None = None) -> tuple[Router, Spy]:
    load = LoadState()
    for replica in replicas:
        put(load, replica)
    policies = build_policies(COST)
    spy = Spy(policies["prefix_affine"])
    made = Router(
        load,
        PrefixIndex(1000, 16),
        policies | {"spy": spy},
        random.Random(5),
        plan=plan or TrafficPlan(policy="spy"),
    )
    return made, spy


def put(load: LoadState, replica: str, state: ReplicaState = ReplicaState.READY) -> None:
    load.set_replica(
        id=replica, url="http://x", role=Role.MIXED, revision="v", state=state, slots=4
    )


def query(request_id: str = "q", *, text: str = "x" * 400, **changes: object) -> RouteQuery:
    segments = (("user", text),)
    facts = RequestFacts(
        model=None,
        stream=True,
        wants_usage=False,
        temperature=0.0,
        max_tokens=50,
        constraint=Constraint.FREE,
        segments=segments,
    )
    prompt = read_prompt(segments, Secret(bytes(32))).data
    made = RouteQuery(
        request_id=request_id,
        facts=facts,
        blocks=HASHER.blocks(prompt),
        prompt_size=len(prompt),
        session="s",
        label="edit",
        repetition=0.6,
        now_s=3.0,
    )
    return msgspec.structs.replace(made, **changes)


def test_policy_is_asked_with_all_that_is_known() -> None:
    """Label, temperature, repetition, estimates and what replicas hold reach the policy; the load comes after."""
    made, spy = router("a", "b")
    routed = made.route(query())
    [(_, request, draw)] = spy.asked
    assert (request.label, request.temperature, request.repetition) == ("edit", 0.0, 0.6)
    assert (request.output_tokens_expected, request.prompt_tokens) == (50, routed.prompt_tokens)
    assert [replica.in_flight for replica in listed(routed.seen).replicas] == [0, 0]
    assert 0.0 <= draw < 1.0
    assert routed.replica is not None
    assert routed.admission is not None
    assert (routed.admission.batch, made.load.in_flight) == (1, 1)


def test_sequence_counts_decisions() -> None:
    """Round robin sees every decision, so it takes turns."""
    made, _ = router("a", "b", plan=TrafficPlan(policy="round_robin"))
    chosen = [made.route(query(f"q{n}")).decision for n in range(4)]
    assert [decision.sequence for decision in chosen] == [1, 2, 3, 4]
    assert len({decision.replica for decision in chosen[:2]}) == 2
    assert [d.replica for d in chosen[:2]] == [d.replica for d in chosen[2:]]


def test_admitted_prefill_is_what_is_not_cached() -> None:
    """Tokens that the chosen replica holds are no work."""
    made, _ = router("a")
    first = made.route(query("q1"))
    made.dispatched(first)
    made.finished(first, captured=0, delivered=0, output_tokens=7)
    second = made.route(query("q2"))
    [view] = made.load.view(0.0).replicas
    held = second.decision.predicted_cached_tokens
    assert held > 90
    assert view.prefill_tokens_outstanding == second.prompt_tokens - held


def test_captured_is_read_again_at_dispatch() -> None:
    """What was displaced between decision and dispatch is not promised any more."""
    made, _ = router("a")
    first = made.route(query("q1"))
    made.dispatched(first)
    made.finished(first, captured=0, delivered=None, output_tokens=None)
    second = made.route(query("q2"))
    made.forget("a")
    assert (second.decision.predicted_cached_tokens > 90, made.dispatched(second)) == (True, 0)


def test_slice_meets_the_candidate_and_the_rest_does_not() -> None:
    """Side by side, a slice of sessions goes to the candidate's replicas, all others stay off them."""
    plan = TrafficPlan(
        policy="round_robin", candidate=msgspec.structs.replace(CANDIDATE, share=0.5)
    )
    made, _ = router("a", "b", plan=plan)
    met = [made.route(query(f"q{n}", session=f"s{n}")) for n in range(40)]
    where = {(routed.exposure.arm, routed.decision.replica) for routed in met}
    assert where == {(Arm.CANDIDATE, "b"), (Arm.BASELINE, "a")}
    assert {routed.exposure.block for routed in met} == {0}


def test_service_comes_before_proof() -> None:
    """With the candidate's replicas away, its slice is served by others, outside the comparison."""
    made, _ = router("a", "b", plan=TrafficPlan(policy="round_robin", candidate=CANDIDATE))
    put(made.load, "b", ReplicaState.RESTARTING)
    routed = made.route(query())
    exposure = routed.exposure
    assert (routed.decision.replica, exposure.arm, exposure.block, exposure.lever) == (
        "a",
        Arm.BASELINE,
        None,
        None,
    )


@pytest.mark.parametrize(
    ("cut", "replica"),
    [
        (Cut(Dimension.LABEL, "edit"), "b"),
        (Cut(Dimension.TEMPERATURE, "0"), "b"),
        (Cut(Dimension.CONSTRAINT, "free"), "b"),
        (Cut(Dimension.REPETITION, "0.5-0.75"), "b"),
        (Cut(Dimension.INPUT_TOKENS, "0-256"), "b"),
        (Cut(Dimension.LABEL, "chat"), "a"),
        (Cut(Dimension.TEMPERATURE, "sampled"), "a"),
    ],
)
def test_adopted_lever_takes_the_cuts_that_are_known_beforehand(cut: Cut, replica: str) -> None:
    """Requests of a kept cut prefer the lever's replicas, all others stay off them."""
    plan = TrafficPlan(
        policy="least_loaded",
        preferences=(Preference(lever="speculation", cuts=(cut,), replicas=("b",)),),
    )
    made, _ = router("a", "b", plan=plan)
    assert made.route(query()).decision.replica == replica


def test_plan_is_swapped_between_requests_not_within_one() -> None:
    """A request follows the plan that it met; the next one follows the new plan."""
    made, spy = router("a", "b")
    made.route(query("q1"))
    made.plan = TrafficPlan(policy="round_robin")
    policy = made.route(query("q2")).decision.policy
    assert (len(spy.asked), policy) == (1, "round_robin")


def test_reroute_leaves_the_failed_replica_and_its_count() -> None:
    """The request is counted once, on its new replica, and its old place in the index is free."""
    made, _ = router("a", "b")
    routed = made.route(query())
    assert routed.replica is not None
    made.dispatched(routed)
    again = made.reroute(routed, may_repeat=False)
    assert again.replica is not None
    assert {routed.replica.id, again.replica.id} == {"a", "b"}
    assert (made.load.in_flight, again.exposure.block) == (1, None)
    made.finished(again, captured=None, delivered=None, output_tokens=None)
    assert [replica.in_flight for replica in made.load.view(0.0).replicas] == [0, 0]


@pytest.mark.parametrize(("may_repeat", "replica"), [(True, "a"), (False, None)])
def test_reroute_repeats_the_only_replica_if_it_may(may_repeat: bool, replica: str | None) -> None:
    """With no other replica, a reachable one may be asked again; an unreachable one may not."""
    made, _ = router("a")
    routed = made.route(query())
    made.dispatched(routed)
    again = made.reroute(routed, may_repeat=may_repeat)
    assert (again.decision.replica, made.load.in_flight) == (replica, int(replica is not None))


def test_nobody_ready_is_a_decision_too() -> None:
    """Without a replica there is a decision with its reason, and nothing is counted."""
    made, _ = router(plan=TrafficPlan(policy="round_robin"))
    routed = made.route(query())
    assert (routed.replica, routed.admission, made.load.in_flight) == (None, None, 0)
    assert routed.decision.reason is RouteReason.NONE_READY


def test_broken_promises_make_the_index_distrust_a_replica() -> None:
    """What engines deliver is held against what was promised at dispatch."""
    made, _ = router("a")
    for number in range(25):
        routed = made.route(query(f"q{number}"))
        captured = made.dispatched(routed)
        made.finished(routed, captured=captured, delivered=0, output_tokens=None)
    assert made.route(query("last")).decision.predicted_cached_tokens == 0


def test_expected_output_follows_each_label_and_stays_bounded() -> None:
    """Edits are expected to be as long as edits were; labels that clients invent cannot fill the memory."""
    expectation = OutputExpectation()
    for _ in range(80):
        expectation.learn("edit", 30)
        expectation.learn("chat", 200)
    assert (expectation.tokens("edit", None), expectation.tokens("chat", None)) == (30, 200)
    assert (expectation.tokens("chat", 50), expectation.tokens("new", None)) == (50, 128)
    for number in range(3 * LABELS_MAX):
        expectation.learn(f"label {number}", 9)
    assert len(expectation._means) == LABELS_MAX
    assert expectation.tokens("edit", None) == 128


def test_request_rerouted_within_its_arm_is_not_compared() -> None:
    """Another replica of the same arm serves it, with the arm noted, but its latency counts for no block."""
    candidate = msgspec.structs.replace(CANDIDATE, replicas=("b", "c"))
    made, _ = router("a", "b", "c", plan=TrafficPlan(policy="round_robin", candidate=candidate))
    routed = made.route(query())
    made.dispatched(routed)
    again = made.reroute(routed, may_repeat=False)
    assert {routed.decision.replica, again.decision.replica} == {"b", "c"}
    assert (routed.exposure.block, again.exposure.block) == (0, None)
    assert (again.exposure.arm, again.exposure.lever) == (Arm.CANDIDATE, "speculation")


@pytest.mark.parametrize("ends", ["served", "rerouted"])
def test_slot_of_a_request_that_ended_is_free_again(ends: str) -> None:
    """Requests one after the other live in one slot of the index, however they ended."""
    made, _ = router("a", "b", plan=TrafficPlan(policy="round_robin"))
    for replica in ("a", "b"):
        made.index.set_slots(replica, 1)
    for number in range(6):
        routed = made.route(query(f"q{number}"))
        captured = made.dispatched(routed)
        if ends == "rerouted":
            routed = made.reroute(routed, may_repeat=False)
            captured = made.dispatched(routed)
        made.finished(routed, captured=captured, delivered=None, output_tokens=None)
    assert made.index.stats().blocks == 2 * len(query().blocks)
