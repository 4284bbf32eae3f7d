"""Roles of a fleet that follow its traffic: what a tick sees of records, what it changes, and what holds it."""

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest
from harness import COST
from test_fleet_lifecycle import OLD, Harness, Sink

from trimtab.core.config import Config, EngineConfig
from trimtab.core.config_handover import HandOverConfig
from trimtab.core.config_roles import PrefillEngineConfig, RolesConfig, RolesMode
from trimtab.core.cost import START_COST, CostModel
from trimtab.core.events import RolesDecided
from trimtab.core.handover import HandOver, HandOverOutcome
from trimtab.core.lever import Comparison
from trimtab.core.ports import LaunchError
from trimtab.core.record import Drafting, Phases, RequestRecord, Tokens
from trimtab.core.revision import Speculation, SpeculationMethod
from trimtab.core.roles import RoleAction, RoleReason, RolesDecision
from trimtab.core.traffic import CandidatePlan, TrafficPlan
from trimtab.core.types import ReplicaState, Role
from trimtab.policies.loadstate import LoadState
from trimtab.policies.prefill_pool import PrefillPool
from trimtab.policies.router import Router
from trimtab.runtime.fleet import ReplicaInfo
from trimtab.runtime.handover_build import rules_of
from trimtab.runtime.handovers import HandOvers
from trimtab.runtime.role_keeper import RoleKeeper, RoleParts, RoleRefusedError
from trimtab.runtime.system_roles import build_roles, start_fleet

CHUNK = 256
FOLLOW = RolesConfig(
    mode=RolesMode.FOLLOW,
    ttft_ms=1000.0,
    tpot_ms=50.0,
    window_s=30.0,
    cooldown_s=30.0,
    ticks=1,
    samples_min=5,
)

DEAR: dict[str, Any] = {"ms": 500.0, "prompt": 20}
"""A hand-over of half of the TTFT target, and longer than computing its prompt."""

CANDIDATE = CandidatePlan(
    lever="ngram",
    share=0.1,
    policy=None,
    replicas=("r1",),
    comparison=Comparison.SIDE_BY_SIDE,
    started_at_s=0.0,
    block_s=1.0,
    edge_s=0.0,
)


