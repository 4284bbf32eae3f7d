"""A prompt prefilled on one replica and decoded on another, through the gateway: what is sent, said and learned."""

import asyncio
import stat
from pathlib import Path
from typing import Any

import pytest
from handover_kit import DECODE, LONG, NOTHING, PREFILL, Pair, long_body, right_text, text_of
from harness import COST, Reply, until
from slot_engine import SlotState

from trimtab.core.config_handover import PlaceRule
from trimtab.core.handover import HandOverCause, HandOverOutcome, PrefillPlace, PrefillReason
from trimtab.core.types import ReplicaState


async def test_prompt_is_prefilled_on_one_replica_and_decoded_on_another(tmp_path: Path) -> None:
    """The decode side computes one token, gives the right text, and everything that was held is free again."""
    body = long_body("word")
    async with Pair(tmp_path) as pair:
        reply = await pair.post(body)
        record = await pair.record()
        told, left = pair.told, pair.left_over
    size = len(right_text(body).split())
    assert (200, right_text(body)) == (reply.status, text_of(reply.body))
    assert ([1], [len(long_prompt(body))]) == (pair.decode.computed, pair.prefill.computed)
    assert (DECODE, PREFILL, size) == (record.replica, record.prefill_replica, record.tokens.output)
    assert record.tokens.ahead == sum(pair.prefill.computed)
    assert left == NOTHING
    assert [one.outcome for one in told] == [HandOverOutcome.DELIVERED]


async def test_hand_over_is_told_with_bytes_and_times_apart(tmp_path: Path) -> None:
    """The ledger has source and target, tokens sent and reused, bytes, and prefill, export, set-up, transfer apart."""
    body = long_body("word")
    async with Pair(tmp_path) as pair:
        pair.prefill.save_s = 0.02
        await pair.post(body)
        record = await pair.record()
        one = pair.told[0]
        served = pair.served[0]
    prompt = len(long_prompt(body))
    assert (PREFILL, DECODE, prompt, prompt, prompt - 1) == (
        one.source,
        one.target,
        one.prompt_tokens,
        one.tokens_sent,
        one.tokens_delivered,
    )
    assert one.bytes is not None
    assert one.bytes > prompt
    assert one.export_ms is not None
    assert one.export_ms >= 20.0
    assert one.setup_ms is not None
    assert one.transfer_ms is not None
    assert record.phases.transfer_ms is not None
    assert record.phases.transfer_ms >= one.export_ms + one.transfer_ms
    assert record.ttft_ms is not None
    assert record.second_gap_ms is not None
    assert served.prefill is not None
    assert PrefillPlace.REMOTE is served.prefill.decision.place
    assert one.transport == "a file in shared memory"
    assert one.held_tokens == 0


async def test_second_identical_request_is_a_hit_where_it_was_decoded(tmp_path: Path) -> None:
    """By prediction, what the decode side holds stays there: nothing is sent a second time."""
    body = long_body("word")
    async with Pair(tmp_path) as pair:
        await pair.post(body)
        pair.hand_overs.pool.rules = pair.hand_overs.pool.rules.__class__(chunk_tokens=64)
        await pair.post(body)
        await pair.record(of=2)
        decision = pair.served[1].prefill
    assert decision is not None
    assert (
        decision.decision.place,
        decision.decision.reason,
    ) == (PrefillPlace.LOCAL, PrefillReason.CACHED)
    assert (pair.decode.computed, len(pair.prefill.computed)) == ([1, 1], 1)


async def test_parcel_is_for_its_owner_alone_while_it_lies_in_memory(tmp_path: Path) -> None:
    """A parcel's file has mode 0600 from the moment that it counts, and is gone when its KV was restored."""
    modes: list[int] = []
    async with Pair(tmp_path) as pair:
        written = pair.files.written

        def spied(name: str) -> int:
            size = written(name)
            modes.append(stat.S_IMODE((tmp_path / name).stat().st_mode))
            return size

        pair.files.written = spied  # type: ignore[method-assign]
        await pair.post(long_body("word"))
        left = pair.left_over
    assert (modes, left) == ([0o600], NOTHING)


async def test_whole_answer_is_handed_over_too(tmp_path: Path) -> None:
    """A request that asks for no stream gets the right text by a hand-over."""
    body = long_body("word", stream=False)
    async with Pair(tmp_path) as pair:
        reply = await pair.post(body)
        left = pair.left_over
    assert right_text(body) == reply.json["choices"][0]["message"]["content"]
    assert (pair.decode.computed, left) == ([1], NOTHING)


async def test_short_prompt_stays_and_its_reason_is_kept(tmp_path: Path) -> None:
    """A prompt up to a chunk never travels, and the ledger says why."""
    async with Pair(tmp_path, settings={"place": PlaceRule.PREDICTED}) as pair:
        await pair.post(long_body("word", words=5))
        await pair.record()
        kept = pair.served[0].prefill
    assert kept is not None
    assert (
        kept.decision.place,
        kept.decision.reason,
    ) == (PrefillPlace.LOCAL, PrefillReason.SHORT_PROMPT)
    assert pair.prefill.requests == []


