"""Configurations that are handed to the kernel tables' package as a folder, for models that it does not carry.

A folder with a config.json is read by it as it is, if it knows the architecture. For names that only our own table
knows, and for architectures that compute the same as one it knows, a folder is written that says so.
"""

import hashlib
import shutil
import tempfile
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec

from trimtab.engines.model_config import CONFIG_BYTES_MAX
from trimtab.engines.model_names import find_model_config

_CONFIG: Final = "config.json"
_ARCHITECTURES: Final = {
    "llama": "LlamaForCausalLM",
    "mistral": "LlamaForCausalLM",
    "granite": "LlamaForCausalLM",
    "phi3": "LlamaForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "mixtral": "MixtralForCausalLM",
    "qwen3_moe": "Qwen3MoeForCausalLM",
    "gpt_oss": "GptOssForCausalLM",
    "deepseek_v3": "DeepseekV3ForCausalLM",
}
"""By `model_type`: the architecture of the package whose kernels have the same shapes."""

_CONTEXT_TOKENS: Final = 32_768
"""Where a configuration does not tell; the package wants one and times do not depend on it."""


class ConfigFolders:
    """Folders with configurations; removed with this object, at the latest at the end of the process."""

    def __init__(self) -> None:
        self._root: Path | None = None
        self._known: dict[str, str | None] = {}

    def folder_of(self, model: str) -> str | None:
        """Return a folder that describes a model by its path or name; None where nothing fitting is known."""
        if model not in self._known:
            self._known[model] = self._find(model)
        return self._known[model]

    def _find(self, model: str) -> str | None:
        path = Path(model)
        path = path / _CONFIG if path.is_dir() else path
        fields = _read(path) if path.is_file() else {}
        alias = _ARCHITECTURES.get(str(fields.get("model_type")))
        if alias:
            return self._write(path.parent.name, fields, alias)
        # Other families are read as they are; the package refuses those that it does not know.
        if path.name == _CONFIG and path.is_file():
            return str(path.parent)
        if "architectures" in fields:
            return self._write(path.stem, fields)
        named = find_model_config(model)
        if named is None:
            return None
        alias = _ARCHITECTURES.get(str(named.fields.get("model_type")))
        return self._write(named.key, named.fields, alias) if alias else None

    def _write(
        self, name: str, fields: Mapping[str, object], architecture: str | None = None
    ) -> str:
        """Write a folder that describes a model: as another architecture, or in the words of its own file."""
        if self._root is None:
            self._root = Path(tempfile.mkdtemp(prefix="trimtab-kernels-"))
            weakref.finalize(self, shutil.rmtree, self._root, ignore_errors=True)
        folder = self._root / f"{len(self._known)}-{name}"
        folder.mkdir()
        whole = dict(fields)
        if architecture is not None:
            told = fields.get("max_position_embeddings") or _CONTEXT_TOKENS
            whole |= {"architectures": [architecture], "max_position_embeddings": told}
        (folder / _CONFIG).write_bytes(msgspec.json.encode(whole))
        return str(folder)


def _read(path: Path) -> dict[str, object]:
    try:
        if path.stat().st_size > CONFIG_BYTES_MAX:
            return {}  # weights
        found = msgspec.json.decode(path.read_bytes())
    except (OSError, msgspec.MsgspecError):
        return {}
    return found if isinstance(found, dict) else {}


def config_digest(model: str) -> str:
    """Return what a folder's configuration holds in few letters, as it may change under its name; empty for a name."""
    path = Path(model)
    path = path / _CONFIG if path.is_dir() else path
    try:
        told = path.is_file() and path.stat().st_size <= CONFIG_BYTES_MAX
        return hashlib.sha256(path.read_bytes()).hexdigest() if told else ""
    except OSError:
        return ""
