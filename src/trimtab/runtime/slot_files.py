"""Where saved slots lie: a private folder in memory that does not outlive its owner for long.

Slot files hold prompt state, so they stay on a tmpfs, in a folder of mode 0700, and are removed once restored. An owner
that was killed cannot clean up: the next one sweeps. A folder is dead when nobody holds its lock, which the kernel
releases with the owner; process ids in the name are for people.
"""

import fcntl
import os
import shutil
import tempfile
from pathlib import Path
from typing import Final

MEMORY_ROOT: Final = Path("/dev/shm")
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
