"""KV handed over between attached vLLM servers, through the gateway: what is sent, what is said, and what fails."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from fake_nixl import BYTES_PER_TOKEN, FakeNixl
from harness import CHAT, until
from nixl_pair import DECODE, NOTHING, PREFILL, NixlPair, text_of

from trimtab.core.config_roles import RolesMode
from trimtab.core.handover import (
    HandOverCause,
    HandOverOutcome,
    PrefillDecision,
    PrefillPlace,
    PrefillReason,
)
from trimtab.core.types import ReplicaState
from trimtab.runtime.nixl import NixlTransfer

WORDS = 300
TIMES = 20
"""How often each failure is injected."""


def long_body(name: str, words: int = WORDS, **fields: Any) -> dict[str, Any]:
    """Return a body with a long prompt of its own, streamed unless `fields` say otherwise."""
    text = " ".join(f"{name}{at}" for at in range(words))
    return {"messages": [{"role": "user", "content": text}], "stream": True, **fields}


class Made:
    """Two fake servers and the gateway before them."""

    def __init__(self, prefill: FakeNixl, decode: FakeNixl, pair: NixlPair) -> None:
        self.prefill, self.decode, self.pair = prefill, decode, pair

    async def ask(self, name: str, **fields: Any) -> tuple[int, str]:
        status, answer = await self.pair.post(CHAT, long_body(name, **fields))
        return status, text_of(answer)

    @property
    def unfetched(self) -> int:
        """Parcels that the gateway believes to lie on the prefill server."""
        source = self.pair.system.load.replica(PREFILL)
        assert source is not None
        transfer = self.pair.system.hand_overs._transfer_of(source)
        assert isinstance(transfer, NixlTransfer)
        return transfer.unfetched(PREFILL)

    def predict(self) -> None:
        """Decide by prediction from now on."""
        pool = self.pair.system.hand_overs.pool
        pool.rules = msgspec.structs.replace(pool.rules, always=None)

    def right(self, name: str) -> str:
        """Return the text that a prompt gets wherever it was prefilled."""
        return "".join((f"{name}0", *self.decode.words))


@asynccontextmanager
async def made(folder: Path, **settings: Any) -> AsyncIterator[Made]:
    prefill, decode = FakeNixl(), FakeNixl()
    decode.peers, prefill.peers = [prefill], [decode]
    await prefill.start()
    await decode.start()
    try:
        async with NixlPair(folder, prefill.url, decode.url, **settings) as pair:
            await until(lambda: all(state(pair, one) for one in (PREFILL, DECODE)))
            yield Made(prefill, decode, pair)
    finally:
        await prefill.stop()
        await decode.stop()


def state(pair: NixlPair, replica: str) -> bool:
    view = pair.system.load.replica(replica)
    return view is not None and view.state is ReplicaState.READY


@pytest.mark.parametrize("stream", [True, False])
async def test_prompt_is_prefilled_on_one_server_and_fetched_by_another(
    tmp_path: Path, stream: bool
) -> None:
    """The decode server computes the last token alone; what moved is told with bytes and times from its own page."""
    async with made(tmp_path) as found:
        answer = await found.ask("w", stream=stream)
        records = await found.pair.records()
        told, left = found.pair.told, found.pair.left_over
    assert answer == (200, found.right("w"))
    assert (found.decode.computed_tokens, found.prefill.computed_tokens) == (1, WORDS)
    assert (records[0].replica, records[0].prefill_replica) == (DECODE, PREFILL)
    one = told[0]
    assert (one.outcome, one.cause) == (HandOverOutcome.DELIVERED, None)
    assert (one.tokens_sent, one.tokens_delivered) == (WORDS, WORDS - 1)
    assert (one.bytes, one.descriptors) == (BYTES_PER_TOKEN * WORDS, 30)
    assert one.transfer_ms == pytest.approx(WORDS * 1e-2)
    assert one.transport == "NIXL"
    assert (left, found.prefill.kept) == (NOTHING, {})


async def test_second_identical_prompt_stays_where_it_was_decoded(tmp_path: Path) -> None:
    """By prediction, a prompt that the decode server holds does not travel."""
    async with made(tmp_path) as found:
        await found.ask("w")
        found.predict()
        await found.ask("w")
        await found.pair.records(2)
    assert (found.prefill.prefills, found.decode.computed_tokens) == (1, 2)


async def test_short_prompt_never_travels(tmp_path: Path) -> None:
    """What fits one chunk has nothing to hide behind."""
    async with made(tmp_path, settings={"place": "predicted"}) as found:
        await found.ask("w", words=20)
    assert (found.prefill.prefills, found.decode.computed_tokens) == (0, 20)


@pytest.mark.parametrize("more", [{"n": 2}, {"prompt_logprobs": 1}, {"use_beam_search": True}])
async def test_request_that_one_parcel_cannot_stand_for_stays(
    tmp_path: Path, more: dict[str, Any]
) -> None:
    """A parcel is fetched once; two answers would fetch it twice."""
    async with made(tmp_path) as found:
        await found.ask("w", **more)
    assert (found.prefill.prefills, found.decode.computed_tokens) == (0, WORDS)


@pytest.mark.parametrize(
    "named",
    [
        {"kv_transfer_params": {"do_remote_prefill": True, "remote_engine_id": "http://10.0.0.1"}},
        {"kv_transfer_params": {"do_remote_decode": True}},
        {"vllm_xargs": {"kv_transfer_params": {"do_remote_decode": True}}},
        {"id_slot": 3},
    ],
)
async def test_kv_that_a_client_names_is_never_followed(
    tmp_path: Path, named: dict[str, Any]
) -> None:
    """Neither as it came nor handed over does a server see what a client said of KV."""
    async with made(tmp_path) as found:
        local = await found.ask("s", words=20, **named)
        handed = await found.ask("w", **named)
    assert (local, handed) == ((200, found.right("s")), (200, found.right("w")))
    bodies = [seen.json for seen in (*found.decode.requests, *found.prefill.requests) if seen.body]
    assert [body for body in bodies if "id_slot" in body or "10.0.0.1" in str(body)] == []
    assert [body["vllm_xargs"] for body in bodies if body.get("vllm_xargs")] == []
    assert (found.prefill.prefills, found.decode.failed) == (2, 0)


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/responses"])
async def test_kv_that_a_client_names_on_other_paths_is_never_followed(
    tmp_path: Path, path: str
) -> None:
    """What passes through unread is looked through for it too; all else stays as it came."""
    plain = {**long_body("w", words=5, stream=False), "x": 1.5}
    named = {"kv_transfer_params": {"do_remote_decode": True}, "bootstrap_host": "10.0.0.1"}
    async with made(tmp_path) as found:
        status, _ = await found.pair.post(path, {**plain, **named})
        sent = [seen for seen in found.decode.requests if seen.path == path]
    assert (status, [seen.json for seen in sent]) == (200, [plain])


async def test_servers_without_a_connector_never_pair(tmp_path: Path) -> None:
    """A server that counts no hand-overs has no KV key, and an empty key pairs with nothing."""
    async with made(tmp_path) as found:
        found.prefill.has_connector = False
        found.prefill.started_at_s += 1
        found.prefill.prompt_tokens_total = 1.0
        await until(lambda: kv_key(found.pair) == "")
        assert await found.ask("w") == (200, found.right("w"))
        scores = [one for one in found.pair.system.records if one.prefill_replica is not None]
    assert (scores, found.prefill.prefills) == ([], 0)


def kv_key(pair: NixlPair) -> str | None:
    view = pair.system.load.replica(PREFILL)
    return None if view is None else view.kv_key


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    ("fault", "cause"),
    [
        ("refuse", HandOverCause.PREFILL_REFUSED),
        ("die", HandOverCause.PREFILL_UNREACHABLE),
        ("no_kv", HandOverCause.EXPORT_FAILED),
        ("garbage", HandOverCause.EXPORT_FAILED),
    ],
)
async def test_prefill_that_fails_is_computed_where_it_is_decoded(
    tmp_path: Path, fault: str, cause: HandOverCause, stream: bool
) -> None:
    """Every time the right text; each failure is one attempt with its cause, and nothing is left behind."""
    async with made(tmp_path) as found:
        found.prefill.prefill_fault = fault
        answers = [await found.ask(f"w{at}x", stream=stream) for at in range(TIMES)]
        await found.pair.records(TIMES)
        told, left = found.pair.told, found.pair.left_over
    assert answers == [(200, found.right(f"w{at}x")) for at in range(TIMES)]
    assert {(one.outcome, one.cause) for one in told} <= {(HandOverOutcome.FAILED, cause)}
    # A server that keeps failing is left out by the guard, so later prompts may not even be sent there.
    assert 1 <= len(told) <= TIMES
    assert len(told) == found.prefill.prefills
    assert (left, found.prefill.kept) == (NOTHING, {})


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    ("fault", "cause"),
    [
        ("refuse", HandOverCause.DECODE_REFUSED),
        ("event", HandOverCause.DECODE_REFUSED),
        ("at_once", HandOverCause.DECODE_REFUSED),
        ("full", HandOverCause.DECODE_REFUSED),
        ("die", HandOverCause.DECODE_LOST),
        ("short", HandOverCause.SHORTFALL),
    ],
)
async def test_fetch_that_fails_is_computed_where_it_is_decoded(
    tmp_path: Path, fault: str, cause: HandOverCause, stream: bool
) -> None:
    """Every time the right text; a decode server that computed the prompt again counts as failed despite its 200."""
    async with made(tmp_path) as found:
        found.decode.fetch_fault = fault
        answers = [await found.ask(f"w{at}x", stream=stream) for at in range(TIMES)]
        records = await found.pair.records(TIMES)
        told, left = found.pair.told, found.pair.left_over
        assert found.unfetched == TIMES
    assert answers == [(200, found.right(f"w{at}x")) for at in range(TIMES)]
    assert [(one.outcome, one.cause) for one in told] == [(HandOverOutcome.FAILED, cause)] * TIMES
    if cause is not HandOverCause.SHORTFALL:
        # What it then said of its own cache is no word on the KV, and no other server had a part in the answer.
        assert {one.tokens_delivered for one in told} == {None}
        assert {one.prefill_replica for one in records} == {None}
    assert left == NOTHING


async def test_prefill_that_hangs_ends_with_its_time(tmp_path: Path) -> None:
    """The request waits no longer than it was told to, and is then computed where it is decoded."""
    async with made(tmp_path, settings={"prefill_timeout_s": 0.2}) as found:
        found.prefill.prefill_fault = "hang"
        assert await found.ask("w") == (200, found.right("w"))
        await found.pair.records()
        told, left = found.pair.told, found.pair.left_over
        await until(lambda: found.prefill.aborted_at_s != [])
    assert [one.cause for one in told] == [HandOverCause.TIMED_OUT]
    assert left == NOTHING


async def test_client_that_leaves_ends_the_prefill(tmp_path: Path) -> None:
    """The prefill server is told by its closed connection; nothing is decoded, nothing is left."""
    async with made(tmp_path) as found:
        found.prefill.prefill_fault = "hang"
        for at in range(TIMES):
            asking = asyncio.create_task(found.ask(f"w{at}x"))
            await until(lambda at=at: found.prefill.prefills == at + 1)
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)
        await until(lambda: len(found.prefill.aborted_at_s) == TIMES)
        await found.pair.records(TIMES)
        told, left = found.pair.told, found.pair.left_over
    assert [(one.outcome, one.cause) for one in told] == [
        (HandOverOutcome.ABANDONED, HandOverCause.CLIENT_LEFT)
    ] * TIMES
    assert (left, found.decode.computed_tokens) == (NOTHING, 0)


async def test_nothing_is_sent_ahead_while_failed_hand_overs_would_fill_the_pool(
    tmp_path: Path,
) -> None:
    """What a diagnosis of the servers' pages switches off, it switches on again."""
    async with made(tmp_path) as found:
        hand_overs = found.pair.system.hand_overs
        hand_overs.stays_local = True
        first = await found.ask("a")
        hand_overs.stays_local = False
        second = await found.ask("b")
        await found.pair.records(2)
        replicas = [record.prefill_replica for record in found.pair.system.records]
    assert (first, second) == ((200, found.right("a")), (200, found.right("b")))
    assert replicas == [None, PREFILL]


