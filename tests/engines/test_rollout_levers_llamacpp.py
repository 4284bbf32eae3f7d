"""Levers that meet, on a real fleet: adopting one has the other proven again."""

import asyncio
from pathlib import Path

import msgspec
import pytest
from serving_kit import RECORD, Serving, until_true

from trimtab.core.config import (
    EngineConfig,
)
from trimtab.core.events import (
    GatesEvaluated,
    RolloutMoved,
    VerificationDue,
)
from trimtab.core.gate import GateSpec, Metric, Question
from trimtab.core.lever import LeverRecord
from trimtab.core.types import RolloutState

pytestmark = [
    pytest.mark.engine_llamacpp,
    pytest.mark.alone,
    pytest.mark.timeout(330),
    pytest.mark.usefixtures("own_state"),
]


REPEATED = "Repeat this line ten times: one two three four five six seven eight nine ten."


# -- levers that meet ----------------------------------------------------------------------------

SPECULATION = RECORD.format(
    name="speculation",
    technique="speculation",
    head="[revision]\nspeculation = {method = 'ngram_simple', match_tokens = 6, draft_tokens_max = 8}",
    shares="[0.5]",
    peak="4s",
    block="1s",
    rest="""
[expected.tpot_ms]
ratio = 0.7
low = 0.4
high = 0.95
because = "texts are repeated"
""",
)
SMALLER_KV = RECORD.format(
    name="smaller-kv",
    technique="quantization",
    head="quality_exposure = 'lossy'\nquality_gate = 'outputs at temperature 0'\n[revision]\nkv_type = 'q8_0'",
    shares="[0.5]",
    peak="4s",
    block="1s",
    rest="""
[expected.memory_bytes]
ratio = 0.9
low = 0.5
high = 0.99
because = "keys and values take half"
[[gates]]
metric = "memory_bytes"
question = "gain"
margin = 0.02
""",
)


async def test_adopting_a_precision_lever_has_speculation_verified_again(
    tmp_path: Path,
) -> None:
    """Both are adopted on replicas of their own; the second marks the first, which is proven again with a verdict."""
    engine = EngineConfig(slots=4, context_tokens=1024, threads=1)
    async with Serving(tmp_path, engine, replicas=3) as serving:
        serving.control.verifies = True
        stop = asyncio.Event()
        clients = [asyncio.create_task(steady(serving, number, stop)) for number in range(4)]
        try:
            await adopt(serving, serving.record(SPECULATION))
            await adopt(serving, serving.record(SMALLER_KV))
            await until_true(lambda: verdict_of_rerun(serving) is not None, 120, "it ended")
        finally:
            stop.set()
            await asyncio.gather(*clients)
        [due] = [event for event in serving.events() if isinstance(event, VerificationDue)]
        assert (due.lever, due.changed) == ("speculation", "smaller-kv")
        assert due.budgets
        looks = [e for e in serving.events() if isinstance(e, GatesEvaluated)]
        assert [look.lever for look in looks][-1] == "speculation"
        assert serving.system.fleet.info("r1").revision.kv_type == "q8_0"
        assert verdict_of_rerun(serving) in (RolloutState.ADOPTED, RolloutState.ROLLED_BACK)


async def steady(serving: Serving, number: int, stop: asyncio.Event) -> None:
    """Short requests of many sessions, one after the other."""
    turn = 0
    while not stop.is_set():
        await serving.ask(f"client-{number}-{turn % 5}", f"{REPEATED} {turn}", tokens=12)
        turn += 1


async def adopt(serving: Serving, record: LeverRecord) -> None:
    """Prove a lever as far as a person may adopt it, and adopt it."""
    controller = serving.control.controller
    relaxed = tuple(gate for gate in record.gates if not needs_time(gate))
    await serving.start(msgspec.structs.replace(record, gates=relaxed))
    await until_true(
        lambda: (
            controller.proof is not None and controller.proof.rollout.state is RolloutState.PROVING
        ),
        90,
        f"{record.name} is proving: {controller.proof and controller.proof.rollout}",
    )
    await controller.adopt_now("a test asked")
    controller.finish()


TAKES_TIME = (Metric.TTFT_MS, Metric.TPOT_MS, Metric.OUTPUT_DIFFERENCE)


def needs_time(gate: GateSpec) -> bool:
    """A veto that may hold for longer than a test waits; what is tested here is what follows an adoption."""
    return gate.question is Question.VETO and gate.metric in TAKES_TIME


def verdict_of_rerun(serving: Serving) -> RolloutState | None:
    """Where the lever that was due went after its gates were asked again."""
    moves = [
        e for e in serving.events() if isinstance(e, RolloutMoved) and e.lever == "speculation"
    ]
    begun = [at for at, each in enumerate(moves) if each.before is RolloutState.ADOPTED]
    if not begun:
        return None
    ends = (RolloutState.ADOPTED, RolloutState.ROLLED_BACK)
    return next((each.after for each in moves[begun[0] + 1 :] if each.after in ends), None)
