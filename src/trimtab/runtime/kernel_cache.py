"""Step times that kernel tables told, kept between runs: asking the tables takes seconds, reading what they said none.

A file for each model, device and engine, in the cache folder, with all layouts that were asked for; it holds nothing
that cannot be made again. One that cannot be read or written is as good as none; processes that write one take turns.
The versions of the package and of this one are part of the key, so
a new one asks anew. That the tables have nothing is kept too.
"""

import contextlib
import fcntl
import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec

from trimtab.planning.grid_times import Grid
from trimtab.planning.kernel_port import NoTimes

_FORMAT: Final = 6


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


_Entries = dict[str, _File]


class GridCache:
    """Times by serving and layout in a folder; None keeps nothing."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._read: dict[str, _Entries] = {}

    def get(self, serving: str, key: str) -> Kept | NoTimes | None:
        """Return what is kept of a serving under a key, None if nothing that can be read; its file is read once."""
        if serving not in self._read:
            self._read[serving] = self._entries(serving)
        found = self._read[serving].get(key)
        return None if found is None else found.times or found.none

    def put(self, serving: str, news: Mapping[str, Kept | NoTimes]) -> None:
        """Keep news of a serving beside what is there, whole or not at all."""
        if self._folder is None or not news:
            return
        told = {
            key: _File(none=each) if isinstance(each, NoTimes) else _File(times=each)
            for key, each in news.items()
        }
        path = self._path(serving)
        # A full or read-only disk costs time at the next start, nothing else.
        with contextlib.suppress(OSError):
            self._folder.mkdir(parents=True, exist_ok=True)
            with path.with_suffix(".lock").open("a") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                entries = self._entries(serving) | told
                _replace(path, msgspec.msgpack.encode(entries))
            self._read[serving] = entries

    def _entries(self, serving: str) -> _Entries:
        if self._folder is None:
            return {}
        try:
            return msgspec.msgpack.decode(self._path(serving).read_bytes(), type=_Entries)
        except (OSError, msgspec.MsgspecError):
            return {}

    def _path(self, serving: str) -> Path:
        assert self._folder is not None
        digest = hashlib.sha256(f"{_FORMAT} {serving}".encode()).hexdigest()
        return self._folder / f"{digest[:32]}.times"


def _replace(path: Path, content: bytes) -> None:
    """Write a file whole or not at all; raises OSError, with nothing left beside it."""
    beside = path.with_suffix(".part")
    try:
        beside.write_bytes(content)
        beside.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            beside.unlink()
        raise