class Steps:
    """A clock that goes on by hand."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def wall_s(self) -> float:
        return self.now_s

    def mono_s(self) -> float:
        return self.now_s


class Kept:
    """A fleet of three on a scripted launcher, the last of which prefills, with its keeper and load state."""

    def __init__(self, config: RolesConfig = FOLLOW) -> None:
        self.harness = Harness()
        self.load = LoadState()
        self.clock = Steps()
        self.sink: Sink = self.harness.sink
        self.plan = TrafficPlan(policy="round_robin")
        self.thresholds: list[float] = []
        self.cost = COST
        self.cost_ahead = lambda cost: cost
        self.drafting: set[str] = set()
        fleet = self.harness.fleet
        fleet._on_change = self._changed
        self.keeper = RoleKeeper(
            config,
            RoleParts(
                fleet=fleet,
                view=lambda: self.load.view(self.clock.now_s),
                plan=lambda: self.plan,
                cost=lambda: self.cost,
                sink=self.sink,
                clock=self.clock,
                baseline=OLD,
                chunk_tokens=CHUNK,
                threshold=self.thresholds.append,
                cause=lambda: "start",
                drafts_nothing=lambda name: name not in self.drafting,
                cost_ahead=lambda cost: self.cost_ahead(cost),
            ),
        )

    def _changed(self, info: ReplicaInfo) -> None:
        self.load.set_replica(
            id=info.id,
            url=info.url,
            role=info.role,
            revision=info.revision.id,
            state=info.state,
            slots=4,
        )

    async def start(self) -> None:
        names = ("r0", "r1", "r2")
        await self.harness.fleet.start(dict.fromkeys(names, OLD), roles={"r2": Role.PREFILL})
        self.keeper.tick()
        self.clock.now_s = FOLLOW.window_s

    def serves(self, count: int, **changes: object) -> None:
        """Let requests end now."""
        for at in range(count):
            self.keeper.on_record(msgspec.structs.replace(record(at), **changes))

    def hands_over(self, count: int, *, ms: float, prompt: int, **changes: Any) -> None:
        """Let requests whose KV moved end now; `ms`: from the set-up to the last byte."""
        self.serves(
            count, prefill_replica="r2", tokens=Tokens(prompt=prompt, delivered=0, output=20)
        )
        one = HandOver(
            request_id="q",
            source="r2",
            target="r0",
            outcome=HandOverOutcome.DELIVERED,
            prompt_tokens=prompt,
            export_ms=0.25 * ms,
            setup_ms=0.25 * ms,
            transfer_ms=0.5 * ms,
        )
        for _ in range(count):
            self.keeper.on_hand_over(msgspec.structs.replace(one, **changes))

    @property
    def decided(self) -> list[RolesDecided]:
        return self.sink.of(RolesDecided)

    def roles(self) -> dict[str, Role]:
        return {info.id: info.role for info in self.harness.fleet.infos()}

    async def settle(self) -> None:
        """Wait for the change that a tick began."""
        assert self.keeper._changing is not None
        await asyncio.wait_for(asyncio.shield(self.keeper._changing), 5)


def record(at: int) -> RequestRecord:
    """A short request that is half of both targets."""
    return RequestRecord(
        request_id=f"q{at}",
        arrived_at_s=0.0,
        finished_at_s=1.0,
        endpoint="/v1/chat/completions",
        stream=True,
        ttft_ms=500.0,
        tpot_ms=25.0,
        tokens=Tokens(prompt=100, delivered=0, output=20),
        status=200,
        replica="r0",
    )


@pytest.fixture
async def kept() -> AsyncIterator[Kept]:
    one = Kept()
    await one.start()
    yield one
    await one.harness.fleet.stop()


async def test_decode_that_needs_gets_the_prefill_replica_that_has_nothing_to_do(
    kept: Kept,
) -> None:
    """Answers are slow and no prompt is long: the last prefill replica takes whole requests."""
    kept.serves(10, tpot_ms=45.0)
    made = kept.keeper.tick()
    assert (made.action, made.reason) == (RoleAction.MERGE, RoleReason.FEW_LONG_PROMPTS)
    await kept.settle()
    assert set(kept.roles().values()) == {Role.MIXED}
    [event] = [one for one in kept.decided if one.replica is not None]
    assert (event.replica, event.role, event.seen and event.seen.samples) == ("r2", Role.DECODE, 10)
    followed = [cause for cause in kept.sink.causes if cause and cause.startswith("e")]
    assert followed, "what the replica did has the decision for its cause"


async def test_long_prompts_beside_answers_ask_for_another_prefill_replica(kept: Kept) -> None:
    """Many were computed where answers run, and another such replica takes more off them than it would give."""
    kept.serves(10, tpot_ms=45.0, tokens=Tokens(prompt=4000, delivered=0, output=20))
    kept.serves(1, prefill_replica="r2", tokens=Tokens(prompt=2250, delivered=0, output=20))
    await kept.harness.fleet.add("r3", OLD)
    made = kept.keeper.tick()
    assert (made.action, made.reason) == (RoleAction.MORE_PREFILL, RoleReason.LONG_PROMPTS_STALL)
    await kept.settle()
    assert [name for name, role in kept.roles().items() if role is Role.PREFILL] == ["r2", "r3"]


async def test_prefill_replica_with_nothing_to_do_answers_where_answers_are_slow(
    kept: Kept,
) -> None:
    """Long prompts are computed beside answers though it is there: another one like it would help nobody."""
    kept.serves(10, tpot_ms=45.0, tokens=Tokens(prompt=4000, delivered=0, output=20))
    made = kept.keeper.tick()
    assert (made.action, made.reason) == (RoleAction.MERGE, RoleReason.PREFILL_IDLE)


async def test_cached_and_handed_over_prompts_are_no_work_beside_answers(kept: Kept) -> None:
    """A long prompt that the replica held, and one that was sent ahead, stall nobody there."""
    kept.serves(5, tpot_ms=45.0, tokens=Tokens(prompt=4000, delivered=3990, output=20))
    kept.serves(
        5,
        tpot_ms=45.0,
        tokens=Tokens(prompt=4000, delivered=3999, output=20),
        prefill_replica="r2",
        phases=Phases(transfer_ms=20.0),
    )
    made = kept.keeper.tick()
    assert (made.action, made.reason) == (RoleAction.HOLD, RoleReason.REST_TOO_BUSY)


async def test_full_slots_of_the_decode_side_ask_for_more_decode(kept: Kept) -> None:
    """A late first token is no want of prefill where the decode side is full."""
    for at in range(4):
        for replica in ("r0", "r1"):
            kept.load.admitted(f"{replica}{at}", replica, prefill_tokens=1, decode_tokens=9)
    kept.serves(10, ttft_ms=5000.0)
    made = kept.keeper.tick()
    assert (made.action, made.reason) == (RoleAction.MORE_DECODE, RoleReason.DECODE_FULL)


def runs(kept: Kept, count: int = 2) -> None:
    """Have requests under way: they came and have not ended."""
    for at in range(count):
        kept.load.admitted(f"runs{at}", f"r{at % 2}", prefill_tokens=1, decode_tokens=9)
    kept.clock.now_s += FOLLOW.window_s / 2.0


async def test_too_few_requests_change_nothing_while_others_are_under_way(kept: Kept) -> None:
    """Unknown freezes: that few ended is no low traffic where more have not."""
    runs(kept)
    kept.serves(4, tpot_ms=500.0)
    assert kept.keeper.tick().reason is RoleReason.UNKNOWN
    assert kept.roles()["r2"] is Role.PREFILL


async def test_roles_merge_when_few_ask_and_next_to_nothing_runs(kept: Kept) -> None:
    """Too few for a P90, and what is known of them suffices: they wait for nobody, and no prompt is long."""
    kept.serves(4)
    made = kept.keeper.tick()
    assert (made.action, made.reason) == (RoleAction.MERGE, RoleReason.LOW_TRAFFIC)
    await kept.settle()
    assert set(kept.roles().values()) == {Role.MIXED}
    [event] = [one for one in kept.decided if one.replica is not None]
    assert event.seen is not None
    assert (event.seen.requests, event.seen.in_flight) == (4, 0.0)


async def test_requests_that_fail_are_traffic_too(kept: Kept) -> None:
    """Four that end well among hundreds that do not are no low traffic; their times teach nothing all the same."""
    kept.serves(4)
    kept.serves(300, status=502)
    made = kept.keeper.tick()
    assert (made.action, made.reason) == (RoleAction.HOLD, RoleReason.UNKNOWN)


async def test_fleet_that_nobody_asks_keeps_its_roles(kept: Kept) -> None:
    """Nothing tells what will come, so nothing is gained by a move."""
    for _ in range(10):
        kept.clock.now_s += 20.0
        made = kept.keeper.tick()
    assert (made.action, made.reason) == (RoleAction.HOLD, RoleReason.UNKNOWN)


async def test_cost_that_nobody_measured_moves_no_role_and_is_no_work(kept: Kept) -> None:
    """What is routed with at the start tells no times: neither what answers lost, nor what a long prompt took."""
    kept.cost = START_COST
    kept.serves(10, tpot_ms=45.0, tokens=Tokens(prompt=4000, delivered=0, output=20))
    made = kept.keeper.tick()
    assert (made.action, made.reason) == (RoleAction.HOLD, RoleReason.UNKNOWN)
    kept.clock.now_s += 1.0
    kept.cost = COST
    sides, idle_ms = kept.keeper._sides(), COST.step_ms(1.0)
    seen = kept.keeper._watch.seen(kept.clock.now_s, sides, step_idle_ms=idle_ms)
    assert (seen.samples, seen.local_work) == (10, 0.0)


async def test_nothing_moves_until_work_was_watched_for_a_window(kept: Kept) -> None:
    """After a change of configuration too; from then on it is a mean over all the time that was watched."""
    kept.keeper.use_config(msgspec.structs.replace(FOLLOW, cooldown_s=60.0))
    made: list[RolesDecision] = []
    for _ in range(3):
        kept.clock.now_s += 10.0
        kept.serves(1, tokens=Tokens(prompt=1000, delivered=0, output=20))
        kept.serves(10, tpot_ms=45.0)
        made.append(kept.keeper.tick())
    unknown = RoleReason.UNKNOWN
    assert [one.reason for one in made[:2]] == [unknown, unknown]
    seen = kept.decided[-1].seen
    assert made[2].action is RoleAction.MERGE
    assert seen is not None
    assert seen.local_work == pytest.approx(3 * COST.prefill_ms(1000) / 1000.0 / 30.0)


async def test_drafting_answers_lose_what_their_steps_lose(kept: Kept) -> None:
    """Accepted drafts make a token cheap and a step no shorter: what is lost is by the step, as the engine counted."""
    kept.drafting = {"r0"}
    idle_ms = COST.step_ms(1.0)
    kept.serves(10, tpot_ms=idle_ms, drafting=Drafting(drafted=12, accepted=10, drafts=4))
    sides = kept.keeper._sides()
    seen = kept.keeper._watch.seen(kept.clock.now_s, sides, step_idle_ms=idle_ms)
    assert seen.tokens_per_step == pytest.approx(19 / 9)
    assert seen.lost_share == pytest.approx(1.0 - 9 / 19)


async def test_replica_that_drafts_and_does_not_count_moves_no_role(kept: Kept) -> None:
    """Nobody knows how many steps its tokens took, and the decision says so."""
    kept.drafting = {"r0"}
    kept.serves(10, tpot_ms=45.0)
    made = kept.keeper.tick()
    assert (made.action, made.reason) == (RoleAction.HOLD, RoleReason.UNKNOWN)
    lost = "the time that answers lose: tokens per step of 10 of 10 answers not measured"
    assert made.unknown == (lost,)


async def test_idle_step_is_unknown_where_the_cost_was_learned_of_uncounted_drafts(
    kept: Kept,
) -> None:
    """What a token took there is no step: nothing can be compared with it, though the work of prompts is known."""
    kept.cost = msgspec.structs.replace(COST, tokens_per_step=None)
    kept.serves(10, tpot_ms=45.0)
    made = kept.keeper.tick()
    words = "the time that answers lose: tokens per step not measured where the cost was"
    assert (made.reason, made.unknown) == (RoleReason.UNKNOWN, (words,))


async def test_failed_requests_teach_nothing(kept: Kept) -> None:
    """Their times are not what users got."""
    kept.serves(10, tpot_ms=500.0, status=502)
    assert kept.keeper.tick().reason is RoleReason.UNKNOWN


async def test_roles_stay_while_a_lever_is_proven_and_no_time_is_lost_by_it(kept: Kept) -> None:
    """The comparison would change under it; once it is over the change is made at the next tick."""
    kept.plan = TrafficPlan(policy="round_robin", candidate=CANDIDATE)
    kept.serves(10, tpot_ms=45.0)
    kept.keeper.tick()
    assert kept.roles()["r2"] is Role.PREFILL
    with pytest.raises(RoleRefusedError, match="ngram is being proven"):
        await kept.keeper.set_role("r2", Role.MIXED)
    kept.plan = TrafficPlan(policy="round_robin")
    kept.keeper.tick()
    await kept.settle()
    assert kept.roles()["r2"] is Role.MIXED


async def test_dear_transfers_raise_the_mark_from_which_prompts_travel(kept: Kept) -> None:
    """Half of the target goes by on the link: the mark doubles, and what would help is said."""
    kept.hands_over(10, **DEAR)
    made = kept.keeper.tick()
    assert (kept.thresholds[-1], len(made.advice)) == (2.0, 3)


async def test_what_the_prefill_replica_had_cached_is_no_work_of_it(kept: Kept) -> None:
    """Where it says what it computed that counts, as in the simulator; else the whole prompt."""
    kept.serves(1, prefill_replica="r2", tokens=Tokens(prompt=4000, ahead=1000, output=20))
    kept.serves(1, prefill_replica="r2", tokens=Tokens(prompt=4000, ahead=10, output=20))
    kept.serves(1, prefill_replica="r2", tokens=Tokens(prompt=2000, output=20))
    sides, idle_ms = kept.keeper._sides(), COST.step_ms(1.0)
    seen = kept.keeper._watch.seen(kept.clock.now_s, sides, step_idle_ms=idle_ms)
    work_s = (COST.prefill_ms(1000) + COST.prefill_ms(2000)) / 1000.0
    assert seen.ahead_work == pytest.approx(work_s / FOLLOW.window_s)


async def test_prompt_that_was_sent_ahead_is_work_as_the_prefill_side_computes(kept: Kept) -> None:
    """Replicas that prefill may run other threads and another chunk than those that decode."""

    def twice(cost: CostModel) -> CostModel:
        return msgspec.structs.replace(cost, prefill_ms_per_token=2.0 * cost.prefill_ms_per_token)

    kept.cost_ahead = twice
    kept.serves(1, prefill_replica="r2", tokens=Tokens(prompt=4000, ahead=4000, output=20))
    kept.serves(1, tokens=Tokens(prompt=4000, delivered=0, output=20))
    sides, idle_ms = kept.keeper._sides(), COST.step_ms(1.0)
    seen = kept.keeper._watch.seen(kept.clock.now_s, sides, step_idle_ms=idle_ms)
    here_s, ahead_s = COST.prefill_ms(4000) / 1000.0, twice(COST).prefill_ms(4000) / 1000.0
    assert seen.local_work == pytest.approx(here_s / FOLLOW.window_s)
    assert seen.ahead_work == pytest.approx(ahead_s / FOLLOW.window_s)


async def test_role_that_was_taken_while_a_change_waited_its_turn_is_not_taken_twice(
    kept: Kept,
) -> None:
    """Two ask for the same at once: the replica drains and is started once."""
    drains = []
    fleet = kept.harness.fleet
    inner = fleet.take_role

    async def counted(replica: str, *rest: Any, **named: Any) -> None:
        drains.append(replica)
        await inner(replica, *rest, **named)

    fleet.take_role = counted  # type: ignore[method-assign]
    both = (kept.keeper.take(("r1",), Role.PREFILL, cause_id=None) for _ in range(2))
    await asyncio.gather(*both)
    assert drains == ["r1"]
    assert kept.roles()["r1"] is Role.PREFILL


async def test_replica_that_left_while_its_change_waited_keeps_nothing(kept: Kept) -> None:
    """It is told as every change that cannot be, and nothing breaks."""
    async with kept.keeper._lock:
        waiting = asyncio.create_task(kept.keeper.take(("r1",), Role.PREFILL, cause_id=None))
        await asyncio.sleep(0)
        await kept.harness.fleet.remove("r1", drain_timeout_s=1)
    with pytest.raises(LaunchError, match="it left the fleet"):
        await waiting


async def test_prefill_replica_that_stands_in_for_others_gives_its_role_up_too(kept: Kept) -> None:
    """A lever is taken back while nobody else serves: once they are back nobody may prefill for them."""
    fleet = kept.harness.fleet
    for name in ("r0", "r1"):
        member = fleet._members[name]
        fleet._move(member, ReplicaState.FAILED, "gone", None)
    assert kept.roles()["r2"] is Role.MIXED
    assert kept.keeper.prefilling() == ("r2",)
    await kept.keeper.take(kept.keeper.prefilling(), Role.MIXED, cause_id=None)
    for name in ("r0", "r1"):
        fleet._move(fleet._members[name], ReplicaState.READY, "back", None)
    assert set(kept.roles().values()) == {Role.MIXED}


async def test_transfer_is_weighed_against_its_own_prompt(kept: Kept) -> None:
    """Prompts of many seconds that move quickly make no slow transfer of a short prompt cheap."""
    kept.hands_over(10, ms=500.0, prompt=4000)
    kept.hands_over(10, ms=20.0, prompt=20)
    cheap = kept.keeper.tick().local_factor
    kept.clock.now_s += FOLLOW.window_s
    kept.hands_over(10, ms=20.0, prompt=4000)
    kept.hands_over(10, ms=500.0, prompt=20)
    dear = kept.keeper.tick().local_factor
    assert (cheap, dear) == (1.0, 2.0)


async def test_what_the_decode_side_held_is_no_work_that_a_transfer_saved(kept: Kept) -> None:
    """Of a long prompt that it held but for its end, only the end would have been computed there."""
    kept.hands_over(10, ms=500.0, prompt=4000, held_tokens=3990)
    assert kept.keeper.tick().local_factor == 2.0


@pytest.mark.parametrize(
    "changes", [{"outcome": HandOverOutcome.FAILED}, {"transfer_ms": None}], ids=str
)
async def test_hand_over_that_failed_or_was_not_timed_makes_no_transfer_dear(
    kept: Kept, changes: dict[str, Any]
) -> None:
    """Its time is no price of moving KV."""
    kept.hands_over(10, **DEAR, **changes)
    assert kept.keeper.tick().local_factor == 1.0


async def test_mark_from_which_prompts_travel_stays_while_a_lever_is_proven(kept: Kept) -> None:
    """It would change what both arms do; once the proof is over the mark moves at the next tick."""
    kept.plan = TrafficPlan(policy="round_robin", candidate=CANDIDATE)
    kept.hands_over(10, **DEAR)
    held = kept.keeper.tick().local_factor
    kept.plan = TrafficPlan(policy="round_robin")
    moved = kept.keeper.tick().local_factor
    assert (held, moved, kept.thresholds[-2:]) == (1.0, 2.0, [1.0, 2.0])


async def test_fixed_roles_watch_nothing_and_let_the_mark_go(kept: Kept) -> None:
    """Nobody would forget what was watched; what following raised ends with it, and begins anew with the next."""
    kept.hands_over(10, **DEAR)
    kept.keeper.tick()
    raised = kept.thresholds[-1]
    kept.keeper.use_config(msgspec.structs.replace(FOLLOW, mode=RolesMode.FIXED))
    let_go = kept.thresholds[-1]
    kept.serves(10)
    kept.keeper.use_config(FOLLOW)
    kept.keeper.tick()
    event_seen = kept.decided[-1].seen
    assert (raised, let_go, kept.thresholds[-1]) == (2.0, 1.0, 1.0)
    kept.serves(3)
    made = kept.keeper._watch.seen(
        kept.clock.now_s, kept.keeper._sides(), step_idle_ms=COST.step_ms(1.0)
    )
    assert (made.samples, event_seen and event_seen.samples) == (3, 0)


async def test_change_that_does_not_drain_is_told_and_the_replica_serves_on(kept: Kept) -> None:
    """It is not tried again at once."""
    kept.keeper.use_config(msgspec.structs.replace(FOLLOW, drain_s=0.05))
    kept.harness.in_flight = 1
    kept.serves(10, tpot_ms=45.0)
    kept.keeper.tick()
    await kept.settle()
    kept.harness.in_flight = 0
    assert kept.roles()["r2"] is Role.PREFILL
    assert "1 requests still ran" in kept.decided[-1].because


async def test_person_changes_a_role_and_the_answer_names_all(kept: Kept) -> None:
    """With what was decided in the ledger; the same again is refused, as is a name that is not there."""
    done = await kept.keeper.set_role("r1", Role.PREFILL)
    assert done.roles == {"r0": Role.DECODE, "r1": Role.PREFILL, "r2": Role.PREFILL}
    assert kept.decided[-1].because == "a person asked"
    for replica, role, words in (
        ("r1", Role.PREFILL, "prefills already"),
        ("r0", Role.MIXED, "takes whole requests already"),
        ("r9", Role.MIXED, "there is no replica 'r9'"),
    ):
        with pytest.raises(RoleRefusedError, match=words):
            await kept.keeper.set_role(replica, role)


OWN = PrefillEngineConfig(
    threads=3,
    chunk_tokens=64,
    speculation=Speculation(method=SpeculationMethod.NGRAM_SIMPLE, match_tokens=6),
)


async def test_role_with_settings_of_its_own_is_a_restart_there_and_back() -> None:
    """`roles.prefill_engine` is what replicas that prefill run, and the baseline what others do."""
    one = Kept(msgspec.structs.replace(FOLLOW, prefill_engine=OWN))
    await one.start()
    given = await one.keeper.set_role("r1", Role.PREFILL)
    there = one.harness.fleet.info("r1")
    assert there.revision == OLD.replace(chunk_tokens=64, speculation=OWN.speculation)
    assert there.threads == 3
    assert given.restarted_with == "3 threads, chunk 64, speculation ngram simple"
    back = await one.keeper.set_role("r1", Role.MIXED)
    info = one.harness.fleet.info("r1")
    assert (info.revision, info.threads) == (OLD, 1)
    assert back.restarted_with == f"1 thread, chunk {OLD.chunk_tokens}, speculation off"
    restarts = [name for name, _ in one.harness.launcher.started]
    assert restarts == ["r0", "r1", "r2", "r1", "r1"], (
        "r0, called decode either way, restarts never"
    )
    await one.harness.fleet.stop()


@pytest.mark.parametrize(
    "own", [PrefillEngineConfig(), PrefillEngineConfig(chunk_tokens=OLD.chunk_tokens, threads=1)]
)
async def test_role_whose_settings_are_what_the_replica_runs_is_routing_alone(
    own: PrefillEngineConfig,
) -> None:
    """Whether nothing is said or the same: no process ends."""
    one = Kept(msgspec.structs.replace(FOLLOW, prefill_engine=own))
    await one.start()
    given = await one.keeper.set_role("r1", Role.PREFILL)
    assert (given.restarted_with, one.roles()["r1"]) == ("", Role.PREFILL)
    assert len(one.harness.launcher.started) == 3
    await one.harness.fleet.stop()


async def test_restart_for_a_role_waits_until_its_kv_was_fetched() -> None:
    """The old process holds what others are still to fetch: it is not ended before."""
    one = Kept(msgspec.structs.replace(FOLLOW, prefill_engine=OWN))
    await one.start()
    one.harness.in_flight = 1
    changing = asyncio.create_task(one.keeper.set_role("r1", Role.PREFILL))
    await one.harness.until(lambda: one.harness.states("r1")[-1] is ReplicaState.DRAINING)
    await asyncio.sleep(0.05)
    waited = len(one.harness.launcher.started)
    one.harness.in_flight = 0
    await changing
    assert (waited, len(one.harness.launcher.started)) == (3, 4)
    states = one.harness.states("r1")[1:]
    assert ReplicaState.RESTARTING in states[states.index(ReplicaState.DRAINING) :]
    await one.harness.fleet.stop()


async def test_replicas_that_prefill_from_the_start_have_their_settings_then() -> None:
    """Nobody restarts for what the configuration said before anything ran."""
    config = Config(roles=RolesConfig(prefill=1, prefill_engine=OWN))
    own = Kept(config.roles)
    with_own = dict.fromkeys(("r0", "r1", "r2"), OLD)
    fleet = own.harness.fleet
    cores = msgspec.structs.replace(OWN, threads=1)
    roles = msgspec.structs.replace(config.roles, prefill_engine=cores)
    own.keeper.config = roles
    config = msgspec.structs.replace(config, roles=roles)
    await start_fleet(config, fleet, own.keeper, with_own, 0, None)
    found = {name: fleet.info(name).revision.chunk_tokens for name in with_own}
    assert found == {"r0": OLD.chunk_tokens, "r1": OLD.chunk_tokens, "r2": 64}
    assert own.roles() == {"r0": Role.DECODE, "r1": Role.DECODE, "r2": Role.PREFILL}
    assert len(own.harness.launcher.started) == 3
    await fleet.stop()


async def test_settings_that_no_replica_can_have_end_the_start() -> None:
    """Though nobody prefills yet: the role may be asked for at any time."""
    config = Config(
        roles=RolesConfig(mode=RolesMode.FOLLOW, prefill_engine=PrefillEngineConfig(threads=4096))
    )
    one = Kept(config.roles)
    with pytest.raises(LaunchError, match=r"prefill_engine\.threads = 4096 is more than"):
        await start_fleet(config, one.harness.fleet, one.keeper, {"r0": OLD}, 0, None)
    assert one.harness.launcher.started == []


async def test_other_unknowns_are_written_down_and_another_count_of_them_is_not(kept: Kept) -> None:
    """Who waits for a move learns what it lacks, once for each lack."""
    kept.keeper.config = msgspec.structs.replace(FOLLOW, samples_min=100)
    kept.cost = msgspec.structs.replace(COST, tokens_per_step=None)
    runs(kept)
    for count in (2, 3):
        kept.clock.now_s += 61.0
        kept.serves(count)
        kept.keeper.tick()
    told = [one.decision and one.decision.unknown for one in kept.decided]
    assert len(told) == 2
    assert told[-1] is not None
    assert told[-1][0] == "2 requests ended, 100 are needed"


async def test_reason_to_hold_is_written_down_once(kept: Kept) -> None:
    """A control that holds for an hour does not fill the ledger: nobody asks, and before that nothing was watched."""
    for _ in range(600):
        kept.clock.now_s += 6.0
        kept.keeper.tick()
    told = [one.decision and one.decision.unknown for one in kept.decided]
    assert len(told) == 2
    assert "times to the first token" in (told[-1] or ())


async def test_long_is_what_travels_and_not_the_engines_chunk(kept: Kept) -> None:
    """Prompts between both marks are sent ahead: their work counts there, or a busy prefill replica would look idle."""
    config = Config(
        engine=EngineConfig(chunk_tokens=2048),
        handover=HandOverConfig(chunk_tokens=256),
        roles=FOLLOW,
    )
    rules = rules_of(config.handover, config.engine.chunk_tokens)
    pool = PrefillPool(kept.load, rules, cost=None)
    keeper = build_roles(
        config,
        kept.harness.fleet,
        cast(Router, SimpleNamespace(load=kept.load, plan=kept.plan)),
        kept.sink,
        kept.clock,
        OLD,
        cost=lambda: kept.cost,
        hand_overs=cast(
            HandOvers, SimpleNamespace(pool=pool, raise_threshold=kept.thresholds.append)
        ),
        cause=lambda: "start",
    )
    kept.clock.now_s += FOLLOW.window_s
    tokens = Tokens(prompt=1500, delivered=1499, output=20)
    for at in range(30):
        ahead = {"prefill_replica": "r2", "tokens": tokens, "tpot_ms": 45.0}
        keeper.on_record(msgspec.structs.replace(record(at), **ahead))
    made = keeper.tick()
    [seen] = [one.seen for one in kept.decided if one.decision == made]
    assert seen is not None
    assert seen.ahead_work == pytest.approx(COST.prefill_ms(1500) / 1000.0)
    assert rules.chunk_tokens == 256
    assert made.reason is not RoleReason.FEW_LONG_PROMPTS
