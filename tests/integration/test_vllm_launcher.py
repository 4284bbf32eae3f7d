"""A vLLM server is started, watched and ended whole, whatever it does."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import aiohttp
import pytest
from fake_vllm import fake_environment

from trimtab.core.ports import LaunchError
from trimtab.engines.vllm import VllmLaunch
from trimtab.runtime.clock import SystemClock
from trimtab.runtime.vllm_env import VllmEnvironment
from trimtab.runtime.vllm_guard import group_pids
from trimtab.runtime.vllm_launcher import VllmLauncher

SECRET = "the patient's name is"

PARENT = """
import asyncio, sys
from pathlib import Path
from trimtab.engines.vllm import VllmLaunch
from trimtab.runtime.clock import SystemClock
from trimtab.runtime.vllm_env import VllmEnvironment
from trimtab.runtime.vllm_launcher import VllmLauncher

async def main():
    environment = VllmEnvironment(Path(sys.argv[1]), Path("/none"))
    launcher = VllmLauncher(clock=SystemClock(), environment=environment, log_folder=Path(sys.argv[3]))
    running = await launcher.start(VllmLaunch(model=sys.argv[2], served_name="m", port=0))
    print(running.pid, flush=True)
    await asyncio.sleep(600)

asyncio.run(main())
"""


class Place:
    """A fake environment and its model."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.python, self.model = fake_environment(folder)

    def launcher(self, start_timeout_s: float = 30.0, available: int = 2**40) -> VllmLauncher:
        return VllmLauncher(
            clock=SystemClock(),
            environment=VllmEnvironment(self.python, self.folder),
            start_timeout_s=start_timeout_s,
            log_folder=self.folder / "logs",
            available=lambda: available,
        )

    def launch(self, **changes: object) -> VllmLaunch:
        plain = {"model": str(self.model), "served_name": "m", "port": 0}
        return VllmLaunch(**{**plain, **changes})

    def log(self) -> str:
        return "".join(path.read_text() for path in (self.folder / "logs").iterdir())


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


async def test_start_tells_what_the_server_takes(place: Place) -> None:
    """Address, model, the log's report, blocks from its metrics, and the stages it went through."""
    stages: list[str] = []
    async with place.launcher() as launcher:
        running = await launcher.start(
            place.launch(), on_stage=lambda stage, _seconds: stages.append(stage)
        )
        assert await launcher.is_healthy(running.url)
        assert [process.resident_bytes > 0 for process in launcher.memory("vllm")] == [True, True]
    assert (running.model.id, running.differences) == ("m", ())
    report = running.report
    assert (report.kv_tokens, report.kv_blocks, report.kv_cache_bytes) == (11648, 91, 2**28)
    assert stages == [
        "reading options",
        "starting the engine",
        *["sizing the KV cache"] * 2,
        "engine ready",
    ]


async def test_stop_leaves_no_process_of_the_group(place: Place) -> None:
    """A child that ignores being asked is killed with the rest."""
    async with place.launcher() as launcher:
        running = await launcher.start(place.launch())
        assert running.pid is not None
        assert len(group_pids(running.pid)) == 3
        await launcher.stop("vllm", grace_s=0.2)
        assert group_pids(running.pid) == ()
        assert not await launcher.is_healthy(running.url)


