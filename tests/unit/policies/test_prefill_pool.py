"""What is known of prefill replicas and their links when a prompt's place is decided."""

import msgspec
import pytest
from router_kit import query, router

from trimtab.core.cost import CostModel
from trimtab.core.handover import (
    NO_LABELS,
    HandOverCause,
    HandOverOutcome,
    PrefillDecision,
    PrefillPlace,
    ReplicaLabels,
)
from trimtab.core.types import ReplicaState, Role
from trimtab.policies.local_prefill import PrefillRules
from trimtab.policies.prefill_pool import LinkRate, PrefillPool
from trimtab.policies.router import Router

COST = CostModel(
    prefill_base_ms=1.0,
    prefill_ms_per_token=1.0,
    step_base_ms=20.0,
    step_ms_per_stream=5.0,
    prefill_samples=10,
    step_samples=10,
    source="test",
)
TOLD = LinkRate(setup_ms=5.0, ms_per_token=0.02)
HERE, THERE = ReplicaLabels(host="here"), ReplicaLabels(host="there")


def fleet(**places: ReplicaLabels) -> Router:
    """Return a router before `d`, which decodes here, and prefill replicas at their places."""
    made = router("d")
    roles = {"d": (Role.DECODE, HERE)} | {
        name: (Role.PREFILL, labels) for name, labels in places.items()
    }
    for name, (role, labels) in roles.items():
        made.load.set_replica(
            id=name,
            url=f"http://{name}",
            role=role,
            revision="v",
            state=ReplicaState.READY,
            slots=8,
            kv_key="k",
            labels=labels,
        )
    return made


def pool(made: Router) -> PrefillPool:
    rules = PrefillRules(chunk_tokens=64, always=PrefillPlace.REMOTE)
    return PrefillPool(made.load, rules, cost=COST, told=TOLD)


def passing(made: Router) -> PrefillPool:
    """A pool whose replicas let short prompts pass, with chunks of their own of 256 tokens."""
    rules = PrefillRules(
        chunk_tokens=8, prefill_chunk_tokens=256, always=PrefillPlace.REMOTE, stall_chunk_tokens=8
    )
    return PrefillPool(made.load, rules, cost=COST, told=TOLD, passing=True)


def chosen(made: Router, asked: PrefillPool) -> PrefillDecision:
    """Route another request to the only replica that decodes, decide for it, and begin what was decided."""
    routed = made.route(query(f"q{made.load.in_flight}"))
    decision = asked.choose(routed)
    if decision.place is PrefillPlace.REMOTE:
        asked.begun(decision, routed)
    return decision


@pytest.mark.parametrize("places", [(THERE, HERE), (NO_LABELS, HERE), (THERE, NO_LABELS)])
def test_of_replicas_that_cost_the_same_the_nearest_prefills(
    places: tuple[ReplicaLabels, ReplicaLabels],
) -> None:
    """Nothing was handed over yet: labels alone tell them apart, and an unlabelled one may be near."""
    made = fleet(a=places[0], b=places[1])
    assert chosen(made, pool(made)).replica == "b"


def test_dear_link_is_avoided_by_pairs_alike() -> None:
    """What one pair across hosts took is expected of the others across hosts, before they are tried."""
    made = fleet(a=THERE, b=THERE, c=HERE)
    asked = pool(made)
    away = chosen(made, asked)
    assert away.replica == "c"
    across = PrefillDecision(
        request_id="q", place=PrefillPlace.REMOTE, replica="a", reason=away.reason
    )
    asked.moved(across, "d", tokens=1000.0, setup_ms=5.0, ms=2000.0)
    terms = {one.replica: one.terms["transfer"] for one in chosen(made, asked).others}
    assert terms["b"] == pytest.approx(terms["a"])
    assert terms["b"] > 1000 * TOLD.ms_per_token


def test_rate_of_a_pair_is_its_own_once_it_handed_over() -> None:
    """A pair that is faster than those alike is known to be."""
    made = fleet(a=HERE, b=HERE)
    asked = pool(made)
    for replica, ms in (("a", 100.0), ("b", 1.0)):
        one = PrefillDecision(
            request_id="q",
            place=PrefillPlace.REMOTE,
            replica=replica,
            reason=chosen(made, asked).reason,
        )
        for _ in range(30):
            asked.moved(one, "d", tokens=1000.0, setup_ms=5.0, ms=ms, size_bytes=1e6)
    assert chosen(made, asked).replica == "b"
    rates = {source: rate for source, _, rate in asked.links.rates()}
    assert rates["b"].bytes_per_s == pytest.approx(1e9)


