"""A model that is a folder, as vLLM serves it, is found whole or refused with what is wrong."""

import json
import zipfile
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
from trimtab.engines.compressed_tensors import Scheme, plan_checkpoint
from trimtab.engines.gguf_tensors import LINEAR
from trimtab.rollout.short_record import complete, parse_record
from trimtab.runtime.checkpoints import open_checkpoint, write_checkpoint
from trimtab.runtime.fleet_known import known_of
from trimtab.runtime.model import find_model
from trimtab.runtime.model_folder import find_folder, weight_files
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
    with pytest.raises(LaunchError, match=r"holds no weights: neither \*\.safetensors nor"):
        find_folder(str(folder))


def torch_weights(folder: Path, *names: str) -> Path:
    """A folder whose weights are PyTorch's files, as it writes them since 1.6."""
    made(folder)
    weights(folder).unlink()
    for name in names:
        with zipfile.ZipFile(folder / name, "w") as archive:
            archive.writestr("archive/data.pkl", name.encode() * 100)
    return folder


def test_folder_of_torch_weights_is_found_by_its_contents(tmp_path: Path) -> None:
    """vLLM and SGLang serve it; what training left beside the weights is none of them."""
    folder = torch_weights(tmp_path / "old", "pytorch_model.bin")
    found = find_folder(str(folder))
    assert found.name == "old"
    (folder / "training_args.bin").write_bytes(b"\x80\x02settings")
    assert find_folder(str(folder)) == found
    assert weight_files(folder) == ("pytorch_model.bin",)
    (folder / "pytorch_model.bin").write_bytes(b"\x80\x02weights as they were written before 1.6")
    assert find_folder(str(folder)).sha256 != found.sha256


def test_torch_weights_that_are_not_whole_are_refused(tmp_path: Path) -> None:
    """Cut off, a pointer to a file that was not fetched, empty, or one of the index that is not there."""
    folder = torch_weights(tmp_path / "old", "a.bin", "b.bin")
    index = {"weight_map": {"one": "a.bin", "two": "b.bin"}}
    (folder / "pytorch_model.bin.index.json").write_text(json.dumps(index))
    assert find_folder(str(folder)).name == "old"
    path = folder / "b.bin"
    whole = path.read_bytes()
    for data, said in (
        (whole[:-30], "is cut off"),
        (b"version https://git-lfs.github.com/spec/v1", "no file of weights as PyTorch writes it"),
        (b"", "missing or empty"),
    ):
        path.write_bytes(data)
        with pytest.raises(LaunchError, match=said):
            find_folder(str(folder))
    path.unlink()
    with pytest.raises(LaunchError, match=r"two is in b\.bin, and it is not there"):
        find_folder(str(folder))


def test_safetensors_are_what_counts_where_both_are_there(tmp_path: Path) -> None:
    """As for the engines: the other format beside them changes nothing."""
    folder = made(tmp_path / "both")
    found = find_folder(str(folder))
    (folder / "pytorch_model.bin").write_bytes(b"what nobody reads")
    assert find_folder(str(folder)) == found


def test_tensors_of_torch_weights_are_not_read_and_it_is_said_how_to_convert(
    tmp_path: Path,
) -> None:
    """Sensitivity and conversion read tensors; a pickle would run what it holds."""
    folder = torch_weights(tmp_path / "old", "pytorch_model.bin")
    with pytest.raises(LaunchError) as refused:
        open_checkpoint(folder)
    assert "servers can load that" in str(refused.value)
    assert f"from_pretrained('{folder}').save_pretrained(" in str(refused.value)
    assert "tokenizer" in str(refused.value)


def test_copy_in_lower_precision_holds_no_weights_of_the_original(tmp_path: Path) -> None:
    """The same weights in another format beside it would be served by whoever prefers that format."""
    folder = made(tmp_path / "both")
    for name in ("pytorch_model.bin", "pytorch_model.bin.index.json", "model.gguf"):
        (folder / name).write_bytes(b"{}")
    checkpoint = open_checkpoint(folder)
    plan = plan_checkpoint(checkpoint.tensors, Scheme.W8A8, LINEAR)
    copy = write_checkpoint(checkpoint, tmp_path / "copy", plan)
    assert sorted(path.name for path in copy.iterdir()) == [
        "config.json",
        "model-0.safetensors",
        "tokenizer.json",
    ]


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
