"""What must hold for any fleet with roles, hand-overs and drafts: nothing is lost or left behind, and seeds repeat."""

import msgspec
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from trimtab.core.step_cost import StepCost
from trimtab.core.types import Role
from trimtab.policies.local_prefill import PrefillPlace, PrefillRules
from trimtab.policies.prefill_pool import LinkRate
from trimtab.policies.roles import RoleAction, RoleReason, RoleRules
from trimtab.policies.routing import build_policies
from trimtab.sim.arrivals import Arrival, Sessions, sessions
from trimtab.sim.drafts import DraftSpec
from trimtab.sim.fleet import Fleet
from trimtab.sim.fleet_parts import FleetSpec, RoleControlSpec, RolesSpec
from trimtab.sim.jobs import ReplicaSpec
from trimtab.sim.links import LinkSpec
from trimtab.sim.records import Objective, Outcome, summarise
from trimtab.sim.streams import Streams

COST = StepCost(
    overhead_ms=2.0,
    weights_ms=8.0,
    token_ms=0.05,
    stream_ms=0.1,
    context_ms=0.0002,
    pair_ms=0.000001,
    source="made up",
)
ROUTING_COST = COST.as_cost_model(context_tokens=1000, chunk_tokens=2048)


def made(seed: int, rate_per_s: float, *, duration_s: float = 15.0) -> list[Arrival]:
    """Sessions with prompts of some thousand tokens, most of them new."""
    shape = Sessions(
        rate_per_s=rate_per_s,
        duration_s=duration_s,
        turns=2,
        groups=50,
        system_tokens=64,
        group_tokens=64,
        turn_tokens=2500,
        output_tokens=40,
        think_s=1.0,
    )
    return sessions(shape, Streams(seed).stream("sessions"), block_tokens=64)


def roles(prefill: int = 1, **changes: object) -> RolesSpec:
    """Prefill replicas on links of 1 GB/s with 100 kB of KV a token."""
    spec = RolesSpec(
        prefill=prefill,
        rules=PrefillRules(chunk_tokens=512),
        link=LinkSpec(bytes_per_s=1e9, setup_ms=1.0),
        kv_bytes_per_token=1e5,
        cost=ROUTING_COST,
        told=LinkRate(setup_ms=1.0, ms_per_token=0.1),
    )
    return msgspec.structs.replace(spec, **changes)


def fleet_of(replicas: int, spec: RolesSpec, *, seed: int = 1, **more: object) -> Fleet:
    """A fleet that routes by prefix."""
    drafts = more.pop("drafts", None)
    replica = ReplicaSpec(
        cost=COST, kv_tokens=64_000, block_tokens=64, streams_max=16, drafts=drafts
    )
    described = FleetSpec(
        replica=replica, replicas=replicas, policy="prefix_affine", start_s=2.0, roles=spec
    )
    described = msgspec.structs.replace(described, **more)
    return Fleet(described, build_policies(ROUTING_COST), Streams(seed))


def check_nothing_is_left(fleet: Fleet) -> None:
    """Every request ended in one way; no block, link, load or place in a queue is still held."""
    counts = {outcome: fleet.records.count(outcome) for outcome in Outcome}
    assert sum(counts.values()) == len(fleet.records)
    assert (counts[Outcome.IN_FLIGHT], fleet.in_flight) == (0, 0)
    assert fleet.hand_overs is not None
    for name, replica in fleet.roster.replicas.items():
        assert replica.is_idle
        assert replica.pool.available == replica.pool.blocks
        assert fleet.hand_overs.links.sending(name) == 0
    for gateway in fleet.gateways:
        assert gateway.load.in_flight == 0


@settings(max_examples=40, deadline=None)
@given(
    prefill=st.integers(0, 3),
    gateways=st.integers(1, 2),
    rate=st.floats(0.5, 12.0),
    kills=st.lists(st.tuples(st.floats(0.0, 15.0), st.integers(0, 4), st.booleans()), max_size=4),
    slow=st.none() | st.tuples(st.floats(0.0, 10.0), st.integers(0, 4)),
    place=st.none() | st.just(PrefillPlace.REMOTE),
    transfer_timeout=st.none() | st.floats(0.05, 1.0),
    hop_ms=st.sampled_from((0.0, 3.0)),
    timeout=st.none() | st.floats(0.1, 10.0),
    drafts=st.none() | st.just(DraftSpec(acceptance={"": (0.7, 0.4), "first": (0.2,)})),
    seed=st.integers(0, 50),
)
def test_every_request_ends_in_one_way_and_no_hand_over_leaves_anything(
    prefill: int,
    gateways: int,
    rate: float,
    kills: list[tuple[float, int, bool]],
    slow: tuple[float, int] | None,
    place: PrefillPlace | None,
    transfer_timeout: float | None,
    hop_ms: float,
    timeout: float | None,
    drafts: DraftSpec | None,
    seed: int,
) -> None:
    """Whatever dies when, however slow the links; replicas change roles meanwhile."""
    control = RoleControlSpec(
        rules=RoleRules(cooldown_s=2.0, window_s=4.0, ticks=1, samples_min=2),
        tick_s=1.0,
        ttft_ms=500.0,
        tpot_ms=20.0,
    )
    spec = roles(
        prefill,
        rules=PrefillRules(chunk_tokens=512, always=place),
        timeout_s=transfer_timeout,
        control=control,
        change_s=0.5,
    )
    fleet = fleet_of(5, spec, gateways=gateways, hop_ms=hop_ms, timeout_s=timeout, drafts=drafts)
    for at_s, number, again in kills:
        name = f"r{number:05d}"
        fleet.at(at_s, lambda now_s, of, n=name, a=again: of.roster.kill(now_s, n, restart=a))
    if slow is not None:
        at_s, number = slow
        name = f"r{number:05d}"
        fleet.at(at_s, lambda now_s, of: of.hand_overs.links.slow(now_s, name, 50.0))
    fleet.run(made(seed, rate))
    check_nothing_is_left(fleet)


