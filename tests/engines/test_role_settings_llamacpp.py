"""A role with settings of its own on the real engine: what the replica runs is read back from its process."""

import os
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp
import msgspec
import pytest

from trimtab.core.config import Config, EngineConfig, FleetConfig, GatewayConfig, LedgerConfig
from trimtab.core.config_handover import HandOverConfig, PlaceRule
from trimtab.core.config_roles import PrefillEngineConfig, RolesConfig
from trimtab.core.events import HandedOver
from trimtab.core.handover import HandOverOutcome
from trimtab.core.revision import Speculation, SpeculationMethod
from trimtab.core.types import Role
from trimtab.runtime import system_roles
from trimtab.runtime.clock import SystemClock
from trimtab.runtime.measure import measure_cost
from trimtab.runtime.supervisor import System

pytestmark = [
    pytest.mark.engine_llamacpp,
    pytest.mark.timeout(420),
    pytest.mark.usefixtures("own_state"),
]

SLOTS, CHUNK = 2, 64
OWN = PrefillEngineConfig(
    threads=2,
    chunk_tokens=32,
    speculation=Speculation(
        method=SpeculationMethod.NGRAM_SIMPLE, match_tokens=4, draft_tokens_max=8
    ),
)
COMPUTES_SHARE = 0.25
"""Of the busiest thread's CPU time, from which on another one computes too: the others serve HTTP, or sleep."""

WORDS = " ".join(f"Item {at} costs {at * 7 % 97} coins." for at in range(30))


class Runs(NamedTuple):
    """What a replica's process was seen to run with."""

    slots: int
    drafts: bool
    chunk_tokens: int
    threads: int


@pytest.fixture
async def system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[System]:
    """Two replicas that serve whole requests with one thread each; those that prefill are to run otherwise."""
    # Two threads run on one core too, and they are counted here, not timed.
    monkeypatch.setattr(system_roles, "core_count", lambda: OWN.threads)
    config = Config(
        engine=EngineConfig(slots=SLOTS, chunk_tokens=CHUNK, threads=1),
        fleet=FleetConfig(replicas=2, start_timeout_s=120.0),
        gateway=GatewayConfig(port=0),
        ledger=LedgerConfig(path=str(tmp_path / "ledger.sqlite")),
        handover=HandOverConfig(
            place=PlaceRule.REMOTE, prefill_timeout_s=120.0, transfer_timeout_s=120.0
        ),
        roles=RolesConfig(prefill_engine=OWN),
    )
    async with System(
        config, SystemClock(), command="up", log_folder=tmp_path, secret_path=tmp_path / "secret"
    ) as started:
        yield started


async def post(url: str, body: Mapping[str, object]) -> Any:
    """Ask and return the answer's JSON."""
    async with aiohttp.ClientSession() as session, session.post(url, json=body) as response:
        assert response.status == 200, await response.text()
        return msgspec.json.decode(await response.read())


async def page(url: str) -> str:
    """The text of a replica's page."""
    async with aiohttp.ClientSession() as session, session.get(url) as response:
        return await response.text()


async def counter(url: str, name: str) -> float:
    """A counter of a replica's own metrics."""
    lines = (await page(f"{url}/metrics")).splitlines()
    [line] = [each for each in lines if each.startswith(f"llamacpp:{name} ")]
    return float(line.split()[1])


def cpu_ticks(pid: int) -> dict[str, int]:
    """CPU time of each thread of a process, in ticks."""
    found = {}
    for thread in os.listdir(f"/proc/{pid}/task"):
        fields = Path(f"/proc/{pid}/task/{thread}/stat").read_text().rsplit(")", 1)[1].split()
        found[thread] = int(fields[11]) + int(fields[12])
    return found


async def seen_of(system: System, replica: str, unique: str) -> Runs:
    """Have a replica compute a prompt that it does not hold, and see how it does that.

    Chunk: the prompt's tokens come in so many calls of the engine's decoder, one of which gives the only token.
    """
    info = system.fleet.info(replica)
    assert info.pid is not None
    names = ("prompt_tokens_total", "n_decode_total")
    before = [await counter(info.url, name) for name in names]
    ticks = cpu_ticks(info.pid)
    prompt = f"{unique} {WORDS}"
    await post(f"{info.url}/v1/completions", {"prompt": prompt, "max_tokens": 1, "temperature": 0})
    after = [await counter(info.url, name) for name in names]
    used = [now - ticks.get(thread, 0) for thread, now in cpu_ticks(info.pid).items()]
    tokens, calls = (now - then for now, then in zip(after, before, strict=True))
    slots = msgspec.json.decode(await page(f"{info.url}/slots"))
    # The only chunk of which so many tokens make so many calls, among powers of two.
    [chunk] = [size for size in (16, 32, 64, 128, 256) if -(-tokens // size) == calls]
    return Runs(
        slots=len(slots),
        drafts=any(slot["speculative"] for slot in slots),
        chunk_tokens=chunk,
        threads=sum(ticks > COMPUTES_SHARE * max(used) for ticks in used),
    )


async def answer_of(system: System) -> str:
    """The answer to the long prompt through the gateway, always the same at temperature 0."""
    body = {"model": "any", "prompt": WORDS, "max_tokens": 12, "temperature": 0}
    answer = await post(f"{system.url}/v1/completions", body)
    text = answer["choices"][0]["text"]
    assert isinstance(text, str)
    return text


async def test_replica_runs_the_settings_of_its_role_there_and_back_and_its_kv_still_fits(
    system: System,
) -> None:
    """Drafts, chunk and threads change with the role, those of the other do not; what it hands over fits."""
    whole = Runs(slots=SLOTS, drafts=False, chunk_tokens=CHUNK, threads=1)
    own = Runs(slots=SLOTS, drafts=True, chunk_tokens=32, threads=2)
    assert await seen_of(system, "r1", "First") == whole
    local = await answer_of(system)
    pids = {info.id: info.pid for info in system.fleet.infos()}

    given = await system.roles.set_role("r1", Role.PREFILL)
    assert given.restarted_with == "2 threads, chunk 32, speculation ngram simple"
    assert await seen_of(system, "r1", "Second") == own
    assert await seen_of(system, "r0", "Third") == whole
    await measure_cost(system, 0.1)
    there = system.hand_overs.pool.cost_there
    assert there is not None, "two threads are measured apart from one"
    assert there.prefill_samples > 0

    await system.launcher.erase_kv("r0")
    system.router.forget("r0")
    assert await answer_of(system) == local
    await system.ledger.flush()
    moved = [
        (one.event.hand_over.source, one.event.hand_over.outcome, one.event.hand_over.detail)
        for one in system.ledger.read()
        if isinstance(one.event, HandedOver)
    ]
    assert moved == [("r1", HandOverOutcome.DELIVERED, "")]

    await system.roles.set_role("r1", Role.MIXED)
    assert await seen_of(system, "r1", "Fourth") == whole
    now = {info.id: info.pid for info in system.fleet.infos()}
    assert (now["r0"] == pids["r0"], now["r1"] == pids["r1"]) == (True, False)
