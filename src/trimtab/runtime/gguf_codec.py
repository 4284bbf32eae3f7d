"""The block formats of GGUF by the `gguf` package, and files written whole or not at all."""

import mmap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from trimtab.core.ports import LaunchError
from trimtab.engines.gguf import GGUFError, read_header
from trimtab.engines.gguf_rewrite import Conversion, Floats, plan_conversion, rewritten
from trimtab.engines.gguf_tensors import KIND_NAMES, Group, TensorKind
from trimtab.runtime.model import check_model
from trimtab.runtime.model_copy import write_parts


class CodecMissingError(LaunchError):
    """The `gguf` package is not installed."""


class GGUFCodec:
    """Implements `BlockCodec`; raises `CodecMissingError` where the package is not installed."""

    def __init__(self) -> None:
        try:
            import gguf
            import gguf.quants
        except ImportError as error:
            raise CodecMissingError(
                "writing GGUF files needs the gguf package: pip install 'trimtab[quantize]'"
            ) from error
        self._quants: Any = gguf.quants
        self._kinds: Any = gguf.GGMLQuantizationType

    def decode(self, raw: bytes, kind: int, shape: tuple[int, ...]) -> Floats:
        """See `BlockCodec`."""
        rows = tuple(reversed(shape))
        if kind in (0, 1):
            values = np.frombuffer(raw, dtype=np.float32 if kind == 0 else np.float16)
            return values.astype(np.float32).reshape(rows)
        try:
            blocks = np.frombuffer(raw, dtype=np.uint8).reshape(*rows[:-1], -1)
            return np.asarray(self._quants.dequantize(blocks, self._kinds(kind)), dtype=np.float32)
        except (NotImplementedError, ValueError, KeyError) as error:
            raise GGUFError(f"its tensor type {kind} cannot be decoded: {error}") from error

    def encode(self, values: Floats, kind: int) -> bytes:
        """See `BlockCodec`; raises `GGUFError` where a value does not fit."""
        if kind == 0:
            return values.astype(np.float32).tobytes()
        if kind == 1:
            with np.errstate(over="ignore"):
                narrow = values.astype(np.float16)
            if not np.isfinite(narrow).all():
                raise GGUFError("a value is larger than F16 can hold: use bf16")
            return narrow.tobytes()
        return bytes(self._quants.quantize(values, self._kinds(kind)).tobytes())


def convert(
    source: Path,
    target: Path,
    wanted: Mapping[Group, TensorKind],
    *,
    keep: frozenset[str] = frozenset(),
) -> Conversion:
    """Write `source` again as `target` with other types and read back what was written.

    The source is never changed; the target appears whole or not at all. Raises `LaunchError` that names the file.
    """
    codec = GGUFCodec()
    try:
        with (
            source.open("rb") as file,
            mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data,
        ):
            view = memoryview(data)
            try:
                conversion = plan_conversion(read_header(view, file_bytes=len(view)), wanted, keep)
                write_parts(target, rewritten(view, conversion, codec))
            finally:
                view.release()
        check_written(target, conversion)
    except GGUFError as error:
        raise LaunchError(f"the model {source} cannot be converted: {error}") from error
    except OSError as error:
        raise LaunchError(
            f"{target} cannot be written from {source}: {error.strerror or error}; nothing of it was kept"
        ) from error
    return conversion


def check_written(target: Path, conversion: Conversion) -> None:
    """Compare a written file's own table with what was to be converted; raises `LaunchError` and removes it."""
    header = check_model(str(target))
    found = {tensor.name: KIND_NAMES.get(tensor.kind, str(tensor.kind)) for tensor in header.table}
    wrong = [one.name for one in conversion.changes if found.get(one.name) != one.after]
    if wrong:
        target.unlink()
        raise LaunchError(
            f"{target} does not hold what was to be written: {wrong[0]} is {found.get(wrong[0])}"
        )
