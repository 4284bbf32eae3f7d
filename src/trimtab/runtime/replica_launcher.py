"""What a fleet needs of whoever starts its replicas."""

import os
from collections.abc import Sequence
from typing import Protocol

from trimtab.core.ports import Launcher, Placement, SavedKV


class ReplicaLauncher(Launcher, Protocol):
    """What the fleet needs of a launcher beyond starting and stopping."""

    def place(self, replicas: Sequence[str]) -> tuple[Placement, ...]:
        """Say where replicas run."""
        ...

    async def wait_exit(self, replica: str) -> int | None:
        """Wait until a replica's process has ended; its exit code, None if there is no process."""
        ...

    def pid(self, replica: str) -> int | None:
        """A replica's process id, None if no process runs."""
        ...

    def last_words(self, replica: str) -> str:
        """The last line of a replica's log."""
        ...

    def discard_kv(self, saved: SavedKV) -> None:
        """Remove saved slots that will not be restored."""
        ...

    async def close(self) -> None:
        """End whatever still runs; nothing starts after this."""
        ...


def process_runs(pid: int) -> bool:
    """Say whether a process still runs, whoever owns it."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
