"""Appends to a ledger until it is killed; prints how many events are known to be on disk after each flush."""

import asyncio
import sys

from events_kit import SteppingClock, request, story

from trimtab.runtime.ledger import SqliteLedger


async def write_forever(path: str, keep_events: int) -> None:
    """Write stories and requests; every story's events are durable and cite each other."""
    ledger = SqliteLedger(path, clock=SteppingClock(step_s=0.001), keep_events=keep_events)
    sys.stdout.write(f"open {ledger.head.seq}\n")
    sys.stdout.flush()
    number = 0
    while True:
        ids: list[str] = []
        for event, cause in story():
            ids.append(
                ledger.append(event, cause_id=None if cause is None else ids[cause], durable=True)
            )
        for _ in range(200):
            number += 1
            ledger.append(request(number), cause_id=ids[-1])
        await ledger.flush()
        assert ledger.healthy, ledger.unhealthy_reason
        sys.stdout.write(f"flushed {ledger.head.seq}\n")
        sys.stdout.flush()


asyncio.run(write_forever(sys.argv[1], int(sys.argv[2])))