def test_what_was_measured_where_prompts_are_prefilled_stands_for_it() -> None:
    """Threads of its own make a replica another one; what the decode side takes says nothing of it."""
    terms = []
    for part in (1.0, 0.25):
        made = fleet(a=HERE)
        asked = pool(made)
        asked.cost_there = msgspec.structs.replace(
            COST, prefill_ms_per_token=part * COST.prefill_ms_per_token
        )
        decision = chosen(made, asked)
        assert decision.local is not None
        assert decision.remote is not None
        terms.append((decision.local.terms["prefill"], decision.remote.terms["prefill"]))
    (here, there), (here_still, there_quicker) = terms
    assert here == here_still
    assert there_quicker < there / 2


@pytest.mark.parametrize("key", ["", "other"])
def test_replica_of_another_kv_key_never_pairs(key: str) -> None:
    """An unknown key pairs with nothing either."""
    made = fleet(a=HERE)
    made.load.set_replica(
        id="a",
        url="http://a",
        role=Role.PREFILL,
        revision="v",
        state=ReplicaState.READY,
        slots=8,
        kv_key=key,
        labels=HERE,
    )
    decision = chosen(made, pool(made))
    assert (decision.place, decision.reason.value) == (PrefillPlace.LOCAL, "kv_keys_differ")


def test_prompt_that_passes_long_ones_is_predicted_to_wait_for_a_step() -> None:
    """Until they are computed; one that is no shorter waits for them, as every prompt does where none may pass."""
    made = fleet(a=HERE)
    asked = passing(made)
    before = chosen(made, asked).remote
    for number in range(2):
        asked.computing("a", f"long{number}", 100_000)
    beside = chosen(made, asked).remote
    for number in range(2):
        asked.computed("a", f"long{number}")
    after = chosen(made, asked).remote
    assert before is not None
    assert beside is not None
    assert after is not None
    assert (before.terms["queue"], after.terms["queue"]) == (0.0, 0.0)
    assert 0.0 < beside.terms["queue"] < 2.0 * 256 * COST.prefill_ms_per_token


def test_prefill_replica_costs_what_its_own_chunk_does() -> None:
    """A larger chunk reads the weights less often for a prompt than the decode side, whose costs were measured."""
    made = fleet(a=HERE)
    alike, other = pool(made), passing(made)
    one, two = chosen(made, alike).remote, chosen(made, other).remote
    assert one is not None
    assert two is not None
    assert two.terms["prefill"] < one.terms["prefill"]


def test_arrivals_of_late_are_charged_to_the_replica_they_came_to() -> None:
    """First nobody comes, then one a second, of which two replicas bear a half each; what left has none."""
    made = fleet(a=HERE)
    asked = pool(made)

    def coming(number: int) -> tuple[float, float]:
        asked_for = msgspec.structs.replace(query(f"q{number}"), now_s=float(number))
        routed = made.route(asked_for)
        decision = asked.choose(routed)
        asked.begun(decision, routed)
        assert decision.remote is not None
        return decision.remote.terms["coming"], decision.remote.terms["prefill"]

    first, later = [coming(number) for number in range(31)][::30]
    assert first[0] == 0.0
    assert later[0] == pytest.approx(0.5 * later[1] ** 2 / 2000.0)
    asked.forget("a")
    assert coming(31)[0] == 0.0


def test_prompt_that_was_only_predicted_to_travel_is_no_arrival_elsewhere() -> None:
    """What is kept whole to be compared with, or cannot travel, never comes to a prefill replica."""
    made = fleet(a=HERE)
    asked, looked = pool(made), None
    for _ in range(20):
        looked = asked.choose(made.route(query(f"q{made.load.in_flight}"))).remote
    assert looked is not None
    assert looked.terms["coming"] == 0.0


def test_what_a_replica_was_asked_in_another_role_is_no_prompt_sent_ahead() -> None:
    """It decoded until now: whole requests that came to it do not come to it any more."""
    made = fleet(a=HERE)
    asked = pool(made)
    for role in (Role.DECODE, Role.PREFILL):
        made.load.set_replica(
            id="a",
            url="http://a",
            role=role,
            revision="v",
            state=ReplicaState.READY,
            slots=8,
            kv_key="k",
            labels=HERE,
        )
        for _ in range(20):
            looked = asked.choose(made.route(query(f"q{made.load.in_flight}")))
    assert looked.remote is not None
    assert looked.remote.terms["coming"] == 0.0


def test_hand_over_that_ends_after_its_replica_left_is_kept_nowhere() -> None:
    """An engine's page may be read late: nobody would drop what is learned of a name that is gone."""
    made = fleet(a=HERE)
    asked = pool(made)
    decision = chosen(made, asked)
    made.load.remove_replica("a")
    asked.forget("a")
    asked.moved(decision, "d", tokens=1000.0, setup_ms=5.0, ms=100.0)
    asked.judged(
        decision,
        "d",
        0.0,
        outcome=HandOverOutcome.FAILED,
        cause=HandOverCause.SHORTFALL,
        has_parcel=True,
    )
    assert decision.replica == "a"
    assert asked.links.rates() == ()
    assert asked.breakers._failures == {}
