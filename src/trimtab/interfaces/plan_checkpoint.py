"""Which checkpoint a server gets for the model that a plan was asked about: a folder, or a repository of its makers."""

import json
from pathlib import Path

import msgspec

from trimtab.core.layout import PlanInputError
from trimtab.engines.gguf import MAGIC
from trimtab.engines.model_names import find_model_config
from trimtab.engines.model_repositories import find_repository
from trimtab.engines.vllm import VERSION
from trimtab.runtime.model_folder import CONFIG, weight_files


class Checkpoint(msgspec.Struct, frozen=True, kw_only=True):
    """What a server is started with. `name`: a whole path where `is_folder`, else a repository.

    `notes`: what a reader must know or do about it, as sentences.
    """

    name: str
    is_folder: bool = False
    notes: tuple[str, ...] = ()


def folder_of(text: str) -> Path:
    """Return the folder that a model's words name; of a config.json the one that it lies in."""
    path = Path(text)
    return path.parent if path.name == CONFIG else path


def checkpoint_of(text: str) -> Checkpoint:
    """Return the checkpoint of a model as it was asked for; raises `PlanInputError` for one that vLLM does not load."""
    folder = folder_of(text)
    if folder.is_dir():
        return _folder(folder.resolve())
    if folder.is_file():
        raise PlanInputError(
            "model", f"vLLM {VERSION} loads folders and {_unfit(folder)}", _near(folder)
        )
    found = find_repository(text)
    if found is None:
        note = f"replace {text} by the folder or repository of its checkpoint: whose it is is not known here."
        return Checkpoint(name=text, notes=(note,))
    if found.exact:
        return Checkpoint(name=found.name)
    note = f"{text} leaves the variant open; {found.name} is taken. Its other variants have the same size."
    return Checkpoint(name=found.name, notes=(note,))


def _folder(folder: Path) -> Checkpoint:
    notes = [f"The checkpoint is a folder: {folder} must be on every machine that serves it."]
    if not weight_files(folder):
        notes.append("There are no weights in it here: bring them before the start.")
    return Checkpoint(name=str(folder), is_folder=True, notes=tuple(notes))


def _unfit(path: Path) -> str:
    with path.open("rb") as opened:
        head = opened.read(len(MAGIC))
    if head == MAGIC:
        return f"no GGUF files such as {path.name}: name the checkpoint that it was made of"
    return f"not the file {path.name}: name the folder of its checkpoint"


def _near(path: Path) -> tuple[str, ...]:
    """Return the folder beside a file where that is one of a checkpoint."""
    return (
        (str(path.parent),) if (path.parent / CONFIG).is_file() else ("a folder with config.json",)
    )


def model_type_of(text: str) -> str:
    """Return the family that a model's configuration names, empty where it names none."""
    path = folder_of(text) / CONFIG
    if path.is_file():
        try:
            fields = json.loads(path.read_bytes())
        except ValueError:
            return ""
        return str(fields.get("model_type", "")) if isinstance(fields, dict) else ""
    named = find_model_config(text)
    return str(named.fields.get("model_type", "")) if named else ""
