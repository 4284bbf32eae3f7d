"""A model that a command's engine cannot read is one line: what was given, where it lies and what to give instead."""

import zipfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from checkpoint_kit import made
from click.testing import CliRunner, Result
from control_kit import HandClock
from events_kit import REVISION
from gguf_kit import gguf, layers

from trimtab.core.config import Config, parse_config
from trimtab.engines.kv_types import KvDevice
from trimtab.interfaces.cli import main
from trimtab.runtime import quantize_vllm
from trimtab.runtime.fleet_known import known_of, kv_device_of
from trimtab.runtime.model_folder import find_folder
from trimtab.runtime.secret import Secret
from trimtab.runtime.served_known import read_model
from trimtab.runtime.vllm_env import VllmEnvironment

FETCHED = "no model is fetched by its name or address"


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """An environment of vLLM in which nothing was installed: no case gets as far as to need it."""
    found = VllmEnvironment(tmp_path / "python", tmp_path / "checkpoints")
    monkeypatch.setattr(quantize_vllm, "find_environment", lambda: found)
    monkeypatch.chdir(tmp_path)


def run(command: str, model: str) -> Result:
    """Run a command on a model as far as it gets."""
    words = {
        "quantize": ["quantize", model, "--report", "out"],
        "quantize vllm": ["quantize", model, "--engine", "vllm", "--report", "out"],
        "speculate": ["speculate", model, "--report", "out"],
        "plan": ["plan", "--model", model, "--hardware", "H100:1", "--isl", "9", "--osl", "9"],
    }[command]
    return CliRunner().invoke(main, words)


def served(folder: Path) -> str:
    return str(made(folder / "served"))


def quantized(folder: Path) -> str:
    """As ModelOpt writes it: config.json says nothing."""
    path = made(folder / "narrow")
    (path / "hf_quant_config.json").write_text('{"quantization": {"quant_algo": "FP8"}}')
    return str(path)


def torch_weights(folder: Path) -> str:
    path = made(folder / "old")
    for each in path.glob("*.safetensors"):
        each.rename(each.with_name("pytorch_model.bin"))
    return str(path)


def empty(folder: Path) -> str:
    (folder / "empty").mkdir()
    return str(folder / "empty")


def folder_of_ggufs(folder: Path) -> str:
    (folder / "files").mkdir()
    (folder / "files" / "small.gguf").write_bytes(gguf(layers()))
    return str(folder / "files")


def weights_alone(folder: Path) -> str:
    return str(next(made(folder / "served").glob("*.safetensors")))


CASES: list[tuple[str, Callable[[Path], str], tuple[str, ...]]] = [
    ("quantize", served, ("served is a folder of weights as vLLM and SGLang", "--engine vllm")),
    ("quantize vllm", quantized, ("narrow is quantized already (says hf_quant_config.json)",)),
    (
        "quantize vllm",
        torch_weights,
        ("old holds no *.safetensors but pytorch_model.bin", "save_pretrained", "tokenizer"),
    ),
    ("quantize vllm", folder_of_ggufs, ("files has no config.json", "a folder with a config.json")),
    ("quantize vllm", weights_alone, ("is a file, and vLLM serves a folder",)),
    ("quantize vllm", lambda _: "owner/Some-7B", ("there is no model at", FETCHED)),
    ("quantize", lambda _: "owner/Some-7B", ("there is no model at", "GGUF file", FETCHED)),
    ("quantize", lambda _: "http://host:30000", ("there is no model at", FETCHED)),
    ("quantize", folder_of_ggufs, ("files is a folder", "name it, such as", "small.gguf")),
    ("quantize", empty, ("holds neither a GGUF file nor a model's config.json",)),
    ("speculate", served, ("served is a folder of weights as vLLM and SGLang", "trimtab repeats")),
    ("speculate", weights_alone, ("is part of a folder of weights", "convert_hf_to_gguf.py")),
    ("speculate", folder_of_ggufs, ("files is a folder", "small.gguf")),
    ("plan", empty, ("empty is a folder without a config.json: name a config.json",)),
    ("plan", folder_of_ggufs, ("is a folder without a config.json: name the GGUF file", "small")),
    ("plan", weights_alone, ("holds weights and does not say whose: name the folder",)),
    ("plan", lambda _: "owner/Some-7B", ("is no file and no known model (none is fetched",)),
]


