"""Which prompts are worth moving, through real requests: queues, streams and caches as the gateway meets them.

Costs are those of a replica that prefills 30,000 tokens in 900 ms; a hand-over of them takes 40 ms.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from fake_nixl import FakeNixl
from harness import CHAT, until
from nixl_pair import COST, DECODE, PREFILL, NixlPair

from trimtab.core.handover import PrefillDecision, PrefillPlace, PrefillReason

PREFILL_MS_PER_TOKEN = 900 / 30_000
SETTINGS = {
    "place": "predicted",
    "chunk_tokens": 2048,
    "setup_ms": 0.0,
    "ms_per_token": 40 / 30_000,
}


DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"


def long_body(first: int, words: int, output: int = 500, **fields: Any) -> dict[str, Any]:
    """Return a prompt of words that take four bytes each, as the gateway reckons a token; `first` tells it apart."""
    text = " ".join(base36(first + at) for at in range(words))
    content = [{"role": "user", "content": text}]
    return {"messages": content, "max_tokens": output, "stream": True, **fields}


def base36(number: int) -> str:
    """Return three digits."""
    high, low = divmod(number, 36)
    return DIGITS[high // 36 % 36] + DIGITS[high % 36] + DIGITS[low]


class Fleet:
    """Two fake servers, the gateway, and the decisions it made."""

    def __init__(self, prefill: FakeNixl, decode: FakeNixl, pair: NixlPair) -> None:
        self.prefill, self.decode, self.pair = prefill, decode, pair
        self._asking: list[asyncio.Task[Any]] = []

    async def decided(self, what: dict[str, Any]) -> PrefillDecision:
        """Ask, and return how it was decided where its prompt is computed."""
        pool = self.pair.system.hand_overs.pool
        made: list[PrefillDecision] = []
        choose = pool.choose

        def chose(*args: Any, **more: Any) -> PrefillDecision:
            made.append(choose(*args, **more))
            return made[-1]

        pool.choose = chose  # type: ignore[method-assign]
        try:
            self.ask(what)
            await until(lambda: made != [])
        finally:
            pool.choose = choose  # type: ignore[method-assign]
        return made[0]

    def ask(self, what: dict[str, Any]) -> None:
        """Ask and leave the answer running."""
        self._asking.append(asyncio.create_task(self.pair.post(CHAT, what)))

    async def streams(self, count: int) -> None:
        """Have so many answers run on the decode side, far from their end."""
        self.decode.pause_s = 60.0
        for at in range(count):
            self.ask(long_body(7 * at, 8))
        await until(lambda: self.running() == count)

    def running(self) -> float:
        """Return how many streams the gateway believes to run on the decode side."""
        view = self.pair.system.load.replica(DECODE)
        return -1 if view is None else view.running

    async def queue(self, prompts: int, words: int) -> None:
        """Have so many prompts wait on the prefill side."""
        pool, self.prefill.prefill_fault = self.pair.system.hand_overs.pool, "hang"
        rules = pool.rules
        pool.rules = msgspec.structs.replace(rules, always=PrefillPlace.REMOTE)
        for at in range(prompts):
            self.ask(long_body(1000 + at, words))
        await until(lambda: self.prefill.prefills >= prompts)
        pool.rules = rules

    async def leave(self) -> None:
        for task in self._asking:
            task.cancel()
        await asyncio.gather(*self._asking, return_exceptions=True)


@asynccontextmanager
async def fleet(folder: Path) -> AsyncIterator[Fleet]:
    prefill, decode = FakeNixl(), FakeNixl()
    decode.peers = [prefill]
    await prefill.start()
    await decode.start()
    cost = msgspec.structs.replace(
        COST, prefill_base_ms=0.0, prefill_ms_per_token=PREFILL_MS_PER_TOKEN
    )
    try:
        async with NixlPair(folder, prefill.url, decode.url, settings=SETTINGS) as pair:
            pair.system.use_cost(cost)
            await until(lambda: both_ready(pair))
            found = Fleet(prefill, decode, pair)
            try:
                yield found
            finally:
                await found.leave()
    finally:
        await prefill.stop()
        await decode.stop()


def both_ready(pair: NixlPair) -> bool:
    views = [pair.system.load.replica(one) for one in (PREFILL, DECODE)]
    return all(view is not None and view.kv_key and view.state == "ready" for view in views)


@pytest.mark.parametrize(("words", "output"), [(1024, 6), (512, 6), (3000, 500)])
async def test_prompt_that_is_cached_where_it_is_decoded_stays(
    tmp_path: Path, words: int, output: int
) -> None:
    """Asked twice: the second time the decode side holds it, however long it is."""
    what = long_body(0, words, output)
    async with fleet(tmp_path) as found:
        status, _ = await found.pair.post(CHAT, what)
        await found.pair.records()
        await found.streams(3)
        decision = await found.decided(what)
    short = PrefillReason.SHORT_PROMPT
    assert status == 200
    assert decision.place is PrefillPlace.LOCAL
    assert decision.reason is (short if words <= SETTINGS["chunk_tokens"] else PrefillReason.CACHED)  # type: ignore[operator]


@pytest.mark.parametrize(
    ("words", "streams", "place"),
    [
        (30_000, 30, PrefillPlace.REMOTE),
        (12_000, 20, PrefillPlace.REMOTE),
        (4_000, 40, PrefillPlace.REMOTE),
        (30_000, 0, PrefillPlace.LOCAL),
        (1_500, 30, PrefillPlace.LOCAL),
    ],
)
async def test_long_uncached_prompt_travels_where_it_would_stall_streams(
    tmp_path: Path, words: int, streams: int, place: PrefillPlace
) -> None:
    """900 ms of prefill before 30 streams against 40 ms of transfer; without streams, or in a chunk, it stays."""
    async with fleet(tmp_path) as found:
        await found.streams(streams)
        decision = await found.decided(long_body(500, words))
    assert decision.place is place
    if place is PrefillPlace.REMOTE:
        assert decision.reason is PrefillReason.REMOTE_FASTER
        assert decision.local is not None
        assert decision.remote is not None
        assert decision.remote.ms < decision.local.ms


@pytest.mark.parametrize(("prompts", "words"), [(14, 30_000), (20, 20_000), (8, 50_000)])
async def test_prompt_does_not_travel_to_a_long_queue(
    tmp_path: Path, prompts: int, words: int
) -> None:
    """12 s of prompts wait on the prefill side: the same prompt that would travel else stays."""
    async with fleet(tmp_path) as found:
        await found.streams(10)
        await found.queue(prompts, words)
        decision = await found.decided(long_body(500, 30_000))
    assert (decision.place, decision.reason) == (PrefillPlace.LOCAL, PrefillReason.LOCAL_FASTER)
    assert decision.remote is not None
    assert decision.remote.terms["queue"] >= 12_000
