"""Stands between trimtab and a vLLM server, so that none of its processes outlives whoever started it.

Run as `python -m trimtab.runtime.vllm_guard PARENT_PID -- COMMAND...`. A vLLM server is a handful of processes; when
its first one is killed the others can live on and hold gigabytes. The guard leads their process group: when its parent
dies (the kernel tells it), it kills the whole group. Asked to end, it asks the server. Once the server is gone,
however it went, what is left of the group is asked too and then killed; the guard's exit code is the server's.

Only the standard library is used: the guard should weigh little.
"""

import contextlib
import ctypes
import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import FrameType
from typing import NoReturn

_PR_SET_PDEATHSIG = 1
_PARENT_DIED = signal.SIGUSR1
_PROC = Path("/proc")
_POLL_S = 0.05
REST_GRACE_S = 2.0
"""How long the rest of the group has to end once the server has."""


def main() -> NoReturn:
    """Start the command, pass on what it is asked, and leave nothing behind."""
    parent, command = int(sys.argv[1]), sys.argv[3:]
    signal.signal(_PARENT_DIED, _kill_group)
    _die_on(_PARENT_DIED, parent)
    os.umask(0o077)
    # A core dump would write prompts to disk.
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    guard = os.getpid()
    server = subprocess.Popen(command, preexec_fn=lambda: _server_dies_with(guard))

    def ask(_number: int, _frame: FrameType | None) -> None:
        server.terminate()

    signal.signal(signal.SIGTERM, ask)
    code = server.wait()
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    _end_rest()
    sys.exit(code if code >= 0 else 128 - code)


def _server_dies_with(guard: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    _die_on(signal.SIGKILL, guard)


def _die_on(number: signal.Signals, parent: int) -> None:
    """Ask the kernel for a signal when the parent dies, and end if it has died already."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "the kernel refused PR_SET_PDEATHSIG")
    if os.getppid() != parent:
        sys.exit("the parent died before the server began")


def _kill_group(_number: int, _frame: FrameType | None) -> None:
    os.killpg(0, signal.SIGKILL)


def _end_rest() -> None:
    """End what is left of the group: ask, wait a little, kill. It would hold memory, and the log open."""
    _signal_rest(signal.SIGTERM)
    deadline = time.monotonic() + REST_GRACE_S
    while len(group_pids(os.getpid())) > 1 and time.monotonic() < deadline:
        time.sleep(_POLL_S)
    _signal_rest(signal.SIGKILL)


def _signal_rest(number: signal.Signals) -> None:
    for pid in group_pids(os.getpid()):
        if pid != os.getpid():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)


def group_pids(group: int) -> tuple[int, ...]:
    """Return the processes of a group that have not ended (one that waits to be reaped has)."""
    stats = ((entry.name, _stat(entry)) for entry in _PROC.iterdir() if entry.name.isdigit())
    return tuple(
        sorted(int(pid) for pid, (state, of) in stats if of == group and state not in "ZX")
    )


def _stat(entry: Path) -> tuple[str, int]:
    """Return a process's state and group; of one that is gone, ended and in no group."""
    try:
        # The name in brackets may hold spaces; what counts begins after it.
        words = (entry / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return "X", 0
    return words[0], int(words[2])


if __name__ == "__main__":
    main()
