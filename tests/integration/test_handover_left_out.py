"""Prompts that would be computed twice in vain stay where they are decoded, and the ledger says why."""

import asyncio
from pathlib import Path

import pytest
from handover_kit import DECODE, NOTHING, PREFILL, Pair, long_body, right_text, text_of
from harness import COST, RealClock, until
from slot_engine import Fault
from test_handover_faults import without_ejection

from trimtab.core.config_handover import PlaceRule
from trimtab.core.handover import HandOverCause, PrefillDecision, PrefillPlace, PrefillReason
from trimtab.policies import pair_breaker
from trimtab.policies.pair_breaker import IN_A_ROW
from trimtab.runtime.handover_passage import Passage

TIMES = 12
PREDICTED = {"place": PlaceRule.PREDICTED}


class _Clock(RealClock):
    """Goes on as it is told to."""

    ahead_s = 0.0

    def mono_s(self) -> float:
        return super().mono_s() + self.ahead_s


def running(pair: Pair, streams: int = 10) -> None:
    """Have streams counted on the decode side, so that a long prompt is predicted to be faster elsewhere."""
    for number in range(streams):
        pair.load.admitted(f"s{number}", DECODE, prefill_tokens=0, decode_tokens=10**6)
        pair.load.prefill_done(f"s{number}")


def decisions(pair: Pair) -> list[PrefillDecision]:
    return [one.prefill.decision for one in pair.served if one.prefill is not None]


async def ask(pair: Pair, fault: Fault | None, times: int = TIMES) -> int:
    """Ask with long prompts of their own, one after the other, and return how many got their text."""
    right = 0
    for _ in range(times):
        if fault is not None:
            pair.decode.faults.append(fault)
        body = long_body(f"q{len(pair.records)}x")
        right += text_of((await pair.post(body)).body) == right_text(body)
        pair.decode.faults.clear()
    await pair.record(of=len(pair.records))
    return right


@pytest.mark.parametrize(
    "fault", [Fault.RESTORE_REFUSED, Fault.RESTORE_FORGOTTEN, Fault.HANDED_REFUSED]
)
async def test_pair_whose_hand_overs_keep_failing_is_left_out(tmp_path: Path, fault: Fault) -> None:
    """A few prompts are computed on both sides, the others where they are decoded; all get their text."""
    async with Pair(tmp_path, settings=PREDICTED) as pair:
        running(pair)
        right = await ask(pair, fault)
        made, told = decisions(pair), pair.told
    assert right == TIMES
    assert len(told) == len(pair.prefill.computed) == IN_A_ROW
    assert [one.reason for one in made[:IN_A_ROW]] == [PrefillReason.REMOTE_FASTER] * IN_A_ROW
    assert {one.reason for one in made[IN_A_ROW:]} == {PrefillReason.PAIR_FAILS}
    assert {one.place for one in made[IN_A_ROW:]} == {PrefillPlace.LOCAL}


