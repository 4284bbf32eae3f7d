"""Where requests go: in turn, to the least loaded, or to their prefix within the load bound."""

import pytest
from routing_kit import COST, fleet, replica, request

from trimtab.core.decision import Exclusion, FleetView, RouteReason, RouteRequest, RoutingDecision
from trimtab.core.types import ReplicaState
from trimtab.policies.routing import LeastLoaded, PrefixAffine, RoundRobin, build_policies
from trimtab.policies.routing_many import load_tokens, wait_ms

AFFINE = PrefixAffine(cost=COST)


def affine(view: FleetView, asked: RouteRequest) -> RoutingDecision:
    return AFFINE.decide(view, asked, 0.0)


def test_round_robin_takes_each_in_turn() -> None:
    """The turn is the decision's number, so that the same view gives the same answer."""
    replicas = (replica("b"), replica("a"))
    chosen = [
        RoundRobin().decide(fleet(*replicas, sequence=turn), request(), 0.0).replica
        for turn in range(4)
    ]
    assert chosen == ["a", "b", "a", "b"]


def test_round_robin_keeps_to_the_preferred_that_are_ready() -> None:
    """A lever that was adopted for this request holds under every policy; else all take turns."""
    asked = request(preferred=("b",))
    view = fleet(replica("a"), replica("b"))
    assert RoundRobin().decide(view, asked, 0.0).replica == "b"
    down = fleet(replica("a"), replica("b", state=ReplicaState.DRAINING), sequence=1)
    assert RoundRobin().decide(down, asked, 0.0).replica == "a"


def test_least_loaded_counts_tokens_not_requests() -> None:
    """A few long requests weigh more than many short ones."""
    view = fleet(replica("a", prefill=5000, running=1), replica("b", prefill=800, running=8))
    decision = LeastLoaded(cost=COST).decide(view, request(), 0.0)
    assert decision.replica == "b"
    assert decision.reason is RouteReason.LEAST_LOADED


def test_load_turns_output_tokens_into_prompt_tokens() -> None:
    """One output token costs a full replica step_ms(slots) / slots."""
    assert (
        load_tokens(fleet(replica("a", prefill=100, decode=40)).columns, COST)[0] == 100 + 0.75 * 40
    )


def test_wait_counts_prefill_and_the_time_until_a_slot_is_free() -> None:
    """With 8 slots busy and 80 tokens left in all, a slot is free every 10 * 60 / 8 ms."""
    assert wait_ms(fleet(replica("a", prefill=100, running=7)).columns, COST)[0] == 1000.0
    full = replica("a", prefill=0, decode=80, running=8)
    assert wait_ms(fleet(full).columns, COST)[0] == 75.0
    queued = replica("a", prefill=0, decode=100, running=8, waiting=2)
    assert wait_ms(fleet(queued).columns, COST)[0] == 225.0


def test_longest_prefix_wins_among_balanced_replicas() -> None:
    """B2, balanced: the replica with 90% of the prompt, although the others hold some."""
    view = fleet(*(replica(name, prefill=300, running=2) for name in "abc"))
    decision = affine(view, request(held={"a": 900, "b": 600}))
    assert decision.replica == "a"
    assert decision.reason is RouteReason.LONGEST_PREFIX_WITHIN_BOUND
    assert decision.predicted_cached_tokens == 900


def test_saturated_replica_loses_to_the_next_best_prefix() -> None:
    """B2: a holds 90% but its KV is at 0.97 and nine wait; b holds 60%; c is emptiest but holds nothing."""
    view = fleet(
        replica("a", prefill=9000, decode=800, running=8, waiting=9, kv=0.97),
        replica("b", prefill=500, running=2, kv=0.40),
        replica("c", prefill=400, running=2, kv=0.35),
    )
    decision = affine(view, request(held={"a": 900, "b": 600}))
    assert decision.replica == "b"
    assert decision.reason is RouteReason.PREFIX_OVER_BOUND_NEXT_BEST
    assert decision.candidates[0].excluded is Exclusion.OVER_LOAD_BOUND


def test_kv_use_alone_puts_a_replica_over_the_bound() -> None:
    """KV share is load too: a replica near its end is over although no tokens are outstanding."""
    view = fleet(replica("a", kv=0.97), replica("b", kv=0.40), replica("c", kv=0.35))
    decision = affine(view, request(held={"a": 900, "b": 600}))
    assert decision.replica == "b"


def test_miss_goes_to_the_idle_replica_not_to_the_smallest_cache() -> None:
    """B2: no match anywhere; a's cache may be small, but thirty wait there."""
    view = fleet(replica("a", prefill=30_000, decode=1000, running=8, waiting=30), replica("b"))
    decision = affine(view, request())
    assert decision.replica == "b"
    assert decision.reason is RouteReason.LEAST_LOADED_NO_PREFIX


