"""What a launcher says when a replica cannot start: the cause, the numbers and the fix. No engine runs here."""

import socket
import struct
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from trimtab.core.ports import LaunchError, Placement
from trimtab.core.revision import Model, Revision
from trimtab.runtime.clock import SystemClock
from trimtab.runtime.hardware import memory_available, read_hardware
from trimtab.runtime.launcher import LlamaCppLauncher, free_ports
from trimtab.runtime.model import check_model, find_model
from trimtab.runtime.slot_files import SlotFiles, sweep

GIB = 2**30


@pytest.fixture
async def launcher(tmp_path: Path) -> AsyncIterator[LlamaCppLauncher]:
    """A launcher on a machine of 1 GiB."""
    made = LlamaCppLauncher(
        clock=SystemClock(),
        start_timeout_s=5,
        log_folder=tmp_path / "logs",
        memory_root=tmp_path,
        available=lambda: GIB,
    )
    yield made
    await made.close()


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A whole GGUF file of one tensor, with the head of a model of 30 layers."""
    return write_gguf(tmp_path / "model.gguf")


def write_gguf(path: Path) -> Path:
    def text(value: str) -> bytes:
        return struct.pack("<Q", len(value)) + value.encode()

    numbers = {
        "llama.block_count": 30,
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
    path.write_bytes(head + bytes(-len(head) % 32) + bytes(256))
    return path


def cut(path: Path, length: int) -> int:
    """Cut bytes off a file's end and return the size it had."""
    content = path.read_bytes()
    path.write_bytes(content[:-length])
    return len(content)


def revision(path: Path, **changes: object) -> Revision:
    model = Model(path=str(path), sha256="0" * 64, name="m")
    return Revision(engine="llamacpp", engine_version="1", model=model).replace(**changes)


def place(launcher: LlamaCppLauncher) -> Placement:
    (placement,) = launcher.place(["r0"])
    return placement


async def failure(launcher: LlamaCppLauncher, wanted: Revision, placement: Placement) -> str:
    with pytest.raises(LaunchError) as caught:
        await launcher.start(wanted, placement)
    return str(caught.value)


async def test_missing_model_is_named(launcher: LlamaCppLauncher, tmp_path: Path) -> None:
    """The path that is not there, and where to give another."""
    message = await failure(launcher, revision(tmp_path / "no.gguf"), place(launcher))
    assert message.startswith(f"there is no model at {tmp_path / 'no.gguf'}")
    assert "engine.model" in message


async def test_directory_is_no_model(launcher: LlamaCppLauncher, tmp_path: Path) -> None:
    """A folder cannot be read as a file, and the message says so."""
    assert "is a folder, and holds" in await failure(launcher, revision(tmp_path), place(launcher))


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "it has 0 bytes"),
        (b"PK\x03\x04" + bytes(100), "does not begin with GGUF"),
        (b"GGUF" + bytes(100), "version 0"),
        (b"GGUF\x03\x00\x00\x00" + b"\xff" * 100, "claims"),
    ],
)
async def test_corrupt_model_is_found_before_the_start(
    launcher: LlamaCppLauncher, tmp_path: Path, content: bytes, words: str
) -> None:
    """The reason is in the header, and no process is made to find it."""
    path = tmp_path / "broken.gguf"
    path.write_bytes(content)
    message = await failure(launcher, revision(path), place(launcher))
    assert str(path) in message
    assert words in message


async def test_truncated_model_is_found_before_the_start(
    launcher: LlamaCppLauncher, model: Path
) -> None:
    """Where the tensors end and where the file ends are both told."""
    size = cut(model, 10)
    message = await failure(launcher, revision(model), place(launcher))
    assert f"its tensors end at byte {size}, the file at {size - 10}" in message


async def test_port_in_use_is_named(launcher: LlamaCppLauncher, model: Path) -> None:
    """The address that somebody else holds."""
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        (placement,) = launcher.place(["r0"], ports=[port])
        message = await failure(launcher, revision(model), placement)
    assert f"cannot listen on 127.0.0.1:{port}: Address already in use" in message


async def test_too_little_memory_states_the_numbers(
    launcher: LlamaCppLauncher, model: Path
) -> None:
    """What is needed, for what, what there is, and which settings to lower."""
    wanted = revision(model, slots=16, context_tokens=8192)
    message = await failure(launcher, wanted, place(launcher))
    assert "KV cache 2,880 MiB" in message
    assert "1,024 MiB are available" in message
    assert "engine.slots" in message


async def test_context_beyond_the_models_is_refused(
    launcher: LlamaCppLauncher, model: Path
) -> None:
    """The engine would cut it to the trained one without a word."""
    message = await failure(launcher, revision(model, context_tokens=9000), place(launcher))
    assert "9000 tokens is more than the 8192" in message


async def test_unknown_precision_is_a_launch_error(launcher: LlamaCppLauncher, model: Path) -> None:
    """A revision that the engine cannot launch names the replica and the reason."""
    message = await failure(launcher, revision(model, kv_type="q3", slots=1), place(launcher))
    assert message.startswith("replica r0: ")
    assert "q3" in message


async def test_model_that_the_engine_refuses_ends_with_an_error_and_no_process(
    launcher: LlamaCppLauncher, model: Path
) -> None:
    """A whole header over a model that is none: the child says so, ends, and is reaped."""
    message = await failure(launcher, revision(model, slots=1), place(launcher))
    assert message.startswith("replica r0 did not start: ")
    assert launcher.pid("r0") is None


async def test_closed_launcher_starts_nothing(launcher: LlamaCppLauncher, model: Path) -> None:
    """After the end nothing comes back."""
    placement = place(launcher)
    await launcher.close()
    assert "is closed" in await failure(launcher, revision(model), placement)


async def test_replica_that_does_not_run_has_no_slots(launcher: LlamaCppLauncher) -> None:
    """Saving the KV of nothing is an error, not an empty success."""
    with pytest.raises(LaunchError, match="r9 does not run"):
        await launcher.save_kv("r9")


def test_free_ports_are_distinct() -> None:
    """Ports chosen together are not the same."""
    assert len(set(free_ports(20))) == 20


def test_slot_files_of_dead_owners_are_swept(tmp_path: Path) -> None:
    """A folder whose owner lives stays; one whose lock is free goes."""
    alive = SlotFiles(tmp_path)
    dead = tmp_path / f"{alive.folder.name.rsplit('-', 2)[0]}-1-dead"
    dead.mkdir()
    (dead / ".owner").touch()
    (dead / "r0-1-0.kv").write_bytes(b"state")
    assert sweep(tmp_path) == 1
    assert list(tmp_path.iterdir()) == [alive.folder]
    assert alive.folder.stat().st_mode & 0o777 == 0o700
    alive.close()
    assert not alive.folder.exists()


def test_machine_is_read() -> None:
    """This machine has a CPU, memory, and less of it free than there is."""
    hardware = read_hardware()
    free = memory_available()
    assert free is not None
    assert 0 < free <= hardware.memory_bytes
    assert hardware.cores >= 1


def test_named_model_is_checked_and_summed(model: Path) -> None:
    """A model by path has its own checksum and the name of its file."""
    found = find_model(str(model))
    assert (found.name, len(found.sha256)) == ("model", 64)
    assert check_model(found.path).kv_values_per_token == 11_520
