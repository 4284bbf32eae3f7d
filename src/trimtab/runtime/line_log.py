"""A file of lines, written by a thread of its own: a disk that is slow or full loses lines, which are counted."""

import os
import queue
import sys
import threading
from typing import Final

from trimtab.core.config import ConfigError

STDOUT: Final = "-"


class LineLog:
    """Takes lines without blocking. Raises `ConfigError` where the file cannot be opened; `close` it in the end.

    `place`: a path, or `-` for standard output; `key`: what named it, for errors; `waiting_max`: lines that may wait.
    """

    def __init__(self, place: str, *, key: str, waiting_max: int) -> None:
        self._place = place
        self._key = key
        self._file = _opened(place, key)
        self._lines: queue.Queue[bytes | None] = queue.Queue(waiting_max)
        self._reopen = threading.Event()
        self.lost = 0
        """Lines that were not written."""
        self._thread = threading.Thread(target=self._write_all, name=key, daemon=True)
        self._thread.start()

    def put(self, line: bytes) -> None:
        """Take one line with its end, or count it as lost where too many wait."""
        try:
            self._lines.put_nowait(line)
        except queue.Full:
            self.lost += 1

    def reopen(self) -> None:
        """Write to a new file of the same name from the next line on: the old one was moved away.

        Where that cannot be opened, lines are lost and the next one tries again.
        """
        self._reopen.set()

    def close(self) -> None:
        """Write what waits, and end."""
        self._lines.put(None)
        self._thread.join()
        self._let_go()

    def _write_all(self) -> None:
        while (line := self._lines.get()) is not None:
            batch = [line]
            ends = False
            while not self._lines.empty():
                more = self._lines.get()
                if more is None:
                    ends = True
                    break
                batch.append(more)
            self._write(batch)
            if ends:
                return

    def _write(self, batch: list[bytes]) -> None:
        try:
            if self._reopen.is_set():
                # The new one first: what is closed may be another's file by the next line.
                fresh = _opened(self._place, self._key)
                self._reopen.clear()
                self._let_go()
                self._file = fresh
            data = memoryview(b"".join(batch))
            while data:
                data = data[os.write(self._file, data) :]
        except (OSError, ConfigError):
            self.lost += len(batch)

    def _let_go(self) -> None:
        if self._place != STDOUT:
            os.close(self._file)


def _opened(place: str, key: str) -> int:
    if place == STDOUT:
        return sys.__stdout__.fileno() if sys.__stdout__ is not None else 1
    try:
        return os.open(place, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise ConfigError(
            f"{key} {place} cannot be written: {error.strerror}; name a file in a folder that can"
        ) from error
