"""Models that are folders of safetensors, as vLLM serves them: found, and proven whole."""

import hashlib
import mmap
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import msgspec

from trimtab.core.ports import EngineFormatError, LaunchError
from trimtab.core.revision import Model
from trimtab.engines.safetensors import StoredTensor, read_tensors
from trimtab.runtime.model import resolved

CONFIG: Final = "config.json"
INDEX: Final = "model.safetensors.index.json"


def find_folder(path: str) -> Model:
    """Return the model in a folder, in whatever precision its weights are; raises `LaunchError`.

    Reads every file once: one checksum stands for the configuration and all weights.
    """
    folder = resolved(path)
    digest = hashlib.sha256()
    try:
        # Of a path that is no folder of a model that is said, and not that one file of it is missing.
        (folder / CONFIG).stat()
        json_of(folder / CONFIG)
        files = files_of(folder)
        for name in (CONFIG, *sorted(files)):
            with (folder / name).open("rb") as file:
                digest.update(hashlib.file_digest(file, "sha256").digest())
    except OSError as error:
        raise LaunchError(
            f"{folder} is no folder of a model ({error.strerror}: {error.filename}): it needs {CONFIG} and weights"
        ) from error
    return Model(path=str(folder), sha256=digest.hexdigest(), name=folder.name)


def files_of(folder: Path) -> dict[str, tuple[StoredTensor, ...]]:
    """Return the tensors of each file of weights, in the order of their bytes.

    Raises `LaunchError` for a file that is not whole, and for one that the folder's index names and that is not there.
    """
    names = sorted(path.name for path in folder.glob("*.safetensors"))
    if not names:
        others = sorted(
            path.name for each in ("*.bin", "*.pt", "*.gguf") for path in folder.glob(each)
        )
        held = f" but {others[0]}: save them as such (save_pretrained)" if others else ""
        raise LaunchError(
            f"{folder} holds no *.safetensors{held or ': name a folder of such weights'}"
        )
    files = {name: tensors_of(folder / name) for name in names}
    _check_index(folder, files)
    return files


def tensors_of(path: Path) -> tuple[StoredTensor, ...]:
    """Return what a file of weights holds; raises `LaunchError` for one that is not whole."""
    with mapped(path) as view:
        try:
            return read_tensors(view, file_bytes=len(view))
        except EngineFormatError as error:
            raise LaunchError(f"{path} is no whole safetensors file: {error}") from error


def _check_index(folder: Path, files: Mapping[str, tuple[StoredTensor, ...]]) -> None:
    if not (folder / INDEX).is_file():
        return
    held = {tensor.name: name for name, tensors in files.items() for tensor in tensors}
    weights = json_of(folder / INDEX).get("weight_map")
    for tensor, name in weights.items() if isinstance(weights, dict) else ():
        if held.get(tensor) != name:
            raise LaunchError(f"{folder / INDEX} says that {tensor} is in {name}, and it is not")


def json_of(path: Path) -> dict[str, Any]:
    """Return the JSON object of a file; raises `LaunchError`."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
    except OSError as error:
        raise LaunchError(f"{path} cannot be read: {error.strerror}") from error
    except msgspec.MsgspecError as error:
        raise LaunchError(f"{path} is no JSON object: {error}") from error


@contextmanager
def mapped(path: Path) -> Iterator[memoryview]:
    """Map a file to be read; raises `LaunchError` for one that is missing or empty."""
    if not path.is_file() or path.stat().st_size == 0:
        raise LaunchError(f"{path} is missing or empty: copy the weights again")
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        view = memoryview(data)
        try:
            yield view
        finally:
            view.release()
