"""Real llama.cpp replicas under the launcher and the fleet."""

import asyncio
import inspect
import os
import signal
import textwrap
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from expand_gguf import expand

from trimtab.core.config import Config, EngineConfig, FleetConfig
from trimtab.core.events import AnyEvent, KVMoved, ReplicaChanged, ReplicaCrashed
from trimtab.core.evidence import Evidence
from trimtab.core.ports import LaunchError
from trimtab.core.revision import Revision, Speculation, SpeculationMethod
from trimtab.core.types import ErrorClass, ReplicaState
from trimtab.engines.llamacpp import METRIC_NAMES, LlamaCppFormat
from trimtab.runtime.clock import SystemClock
from trimtab.runtime.fleet import Fleet
from trimtab.runtime.launcher import LlamaCppLauncher
from trimtab.runtime.ledger_memory import MemoryLedger
from trimtab.runtime.model import PACKAGED_SHA256, baseline_revision, find_model
from trimtab.runtime.probes import Probes, Target

pytestmark = [pytest.mark.engine_llamacpp, pytest.mark.timeout(180)]

PROMPT = inspect.getsource(textwrap.shorten) + inspect.getsource(textwrap.indent)
SPECULATION = Speculation(method=SpeculationMethod.NGRAM_SIMPLE, match_tokens=6, draft_tokens_max=8)


class Real:
    """A launcher, a fleet and a ledger in memory."""

    def __init__(self, folder: Path) -> None:
        self.clock = SystemClock()
        self.logs = folder / "logs"
        self.launcher = LlamaCppLauncher(
            clock=self.clock, start_timeout_s=60, threads=1, log_folder=self.logs
        )
        self.ledger = MemoryLedger(clock=self.clock)
        self.fleet = Fleet(
            Config(fleet=FleetConfig(restart_backoff_s=0.1, stop_grace_s=5)),
            self.launcher,
            self.ledger,
            self.clock,
            lambda _: None,
            in_flight=lambda _: 0,
        )
        # The engine closes a connection after a stream without announcing it.
        self.http = aiohttp.ClientSession(connector=aiohttp.TCPConnector(force_close=True))

    @property
    def events(self) -> list[AnyEvent]:
        return [envelope.event for envelope in self.ledger.read()]

    async def post(self, replica: str, body: object, path: str = "/v1/chat/completions") -> Any:
        url = self.fleet.info(replica).url
        async with self.http.post(url + path, json=body) as response:
            return await response.json()

    async def chat(self, replica: str, text: str, **more: object) -> Any:
        messages = [{"role": "user", "content": text}]
        return await self.post(
            replica, {"messages": messages, "max_tokens": 2, "temperature": 0, **more}
        )

    async def until_ready(self, replica: str) -> None:
        async with asyncio.timeout(30):
            while self.fleet.info(replica).state is not ReplicaState.READY:  # noqa: ASYNC110
                await asyncio.sleep(0.02)


@pytest.fixture
async def real(tmp_path: Path) -> AsyncIterator[Real]:
    """Everything for real replicas, and no process left behind."""
    made = Real(tmp_path)
    yield made
    await made.http.close()
    await made.fleet.stop()


@pytest.fixture(scope="module")
def revision() -> Revision:
    """Two slots of 1,024 tokens of the packaged model."""
    return baseline_revision(EngineConfig(slots=2, context_tokens=1024, chunk_tokens=512))


def slot_folder(real: Real) -> Path:
    (placement,) = real.launcher.place(["x"])
    return Path(placement.slot_dir)


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


def size(path: Path) -> int:
    return path.stat().st_size


def read(path: Path) -> str:
    return path.read_text()


def runs(pid: int | None) -> bool:
    assert pid is not None
    return Path(f"/proc/{pid}").exists()


async def test_two_replicas_are_up_within_seconds(
    real: Real, revision: Revision, record_property: Any
) -> None:
    """From nothing to two replicas that answer, in seconds that the report of the tests keeps."""
    began = time.monotonic()
    await real.fleet.start({"r0": revision, "r1": revision})
    took_s = time.monotonic() - began
    record_property("start_s", took_s)
    for replica in ("r0", "r1"):
        answer = await real.chat(replica, "Say hello.")
        assert answer["model"] == "SmolLM2-135M-Instruct"
        assert answer["usage"]["completion_tokens"] == 2
        assert [slot.n_ctx for slot in await real.launcher.slots(replica)] == [1024, 1024]
    assert find_model("").sha256 == PACKAGED_SHA256
    assert revision.model == find_model("", blocked_weights=True)


