"""Hand-overs in a fleet, worked out by hand: who computes what, when the KV is there, and what failures do."""

import msgspec
import pytest

from trimtab.core.step_cost import StepCost
from trimtab.core.types import ReplicaState, Role
from trimtab.policies.local_prefill import PrefillPlace, PrefillRules
from trimtab.policies.prefill_pool import LinkRate
from trimtab.policies.routing import build_policies
from trimtab.sim.arrivals import Arrival
from trimtab.sim.fleet import Fleet
from trimtab.sim.fleet_parts import Change, FleetSpec, RolesSpec
from trimtab.sim.jobs import ReplicaSpec
from trimtab.sim.links import LinkSpec
from trimtab.sim.records import Outcome
from trimtab.sim.streams import Streams

COST = StepCost(
    overhead_ms=2.0,
    weights_ms=8.0,
    token_ms=0.1,
    stream_ms=0.0,
    context_ms=0.0,
    pair_ms=0.0,
    source="made up",
)
ROUTING_COST = COST.as_cost_model(context_tokens=1000, chunk_tokens=1024)
REMOTE = PrefillRules(chunk_tokens=100, always=PrefillPlace.REMOTE)


def fleet_of(replicas: int = 2, **changes: object) -> Fleet:
    """One prefill replica behind the others: 1,024 tokens take 104.4 ms, 1 kB of KV a token, 1 MB/s."""
    roles = RolesSpec(
        prefill=1,
        rules=REMOTE,
        link=LinkSpec(bytes_per_s=1e6, setup_ms=10.0),
        kv_bytes_per_token=1000.0,
        cost=ROUTING_COST,
        told=LinkRate(setup_ms=10.0, ms_per_token=1.0),
    )
    spec = FleetSpec(
        replica=ReplicaSpec(
            cost=COST, kv_tokens=8192, block_tokens=64, budget_tokens=1024, streams_max=8
        ),
        replicas=replicas,
        policy="least_loaded",
        roles=msgspec.structs.replace(roles, **changes),
        start_s=5.0,
    )
    return Fleet(spec, build_policies(ROUTING_COST), Streams(1))


