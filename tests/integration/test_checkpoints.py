"""Checkpoints on disk: written whole or not at all, the original untouched, and what is broken named with its file."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from checkpoint_kit import made, write_file

from trimtab.core.ports import LaunchError
from trimtab.engines.compressed_tensors import CheckpointPlan, Scheme, plan_checkpoint
from trimtab.engines.gguf_tensors import FEED_FORWARD, LINEAR
from trimtab.engines.safetensors import StoredTensor
from trimtab.runtime import checkpoints, model_copy
from trimtab.runtime.checkpoints import (
    Checkpoint,
    check_finite,
    checkpoint_sha256,
    open_checkpoint,
    types_by_group,
    write_checkpoint,
    written_tensors,
)


def planned(checkpoint: Checkpoint, scheme: Scheme = Scheme.W8A8) -> CheckpointPlan:
    return plan_checkpoint(checkpoint.tensors, scheme, LINEAR)


@pytest.mark.parametrize("files", [1, 2])
@pytest.mark.parametrize("scheme", list(Scheme))
def test_written_checkpoint_holds_what_was_planned(
    tmp_path: Path, files: int, scheme: Scheme
) -> None:
    """Every file is there with its tokenizer, the original is untouched, nothing else is left lying."""
    original = open_checkpoint(made(tmp_path / "model", files=files))
    before = checkpoint_sha256(original)
    plan = planned(original, scheme)
    target = write_checkpoint(original, tmp_path / "out" / "rung", plan)
    names = {one.name for one in written_tensors(target)}
    assert all(name in names for name in ("model.embed_tokens.weight",))
    assert len(names) >= len(original.tensors)
    assert (target / "tokenizer.json").is_file()
    config = json.loads((target / "config.json").read_text())
    assert ("quantization_config" in config) is not scheme.is_rounded
    if files == 2:
        index = json.loads((target / "model.safetensors.index.json").read_text())
        assert set(index["weight_map"]) == names
    assert checkpoint_sha256(original) == before
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["rung"]


def test_types_are_read_back_by_group(tmp_path: Path) -> None:
    """Feed-forward layers at 8 bits, attention and embedding as they were."""
    original = open_checkpoint(made(tmp_path / "model"))
    plan = plan_checkpoint(original.tensors, Scheme.W8A8, FEED_FORWARD)
    found = types_by_group(
        written_tensors(write_checkpoint(original, tmp_path / "out" / "rung", plan))
    )
    assert found["ffn_down"] == {"I8": 2}
    assert found["attention_q"] == {"BF16": 2}
    assert found["embedding"] == {"BF16": 1}


def test_weights_that_are_no_numbers_are_named(tmp_path: Path) -> None:
    """The file, the tensor and how many; the conversion of such a tensor leaves nothing behind."""
    bad = "model.layers.1.mlp.up_proj.weight"
    original = open_checkpoint(made(tmp_path / "model", broken=bad))
    with pytest.raises(LaunchError, match=f"{bad} has 1 values that are no numbers"):
        check_finite(original)
    with pytest.raises(LaunchError, match=bad):
        write_checkpoint(original, tmp_path / "out" / "rung", planned(original))
    assert list((tmp_path / "out").iterdir()) == []


def test_tokenizer_of_another_model_is_refused(tmp_path: Path) -> None:
    """It has tokens that the weights have no embedding for; both numbers are told."""
    with pytest.raises(LaunchError, match=r"does not belong to these weights: .* 120 .* 100"):
        open_checkpoint(made(tmp_path / "model", vocabulary=121))


def test_cut_file_is_refused_by_name(tmp_path: Path) -> None:
    """As an interrupted download leaves it."""
    folder = made(tmp_path / "model")
    path = folder / "model-0.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(LaunchError, match=r"model-0\.safetensors is no whole safetensors file"):
        open_checkpoint(folder)


def test_index_that_names_a_missing_tensor_is_refused(tmp_path: Path) -> None:
    """A shard that was not fetched."""
    folder = made(tmp_path / "model", files=2)
    (folder / "model-1.safetensors").unlink()
    with pytest.raises(LaunchError, match=r"is in model-1\.safetensors, and it is not"):
        open_checkpoint(folder)


def test_unknown_architecture_and_quantized_folders_are_refused(tmp_path: Path) -> None:
    """No layer under a known name; or rounded once already."""
    folder = made(tmp_path / "model")
    write_file(
        folder / "model-0.safetensors",
        [StoredTensor(name="h.0.attn.c_attn.weight", dtype="BF16", shape=(64, 64))],
    )
    with pytest.raises(LaunchError, match="no names that are known"):
        open_checkpoint(folder)
    (folder / "config.json").write_text('{"quantization_config": {}}')
    with pytest.raises(LaunchError, match="is quantized already"):
        open_checkpoint(folder)
    with pytest.raises(LaunchError, match=r"config\.json cannot be read"):
        open_checkpoint(tmp_path)


def test_disk_that_fills_up_midway_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error says where and that nothing was kept; the original is as it was."""
    original = open_checkpoint(made(tmp_path / "model", files=2))
    before = checkpoint_sha256(original)
    write = model_copy.write_parts

    def full(target: Path, parts: Any) -> None:
        if target.name == "model-1.safetensors":
            raise OSError(28, "No space left on device")
        write(target, parts)

    monkeypatch.setattr(checkpoints, "write_parts", full)
    with pytest.raises(LaunchError, match="No space left on device; nothing of it was kept"):
        write_checkpoint(original, tmp_path / "out" / "rung", planned(original))
    assert list((tmp_path / "out").iterdir()) == []
    assert checkpoint_sha256(original) == before


def test_too_little_room_is_said_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is free, what is needed, and what to do."""
    original = open_checkpoint(made(tmp_path / "model"))
    usage = type("Usage", (), {"free": 1 << 20})
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    with pytest.raises(LaunchError, match=r"has 1 MiB free and 64 are needed .*--report"):
        write_checkpoint(original, tmp_path / "out" / "rung", planned(original))
    assert list((tmp_path / "out").iterdir()) == []
