"""A real disk that fills while a rung is written: the source stays as it was, nothing of the rung is left."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from gguf_kit import gguf, layers

from trimtab.core.ports import LaunchError
from trimtab.engines.gguf_tensors import LINEAR, TensorKind
from trimtab.runtime.gguf_codec import convert

pytest.importorskip("gguf", reason="the gguf package is not installed")

DISK_KIB = 128


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own, with less room than the rung takes."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK_KIB}k", "tmpfs", str(folder)]
    if os.geteuid() != 0 or subprocess.run(mount, check=False).returncode != 0:
        pytest.skip("small disk: file systems cannot be mounted here (needs root)")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def test_disk_that_fills_midway_is_named_and_left_empty(tmp_path: Path, small_disk: Path) -> None:
    """The file, the reason, and that nothing of it was kept."""
    source = tmp_path / "model.gguf"
    source.write_bytes(gguf(layers(4, width=128)))
    before = source.read_bytes()
    target = small_disk / "rung.gguf"
    with pytest.raises(LaunchError, match=r"rung\.gguf cannot be written from .*No space left"):
        convert(source, target, dict.fromkeys(LINEAR, TensorKind.Q8_0))
    assert list(small_disk.iterdir()) == []
    assert source.read_bytes() == before
