"""Every way in which a hand-over can fail, twenty times each: the right text or one clean error, and nothing left."""

import asyncio
import contextlib
from pathlib import Path

import aiohttp
import pytest
from handover_kit import NOTHING, PREFILL, Pair, long_body, right_text, text_of
from harness import CHAT, as_body, until
from slot_engine import Fault

from trimtab.core.handover import HandOverCause, HandOverOutcome, PrefillReason
from trimtab.policies.outliers import Outcome

TIMES = 20
QUICK = {"prefill_timeout_s": 0.15, "transfer_timeout_s": 0.15}
CAUSES = {
    Fault.PREFILL_REFUSED: HandOverCause.PREFILL_REFUSED,
    Fault.PREFILL_DIES: HandOverCause.PREFILL_BROKE_OFF,
    Fault.PREFILL_HANGS: HandOverCause.TIMED_OUT,
    Fault.SAVE_REFUSED: HandOverCause.EXPORT_FAILED,
    Fault.SAVE_DIES: HandOverCause.EXPORT_FAILED,
    Fault.SAVE_SHORT: HandOverCause.EXPORT_FAILED,
    Fault.RESTORE_REFUSED: HandOverCause.TRANSFER_FAILED,
    Fault.RESTORE_DIES: HandOverCause.TRANSFER_FAILED,
    Fault.RESTORE_HANGS: HandOverCause.TIMED_OUT,
    Fault.RESTORE_SHORT: HandOverCause.TRANSFER_FAILED,
    Fault.RESTORE_FORGOTTEN: HandOverCause.SHORTFALL,
    Fault.HANDED_REFUSED: HandOverCause.DECODE_REFUSED,
    Fault.HANDED_DIES: HandOverCause.DECODE_LOST,
}
OF_PREFILL = {Fault.PREFILL_REFUSED, Fault.PREFILL_DIES, Fault.PREFILL_HANGS} | {
    Fault.SAVE_REFUSED,
    Fault.SAVE_DIES,
    Fault.SAVE_SHORT,
}


def without_ejection(pair: Pair) -> None:
    """Keep the prefill replica in the pool, so that every one of the twenty meets the fault."""
    pair.gateway.guard.outliers.rules = pair.gateway.guard.outliers.rules.__class__(
        consecutive=10_000, window=10_000, window_min=10_000
    )


@pytest.mark.parametrize("fault", list(CAUSES))
async def test_failed_hand_over_gives_the_right_text_and_leaves_nothing(
    tmp_path: Path, fault: Fault
) -> None:
    """Each of twenty requests gets its text, computed where it is decoded; the cause is recorded; nothing is held."""
    settings = QUICK if fault.endswith("_hangs") else None
    async with Pair(tmp_path, settings=settings) as pair:
        without_ejection(pair)
        side = pair.prefill if fault in OF_PREFILL else pair.decode
        right = 0
        for number in range(TIMES):
            side.faults.append(fault)
            body = long_body(f"q{number}x")
            reply = await pair.post(body)
            right += (reply.status, text_of(reply.body)) == (200, right_text(body))
            side.faults.clear()
            await until(lambda: pair.left_over == NOTHING)
        await pair.record(of=TIMES)
        told = pair.told
    assert right == TIMES
    assert {(HandOverOutcome.FAILED, CAUSES[fault])} == {(one.outcome, one.cause) for one in told}
    assert len(told) == TIMES
    assert all(one.detail for one in told)


async def test_prefill_replica_that_is_gone_costs_nobody_an_answer(tmp_path: Path) -> None:
    """Where nothing listens any more twenty requests are computed locally, and the cause says it was not reached."""
    async with Pair(tmp_path) as pair:
        without_ejection(pair)
        await pair.prefill.stop()
        right = 0
        for number in range(TIMES):
            body = long_body(f"q{number}x")
            reply = await pair.post(body)
            right += text_of(reply.body) == right_text(body)
        left, told = pair.left_over, pair.told
        await pair.prefill.start()
    assert (right, left) == (TIMES, NOTHING)
    assert {HandOverCause.PREFILL_UNREACHABLE} == {one.cause for one in told}


async def test_failing_prefill_replica_is_left_out_of_the_pool(tmp_path: Path) -> None:
    """After a few failures in a row nothing is sent there for a while, as with a replica that answers clients."""
    async with Pair(tmp_path) as pair:
        await pair.prefill.stop()
        for number in range(TIMES):
            await pair.post(long_body(f"q{number}x"))
        asked = len(pair.told)
        await pair.prefill.start()
    assert 1 <= asked < TIMES


