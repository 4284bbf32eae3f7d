"""No replica outlives its parent, however the parent ends."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = [pytest.mark.engine_llamacpp, pytest.mark.timeout(120)]

PARENT = """
import asyncio
from trimtab.core.config import EngineConfig
from trimtab.runtime.clock import SystemClock
from trimtab.runtime.launcher import LlamaCppLauncher
from trimtab.runtime.model import baseline_revision

async def main():
    launcher = LlamaCppLauncher(clock=SystemClock(), start_timeout_s=60, threads=1)
    revision = baseline_revision(EngineConfig(slots=1, context_tokens=256))
    places = launcher.place(["a", "b"])
    waits = [asyncio.create_task(launcher.start(revision, place)) for place in places]
    if WAIT:
        await asyncio.gather(*waits)
    while any(launcher.pid(name) is None for name in "ab"):
        await asyncio.sleep(0.001)
    print(launcher.pid("a"), launcher.pid("b"), places[0].slot_dir, flush=True)
    await asyncio.sleep(600)

asyncio.run(main())
"""


def runs(pid: int) -> bool:
    """Whether a process is there and no zombie that waits for its reaper."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.parametrize("wait", [True, False], ids=["running", "still-starting"])
def test_children_die_with_a_killed_parent(wait: bool) -> None:
    """SIGKILL gives the parent no chance to clean up; the kernel ends its replicas, ready or not."""
    script = PARENT.replace("WAIT", str(wait))
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        first, second, folder = parent.stdout.readline().decode().split()
        pids = (int(first), int(second))
        assert [runs(pid) for pid in pids] == [True, True]
        os.kill(parent.pid, signal.SIGKILL)
    deadline = time.monotonic() + 5
    while any(runs(pid) for pid in pids) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert [runs(pid) for pid in pids] == [False, False]
    assert Path(folder).exists()


def test_next_launcher_sweeps_what_a_killed_one_left() -> None:
    """The slot folder of a killed parent is gone once another launcher has started."""
    script = PARENT.replace("WAIT", "True")
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        folder = Path(parent.stdout.readline().decode().split()[2])
        os.kill(parent.pid, signal.SIGKILL)
    assert folder.exists()
    sweep = "from trimtab.runtime.slot_files import SlotFiles; SlotFiles().close()"
    subprocess.run([sys.executable, "-c", sweep], check=True)
    assert not folder.exists()
