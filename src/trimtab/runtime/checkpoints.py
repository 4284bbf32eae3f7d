"""Checkpoints in folders: read and proven whole, and written again in other precisions, whole or not at all."""

import hashlib
import json
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np

from trimtab.core.ports import LaunchError
from trimtab.engines.compressed_tensors import (
    CheckpointPlan,
    encoded,
    place_of_weight,
    quantization_config,
    stored_as,
)
from trimtab.engines.gguf_tensors import Group
from trimtab.engines.low_precision import Floats, from_bf16
from trimtab.engines.safetensors import StoredTensor, header_of
from trimtab.runtime.model_copy import write_parts
from trimtab.runtime.model_folder import CONFIG, INDEX, files_of, json_of, mapped, tensors_of

TOKENIZER: Final = "tokenizer.json"
QUANTIZED: Final = ("hf_quant_config.json", "quantize_config.json", "quant_config.json")
"""Files in which ModelOpt, GPTQ and AWQ say how weights are quantized where config.json does not."""
SPARE_BYTES: Final = 64 * 1024 * 1024
_WEIGHTS: Final = (".safetensors", ".bin", ".pt", ".pth", ".gguf", ".h5", ".msgpack", ".onnx")
_FLOATS: Final = ("BF16", "F16", "F32")


class Checkpoint(msgspec.Struct, frozen=True, kw_only=True):
    """A folder of unquantized weights. `files`: the tensors of each file, in the order of their bytes."""

    folder: Path
    config: dict[str, Any]
    files: dict[str, tuple[StoredTensor, ...]]

    @property
    def tensors(self) -> tuple[StoredTensor, ...]:
        """The tensors of all files."""
        return tuple(tensor for name in sorted(self.files) for tensor in self.files[name])

    @property
    def weight_bytes(self) -> int:
        """Bytes of all tensors."""
        return sum(tensor.size for tensor in self.tensors)


def open_checkpoint(folder: Path) -> Checkpoint:
    """Read what a folder holds and check that it is whole; raises `LaunchError` that names the file and the fix."""
    config = json_of(folder / CONFIG)
    if (said := _quantized_by(folder, config)) is not None:
        raise LaunchError(
            f"{folder} is quantized already ({said}): name the folder of the original weights"
        )
    files = files_of(folder)
    found = Checkpoint(folder=folder, config=config, files=files)
    if all(place_of_weight(one.name).group in _NOT_LINEAR for one in found.tensors):
        kinds = config.get("architectures") or ["unnamed"]
        raise LaunchError(
            f"{folder}: its tensors have no names that are known (architecture {kinds[0]}): only models with "
            "layers named self_attn.q_proj to mlp.down_proj can be walked"
        )
    _check_tokenizer(found)
    return found


def _quantized_by(folder: Path, config: Mapping[str, Any]) -> str | None:
    """Say which file tells that weights are quantized, and how; None where none does."""
    told = config.get("quantization_config")
    if told is not None:
        method = told.get("quant_method", "unnamed") if isinstance(told, dict) else "unnamed"
        return f"{method}, says {CONFIG}"
    return next((f"says {name}" for name in QUANTIZED if (folder / name).is_file()), None)


_NOT_LINEAR: Final = (Group.OTHER, Group.EMBEDDING, Group.HEAD)


def _check_tokenizer(checkpoint: Checkpoint) -> None:
    """Raise `LaunchError` where the tokenizer has tokens that the model has no embedding for."""
    path = checkpoint.folder / TOKENIZER
    rows = [
        tensor.shape[0]
        for tensor in checkpoint.tensors
        if place_of_weight(tensor.name).group is Group.EMBEDDING
    ]
    if not path.is_file() or not rows:
        return
    told = json_of(path)
    model = told.get("model")
    vocabulary = model.get("vocab") if isinstance(model, dict) else None
    ids = list(vocabulary.values()) if isinstance(vocabulary, dict) else []
    ids += [one["id"] for one in told.get("added_tokens") or [] if isinstance(one, dict)]
    most = max((one for one in ids if isinstance(one, int)), default=-1)
    if most >= rows[0]:
        raise LaunchError(
            f"{path} does not belong to these weights: it has the token {most:,} and the model {rows[0]:,} "
            "embeddings; take the tokenizer that came with the weights"
        )