async def test_prefill_server_that_is_gone_leaves_prompts_local(tmp_path: Path) -> None:
    """A dead pool is noticed by the fleet's checks; requests never wait for it."""
    async with made(tmp_path) as found:
        await found.prefill.stop()
        await until(lambda: not state(found.pair, PREFILL))
        answers = [await found.ask(f"w{at}x") for at in range(3)]
        await found.pair.records(3)
        told = found.pair.told
    assert answers == [(200, found.right(f"w{at}x")) for at in range(3)]
    assert told == []


async def test_decision_keeps_both_predictions_and_is_scored(tmp_path: Path) -> None:
    """Why a prompt travelled can be read afterwards, and how far the prediction was off."""
    async with made(tmp_path) as found:
        await found.ask("w", stream=True)
        await found.pair.records()
        corrections = found.pair.system.hand_overs.pool.corrections
    assert corrections.scored == 1
    assert corrections.error_mean is not None
    assert PrefillPlace.REMOTE.value == "remote"
    assert PrefillReason.AS_TOLD.value == "as_told"


async def test_prefill_server_is_awaited_until_its_kv_was_fetched_and_no_longer(
    tmp_path: Path,
) -> None:
    """With the first token the KV has come: a server that changes its role waits for no answer's end."""
    async with made(tmp_path) as found:
        found.decode.pause_s = 0.5
        asking = asyncio.create_task(found.ask("w"))
        await until(lambda: found.decode.fetched != [])
        await until(lambda: found.pair.left_over == NOTHING | {"under way": 1, "requests": 1})
        assert not asking.done()
        assert await asking == (200, found.right("w"))