async def test_replica_is_blamed_for_the_time_that_it_took_and_not_for_a_queue(
    tmp_path: Path,
) -> None:
    """A prompt that waited while others were computed says nothing of its replica; one that nothing came of does."""
    async with Pair(tmp_path, settings={"prefill_timeout_s": 1.0}) as pair:
        seen: list[Outcome] = []
        saw = pair.gateway.guard.saw

        def heard(replica: str, outcome: Outcome, now_s: float) -> None:
            saw(replica, outcome, now_s)
            if replica == PREFILL:
                seen.append(outcome)

        pair.gateway.guard.saw = heard  # type: ignore[method-assign]
        pair.prefill.pause_s = 0.7
        await asyncio.gather(*(pair.post(long_body(name)) for name in ("first", "second")))
        queued = list(seen)
        pair.prefill.faults.append(Fault.PREFILL_HANGS)
        await pair.post(long_body("third"))
        told = [one.cause for one in pair.told]
    assert queued == [Outcome.OK, Outcome.NEUTRAL]
    assert seen[2:] == [Outcome.FAILED]
    assert told[1:] == [HandOverCause.TIMED_OUT] * 2


async def test_full_decode_side_computes_the_prompt_itself_in_time(tmp_path: Path) -> None:
    """With no idle slot before the deadline the parcel is given up, twenty times, and the answer is right."""
    async with Pair(tmp_path, settings={"transfer_timeout_s": 0.4}) as pair:
        pair.decode.faults.append(Fault.SLOTS_BUSY)
        right = 0
        for number in range(TIMES):
            body = long_body(f"q{number}x")
            reply = await pair.post(body)
            right += text_of(reply.body) == right_text(body)
        left, told = pair.left_over, pair.told
    assert (right, left) == (TIMES, NOTHING)
    # A busy machine may miss the deadline for room and meet the one of the whole transfer.
    assert HandOverCause.DECODE_FULL in {one.cause for one in told}
    assert {one.cause for one in told} <= {HandOverCause.DECODE_FULL, HandOverCause.TIMED_OUT}


async def test_prompt_too_long_for_every_slot_is_refused_once_and_cleanly(tmp_path: Path) -> None:
    """A decode side whose slots are too small is told so by cause, and answers as it would without a hand-over."""
    async with Pair(tmp_path) as pair:
        pair.decode.context = 100
        reply = await pair.post(body := long_body("word"))
        left, told = pair.left_over, pair.told
    assert (right_text(body), NOTHING) == (text_of(reply.body), left)
    assert [one.cause for one in told] == [HandOverCause.DECODE_REFUSED]


@pytest.mark.parametrize("at", ["prefill", "save", "restore", "decode"])
async def test_client_that_leaves_in_the_middle_leaves_nothing(tmp_path: Path, at: str) -> None:
    """Twenty clients leave while their prompt is computed, saved, restored or decoded: nothing is held or runs."""
    # A parcel keeps its place until the engine's save has ended, so twenty quick leavers have twenty at once.
    async with Pair(tmp_path, settings={"parcels_max": 2 * TIMES}) as pair:
        without_ejection(pair)
        for number in range(TIMES):
            arrange(pair, at)
            before = len(pair.told)
            await leave_when(pair, long_body(f"q{number}x"), at)
            await until(lambda before=before: len(pair.told) > before)
            pair.prefill.faults.clear()
            pair.decode.faults.clear()
            for engine in (pair.prefill, pair.decode):
                engine.pause_s = engine.gap_s = engine.save_s = 0.0
        await until(lambda: pair.left_over == NOTHING)
        told = pair.told
    assert len(told) == TIMES
    assert {HandOverOutcome.ABANDONED} == {one.outcome for one in told}
    assert {HandOverCause.CLIENT_LEFT} == {one.cause for one in told}


def arrange(pair: Pair, at: str) -> None:
    """Make one step slow."""
    match at:
        case "prefill":
            pair.prefill.pause_s = 0.5
        case "save":
            pair.prefill.save_s = 0.2
        case "restore":
            pair.decode.faults.append(Fault.SLOTS_BUSY)
        case _:
            pair.decode.pause_s = 0.5


