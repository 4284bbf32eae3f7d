"""Load bound first, by what engines tell; hot prefixes; distrust of a class of keys: through the live router."""

import pytest
from router_kit import PROMPT, hold, query, router

from trimtab.core.decision import RouteReason
from trimtab.core.kv_blocks import KvBatch, KvCleared, KvRemoved, KvStored
from trimtab.core.traffic import TrafficPlan
from trimtab.core.types import ReplicaState, Role
from trimtab.policies.router import Explained, Routed, RouteQuery, Router, explained


def asked(made: Router, what: RouteQuery) -> tuple[Routed, Explained]:
    routed = made.route(what)
    return routed, explained(routed)


def test_saturated_holder_loses_to_the_next_best() -> None:
    """B2: A holds 90% with KV at 0.97 and nine waiting, B 60% at 0.40, C none at 0.35: B, because A is over."""
    made = router("a", "b", "c")
    hold(made, "a", PROMPT[:900])
    hold(made, "b", PROMPT[:600])
    made.load.seen("a", now_s=1.0, kv_used_share=0.97, running=8, waiting=9)
    made.load.seen("b", now_s=1.0, kv_used_share=0.40, running=3, waiting=0)
    made.load.seen("c", now_s=1.0, kv_used_share=0.35, running=3, waiting=0)
    routed, why = asked(made, query("q"))
    assert routed.decision.replica == "b"
    assert why.decision.reason is RouteReason.PREFIX_OVER_BOUND_NEXT_BEST
    assert [one.excluded is not None for one in why.decision.candidates] == [True, False, False]


def test_balanced_fleet_sends_to_the_longest_prefix() -> None:
    """B2: with equal loads A, which holds 90%."""
    made = router("a", "b", "c")
    hold(made, "a", PROMPT[:900])
    hold(made, "b", PROMPT[:600])
    for name in "abc":
        made.load.seen(name, now_s=1.0, kv_used_share=0.4, running=3, waiting=0)
    assert made.route(query("q")).decision.replica == "a"


def test_miss_goes_to_the_idle_replica_not_to_the_smaller_cache() -> None:
    """B2: nobody holds anything of it; A holds little of others but thirty wait there, B is idle with much: B."""
    made = router("a", "b")
    hold(made, "b", b"\x01" * 5000)
    made.load.seen("a", now_s=1.0, kv_used_share=0.5, running=8, waiting=30)
    made.load.seen("b", now_s=1.0, kv_used_share=0.0, running=0, waiting=0)
    assert made.route(query("q")).decision.replica == "b"


def test_four_gateways_see_the_whole_imbalance() -> None:
    """B2: each of four gateways has a gap of 20 of its own, together 80: each of them sees 80, and moves off."""
    chosen = []
    for gateway in range(4):
        made = router("a", "b")
        hold(made, "a", PROMPT[:900])
        for number in range(20):
            made.load.admitted(f"{gateway}-{number}", "a", prefill_tokens=0, decode_tokens=50)
            made.load.prefill_done(f"{gateway}-{number}")
        made.load.seen("a", now_s=1.0, kv_used_share=0.5, running=8, waiting=72)
        made.load.seen("b", now_s=1.0, kv_used_share=0.1, running=0, waiting=0)
        seen = {one.id: one.in_flight for one in made.load.view(1.0).replicas}
        assert seen == {"a": 80, "b": 0}
        assert made.load.own_in_flight("a") == 20
        chosen.append(made.route(query("q")).decision.replica)
    assert chosen == ["b"] * 4


def test_others_stay_counted_until_the_next_probe_and_go_with_a_restart() -> None:
    """A failed probe tells nothing, so what was read stays: stale is not idle. An engine that starts anew drops it."""
    made = router("a")
    made.load.seen("a", now_s=1.0, kv_used_share=0.5, running=4, waiting=2)
    made.load.seen("a", now_s=9.0, kv_used_share=None)
    [stale] = made.load.view(9.0).replicas
    assert (stale.in_flight, stale.kv_used_share) == (6, None)
    made.load.set_replica(
        id="a",
        url="http://a",
        role=Role.MIXED,
        revision="v",
        state=ReplicaState.READY,
        slots=8,
        started_at_s=5.0,
    )
    assert made.load.view(9.0).replicas[0].in_flight == 0


def test_hot_prefix_gets_a_second_holder_before_the_first_is_over_its_bound() -> None:
    """Eight requests of one beginning run on its only holder, which is not over: the ninth goes elsewhere."""
    made = router("a", "b", "c", slots=64)
    hold(made, "a", PROMPT[:800])
    reasons = []
    for number in range(10):
        prompt = PROMPT[:800] + bytes([number]) * 200
        routed = made.route(query(f"q{number}", prompt, session=f"s{number}"))
        made.dispatched(routed)
        made.load.prefill_done(f"q{number}")
        reasons.append((routed.decision.replica, routed.decision.reason))
        assert not [one for one in explained(routed).decision.candidates if one.excluded]
    replicated = [
        at for at, (_, why) in enumerate(reasons) if why is RouteReason.HOT_PREFIX_REPLICATED
    ]
    assert replicated == [8]
    assert [where for where, _ in reasons[:8]] == ["a"] * 8
    assert reasons[8][0] in ("b", "c")


