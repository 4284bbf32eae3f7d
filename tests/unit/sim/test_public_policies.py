"""Public routing rules against cases worked out by hand with their documented thresholds."""

import pytest
import xxhash
from routing_kit import fleet, replica, request

from trimtab.core.decision import FleetView, RouteReason, RouteRequest
from trimtab.core.types import ReplicaState
from trimtab.sim.public_policies import (
    PUBLIC,
    CacheTree,
    OverlapCost,
    PowerOfTwo,
    SessionHash,
)


def busy(*in_flight: int) -> FleetView:
    """Replicas a, b, c, ... with so many requests running."""
    return fleet(*(replica(chr(97 + at), running=count) for at, count in enumerate(in_flight)))


@pytest.mark.parametrize(
    ("draw", "expected"),
    [
        (0.0, "b"),  # the pair a, b
        (0.2, "a"),  # a, c
        (0.4, "b"),  # b, a
        (0.6, "b"),  # b, c
        (0.7, "a"),  # c, a
        (0.9, "b"),  # c, b
    ],
)
def test_power_of_two_takes_the_less_busy_of_the_drawn_pair(draw: float, expected: str) -> None:
    """Six ordered pairs of three replicas share the unit interval; c, the busiest, is never taken."""
    assert PowerOfTwo().decide(busy(3, 1, 9), request(), draw).replica == expected


def test_power_of_two_counts_waiting_requests_as_busy() -> None:
    """A queue is load too."""
    view = fleet(replica("a", running=1, waiting=5), replica("b", running=4))
    assert PowerOfTwo().decide(view, request(), 0.0).replica == "b"


@pytest.mark.parametrize(
    ("most", "expected"),
    [
        (64, "a"),  # a gap of 64 is no more than 64
        (65, "b"),
    ],
)
def test_cache_tree_keeps_to_the_prefix_up_to_a_gap_of_64_requests(
    most: int, expected: str
) -> None:
    """Replica a holds the prompt, b is idle: the gap decides at 64 requests."""
    asked = request(prompt=1000, held={"a": 900})
    assert CacheTree().decide(busy(most, 0), asked, 0.0).replica == expected


@pytest.mark.parametrize(
    ("most", "least", "expected"),
    [
        (300, 200, "a"),  # a factor of 1.5 is no more than 1.5
        (301, 200, "b"),
    ],
)
def test_cache_tree_keeps_to_the_prefix_up_to_a_factor_of_one_and_a_half(
    most: int, least: int, expected: str
) -> None:
    """The gap is beyond 64 in both; then the ratio decides."""
    asked = request(prompt=1000, held={"a": 900})
    assert CacheTree().decide(busy(most, least), asked, 0.0).replica == expected


@pytest.mark.parametrize(
    ("held", "expected"),
    [
        (300, "b"),  # exactly 0.3 of the prompt is not more than 0.3
        (301, "a"),
    ],
)
def test_cache_tree_ignores_a_match_of_up_to_three_tenths_of_the_prompt(
    held: int, expected: str
) -> None:
    """Below the threshold the emptier replica gets it."""
    asked = request(prompt=1000, held={"a": held})
    assert CacheTree().decide(busy(9, 3), asked, 0.0).replica == expected


def test_cache_tree_takes_the_less_busy_of_equal_matches() -> None:
    """Two replicas hold the same."""
    asked = request(prompt=1000, held={"a": 800, "b": 800})
    assert CacheTree().decide(busy(9, 3, 0), asked, 0.0).replica == "b"


@pytest.mark.parametrize(
    ("weight", "expected"),
    [
        # Of a 400 + 200 to prefill and 600 in use make 1,200; of b 1,000 and 100 make 1,100.
        (1.0, "b"),
        # Of a twice 600 and 600 make 1,800; of b twice 1,000 and 100 make 2,100.
        (2.0, "a"),
    ],
)
def test_overlap_cost_weighs_prompt_to_compute_against_work_in_hand(
    weight: float, expected: str
) -> None:
    """Cost = weight x tokens to prefill + tokens in use; a holds 600 of 1,000 and has work, b little of both."""
    view = fleet(replica("a", prefill=200, decode=400), replica("b", prefill=0, decode=100))
    asked = request(prompt=1000, held={"a": 600})
    assert OverlapCost(weight=weight).decide(view, asked, 0.0).replica == expected


