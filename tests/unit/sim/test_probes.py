"""What gateways of a simulated fleet know of each other's requests: what engines tell at a probe, and no more."""

import msgspec
import pytest

from trimtab.core.step_cost import StepCost
from trimtab.policies.routing import build_policies
from trimtab.sim.arrivals import Arrival
from trimtab.sim.fleet import Fleet
from trimtab.sim.fleet_parts import FleetSpec
from trimtab.sim.jobs import ReplicaSpec
from trimtab.sim.streams import Streams

COST = StepCost(
    overhead_ms=20.0,
    weights_ms=30.0,
    token_ms=0.1,
    stream_ms=0.0,
    context_ms=0.0,
    pair_ms=0.0,
    source="made up",
)


def fleet_of(similarity: float | None = None) -> Fleet:
    """One replica that runs one request at a time, behind two gateways that take turns."""
    spec = FleetSpec(
        replica=ReplicaSpec(
            cost=COST, kv_tokens=8192, block_tokens=64, streams_max=1, similarity=similarity
        ),
        replicas=1,
        policy="least_loaded",
        gateways=2,
    )
    costs = COST.as_cost_model(context_tokens=1000, chunk_tokens=1024)
    return Fleet(spec, build_policies(costs), Streams(1))


def seen_by_the_second(fleet: Fleet, *times_s: float) -> list[int]:
    """Requests on the replica as far as the second gateway knows, at these times."""
    seen: list[int] = []

    def look(_: float, of: Fleet) -> None:
        view = of.gateways[1].load.replica("r00000")
        assert view is not None
        seen.append(view.running + view.waiting)

    for at_s in times_s:
        fleet.at(at_s, look)
    # Two of the first gateway's requests, and the second's own between them.
    fleet.run(
        Arrival(at_s=0.1 * at, session=f"s{at}", input_tokens=64, output_tokens=100)
        for at in (1, 2, 3)
    )
    return seen


def test_gateways_probe_at_times_of_their_own() -> None:
    """Spread over the interval, so that not all of them find the same replica idle at the same moment."""
    fleet = fleet_of()
    seen: list[tuple[float, float]] = []

    def look(_: float, of: Fleet) -> None:
        views = [gateway.load.replica("r00000") for gateway in of.gateways]
        seen.append((views[0].seen_at_s, views[1].seen_at_s))  # type: ignore[union-attr]

    for at_s in (0.4, 0.6, 1.2, 1.7):
        fleet.at(at_s, look)
    fleet.run([Arrival(at_s=0.1, session="s", input_tokens=64, output_tokens=100)])
    assert seen == [(0.0, 0.0), (0.5, 0.0), (0.5, 1.0), (1.5, 1.0)]


@pytest.mark.parametrize("similarity", [None, 0.5])
def test_requests_of_other_gateways_are_known_from_the_next_probe_on(
    similarity: float | None,
) -> None:
    """Before it a gateway counts its own request alone; then also the one that runs and the one that waits."""
    fleet = fleet_of(similarity)
    assert seen_by_the_second(fleet, 0.9, 1.1) == [1, 3]


def test_late_reading_counts_what_was_there_when_it_was_read() -> None:
    """Half a second after the probe, and not before."""
    fleet = fleet_of()
    fleet.roster.spec = msgspec.structs.replace(fleet.spec, probe_late_s=0.5)
    assert seen_by_the_second(fleet, 1.4, 1.6) == [1, 3]
