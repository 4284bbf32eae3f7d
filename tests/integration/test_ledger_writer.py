"""The ledger's file and its writer thread: continuing, retention by itself, overflow, what cannot be stored."""

import asyncio
import stat
import threading
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from control_kit import candidate
from events_kit import LEVER, SteppingClock, lever_record, measured, moved, request, story

from trimtab.core.events import Effect, LedgerGap, LeverProposed, RunStarted, SessionsExposed
from trimtab.core.lever import Comparison
from trimtab.core.record import RequestRecord
from trimtab.core.state import rebuild
from trimtab.core.types import Arm, RolloutState
from trimtab.runtime import ledger as ledger_module
from trimtab.runtime.ledger import SqliteLedger
from trimtab.runtime.ledger_reader import Filter, SqliteReader
from trimtab.runtime.ledger_rows import LedgerError


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where the ledger lies."""
    return tmp_path / "ledger.sqlite"


@pytest.fixture
def ledger(path: Path) -> Iterator[SqliteLedger]:
    """An open ledger."""
    made = SqliteLedger(path, clock=SteppingClock())
    yield made
    made.close()


def test_restarted_writer_continues_the_chain(path: Path) -> None:
    """Seq, hashes and ids go on where the last writer stopped, even if the clock went back a day."""
    for start_s in (1_800_000_000.0, 1_799_913_600.0, 1_800_000_001.0):
        ledger = SqliteLedger(path, clock=SteppingClock(start_s=start_s))
        for number in range(5):
            ledger.append(request(number), cause_id=None)
        ledger.close()
    found = ledger.verify()
    ids = [each.id for each in ledger.read()]
    assert (found.problem, found.events, ids) == (None, 15, sorted(set(ids)))


async def test_ledger_can_be_read_by_its_owner_only(path: Path, ledger: SqliteLedger) -> None:
    """The file and SQLite's files beside it have mode 0600."""
    ledger.append(request(1), cause_id=None)
    await ledger.flush()
    modes = {each.name: stat.S_IMODE(each.stat().st_mode) for each in path.parent.iterdir()}
    names = [f"ledger.sqlite{suffix}" for suffix in ("", "-lock", "-shm", "-wal")]
    assert modes == dict.fromkeys(names, 0o600)


def test_same_file_twice_in_one_process_is_refused(path: Path, ledger: SqliteLedger) -> None:
    """One writer per file, whoever the second is."""
    with pytest.raises(LedgerError, match="being written by another"):
        SqliteLedger(path, clock=SteppingClock())
    assert ledger.healthy


def test_close_writes_what_waits_and_may_be_called_twice(path: Path) -> None:
    """Nothing that was appended before the close is missing after it."""
    ledger = SqliteLedger(path, clock=SteppingClock())
    for number in range(2500):
        ledger.append(request(number), cause_id=None)
    ledger.close()
    ledger.close()
    assert (ledger.healthy, len(ledger.read())) == (True, 2500)


def test_append_after_close_does_not_raise(path: Path) -> None:
    """A late event is no error for whoever appends it; the ledger says that it is closed."""
    ledger = SqliteLedger(path, clock=SteppingClock())
    ledger.close()
    ledger.append(request(1), cause_id=None)
    assert (ledger.healthy, ledger.unhealthy_reason) == (False, "the ledger is closed")


async def test_flush_after_close_returns(path: Path) -> None:
    """Nobody waits for a writer that is gone."""
    ledger = SqliteLedger(path, clock=SteppingClock())
    ledger.close()
    await asyncio.wait_for(ledger.flush(), 5)
    assert not list(ledger.read())


async def test_event_that_cannot_be_read_back_is_refused_and_counted(ledger: SqliteLedger) -> None:
    """A number that JSON has no word for would make the ledger unreadable; it becomes a gap instead."""
    broken = measured("ev-1", value=float("nan"))
    ledger.append(request(1), cause_id=None)
    lost_id = ledger.append(broken, cause_id=None)
    assert "Measured cannot be stored" in str(ledger.unhealthy_reason)
    ledger.append(request(2), cause_id=lost_id)
    assert await ledger.recover()
    events = [each.event for each in ledger.read()]
    assert [type(event).__name__ for event in events] == [
        "RequestServed",
        "LedgerGap",
        "RequestServed",
    ]
    gap = events[1]
    assert isinstance(gap, LedgerGap)
    assert (gap.lost, gap.first_id) == (1, lost_id)
    assert ledger.verify().problem is None


