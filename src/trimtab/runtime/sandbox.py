"""Programs of benchmarks, run where they can do no harm: no network, another user, a root of their own, limits.

Each program gets new namespaces (network, mounts, processes, IPC, names) and a root of its own: system libraries and
the interpreter, read-only, and an empty `/tmp` in memory. It runs as a user that owns nothing, without capabilities, as
one process without threads, with limits on CPU, memory, files and time. Made of util-linux (`unshare`, `setpriv`,
`prlimit`) and coreutils. What cannot be had is refused: `check_sandbox` runs a program that looks for what it must not
find, before any answer of a model is run.
"""

import asyncio
import contextlib
import os
import secrets
import shutil
import signal
import sys
import tempfile
from enum import StrEnum
from pathlib import Path
from typing import Final

import msgspec

from trimtab.core.ports import LaunchError

UID: Final = 64_731
"""Of nobody: no account of a usual system has it."""

OUTPUT_KEPT_BYTES: Final = 64 * 1024
TOOLS: Final = ("setpriv", "unshare", "prlimit", "chroot", "env", "mount", "sh")
SHARED: Final = ("/usr", "/lib", "/lib32", "/lib64", "/bin", "/sbin")

SETUP: Final = """
root=$1; python=$2; uid=$3; disk=$4; shift 4
mount -t tmpfs -o "size=$disk,nr_inodes=1024,mode=0755,nosuid,nodev" tmpfs "$root"
while [ "$1" != -- ]; do
    if [ -L "$1" ]; then ln -s "$(readlink "$1")" "$root$1"
    elif [ -d "$1" ]; then
        mkdir -p "$root$1"
        mount --bind "$1" "$root$1"
        mount -o remount,bind,ro,nosuid,nodev "$root$1"
    elif [ -f "$1" ]; then
        mkdir -p "$root$(dirname "$1")"
        cp "$1" "$root$1"
    fi
    shift
done
shift
mkdir -m 1777 "$root/tmp"
exec chroot "$root" env -i --chdir=/tmp HOME=/tmp PATH=/usr/bin:/bin setpriv --pdeathsig=KILL --reuid="$uid" \
    --regid="$uid" --clear-groups --no-new-privs --inh-caps=-all --ambient-caps=-all --bounding-set=-all \
    prlimit "$@" "$python" -I -S -B -c "$driver"
"""

DRIVER: Final = """
import sys
words = sys.stdin.readline().split()
source = sys.stdin.read()
print(words[0], flush=True)
exec(compile(source, "answer", "exec"), {"__name__": "__main__"})
sys.__stdout__.write("\\n" + words[1] + "\\n")
"""

PROBE: Final = f"""
import os, socket
assert os.getuid() == {UID} and os.getgid() == {UID} and os.getgroups() == []
assert [name for _, name in socket.if_nameindex()] in ([], ["lo"]), "there is a network"
for path in ("/answer", "/usr/answer"):
    try:
        open(path, "w")
    except OSError:
        continue
    raise AssertionError(path + " can be written")
for path in ("/proc/1", "/etc/passwd", "/var", "/dev", "/sys"):
    assert not os.path.exists(path), path + " can be seen"
assert os.listdir("/tmp") == []
try:
    os.fork()
except OSError:
    pass
else:
    raise AssertionError("a second process can be started")
"""


class SandboxError(LaunchError):
    """A program cannot be run safely here, or the sandbox broke; the message says what is missing."""


class ProgramEnd(StrEnum):
    """How a program ended. `FAILED`: also by a limit on CPU, memory or files."""

    PASSED = "passed"
    FAILED = "failed"
    OUT_OF_TIME = "out_of_time"


class ProgramLimits(msgspec.Struct, frozen=True, kw_only=True):
    """What one program may take. `cpu_s`: of computing; `time_s`: on the clock, for machines are busy."""

    cpu_s: int = 10
    time_s: float = 60.0
    memory_bytes: int = 512 * 1024 * 1024
    disk_bytes: int = 16 * 1024 * 1024
    files: int = 64


LIMITS_DEFAULT: Final = ProgramLimits()


