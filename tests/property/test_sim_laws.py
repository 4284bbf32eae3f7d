"""What must hold for any simulated fleet: nothing is lost, time and work add up, the same seed is the same run."""

import msgspec
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from trimtab.core.step_cost import StepCost
from trimtab.core.types import ReplicaState
from trimtab.policies.routing import build_policies
from trimtab.sim.arrivals import Arrival, Sessions, from_records, overlay, sessions, stretch
from trimtab.sim.fleet import Fleet
from trimtab.sim.fleet_parts import FleetSpec
from trimtab.sim.jobs import ReplicaSpec
from trimtab.sim.public_policies import PUBLIC
from trimtab.sim.records import Objective, Outcome, summarise
from trimtab.sim.replica import Replica
from trimtab.sim.streams import Streams
from trimtab.workloads.traces import TraceRecord

COST = StepCost(
    overhead_ms=2.0,
    weights_ms=8.0,
    token_ms=0.05,
    stream_ms=0.1,
    context_ms=0.0002,
    pair_ms=0.000001,
    source="made up",
)
NAMES = ("round_robin", "least_loaded", "prefix_affine", *PUBLIC)


def made(seed: int, rate_per_s: float, *, duration_s: float = 20.0) -> list[Arrival]:
    shape = Sessions(rate_per_s=rate_per_s, duration_s=duration_s, turns=4, groups=3, think_s=1.0)
    return sessions(shape, Streams(seed).stream("sessions"), block_tokens=64)


def fleet_of(policy: str, replicas: int, *, seed: int = 1, **more: object) -> Fleet:
    spec = FleetSpec(
        replica=ReplicaSpec(cost=COST, kv_tokens=20_480, block_tokens=64, streams_max=16),
        replicas=replicas,
        policy=policy,
        start_s=2.0,
    )
    spec = msgspec.structs.replace(spec, **more)
    costs = COST.as_cost_model(context_tokens=1000, chunk_tokens=2048)
    policies = {**build_policies(costs), **{name: build() for name, build in PUBLIC.items()}}
    return Fleet(spec, policies, Streams(seed))


@settings(max_examples=25, deadline=None)
@given(
    policy=st.sampled_from(NAMES),
    replicas=st.integers(1, 5),
    gateways=st.integers(1, 3),
    rate=st.floats(0.5, 30.0),
    kills=st.lists(st.tuples(st.floats(0.0, 20.0), st.integers(0, 4), st.booleans()), max_size=4),
    limit=st.none() | st.integers(1, 20),
    start_ms=st.sampled_from((0.0, 0.0, 400.0)),
    until=st.floats(5.0, 40.0),
    seed=st.integers(0, 50),
)
def test_every_request_ends_in_one_way(
    policy: str,
    replicas: int,
    gateways: int,
    rate: float,
    kills: list[tuple[float, int, bool]],
    limit: int | None,
    start_ms: float,
    until: float,
    seed: int,
) -> None:
    """Arrived = finished + shed + failed + in flight, whatever dies when; KV blocks are all given back, and a replica
    that was lost stays so."""
    fleet = fleet_of(policy, replicas, gateways=gateways, in_flight_max=limit, timeout_s=15.0)
    cost = msgspec.structs.replace(COST, start_ms=start_ms)
    for each in fleet.roster.replicas.values():
        assert isinstance(each, Replica)
        each.become(msgspec.structs.replace(each.spec, cost=cost))
    for at_s, number, again in kills:
        name = f"r{number % replicas:05d}"
        fleet.at(at_s, lambda now_s, of, n=name, a=again: of.roster.kill(now_s, n, restart=a))
    fleet.run(made(seed, rate), until_s=until)
    counts = {outcome: fleet.records.count(outcome) for outcome in Outcome}
    assert sum(counts.values()) == len(fleet.records)
    assert counts[Outcome.IN_FLIGHT] == fleet.in_flight
    fleet.kernel.run()
    assert fleet.in_flight == 0
    for replica in fleet.roster.replicas.values():
        assert replica.in_flight == 0
        assert replica.pool.available == replica.pool.blocks
    for _, number, again in kills:
        if not again:
            name = f"r{number % replicas:05d}"
            assert fleet.roster.states[name] is ReplicaState.STOPPED


