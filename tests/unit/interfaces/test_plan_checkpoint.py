"""The checkpoint that a server gets for the model that was asked about."""

import json
from pathlib import Path

import pytest

from trimtab.core.layout import PlanInputError
from trimtab.interfaces.plan_checkpoint import checkpoint_of, folder_of, model_type_of


def folder(path: Path, *files: str) -> Path:
    path.mkdir()
    (path / "config.json").write_text(json.dumps({"model_type": "gemma2"}))
    for name in files:
        (path / name).write_bytes(b"")
    return path


def test_configuration_stands_for_its_folder_and_the_path_is_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A command may be started from anywhere."""
    made = folder(tmp_path / "made", "model.safetensors")
    monkeypatch.chdir(made)
    for text in ("config.json", ".", str(made), str(made / "config.json")):
        found = checkpoint_of(text)
        assert (found.name, found.is_folder) == (str(made), True)
    assert folder_of(str(made / "config.json")) == made


def test_folder_without_weights_is_said(tmp_path: Path) -> None:
    """A config.json is enough to plan and not to serve."""
    bare, full = folder(tmp_path / "bare"), folder(tmp_path / "full", "a.safetensors")
    assert "no weights" in " ".join(checkpoint_of(str(bare)).notes)
    assert "no weights" not in " ".join(checkpoint_of(str(full)).notes)


def test_gguf_file_is_refused_and_says_what_to_name(tmp_path: Path) -> None:
    """The folder beside it is offered where it holds a checkpoint."""
    file = folder(tmp_path / "made") / "a.gguf"
    file.write_bytes(b"GGUF and more")
    with pytest.raises(PlanInputError, match="GGUF") as caught:
        checkpoint_of(str(file))
    assert caught.value.nearest == (str(file.parent),)


def test_family_is_read_from_the_folder_or_known_by_name(tmp_path: Path) -> None:
    """It decides which types of activations a model bears."""
    made = folder(tmp_path / "made")
    broken = folder(tmp_path / "broken")
    (broken / "config.json").write_text("{")
    told = [
        model_type_of(str(made)),
        model_type_of("google/gemma-3-4b-it"),
        model_type_of(str(broken)),
    ]
    assert told == ["gemma2", "gemma3_text", ""]