async def check_sandbox() -> None:
    """Prove that programs are kept in; raises `SandboxError` where they are not."""
    missing = [tool for tool in TOOLS if shutil.which(tool) is None]
    if sys.platform != "linux" or missing:
        raise SandboxError(
            f"{_refusal()}: {', '.join(missing) or sys.platform} is not to be had here"
        )
    end = await run_program(PROBE)
    if end is not ProgramEnd.PASSED:
        raise SandboxError(f"{_refusal()}: a program that tried to get out {end.value}")


async def run_program(source: str, limits: ProgramLimits = LIMITS_DEFAULT) -> ProgramEnd:
    """Run a Python program in the sandbox and say how it ended; raises `SandboxError` where it was not started."""
    ready, done = secrets.token_hex(16), secrets.token_hex(16)
    root = await asyncio.to_thread(tempfile.mkdtemp, prefix="trimtab-sandbox-")
    try:
        with tempfile.TemporaryFile() as given:
            given.write(f"{ready} {done}\n{source}".encode())
            given.seek(0)
            process = await asyncio.create_subprocess_exec(
                *_command(Path(root), limits),
                stdin=given,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
            )
        try:
            async with asyncio.timeout(limits.time_s):
                output, said = await _heard(process)
                code = await process.wait()
        except TimeoutError:
            return ProgramEnd.OUT_OF_TIME
        finally:
            await _end(process)
    finally:
        # Its mounts are gone with its namespace: the folder is empty.
        await asyncio.to_thread(Path(root).rmdir)
    if ready.encode() not in output:
        raise SandboxError(f"{_refusal()}: {said.decode('utf-8', 'replace').strip()[:300]}")
    ran_through = code == 0 and done.encode() in output
    return ProgramEnd.PASSED if ran_through else ProgramEnd.FAILED


async def _heard(process: asyncio.subprocess.Process) -> tuple[bytes, bytes]:
    """Return the beginning and the end of what a program wrote, and of its complaints."""
    assert process.stdout is not None
    assert process.stderr is not None
    async with asyncio.TaskGroup() as group:
        output = group.create_task(_kept(process.stdout))
        said = group.create_task(_kept(process.stderr))
    return output.result(), said.result()


async def _kept(stream: asyncio.StreamReader) -> bytes:
    head, tail = b"", b""
    while part := await stream.read(OUTPUT_KEPT_BYTES):
        room = OUTPUT_KEPT_BYTES - len(head)
        head += part[:room]
        tail = (tail + part[room:])[-OUTPUT_KEPT_BYTES:]
    return head + tail


async def _end(process: asyncio.subprocess.Process) -> None:
    """Kill all that it started: they share a namespace of processes that dies with its first, and then it ends too."""
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            started = _children(process.pid)
            os.kill(started[0] if started else process.pid, signal.SIGKILL)
        # To the end of its pipes, so that they are closed.
        await asyncio.shield(process.communicate())


def _children(pid: int) -> list[int]:
    """Return the processes that one has started and not waited for; it must still be there to wait for them."""
    try:
        return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def _command(root: Path, limits: ProgramLimits) -> list[str]:
    prefix = str(Path(sys.base_prefix).resolve())
    shared = [*SHARED, "/etc/ld.so.cache", *([] if prefix.startswith("/usr") else [prefix])]
    python = str(Path(sys.base_prefix, "bin", f"python{sys.version_info[0]}.{sys.version_info[1]}"))
    return [
        # Whoever ends this process, the program ends with it. Changing the user takes that back, so it is said again.
        *("setpriv", "--pdeathsig", "KILL"),
        *("unshare", "--net", "--mount", "--ipc", "--uts", "--pid", "--fork", "--kill-child", "--"),
        *("env", f"driver={DRIVER}", "sh", "-euc", SETUP, "sandbox"),
        *(str(root), str(Path(python).resolve()), str(UID), str(limits.disk_bytes)),
        *(*shared, "--"),
        f"--cpu={limits.cpu_s}",
        f"--as={limits.memory_bytes}",
        f"--fsize={limits.disk_bytes}",
        f"--nofile={limits.files}",
        *("--nproc=1", "--core=0", "--msgqueue=0", "--memlock=0"),
    ]


def _refusal() -> str:
    return (
        "answers that are programs are only run in a sandbox (no network, another user, limits), which takes Linux, "
        "root and the right to make namespaces; leave such items out, or run as root where those are allowed"
    )
