"""Folders that describe a model to the kernel tables' package."""

import json
from pathlib import Path

import pytest

from trimtab.runtime.kernel_configs import ConfigFolders

LLAMA = {"model_type": "mistral", "architectures": ["MistralForCausalLM"], "hidden_size": 4096}


def read(folder: str | None) -> dict[str, object]:
    assert folder is not None
    found = json.loads((Path(folder) / "config.json").read_text())
    assert isinstance(found, dict)
    return found


def test_known_name_becomes_a_folder() -> None:
    """A model of our own table needs no download."""
    folders = ConfigFolders()
    found = read(folders.folder_of("mistralai/Mistral-7B-Instruct-v0.3"))
    assert found["architectures"] == ["LlamaForCausalLM"]
    assert found["hidden_size"] == 4096


def test_architecture_with_the_same_shapes_is_written_as_the_known_one(tmp_path: Path) -> None:
    """The file that a person has stays as it is; a copy says what the package knows."""
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    folders = ConfigFolders()
    found = read(folders.folder_of(str(tmp_path / "config.json")))
    assert found["architectures"] == ["LlamaForCausalLM"]
    assert json.loads((tmp_path / "config.json").read_text()) == LLAMA
    assert folders.folder_of(str(tmp_path)) != str(tmp_path)


def test_other_architectures_are_handed_on_as_they_are(tmp_path: Path) -> None:
    """The package knows families that we need not name, and refuses the rest."""
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "something_new"}))
    assert ConfigFolders().folder_of(str(tmp_path)) == str(tmp_path)


@pytest.mark.parametrize("kind", ["mistral", "something_new"])
def test_file_of_any_name_is_read_as_config_json_is(tmp_path: Path, kind: str) -> None:
    """What a file is called says nothing of the model: the package is given the same fields."""
    config = LLAMA | {"model_type": kind, "max_position_embeddings": 4096}
    other, usual = tmp_path / "mine.json", tmp_path / "config.json"
    for path in (other, usual):
        path.write_text(json.dumps(config))
    folders = ConfigFolders()
    assert read(folders.folder_of(str(other))) == read(folders.folder_of(str(usual)))


def test_file_that_is_no_configuration_has_no_folder(tmp_path: Path) -> None:
    """Weights are not searched for fields."""
    path = tmp_path / "weights.gguf"
    path.write_bytes(b"GGUF" + bytes(64))
    assert ConfigFolders().folder_of(str(path)) is None


def test_what_is_neither_a_path_nor_a_known_name_has_no_folder() -> None:
    """Nobody is asked what it might be."""
    assert ConfigFolders().folder_of("somebody/unknown-9b") is None


def test_folder_of_a_model_is_written_once() -> None:
    """A plan asks for it with every layout."""
    folders = ConfigFolders()
    assert folders.folder_of("llama-3.2-1b") == folders.folder_of("llama-3.2-1b")