def checkpoint_sha256(checkpoint: Checkpoint) -> str:
    """Return one checksum of the configuration and all weights; reads every byte."""
    digest = hashlib.sha256()
    for name in (CONFIG, *sorted(checkpoint.files)):
        with (checkpoint.folder / name).open("rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()


def check_finite(checkpoint: Checkpoint) -> None:
    """Read every weight once; raises `LaunchError` for a tensor that holds what is no number."""
    every = frozenset(one.name for one in checkpoint.tensors if one.dtype in _FLOATS)
    for _ in weights_in(checkpoint, every):
        pass


def weights_in(checkpoint: Checkpoint, names: frozenset[str]) -> Iterator[tuple[str, Floats]]:
    """Yield the values of some tensors; raises `LaunchError` for one that is not finite."""
    for file, tensors in checkpoint.files.items():
        wanted = [tensor for tensor in tensors if tensor.name in names]
        with mapped(checkpoint.folder / file) as view:
            for tensor in wanted:
                yield tensor.name, _values(checkpoint.folder / file, tensor, view)


def write_checkpoint(checkpoint: Checkpoint, target: Path, plan: CheckpointPlan) -> Path:
    """Write a checkpoint in the precision of a plan and return its folder; it appears whole or not at all.

    The original is only read. Raises `LaunchError`; nothing of a target that failed is left.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    free, need = shutil.disk_usage(target.parent).free, checkpoint.weight_bytes + SPARE_BYTES
    if free < need:
        raise LaunchError(
            f"{target.parent} has {free >> 20:,} MiB free and {need >> 20:,} are needed for a copy of "
            f"{checkpoint.folder}: choose another folder (--report)"
        )
    made = Path(tempfile.mkdtemp(dir=target.parent, prefix=".part-"))
    try:
        _write(checkpoint, made, plan)
        _check_written(made, checkpoint, plan)
        if target.exists():
            shutil.rmtree(target)
        made.chmod(0o755)
        made.replace(target)
    except OSError as error:
        raise LaunchError(
            f"{target} cannot be written from {checkpoint.folder}: {error.strerror or error}; nothing of it was kept"
        ) from error
    finally:
        shutil.rmtree(made, ignore_errors=True)
    return target


def _write(checkpoint: Checkpoint, made: Path, plan: CheckpointPlan) -> None:
    for path in checkpoint.folder.iterdir():
        if path.is_file() and not _holds_weights(path) and path.name != CONFIG:
            shutil.copyfile(path, made / path.name)
    for name in checkpoint.files:
        with mapped(checkpoint.folder / name) as view:
            write_parts(made / name, _parts(checkpoint, name, view, plan))
    config = dict(checkpoint.config)
    if (quantized := quantization_config(plan)) is not None:
        config["quantization_config"] = quantized
    (made / CONFIG).write_text(json.dumps(config, indent=2) + "\n", "utf-8")
    if len(checkpoint.files) > 1:
        index = {
            "metadata": {"total_size": sum(one.size for one in _planned(checkpoint, plan))},
            "weight_map": {
                one.name: name
                for name, tensors in checkpoint.files.items()
                for one in _stored(tensors, plan)
            },
        }
        (made / INDEX).write_text(json.dumps(index, indent=2) + "\n", "utf-8")


def _holds_weights(path: Path) -> bool:
    """Say whether a file beside the configuration holds weights or says where they are: the original's, not a copy's.

    Another format of the same weights would double the copy, and an engine that prefers it would serve the original.
    """
    return path.suffix in _WEIGHTS or path.name.endswith(".index.json")


def _parts(
    checkpoint: Checkpoint, name: str, view: memoryview, plan: CheckpointPlan
) -> Iterator[bytes]:
    tensors = checkpoint.files[name]
    converted = plan.converted
    yield header_of(_stored(tensors, plan))
    for tensor in tensors:
        if tensor.name in converted:
            yield from encoded(_values(checkpoint.folder / name, tensor, view), plan.scheme)
        else:
            yield bytes(view[tensor.start : tensor.start + tensor.size])


def _stored(tensors: tuple[StoredTensor, ...], plan: CheckpointPlan) -> list[StoredTensor]:
    converted = plan.converted
    return [
        part
        for tensor in tensors
        for part in (stored_as(tensor, plan.scheme) if tensor.name in converted else (tensor,))
    ]


def _planned(checkpoint: Checkpoint, plan: CheckpointPlan) -> list[StoredTensor]:
    return [one for tensors in checkpoint.files.values() for one in _stored(tensors, plan)]


def _check_written(made: Path, checkpoint: Checkpoint, plan: CheckpointPlan) -> None:
    """Read back what was written; raises `LaunchError` where a file does not hold what was planned."""
    for name, tensors in checkpoint.files.items():
        found = {(one.name, one.dtype, one.shape) for one in tensors_of(made / name)}
        planned = {(one.name, one.dtype, one.shape) for one in _stored(tensors, plan)}
        if found != planned:
            raise LaunchError(f"{made / name} does not hold what was to be written")


def types_by_group(tensors: tuple[StoredTensor, ...]) -> dict[str, dict[str, int]]:
    """Count the weights of each type in each group; what a checkpoint really holds."""
    found: dict[str, dict[str, int]] = {}
    for tensor in tensors:
        module, _, kind = tensor.name.rpartition(".")
        if kind not in ("weight", "weight_packed"):
            continue
        counts = found.setdefault(place_of_weight(f"{module}.weight").group.value, {})
        counts[tensor.dtype] = counts.get(tensor.dtype, 0) + 1
    return found


def written_tensors(folder: Path) -> tuple[StoredTensor, ...]:
    """Return what a folder's files hold; raises `LaunchError`."""
    found: list[StoredTensor] = []
    for path in sorted(folder.glob("*.safetensors")):
        found += tensors_of(path)
    return tuple(found)


def _values(path: Path, tensor: StoredTensor, view: memoryview) -> Floats:
    # A copy: an error whose traceback held a part of the map would keep it from being closed.
    raw = bytes(view[tensor.start : tensor.start + tensor.size])
    match tensor.dtype:
        case "BF16":
            values = from_bf16(raw, tensor.shape)
        case "F16" | "F32":
            kind = np.float16 if tensor.dtype == "F16" else np.float32
            values = np.frombuffer(raw, dtype=kind).astype(np.float32).reshape(tensor.shape)
        case _:
            raise LaunchError(
                f"{path}: {tensor.name} is {tensor.dtype}, which is not read as weights: give BF16, F16 or F32"
            )
    if not np.isfinite(values).all():
        bad = int(np.size(values) - np.isfinite(values).sum())
        raise LaunchError(
            f"{path}: {tensor.name} has {bad:,} values that are no numbers (NaN or infinite): the weights are broken"
        )
    return values
