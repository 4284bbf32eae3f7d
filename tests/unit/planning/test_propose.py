"""Which layout promises most, and which measurements are proposed."""

import pytest

from trimtab.core.layout import Layout
from trimtab.planning.propose import Candidate, promise, propose_measurements, rank_layouts


def candidate(tp: int, value: float, allowed: float = 1.0, clients: float = 8.0) -> Candidate:
    return Candidate(layout=Layout(tp=tp), clients=clients, value=value, allowed=allowed)


def test_sure_loads_promise_the_best_of_them() -> None:
    """Where every load keeps the limit, the promise is the most work of any."""
    assert promise([candidate(1, 50.0), candidate(1, 80.0, clients=16.0)]) == 80.0


def test_doubtful_load_adds_only_its_chance() -> None:
    """A load that keeps the limit in half of the cases promises its half, and the easier one the rest."""
    loads = [candidate(1, 60.0, 1.0), candidate(1, 100.0, 0.5, clients=16.0)]
    assert promise(loads) == pytest.approx(0.5 * 100.0 + 0.5 * 60.0)


def test_load_that_does_less_and_is_less_sure_adds_nothing() -> None:
    """Nobody would choose it."""
    better = [candidate(1, 100.0, 0.9)]
    assert promise([*better, candidate(1, 50.0, 0.4, clients=4.0)]) == promise(better)


def test_layouts_are_ranked_by_promise_then_devices() -> None:
    """More expected work first; equals go to fewer devices."""
    found = rank_layouts([candidate(4, 90.0), candidate(2, 90.0), candidate(8, 100.0, 0.5)])
    assert [layout.tp for layout in found] == [2, 4, 8]


def test_leaders_are_measured_where_the_limit_is_most_in_doubt() -> None:
    """The best two layouts, each at the load whose chance to keep the limit is nearest one half."""
    loads = [
        candidate(1, 50.0, 0.99, clients=4.0),
        candidate(1, 90.0, 0.6, clients=16.0),
        candidate(1, 99.0, 0.01, clients=64.0),
        candidate(2, 40.0, 0.9, clients=4.0),
        candidate(2, 70.0, 0.3, clients=32.0),
        candidate(4, 10.0, 0.5, clients=8.0),
    ]
    found = propose_measurements(loads)
    assert [(one.layout.tp, one.clients) for one in found] == [(1, 16.0), (2, 32.0)]


def test_order_does_not_matter() -> None:
    """The order of candidates leaves the proposals alone."""
    loads = [candidate(1, 90.0), candidate(2, 100.0), candidate(4, 90.0)]
    assert propose_measurements(loads) == propose_measurements(loads[::-1])


def test_nothing_to_propose() -> None:
    """Without candidates, or asked for none, there is none."""
    assert propose_measurements([]) == ()
    assert propose_measurements([candidate(1, 1.0)], 0) == ()