def test_tenants_get_no_credit_for_each_others_prefixes() -> None:
    """B3: the same prompt of another salt is another prompt, in the index and in the session's home."""
    made = router("a", "b")
    hold(made, "a", PROMPT, salt="one")
    mine = made.route(query("q1", salt="one"))
    other = made.route(query("q2", salt="two"))
    assert mine.decision.predicted_cached_tokens > 900
    assert (other.decision.predicted_cached_tokens, other.decision.held_best_tokens) == (0, 0)


@pytest.mark.parametrize(("promised", "delivered"), [(False, 700), (True, 0)])
def test_class_of_keys_that_router_and_engine_make_differently_loses_affinity(
    promised: bool, delivered: int
) -> None:
    """B3: salted requests are never promised what the engine reuses, or promised what it has not: affinity is off.

    Plain requests keep theirs, and the reason claims nothing about caching.
    """
    made = router("a", "b")
    hold(made, "b", PROMPT)
    for number in range(25):
        salted = query(f"q{number}", PROMPT[: -1 - number], salt="t" if promised else f"t{number}")
        if promised:
            hold(made, "a", PROMPT, salt="t")
        routed = made.route(salted)
        captured = made.dispatched(routed)
        made.finished(routed, captured=captured, delivered=delivered, output_tokens=9)
    hold(made, "a", PROMPT, salt="t")
    routed = made.route(query("last", salt="t"))
    assert made.key_trust.mismatched("salted")
    assert routed.decision.reason is RouteReason.ROUTER_KEY_MISMATCH
    assert routed.decision.predicted_cached_tokens == 0
    assert made.route(query("plain")).decision.reason is RouteReason.LONGEST_PREFIX_WITHIN_BOUND


def test_class_of_keys_is_trusted_again_when_its_promises_are_kept() -> None:
    """The engine was fixed: kept promises bring affinity back."""
    made = router("a")
    for number in range(60):
        made.key_trust.learn(
            "salted",
            promised_tokens=500,
            delivered_tokens=0 if number < 25 else 500,
            prompt_tokens=1000,
        )
        if number == 24:
            assert made.key_trust.mismatched("salted")
    assert not made.key_trust.mismatched("salted")


def test_preview_says_what_route_does_and_changes_nothing() -> None:
    """The next request is decided as if nobody had asked, and the answer is that decision."""
    made, alone = router("a", "b", "c"), router("a", "b", "c")
    for one in (made, alone):
        hold(one, "b", PROMPT[:700])
        one.plan = TrafficPlan(policy="round_robin")
    before = [made.preview(query("debug"))[1].decision for _ in range(3)]
    assert before[0] == before[1] == before[2]
    mine = [made.route(query(f"q{number}")).decision for number in range(4)]
    other = [alone.route(query(f"q{number}")).decision for number in range(4)]
    assert mine == other
    assert before[0].replica == mine[0].replica
    assert made.index.stats() == alone.index.stats()
    assert made.load.view(2.0) == alone.load.view(2.0)


IDS = tuple(range(40))


def stored(first: int, ids: tuple[int, ...], parent: int | None = None) -> KvStored:
    count = len(ids) // 4
    return KvStored(
        blocks=tuple(range(first, first + count)),
        parent=parent,
        tokens=ids,
        block_tokens=4,
        extras=(b"",) * count,
    )


def test_kv_events_are_believed_over_the_index_for_token_ids() -> None:
    """The index believes in a; a's own events say that it holds nothing and b says that it holds 32 tokens."""
    made = router("a", "b")
    hold(made, "a", PROMPT[:400])
    made.heard("a", KvBatch(sequence=0, at_s=0.0, rank=0, events=()))
    made.heard("b", KvBatch(sequence=0, at_s=0.0, rank=0, events=(stored(1, IDS[:32]),)))
    routed = made.route(query("q", PROMPT[:400], ids=IDS))
    assert (routed.decision.replica, routed.decision.predicted_cached_tokens) == ("b", 32)
    assert made.kv_exact() == ("a", "b")


def test_kv_events_of_a_server_that_is_not_in_the_fleet_are_not_kept() -> None:
    """Its publisher goes on when it has left."""
    made = router("a")
    made.heard("gone", KvBatch(sequence=0, at_s=0.0, rank=0, events=(stored(1, IDS[:32]),)))
    assert (made.kv_exact(), made.kv.blocks, made.kv.places) == ((), 0, 0)


def test_engine_that_says_it_cleared_its_cache_is_forgotten() -> None:
    """All blocks cleared: the index promises nothing of that replica either."""
    made = router("a")
    hold(made, "a", PROMPT)
    assert made.route(query("q1")).decision.predicted_cached_tokens > 900
    made.heard("a", KvBatch(sequence=5, at_s=0.0, rank=0, events=(KvCleared(),)))
    assert made.route(query("q2")).decision.predicted_cached_tokens == 0


def test_evictions_of_the_engine_bound_what_the_index_believes() -> None:
    """The engine says that it holds 16 tokens in all, so the index believes in no more than about as many bytes."""
    made = router("a")
    hold(made, "a", PROMPT)
    made.heard("a", KvBatch(sequence=0, at_s=0.0, rank=0, events=(stored(1, IDS[:32]),)))
    gone = KvRemoved(blocks=(5, 6, 7, 8))
    made.heard("a", KvBatch(sequence=1, at_s=0.0, rank=0, events=(gone,)))
    assert made.index.stats().blocks == 2