async def test_killed_replica_comes_back_and_is_on_record(real: Real, revision: Revision) -> None:
    """SIGKILL is a crash: an event with the signal, a new process on the same port, the other one untouched."""
    await real.fleet.start({"r0": revision, "r1": revision})
    before, other = real.fleet.info("r0"), real.fleet.info("r1")
    assert before.pid is not None
    os.kill(before.pid, signal.SIGKILL)
    await asyncio.sleep(0.1)
    await real.until_ready("r0")
    after = real.fleet.info("r0")
    assert (after.url, after.pid != before.pid, runs(after.pid)) == (before.url, True, True)
    assert [
        (event.replica, event.exit_code)
        for event in real.events
        if isinstance(event, ReplicaCrashed)
    ] == [("r0", -9)]
    assert real.fleet.info("r1").pid == other.pid
    assert (await real.chat("r0", "Say hello."))["usage"]["completion_tokens"] == 2


async def test_prefix_survives_a_restart_into_speculation(real: Real, revision: Revision) -> None:
    """Slots are saved and restored, so what was delivered before is delivered after, and no file stays."""
    await real.fleet.start({"r0": revision})
    await real.chat("r0", PROMPT)
    before = (await real.chat("r0", PROMPT))["usage"]
    text = (await real.chat("r0", PROMPT, max_tokens=8))["choices"][0]["message"]["content"]
    speculating = revision.replace(speculation=SPECULATION, chunk_tokens=256)
    await real.fleet.restart_into("r0", speculating, drain_timeout_s=5)
    answer = await real.chat("r0", PROMPT, max_tokens=8)
    delivered = [
        usage["prompt_tokens_details"]["cached_tokens"] for usage in (before, answer["usage"])
    ]
    assert delivered[0] > 300
    assert delivered[1] >= 0.95 * delivered[0]
    assert answer["choices"][0]["message"]["content"] == text
    moved = [event for event in real.events if isinstance(event, KVMoved)]
    assert [event.action for event in moved] == ["saved", "restored"]
    assert moved[0].tokens == moved[1].tokens >= delivered[0]
    assert names_in(slot_folder(real)) == [".owner"]


async def test_unused_prefix_survives_two_restarts(real: Real, revision: Revision) -> None:
    """Slots that nobody used since they were restored are saved again, though the engine does not list them."""
    await real.fleet.start({"r0": revision})
    await real.chat("r0", "Say hello to the llama.")
    for chunk in (256, 128):
        next_revision = revision.replace(chunk_tokens=chunk)
        await real.fleet.restart_into("r0", next_revision, drain_timeout_s=5)
    tokens = [event.tokens for event in real.events if isinstance(event, KVMoved)]
    assert tokens[0] > 0
    assert tokens == [tokens[0]] * 4
    usage = (await real.chat("r0", "Say hello to the llama."))["usage"]
    assert usage["prompt_tokens_details"]["cached_tokens"] == usage["prompt_tokens"] - 1


async def test_saved_slots_are_private(real: Real, revision: Revision) -> None:
    """Files of mode 0600 in a folder of mode 0700 in memory, one per slot that holds something."""
    await real.fleet.start({"r0": revision})
    await real.chat("r0", "Say hello.")
    saved = await real.launcher.save_kv("r0")
    folder = slot_folder(real)
    ((_, name),) = saved.files
    assert (folder.parent, mode(folder)) == (Path("/dev/shm"), 0o700)
    assert (mode(folder / name), size(folder / name)) == (0o600, saved.bytes)
    real.launcher.discard_kv(saved)
    assert names_in(folder) == [".owner"]


async def test_restart_with_other_kv_precision_drops_the_kv(real: Real, revision: Revision) -> None:
    """Unequal KV keys exchange nothing: the prefix is computed again, and the ledger says why."""
    await real.fleet.start({"r0": revision})
    await real.chat("r0", "Say hello to the llama.")
    await real.fleet.restart_into("r0", revision.replace(kv_type="q8_0"), drain_timeout_s=5)
    usage = (await real.chat("r0", "Say hello to the llama."))["usage"]
    assert usage["prompt_tokens_details"]["cached_tokens"] == 0
    reasons = [event.reason for event in real.events if isinstance(event, ReplicaChanged)]
    assert "KV dropped: the revisions' KV keys differ" in reasons


async def test_too_long_a_prompt_is_a_readable_400(real: Real, revision: Revision) -> None:
    """The engine's own error says how long the prompt is and how long it may be."""
    await real.fleet.start({"r0": revision})
    body = {"messages": [{"role": "user", "content": "llama " * 1200}]}
    url = real.fleet.info("r0").url
    async with real.http.post(f"{url}/v1/chat/completions", json=body) as response:
        status, data, error = (
            response.status,
            await response.read(),
            (await response.json())["error"],
        )
    assert (status, error["n_ctx"], error["n_prompt_tokens"] > 1200) == (400, 1024, True)
    assert LlamaCppFormat().classify_error(status, data) is ErrorClass.CONTEXT_OVERFLOW


