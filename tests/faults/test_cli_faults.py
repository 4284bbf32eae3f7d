"""A command that cannot do what was asked says what, where and the fix in one line, and leaves nothing behind."""

import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from cli_kit import Background, command, expect_one_line, gguf, until
from events_kit import SteppingClock

from trimtab.runtime.ledger import SqliteLedger

# Before a model is looked at, the engine's package must be there; no engine runs in this module.
needs_engine_package = pytest.mark.engine_llamacpp


@pytest.fixture
def model(tmp_path: Path) -> str:
    """A model that is whole as far as can be seen without starting it."""
    path = tmp_path / "model.gguf"
    path.write_bytes(gguf())
    return str(path)


def names(folder: Path) -> list[str]:
    """What lies in a folder, hidden files too."""
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        (b"[routing]\nblok = 1\n", ("c.toml", "unknown field `blok`", "$.routing")),
        (b"[gateway]\nport = 70000\n", ("c.toml", "65535", "$.gateway.port")),
        (b"[routing\n", ("c.toml", "is not valid TOML", "line 1")),
        (b"\xff\xfe", ("c.toml", "cannot be read")),
        (None, ("c.toml", "cannot be read", "No such file")),
    ],
    ids=["unknown key", "out of range", "no TOML", "no text", "absent"],
)
def test_unusable_configuration_is_named_with_the_keys_path(
    tmp_path: Path, text: bytes | None, parts: tuple[str, ...]
) -> None:
    """The line names the file and, where one key is wrong, its path."""
    if text is not None:
        (tmp_path / "c.toml").write_bytes(text)
    expect_one_line(command(tmp_path, "up", "--config", "c.toml"), *parts)


def test_tune_reads_the_configuration_before_it_moves_a_ledger(tmp_path: Path) -> None:
    """The ledger of an earlier tune keeps its name if the next one cannot even begin."""
    (tmp_path / "c.toml").write_text("[levers]\nmood = 1\n")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "ledger.sqlite").write_bytes(b"earlier")
    expect_one_line(command(tmp_path, "tune", "--config", "c.toml"), "`mood`", "$.levers")
    assert names(tmp_path / "out") == ["ledger.sqlite"]


