"""How fast the ledger takes and writes events, against plain SQLite in the same run.

    python bench/bench_ledger.py [EVENTS]

Plain: the same columns inserted by `executemany` in batches of the same size, already encoded and hashed, so that it
is the least that storing could cost. Interleaved repetitions; medians. The ratio is what the ledger's own work
(encoding, reading back, hashing, handing over between threads) leaves of that.
"""

import asyncio
import statistics
import sys
import tempfile
import time
from pathlib import Path

from trimtab.core.events import AnyEvent, RequestServed
from trimtab.core.record import Phases, RequestRecord, Segment, Tokens
from trimtab.runtime.clock import SystemClock
from trimtab.runtime.ledger import BATCH_MAX, SqliteLedger
from trimtab.runtime.ledger_file import insert, open_for_writing, transaction
from trimtab.runtime.ledger_reader import SqliteReader

REPETITIONS = 5


def event(number: int) -> RequestServed:
    """Return a request record of usual size: six segments, most fields known."""
    record = RequestRecord(
        request_id=f"request-{number}",
        arrived_at_s=float(number),
        finished_at_s=number + 1.0,
        endpoint="chat",
        stream=True,
        replica=f"r{number % 2}",
        session=f"{number % 8:016x}",
        phases=Phases(queue_ms=1.0, prefill_ms=80.0, transfer_ms=0.0, decode_ms=600.0),
        ttft_ms=101.0,
        tpot_ms=20.0,
        e2e_ms=900.0,
        tokens=Tokens(prompt=400, predicted=300, delivered=288, held_best=320, output=40),
        segments=tuple(
            Segment(kind="message", hash=f"{each:032x}", tokens=60) for each in range(6)
        ),
        status=200,
    )
    return RequestServed(record=record, decision=None, view=None)


async def ledger_rate(path: Path, events: list[AnyEvent]) -> tuple[float, float]:
    """Return (events per second until all are on disk, microseconds per append for the caller)."""
    ledger = SqliteLedger(path, clock=SystemClock(), queue_max=len(events) + 1)
    started_s = time.perf_counter()
    for each in events:
        ledger.append(each, cause_id=None)
    appended_s = time.perf_counter()
    await ledger.flush()
    ended_s = time.perf_counter()
    assert ledger.healthy
    ledger.close()
    return len(events) / (ended_s - started_s), 1e6 * (appended_s - started_s) / len(events)


def plain_rate(source: Path, target: Path) -> float:
    """Return rows per second of plain inserts of the same rows."""
    with SqliteReader(source) as reader:
        rows = list(reader.rows())
    db = open_for_writing(target)
    started_s = time.perf_counter()
    for start in range(0, len(rows), BATCH_MAX):
        with transaction(db, durable=False):
            insert(db, rows[start : start + BATCH_MAX])
    ended_s = time.perf_counter()
    db.close()
    return len(rows) / (ended_s - started_s)


def verify_rate(path: Path) -> float:
    """Return events per second of a full verification."""
    with SqliteReader(path) as reader:
        started_s = time.perf_counter()
        found = reader.verify()
    assert found.ok
    return found.events / (time.perf_counter() - started_s)


def main(n: int) -> None:
    """Print medians and the ratio."""
    events: list[AnyEvent] = [event(number) for number in range(n)]
    ours, appends, plains, verifies = [], [], [], []
    for _ in range(REPETITIONS):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "ledger.sqlite"
            rate, append_us = asyncio.run(ledger_rate(path, events))
            ours.append(rate)
            appends.append(append_us)
            plains.append(plain_rate(path, Path(folder) / "plain.sqlite"))
            verifies.append(verify_rate(path))
            bytes_each = path.stat().st_size / n
    ratios = [ours[i] / plains[i] for i in range(REPETITIONS)]
    print(
        f"{n} requests of {bytes_each:.0f} bytes, {REPETITIONS} repetitions, medians (lowest to highest)"
    )
    for name, values, unit in (
        ("ledger, until on disk", ours, "events/s"),
        ("plain executemany", plains, "rows/s"),
        ("verify", verifies, "events/s"),
        ("append, caller's time", appends, "us"),
        ("ledger/plain", ratios, ""),
    ):
        spread = f"({min(values):,.2f} to {max(values):,.2f})"
        print(f"  {name:24} {statistics.median(values):12,.2f} {unit:9} {spread}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 20_000)
