"""Reads what a person knows of servers: a file of facts, a model's configuration, a name of hardware."""

import math
import tomllib
from pathlib import Path
from typing import Final

import msgspec

from trimtab.core.accelerators import UnknownAcceleratorError, find_accelerator
from trimtab.core.nearest import nearest_names
from trimtab.core.ports import EngineFormatError
from trimtab.core.served import Accelerator, ModelShape
from trimtab.diagnosis.served_facts import ServedFacts
from trimtab.engines.gguf import MAGIC, read_header
from trimtab.engines.model_config import read_model_config, shape_of_gguf
from trimtab.engines.model_names import find_model_shape, known_names
from trimtab.runtime.ceilings import measured_cpu
from trimtab.runtime.served_sources import SourceError

FACTS_BYTES_MAX: Final = 1024 * 1024
_WEIGHTS: Final = (".safetensors", ".bin", ".pt")
GGUF_HEADER_BYTES_MAX: Final = 64 * 1024 * 1024
_POSITIVE: Final = ("slots", "accelerators", "ttft_ms_target", "tpot_ms_target")
LOCAL_CPU: Final = "cpu"
"""The name of hardware that means the machine at hand."""


def read_facts(path: Path) -> ServedFacts:
    """Read a file of facts, TOML or (ending in .json) JSON; raises `SourceError` with the path of a wrong key."""
    data = _bytes_of(path, FACTS_BYTES_MAX)
    try:
        if path.suffix.lower() == ".json":
            facts = msgspec.json.decode(data, type=ServedFacts)
        else:
            facts = msgspec.convert(tomllib.loads(data.decode()), ServedFacts)
    except (msgspec.MsgspecError, tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SourceError(f"{path} is no file of facts: {error}") from error
    except RecursionError as error:
        raise SourceError(f"{path} is no file of facts: it is nested too deep") from error
    _check_numbers(path, facts)
    return facts


def _check_numbers(path: Path, facts: ServedFacts) -> None:
    """Refuse what is no number ("nan" is one to TOML), and counts and targets that nothing can have."""
    for name in _POSITIVE:
        value = getattr(facts, name)
        if value is not None and not value > 0:
            raise SourceError(f"{path} is no file of facts: {name} is {value} and not above 0")
    if not _is_finite(msgspec.to_builtins(facts)):
        raise SourceError(f"{path} is no file of facts: a number in it is not finite")


def _is_finite(value: object) -> bool:
    match value:
        case float():
            return math.isfinite(value)
        case dict():
            return all(map(_is_finite, value.values()))
        case list() | tuple():
            return all(map(_is_finite, value))
        case _:
            return True


def read_model(text: str) -> ModelShape:
    """Return the shape of a model: a config.json (or its folder), a GGUF file, or a name; raises `SourceError`."""
    path = Path(text)
    if path.is_dir() and (path / "config.json").is_file():
        path = path / "config.json"
    if not path.is_file():
        found = find_model_shape(text)
        if found is None:
            raise SourceError(_no_model(path, text))
        return found
    try:
        with path.open("rb") as opened:
            head = opened.read(GGUF_HEADER_BYTES_MAX)
        if head.startswith(MAGIC):
            header = read_header(head, file_bytes=path.stat().st_size)
            return shape_of_gguf(header, source=str(path))
        if path.suffix == ".gguf":
            begins = f"begins with {head[: len(MAGIC)]!r}" if head else "is empty"
            raise SourceError(f"{path} is no GGUF file: it {begins}, and one begins with {MAGIC!r}")
        if path.suffix in _WEIGHTS:
            raise SourceError(
                f"{path} holds weights and does not say whose: name the folder, whose config.json does"
            )
        beside = path.with_name("hf_quant_config.json")
        quantization = beside.read_bytes() if beside.is_file() else None
        return read_model_config(head, source=str(path), quantization=quantization)
    except OSError as error:
        raise SourceError(f"{path} cannot be read: {error.strerror}") from error
    except EngineFormatError as error:
        raise SourceError(f"{path} describes no model: {error}") from error


def _no_model(path: Path, text: str) -> str:
    """Say what is wrong with a model that is neither a file nor a known name, and what to give."""
    if path.is_dir():
        files = sorted(path.glob("*.gguf"))
        instead = f"name the GGUF file, such as {files[0]}" if files else "name a config.json"
        return f"{text} is a folder without a config.json: {instead}"
    names = ", ".join(nearest_names(text, known_names()) or known_names())
    return (
        f"{text} is no file and no known model (none is fetched): give the config.json that its server was started "
        f"with, or its folder, or one of these names: {names}"
    )


def find_hardware(name: str) -> Accelerator:
    """Return the ceilings of a device by name; "cpu" measures this machine for a moment. Raises `SourceError`."""
    if name.lower() == LOCAL_CPU:
        return measured_cpu()
    try:
        return find_accelerator(name)
    except UnknownAcceleratorError as error:
        raise SourceError(str(error)) from error


def _bytes_of(path: Path, limit: int) -> bytes:
    try:
        if path.stat().st_size > limit:
            raise SourceError(f"{path} has more than {limit:,} bytes")
        return path.read_bytes()
    except OSError as error:
        raise SourceError(f"{path} cannot be read: {error.strerror}") from error