@settings(max_examples=10, deadline=None)
@given(policy=st.sampled_from(NAMES), seed=st.integers(0, 1000))
def test_same_seed_is_the_same_run(policy: str, seed: int) -> None:
    """Byte for byte: every column of every request."""
    seen = []
    for _ in range(2):
        fleet = fleet_of(policy, 3, seed=seed, gateways=2)
        fleet.run(made(seed, 8.0))
        names = ("at_s", "ttft_ms", "tpot_ms", "e2e_ms", "cached_tokens")
        seen.append([fleet.records.column(name).tobytes() for name in names])
        seen[-1].append(fleet.records.replicas().tobytes())
    assert seen[0] == seen[1]


@settings(max_examples=10, deadline=None)
@given(policy=st.sampled_from(NAMES), rate=st.floats(2.0, 15.0), seed=st.integers(0, 50))
def test_mean_in_flight_is_rate_times_mean_time(policy: str, rate: float, seed: int) -> None:
    """Little's law over a run that drains: the integral of requests in flight is the sum of their times."""
    fleet = fleet_of(policy, 3)
    seen: list[tuple[float, int]] = []
    arrivals = made(seed, rate)
    for at in range(4000):
        fleet.at(at * 0.01, lambda now_s, of: seen.append((now_s, of.in_flight)))
    fleet.run(arrivals)
    times_s = fleet.records.column("e2e_ms")[fleet.records.outcomes() == Outcome.FINISHED] / 1000.0
    held = list(times_s)
    ended = fleet.records.column("at_s") + fleet.records.column("e2e_ms") / 1000.0
    if len(held) < 20 or float(np.max(ended)) > 39.0:
        return
    integral = sum(count for _, count in seen) * 0.01
    assert abs(integral - sum(held)) <= 0.01 * len(held) + 0.02 * sum(held)


@settings(max_examples=6, deadline=None)
@given(
    policy=st.sampled_from(("round_robin", "prefix_affine", "overlap_cost")),
    seed=st.integers(0, 20),
)
def test_more_replicas_never_lower_goodput_beyond_noise(policy: str, seed: int) -> None:
    """The same arrivals on twice the replicas."""
    shares = []
    for replicas in (2, 4, 8):
        fleet = fleet_of(policy, replicas)
        fleet.run(made(seed, 20.0))
        summary = summarise(
            fleet.records, Objective(ttft_ms=500.0), from_s=0.0, to_s=20.0, replicas=replicas
        )
        shares.append(summary.good_share)
    assert shares[1] >= shares[0] - 0.02
    assert shares[2] >= shares[1] - 0.02


@given(
    copies=st.integers(1, 5),
    factor=st.floats(0.1, 10.0),
    seed=st.integers(0, 100),
    fine=st.sampled_from((16, 64, 100)),
)
def test_scaled_traces_keep_their_order_and_what_they_share(
    copies: int, factor: float, seed: int, fine: int
) -> None:
    """Overlaid copies come in order of time, each shares within itself what the trace shared, and nothing across."""
    records = [
        TraceRecord(
            line=at,
            at_s=float(at),
            session=f"s{at}",
            input_tokens=1024 + 512 * at,
            output_tokens=5,
            scope="",
            runs=((0, 2), (10 * at, at)),
            label="x",
        )
        for at in range(4)
    ]
    base = stretch(from_records(records, trace_block_tokens=512, block_tokens=fine), factor)
    found = list(overlay(base, copies, Streams(seed).stream("overlay")))
    assert [one.at_s for one in found] == sorted(one.at_s for one in found)
    assert len(found) == 4 * copies
    shared = 1024 // fine
    for copy in range(copies):
        suffix = f"#{copy}" if copy else ""
        mine = [one for one in found if one.session.partition("#")[2] == suffix.removeprefix("#")]
        assert len({one.hashes[:shared] for one in mine}) == 1
    firsts = {one.hashes[0] for one in found}
    assert len(firsts) == copies
