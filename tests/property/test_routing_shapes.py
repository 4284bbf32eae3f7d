"""The law of routing has two shapes, for few replicas and for many: they choose alike."""

from hypothesis import given
from hypothesis import strategies as st
from routing_kit import COST, fleet, replica, request

from trimtab.core.decision import FleetView, RouteRequest
from trimtab.core.types import ReplicaState
from trimtab.policies.routing import PrefixAffine
from trimtab.policies.routing_few import Few, least_loaded_few, prefix_affine_few
from trimtab.policies.routing_many import Many, least_loaded_many, prefix_affine_many

NAMES = tuple(f"r{number}" for number in range(6))
TOKENS = st.integers(0, 4000)
HELD = st.dictionaries(st.sampled_from(NAMES), TOKENS)
SOME = st.lists(st.sampled_from(NAMES), unique=True).map(tuple)
REPLICAS = st.tuples(
    TOKENS,
    TOKENS,
    st.integers(0, 8),
    st.integers(0, 9),
    st.none() | st.integers(0, 100),
    st.sampled_from((ReplicaState.READY, ReplicaState.READY, ReplicaState.FAILED)),
    st.sampled_from((8, 8, 8, 1, 4)),
)


@st.composite
def fleets(draw: st.DrawFn) -> FleetView:
    found = []
    for name in draw(st.lists(st.sampled_from(NAMES), min_size=1, unique=True)):
        prefill, decode, running, waiting, kv, state, slots = draw(REPLICAS)
        found.append(
            replica(
                name,
                prefill=prefill,
                decode=decode,
                running=running,
                waiting=waiting,
                kv=None if kv is None else kv / 100,
                state=state,
                slots=slots,
            )
        )
    return fleet(*found)


@st.composite
def requests(draw: st.DrawFn) -> RouteRequest:
    return request(
        prompt=draw(st.integers(1, 4000)),
        output=draw(st.integers(0, 500)),
        held=draw(HELD),
        displaced=draw(HELD),
        session=draw(st.sampled_from(("s1", "s2", "s3"))),
        allowed=draw(st.none() | SOME),
        preferred=draw(SOME),
        hot=draw(st.sampled_from((0, 0, 300, 1000))),
    )


@given(fleets(), requests())
def test_few_and_many_choose_alike(view: FleetView, asked: RouteRequest) -> None:
    """The same winner for the same reason, with the same replicas over their bound."""
    bounds = PrefixAffine(cost=COST).bounds
    few = prefix_affine_few(Few(view, asked), bounds)
    many = prefix_affine_many(Many(view, asked), bounds)
    assert (few.winner, few.eligible) == (many.winner, many.eligible)
    if few.eligible:
        able = Few(view, asked).able
        assert few.reason is many.reason
        assert [few.is_over(at, 0.0, 0.0) for at in able] == [
            many.is_over(at, 0.0, 0.0) for at in able
        ]


@given(fleets(), requests())
def test_least_loaded_is_the_same_in_both_shapes(view: FleetView, asked: RouteRequest) -> None:
    """The least load wins, ties included."""
    few = least_loaded_few(Few(view, asked), COST)
    many = least_loaded_many(Many(view, asked), COST)
    assert (few.winner, few.eligible) == (many.winner, many.eligible)
