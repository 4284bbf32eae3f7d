"""Child processes of a comparison: started on a core of their own, watched through /proc, ended with their children."""

import os
import resource
import signal
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

OPEN_FILES: Final = 16_384
POLL_S: Final = 0.1
END_S: Final = 5.0
LOG_CHARS_SHOWN: Final = 2_000
PAGE_BYTES: Final = resource.getpagesize()


class ProcessError(RuntimeError):
    """A process did not come up; the message says which and how its log ends."""


class Process:
    """A started program with everything that it starts itself."""

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        *,
        core: int | None,
        log: Path,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.name = name
        self._log = log
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        if soft < OPEN_FILES:
            resource.setrlimit(resource.RLIMIT_NOFILE, (min(OPEN_FILES, hard), hard))
        pin = () if core is None else ("taskset", "--cpu-list", str(core))
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                [*pin, *command],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env={**os.environ, **(environment or {})},
            )

    @property
    def pid(self) -> int:
        """The process that leads."""
        return self._process.pid

    def wait_ready(self, url: str, timeout_s: float) -> None:
        """Return once `url` answers 200; raises `ProcessError`."""
        deadline_s = time.monotonic() + timeout_s
        while time.monotonic() < deadline_s:
            if self._process.poll() is not None:
                break
            try:
                with urllib.request.urlopen(url, timeout=2.0):
                    return
            except (urllib.error.URLError, OSError):
                time.sleep(POLL_S)
        said = read(self._log)[-LOG_CHARS_SHOWN:]
        raise ProcessError(f"{self.name} did not answer {url}; its log ends with:\n{said}")

    def pids(self) -> list[int]:
        """The process and everything below it."""
        found, todo = [], [self.pid]
        while todo:
            pid = todo.pop()
            found.append(pid)
            for path in Path(f"/proc/{pid}/task").glob("*/children"):
                todo += [int(child) for child in read(path).split()]
        return found

    def cpu_ns(self) -> int:
        """CPU time of all threads so far, in nanoseconds."""
        return sum(
            int((read(path).split() or ["0"])[0])
            for pid in self.pids()
            for path in Path(f"/proc/{pid}/task").glob("*/schedstat")
        )

    def resident_bytes(self) -> int:
        """Resident memory, what its processes share counted once for each."""
        sizes = (read(Path(f"/proc/{pid}/statm")).split() for pid in self.pids())
        return sum(int(size[1]) * PAGE_BYTES for size in sizes if size)

    def end(self) -> None:
        """Ask the group to end, and kill what is left after some seconds."""
        for how in (signal.SIGTERM, signal.SIGKILL):
            try:
                os.killpg(self.pid, how)
                self._process.wait(END_S)
            except ProcessLookupError:
                return
            except subprocess.TimeoutExpired:
                continue


def read(path: Path) -> str:
    """Return a file's text, nothing where it has gone."""
    try:
        return path.read_text()
    except OSError:
        return ""