async def test_no_prompt_reaches_the_log(real: Real, revision: Revision) -> None:
    """Good, broken and refused requests leave no word of theirs in the files."""
    await real.fleet.start({"r0": revision})
    await real.chat("r0", "XYZZY")
    await real.chat("r0", "XYZZY " * 1200)
    await real.chat("r0", "hi", grammar="root ::= XYZZY (((")
    await real.post("r0", {"messages": [{"role": "XYZZY", "content": {"XYZZY": 1}}]})
    url = real.fleet.info("r0").url + "/v1/chat/completions"
    async with real.http.post(url, data=b'{"messages": ["XYZZY" } XYZZY') as response:
        assert response.status == 400
    await real.fleet.stop()
    (log,) = names_in(real.logs)
    text = read(real.logs / log)
    assert "exceeds the available context size" in text
    assert "XYZZY" not in text
    assert mode(real.logs / log) == 0o600


async def test_probes_read_the_engine_and_the_process(real: Real, revision: Revision) -> None:
    """After a request every declared metric is known and says what was done; a dead replica is unknown."""
    await real.fleet.start({"r0": revision})
    info = real.fleet.info("r0")
    targets = {"r0": Target(url=info.url, threads=info.threads)}
    probes = Probes(lambda: targets, real.launcher, real.clock, every_s=60)
    await probes.read_once()
    usage = (await real.chat("r0", "Say hello."))["usage"]
    await probes.read_once()
    readings = probes.readings("r0")
    values = {item.name: item.value for item in readings.items if isinstance(item, Evidence)}
    assert set(METRIC_NAMES) <= set(values)
    assert values["prompt_tokens_total"] == usage["prompt_tokens"]
    assert values["kv_tokens_held"] >= usage["prompt_tokens"]
    assert values["kv_tokens_capacity"] == 2048.0
    assert 0.0 < values["cpu_busy_share"] < 3.0
    assert values["memory_resident_bytes"] > 50e6
    await real.fleet.stop()
    await probes.read_once()
    assert [item for item in probes.readings("r0").items if isinstance(item, Evidence)] == []


async def test_stop_ends_a_replica_in_the_middle_of_a_request(
    real: Real, revision: Revision
) -> None:
    """Nobody waits for a long answer at a stop, and the process is gone when stop returns."""
    await real.fleet.start({"r0": revision})
    pid = real.fleet.info("r0").pid
    request = asyncio.create_task(real.chat("r0", PROMPT, max_tokens=500))
    await asyncio.sleep(0.3)
    began = time.monotonic()
    await real.fleet.stop()
    assert (time.monotonic() - began < 3, runs(pid)) == (True, False)
    with pytest.raises(aiohttp.ClientError):
        await request


async def test_stuck_process_is_killed_after_the_grace(real: Real, revision: Revision) -> None:
    """A process that cannot react to SIGTERM ends by SIGKILL."""
    await real.fleet.start({"r0": revision})
    pid = real.fleet.info("r0").pid
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    real.fleet._stopping = True
    await real.launcher.stop("r0", grace_s=0.3)
    assert not runs(pid)


async def test_start_that_takes_too_long_leaves_no_process(
    tmp_path: Path, revision: Revision
) -> None:
    """The time-out names its setting, and the half-started process is gone."""
    launcher = LlamaCppLauncher(clock=SystemClock(), start_timeout_s=0.2, log_folder=tmp_path)
    (placement,) = launcher.place(["r0"])
    with pytest.raises(
        LaunchError, match=r"not healthy within 0\.2 s: raise fleet\.start_timeout_s"
    ):
        await launcher.start(revision, placement)
    assert launcher.pid("r0") is None
    await launcher.close()


async def test_model_of_another_size_runs(real: Real, revision: Revision, tmp_path: Path) -> None:
    """Any GGUF by path: here the packaged one with its weights written out as F16, which answers alike."""
    path = tmp_path / "SmolLM2-135M-F16.gguf"
    stored = Path(find_model("").path)
    assert expand(stored, path) > 100
    larger = revision.replace(model=find_model(str(path)))
    assert size(path) > 2 * size(stored)
    assert larger.kv_key != revision.kv_key
    await real.fleet.start({"r0": larger, "r1": revision})
    body = {"prompt": "The capital of France is", "max_tokens": 4, "temperature": 0}
    answers = [await real.post(replica, body, "/v1/completions") for replica in ("r0", "r1")]
    assert answers[0]["model"] == "SmolLM2-135M-F16"
    assert [" Paris" in answer["choices"][0]["text"] for answer in answers] == [True, True]
