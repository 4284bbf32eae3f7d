"""What every ledger promises, whether in a file or in memory."""

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from events_kit import SteppingClock, every_event, request, story

from trimtab.core.events import GENESIS_HASH, Frozen, encode_event
from trimtab.core.state import EMPTY, fold, rebuild
from trimtab.runtime.ledger import SqliteLedger
from trimtab.runtime.ledger_memory import MemoryLedger

Ledger = SqliteLedger | MemoryLedger
OpenLedger = Callable[..., Ledger]


@pytest.fixture(params=["sqlite", "memory"])
def open_ledger(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[OpenLedger]:
    """Give a way to open one ledger of each kind; it is closed afterwards."""
    with contextlib.ExitStack() as stack:

        def build(clock: SteppingClock | None = None) -> Ledger:
            clock = clock or SteppingClock()
            made: Ledger
            if request.param == "memory":
                made = MemoryLedger(clock=clock)
            else:
                made = SqliteLedger(tmp_path / "ledger.sqlite", clock=clock)
            stack.callback(made.close)
            return made

        yield build


async def test_events_come_back_in_the_order_of_append(open_ledger: OpenLedger) -> None:
    """Every kind of event comes back as it went in, in order, with seq from 1 without gaps."""
    ledger = open_ledger()
    ids = [ledger.append(event, cause_id=None) for event in every_event()]
    await ledger.flush()
    found = ledger.read()
    assert [each.event for each in found] == list(every_event())
    assert [each.id for each in found] == ids
    assert [each.seq for each in found] == list(range(1, len(ids) + 1))


async def test_times_are_the_clocks_at_append(open_ledger: OpenLedger) -> None:
    """An event carries the time at which it was appended, not the time it was written."""
    ledger = open_ledger(SteppingClock(start_s=1000.0, step_s=2.5))
    for number in range(3):
        ledger.append(request(number), cause_id=None)
    await ledger.flush()
    assert [each.at_s for each in ledger.read()] == [1002.5, 1005.0, 1007.5]


async def test_ids_sort_in_the_order_of_append_even_when_the_clock_goes_back(
    open_ledger: OpenLedger,
) -> None:
    """Ids are strictly rising, whatever the clock does."""
    ledger = open_ledger(SteppingClock(start_s=1_800_000_000.0, step_s=-3600.0))
    ids = [ledger.append(request(number), cause_id=None) for number in range(50)]
    assert ids == sorted(set(ids))


async def test_each_event_is_linked_to_the_one_before(open_ledger: OpenLedger) -> None:
    """The first links to the genesis hash, each other to its predecessor's hash."""
    ledger = open_ledger()
    for event in every_event():
        ledger.append(event, cause_id=None)
    await ledger.flush()
    found = ledger.read()
    hashes = [each.hash for each in found]
    assert [each.prev_hash for each in found] == [GENESIS_HASH, *hashes[:-1]]
    assert ledger.verify().ok


async def test_cause_is_kept(open_ledger: OpenLedger) -> None:
    """An event names the event that caused it."""
    ledger = open_ledger()
    first = ledger.append(request(1), cause_id=None)
    ledger.append(Frozen(frozen=True, reason="x"), cause_id=first, durable=True)
    await ledger.flush()
    assert [each.cause_id for each in ledger.read()] == [None, first]


async def test_cause_that_never_was_is_found_by_verification(open_ledger: OpenLedger) -> None:
    """A cause must exist earlier in the ledger."""
    ledger = open_ledger()
    ledger.append(request(1), cause_id=None)
    ledger.append(request(2), cause_id="0" * 16)
    await ledger.flush()
    assert ledger.verify().bad_seq == 2


async def test_reading_starts_after_a_seq_and_stops_at_a_limit(open_ledger: OpenLedger) -> None:
    """A reader can go on where it stopped."""
    ledger = open_ledger()
    for number in range(10):
        ledger.append(request(number), cause_id=None)
    await ledger.flush()
    assert [each.seq for each in ledger.read(after_seq=4, limit=3)] == [5, 6, 7]
    assert [each.seq for each in ledger.read(after_seq=8)] == [9, 10]


async def test_fold_of_the_ledger_is_the_live_state(open_ledger: OpenLedger) -> None:
    """A state folded event by event and one rebuilt from the ledger are the same."""
    ledger = open_ledger()
    ids: list[str] = []
    live = EMPTY
    for event, cause in story():
        ids.append(ledger.append(event, cause_id=None if cause is None else ids[cause]))
        await ledger.flush()
        live = fold(live, ledger.read()[-1])
    assert rebuild(ledger.read()) == live


async def test_stored_event_is_the_encoded_one(open_ledger: OpenLedger) -> None:
    """Hashes cover the event's own encoding, so anybody can check them."""
    ledger = open_ledger()
    ledger.append(request(1), cause_id=None)
    await ledger.flush()
    (found,) = ledger.read()
    assert encode_event(found.event) == encode_event(request(1))


async def test_new_ledger_is_healthy_and_empty(open_ledger: OpenLedger) -> None:
    """Nothing is in a new ledger, and nothing is wrong with it."""
    ledger = open_ledger()
    found = ledger.verify()
    assert (ledger.healthy, found.ok, found.events, list(ledger.read())) == (True, True, 0, [])