@pytest.mark.parametrize("stream", [True, False])
async def test_fetch_from_a_server_that_died_is_not_waited_for_longer_than_a_transfer(
    tmp_path: Path, stream: bool
) -> None:
    """An engine may wait for ever for bytes of a dead process: the prompt is computed where it is to be decoded."""
    async with made(tmp_path, settings={"transfer_timeout_s": 0.3}) as found:
        found.decode.fetch_fault = "hang"
        asking = asyncio.create_task(found.ask("w", stream=stream))
        await until(lambda: found.decode.waiting == 1)
        await found.prefill.stop()
        answer = await asking
        await found.pair.records()
        told, left = found.pair.told, found.pair.left_over
    assert answer == (200, found.right("w"))
    assert [(one.outcome, one.cause) for one in told] == [
        (HandOverOutcome.FAILED, HandOverCause.TIMED_OUT)
    ]
    assert told[0].tokens_delivered is None, "the answer that came speaks of a prompt computed anew"
    assert (found.decode.computed_tokens, left) == (WORDS, NOTHING)


@pytest.mark.parametrize("stream", [True, False])
async def test_slow_fetch_from_a_server_that_lives_is_waited_for(
    tmp_path: Path, stream: bool
) -> None:
    """What is slow may be the decode side itself, which asking it again would only make worse.

    An answer in one piece does not tell when its KV came: a server that stops later costs nothing.
    """
    async with made(tmp_path, settings={"transfer_timeout_s": 0.1}) as found:
        found.decode.fetch_fault = "hang"
        asking = asyncio.create_task(found.ask("w", stream=stream))
        await until(lambda: found.decode.waiting == 1)
        await asyncio.sleep(0.4)
        await found.prefill.stop()
        await until(lambda: not state(found.pair, PREFILL))
        await asyncio.sleep(0.4)
        found.decode.may_fetch.set()
        answer = await asking
        await found.pair.records()
        told = found.pair.told
    assert answer == (200, found.right("w"))
    assert [one.outcome for one in told] == [HandOverOutcome.DELIVERED]


