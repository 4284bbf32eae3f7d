"""An error burst in the candidate of a rollout, on a real fleet."""

import asyncio
import os
import signal
from pathlib import Path

import pytest
from serving_kit import RECORD, Serving, until_true

from trimtab.core.config import (
    EngineConfig,
)
from trimtab.core.events import (
    RolloutMoved,
)
from trimtab.core.types import Arm, ReplicaState, RolloutState

pytestmark = [
    pytest.mark.engine_llamacpp,
    pytest.mark.alone,
    pytest.mark.timeout(330),
    pytest.mark.usefixtures("own_state"),
]


# -- an error burst in the candidate -----------------------------------------------------------

SMALLER_CHUNKS = RECORD.format(
    name="smaller-chunks",
    technique="prefill_chunking",
    head="[revision]\nchunk_tokens = 128",
    shares="[0.5, 0.95]",
    peak="20min",
    block="2s",
    rest="""
[expected.chunk_gap_ms]
ratio = 0.8
low = 0.5
high = 0.95
because = "smaller batches"
""",
)
BURST = 16


async def test_error_burst_in_the_candidate_rolls_it_back_within_two_ticks(
    tmp_path: Path,
) -> None:
    """Its process dies under sixteen streams: they break, the lever goes, and no later request fails."""
    engine = EngineConfig(slots=BURST, context_tokens=512)
    async with Serving(tmp_path, engine) as serving:
        record = serving.record(SMALLER_CHUNKS)
        await serving.start(record)
        candidate = await serving.sessions(Arm.CANDIDATE, 8)
        baseline = await serving.sessions(Arm.BASELINE, 4)
        for at in range(24):
            assert await serving.ask(baseline[at % 4], f"Say {at}.", tokens=2)
        begun: list[int] = []
        streams = [
            asyncio.create_task(
                serving.ask(
                    candidate[at % 8],
                    f"Tell story {at}.",
                    tokens=400,
                    begun=lambda: begun.append(1),
                )
            )
            for at in range(BURST)
        ]
        await until_true(lambda: len(begun) == BURST, 60, "all streams run")
        ticks = count_ticks(serving)
        pid = serving.system.fleet.info("r1").pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        answered = await asyncio.gather(*streams)
        ticks.clear()
        later = [
            await serving.ask(session, f"Go on {at}.", tokens=2)
            for at in range(4)
            for session in (*candidate, *baseline)
        ]
        await until_true(
            lambda: serving.state(record.name) is RolloutState.ROLLED_BACK, 30, "rolled back"
        )
        assert answered.count(False) == BURST
        assert later == [True] * len(later)
        assert ticks.index(RolloutState.ROLLED_BACK) < 2
        assert "errors failed" in last_move(serving, record.name).reason
        await until_true(lambda: is_plain(serving, "r1"), 60, "its replica is back")
        assert serving.system.router.plan.candidate is None


def count_ticks(serving: Serving) -> list[RolloutState]:
    """Keep where the lever is after each tick of the controller from now on."""
    controller, seen = serving.control.controller, list[RolloutState]()
    tick = controller.tick

    async def counted() -> None:
        await tick()
        if controller.proof is not None:
            seen.append(controller.proof.rollout.state)

    controller.tick = counted  # type: ignore[method-assign]
    return seen


def last_move(serving: Serving, lever: str) -> RolloutMoved:
    return [e for e in serving.events() if isinstance(e, RolloutMoved) and e.lever == lever][-1]


def is_plain(serving: Serving, replica: str) -> bool:
    info = serving.system.fleet.info(replica)
    return info.state is ReplicaState.READY and info.revision == serving.system.baseline