def test_killed_parent_takes_the_whole_group_along(place: Place) -> None:
    """SIGKILL gives the launcher no chance to clean up; the guard does it."""
    command = [sys.executable, "-c", PARENT, str(place.python), str(place.model)]
    with subprocess.Popen([*command, str(place.folder / "logs")], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        group = int(parent.stdout.readline())
        assert len(group_pids(group)) == 3
        os.kill(parent.pid, signal.SIGKILL)
    deadline = time.monotonic() + 10
    while group_pids(group) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert group_pids(group) == ()


async def test_server_that_dies_is_named_with_its_last_error(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The message has the exit code and the cause, and says where the whole log is."""
    monkeypatch.setenv("FAKE", "dies")
    async with place.launcher() as launcher:
        with pytest.raises(LaunchError, match=r"exit code 3 .*ValueError: no heads \(log: /"):
            await launcher.start(place.launch())


async def test_server_that_never_answers_is_given_up_and_ended(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No start waits for ever, and nothing of it stays."""
    monkeypatch.setenv("FAKE", "hangs")
    async with place.launcher(start_timeout_s=1.5) as launcher:
        with pytest.raises(LaunchError, match=r"did not answer within 1.5 s \(its log: .*0.53 s"):
            await launcher.start(place.launch())
        assert launcher.memory("vllm") == ()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tensor_parallel": 3}, "4 heads do not divide among tensor_parallel 3: use 2 or 4"),
        ({"kv_dtype": "int8_per_token_head"}, "answers with garbage: use auto or fp8"),
        ({"kv_cache_bytes": 2**41}, "MiB are available: lower its KV cache or its ranks"),
        ({"model": "/none"}, "there is no model at /none: name one of smollm2"),
    ],
)
async def test_hopeless_start_costs_no_process(
    place: Place, changes: dict[str, object], message: str
) -> None:
    """What can be known beforehand is said at once, with the fix."""
    async with place.launcher() as launcher:
        with pytest.raises(LaunchError, match=message):
            await launcher.start(place.launch(**changes))
    assert not (place.folder / "logs").exists()


async def test_taken_port_is_named(place: Place) -> None:
    """Two servers cannot share a port; the second says which one it wanted."""
    async with place.launcher() as launcher:
        running = await launcher.start(place.launch())
        assert running.launch is not None
        with pytest.raises(LaunchError, match=f"cannot listen on 127.0.0.1:{running.launch.port}"):
            await launcher.start(place.launch(port=running.launch.port), name="second")


async def test_shortened_context_is_told(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """What runs is compared with what was asked for."""
    monkeypatch.setenv("FAKE", "shortens")
    async with place.launcher() as launcher:
        running = await launcher.start(place.launch())
    assert running.differences == ("context_tokens: asked for 4096, runs 2048",)


async def test_no_prompt_reaches_the_log_file(place: Place) -> None:
    """The start-up log is kept whole; what a serving server complains about is kept without the complaint."""
    async with place.launcher() as launcher, aiohttp.ClientSession() as session:
        running = await launcher.start(place.launch())
        await session.post(f"{running.url}/say", data=SECRET)
        await launcher.stop("vllm", grace_s=0.2)
    log = place.log()
    assert "CPU KV cache size: 11,648 tokens" in log
    assert "ERROR 11-30 00:26:05 [serving.py:1]" in log
    assert SECRET not in log
    assert [path.stat().st_mode & 0o777 for path in (place.folder / "logs").iterdir()] == [0o600]


async def test_drain_waits_for_open_requests(place: Place) -> None:
    """A server with requests is not drained; without them it is at once."""
    async with place.launcher() as launcher, aiohttp.ClientSession() as session:
        running = await launcher.start(place.launch())
        await session.post(f"{running.url}/busy", data="2")
        assert not await launcher.drain("vllm", timeout_s=0.3)
        await session.post(f"{running.url}/busy", data="0")
        assert await launcher.drain("vllm", timeout_s=0.3)


async def test_attached_server_is_asked_and_never_stopped(place: Place) -> None:
    """Servers of others go on when we leave."""
    async with place.launcher() as owner:
        running = await owner.start(place.launch())
        async with place.launcher() as guest:
            attached = await guest.attach(running.url + "/", name="theirs")
            assert (attached.url, attached.model.id, attached.pid) == (running.url, "m", None)
            assert await guest.drain("theirs", timeout_s=0.3)
            await guest.stop("theirs")
        assert await owner.is_healthy(running.url)


async def test_attaching_to_nothing_is_an_error(place: Place) -> None:
    """The message has the address that was asked."""
    async with place.launcher() as launcher:
        with pytest.raises(LaunchError, match=r"nothing healthy answers at http://127.0.0.1:9/"):
            await launcher.attach("http://127.0.0.1:9", name="theirs")


async def test_end_of_a_server_is_noticed(place: Place) -> None:
    """Whoever waits for it learns its exit code, and what the server left behind is gone by then."""
    async with place.launcher() as launcher, aiohttp.ClientSession() as session:
        running = await launcher.start(place.launch())
        with pytest.raises(aiohttp.ClientError):
            await session.post(f"{running.url}/end", data="")
        assert await asyncio.wait_for(launcher.wait_exit("vllm"), 10) == 7
        assert running.pid is not None
        assert group_pids(running.pid) == ()