def test_imbalance_is_judged_by_what_the_engines_report() -> None:
    """B2: of four routers each sees a quarter of the load; with the engines' own counts the gap shows."""
    asked = request(prompt=500, output=50, held={"a": 490})
    local = fleet(replica("a", prefill=500, running=5), replica("b"))
    whole = fleet(replica("a", prefill=8000, decode=400, running=8, waiting=72), replica("b"))
    assert affine(local, request(prompt=2000, held={"a": 1990})).replica == "a"
    assert affine(whole, asked).replica == "b"


def test_prefix_that_all_hold_does_not_pull() -> None:
    """What counts is the difference in tokens to be computed: with equal heads the least loaded wins."""
    view = fleet(replica("a", prefill=600, running=1), replica("b"))
    decision = affine(view, request(held={"a": 400, "b": 400}))
    assert decision.replica == "b"


def test_shared_head_on_one_replica_gives_way_to_its_queue() -> None:
    """A system prompt of 400 tokens is worth 400 tokens of waiting, not more."""
    asked = request(prompt=1000, held={"a": 400})
    assert affine(fleet(replica("a", prefill=300, running=1), replica("b")), asked).replica == "a"
    busier = affine(fleet(replica("a", prefill=500, running=1), replica("b")), asked)
    assert busier.replica == "b"
    assert busier.reason is RouteReason.SHORTER_TIME_BEATS_PREFIX


def test_overwriting_other_prompts_counts_against_a_replica() -> None:
    """A short shared head does not pay for throwing a long chain away while another slot is empty."""
    view = fleet(replica("a"), replica("b"))
    asked = request(prompt=1000, held={"a": 300}, displaced={"a": 900, "b": 0})
    assert affine(view, asked).replica == "b"


def test_matches_below_the_shortest_are_ignored() -> None:
    """A few template tokens are no prefix."""
    view = fleet(replica("a", prefill=10, running=1), replica("b"))
    decision = affine(view, request(held={"a": 31}))
    assert decision.replica == "b"
    assert decision.reason is RouteReason.LEAST_LOADED_NO_PREFIX


def test_preferred_replica_wins_ties_and_gets_its_bonus() -> None:
    """An adopted lever draws its requests, but not at any price."""
    asked = request(preferred=("b",))
    decision = affine(fleet(replica("a"), replica("b")), asked)
    assert decision.replica == "b"
    assert decision.candidates[1].terms["preferred"] == -AFFINE.preferred_bonus_ms
    crowded = fleet(replica("a"), replica("b", prefill=1000, running=3))
    assert affine(crowded, asked).replica == "a"


@pytest.mark.parametrize("state", [s for s in ReplicaState if s is not ReplicaState.READY])
def test_only_ready_replicas_are_chosen(state: ReplicaState) -> None:
    """Whatever a replica holds, it must be ready; the others are listed with the reason."""
    view = fleet(replica("a", state=state), replica("b"))
    decision = affine(view, request(held={"a": 999}))
    assert decision.replica == "b"
    assert decision.reason is RouteReason.ONLY_ONE_READY
    assert decision.candidates[0].excluded is Exclusion.NOT_READY


def test_other_arms_replicas_are_not_chosen() -> None:
    """A request stays on the replicas of its arm."""
    decision = affine(fleet(replica("a"), replica("b")), request(held={"a": 999}, allowed=("b",)))
    assert decision.replica == "b"
    assert decision.candidates[0].excluded is Exclusion.OTHER_ARM


@pytest.mark.parametrize("name", ["round_robin", "least_loaded", "prefix_affine"])
def test_no_ready_replica_is_a_decision_too(name: str) -> None:
    """It has a reason and no replica."""
    view = fleet(replica("a", state=ReplicaState.FAILED))
    decision = build_policies(COST)[name].decide(view, request(), 0.0)
    assert decision.replica is None
    assert decision.reason is RouteReason.NONE_READY


def test_new_sessions_spread_over_equal_replicas() -> None:
    """Of 400 sessions that meet four idle replicas, each replica gets near a quarter."""
    view = fleet(*(replica(name) for name in "abcd"))
    chosen = [affine(view, request(session=f"s{number}")).replica for number in range(400)]
    counts = [chosen.count(name) for name in "abcd"]
    assert min(counts) >= 70


def test_session_of_a_tie_stays_where_it_was_put() -> None:
    """The same session gets the same replica while nothing speaks for another."""
    view = fleet(*(replica(name) for name in "abcd"))
    chosen = {affine(view, request(session="s7")).replica for _ in range(10)}
    assert len(chosen) == 1


def test_best_held_anywhere_is_reported_whatever_is_chosen() -> None:
    """So that the tokens that routing gave up can be counted."""
    view = fleet(replica("a", prefill=20_000, running=8, waiting=9), replica("b"))
    decision = affine(view, request(held={"a": 900, "b": 100}))
    assert decision.held_best_tokens == 900
    assert decision.predicted_cached_tokens == 100
