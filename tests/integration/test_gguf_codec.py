"""Files of other precision on disk: whole or not at all, the source untouched, errors that name the file."""

import errno
from pathlib import Path

import numpy as np
import pytest
from gguf_kit import gguf, layers

from trimtab.core.ports import LaunchError
from trimtab.engines.gguf_tensors import FEED_FORWARD, LINEAR, Group, TensorKind, kinds_by_group
from trimtab.runtime import gguf_codec
from trimtab.runtime.gguf_codec import convert
from trimtab.runtime.model import check_model

pytest.importorskip("gguf", reason="the gguf package is not installed")


def source_in(folder: Path, data: bytes | None = None) -> Path:
    path = folder / "model.gguf"
    path.write_bytes(gguf(layers()) if data is None else data)
    return path


@pytest.mark.parametrize("kind", [one for one in TensorKind if one is not TensorKind.F32])
def test_every_type_is_written_and_read_back(tmp_path: Path, kind: TensorKind) -> None:
    """The file's own table says what was asked for; the engine's package encoded it."""
    source, target = source_in(tmp_path), tmp_path / "out" / "new.gguf"
    convert(source, target, dict.fromkeys(LINEAR, kind))
    found = kinds_by_group(check_model(str(target)))
    assert {tuple(found[group]) for group in LINEAR} == {(kind.value,)}


def test_expanding_gives_back_what_was_rounded(tmp_path: Path) -> None:
    """F16 to Q8_0 to F16 stays within a step of each block."""
    tensors = layers(1)
    source, eight, wide = source_in(tmp_path, gguf(tensors)), tmp_path / "8", tmp_path / "16"
    convert(source, eight, dict.fromkeys(FEED_FORWARD, TensorKind.Q8_0))
    convert(eight, wide, dict.fromkeys(FEED_FORWARD, TensorKind.F16))
    header, data = check_model(str(wide)), wide.read_bytes()
    [up] = [one for one in header.table if one.name == "blk.0.ffn_up.weight"]
    values = np.frombuffer(data[up.start : up.start + up.size], dtype=np.float16).astype(float)
    before = tensors["blk.0.ffn_up.weight"].ravel()
    assert np.abs(values - before).max() < np.abs(before).max() / 100


@pytest.mark.parametrize("cut", [3, 40, 5000])
def test_truncated_file_is_refused_and_nothing_is_left(tmp_path: Path, cut: int) -> None:
    """Cut in its magic, its header, its tensors: an error with the path, no output."""
    source = source_in(tmp_path, gguf(layers())[:cut])
    with pytest.raises(LaunchError, match=r"model\.gguf"):
        convert(source, tmp_path / "new.gguf", dict.fromkeys(LINEAR, TensorKind.Q8_0))
    assert [path.name for path in tmp_path.iterdir()] == ["model.gguf"]


def test_weights_that_are_not_finite_leave_nothing(tmp_path: Path) -> None:
    """Found while the file is written: the part that was written is removed."""
    tensors = layers()
    tensors["blk.1.ffn_down.weight"][0, 0] = np.inf
    source = source_in(tmp_path, gguf(tensors))
    with pytest.raises(LaunchError, match=r"blk\.1\.ffn_down\.weight"):
        convert(source, tmp_path / "new.gguf", dict.fromkeys(LINEAR, TensorKind.Q8_0))
    assert [path.name for path in tmp_path.iterdir()] == ["model.gguf"]


def test_full_disk_midway_leaves_the_source_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The third part does not fit: clear error, source byte for byte, no partial output."""
    source = source_in(tmp_path)
    before = source.read_bytes()
    whole = gguf_codec.rewritten

    def short(*arguments: object) -> object:
        for number, part in enumerate(whole(*arguments)):  # type: ignore[arg-type]
            if number == 3:
                raise OSError(errno.ENOSPC, "No space left on device")
            yield part

    monkeypatch.setattr(gguf_codec, "rewritten", short)
    with pytest.raises(LaunchError, match="No space left on device; nothing of it was kept"):
        convert(source, tmp_path / "new.gguf", dict.fromkeys(LINEAR, TensorKind.Q8_0))
    assert source.read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["model.gguf"]


def test_unknown_architecture_is_an_error(tmp_path: Path) -> None:
    """No linear layer has a known name."""
    data = gguf({"encoder.0.weight": np.ones((32, 32))}, architecture="strange")
    with pytest.raises(LaunchError, match="architecture 'strange'"):
        convert(source_in(tmp_path, data), tmp_path / "new", {Group.FFN_UP: TensorKind.Q8_0})
