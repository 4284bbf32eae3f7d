"""The process of one replica: llama.cpp's HTTP server, embedded, for as long as its parent lives.

Run as `python -m trimtab.runtime.replica_main`; reads one JSON object from stdin (`ReplicaOrder`) and writes one
JSON line (`ReplicaAnswer`) to stdout: ready with the address, or the error that kept it from starting. Everything
else, the engine's log included, goes to stderr, which the parent filters.

The parent's death must be this process's death, however it came: the kernel is asked to send SIGKILL then. The kernel
means the thread that started this process, so a launcher lives on a thread that ends with its process.
"""

import ctypes
import faulthandler
import os
import resource
import signal
import sys
from collections.abc import Mapping
from typing import Any, NoReturn

import msgspec

_PR_SET_PDEATHSIG = 1
# Slot files hold prompt state: nobody else may read them.
_UMASK = 0o077
_ENUMS = {
    "cache_type_k": ("ggml_type", "GGML_TYPE_"),
    "cache_type_v": ("ggml_type", "GGML_TYPE_"),
    "speculative.types": ("common_speculative_type", "COMMON_SPECULATIVE_TYPE_"),
}
_SETS = frozenset({"model_alias"})


class ReplicaOrder(msgspec.Struct, frozen=True, kw_only=True):
    """What to run: attribute paths of `CommonParams` with values, CPUs to stay on, and whose child this is."""

    params: dict[str, Any]
    cpus: tuple[int, ...]
    parent_pid: int


class ReplicaAnswer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How the start went: the address, or why there is none."""

    url: str | None = None
    error: str | None = None


def main() -> NoReturn:
    """Start the server and wait to be ended."""
    order = msgspec.json.decode(sys.stdin.buffer.read(), type=ReplicaOrder)
    die_with_parent(order.parent_pid)
    answers = own_stdout()
    os.umask(_UMASK)
    # A core dump would write prompts to disk.
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    faulthandler.enable()
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if order.cpus:
        os.sched_setaffinity(0, order.cpus)
    try:
        server = start_server(order.params)
    except (ImportError, AttributeError, TypeError, ValueError, RuntimeError, OSError) as error:
        answer(answers, ReplicaAnswer(error=f"{type(error).__name__}: {error}"))
        sys.exit(1)
    answer(answers, ReplicaAnswer(url=server.listening_address))
    os.close(answers)
    while True:
        signal.pause()


def die_with_parent(parent_pid: int) -> None:
    """Ask the kernel for SIGKILL when the parent dies, and end if it has died already."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "the kernel refused PR_SET_PDEATHSIG")
    if os.getppid() != parent_pid:
        sys.exit("the parent died before this replica began")


def own_stdout() -> int:
    """Return a descriptor of stdout for answers, and send whatever else is written there to stderr."""
    answers = os.dup(sys.stdout.fileno())
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    return answers


def answer(descriptor: int, message: ReplicaAnswer) -> None:
    """Write one line."""
    os.write(descriptor, msgspec.json.encode(message) + b"\n")


def start_server(params: Mapping[str, Any]) -> Any:
    """Start the server; returns once its model is loaded and it listens."""
    import xllamacpp

    common = xllamacpp.CommonParams()
    for path, value in params.items():
        apply(xllamacpp, common, path, value)
    return xllamacpp.Server(common)


def apply(engine: Any, common: Any, path: str, value: Any) -> None:
    """Set one parameter by its path and read it back; raises ValueError if it did not take."""
    if path in _ENUMS:
        kind, prefix = _ENUMS[path]
        members = [getattr(getattr(engine, kind), prefix + name) for name in as_list(value)]
        value = members if isinstance(value, list) else members[0]
    elif path in _SETS:
        value = set(value)
    *parents, name = path.split(".")
    owner = common
    for parent in parents:
        owner = getattr(owner, parent)
    if not hasattr(owner, name):
        raise AttributeError(f"this version of the engine has no parameter {path}")
    setattr(owner, name, value)
    if (seen := getattr(owner, name)) != value:
        raise ValueError(f"parameter {path} was set to {value!r} and is {seen!r}")


def as_list(value: Any) -> list[Any]:
    """Return a list as it is and anything else as a list of one."""
    return value if isinstance(value, list) else [value]


if __name__ == "__main__":
    main()
