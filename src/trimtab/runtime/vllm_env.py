"""Where vLLM's own environment and the checkpoints for it lie: outside the clone, under a name made of what is in it.

vLLM pins other versions than trimtab does, and takes gigabytes, so it never shares trimtab's environment. The folder's
name has a hash of the requirements: a changed requirement is another folder, and nothing is mended in place. A file
that is written last says that the folder is whole.
"""

import hashlib
import os
from pathlib import Path
from typing import Final

import msgspec

import trimtab.engines
from trimtab.core.ports import LaunchError
from trimtab.runtime.model import holds_checkpoint, resolved

REQUIREMENTS: Final = Path(trimtab.engines.__file__).with_name("vllm_requirements.txt")
PLUGINS: Final = Path(trimtab.engines.__file__).with_name("vllm_plugins")
WHOLE: Final = ".whole"
"""Written into a folder when everything is in it."""

CHECKPOINTS_VERSION: Final = 1
SMOLLM2: Final = "smollm2"
MADE_LLAMA: Final = "made-llama"
MADE_MOE: Final = "made-moe"
CHECKPOINTS: Final = (SMOLLM2, MADE_LLAMA, MADE_MOE)
"""Models that come with the environment: SmolLM2-135M-Instruct in bf16, and two of random weights for layouts."""


class VllmEnvironment(msgspec.Struct, frozen=True):
    """An environment that has vLLM: its interpreter, and where its checkpoints lie."""

    python: Path
    checkpoints: Path

    def model(self, name: str) -> Path:
        """Return the folder of a checkpoint by its name here, or of a path; raises `LaunchError`."""
        folder = self.checkpoints / name if name in CHECKPOINTS else resolved(name)
        if not holds_checkpoint(folder):
            what = f"there is no model at {folder}"
            if folder.is_dir():
                what = f"{folder} has no config.json"
            elif folder.is_file():
                what = f"{folder} is a file, and vLLM serves a folder"
            raise LaunchError(
                f"{what}: name one of {', '.join(CHECKPOINTS)} (make engine-vllm makes them) or a folder with a "
                "config.json and weights; no model is fetched by its name or address"
            )
        return folder.resolve()


def cache_folder() -> Path:
    """Return where trimtab keeps what can be made again."""
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "trimtab"


def environment_folder() -> Path:
    """Return where the environment for the present requirements lies or would lie."""
    digest = hashlib.sha256(REQUIREMENTS.read_bytes()).hexdigest()
    return cache_folder() / f"vllm-{digest[:12]}"


def checkpoints_folder() -> Path:
    """Return where the checkpoints lie or would lie."""
    return cache_folder() / f"checkpoints-{CHECKPOINTS_VERSION}"


def find_environment(python: str = "") -> VllmEnvironment:
    """Return the environment, or the one whose interpreter is `python`; raises `LaunchError` with the way to get it."""
    if python:
        chosen = Path(python).expanduser()
        if not os.access(chosen, os.X_OK):
            raise LaunchError(
                f"{chosen} is no interpreter: name the python of an environment with vLLM"
            )
        return VllmEnvironment(chosen, checkpoints_folder())
    folder = environment_folder()
    if not (folder / WHOLE).is_file():
        raise LaunchError(
            f"there is no vLLM environment at {folder}: make engine-vllm makes it (2.7 GB, 3 to 11 minutes)"
        )
    return VllmEnvironment(folder / "bin" / "python", checkpoints_folder())
