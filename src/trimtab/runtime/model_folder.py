"""Models that are folders of safetensors, as vLLM serves them: found, and proven whole."""

import hashlib
import mmap
from pathlib import Path
from typing import Final

import msgspec

from trimtab.core.ports import EngineFormatError, LaunchError
from trimtab.core.revision import Model
from trimtab.engines.safetensors import read_tensors

CONFIG: Final = "config.json"


def find_folder(path: str) -> Model:
    """Return the model in a folder, in whatever precision its weights are; raises `LaunchError`.

    Reads every file once: one checksum stands for the configuration and all weights.
    """
    folder = Path(path).expanduser().resolve()
    digest = hashlib.sha256()
    try:
        msgspec.json.decode((folder / CONFIG).read_bytes(), type=dict[str, object])
        names = sorted(each.name for each in folder.glob("*.safetensors"))
        if not names:
            raise LaunchError(f"{folder} holds no *.safetensors: name a folder of weights")
        for name in (CONFIG, *names):
            if name != CONFIG:
                _check_whole(folder / name)
            with (folder / name).open("rb") as file:
                digest.update(hashlib.file_digest(file, "sha256").digest())
    except OSError as error:
        raise LaunchError(
            f"{folder} is no folder of a model ({error.strerror}: {error.filename}): it needs {CONFIG} and weights"
        ) from error
    except msgspec.MsgspecError as error:
        raise LaunchError(f"{folder / CONFIG} is no JSON object: {error}") from error
    return Model(path=str(folder), sha256=digest.hexdigest(), name=folder.name)


def _check_whole(path: Path) -> None:
    if not path.stat().st_size:
        raise LaunchError(f"{path} is empty: copy the weights again")
    with (
        path.open("rb") as file,
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data,
        memoryview(data) as view,
    ):
        try:
            read_tensors(view, file_bytes=len(view))
        except EngineFormatError as error:
            raise LaunchError(f"{path} is no whole safetensors file: {error}") from error
