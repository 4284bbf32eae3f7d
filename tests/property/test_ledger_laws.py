"""Laws of the ledger: it verifies, any change is found, retention changes neither the state nor a chain."""

import asyncio
import tempfile
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest
from events_kit import (
    LEVER,
    OTHER,
    SteppingClock,
    envelopes,
    every_event,
    lever_record,
    measured,
    request,
    story,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from trimtab.core.events import (
    AnyEvent,
    Envelope,
    LeverProposed,
    Measured,
    RolloutMoved,
    SessionsExposed,
    kind_of,
)
from trimtab.core.evidence import Evidence
from trimtab.core.narrate import chain, cited_evidence
from trimtab.core.state import (
    EMPTY,
    State,
    count,
    decode_state,
    encode_state,
    fold,
    fold_all,
    rebuild,
)
from trimtab.core.types import Arm, RolloutState
from trimtab.runtime.ledger import SqliteLedger
from trimtab.runtime.ledger_file import open_for_writing
from trimtab.runtime.ledger_memory import MemoryLedger
from trimtab.runtime.ledger_reader import SqliteReader
from trimtab.runtime.ledger_retention import prepare_checkpoint
from trimtab.runtime.ledger_rows import EventIds, Row
from trimtab.runtime.ledger_verify import verify

EVENTS = every_event() + tuple(event for event, _ in story())
# Traffic is most of what a ledger holds.
FLOW = (request(1), request(2), measured("ev-7"))
CAUSED = st.tuples(st.sampled_from(EVENTS + FLOW * 10), st.none() | st.integers(0, 60))
WRITTEN = st.lists(CAUSED, min_size=1, max_size=60)


@st.composite
def stories_in_traffic(draw: st.DrawFn) -> list[tuple[AnyEvent, int | None]]:
    """A lever's life up to some point, each event with its true cause, among requests and readings."""
    written: list[tuple[AnyEvent, int | None]] = []
    places: list[int] = []
    for event, cause in story()[: draw(st.integers(1, len(story())))]:
        for flow in draw(st.lists(st.sampled_from(FLOW), max_size=3)):
            written.append((flow, None))
        places.append(len(written))
        written.append((event, None if cause is None else places[cause]))
    return written


LIVED = WRITTEN | stories_in_traffic()
Written = Sequence[tuple[AnyEvent, int | None]]


def write(ledger: SqliteLedger | MemoryLedger, written: Written) -> None:
    ids: list[str] = []
    for event, cause in written:
        known = cause is not None and cause < len(ids)
        ids.append(
            ledger.append(event, cause_id=ids[cause] if known and cause is not None else None)
        )


def in_memory(written: Written) -> MemoryLedger:
    ledger = MemoryLedger(clock=SteppingClock(), run=0)
    write(ledger, written)
    return ledger


class Rows:
    """Rows as somebody might have left them."""

    def __init__(self, rows: list[Row]) -> None:
        self._rows = rows

    def rows(self, *, after_seq: int = 0) -> list[Row]:
        return [row for row in self._rows if row.seq > after_seq]

    def rows_of_kind(self, kind: str) -> list[Row]:
        return [row for row in self._rows if row.kind == kind]

    def seq_of(self, event_id: str) -> int | None:
        return next((row.seq for row in self._rows if row.id == event_id), None)


@given(WRITTEN)
def test_whatever_is_written_verifies(written: Written) -> None:
    """Any events with causes that exist give a whole ledger of that many events."""
    found = in_memory(written).verify()
    assert (found.problem, found.events) == (None, len(written))


@given(WRITTEN, st.data())
def test_every_prefix_verifies(written: Written, data: st.DataObject) -> None:
    """However much of the end is missing, the rest is whole."""
    rows = list(in_memory(written).rows())
    kept = data.draw(st.integers(0, len(rows)))
    assert verify(Rows(rows[:kept])).events == kept


@given(WRITTEN, st.data())
def test_any_changed_byte_is_found_where_it_is(written: Written, data: st.DataObject) -> None:
    """One byte of one event, whichever it is: its seq is named."""
    rows = list(in_memory(written).rows())
    at = data.draw(st.integers(0, len(rows) - 1))
    body = bytearray(rows[at].body)
    body[data.draw(st.integers(0, len(body) - 1))] ^= data.draw(st.integers(1, 255))
    rows[at] = msgspec.structs.replace(rows[at], body=bytes(body))
    assert verify(Rows(rows)).bad_seq == at + 1


@given(st.lists(CAUSED, min_size=2, max_size=60), st.data())
def test_removed_and_swapped_rows_are_found(written: Written, data: st.DataObject) -> None:
    """A row that is gone is named, unless it was the last; of two that changed places the first is named."""
    rows = list(in_memory(written).rows())
    first = data.draw(st.integers(0, len(rows) - 2))
    second = data.draw(st.integers(first + 1, len(rows) - 1))
    without = rows[:first] + rows[first + 1 :]
    assert verify(Rows(without)).bad_seq == first + 1
    swapped = rows.copy()
    swapped[first] = msgspec.structs.replace(rows[second], seq=first + 1)
    swapped[second] = msgspec.structs.replace(rows[first], seq=second + 1)
    assert verify(Rows(swapped)).bad_seq == first + 1


@given(WRITTEN)
def test_state_survives_json_and_goes_on_alike(written: Written) -> None:
    """A state read back from a checkpoint is equal, and folds on to the same state."""
    found = in_memory(written).read()
    half = rebuild(found[: len(found) // 2])
    back = decode_state(encode_state(half))
    assert back == half
    for envelope in found[len(found) // 2 :]:
        back = fold(back, envelope)
    assert back == rebuild(found)


@given(WRITTEN)
def test_part_of_the_ledger_tells_the_whole_chain(written: Written) -> None:
    """What is read for one lever alone gives the chain that everything gives."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "l.sqlite"
        ledger = SqliteLedger(path, clock=SteppingClock())
        write(ledger, written)
        ledger.close()
        with SqliteReader(path) as reader:
            decided = reader.decided()
            readings = [each for each in reader.read() if isinstance(each.event, Measured)]
            for lever in reader.levers():
                cited = cited_evidence(lever, decided)
                wanted = [each for each in readings if cited & evidence_of(each)]
                assert chain(lever, reader.told(lever)) == chain(lever, [*decided, *wanted])


def evidence_of(envelope: Envelope) -> set[str]:
    assert isinstance(envelope.event, Measured)
    return {item.id for item in envelope.event.readings.items if isinstance(item, Evidence)}


@given(WRITTEN, st.integers(0, 60))
def test_folding_all_is_folding_each(written: Written, cut: int) -> None:
    """However events are parted, folding them together gives the state, and its order of levers, of folding each."""
    envelopes = list(in_memory(written).read())
    each = EMPTY
    for envelope in envelopes:
        each = fold(each, envelope)
    together = fold_all(fold_all(EMPTY, envelopes[:cut]), envelopes[cut:])
    assert (each, list(each.levers)) == (together, list(together.levers))


@given(st.integers(1, 50))
def test_counting_is_folding_for_flow_events(n: int) -> None:
    """Retention may count requests instead of decoding them."""
    state = EMPTY
    for envelope in envelopes(tuple((request(number), None) for number in range(n))):
        state = fold(state, envelope)
    assert state == count(EMPTY, "request_served", seq=n, at_s=100.0 + n - 1, n=n)


@given(st.lists(st.floats(0, 4e9), min_size=1, max_size=200), st.integers(0, 10**6))
def test_ids_rise_whatever_the_clock_does(times_s: list[float], run: int) -> None:
    """Also across a restart of which only the last id is known."""
    ids = EventIds(run=run)
    made = [ids.next(time_s) for time_s in times_s]
    after = EventIds(run=run + 1, after_id=made[-1])
    made += [after.next(time_s) for time_s in times_s]
    assert made == sorted(set(made))
    assert {len(each) for each in made} == {16}


def told(path: Path) -> dict[str, object]:
    """What a person can ask of levers, without the checkpoints' own traces."""
    with SqliteReader(path) as reader:
        return {name: chain(name, reader.told(name)) for name in reader.levers()}


def state_of(path: Path) -> State:
    """The fold over all, without the count of checkpoints and what comes with them."""
    with SqliteReader(path) as reader:
        state = reader.state()
        assert state == rebuild(reader.read())
    counts = {kind: n for kind, n in state.counts.items() if kind != "checkpoint"}
    return msgspec.structs.replace(state, counts=counts, seq=0, at_s=0.0)


@settings(max_examples=40)
@given(LIVED, LIVED, st.lists(st.integers(0, 60), min_size=1, max_size=4))
def test_retention_changes_neither_state_nor_chains(
    before: Written, after: Written, keeps: list[int]
) -> None:
    """Folding any part of any ledger, again and again: it verifies, folds to the same, tells the same.

    It is also never longer than what was to be kept, plus what the levers need.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "ledger.sqlite"
        ledger = SqliteLedger(path, clock=SteppingClock())
        for written in (before, after):
            write(ledger, written)
            asyncio.run(ledger.flush())
            for keep in keeps:
                wanted = (state_of(path), told(path))
                asyncio.run(ledger.compact(keep_events=keep))
                found = ledger.verify()
                assert (found.problem, ledger.unhealthy_reason) == (None, None)
                assert (state_of(path), told(path)) == wanted
        ledger.close()


@settings(max_examples=40)
@given(LIVED, LIVED, st.none() | st.integers(0, 60), st.none() | st.integers(0, 60))
def test_catching_up_is_rebuilding(
    before: Written, after: Written, first_keep: int | None, second_keep: int | None
) -> None:
    """Whoever has the state of a beginning gets the state of the whole, also across retention."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "ledger.sqlite"
        ledger = SqliteLedger(path, clock=SteppingClock())
        state = EMPTY
        for written, keep in ((before, first_keep), (after, second_keep)):
            write(ledger, written)
            asyncio.run(ledger.flush())
            if keep is not None:
                asyncio.run(ledger.compact(keep_events=keep))
            with SqliteReader(path) as reader:
                state = reader.catch_up(state)
                assert state == rebuild(reader.read())
        ledger.close()


def test_retention_removes_the_flow_and_keeps_the_story() -> None:
    """Of a lever's life among traffic only the uncited reading, diagnosis, choice and the requests go."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "ledger.sqlite"
        ledger = SqliteLedger(path, clock=SteppingClock())
        write(ledger, story())
        asyncio.run(ledger.compact(keep_events=0))
        left = ledger.read()
        with SqliteReader(path) as reader:
            names = reader.levers()
        ledger.close()
    gone = set(range(1, len(story()) + 2)) - {each.seq for each in left}
    assert gone == {index + 1 for index in (1, 3, 11, 12, 24)}
    assert names == sorted([LEVER, OTHER])


def test_retention_asks_no_more_for_more_levers() -> None:
    """Its questions to the database are as many for fifty levers as for five: the chains are found in one walk."""
    asked = []
    for levers in (5, 50):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "ledger.sqlite"
            ledger = SqliteLedger(path, clock=SteppingClock())
            write(ledger, [step for number in range(levers) for step in life_of(f"l{number}")])
            ledger.close()
            db = open_for_writing(path)
            said: list[str] = []
            db.set_trace_callback(said.append)
            assert prepare_checkpoint(db, keep_events=0) is not None
            db.close()
        asked.append(sum(statement.startswith("SELECT") for statement in said))
    assert asked[0] == asked[1]


def life_of(lever: str) -> Written:
    """A lever that was proposed and moved, among traffic."""
    moved = RolloutMoved(
        lever=lever, before=None, after=RolloutState.CANARY, share=0.1, reason="test"
    )
    return [(request(1), None), (LeverProposed(record=lever_record(lever)), None), (moved, None)]


@pytest.mark.parametrize("state", list(RolloutState))
def test_whom_a_lever_was_shown_to_stays_while_it_is_proven(state: RolloutState) -> None:
    """A restart goes on from it; once the proof has ended its counts in the state are enough."""
    shown = SessionsExposed(lever=LEVER, share=0.1, candidate=("a", "b"), baseline=("c",))
    moved = RolloutMoved(lever=LEVER, before=None, after=state, share=0.1, reason="test")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "ledger.sqlite"
        ledger = SqliteLedger(path, clock=SteppingClock())
        write(ledger, [*life_of(LEVER)[:2], (shown, None), (moved, None)])
        asyncio.run(ledger.compact(keep_events=0))
        kinds = {kind_of(each.event) for each in ledger.read()}
        with SqliteReader(path) as reader:
            counted = reader.state().levers[LEVER].exposed
        ledger.close()
    proven = {"canary", "ramping", "proving", "paused"}
    assert ("sessions_exposed" in kinds) == (state.value in proven)
    assert counted == {Arm.CANDIDATE: 2, Arm.BASELINE: 1}
