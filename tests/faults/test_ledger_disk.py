"""A disk that is full or refuses: the ledger says so, traffic goes on, what is written stays whole."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from disk_kit import disk_of
from events_kit import SteppingClock, request

from trimtab.core.events import Frozen, LedgerGap
from trimtab.runtime.ledger import SqliteLedger
from trimtab.runtime.ledger_rows import LedgerError

TESTS = Path(__file__).resolve().parents[1]
SMALL_DISK_KIB = 8 * 1024

LIMITED = """
import asyncio, resource, signal, sys
from events_kit import SteppingClock, request
from trimtab.runtime.ledger import SqliteLedger

async def main():
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    ledger = SqliteLedger(sys.argv[1], clock=SteppingClock())
    resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, resource.RLIM_INFINITY))
    for number in range(2000):
        ledger.append(request(number), cause_id=None)
    await ledger.flush()
    refused = ledger.healthy is False and "cannot be written" in ledger.unhealthy_reason
    verified = ledger.verify().ok
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    recovered = await ledger.recover()
    after = ledger.verify()
    ledger.close()
    print(refused, verified, recovered, after.ok, after.events)

asyncio.run(main())
"""


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own with little room."""
    with disk_of(tmp_path / "disk", SMALL_DISK_KIB) as folder:
        yield folder


def fill(ledger: SqliteLedger, n: int) -> None:
    for number in range(n):
        ledger.append(request(number), cause_id=None)


async def test_full_disk_freezes_and_room_lets_it_go_on_without_loss(small_disk: Path) -> None:
    """Appending never raises; the reason names the file; with room again everything that waited is written."""
    reasons: list[str] = []
    path = small_disk / "ledger.sqlite"
    ballast = small_disk / "ballast"
    ballast.write_bytes(b"x" * (SMALL_DISK_KIB - 400) * 1024)
    ledger = SqliteLedger(path, clock=SteppingClock(), on_unhealthy=reasons.append)
    fill(ledger, 500)
    await ledger.flush()
    assert (ledger.healthy, len(reasons)) == (False, 1)
    assert str(path) in reasons[0]
    assert "full" in reasons[0]
    stored = ledger.verify()
    assert stored.ok
    assert not await ledger.recover()
    ballast.unlink()
    assert await ledger.recover()
    after = ledger.verify()
    ledger.close()
    assert (after.ok, after.events, after.lost) == (True, 500, 0)


async def test_events_beyond_the_queue_are_counted_in_a_gap(small_disk: Path) -> None:
    """While the disk is full only so many wait; the rest is lost, and the chain says how many and why."""
    ballast = small_disk / "ballast"
    ballast.write_bytes(b"x" * (SMALL_DISK_KIB - 200) * 1024)
    ledger = SqliteLedger(small_disk / "l.sqlite", clock=SteppingClock(), queue_max=150)
    taken = 0
    while ledger.healthy:
        fill(ledger, 10)
        taken += 10
        await ledger.flush()
    stored = ledger.verify().events
    fill(ledger, 500)
    cited = ledger.append(Frozen(frozen=True, reason="the ledger is full"), cause_id=None)
    ballast.unlink()
    assert await ledger.recover()
    ledger.append(Frozen(frozen=False, reason="it has room"), cause_id=cited, durable=True)
    await ledger.flush()
    events = ledger.read()
    after = ledger.verify()
    ledger.close()
    gap = events[-2].event
    assert isinstance(gap, LedgerGap)
    assert (after.problem, gap.lost, len(events)) == (
        None,
        taken + 501 - stored - 150,
        stored + 150 + 2,
    )
    assert "150 events wait" in gap.reason


def test_file_size_limit_freezes_and_lifting_it_recovers(tmp_path: Path) -> None:
    """The same without a mount: the kernel refuses to let the file grow."""
    paths = os.pathsep.join([str(TESTS / "kit"), str(TESTS.parent / "src")])
    run = subprocess.run(
        [sys.executable, "-c", LIMITED, str(tmp_path / "ledger.sqlite")],
        env={**os.environ, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (run.stdout.split(), run.stderr) == (["True", "True", "True", "True", "2000"], "")


def test_full_disk_at_the_start_is_an_error_that_names_the_file(small_disk: Path) -> None:
    """A ledger that cannot even be made says which file, why and what to do."""
    (small_disk / "ballast").write_bytes(b"x" * SMALL_DISK_KIB * 1024)
    with pytest.raises(LedgerError, match=r"ledger\.sqlite cannot be opened: .*full.*has room"):
        SqliteLedger(small_disk / "ledger.sqlite", clock=SteppingClock())


def test_missing_folder_is_an_error_that_names_the_file(tmp_path: Path) -> None:
    """No folder is made on the quiet."""
    with pytest.raises(LedgerError, match="No such file or directory"):
        SqliteLedger(tmp_path / "no" / "ledger.sqlite", clock=SteppingClock())
