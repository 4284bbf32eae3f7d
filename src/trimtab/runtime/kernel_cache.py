"""Step times that kernel tables told, kept between runs: asking the tables takes seconds, reading what they said none.

A file for each model, device, engine and layout, in the cache folder; it holds nothing that cannot be made again. One
that cannot be read or written is as good as none. The versions of the package and of this one are part of the key, so
a new one asks anew. That the tables have nothing is kept too.
"""

import contextlib
import hashlib
from pathlib import Path
from typing import Final

import msgspec

from trimtab.planning.grid_times import Grid
from trimtab.planning.kernel_port import NoTimes

_FORMAT: Final = 4


class Kept(msgspec.Struct, frozen=True, kw_only=True):
    """Times of one layout; or of a mixture's without its exchange, then without its experts too (see `Parted`).

    Grids hold the points that were asked for so far.
    """

    notes: tuple[str, ...]
    extended: bool
    grids: tuple[Grid, ...]


class _File(msgspec.Struct, frozen=True, kw_only=True):
    """One of the two."""

    times: Kept | None = None
    none: NoTimes | None = None


class GridCache:
    """Times by key in a folder; None keeps nothing."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._made = False

    def get(self, key: str) -> Kept | NoTimes | None:
        """Return what is kept under a key, None if nothing that can be read."""
        if self._folder is None:
            return None
        try:
            found = msgspec.msgpack.decode(self._path(key).read_bytes(), type=_File)
        except (OSError, msgspec.MsgspecError):
            return None
        return found.times or found.none

    def put(self, key: str, told: Kept | NoTimes) -> None:
        """Keep something whole or not at all."""
        if self._folder is None:
            return
        path = self._path(key)
        beside = path.with_suffix(".part")
        kept = _File(none=told) if isinstance(told, NoTimes) else _File(times=told)
        try:
            if not self._made:
                self._folder.mkdir(parents=True, exist_ok=True)
                self._made = True
            beside.write_bytes(msgspec.msgpack.encode(kept))
            beside.replace(path)
        except OSError:  # a full or read-only disk costs time at the next start, nothing else
            with contextlib.suppress(OSError):
                beside.unlink()

    def _path(self, key: str) -> Path:
        assert self._folder is not None
        digest = hashlib.sha256(f"{_FORMAT} {key}".encode()).hexdigest()
        return self._folder / f"{digest[:32]}.times"