async def test_value_of_a_type_that_json_lacks_is_refused_and_counted(ledger: SqliteLedger) -> None:
    """A caller's mistake never reaches the data path as an exception."""
    settings = {"seed": object()}
    ledger.append(
        RunStarted(run_id="r", command="up", version="1", settings=settings),  # type: ignore[arg-type]
        cause_id=None,
    )
    await ledger.flush()
    assert (ledger.healthy, len(ledger.read())) == (False, 0)


async def test_overflow_is_told_once_and_ends_with_recovery(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A queue that is full loses events, says so once, and every event is either stored or counted."""
    monkeypatch.setattr(ledger_module, "BATCH_MAX", 10)
    reasons: list[str] = []
    ledger = SqliteLedger(path, clock=SteppingClock(), queue_max=100, on_unhealthy=reasons.append)
    for number in range(3000):
        ledger.append(request(number), cause_id=None)
    assert not ledger.healthy
    assert await ledger.recover()
    events = [each.event for each in ledger.read()]
    ledger.close()
    lost = sum(event.lost for event in events if isinstance(event, LedgerGap))
    stored = sum(not isinstance(event, LedgerGap) for event in events)
    assert reasons == ["100 events wait to be written (ledger.queue_max)"]
    assert (lost > 0, lost + stored, ledger.verify().problem) == (True, 3000, None)


async def test_retention_starts_by_itself_and_bounds_the_flow(path: Path) -> None:
    """Traffic without end leaves at most a tenth more than what is to be kept, and the lever's chain."""
    ledger = SqliteLedger(path, clock=SteppingClock(), keep_events=300)
    ids: list[str] = []
    for event, cause in story():
        ids.append(ledger.append(event, cause_id=None if cause is None else ids[cause]))
    for number in range(3000):
        ledger.append(request(number), cause_id=None)
        if number % 100 == 0:
            await ledger.flush()
    ledger.append(request(0), cause_id=None)
    await ledger.flush()
    found = ledger.verify()
    state = rebuild(ledger.read())
    ledger.close()
    assert (found.problem, state.counts["request_served"]) == (None, 3004)
    assert 300 <= found.events <= 300 + 30 + 100 + len(story())
    assert state.levers[LEVER].state.value == "adopted"


async def test_appends_of_several_threads_keep_one_order(ledger: SqliteLedger) -> None:
    """Ids and seqs agree on one order, whichever threads append."""

    def append_many() -> None:
        for number in range(300):
            ledger.append(request(number), cause_id=None)

    threads = [threading.Thread(target=append_many) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    await ledger.flush()
    found = ledger.verify()
    assert (found.problem, found.events) == (None, 1200)


async def test_readers_see_whole_batches_while_writing_goes_on(
    path: Path, ledger: SqliteLedger
) -> None:
    """A reader in another connection never waits for the writer and never sees half a batch."""
    seen = []
    for number in range(20):
        for each in range(50):
            ledger.append(request(number * 50 + each), cause_id=None)
        with SqliteReader(path) as reader:
            assert reader.verify().ok
            seen.append(len(reader.read()))
        await asyncio.sleep(0)
    await ledger.flush()
    assert seen == sorted(seen)
    assert len(ledger.read()) == 1000


async def test_reader_finds_by_kind_lever_and_reference(path: Path, ledger: SqliteLedger) -> None:
    """Events are found by kind, by lever, by id, by a unique start of an id, and by seq."""
    ids = [ledger.append(event, cause_id=None) for event, _ in story()]
    await ledger.flush()
    with SqliteReader(path) as reader:
        effects = reader.last(Filter(kind="effect", lever=LEVER), limit=5)
        assert [type(each.event) for each in effects] == [Effect]
        assert [each.seq for each in reader.last(Filter(), limit=2)] == [24, 25]
        assert reader.find(ids[3]).seq == 4
        assert reader.find(ids[3].lower()).seq == 4
        assert reader.find("7").id == ids[6]
        with pytest.raises(LedgerError, match="start of several ids"):
            reader.find(ids[3][:6])
        with pytest.raises(LedgerError, match="has no event 'ZZZ'"):
            reader.find("ZZZ")


async def test_busiest_is_of_the_requests_since_then(path: Path, ledger: SqliteLedger) -> None:
    """Most in flight as one was admitted: of those since a time, unknown where nothing says it."""
    for concurrency in (9, 3, 5, None):
        served = request(1, concurrency_at_admission=concurrency)
        ledger.append(served, cause_id=None)
    ledger.append(measured("ev-1"), cause_id=None)
    await ledger.flush()
    with SqliteReader(path) as reader:
        first = reader.read()[0].at_s
        found = [reader.busiest(since) for since in (0.0, first + 0.1, first + 0.6, first + 1.1)]
    assert found == [9, 5, 5, None]


async def test_busiest_is_unknown_where_requests_since_then_may_be_folded(
    path: Path, ledger: SqliteLedger
) -> None:
    """The most of what is left would be too low a peak, and nothing would show it."""
    for concurrency in (9, 7, 3, 5):
        ledger.append(request(1, concurrency_at_admission=concurrency), cause_id=None)
    await ledger.flush()
    with SqliteReader(path) as reader:
        times = [each.at_s for each in reader.read()]
        await ledger.compact(keep_events=2)
        found = [reader.busiest(since) for since in (0.0, *times)]
    assert found == [None, None, None, 5, 5]


def test_busiest_of_a_clock_that_was_put_back_misses_no_request(path: Path) -> None:
    """What was served before the step and since the time asked for counts, wherever it lies in the file."""
    start_s = 1_800_000_000.0
    for back_s, concurrencies in ((0.0, (1, 9)), (60.0, (2, 3)), (-60.0, (4, 5))):
        ledger = SqliteLedger(path, clock=SteppingClock(start_s=start_s - back_s))
        for concurrency in concurrencies:
            ledger.append(request(1, concurrency_at_admission=concurrency), cause_id=None)
        ledger.close()
    with SqliteReader(path) as reader:
        assert [reader.busiest(start_s + since) for since in (-90.0, 0.0, 10.0)] == [9, 9, 5]


async def test_whom_a_lever_was_shown_to_is_read_of_its_latest_proof(
    path: Path, ledger: SqliteLedger
) -> None:
    """A restart tells nobody twice; a proposal anew, and being verified again, begin with nobody."""
    shown = SessionsExposed(lever=LEVER, share=0.1, candidate=("a",), baseline=("b",))
    proposed = LeverProposed(record=lever_record())
    again = moved(RolloutState.RAMPING, 0.25, before=RolloutState.ADOPTED)
    met: list[SessionsExposed | None] = []
    for event in (proposed, shown, again, shown, proposed):
        ledger.append(event, cause_id=None)
        await ledger.flush()
        with SqliteReader(path) as reader:
            known = reader.met(LEVER)
        for one in (seen("a", Arm.CANDIDATE), seen("b", Arm.BASELINE), seen("c", Arm.BASELINE)):
            known.take(one, SHOWN)
        met.append(known.told(LEVER, 0.1))
    everyone = msgspec.structs.replace(shown, baseline=("b", "c"))
    rest = SessionsExposed(lever=LEVER, share=0.1, baseline=("c",))
    assert met == [everyone, rest, everyone, rest, everyone]


SHOWN = msgspec.structs.replace(
    candidate(share=0.1, comparison=Comparison.SIDE_BY_SIDE), lever=LEVER, replicas=("r1",)
)


def seen(session: str, arm: Arm) -> RequestRecord:
    """A request of a session in an arm of the lever."""
    record = request(1).record
    return msgspec.structs.replace(
        record, session=session, arm=arm, lever=LEVER, slice="slice of 10%"
    )
