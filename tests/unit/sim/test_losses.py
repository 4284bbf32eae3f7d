"""What a simulated fleet does about replicas that are lost or down, and about requests that are still starting."""

import msgspec
import numpy as np
import pytest

from trimtab.core.step_cost import StepCost
from trimtab.core.types import ReplicaState
from trimtab.policies.routing import build_policies
from trimtab.sim.arrivals import Arrival
from trimtab.sim.fleet import Fleet
from trimtab.sim.fleet_parts import FleetSpec
from trimtab.sim.jobs import ReplicaSpec
from trimtab.sim.records import Outcome
from trimtab.sim.streams import Streams

COST = StepCost(
    overhead_ms=5.0,
    weights_ms=5.0,
    token_ms=0.05,
    stream_ms=0.0,
    context_ms=0.0,
    pair_ms=0.0,
    source="made up",
)


def fleet_of(*, start_ms: float = 0.0, similarity: float | None = None, **changes: object) -> Fleet:
    """Two replicas that come back 5 s after a crash."""
    spec = FleetSpec(
        replica=ReplicaSpec(
            cost=msgspec.structs.replace(COST, start_ms=start_ms),
            kv_tokens=8192,
            block_tokens=64,
            streams_max=8,
            similarity=similarity,
        ),
        replicas=2,
        policy="least_loaded",
        start_s=5.0,
    )
    costs = COST.as_cost_model(context_tokens=1000, chunk_tokens=1024)
    return Fleet(msgspec.structs.replace(spec, **changes), build_policies(costs), Streams(1))


def asked(every_s: float, count: int) -> list[Arrival]:
    """Prompts of 100 tokens with answers of 20, one after the other."""
    return [
        Arrival(at_s=every_s * at, session=f"s{at}", input_tokens=100, output_tokens=20)
        for at in range(count)
    ]


@pytest.mark.parametrize("similarity", [None, 0.5])
@pytest.mark.parametrize("start_ms", [0.0, 500.0, 5000.0])
def test_no_request_outlives_the_last_replica(start_ms: float, similarity: float | None) -> None:
    """Those in their start go with it as those that run do."""
    fleet = fleet_of(start_ms=start_ms, similarity=similarity)
    for name in ("r00000", "r00001"):
        fleet.at(10.0, lambda now_s, of, n=name: of.roster.kill(now_s, n, restart=False))
    fleet.run(asked(0.1, 200))
    finished = fleet.records.outcomes() == Outcome.FINISHED
    ended_s = fleet.records.column("at_s") + fleet.records.column("e2e_ms") / 1000.0
    assert finished.any()
    assert float(np.max(ended_s[finished])) <= 10.0
    assert fleet.in_flight == 0


@pytest.mark.parametrize("similarity", [None, 0.5])
def test_request_in_its_start_is_tried_once_more_elsewhere(similarity: float | None) -> None:
    """Its client has seen nothing, so that one lost replica costs it time only."""
    fleet = fleet_of(start_ms=500.0, similarity=similarity)
    fleet.at(0.2, lambda now_s, of: of.roster.kill(now_s, "r00000", restart=False))
    fleet.run(asked(0.0, 4))
    assert fleet.records.count(Outcome.FINISHED) == 4
    assert set(fleet.records.replicas()) == {1}
    ttft = fleet.records.column("ttft_ms")
    assert int((ttft > 700.0).sum()) == 2


def test_limit_of_requests_counts_those_in_their_start() -> None:
    """Two on each of two replicas, 5 s and some each: four in every 5 s, the rest is shed."""
    fleet = fleet_of(start_ms=5000.0, in_flight_max=2)
    most: list[int] = []
    for at in range(100):
        fleet.at(
            0.05 + 0.2 * at,
            lambda _, of: most.append(max(one.in_flight for one in of.roster.replicas.values())),
        )
    fleet.run(asked(0.1, 200))
    assert max(most) == 2
    assert fleet.records.count(Outcome.FINISHED) == 16
    assert fleet.records.count(Outcome.SHED) == 184


@pytest.mark.parametrize(("lost_s", "state"), [(2.0, "stopped"), (None, "ready")])
def test_replica_that_is_lost_while_it_is_down_stays_lost(lost_s: float | None, state: str) -> None:
    """A crash alone is over after its time."""
    fleet = fleet_of()
    fleet.at(1.0, lambda now_s, of: of.roster.kill(now_s, "r00000"))
    if lost_s is not None:
        fleet.at(lost_s, lambda now_s, of: of.roster.kill(now_s, "r00000", restart=False))
        fleet.at(4.0, lambda now_s, of: of.roster.kill(now_s, "r00000"))
    fleet.run(asked(0.1, 150))
    assert fleet.roster.states["r00000"] is ReplicaState(state)
    view = fleet.gateways[0].load.replica("r00000")
    assert view is not None
    assert view.state is ReplicaState(state)
    assert fleet.roster.ready_count == (2 if lost_s is None else 1)


def test_clients_that_leave_early_go_on_leaving_until_a_prompt_is_whole() -> None:
    """A prompt of 8,000 tokens takes four chunks of 107 ms at most; whoever waits 250 ms gets three of them done."""
    fleet = fleet_of(replicas=1, timeout_s=0.25)
    names = tuple(range(125))
    fleet.run(
        Arrival(at_s=2.0 * at, session="s", input_tokens=8000, output_tokens=2, hashes=names)
        for at in range(4)
    )
    ended = [Outcome(each) for each in fleet.records.outcomes()]
    assert ended == [Outcome.FAILED, *[Outcome.FINISHED] * 3]
    assert list(fleet.records.column("cached_tokens")[1:]) == [3 * 2048, 7999, 7999]
