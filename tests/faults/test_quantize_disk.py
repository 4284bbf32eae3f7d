"""A real disk that fills while a rung is written: the source stays as it was, nothing of the rung is left."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from disk_kit import disk_of
from gguf_kit import gguf, layers

from trimtab.core.ports import LaunchError
from trimtab.engines.gguf_tensors import LINEAR, TensorKind
from trimtab.runtime.gguf_codec import convert

pytest.importorskip("gguf", reason="the gguf package is not installed")

DISK_KIB = 128


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own, with less room than the rung takes."""
    with disk_of(tmp_path / "disk", DISK_KIB) as folder:
        yield folder


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