async def test_role_control_sees_what_the_servers_tell_of_their_transfers(tmp_path: Path) -> None:
    """An engine that moves KV by itself tells of it after the answer; dear transfers are seen all the same."""
    async with made(tmp_path) as found:
        keeper = found.pair.system.roles
        keeper.use_config(msgspec.structs.replace(keeper.config, mode=RolesMode.FOLLOW))
        for at in range(3):
            await found.ask(f"w{at}x")
        await found.pair.records(3)
        now_s = found.pair.system.clock.mono_s()
        seen = keeper._watch.seen(now_s, keeper._sides(), step_idle_ms=None)
        told = found.pair.told
    assert seen.transfers == 3
    assert seen.transfer_ms_p90 == pytest.approx(max(one.moving_ms or 0.0 for one in told))


async def test_fetches_under_way_are_counted_on_their_link(tmp_path: Path) -> None:
    """The next prompt is predicted to share it with them, until their first tokens have come."""
    async with made(tmp_path) as found:
        pool, bytes_ms = found.pair.system.hand_overs.pool, []
        choose = pool.choose

        def chose(*args: Any, **more: Any) -> PrefillDecision:
            decision = choose(*args, **more)
            assert decision.remote is not None
            bytes_ms.append(decision.remote.terms["transfer"])
            return decision

        pool.choose = chose  # type: ignore[method-assign]
        found.decode.fetch_fault = "hang"
        asking = []
        for at in range(3):
            asking.append(asyncio.create_task(found.ask(f"w{at}x")))
            await until(lambda at=at: found.decode.waiting == at + 1)
        shared = pool.moving(PREFILL)
        found.decode.may_fetch.set()
        await asyncio.gather(*asking)
        await found.pair.records(3)
    assert [each / bytes_ms[0] for each in bytes_ms] == pytest.approx([1.0, 2.0, 3.0], rel=0.05)
    assert (shared, pool.moving(PREFILL)) == (3, 0)
