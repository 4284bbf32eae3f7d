"""Calibration of a real llama.cpp: what a prefill, a step and a speculated step cost."""

import json
import re
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest
import pytest_asyncio

from trimtab.core.config import EngineConfig
from trimtab.core.revision import Speculation, SpeculationMethod
from trimtab.engines.llamacpp import LlamaCppFormat
from trimtab.runtime.calibrate import (
    Replica,
    SpeculationProbe,
    calibrate_cost,
    calibrate_speculation,
)
from trimtab.runtime.clock import SystemClock
from trimtab.runtime.launcher import LlamaCppLauncher
from trimtab.runtime.model import baseline_revision

pytestmark = [pytest.mark.engine_llamacpp, pytest.mark.alone]  # threads on every core

NGRAM = Speculation(method=SpeculationMethod.NGRAM_SIMPLE, match_tokens=6, draft_tokens_max=6)
CODE = "def add(first, second):\n    total = first + second\n    return total\n"
ASK = f"Rename total to result in this function and give back all of it:\n```python\n{CODE}```\n"
EDIT = json.dumps(
    {
        "model": "default",
        "messages": [
            {"role": "user", "content": ASK},
            {"role": "assistant", "content": f"```python\n{re.sub('total', 'result', CODE)}```"},
            {"role": "user", "content": "Again, with the name outcome."},
        ],
        "stream": True,
        "temperature": 0,
        "max_tokens": 40,
    }
).encode()


@pytest_asyncio.fixture
async def launcher(tmp_path: Path) -> AsyncIterator[LlamaCppLauncher]:
    """A launcher whose slot files are checked to be gone at the end."""
    memory = tmp_path / "memory"
    memory.mkdir()
    opened = LlamaCppLauncher(
        clock=SystemClock(), start_timeout_s=60.0, log_folder=tmp_path, memory_root=memory
    )
    yield opened
    left = list(memory.rglob("*.kv"))
    await opened.close()
    assert left == []


async def test_costs_of_a_real_engine(launcher: LlamaCppLauncher) -> None:
    """Prefill and decode cost something, and a larger batch never less; the machine may be busy with other tests."""
    (place,) = launcher.place(["r1"])
    url = await launcher.start(baseline_revision(EngineConfig(slots=4)), place)
    async with aiohttp.ClientSession() as session:
        cost = await calibrate_cost(
            url, LlamaCppFormat(), session=session, clock=SystemClock(), budget_s=1.0
        )
    assert cost.prefill_samples >= 2
    assert cost.step_samples >= 3
    assert cost.prefill_ms_per_token > 0.0
    assert cost.step_ms(4) >= cost.step_ms(1) > 0.0


async def test_speculation_of_a_real_engine(launcher: LlamaCppLauncher) -> None:
    """Both sides decode the same prompt; drafts are accepted where the answer repeats the prompt."""
    plain = baseline_revision(EngineConfig(slots=4))
    places = launcher.place(["r1", "r2"])
    off = await launcher.start(plain, places[0])
    on = await launcher.start(plain.replace(speculation=NGRAM), places[1])
    async with aiohttp.ClientSession() as session:
        table = await calibrate_speculation(
            Replica(id="r1", url=off),
            Replica(id="r2", url=on),
            NGRAM,
            SpeculationProbe(
                path="/v1/chat/completions", prompts=(EDIT,), content="edit", batches=(1, 2)
            ),
            engine_format=LlamaCppFormat(),
            session=session,
            clock=SystemClock(),
            keeper=launcher,
        )
    assert [batch for batch, _ in table.ratios()] == [1, 2]
    assert all(ratio > 0.0 for _, ratio in table.ratios())
    assert table.on[0].accepted_per_step is not None
    assert table.on[0].accepted_per_step > 1.0
    assert table.off[0].accepted_per_step is None