async def test_both_predictions_are_kept_and_scored(tmp_path: Path) -> None:
    """A long prompt's decision keeps both predictions; what it really waited is held against the one followed."""
    async with Pair(tmp_path, settings={"place": PlaceRule.PREDICTED}) as pair:
        await pair.post(long_body("word"))
        await pair.record()
        kept = pair.served[0].prefill
        corrections = pair.hand_overs.pool.corrections
    assert kept is not None
    assert kept.decision.local is not None
    assert kept.decision.remote is not None
    assert kept.waited_ms is not None
    assert kept.error is not None
    assert (kept.decision.reason, corrections.scored) == (PrefillReason.LOCAL_FASTER, 1)
    assert corrections.local < 1.0, "the fake engine is faster than its costs say"


async def test_long_prompt_travels_where_it_would_stall_running_streams(tmp_path: Path) -> None:
    """With streams running on the decode side a long miss is predicted faster elsewhere, and goes there."""
    settings = {"place": PlaceRule.PREDICTED, "stall_weight": 0.5}
    async with Pair(tmp_path, settings=settings) as pair:
        pair.decode.gap_s = 0.05
        running = asyncio.create_task(pair.post(long_body("running", words=10)))
        await until(lambda: pair.load.view(0.0).replicas[0].running == 1)
        await pair.post(long_body("long"))
        await running
        await pair.record(of=2)
        decisions = {one.prefill.decision.reason for one in pair.served if one.prefill}
        left = pair.left_over
    assert {PrefillReason.SHORT_PROMPT, PrefillReason.REMOTE_FASTER} == decisions
    assert left == NOTHING


@pytest.mark.parametrize("state", [ReplicaState.RESTARTING, ReplicaState.DRAINING])
async def test_dead_pool_stays_local_with_its_reason(tmp_path: Path, state: ReplicaState) -> None:
    """With no prefill replica ready, prompts are computed where they are decoded, and the ledger says why."""
    async with Pair(tmp_path, settings={"place": PlaceRule.PREDICTED}) as pair:
        pair.set_replica(PREFILL, pair.prefill.url, state)
        body = long_body("word")
        reply = await pair.post(body)
        await pair.record()
        kept = pair.served[0].prefill
    assert right_text(body) == text_of(reply.body)
    assert kept is not None
    assert PrefillReason.NO_PREFILL_REPLICA is kept.decision.reason


async def test_only_equal_kv_keys_pair(tmp_path: Path) -> None:
    """KV is never sent between replicas whose keys differ, even where every prompt was told to travel."""
    async with Pair(tmp_path, keys=("one", "other")) as pair:
        reply = await pair.post(body := long_body("word"))
        await pair.record()
        kept = pair.served[0].prefill
    assert right_text(body) == text_of(reply.body)
    assert kept is not None
    assert (kept.decision.reason, pair.prefill.requests) == (PrefillReason.KV_KEYS_DIFFER, [])


@pytest.mark.parametrize("fields", [{"n": 2}, {"prompt_logprobs": 1}])
async def test_what_kv_cannot_stand_for_never_travels(
    tmp_path: Path, fields: dict[str, int]
) -> None:
    """Several answers, and log-probabilities of the prompt, need the prompt where it is decoded."""
    async with Pair(tmp_path) as pair:
        await pair.post(long_body("word", **fields))
        await pair.record()
        kept = pair.served[0].prefill
    assert kept is not None
    assert (kept.decision.reason, pair.prefill.requests) == (PrefillReason.CANNOT_TRAVEL, [])


async def test_prompt_that_begins_like_an_earlier_one_computes_its_tail_only(
    tmp_path: Path,
) -> None:
    """The prefill side names the slot that holds the longest beginning, as its engine would choose it."""
    first, second = long_body("word"), long_body("word", words=340)
    async with Pair(tmp_path) as pair:
        await pair.post(first)
        await pair.post(second)
    assert [pair.prefill.computed[0], pair.prefill.computed[1] + 5] == [302, 45] or (
        pair.prefill.computed[1] < 50
    )


async def passing(pair: Pair, long: dict[str, Any], short: dict[str, Any]) -> tuple[Reply, Reply]:
    """Have a short prompt computed while a long one has its turn, and return what both got."""
    may_save = asyncio.Event()
    save = pair.prefill._save

    async def held(slot: SlotState, path: Path) -> bytes:
        await may_save.wait()
        return await save(slot, path)

    pair.prefill._save = held  # type: ignore[method-assign]
    first = asyncio.create_task(pair.post(long))
    await until(lambda: len(pair.prefill.computed) == 1)
    second = asyncio.create_task(pair.post(short))
    # The long one's turn has not ended: its slot is not saved.
    await until(lambda: len(pair.prefill.computed) == 2)
    may_save.set()
    return await first, await second


async def test_short_prompt_passes_a_long_one_in_the_first_slot(tmp_path: Path) -> None:
    """It does not wait for the long one's turn to end, and both are handed over whole."""
    long, short = long_body("long", words=1200), long_body("short", words=100)
    async with Pair(tmp_path) as pair:
        replies = await passing(pair, long, short)
        await pair.record(of=2)
        told, left = pair.told, pair.left_over
    slots = [one.json["id_slot"] for one in pair.prefill.requests if b"id_slot" in one.body]
    assert [text_of(one.body) for one in replies] == [right_text(long), right_text(short)]
    assert slots == [1, 0]
    assert {one.outcome for one in told} == {HandOverOutcome.DELIVERED}
    assert left == NOTHING