async def test_pair_that_works_again_is_found_by_a_probe(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the pause one goes; it is delivered, and so are those after it."""
    monkeypatch.setattr(pair_breaker, "PAUSE_S", 0.4)
    async with Pair(tmp_path, settings=PREDICTED) as pair:
        running(pair)
        await ask(pair, Fault.RESTORE_REFUSED, IN_A_ROW)
        await ask(pair, None, 1)
        await asyncio.sleep(0.5)
        await ask(pair, None, 2)
        made, causes = decisions(pair), [one.cause for one in pair.told]
    assert [one.reason for one in made[IN_A_ROW:]] == [
        PrefillReason.PAIR_FAILS,
        PrefillReason.REMOTE_FASTER,
        PrefillReason.REMOTE_FASTER,
    ]
    assert causes == [HandOverCause.TRANSFER_FAILED] * IN_A_ROW + [None, None]


async def test_prompt_whose_parcel_would_find_no_room_is_not_computed_ahead(tmp_path: Path) -> None:
    """Once a parcel told how large a token is; a shorter prompt goes, and nothing is held in the end."""
    async with Pair(tmp_path) as pair:
        pair.files._bytes_max = 2000
        long = [await pair.post(long_body(f"q{number}x")) for number in range(3)]
        short = await pair.post(body := long_body("w", words=100))
        await pair.record(of=4)
        made, told, left = decisions(pair), pair.told, pair.left_over
    assert {one.status for one in long} == {200}
    assert text_of(short.body) == right_text(body)
    assert [(one.place, one.reason) for one in made[1:]] == [
        (PrefillPlace.LOCAL, PrefillReason.NO_ROOM_FOR_PARCEL),
        (PrefillPlace.LOCAL, PrefillReason.NO_ROOM_FOR_PARCEL),
        (PrefillPlace.REMOTE, PrefillReason.AS_TOLD),
    ]
    assert len(pair.prefill.computed) == len(told) == 2
    assert left == NOTHING


async def test_room_that_went_while_a_prompt_waited_is_missed_before_it_is_computed(
    tmp_path: Path,
) -> None:
    """Parcels that came first may fill it."""
    async with Pair(tmp_path) as pair:
        await pair.post(long_body("first"))
        pair.prefill.pause_s = 0.3
        second = asyncio.create_task(pair.post(long_body("second")))
        await until(lambda: pair.files.held == 1)
        third = asyncio.create_task(pair.post(long_body("third")))
        await until(lambda: pair.hand_overs.under_way == 2)
        pair.files._bytes_max = 1
        await asyncio.gather(second, third)
        await pair.record(of=3)
        causes, left = [one.cause for one in pair.told], pair.left_over
    assert causes.count(HandOverCause.NO_ROOM_FOR_PARCEL) >= 1
    assert len(pair.prefill.computed) == 2
    assert left == NOTHING


@pytest.mark.parametrize(
    "reason", [PrefillReason.PREFILL_FILLS_UP, PrefillReason.NO_TRANSFER], ids=str
)
async def test_prompt_that_stays_says_why_it_did(tmp_path: Path, reason: PrefillReason) -> None:
    """Nothing failed, and KV could stand for it."""
    async with Pair(tmp_path) as pair:
        pair.hand_overs.stays_local = reason is PrefillReason.PREFILL_FILLS_UP
        if reason is PrefillReason.NO_TRANSFER:
            pair.hand_overs._transfer_of = lambda _: None
        await pair.post(long_body("word"))
        await pair.record()
        made = decisions(pair)
    assert [(one.place, one.reason) for one in made] == [(PrefillPlace.LOCAL, reason)]
    assert pair.prefill.requests == []


async def test_refused_prompt_is_not_believed_to_be_held_where_it_was_refused(
    tmp_path: Path,
) -> None:
    """The next time it is predicted to be computed anew; once it was computed it is held."""
    body = long_body("word")
    async with Pair(tmp_path) as pair:
        without_ejection(pair)
        pair.prefill.faults.append(Fault.PREFILL_REFUSED)
        await pair.post(body)
        for _ in range(2):
            pair.router.index.forget(DECODE)
            await pair.post(body)
        await pair.record(of=3)
        predicted = [one.remote.terms["prefill"] for one in decisions(pair) if one.remote]
    assert len(predicted) == 3
    assert predicted[1] > 0.5 * COST.prefill_ms(300)
    assert predicted[2] < 0.1 * COST.prefill_ms(300)


async def test_parcel_that_lies_in_a_file_needs_its_prefill_replica_no_more(tmp_path: Path) -> None:
    """While it waits for a full decode side, its prefill replica may change its role: nothing is under way there."""
    async with Pair(tmp_path) as pair:
        decode = pair.load.replica(DECODE)
        assert decode is not None
        places = [pair.hand_overs._rooms.place(decode) for _ in range(decode.slots)]
        for place in places:
            await place.take()
        waiting = asyncio.create_task(pair.post(body := long_body("word")))
        await until(lambda: parcels(pair) != [])
        needed = pair.load.own_in_flight(PREFILL) + pair.hand_overs.awaiting(PREFILL)
        assert not waiting.done()
        for place in places:
            place.give()
        reply = await waiting
        await pair.record()
        told, left = pair.told, pair.left_over
    assert needed == 0
    assert text_of(reply.body) == right_text(body)
    assert [one.cause for one in told] == [None]
    assert left == NOTHING


def parcels(pair: Pair) -> list[Passage]:
    """Return the hand-overs whose parcel is made and not delivered."""
    under_way = pair.hand_overs._under_way
    return [one for one in under_way if one.parcel is not None and one.delivery is None]


@pytest.mark.parametrize(("said", "asked"), [((), IN_A_ROW), (("Retry-After: 60",), 1)])
async def test_prefill_replica_that_refuses_is_not_asked_again_and_again(
    tmp_path: Path, said: tuple[str, ...], asked: int
) -> None:
    """One that says for how long is left out at once; prompts stay, each with its text, and the reason is told."""
    async with Pair(tmp_path, settings=PREDICTED) as pair:
        without_ejection(pair)
        running(pair)
        pair.prefill.said_when = said
        pair.prefill.faults.extend([Fault.PREFILL_REFUSED] * TIMES)
        right = await ask(pair, None)
        made, causes, left = decisions(pair), [one.cause for one in pair.told], pair.left_over
    assert right == TIMES
    assert causes == [HandOverCause.PREFILL_REFUSED] * asked
    assert {one.reason for one in made[asked:]} == {PrefillReason.PREFILL_REFUSES}
    assert {**left, "requests": 0} == NOTHING


async def test_parcel_whose_lease_ended_while_it_waited_for_a_slot_is_told_as_expired(
    tmp_path: Path,
) -> None:
    """Its file is gone: what could not restore it did nothing wrong."""
    async with Pair(tmp_path) as pair:
        clock = pair.transfer._clock = _Clock()

        async def late(*_: object) -> int:
            clock.ahead_s = 1000.0
            return 0

        pair.transfer._room = late  # type: ignore[method-assign]
        reply = await pair.post(body := long_body("word"))
        await pair.record()
        causes, left = [one.cause for one in pair.told], pair.left_over
    assert text_of(reply.body) == right_text(body)
    assert causes == [HandOverCause.EXPIRED]
    assert left == NOTHING


async def test_replica_that_left_leaves_nothing_behind_in_what_moves_kv(tmp_path: Path) -> None:
    """Replicas come and go under new names for as long as a fleet lives."""
    async with Pair(tmp_path) as pair:
        await pair.post(long_body("word"))
        await pair.record()
        known = {*pair.transfer._sites, *pair.transfer._taken}
        for replica in (DECODE, PREFILL):
            pair.transfer.forget(replica)
        left = {*pair.transfer._sites, *pair.transfer._taken}
    assert known == {DECODE, PREFILL}
    assert left == set()
