"""Where saved slots lie: a private folder in memory that does not outlive its owner for long.

Slot files hold prompt state, so they stay on a tmpfs, in a folder of mode 0700, and are removed once restored. An owner
that was killed cannot clean up: the next one sweeps. A folder is dead when nobody holds its lock, which the kernel
releases with the owner; process ids in the name are for people.

Parcels of KV on their way to another replica lie in the same folder, in bounds of their own and each with a lease.
"""

import fcntl
import os
import shutil
import tempfile
from pathlib import Path
from typing import Final

MEMORY_ROOT: Final = Path("/dev/shm")
FREE_BYTES_MIN: Final = 64 * 1024 * 1024
"""Memory for files that parcels leave to others."""

_LOCK_NAME: Final = ".owner"


class SlotFiles:
    """Owns one folder for as long as it lives."""

    def __init__(self, root: Path = MEMORY_ROOT) -> None:
        """Sweep the folders of dead owners and make one; raises OSError where `root` cannot be written."""
        self.swept = sweep(root)
        self.folder = Path(tempfile.mkdtemp(prefix=f"{_prefix()}{os.getpid()}-", dir=root))
        self._lock = os.open(self.folder / _LOCK_NAME, os.O_RDWR | os.O_CREAT, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_EX)

    def close(self) -> None:
        """Remove the folder."""
        if self._lock >= 0:
            shutil.rmtree(self.folder, ignore_errors=True)
            os.close(self._lock)
            self._lock = -1


class NoRoomError(Exception):
    """There is no room for one more parcel; the message says which bound is met."""


class ParcelFiles:
    """The files of parcels under way in one folder: so many, and so many bytes.

    A name is leased before its prompt is computed, by the bytes expected, and once more when they are known better;
    whoever leases it frees it when its time is over at the latest.
    """

    def __init__(self, folder: Path, *, parcels_max: int, bytes_max: int) -> None:
        self._folder = folder
        self._parcels_max = parcels_max
        self._bytes_max = bytes_max
        self._leases: dict[str, int] = {}

    @property
    def held(self) -> int:
        """Parcels that are leased now."""
        return len(self._leases)

    @property
    def held_bytes(self) -> int:
        """Bytes that they hold, or are expected to."""
        return sum(self._leases.values())

    def lacks(self, expected_bytes: int, *, name: str = "") -> str | None:
        """Say which bound a file of so many bytes would meet now, None if it fits. `name`: what it holds already."""
        others = self._leases.keys() - {name}
        if len(others) >= self._parcels_max:
            return f"{self._parcels_max} parcels lie in memory already"
        if sum(self._leases[one] for one in others) + expected_bytes > self._bytes_max:
            return f"parcels may hold {self._bytes_max >> 20:,} MiB and would hold more"
        if shutil.disk_usage(self._folder).free < expected_bytes + FREE_BYTES_MIN:
            return f"memory for files under {self._folder} runs out"
        return None

    def lease(self, name: str, *, expected_bytes: int) -> None:
        """Set room aside for a file that is to be written, or as much as is expected now; raises `NoRoomError`."""
        lacks = self.lacks(expected_bytes, name=name)
        if lacks is not None:
            raise NoRoomError(lacks)
        self._leases[name] = expected_bytes

    def written(self, name: str) -> int:
        """Take in a file that is there now, whole and for its owner alone; return its bytes; raises OSError."""
        path = self._folder / name
        path.chmod(0o600)
        size = path.stat().st_size
        self._leases[name] = size
        return size

    def free(self, name: str) -> None:
        """Remove a parcel's file and end its lease; a second call changes nothing."""
        self._leases.pop(name, None)
        (self._folder / name).unlink(missing_ok=True)


def _prefix() -> str:
    return f"trimtab-{os.getuid()}-"


def sweep(root: Path) -> int:
    """Remove this user's folders whose owner is gone, and return how many there were."""
    removed = 0
    for folder in root.glob(f"{_prefix()}*"):
        if _is_dead(folder):
            shutil.rmtree(folder, ignore_errors=True)
            removed += 1
    return removed


def _is_dead(folder: Path) -> bool:
    """Say whether a folder's lock is free. A folder without a lock is just being made: leave it."""
    try:
        lock = os.open(folder / _LOCK_NAME, os.O_RDWR)
    except OSError:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(lock)
    return True
