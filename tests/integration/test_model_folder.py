"""A model that is a folder, as vLLM serves it, is found whole or refused with what is wrong."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from case_kit import other_weights
from checkpoint_kit import made
from control_kit import HandClock
from events_kit import REVISION

from trimtab.core.config import Config
from trimtab.core.lever import LeverRecordError
from trimtab.core.ports import LaunchError
from trimtab.rollout.short_record import complete, parse_record
from trimtab.runtime.fleet_known import known_of
from trimtab.runtime.model import find_model
from trimtab.runtime.model_folder import find_folder
from trimtab.runtime.secret import Secret


def weights(folder: Path) -> Path:
    """The file of a folder's weights."""
    return next(folder.glob("*.safetensors"))


def test_folder_of_weights_is_found_by_its_contents(tmp_path: Path) -> None:
    """One checksum stands for all of it: another configuration is another model."""
    folder = made(tmp_path / "small")
    found = find_folder(str(folder))
    assert (found.path, found.name) == (str(folder.resolve()), "small")
    assert find_folder(str(folder)) == found
    config = folder / "config.json"
    config.write_text(config.read_text().rstrip() + "\n\n")
    assert find_folder(str(folder)).sha256 != found.sha256


def test_folder_whose_weights_are_quantized_is_found(tmp_path: Path) -> None:
    """A rung's folder is what a lever record names."""
    folder = made(tmp_path / "small")
    config = folder / "config.json"
    config.write_text('{"quantization_config": {}, ' + config.read_text().lstrip()[1:])
    assert find_folder(str(folder)).name == "small"


def test_what_is_no_whole_folder_of_weights_is_refused(tmp_path: Path) -> None:
    """Said before anything is proven with it."""
    with pytest.raises(LaunchError, match=r"needs config\.json and weights"):
        find_folder(str(tmp_path / "nowhere"))
    folder = made(tmp_path / "small")
    path = weights(folder)
    path.write_bytes(path.read_bytes()[:-3])
    with pytest.raises(LaunchError, match="no whole safetensors file"):
        find_folder(str(folder))
    path.unlink()
    with pytest.raises(LaunchError, match=r"holds no \*\.safetensors"):
        find_folder(str(folder))


@pytest.mark.parametrize("path", ["a\0b", "~no-such-user-here/model"])
def test_what_can_be_no_path_is_refused_as_any_other_bad_path(path: str) -> None:
    """A NUL byte and a home of nobody, which a lever record or an option may hold."""
    with pytest.raises(LaunchError, match="is no path"):
        find_folder(path)
    with pytest.raises(LaunchError, match="is no path"):
        find_model(path)
    for engine in ("vllm", "llamacpp"):
        with pytest.raises(LeverRecordError, match=r"\$\.revision\.model: .* is no path"):
            known_of(fleet(engine)).find_model(path)


def test_folder_whose_index_names_a_missing_file_is_refused(tmp_path: Path) -> None:
    """A shard that was not fetched: the engine would not start with it."""
    folder = made(tmp_path / "small", files=2)
    assert find_folder(str(folder)).name == "small"
    (folder / "model-1.safetensors").unlink()
    with pytest.raises(LaunchError, match=r"is in model-1\.safetensors, and it is not"):
        find_folder(str(folder))


def fleet(engine: str) -> Any:
    """A fleet of an engine, as far as a lever record asks it."""
    return SimpleNamespace(
        config=Config(),
        attached=object(),
        clock=HandClock(),
        secret=Secret(bytes(32)),
        baseline=REVISION.replace(engine=engine),
    )


def test_fleet_of_vllm_takes_a_folder_as_the_model_of_a_lever(tmp_path: Path) -> None:
    """What `quantize --engine vllm` writes can be proposed to it; a fleet of llama.cpp needs a file."""
    folder = made(tmp_path / "w8a8")
    assert known_of(fleet("vllm")).find_model(str(folder)) == find_folder(str(folder))
    with pytest.raises(LeverRecordError, match=r"\$\.revision\.model"):
        known_of(fleet("llamacpp")).find_model(str(folder))


def test_rule_about_weights_of_attached_servers_is_refused_with_why(tmp_path: Path) -> None:
    """Which weights they run is not seen: neither the folder nor the baseline is read as a file."""
    folder = made(tmp_path / "w8a8")
    text = other_weights("lm_head").replace("four-bit", str(folder))
    with pytest.raises(LeverRecordError) as refused:
        complete(
            parse_record(text, source="lever.toml"),
            baseline=REVISION.replace(engine="vllm"),
            now_s=1.0,
            known=known_of(fleet("vllm")),
        )
    assert str(refused.value).startswith("$.revision.keep: the weights that an attached server")
