"""A log whose file is moved away goes on in a new one, and never writes where it has nothing to write."""

import time
from collections.abc import Callable
from pathlib import Path

from trimtab.runtime.line_log import LineLog

WAIT_S = 10.0


def until(happened: Callable[[], bool]) -> None:
    """Wait for the log's own thread."""
    ends = time.monotonic() + WAIT_S
    while not happened():
        assert time.monotonic() < ends, "the log's thread did not get there"
        time.sleep(0.01)


def test_log_that_cannot_be_reopened_writes_into_no_other_file(tmp_path: Path) -> None:
    """Lines are lost and counted while its folder is gone; what was opened meanwhile stays as it was."""
    folder, moved = tmp_path / "logs", tmp_path / "old"
    folder.mkdir()
    log = LineLog(str(folder / "access.log"), key="telemetry.access_log", waiting_max=10)
    log.put(b"one\n")
    until(lambda: (folder / "access.log").read_bytes() == b"one\n")
    folder.rename(moved)
    log.reopen()
    log.put(b"two\n")
    until(lambda: log.lost == 1)
    with (tmp_path / "stranger").open("wb"):
        log.put(b"three\n")
        until(lambda: log.lost == 2)
    folder.mkdir()
    log.put(b"four\n")
    log.close()
    assert (tmp_path / "stranger").read_bytes() == b""
    assert (moved / "access.log").read_bytes() == b"one\n"
    assert (folder / "access.log").read_bytes() == b"four\n"
