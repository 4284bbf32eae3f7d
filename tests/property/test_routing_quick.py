"""The quick way to decide in a large fleet chooses what pricing every replica chooses."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from routing_kit import COST, fleet, replica, request

from trimtab.core.decision import FleetView, RouteRequest, with_holdings
from trimtab.core.holdings import HeldColumns
from trimtab.core.types import ReplicaState
from trimtab.policies.routing import PrefixAffine
from trimtab.policies.routing_few import Few, prefix_affine_few
from trimtab.policies.routing_many import Many, prefix_affine_many
from trimtab.policies.routing_quick import prefix_affine_quick

COUNT = 14
NAMES = tuple(f"r{number:02d}" for number in range(COUNT))
BOUNDS = PrefixAffine(cost=COST).bounds
TOKENS = st.sampled_from((0, 0, 0, 7, 500, 4000)) | st.integers(0, 4000)
STATES = st.sampled_from((ReplicaState.READY,) * 9 + (ReplicaState.FAILED,))
REPLICAS = st.tuples(TOKENS, TOKENS, st.integers(0, 9), st.sampled_from((0, 0, 2)), STATES)


@st.composite
def fleets(draw: st.DrawFn) -> FleetView:
    names = NAMES[: draw(st.integers(1, COUNT))]
    slots = draw(st.sampled_from((8, 8, 1)))
    kv = draw(st.sampled_from((None, None, 0.4, 0.95)))
    rows = draw(st.lists(REPLICAS, min_size=len(names), max_size=len(names)))
    odd = draw(st.booleans())
    return fleet(
        *(
            replica(
                name,
                prefill=prefill,
                decode=decode,
                running=running,
                waiting=waiting,
                kv=kv if at % 3 == 0 else None,
                state=state,
                slots=4 if odd and at == 1 else slots,
            )
            for at, (name, (prefill, decode, running, waiting, state)) in enumerate(
                zip(names, rows, strict=True)
            )
        )
    )


@st.composite
def requests(draw: st.DrawFn) -> RouteRequest:
    """A request whose holdings come in groups, as from the index: of replicas in another order, some of them gone."""
    order = draw(st.permutations((*NAMES, "gone")) | st.just((*NAMES, "gone")))
    places = {name: at for at, name in enumerate(order)}
    depths = sorted(draw(st.sets(st.integers(0, 900), max_size=4)))
    whose = draw(st.lists(st.sampled_from((*depths, -1)), min_size=len(order), max_size=len(order)))
    groups = tuple(
        (sum(1 << at for at, depth in enumerate(whose) if depth == one), one)
        for one in depths
        if one in whose
    )
    asked = request(
        prompt=draw(st.integers(600, 4000)),
        output=draw(st.integers(0, 500)),
        session=draw(st.none() | st.sampled_from(("s1", "s2", "s3"))),
        preferred=draw(st.sampled_from(((), (), (), ("r01",)))),
        allowed=draw(st.sampled_from((None, None, None, NAMES[1:5]))),
        hot=draw(st.sampled_from((0, 0, 300))),
    )
    none = np.zeros(len(order))
    held = HeldColumns(
        places,
        None,
        none,
        best=groups[-1][1] if groups else 0,
        displaces=False,
        shortest=groups[0][1] if groups else 0,
        groups=groups,
    )
    return with_holdings(asked, held)


@settings(max_examples=400, deadline=None)
@given(fleets(), requests())
def test_quick_choice_is_that_of_pricing_all(view: FleetView, asked: RouteRequest) -> None:
    """Where there is a quick answer: the same replica for the same reason, the same ones over their bound.

    Two who price all are asked: a sweep over columns, and a plain loop over the replicas.
    """
    quick = prefix_affine_quick(view, asked, BOUNDS)
    few = Few(view, asked)
    many, plain = prefix_affine_many(Many(view, asked), BOUNDS), prefix_affine_few(few, BOUNDS)
    assert (plain.winner, plain.eligible) == (many.winner, many.eligible)
    if quick is None:
        return
    assert (quick.winner, quick.eligible, quick.reason) == (many.winner, many.eligible, many.reason)
    assert (quick.winner, quick.eligible, quick.reason) == (
        plain.winner,
        plain.eligible,
        plain.reason,
    )
    loads = few.loads(COST)
    for at in few.able:
        held = few.credible(at, BOUNDS)
        assert quick.is_over(at, loads[at], held) == many.is_over(at, loads[at], held)


@settings(deadline=None)
@given(fleets(), requests())
def test_groups_say_what_arrays_say(view: FleetView, asked: RouteRequest) -> None:
    """What each replica holds is the same by id, by the arrays, and by who holds the same."""
    columns, holdings = view.columns, asked.holdings
    matches = holdings.matches(columns, 1)
    assert matches is not None
    by_match = dict.fromkeys(range(len(columns.ids)), 0)
    for match in matches:
        by_match |= dict.fromkeys(match.places(), match.tokens)
    by_id = [holdings.by(id_) for id_ in columns.ids]
    assert by_id == list(by_match.values())
    assert by_id == holdings.over(columns)[0].tolist()


def test_usual_case_is_answered_the_quick_way() -> None:
    """Idle and busy replicas, one with the longest prefix, all with a common head: nothing more is to be weighed."""
    view = fleet(*(replica(name, prefill=100 * at) for at, name in enumerate(NAMES)))
    places = {name: at for at, name in enumerate(NAMES)}
    groups = (((1 << COUNT) - 1) ^ 8, 64), (8, 900)
    held = HeldColumns(
        places, None, np.zeros(COUNT), best=900, displaces=False, shortest=64, groups=groups
    )
    quick = prefix_affine_quick(view, with_holdings(request(prompt=1000), held), BOUNDS)
    assert quick is not None
    assert quick.winner == 3
