"""Programs of benchmarks in the sandbox: they pass or fail by their tests, and reach nothing outside."""

import asyncio
import os
import shutil
import tempfile
from pathlib import Path

import pytest

from trimtab.runtime import sandbox
from trimtab.runtime.sandbox import (
    ProgramEnd,
    ProgramLimits,
    SandboxError,
    check_sandbox,
    run_program,
)

QUICK = ProgramLimits(cpu_s=5, memory_bytes=256 * 1024 * 1024, disk_bytes=4 * 1024 * 1024)


@pytest.fixture(autouse=True)
def kept_in() -> None:
    """These tests need what the sandbox needs; where it refuses, it is the refusal that is tested."""
    try:
        asyncio.run(check_sandbox())
    except SandboxError as error:
        pytest.skip(f"sandbox: {error}")


@pytest.mark.parametrize(
    ("source", "end"),
    [
        ("assert sorted([3, 1]) == [1, 3]", ProgramEnd.PASSED),
        ("def add(a, b):\n    return a\nassert add(1, 2) == 3", ProgramEnd.FAILED),
        ("def add(a, b:", ProgramEnd.FAILED),
        ("import sys; sys.exit(0)", ProgramEnd.FAILED),
        ("import os; os._exit(0)", ProgramEnd.FAILED),
        ("print('x' * 1_000_000)", ProgramEnd.PASSED),
        ("x = bytearray(1 << 30)", ProgramEnd.FAILED),
        ("open('/tmp/a', 'wb').write(bytes(1 << 20))", ProgramEnd.PASSED),
        ("open('/tmp/a', 'wb').write(bytes(16 << 20))", ProgramEnd.FAILED),
        (
            "import collections, dataclasses, heapq, math, re, random, typing, itertools",
            ProgramEnd.PASSED,
        ),
    ],
)
async def test_program_ends_as_its_tests_say(source: str, end: ProgramEnd) -> None:
    """Passed only if it ran to its end: not one that leaves early, breaks, or takes more than it may."""
    assert await run_program(source, QUICK) is end


@pytest.mark.parametrize(
    "source",
    [
        "import socket; socket.create_connection(('127.0.0.1', 1), 1)",
        "import socket; socket.getaddrinfo('example.org', 80)",
        "import os; os.setuid(0)",
        "import os; os.fork()",
        "import threading; threading.Thread(target=print).start()",
        "import subprocess; subprocess.run(['/bin/sh', '-c', 'true'], check=True)",
        "open('/usr/bin/answer', 'w')",
        "open('/etc/passwd')",
        "import os; os.listdir('/proc')",
        "import os; os.kill(2, 9)",
        "import ctypes; assert ctypes.CDLL(None).unshare(0x10000000) == 0",
        "import os; os.listdir('/var')",
        f"open({__file__!r})",
    ],
)
async def test_program_reaches_nothing_outside(source: str) -> None:
    """No network, no other user, no second process, no file but its own."""
    assert await run_program(source, QUICK) is ProgramEnd.FAILED


async def test_program_that_never_ends_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that waits and one that computes; nothing of either is left."""
    # A user of its own: other tests run programs at the same time.
    monkeypatch.setattr(sandbox, "UID", 100_000 + os.getpid() % 100_000)
    ends = [
        await run_program("import time; time.sleep(99)", ProgramLimits(time_s=3.0)),
        await run_program("while True: pass", ProgramLimits(cpu_s=1)),
    ]
    assert ends == [ProgramEnd.OUT_OF_TIME, ProgramEnd.FAILED]
    assert running() == []


async def test_nothing_of_a_program_is_left_on_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its root and its files are gone with it."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    await run_program("open('/tmp/kept', 'w').write('x')", QUICK)
    assert left(tmp_path) == []


async def test_sandbox_that_cannot_be_had_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without its tools, or where namespaces are not allowed: an error that says what to do, and nothing ran."""
    monkeypatch.setattr(sandbox.shutil, "which", lambda tool: None if tool == "unshare" else tool)
    with pytest.raises(SandboxError, match="unshare is not to be had here"):
        await check_sandbox()
    monkeypatch.undo()
    whole = sandbox._command

    def denied(root: Path, limits: ProgramLimits) -> list[str]:
        false = shutil.which("false")
        assert false is not None
        return [false, *whole(root, limits)]

    monkeypatch.setattr(sandbox, "_command", denied)
    with pytest.raises(SandboxError, match="only run in a sandbox"):
        await run_program("pass", QUICK)


def running() -> list[Path]:
    """Processes of the sandbox's user."""
    processes = [path for path in Path("/proc").iterdir() if path.name.isdigit()]
    return [path for path in processes if _uid(path) == sandbox.UID]


def left(folder: Path) -> list[Path]:
    return list(folder.iterdir())


def _uid(process: Path) -> int | None:
    try:
        return os.stat(process).st_uid
    except FileNotFoundError:
        return None