@pytest.mark.parametrize(("command", "given", "said"), CASES)
def test_model_that_the_engine_cannot_read_is_one_line_with_the_fix(
    tmp_path: Path, command: str, given: Callable[[Path], str], said: tuple[str, ...]
) -> None:
    """Nothing is started and nothing written."""
    model = given(tmp_path)
    found = run(command, model)
    assert found.exit_code == (3 if command == "plan" else 1), found.output
    line = " ".join(found.output.split())
    assert [words for words in said if words not in line] == []
    assert "Traceback" not in found.output
    assert not (tmp_path / "out").exists()


def test_engine_of_a_ladder_is_named_as_the_help_names_it() -> None:
    """In small letters, as everywhere."""
    told = CliRunner().invoke(main, ["quantize", "--help"]).output
    assert "--engine [llamacpp|vllm]" in told
    assert "[default: llamacpp]" in " ".join(told.split())


def test_fleet_of_attached_sglang_takes_the_folder_that_it_serves(tmp_path: Path) -> None:
    """It reads no GGUF file that llama.cpp would."""
    fleet: Any = SimpleNamespace(
        config=Config(),
        attached=object(),
        clock=HandClock(),
        secret=Secret(bytes(32)),
        baseline=REVISION.replace(engine="sglang"),
    )
    folder = served(tmp_path)
    assert known_of(fleet).find_model(folder) == find_folder(folder)


def test_fleet_of_attached_sglang_takes_a_folder_of_torch_weights(tmp_path: Path) -> None:
    """Both engines serve them; only what reads tensors here needs safetensors."""
    folder = made(tmp_path / "served")
    for each in folder.glob("*.safetensors"):
        each.unlink()
    with zipfile.ZipFile(folder / "pytorch_model.bin", "w") as archive:
        archive.writestr("archive/data.pkl", b"weights")
    fleet: Any = SimpleNamespace(
        config=Config(),
        attached=object(),
        clock=HandClock(),
        secret=Secret(bytes(32)),
        baseline=REVISION.replace(engine="sglang"),
    )
    assert known_of(fleet).find_model(str(folder)).name == "served"


SERVER = (
    '[[fleet.attached]]\nurl = "http://127.0.0.1:{port}"\nlabels = {{ accelerator = "{what}" }}\n'
)


@pytest.mark.parametrize(
    ("labels", "more", "device"),
    [
        (("H100", "H200"), "", KvDevice.ACCELERATOR),
        (("CPU", "cpu"), "", KvDevice.CPU),
        (("H100", "cpu-2"), "", KvDevice.CPU),
        (("H100", ""), "", KvDevice.UNKNOWN),
        (("H100",), '[fleet]\ndiscover = "dns://host:8000"\n', KvDevice.UNKNOWN),
        ((), "", KvDevice.CPU),
    ],
)
def test_what_a_fleet_runs_on_is_what_every_server_is_said_to(
    labels: tuple[str, ...], more: str, device: KvDevice
) -> None:
    """One CPU makes what is garbage there garbage here; one that says nothing leaves it open; ours run on CPUs."""
    servers = "".join(SERVER.format(port=8000 + at, what=what) for at, what in enumerate(labels))
    config = parse_config(more + servers, source="trimtab.toml")
    assert kv_device_of(config.fleet) is device


def test_gguf_file_is_read_whatever_it_is_called(tmp_path: Path) -> None:
    """What it begins with says what it is, as where a command reads weights."""
    file = tmp_path / "model.bin"
    file.write_bytes(gguf(layers()))
    named_otherwise = read_model(str(file))
    assert named_otherwise.layers == read_model(str(file.rename(tmp_path / "model.gguf"))).layers