@settings(max_examples=8, deadline=None)
@given(prefill=st.integers(1, 2), seed=st.integers(0, 1000))
def test_same_seed_is_the_same_run_with_roles(prefill: int, seed: int) -> None:
    """Byte for byte: times, hand-overs, replicas and the reasons of decisions."""
    seen = []
    for _ in range(2):
        fleet = fleet_of(4, roles(prefill), seed=seed, gateways=2)
        fleet.run(made(seed, 6.0))
        names = ("ttft_ms", "tpot_ms", "e2e_ms", "transfer_ms", "moved_tokens")
        assert fleet.hand_overs is not None
        seen.append(
            (
                [fleet.records.column(name).tobytes() for name in names],
                fleet.records.replicas().tobytes(),
                sorted(fleet.hand_overs.reasons.items()),
            )
        )
    assert seen[0] == seen[1]


@settings(max_examples=8, deadline=None)
@given(rate=st.floats(2.0, 8.0), seed=st.integers(0, 50))
def test_mean_in_flight_is_rate_times_mean_time_with_hand_overs(rate: float, seed: int) -> None:
    """Little's law over a run that drains, transfers included."""
    fleet = fleet_of(4, roles(1, rules=PrefillRules(chunk_tokens=512, always=PrefillPlace.REMOTE)))
    seen: list[int] = []
    for at in range(6000):
        fleet.at(at * 0.01, lambda _, of: seen.append(of.in_flight))
    fleet.run(made(seed, rate))
    times_s = fleet.records.column("e2e_ms") / 1000.0
    ended = fleet.records.column("at_s") + times_s
    if times_s.size < 10 or float(np.max(ended)) > 59.0:
        return
    assert abs(sum(seen) * 0.01 - times_s.sum()) <= 0.01 * times_s.size + 0.02 * times_s.sum()


@settings(max_examples=6, deadline=None)
@given(seed=st.integers(0, 30))
def test_faster_links_and_more_replicas_never_lower_goodput_beyond_noise(seed: int) -> None:
    """The same arrivals, everything sent ahead."""
    remote = PrefillRules(chunk_tokens=512, always=PrefillPlace.REMOTE)

    def good_share(replicas: int, prefill: int, bytes_per_s: float) -> float:
        link = LinkSpec(bytes_per_s=bytes_per_s, setup_ms=1.0)
        fleet = fleet_of(replicas, roles(prefill, rules=remote, link=link))
        fleet.run(made(seed, 6.0))
        targets = Objective(ttft_ms=800.0, tpot_ms=25.0)
        return summarise(
            fleet.records, targets, from_s=0.0, to_s=15.0, replicas=replicas
        ).good_share

    slow, fast, more = good_share(4, 2, 2e8), good_share(4, 2, 2e10), good_share(8, 4, 2e10)
    assert fast >= slow - 0.02
    assert more >= fast - 0.02


@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 50), rate=st.floats(1.0, 6.0))
def test_conditional_hand_over_moves_no_more_than_always_and_decides_for_every_request(
    seed: int, rate: float
) -> None:
    """Each dispatched request has one decision with its reason; what moved are whole tokens of prompts."""
    fleets = [
        fleet_of(3, roles(1, rules=PrefillRules(chunk_tokens=512, always=place)))
        for place in (None, PrefillPlace.REMOTE)
    ]
    arrivals = made(seed, rate)
    for fleet in fleets:
        fleet.run(arrivals)
    over = [fleet.hand_overs for fleet in fleets]
    assert over[0] is not None
    assert over[1] is not None
    assert sum(over[0].reasons.values()) == sum(over[1].reasons.values()) == len(arrivals)
    assert over[0].links.bytes_moved <= over[1].links.bytes_moved
    moved = fleets[1].records.column("moved_tokens")
    assert float(moved.sum()) * 1e5 == over[1].links.bytes_moved
    assert bool((moved <= fleets[1].records.column("input_tokens")).all())
    assert set(fleets[0].roster.roles.values()) == {Role.PREFILL, Role.DECODE}


@settings(max_examples=6, deadline=None)
@given(seed=st.integers(0, 50), prefill=st.integers(1, 2))
def test_roles_merge_under_low_traffic_and_stay_merged(seed: int, prefill: int) -> None:
    """Fewer requests a window than a P90 needs, for half an hour: each prefill replica goes back once."""
    rules = RoleRules()
    control = RoleControlSpec(rules=rules, tick_s=1.0, ttft_ms=2000.0, tpot_ms=100.0)
    fleet = fleet_of(4, roles(prefill, control=control, change_s=0.5))
    fleet.run(made(seed, 0.05, duration_s=1800.0))
    assert fleet.role_control is not None
    moves = fleet.role_control.moves
    assert {(one.action, one.reason) for one in moves} == {
        (RoleAction.MERGE, RoleReason.LOW_TRAFFIC)
    }
    assert len(moves) == prefill
    assert Role.PREFILL not in fleet.roster.roles.values()
