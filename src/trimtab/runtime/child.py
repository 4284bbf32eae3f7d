"""One replica's process as its parent sees it: start, the line that says it is ready, its filtered log, its end.

The engine's log is filtered by an allowlist before it reaches a file: some of its complaints quote the request, and no
prompt may reach a disk. What is kept are its own numbered lines of errors, failed assertions and fatal signals.
"""

import asyncio
import contextlib
import os
import re
import sys
from collections import deque
from pathlib import Path
from typing import Final

import msgspec

from trimtab.core.ports import LaunchError
from trimtab.runtime.ending import end_process
from trimtab.runtime.replica_main import ReplicaAnswer, ReplicaOrder

LOG_BYTES_MAX: Final = 4 * 1024 * 1024
_LAST_LINES: Final = 20
_LINE_BYTES_MAX: Final = 64 * 1024
_KEPT: Final = re.compile(
    rb"\d+\.\d\d\.\d{3}\.\d{3} E |GGML_ASSERT|ggml_|Fatal Python error|the parent died|the kernel refused"
)
# A C++ exception's own words can quote what was being parsed; that there was one is enough.
_TERMINATED: Final = re.compile(rb"terminate called after throwing an instance of '[\w:]+'")


class Child:
    """A started process. Make it with `spawn`."""

    def __init__(self, replica: str, process: asyncio.subprocess.Process, log_path: Path) -> None:
        self.replica = replica
        self._process = process
        self._log = FilteredLog(log_path)
        self._pump = asyncio.create_task(self._read_log(), name=f"log of {replica}")

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """How it ended (minus the signal's number if by one), None while it runs."""
        return self._process.returncode

    @property
    def last_words(self) -> str:
        """The last line it logged that may be kept; empty if none."""
        return self._log.last_line

    async def ready(self) -> str:
        """Wait for its answer and return the address; raises `LaunchError` if it could not start."""
        assert self._process.stdout is not None
        try:
            line = await self._process.stdout.readline()
            said = msgspec.json.decode(line, type=ReplicaAnswer) if line else None
        except (msgspec.MsgspecError, ValueError) as error:
            raise LaunchError(f"replica {self.replica} answered with garbage") from error
        if said is not None and said.url is not None:
            return said.url
        code = await self.wait()
        reason = said.error if said is not None else f"its process ended with {say_exit(code)}"
        words = f" (engine: {self.last_words})" if self.last_words else ""
        raise LaunchError(f"replica {self.replica} did not start: {reason}{words}")

    async def wait(self) -> int:
        """Wait for its end, its log read to the end, and return the exit code."""
        code = await self._process.wait()
        await asyncio.shield(self._pump)
        return code

    async def stop(self, *, grace_s: float) -> None:
        """End it: SIGTERM, `grace_s`, SIGKILL. Returns when it is gone and reaped, cancelled or not."""
        await end_process(self._process, grace_s=grace_s, kill=self._signal_kill, gone=self.wait)

    def _signal_kill(self) -> None:
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()

    async def _read_log(self) -> None:
        stderr = self._process.stderr
        assert stderr is not None
        with self._log:
            while not stderr.at_eof():
                try:
                    self._log.take(await stderr.readline())
                except ValueError:
                    # A line longer than the reader's limit: the reader dropped it, and so do we.
                    continue


async def spawn(replica: str, order: ReplicaOrder, log_path: Path) -> Child:
    """Start a replica's process and hand it its order; raises `LaunchError` if there is no process to be had."""
    try:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "trimtab.runtime.replica_main",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            limit=_LINE_BYTES_MAX,
            # Ctrl-C in a terminal goes to the parent alone, which drains before it stops its replicas.
            start_new_session=True,
        )
    except OSError as error:
        raise LaunchError(f"replica {replica} got no process: {error.strerror}") from error
    child = Child(replica, process, log_path)
    assert process.stdin is not None
    process.stdin.write(msgspec.json.encode(order))
    # It may have died already; then its missing answer says so.
    with contextlib.suppress(ConnectionError):
        await process.stdin.drain()
    process.stdin.close()
    return child


def say_exit(code: int | None) -> str:
    """Return an exit code in words."""
    if code is None:
        return "an unknown exit code"
    return f"signal {-code}" if code < 0 else f"exit code {code}"


class FilteredLog:
    """A log file of mode 0600 that takes only lines which cannot quote a request, and only so many bytes."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._file = os.fdopen(descriptor, "ab", buffering=0)
        self._room = max(0, LOG_BYTES_MAX - os.fstat(descriptor).st_size)
        self._lines: deque[str] = deque(maxlen=_LAST_LINES)

    def __enter__(self) -> "FilteredLog":
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    @property
    def last_line(self) -> str:
        """The last line taken."""
        return self._lines[-1] if self._lines else ""

    def take(self, line: bytes) -> None:
        """Keep a line if it may be kept."""
        kept = keepable(line)
        if kept is None:
            return
        self._lines.append(kept.decode("utf-8", "replace"))
        if len(kept) < self._room:
            self._room -= self._file.write(kept + b"\n")


def keepable(line: bytes) -> bytes | None:
    """Return what of a log line may be kept, None if nothing."""
    if (terminated := _TERMINATED.match(line)) is not None:
        return terminated.group()
    return line.rstrip() if _KEPT.match(line) else None
