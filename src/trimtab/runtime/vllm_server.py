"""One vLLM server as whoever started it sees it: its guard process, its log, its process group, its end."""

import asyncio
import contextlib
import os
import re
import signal
import sys
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import msgspec

from trimtab.core.ports import LaunchError
from trimtab.engines.vllm_log import keepable_line, last_error, start_stage
from trimtab.runtime.ending import end_process
from trimtab.runtime.hardware import PROC, resident_bytes
from trimtab.runtime.vllm_guard import group_pids

LOG_BYTES_MAX: Final = 4 * 1024 * 1024
START_LINES_MAX: Final = 20_000
_LAST_LINES: Final = 200
_LINE_BYTES_MAX: Final = 256 * 1024
_GONE_POLL_S: Final = 0.05
# Ours must not leak into an interpreter of another environment, nor keep it from storing what it compiled.
_NOT_INHERITED: Final = (
    "PYTHONPATH",
    "PYTHONHOME",
    "PYTHONDONTWRITEBYTECODE",
    "VIRTUAL_ENV",
    "__PYVENV_LAUNCHER__",
)


class ProcessMemory(msgspec.Struct, frozen=True):
    """One process: its resident bytes, and its part of them where shared pages are split among those that share."""

    pid: int
    name: str
    resident_bytes: int
    proportional_bytes: int | None


class VllmServer:
    """A started server. Make it with `spawn_server`."""

    def __init__(
        self,
        name: str,
        process: asyncio.subprocess.Process,
        log_path: Path,
        on_stage: Callable[[str], None],
    ) -> None:
        self.name = name
        self.log_path = log_path
        self._process = process
        self._on_stage = on_stage
        self._start_lines: list[str] = []
        self._last_lines: deque[str] = deque(maxlen=_LAST_LINES)
        self._serving = False
        self._pump = asyncio.create_task(self._read_log(), name=f"log of {name}")

    @property
    def pid(self) -> int:
        """Its guard's process id, which is its process group's too."""
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """How it ended, None while it runs."""
        return self._process.returncode

    @property
    def start_log(self) -> str:
        """What it said until it served."""
        return "\n".join(self._start_lines)

    @property
    def last_error(self) -> str:
        """The last line of its log that tells of an error; the last line at all if none does."""
        found = last_error(self._last_lines)
        return found or (self._last_lines[-1].strip() if self._last_lines else "")

    def serves(self) -> None:
        """Note that it answers from now on: its log may now quote requests, and is filtered."""
        self._serving = True

    def memory(self) -> tuple[ProcessMemory, ...]:
        """Return the memory of every process of its group but its guard, the largest first."""
        return tuple(
            sorted(
                (one for one in group_memory(self.pid) if one.pid != self.pid),
                key=lambda one: -one.resident_bytes,
            )
        )

    async def wait(self) -> int:
        """Wait for its end, its log read to the end, and return the exit code."""
        code = await self._process.wait()
        await asyncio.shield(self._pump)
        return code

    async def stop(self, *, grace_s: float) -> None:
        """End it: ask, wait `grace_s`, kill the whole group. Returns when no process of the group is left."""
        await end_process(
            self._process, grace_s=grace_s, kill=self._kill_group, gone=self._group_gone
        )

    async def _group_gone(self) -> None:
        # The kernel tells of children only, and these are their children.
        while group_pids(self.pid):  # noqa: ASYNC110
            await asyncio.sleep(_GONE_POLL_S)
        await self.wait()

    def _kill_group(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)

    async def _read_log(self) -> None:
        stream = self._process.stdout
        assert stream is not None
        descriptor = os.open(self.log_path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w", buffering=1, encoding="utf-8") as file:
            room = LOG_BYTES_MAX
            while not stream.at_eof():
                try:
                    line = (await stream.readline()).decode("utf-8", "replace").rstrip()
                except ValueError:
                    # A line longer than the reader's limit: the reader dropped it, and so do we.
                    continue
                kept = self._take(line)
                if kept is not None and len(kept) < room:
                    room -= file.write(kept + "\n")

    def _take(self, line: str) -> str | None:
        """Return what of a line goes to the file."""
        kept = keepable_line(line) if self._serving else line
        if not kept:
            return None
        self._last_lines.append(kept)
        if not self._serving and len(self._start_lines) < START_LINES_MAX:
            self._start_lines.append(kept)
            if (stage := start_stage(kept)) is not None:
                self._on_stage(stage)
        return kept


async def spawn_server(
    name: str,
    argv: Sequence[str],
    env: dict[str, str],
    log_path: Path,
    on_stage: Callable[[str], None],
) -> VllmServer:
    """Start a server's guard, which starts the server; raises `LaunchError` if there is no process to be had."""
    inherited = {key: value for key, value in os.environ.items() if key not in _NOT_INHERITED}
    # The guard runs in our environment and must find us; the server gets the command's own path.
    guard = [sys.executable, "-m", "trimtab.runtime.vllm_guard", str(os.getpid()), "--"]
    try:
        log_path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        process = await asyncio.create_subprocess_exec(
            *guard,
            *_with_path(argv, env),
            env={**inherited, **_guard_path()},
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            limit=_LINE_BYTES_MAX,
            # Its group is what is counted and killed; Ctrl-C in a terminal goes to us alone.
            start_new_session=True,
        )
    except OSError as error:
        raise LaunchError(f"server {name} got no process: {error.strerror}") from error
    return VllmServer(name, process, log_path, on_stage)


def _guard_path() -> dict[str, str]:
    path = os.environ.get("PYTHONPATH")
    return {} if path is None else {"PYTHONPATH": path}


def _with_path(argv: Sequence[str], env: dict[str, str]) -> list[str]:
    """Return the command with its variables set by `env`, and without the path that only the guard needs."""
    drop = [] if "PYTHONPATH" in env else ["-u", "PYTHONPATH"]
    return ["env", *drop, *(f"{key}={value}" for key, value in sorted(env.items())), *argv]


def group_memory(group: int) -> tuple[ProcessMemory, ...]:
    """Return the memory of every process of a group; those that end meanwhile are left out."""
    found = []
    for pid in group_pids(group):
        resident = resident_bytes(pid)
        if resident:
            found.append(ProcessMemory(pid, _name(pid), resident, _proportional(pid)))
    return tuple(found)


def _name(pid: int) -> str:
    try:
        words = (PROC / str(pid) / "cmdline").read_bytes().split(b"\0")
    except OSError:
        return ""
    title = words[0].decode("utf-8", "replace").strip()
    return title if title.startswith("VLLM::") else " ".join(_short(word) for word in words[:3])


def _short(word: bytes) -> str:
    return word.decode("utf-8", "replace").rpartition("/")[2]


def _proportional(pid: int) -> int | None:
    """Return the resident bytes of a process with shared pages split among those that share them."""
    try:
        text = (PROC / str(pid) / "smaps_rollup").read_text()
    except OSError:
        return None
    match = re.search(r"^Pss:\s+(\d+) kB", text, re.MULTILINE)
    return None if match is None else int(match[1]) * 1024