async def leave_when(pair: Pair, body: dict[str, object], at: str) -> None:
    """Ask, and leave as soon as the slow step is under way."""
    asking = asyncio.create_task(ask(pair, body))
    saves, lists, plain = count(pair, PREFILL, "save"), count(pair, "r0", "/slots"), asked(pair)
    match at:
        case "prefill":
            await until(lambda: pair.load.in_flight == 2)
            await asyncio.sleep(0.01)
        case "save":
            await until(lambda: count(pair, PREFILL, "save") > saves)
        case "restore":
            await until(lambda: count(pair, "r0", "/slots") > lists)
        case _:
            await until(lambda: asked(pair) > plain)
    asking.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await asking


async def ask(pair: Pair, body: dict[str, object]) -> None:
    async with (
        aiohttp.ClientSession() as client,
        client.post(pair.url + CHAT, data=as_body(body)) as response,
    ):
        await response.read()


def count(pair: Pair, replica: str, word: str) -> int:
    engine = pair.prefill if replica == PREFILL else pair.decode
    return sum(word in seen.path for seen in engine.requests)


def asked(pair: Pair) -> int:
    """Return how many completions the decode side was asked for."""
    return sum(seen.path == CHAT for seen in pair.decode.requests)


async def test_memory_for_parcels_is_bounded(tmp_path: Path) -> None:
    """Beyond the bound a prompt is computed where it is decoded and nowhere else, and the reason says why."""
    async with Pair(tmp_path, settings={"parcels_max": 1}) as pair:
        pair.files.lease("another.kv", expected_bytes=1)
        reply = await pair.post(body := long_body("word"))
        await pair.record()
        kept = pair.served[0].prefill
        pair.files.free("another.kv")
        left = pair.left_over
    assert (right_text(body), NOTHING) == (text_of(reply.body), left)
    assert kept is not None
    assert kept.decision.reason is PrefillReason.NO_ROOM_FOR_PARCEL
    assert pair.prefill.computed == []


async def test_parcel_that_nobody_asks_for_goes_with_its_lease(tmp_path: Path) -> None:
    """A file whose hand-over got lost is removed when its lease ends, without another request."""
    async with Pair(tmp_path, settings={"parcel_lease_s": 0.2, "transfer_timeout_s": 0.2}) as pair:
        pair.hand_overs._let_go = lambda passage: None  # type: ignore[method-assign]
        pair.decode.faults.append(Fault.RESTORE_HANGS)
        asking = asyncio.create_task(ask(pair, long_body("word")))
        await until(lambda: any(tmp_path.iterdir()))
        asking.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asking
        await until(lambda: not any(tmp_path.iterdir()))
        held = pair.files.held
    assert held == 0


async def test_stopping_gateway_leaves_no_parcel(tmp_path: Path) -> None:
    """Where the gateway stops in the middle of a hand-over the client is told once, and nothing stays."""
    async with Pair(tmp_path) as pair:
        pair.prefill.pause_s = 5.0
        asking = asyncio.create_task(pair.post(long_body("word")))
        await until(lambda: pair.load.in_flight == 2)
        await pair.gateway.stop()
        reply = await asking
        told, left = pair.told, pair.left_over
    assert (reply.status, left) == (503, NOTHING)
    assert [one.cause for one in told] == [HandOverCause.STOPPING]


async def test_lost_decode_side_is_one_clean_error(tmp_path: Path) -> None:
    """Where the only decode side drops twenty requests, each client gets one error, and nothing is kept for any."""
    async with Pair(tmp_path) as pair:
        without_ejection(pair)
        pair.decode.faults.append(Fault.DECODE_DIES)
        statuses = set()
        for number in range(TIMES):
            reply = await pair.post(long_body(f"q{number}x"))
            statuses.add((reply.status, reply.json["error"]["code"]))
        await until(lambda: pair.left_over == NOTHING)
        told = pair.told
    assert statuses == {(502, "upstream_connect")}
    assert {one.cause for one in told} == {HandOverCause.DECODE_LOST}
    assert len(told) == TIMES


async def test_stream_that_breaks_off_after_a_hand_over_is_one_clean_error(tmp_path: Path) -> None:
    """A decode side that dies in the middle of twenty answers: the words so far, one error event, nothing kept."""
    async with Pair(tmp_path) as pair:
        without_ejection(pair)
        pair.decode.faults.append(Fault.STREAM_DIES)
        for number in range(TIMES):
            body = long_body(f"q{number}x")
            reply = await pair.post(body)
            assert right_text(body).startswith(text_of(reply.body))
            assert reply.body.count(b'"code":"upstream_broken"') == 1
        await until(lambda: pair.left_over == NOTHING)
        told = pair.told
    assert {(one.outcome, one.cause) for one in told} == {
        (HandOverOutcome.FAILED, HandOverCause.DECODE_LOST)
    }
