"""A writer killed at any moment leaves a ledger that verifies and goes on."""

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from events_kit import SteppingClock, request

from trimtab.core.state import rebuild
from trimtab.runtime.ledger import SqliteLedger
from trimtab.runtime.ledger_reader import SqliteReader
from trimtab.runtime.ledger_rows import LedgerError

TESTS = Path(__file__).resolve().parents[1]


def start_writer(path: Path, keep_events: int) -> subprocess.Popen[str]:
    paths = os.pathsep.join([str(TESTS / "kit"), str(TESTS.parent / "src")])
    writer = subprocess.Popen(
        [sys.executable, str(TESTS / "faults" / "ledger_writer.py"), str(path), str(keep_events)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": paths},
    )
    assert writer.stdout is not None
    assert writer.stdout.readline().startswith("open ")
    return writer


def kill(writer: subprocess.Popen[str]) -> int:
    """Kill -9 and return the last seq that the writer knew to be on disk."""
    writer.send_signal(signal.SIGKILL)
    assert writer.stdout is not None
    said = writer.stdout.read().splitlines()
    writer.wait()
    writer.stdout.close()
    whole = [line for line in said if line.startswith("flushed ") and line[8:].isdigit()]
    return int(whole[-1][8:]) if whole else 0


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("keep_events", "kills"), [(1_000_000, 20), (400, 8)])
def test_ledger_verifies_and_goes_on_after_every_kill(
    tmp_path: Path, keep_events: int, kills: int
) -> None:
    """Kills at random moments, with and without retention at work: never a broken or lost prefix.

    After each, a copy of the file with its log verifies and has everything that was flushed; the next writer
    continues the chain; in the end the file itself verifies, and its fold is what its checkpoint says.
    """
    path = tmp_path / "ledger.sqlite"
    rng = random.Random(7)
    flushed = 0
    for _ in range(kills):
        writer = start_writer(path, keep_events)
        time.sleep(rng.uniform(0.0, 0.25))
        flushed = max(flushed, kill(writer))
        copy = tmp_path / "copy.sqlite"
        for suffix in ("", "-wal"):
            shutil.copy(f"{path}{suffix}", f"{copy}{suffix}")
        with SqliteReader(copy) as reader:
            found = reader.verify()
        assert found.problem is None
        assert found.head_seq >= flushed
        for left in tmp_path.glob("copy.sqlite*"):
            left.unlink()
    with SqliteReader(path) as reader:
        assert reader.verify().problem is None
        assert reader.state() == rebuild(reader.read())
    assert flushed > 0


def test_living_writer_is_named_and_its_death_frees_the_ledger(tmp_path: Path) -> None:
    """A second writer is refused with the first one's process; after kill -9 of that the file is free."""
    path = tmp_path / "ledger.sqlite"
    writer = start_writer(path, 1_000_000)
    with pytest.raises(LedgerError, match=f"process {writer.pid}"):
        SqliteLedger(path, clock=SteppingClock())
    kill(writer)
    ledger = SqliteLedger(path, clock=SteppingClock())
    ledger.append(request(1), cause_id=None)
    ledger.close()
    assert ledger.verify().ok