@pytest.mark.parametrize(
    "arguments",
    [
        ("up", "--port", "70000"),
        ("tune", "--minutes", "1"),
        ("tune", "--report", "file"),
    ],
    ids=" ".join,
)
def test_wrong_usage_exits_with_2_and_names_the_option(
    tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    """Usage errors differ from failures in their exit code."""
    (tmp_path / "file").write_text("")
    ended = command(tmp_path, *arguments)
    last = ended.err.strip().splitlines()[-1]
    assert (ended.code, ended.left, "Traceback" in ended.err) == (2, {}, False)
    assert last.startswith(f"Error: Invalid value for '{arguments[1]}'")
    assert names(tmp_path) == ["file"]


@needs_engine_package
@pytest.mark.parametrize(
    ("verb", "data", "parts"),
    [
        ("up", None, ("there is no model at", "--model")),
        ("tune", None, ("there is no model at", "--model")),
        ("up", b"GGUF" + bytes(range(256)) * 4, ("is not usable",)),
        ("up", b"no model at all, but long enough", ("is not usable",)),
        ("tune", gguf()[:-200], ("is not usable: it is cut off",)),
    ],
    ids=["up absent", "tune absent", "garbage", "no GGUF", "truncated"],
)
def test_unusable_model_is_named(
    tmp_path: Path, verb: str, data: bytes | None, parts: tuple[str, ...]
) -> None:
    """Nothing is started, and no report is begun, for a model that cannot work."""
    path = tmp_path / "m.gguf"
    if data is not None:
        path.write_bytes(data)
    expect_one_line(command(tmp_path, verb, "--model", str(path)), str(path), *parts)
    left = [path.name for path in tmp_path.rglob("*") if path.suffix in {".html", ".json"}]
    assert left == []


@needs_engine_package
def test_taken_port_is_told_before_any_replica_starts(tmp_path: Path, model: str) -> None:
    """A port that another server holds costs no start of a fleet; the ledger that was begun verifies."""
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = str(other.getsockname()[1])
        ended = command(tmp_path, "up", "--model", model, "--port", port, "--ledger", "l.sqlite")
    expect_one_line(ended, f"cannot listen on 127.0.0.1:{port}", "--port chooses another")
    verified = command(tmp_path, "ledger", "--ledger", "l.sqlite", "verify")
    told = command(tmp_path, "ledger", "--ledger", "l.sqlite", "list")
    assert (verified.code, "replica_changed" in told.out) == (0, False)


@needs_engine_package
def test_too_little_memory_is_told_before_any_replica_starts(tmp_path: Path) -> None:
    """What a replica needs, what is there, and which settings to lower."""
    (tmp_path / "huge.gguf").write_bytes(gguf(layers=30_000))
    (tmp_path / "c.toml").write_text("[engine]\nslots = 256\ncontext_tokens = 8192\n")
    ended = command(tmp_path, "up", "--model", "huge.gguf", "--config", "c.toml", "--port", "0")
    expect_one_line(
        ended, "needs about", "KV cache 46,080,000 MiB", "MiB are available", "lower engine.slots"
    )


@needs_engine_package
def test_model_that_the_engine_refuses_is_told_in_its_words(tmp_path: Path, model: str) -> None:
    """A file that looks whole and cannot be loaded ends the start, with every replica stopped."""
    ended = command(tmp_path, "up", "--port", "0", "--model", model, "--ledger", "l.sqlite")
    expect_one_line(ended, "did not start", "model loading error")
    assert command(tmp_path, "ledger", "--ledger", "l.sqlite", "verify").code == 0


def test_interrupt_while_the_command_loads_is_quiet(tmp_path: Path) -> None:
    """Ctrl-C in the first moment, before anything was begun, ends the process and says nothing."""
    with Background(tmp_path, "tune", "--report", "out") as running:
        maps = Path(f"/proc/{running.process.pid}/maps")
        until(lambda: "msgspec" in maps.read_text(), 20, "the command loads its parts")
        running.interrupt()
        ended = running.end()
    assert (ended.code, ended.out, ended.left) == (-signal.SIGINT, "", {})
    assert not (tmp_path / "out").exists()


@needs_engine_package
@pytest.mark.parametrize(
    ("where", "parts"),
    [
        ("no/l.sqlite", ("no/l.sqlite cannot be opened", "No such file", "ledger.path")),
        ("text", ("text is not a ledger", "Name another file")),
        ("folder", ("folder cannot be opened", "Is a directory")),
    ],
)
def test_unusable_ledger_is_named(
    tmp_path: Path, model: str, where: str, parts: tuple[str, ...]
) -> None:
    """The line names the file and what to do; a file that is no ledger stays as it was."""
    (tmp_path / "folder").mkdir()
    text = tmp_path / "text"
    text.write_text("somebody else's notes, longer than the head of a database\n" * 20)
    text.chmod(0o644)
    before = (text.read_bytes(), text.stat().st_mode)
    ended = command(tmp_path, "up", "--port", "0", "--model", model, "--ledger", where)
    expect_one_line(ended, *parts)
    assert (text.read_bytes(), text.stat().st_mode) == before


@needs_engine_package
def test_ledger_of_a_running_gateway_is_refused_with_its_process(
    tmp_path: Path, model: str
) -> None:
    """Two writers would tear a chain: the second is told which process holds it."""
    ledger = SqliteLedger(tmp_path / "l.sqlite", clock=SteppingClock())
    try:
        ended = command(tmp_path, "up", "--port", "0", "--model", model, "--ledger", "l.sqlite")
    finally:
        ledger.close()
    expect_one_line(ended, "l.sqlite is being written by another trimtab", f"process {os.getpid()}")


def test_tune_leaves_the_ledger_of_a_running_tune_alone(tmp_path: Path) -> None:
    """A second tune into the same folder is refused before it moves the first one's ledger."""
    report = tmp_path / "out"
    report.mkdir()
    ledger = SqliteLedger(report / "ledger.sqlite", clock=SteppingClock())
    try:
        ended = command(tmp_path, "tune", "--report", "out")
        assert [name for name in names(report) if name.endswith(".sqlite")] == ["ledger.sqlite"]
    finally:
        ledger.close()
    expect_one_line(ended, "out/ledger.sqlite is being written by another trimtab")


def test_report_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    """A path below a file is no folder, whoever asks."""
    (tmp_path / "file").write_text("")
    ended = command(tmp_path, "tune", "--report", "file/out")
    expect_one_line(ended, "file/out cannot be made", "Not a directory", "--report")


@pytest.fixture
def read_only(tmp_path: Path) -> Iterator[Path]:
    """A folder in which nothing can be written, not even by root."""
    folder = tmp_path / "read-only"
    folder.mkdir()
    if os.geteuid() != 0:
        folder.chmod(0o555)
        yield folder
        folder.chmod(0o755)
        return
    mount = ["mount", "-t", "tmpfs", "-o", "ro,size=64k", "tmpfs", str(folder)]
    if subprocess.run(mount, check=False).returncode != 0:
        pytest.skip("small disk: file systems cannot be mounted here (needs root)")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


@needs_engine_package
def test_report_folder_that_cannot_be_written_is_named(
    tmp_path: Path, model: str, read_only: Path
) -> None:
    """Told at the start and not after minutes of measuring."""
    ended = command(tmp_path, "tune", "--model", model, "--report", str(read_only))
    expect_one_line(ended, f"{read_only}/ledger.sqlite", "cannot be opened")
    assert names(read_only) == []


def test_broken_line_of_a_workload_file_is_named(tmp_path: Path) -> None:
    """File, line and what is wrong with it; nothing is sent."""
    good = '{"messages": [{"role": "user", "content": "hello"}]}\n'
    (tmp_path / "w.jsonl").write_text(good + '{"messages": [}\n' + good)
    ended = command(tmp_path, "load", "http://127.0.0.1:1", "--workload", "w.jsonl")
    expect_one_line(ended, "w.jsonl", "line 2")


def test_absent_workload_file_is_named(tmp_path: Path) -> None:
    """Neither a generator's name nor a file."""
    ended = command(tmp_path, "load", "http://127.0.0.1:1", "--workload", "w.jsonl")
    expect_one_line(ended, "'w.jsonl' is no generator and no readable file", "No such file")


def test_server_that_is_not_there_is_counted_as_failed_requests(tmp_path: Path) -> None:
    """The load goes on in its own time, says what failed, and exits with 1."""
    (tmp_path / "w.jsonl").write_text('{"messages": [{"role": "user", "content": "hello"}]}\n' * 2)
    ended = command(tmp_path, "load", "http://127.0.0.1:1", "--workload", "w.jsonl", "--rate", "50")
    assert (ended.code, ended.left, "Traceback" in ended.err) == (1, {}, False)
    assert "0 of 2 answered" in ended.out
