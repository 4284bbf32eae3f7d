"""The copy of a model with weights for which the engine has blocked kernels: made once, kept in the user's cache.

The copy is written beside its place and moved there whole, so that two starts at once, or a start that is killed, leave
no half of one. Its checksum stands in a file beside it; a copy that does not have it is made again.
"""

import hashlib
import os
import tempfile
from collections.abc import Iterable
from pathlib import Path

from trimtab.core.ports import LaunchError
from trimtab.engines.gguf_reencode import reencode

VERSION = 1
"""Part of the copy's name: raised when `reencode` writes something else."""


def cache_folder() -> Path:
    """Return the folder for copies: `$XDG_CACHE_HOME/trimtab`, by default `~/.cache/trimtab`."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(base) if base else Path.home() / ".cache") / "trimtab"


def blocked_copy(source: Path, sha256: str) -> tuple[Path, str]:
    """Return the copy of a model file and its checksum, made now if there is none.

    `sha256`: of the file itself. Raises `LaunchError` where the copy cannot be kept.
    """
    copy = cache_folder() / f"{source.stem}.blocked-{VERSION}-{sha256[:12]}.gguf"
    mark = copy.with_suffix(".sha256")
    try:
        if mark.is_file() and copy.is_file():
            digest = _digest(copy.read_bytes())
            if mark.read_text() == digest:
                return copy, digest
        data = reencode(source.read_bytes())
        digest = _digest(data)
        write_parts(copy, [data])
        write_parts(mark, [digest.encode()])
    except OSError as error:
        raise LaunchError(
            f"the copy of the model with blocked weights cannot be kept at {copy}: {error.strerror}; set "
            "XDG_CACHE_HOME to a folder with 150 MB to spare, or engine.blocked_weights = false"
        ) from error
    return copy, digest


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def write_parts(target: Path, parts: Iterable[bytes]) -> None:
    """Write a file of parts beside its place and move it there: it appears whole or not at all."""
    target.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=target.parent, prefix=".part-")
    try:
        with os.fdopen(handle, "wb") as file:
            file.writelines(parts)
        Path(name).replace(target)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