def test_session_hash_keeps_a_session_on_the_replica_of_its_lowest_place() -> None:
    """Rendezvous hashing; while loads are even nothing else decides, and the order of replicas does not matter."""
    for name in ("s1", "s2", "s3", "s4"):
        asked = request(session=name)
        view = busy(1, 1, 1)
        home = SessionHash().decide(view, asked, 0.0).replica
        turned = FleetView(at_s=1.0, replicas=view.replicas[::-1])
        assert SessionHash().decide(turned, asked, 0.9).replica == home
        places = view.columns.session_places(xxhash.xxh3_64_intdigest(name.encode()))
        assert home == view.columns.ids[int(places.argmin())]


def test_session_hash_spreads_sessions_over_all_replicas() -> None:
    """Hundreds of sessions, none of the four replicas left out or given half of them."""
    view = busy(0, 0, 0, 0)
    homes = [
        SessionHash().decide(view, request(session=f"s{at}"), 0.0).replica for at in range(400)
    ]
    shares = {name: homes.count(name) / 400 for name in "abcd"}
    assert set(homes) == set("abcd")
    assert max(shares.values()) < 0.35


def test_session_hash_goes_on_to_the_next_replica_over_its_bound() -> None:
    """Bound 1.25 x (total + 1) / replicas: with 3 + 1 requests on two replicas it is 2.5, so a replica of 3 is full."""
    asked = next(
        one
        for at in range(50)
        if SessionHash().decide(busy(0, 0), one := request(session=f"s{at}"), 0.0).replica == "a"
    )
    assert SessionHash().decide(busy(1, 2), asked, 0.0).replica == "a"
    assert SessionHash().decide(busy(3, 0), asked, 0.0).replica == "b"


def test_adding_a_replica_moves_only_the_sessions_that_it_takes() -> None:
    """What consistent hashing is for."""
    for at in range(100):
        asked = request(session=f"s{at}")
        before = SessionHash().decide(busy(0, 0, 0), asked, 0.0).replica
        after = SessionHash().decide(busy(0, 0, 0, 0), asked, 0.0).replica
        assert after in {before, "d"}


@pytest.mark.parametrize("name", sorted(PUBLIC))
def test_every_public_rule_chooses_among_what_is_ready_and_allowed(name: str) -> None:
    """A replica that starts, or that another arm uses, is never taken; with none there is a reason."""
    view = fleet(replica("a", state=ReplicaState.STARTING), replica("b", running=500), replica("c"))
    policy = PUBLIC[name]()

    def chosen(asked: RouteRequest, draw: float = 0.3) -> str | None:
        return policy.decide(view, asked, draw).replica

    best = {"a": 1000, "c": 1000}
    assert chosen(request(held=best, allowed=("a", "b"))) == "b"
    assert {chosen(request(held=best), draw / 10) for draw in range(10)} == {"c"}
    none = policy.decide(view, request(allowed=("a",)), 0.3)
    assert (none.replica, none.reason) == (None, RouteReason.NONE_READY)


@pytest.mark.parametrize("name", sorted(PUBLIC))
def test_every_public_rule_is_a_function_of_what_it_sees(name: str) -> None:
    """Asked twice, it says the same, and the fleet is as before."""
    view, asked = busy(3, 1, 2), request(held={"b": 500})
    before = [one.in_flight for one in view.replicas]
    first, second = (PUBLIC[name]().decide(view, asked, 0.5) for _ in range(2))
    assert first == second
    assert before == [one.in_flight for one in view.replicas]