async def test_prompt_that_only_passed_is_not_believed_to_be_held_where_it_was_computed(
    tmp_path: Path,
) -> None:
    """The next to pass overwrites its slot. What was computed in its turn is held, and is not computed again."""
    long, short = long_body("long", words=1200), long_body("short", words=100)
    async with Pair(tmp_path) as pair:
        await passing(pair, long, short)
        for body in (short, long):
            await pair.post(body)
        await pair.record(of=4)
        scores = [one.prefill for one in pair.served[2:]]
    again = [one.decision.remote.terms["prefill"] for one in scores if one and one.decision.remote]
    of_all = [COST.prefill_ms(words) for words in (100, 1200)]
    assert len(again) == 2
    assert again[0] > 0.5 * of_all[0]
    assert again[1] < 0.1 * of_all[1]


async def test_link_is_learned_from_what_was_moved(tmp_path: Path) -> None:
    """After a hand-over the pair's own rate stands for the one that was told."""
    async with Pair(tmp_path) as pair:
        pair.prefill.save_s = 0.05
        for number in range(3):
            await pair.post(long_body(f"word{number}"))
        await pair.record(of=3)
        decision = pair.served[-1].prefill
    assert decision is not None
    assert decision.decision.remote is not None
    assert decision.decision.remote.terms["transfer"] > 3.0 * 302 * pair.handover.ms_per_token / 3.0


async def test_wait_for_an_engines_step_is_set_up_and_not_the_links_rate(tmp_path: Path) -> None:
    """What the engine took itself grows with the bytes; how long it was busy before does not."""
    async with Pair(tmp_path) as pair:
        pair.prefill.save_s = 0.1
        pair.prefill.own_ms = pair.decode.own_ms = 0.1
        for number in range(3):
            await pair.post(long_body(f"word{number}"))
        await pair.record(of=3)
        decision, told = pair.served[-1].prefill, pair.told
    assert {(one.export_ms, one.transfer_ms) for one in told} == {(0.1, 0.1)}
    assert all(one.setup_ms is not None and one.setup_ms >= 99.0 for one in told)
    assert decision is not None
    assert decision.decision.remote is not None
    terms = decision.decision.remote.terms
    assert terms["transfer"] < 0.2 * terms["setup"]


async def test_full_decode_side_takes_parcels_in_their_turn(tmp_path: Path) -> None:
    """Eight long prompts and eight short ones for two slots: all are served, and every parcel gets its slot."""
    settings = {"place": PlaceRule.PREDICTED, "stall_weight": 5.0, "transfer_timeout_s": 5.0}
    async with Pair(tmp_path, settings=settings, gateway={"streams_max": 64}) as pair:
        pair.decode.gap_s = 0.01
        bodies = [long_body(f"w{at}x", words=5 if at % 2 else LONG) for at in range(16)]
        replies = await asyncio.gather(*(pair.post(body) for body in bodies))
        await pair.record(of=16)
        told, left = pair.told, pair.left_over
    assert [text_of(one.body) for one in replies] == [right_text(body) for body in bodies]
    assert {one.cause for one in told} <= {None, HandOverCause.SHORTFALL}
    assert len(told) >= 4
    assert left == NOTHING


async def test_metrics_count_hand_overs(tmp_path: Path) -> None:
    """/metrics has hand-overs by outcome, their bytes and their time."""
    async with Pair(tmp_path) as pair:
        await pair.post(long_body("word"))
        await pair.record()
        page = (await pair.get("/metrics")).body.decode()
    assert 'trimtab_hand_overs_total{cause="",outcome="delivered",replica="r0"} 1.0' in page
    assert 'trimtab_hand_over_bytes_total{replica="r0"}' in page


async def test_costs_are_learned_from_traffic_and_nothing_travels_before(tmp_path: Path) -> None:
    """Without a measured cost prompts stay local; traffic of several sizes gives one, and then both sides are known."""
    async with Pair(tmp_path, settings={"place": PlaceRule.PREDICTED}, cost=None) as pair:
        pair.decode.gap_s = 0.002
        for number in range(25):
            await pair.post(long_body(f"q{number}x", words=30 * (1 + number % 5) + number))
            pair.hand_overs.costs.learn(pair.records[-1])
        before = pair.served[4].prefill
        await pair.post(long_body("last"))
        await pair.record(of=26)
        after = pair.served[-1].prefill
    assert before is not None
    assert before.decision.reason is PrefillReason.UNKNOWN_COST
    assert after is not None
    assert after.decision.local is not None
    assert after.decision.remote is not None


def long_prompt(body: dict[str, object]) -> list[str]:
    """Return the tokens of a body's prompt as the fake engine counts them."""
    messages = body["messages"]
    assert isinstance(messages, list)
    return " ".join(one["content"] for one in messages).split()
