"""Roles as a lever on a real fleet: moved, compared by switchback on the same replicas, adopted, taken back."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest
from serving_kit import Serving, until_true
from situations import readings, situation

from trimtab.core.config import EngineConfig
from trimtab.core.cost import CostModel
from trimtab.core.events import HandedOver, TriggerMoved
from trimtab.core.gate import GateSpec, Metric, Question
from trimtab.core.handover import HandOverOutcome
from trimtab.core.lever import Comparison, LeverRecord, RampPlan, TriggerSignal
from trimtab.core.types import Arm, Role, RolloutState
from trimtab.diagnosis.names import Name
from trimtab.levers.disaggregation import SplitRoles

pytestmark = [
    pytest.mark.engine_llamacpp,
    pytest.mark.alone,
    pytest.mark.timeout(400),
    pytest.mark.usefixtures("own_state"),
]

# Of a machine like this one; so that long prompts are worth sending ahead whatever this one is.
COST = CostModel(
    prefill_base_ms=10.0,
    prefill_ms_per_token=6.0,
    step_base_ms=12.0,
    step_ms_per_stream=2.0,
    prefill_samples=10,
    step_samples=10,
    source="of a machine like this one",
)
LOW_TRAFFIC_TICKS = 3


def record_of(serving: Serving) -> LeverRecord:
    """The record that the lever writes itself, with a short ramp and no gate that needs longer than a test waits."""
    seen = readings(
        **{
            Name.DECODE_BESIDE_PREFILL_SHARE: 0.5,
            Name.DECODE_MS_PER_TOKEN: 80.0,
            Name.BUSY_SHARE: 0.7,
        }
    )
    of = msgspec.structs.replace(situation(seen), revision=serving.system.baseline)
    lever = SplitRoles()
    assessment = lever.assess(of)
    assert assessment.available, assessment.because
    written = lever.propose(of, assessment, "a test asked")
    now_s = serving.system.clock.wall_s()
    ramp = RampPlan(
        shares=(0.5,),
        peak_cycle_s=6.0,
        comparison=Comparison.SWITCHBACK,
        block_s=2.0,
        edge_s=0.1,
        harm_alpha=None,
    )
    quick = tuple(
        msgspec.structs.replace(one, ticks=LOW_TRAFFIC_TICKS)
        if one.signal is TriggerSignal.LOAD_PER_REPLICA
        else one
        for one in written.triggers
    )
    return msgspec.structs.replace(
        written,
        ramp=ramp,
        gates=tuple(gate for gate in written.gates if not needs_time(gate)),
        triggers=quick,
        created_at_s=now_s,
        expires_at_s=now_s + 3600.0,
    )


TAKES_TIME = (Metric.TTFT_MS, Metric.TPOT_MS, Metric.OUTPUT_DIFFERENCE)


def needs_time(gate: GateSpec) -> bool:
    """Say whether a gate may hold for longer than a test waits: what is tested here is what moves."""
    return gate.question is not Question.GAIN and gate.metric in TAKES_TIME


@asynccontextmanager
async def traffic(serving: Serving) -> AsyncIterator[list[bool]]:
    """Two clients with short prompts and long answers, one with long prompts; what they got is kept."""
    stop, got = asyncio.Event(), list[bool]()

    async def ask(name: str, words: int, tokens: int) -> None:
        turn = 0
        while not stop.is_set():
            turn += 1
            text = " ".join(f"{name} {turn} item {at}" for at in range(words))
            got.append(await serving.ask(f"{name}-{turn}", text, tokens=tokens))

    clients = [
        asyncio.create_task(ask(*each))
        for each in (("ann", 3, 40), ("bob", 3, 40), ("long", 70, 4))
    ]
    try:
        yield got
    finally:
        stop.set()
        await asyncio.gather(*clients)


def roles(serving: Serving) -> dict[str, Role]:
    """The role of each replica now."""
    return {info.id: info.role for info in serving.system.fleet.infos()}


async def test_roles_are_proven_on_the_same_replicas_adopted_and_merged_when_traffic_ends(
    tmp_path: Path,
) -> None:
    """Only the candidate's blocks send prompts ahead; every request is answered; low traffic gives the replica back."""
    engine = EngineConfig(slots=4, context_tokens=1024, threads=1, chunk_tokens=64)
    async with Serving(tmp_path, engine) as serving:
        serving.system.use_cost(COST)
        serving.system.hand_overs.costs.use(COST)
        record = record_of(serving)
        controller = serving.control.controller
        async with traffic(serving) as got:
            await serving.start(record)
            began_s = serving.system.clock.wall_s()
            assert roles(serving) == {"r0": Role.DECODE, "r1": Role.PREFILL}
            await until_true(
                lambda: (
                    controller.proof is not None
                    and controller.proof.rollout.state is RolloutState.PROVING
                ),
                120,
                f"it is proving: {controller.proof and controller.proof.rollout}",
            )
            await until_true(lambda: delivered(serving) >= 1, 60, "a prompt went ahead")
            proven = [one for one in serving.system.records if one.arrived_at_s >= began_s]
            await controller.adopt_now("a test asked")
            controller.finish()
            sent = delivered(serving)
            await until_true(lambda: delivered(serving) > sent, 60, "prompts travel once adopted")
        assert serving.state(record.name) is RolloutState.ADOPTED
        await until_true(
            lambda: set(roles(serving).values()) == {Role.MIXED}, 60, "low traffic merges the roles"
        )
        assert all(got)
        moved = [one for one in serving.events() if isinstance(one, TriggerMoved)]
    assert [one.trigger.name for one in moved][:1] == ["low-traffic"]
    by_arm = {arm: [one for one in proven if one.arm is arm] for arm in Arm}
    assert {one.prefill_replica for one in by_arm[Arm.BASELINE]} == {None}
    assert "r1" in {one.prefill_replica for one in by_arm[Arm.CANDIDATE]}
    # The same hardware: in the baseline's blocks the prefill replica answers too.
    assert {one.replica for one in by_arm[Arm.BASELINE]} == {"r0", "r1"}


def delivered(serving: Serving) -> int:
    """How many hand-overs arrived."""
    told = [one.hand_over for one in serving.events() if isinstance(one, HandedOver)]
    return sum(one.outcome is HandOverOutcome.DELIVERED for one in told)
