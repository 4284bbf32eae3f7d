"""Runs the public commands as processes of their own and finds whatever they leave behind.

Every process that a command starts inherits a mark in its environment, so that a process is found even after
its parent has gone or it has a session of its own.
"""

import http.client
import json
import os
import signal
import struct
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[2]
CLI = "trimtab.interfaces.cli"
QUICK_CLI = (
    "-c",
    "import trimtab.runtime.calibrate as calibrate\n"
    "calibrate.PREFILL_WORDS, calibrate.STEP_BATCHES, calibrate.ROUNDS_MAX = (8, 24), (1, 2), 1\n"
    "from trimtab.interfaces.cli import main; main()",
)
"""The command line with a measurement of costs of half a second, for tests that start fleets and judge no cost."""

MARK = "TRIMTAB_TEST_RUN"
MEMORY_ROOT = Path("/dev/shm")
POLL_S = 0.05


class Ended(NamedTuple):
    """How a command ended: exit code, what it said, and which of its processes are still there."""

    code: int
    out: str
    err: str
    left: dict[int, str]


class Answer(NamedTuple):
    """An HTTP answer, read to its end."""

    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        """The body as JSON."""
        return json.loads(self.body)


def environment(mark: str, state: Path) -> dict[str, str]:
    """The environment of a command: this checkout's sources, a wide screen, state of its own."""
    inherited = {k: v for k, v in os.environ.items() if not k.startswith("TRIMTAB_")}
    own = {
        MARK: mark,
        "PYTHONPATH": str(ROOT / "src"),
        "COLUMNS": "200",
        "XDG_STATE_HOME": str(state),
        "PYTHONUNBUFFERED": "1",
    }
    return {**inherited, **own}


def processes(mark: str) -> dict[int, str]:
    """Return the living processes of a run by id, each with its command line; zombies have neither."""
    found = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            if f"{MARK}={mark}".encode() in (entry / "environ").read_bytes().split(b"\0"):
                words = (entry / "cmdline").read_bytes().replace(b"\0", b" ")
                found[int(entry.name)] = words.decode(errors="replace").strip()
        except OSError:
            continue  # it ended meanwhile, or belongs to somebody else
    return found


def command(folder: Path, *arguments: str, timeout_s: float = 60.0) -> Ended:
    """Run `trimtab` to its end in a folder."""
    mark = uuid.uuid4().hex
    run = subprocess.run(
        [sys.executable, "-m", CLI, *arguments],
        cwd=folder,
        env=environment(mark, folder / "state"),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    return Ended(run.returncode, run.stdout, run.stderr, processes(mark))


def expect_one_line(ended: Ended, *parts: str, code: int = 1) -> None:
    """A command that could not start says so in one line with these parts, and leaves no process."""
    lines = [line for line in ended.err.splitlines() if line.strip()]
    assert (ended.code, len(lines), ended.left) == (code, 1, {}), ended
    assert lines[0].startswith("Error: "), ended.err
    assert [part for part in parts if part not in lines[0]] == [], ended.err


def until(holds: Callable[[], bool], timeout_s: float, what: str) -> None:
    """Wait until something holds; fail with `what` if it does not in time."""
    deadline_s = time.monotonic() + timeout_s
    while not holds():
        assert time.monotonic() < deadline_s, f"not within {timeout_s:g} s: {what}"
        time.sleep(POLL_S)


def _hear_interrupts() -> None:
    """A job of a background shell inherits that Ctrl-C is ignored; what is tested here is a command that hears it."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


class Background:
    """A command that runs on. Use as a context manager: whatever is left at the end is killed.

    `program`: what Python runs, the command line unless said otherwise.
    """

    def __init__(
        self, folder: Path, *arguments: str, program: tuple[str, ...] = ("-m", CLI)
    ) -> None:
        self.mark = uuid.uuid4().hex
        self._said = folder / f"said-{self.mark}.txt"
        with self._said.open("wb") as said:
            self.process = subprocess.Popen(
                [sys.executable, *program, *arguments],
                cwd=folder,
                env=environment(self.mark, folder / "state"),
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=subprocess.STDOUT,
                preexec_fn=_hear_interrupts,
            )

    def __enter__(self) -> "Background":
        return self

    def __exit__(self, *_: object) -> None:
        for pid in (self.process.pid, *processes(self.mark)):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        self.process.wait()

    def said(self) -> str:
        """Everything it has printed until now."""
        return self._said.read_text(errors="replace")

    def wait_for(self, words: str, timeout_s: float = 60.0) -> str:
        """Wait until it has printed something and return all it printed."""

        def printed() -> bool:
            assert words in self.said() or self.process.poll() is None, self.said()
            return words in self.said()

        until(printed, timeout_s, f"{words!r} in {self.said()!r}")
        return self.said()

    def replicas(self) -> tuple[int, ...]:
        """The ids of its replicas' processes."""
        mine = processes(self.mark).items()
        return tuple(sorted(pid for pid, words in mine if "replica_main" in words))

    def interrupt(self) -> None:
        """What Ctrl-C does."""
        self.process.send_signal(signal.SIGINT)

    def end(self, timeout_s: float = 40.0) -> Ended:
        """Wait for its end."""
        code = self.process.wait(timeout_s)
        return Ended(code, self.said(), "", processes(self.mark))

    def slot_folders(self) -> list[str]:
        """Its folders in memory."""
        return [path.name for path in MEMORY_ROOT.glob(f"trimtab-*-{self.process.pid}-*")]


def ask(url: str, body: object = None, timeout_s: float = 60.0) -> Answer:
    """GET an address, or POST a body as JSON; any status is an answer."""
    host, _, path = url.removeprefix("http://").partition("/")
    connection = http.client.HTTPConnection(host, timeout=timeout_s)
    try:
        if body is None:
            connection.request("GET", f"/{path}")
        else:
            kind = {"Content-Type": "application/json"}
            connection.request("POST", f"/{path}", json.dumps(body), kind)
        answer = connection.getresponse()
        headers = {name.lower(): value for name, value in answer.getheaders()}
        return Answer(answer.status, headers, answer.read())
    finally:
        connection.close()


def chat(text: str, **fields: object) -> dict[str, object]:
    """A chat of one message, deterministic and short."""
    asked = {"messages": [{"role": "user", "content": text}], "temperature": 0, "max_tokens": 8}
    return asked | fields


def gguf(*, layers: int = 30) -> bytes:
    """A whole GGUF file of one tensor: it passes every check that needs no engine; `layers` sizes its KV cache."""

    def text(value: str) -> bytes:
        return struct.pack("<Q", len(value)) + value.encode()

    numbers = {
        "llama.block_count": layers,
        "llama.embedding_length": 576,
        "llama.attention.head_count": 9,
        "llama.attention.head_count_kv": 3,
        "llama.context_length": 8192,
    }
    fields = text("general.architecture") + struct.pack("<I", 8) + text("llama")
    for name, number in numbers.items():
        fields += text(name) + struct.pack("<II", 4, number)
    head = b"GGUF" + struct.pack("<IQQ", 3, 1, 1 + len(numbers)) + fields
    head += text("t") + struct.pack("<IQIQ", 1, 64, 0, 0)
    return head + bytes(-len(head) % 32) + bytes(256)