def ask(tokens: int = 1024, at_s: float = 0.0, *, shared: bool = False) -> Arrival:
    """A prompt with an answer of three tokens."""
    names = tuple(range(tokens // 64)) if shared else ()
    return Arrival(at_s=at_s, session="s", input_tokens=tokens, output_tokens=3, hashes=names)


def test_first_token_comes_after_prefill_transfer_and_one_step_of_the_decode_side() -> None:
    """104.4 ms, 10 ms set-up, 1.024 s of bytes, a step of one token; then two steps."""
    fleet = fleet_of()
    fleet.run([ask()])
    ttft = float(fleet.records.column("ttft_ms")[0])
    assert ttft == pytest.approx(104.4 + 10.0 + 1024.0 + 10.0)
    assert float(fleet.records.column("transfer_ms")[0]) == pytest.approx(1034.0)
    assert float(fleet.records.column("tpot_ms")[0]) == pytest.approx(10.0)
    assert int(fleet.records.replicas()[0]) == 0
    assert fleet.roster.roles == {"r00000": Role.DECODE, "r00001": Role.PREFILL}


def test_prefill_replicas_may_run_another_batch_than_those_that_decode() -> None:
    """Streams and budget are each role's own; what is not said is as everywhere."""
    fleet = fleet_of(prefill_streams_max=1, prefill_budget_tokens=256)
    specs = [fleet.roster.spec_for(role) for role in (Role.DECODE, Role.PREFILL)]
    assert [(one.streams_max, one.budget_tokens) for one in specs] == [(8, 1024), (1, 256)]
    assert {name: one.spec for name, one in fleet.roster.replicas.items()} == {
        "r00000": specs[0],
        "r00001": specs[1],
    }


def test_what_the_decode_side_holds_is_not_sent_again() -> None:
    """The second prompt of the same beginning moves what is new; short of a chunk by prediction it would not travel."""
    fleet = fleet_of()
    fleet.run([ask(shared=True), ask(1024 + 128, at_s=5.0, shared=True)])
    assert list(fleet.records.column("moved_tokens")) == [1024.0, 128.0]
    kept = fleet_of(rules=PrefillRules(chunk_tokens=200))
    kept.run([ask(shared=True), ask(1024 + 128, at_s=5.0, shared=True)])
    assert kept.hand_overs is not None
    assert kept.hand_overs.reasons["cached"] == 1


@pytest.mark.parametrize(
    ("at_s", "cause"),
    [
        (0.05, "the prefill replica was lost"),
        (0.5, "the prefill replica was lost"),
    ],
)
def test_lost_prefill_replica_has_the_prompt_computed_where_it_decodes(
    at_s: float, cause: str
) -> None:
    """While it computes, and while its KV is on the way; once, without a second attempt."""
    fleet = fleet_of()
    fleet.at(at_s, lambda now_s, of: of.roster.kill(now_s, "r00001", restart=False))
    fleet.run([ask()])
    assert fleet.records.count(Outcome.FINISHED) == 1
    assert float(fleet.records.column("ttft_ms")[0]) == pytest.approx(1000.0 * at_s + 104.4)
    assert fleet.hand_overs is not None
    assert dict(fleet.hand_overs.failures) == {cause: 1}


def test_transfer_over_its_time_is_given_up_and_its_blocks_are_free() -> None:
    """The prompt is computed on the decode side from then on."""
    fleet = fleet_of(timeout_s=0.2)
    fleet.run([ask()])
    assert float(fleet.records.column("ttft_ms")[0]) == pytest.approx(104.4 + 200.0 + 104.4)
    assert fleet.hand_overs is not None
    assert dict(fleet.hand_overs.failures) == {"the transfer took too long": 1}
    assert fleet.roster.replicas["r00001"].is_idle


def test_lost_decode_replica_sends_the_request_elsewhere_without_a_second_hand_over() -> None:
    """Tried once more, prefilled where it is decoded."""
    fleet = fleet_of(3)
    fleet.at(0.5, lambda now_s, of: of.roster.kill(now_s, "r00000", restart=False))
    fleet.run([ask()])
    assert int(fleet.records.replicas()[0]) == 1
    assert float(fleet.records.column("ttft_ms")[0]) == pytest.approx(500.0 + 104.4)
    assert fleet.hand_overs is not None
    assert dict(fleet.hand_overs.reasons) == {"as_told": 1, "after_failure": 1}
    assert dict(fleet.hand_overs.failures) == {"the decode replica was lost": 1}
    assert fleet.roster.replicas["r00002"].is_idle


def test_prefill_replica_takes_no_whole_request() -> None:
    """With everything local it stays idle."""
    fleet = fleet_of(rules=PrefillRules(always=PrefillPlace.LOCAL))
    fleet.run([ask(at_s=0.1 * number) for number in range(10)])
    assert set(fleet.records.replicas()) == {0}


def test_role_change_drains_waits_for_the_hand_over_then_flips() -> None:
    """The prefill replica's KV is fetched first; the last one's change names the others mixed."""
    fleet = fleet_of()
    change = Change(
        role=Role.DECODE, spec=fleet.roster.spec_for(Role.DECODE), take_s=1.0, keeps_cache=True
    )
    fleet.at(0.2, lambda now_s, of: of.roster.change(now_s, "r00001", change))
    states: list[tuple[float, ReplicaState]] = []
    for at_s in (0.3, 1.0, 1.5, 3.0):
        fleet.at(at_s, lambda now_s, of: states.append((now_s, of.roster.states["r00001"])))
    fleet.run([ask(), ask(at_s=4.0)])
    assert states == [
        (0.3, ReplicaState.DRAINING),
        (1.0, ReplicaState.DRAINING),
        (1.5, ReplicaState.RESTARTING),
        (3.0, ReplicaState.READY),
    ]
    assert fleet.records.count(Outcome.FINISHED) == 2
    assert set(fleet.roster.roles.values()) == {Role.MIXED}
    assert [one.role for one in fleet.roster.role_changes] == [Role.DECODE]
    assert fleet.hand_overs is not None
    assert fleet.hand_overs.reasons["no_prefill_replica"] == 1


def test_drained_replica_stops_and_one_that_takes_too_long_loses_what_it_has() -> None:
    """Its request is tried elsewhere."""
    fleet = fleet_of(3, rules=PrefillRules(always=PrefillPlace.LOCAL))
    fleet.roster.spec = msgspec.structs.replace(fleet.spec, drain_s=0.05)
    fleet.at(0.01, lambda now_s, of: of.roster.drain(now_s, "r00000"))
    fleet.at(3.0, lambda now_s, of: of.roster.drain(now_s, "r00001"))
    fleet.run([ask()])
    assert int(fleet.records.replicas()[0]) == 1
    assert fleet.roster.states["r00000"] is ReplicaState.STOPPED
    assert fleet.roster.states["r00001"] is ReplicaState.STOPPED


def test_late_readings_say_when_they_were_read() -> None:
    """A gateway knows a share of KV half a second after the probe."""
    fleet = fleet_of()
    fleet.roster.spec = msgspec.structs.replace(fleet.spec, probe_late_s=0.5)
    seen: list[float] = []

    def look(now_s: float, of: Fleet) -> None:
        view = of.gateways[0].load.replica("r00000")
        assert view is not None
        seen.append(view.seen_at_s)

    for at_s in (1.4, 1.6, 2.4):
        fleet.at(at_s, look)
    fleet.run([ask(), ask(at_s=3.0)])
    assert seen == [0.0, 1.0, 1.0]
