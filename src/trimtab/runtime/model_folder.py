"""Models that are folders of weights, as vLLM and SGLang serve them: found, and proven whole.

Both engines also serve folders that hold only PyTorch's own files, so those can be named where a server does the
reading. Here their tensors are never read: they are pickles, which run what they hold. Whatever needs the values
(sensitivity, conversion) needs safetensors, and says how to get them.
"""

import hashlib
import mmap
import zipfile
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
TORCH_INDEX: Final = "pytorch_model.bin.index.json"
SAFE: Final = "*.safetensors"
_TORCH: Final = ("*.bin", "*.pt")
_NO_WEIGHTS: Final = frozenset(
    ("training_args.bin", "optimizer.bin", "optimizer.pt", "scheduler.pt", "scaler.pt")
)
"""What training leaves beside the weights; no engine loads it."""
_ZIP: Final = b"PK\x03\x04"
_PICKLE: Final = b"\x80\x02"
"""First bytes of a file of weights as PyTorch writes it since 1.6, and as it wrote it before."""
_TO_SAFE: Final = (
    "from transformers import AutoModelForCausalLM as M; "
    "M.from_pretrained('{folder}').save_pretrained('{folder}-safetensors')"
)


def find_folder(path: str) -> Model:
    """Return the model in a folder, in whatever precision and format its weights are; raises `LaunchError`.

    Reads every file once: one checksum stands for the configuration and all weights. For serving: tensors of PyTorch's
    files cannot be read, as `files_of` says.
    """
    folder = resolved(path)
    digest = hashlib.sha256()
    try:
        # Of a path that is no folder of a model that is said, and not that one file of it is missing.
        (folder / CONFIG).stat()
        json_of(folder / CONFIG)
        for name in (CONFIG, *_proven_weights(folder)):
            with (folder / name).open("rb") as file:
                digest.update(hashlib.file_digest(file, "sha256").digest())
    except OSError as error:
        raise LaunchError(
            f"{folder} is no folder of a model ({error.strerror}: {error.filename}): it needs {CONFIG} and weights"
        ) from error
    return Model(path=str(folder), sha256=digest.hexdigest(), name=folder.name)


def weight_files(folder: Path) -> tuple[str, ...]:
    """Return the names of the files that an engine would load: safetensors, else PyTorch's; empty without any."""
    for pattern in (SAFE, *_TORCH):
        names = sorted({path.name for path in folder.glob(pattern)} - _NO_WEIGHTS)
        if names:
            return tuple(names)
    return ()


def _proven_weights(folder: Path) -> tuple[str, ...]:
    """Return the names of the files that an engine would load, each whole and none missing; raises `LaunchError`."""
    names = weight_files(folder)
    if not names:
        raise LaunchError(f"{folder} holds no weights: neither {SAFE} nor {' nor '.join(_TORCH)}")
    if names[0].endswith(".safetensors"):
        return tuple(sorted(files_of(folder)))
    for name in names:
        _check_torch(folder / name)
    _check_torch_index(folder, names)
    return names


def _check_torch(path: Path) -> None:
    """Raise `LaunchError` for what PyTorch did not write whole; its older format tells nothing of its end."""
    with mapped(path) as view:
        head = bytes(view[: len(_ZIP)])
    if head == _ZIP and not zipfile.is_zipfile(path):
        raise LaunchError(f"{path} is cut off: copy the weights again")
    if head != _ZIP and not head.startswith(_PICKLE):
        raise LaunchError(f"{path} is no file of weights as PyTorch writes it: copy it again")


def _check_torch_index(folder: Path, names: tuple[str, ...]) -> None:
    if not (folder / TORCH_INDEX).is_file():
        return
    weights = json_of(folder / TORCH_INDEX).get("weight_map")
    for tensor, name in weights.items() if isinstance(weights, dict) else ():
        if name not in names:
            raise LaunchError(
                f"{folder / TORCH_INDEX} says that {tensor} is in {name}, and it is not there"
            )


def files_of(folder: Path) -> dict[str, tuple[StoredTensor, ...]]:
    """Return the tensors of each file of weights, in the order of their bytes.

    Raises `LaunchError` for a file that is not whole, for one that the folder's index names and that is not there, and
    for weights whose tensors cannot be read here.
    """
    names = sorted(path.name for path in folder.glob(SAFE))
    if not names:
        raise LaunchError(f"{folder} holds no {SAFE}{_instead(folder)}")
    files = {name: tensors_of(folder / name) for name in names}
    _check_index(folder, files)
    return files


def _instead(folder: Path) -> str:
    """Say what a folder without safetensors holds, and what to do about it."""
    names = weight_files(folder)
    if names:
        # An engine reads them, and what is written here must be read first.
        return (
            f" but {names[0]}: servers can load that, but what is measured and converted here is read from "
            f'safetensors alone; save them as such: python -c "{_TO_SAFE.format(folder=folder)}", and copy the '
            "tokenizer's files beside them"
        )
    ggufs = sorted(path.name for path in folder.glob("*.gguf"))
    return f" but {ggufs[0]}: name that file" if ggufs else ": name a folder of such weights"


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
