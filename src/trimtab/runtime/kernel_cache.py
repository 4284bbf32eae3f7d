"""Compiled configurations of the kernel tables' package, kept between runs: making one takes seconds, reading it none.

A file for each, in the cache folder; it holds nothing that cannot be made again. One that cannot be read or written is
as good as none. The package's version is part of the key, so a new one makes its own.
"""

import contextlib
import hashlib
from pathlib import Path
from typing import Final

import msgspec

_FORMAT: Final = 1


class Compiled(msgspec.Struct, frozen=True, kw_only=True):
    """What the package compiled, the widths in it, and the version of the tables it is for."""

    spec: bytes
    widths: str
    version: str


class CompiledCache:
    """Compiled configurations by key in a folder; None keeps nothing."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder

    def get(self, key: str) -> Compiled | None:
        """Return what is kept under a key, None if nothing that can be read."""
        if self._folder is None:
            return None
        try:
            return msgspec.msgpack.decode(self._path(key).read_bytes(), type=Compiled)
        except (OSError, msgspec.MsgspecError):
            return None

    def put(self, key: str, compiled: Compiled) -> None:
        """Keep something whole or not at all."""
        if self._folder is None:
            return
        path = self._path(key)
        beside = path.with_suffix(".part")
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            beside.write_bytes(msgspec.msgpack.encode(compiled))
            beside.replace(path)
        except OSError:  # a full or read-only disk costs time at the next start, nothing else
            with contextlib.suppress(OSError):
                beside.unlink()

    def _path(self, key: str) -> Path:
        assert self._folder is not None
        digest = hashlib.sha256(f"{_FORMAT} {key}".encode()).hexdigest()
        return self._folder / f"{digest[:32]}.spec"
