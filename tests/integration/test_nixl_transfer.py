"""The port by which vLLM servers hand KV over: parcels are bounded, leased, and delivered once."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from fake_nixl import BYTES_PER_TOKEN, FakeNixl
from harness import CHAT, RealClock

from trimtab.core.config import GatewayConfig
from trimtab.core.decision import ReplicaView
from trimtab.core.handover import HandOverCause, HandOverError, Parcel
from trimtab.core.ports import Prefill
from trimtab.core.types import ReplicaState, Role
from trimtab.runtime.nixl import NixlTransfer
from trimtab.runtime.upstream import Upstream

WORDS = 40
FULL = 0.95


class Clock(RealClock):
    """Goes on as it is told to."""

    ahead_s = 0.0

    def mono_s(self) -> float:
        return super().mono_s() + self.ahead_s


class Rig:
    """A transfer between two fake servers."""

    def __init__(self, prefill: FakeNixl, decode: FakeNixl, transfer: NixlTransfer) -> None:
        self.prefill, self.decode, self.transfer = prefill, decode, transfer

    async def parcel(self, name: str = "w", *, kv: float | None = None) -> Parcel:
        text = " ".join(f"{name}{at}" for at in range(WORDS))
        body = {"messages": [{"role": "user", "content": text}]}
        what = Prefill(
            request_id=name,
            path=CHAT,
            body=json.dumps(body).encode(),
            headers=(),
            blocks=(),
            prompt_tokens=WORDS,
        )
        source = view(self.prefill, "p", kv)
        return await self.transfer.prefill(what, source, holds=lambda: None)


def view(server: FakeNixl, name: str, kv: float | None = None) -> ReplicaView:
    return ReplicaView(
        id=name,
        url=server.url,
        role=Role.MIXED,
        revision="vllm-1",
        state=ReplicaState.READY,
        slots=8,
        kv_used_share=kv,
    )


@asynccontextmanager
async def rig(clock: RealClock | None = None) -> AsyncIterator[Rig]:
    prefill, decode = FakeNixl(), FakeNixl()
    upstream = Upstream(GatewayConfig())
    await prefill.start()
    await decode.start()
    await upstream.start()
    try:
        yield Rig(prefill, decode, NixlTransfer(upstream, clock or RealClock(), lease_s=30.0))
    finally:
        await upstream.close()
        await prefill.stop()
        await decode.stop()


async def test_parcel_is_delivered_once() -> None:
    """Its blocks are free after the first fetch: a second would read another prompt's."""
    async with rig() as made:
        parcel = await made.parcel()
        target = view(made.decode, "d")
        delivery = await made.transfer.deliver(parcel, target, deadline_s=0.0)
        with pytest.raises(HandOverError) as error:
            await made.transfer.deliver(parcel, target, deadline_s=0.0)
    assert (parcel.tokens, delivery.tokens, delivery.target) == (WORDS, WORDS, "d")
    assert json.loads(delivery.fields["kv_transfer_params"])["remote_engine_id"] == parcel_at(made)
    assert error.value.cause is HandOverCause.EXPIRED


def parcel_at(made: Rig) -> str:
    return made.prefill.url


@pytest.mark.parametrize(("later_s", "delivered"), [(20.0, True), (28.5, False), (40.0, False)])
async def test_parcel_near_the_end_of_its_lease_is_not_delivered(
    later_s: float, delivered: bool
) -> None:
    """What the prefill server may free at any moment is not named to anybody."""
    clock = Clock()
    async with rig(clock) as made:
        parcel = await made.parcel()
        clock.ahead_s = later_s
        try:
            await made.transfer.deliver(parcel, view(made.decode, "d"), deadline_s=0.0)
            cause = None
        except HandOverError as error:
            cause = error.cause
    assert cause is (None if delivered else HandOverCause.EXPIRED)


async def test_full_server_with_unfetched_parcels_gets_no_more() -> None:
    """Parcels that nobody fetches must not fill a prefill server; with their leases room comes back."""
    clock = Clock()
    async with rig(clock) as made:
        await made.parcel("first", kv=FULL)
        assert made.transfer.unfetched("p") == 1
        with pytest.raises(HandOverError) as error:
            await made.parcel("second", kv=FULL)
        await made.parcel("third", kv=0.5)
        clock.ahead_s = 31.0
        assert made.transfer.unfetched("p") == 0
        await made.parcel("fourth", kv=FULL)
    assert error.value.cause is HandOverCause.NO_ROOM_FOR_PARCEL
    assert made.prefill.prefills == 3


async def test_what_moved_is_told_since_the_last_look() -> None:
    """Means of the fetches in between; where none was since, the last; and a server that began anew begins anew."""
    async with rig() as made:
        target = view(made.decode, "d")
        assert await made.transfer.moved(target) is None
        made.decode.fetched = [100, 300]
        both = await made.transfer.moved(target)
        again = await made.transfer.moved(target)
        made.decode.fetched.append(50)
        one = await made.transfer.moved(target)
        made.decode.fetched = [10]
        anew = await made.transfer.moved(target)
    assert both is not None
    assert one is not None
    assert anew is not None
    assert (both.transfers, both.bytes, both.descriptors) == (2, 200 * BYTES_PER_TOKEN, 30)
    assert again == both
    assert (one.transfers, one.bytes, anew.bytes) == (
        1,
        pytest.approx(50 * BYTES_PER_TOKEN),
        10 * BYTES_PER_TOKEN,
    )
    # 30 descriptors for all of it are large: posting them is the copy.
    assert (both.setup_ms, both.transfer_ms) == (0.0, pytest.approx(2.0))


async def test_server_that_does_not_answer_tells_nothing() -> None:
    """Figures are not worth an error."""
    async with rig() as made:
        await made.decode.stop()
        assert await made.transfer.moved(view(made.decode, "d")) is None


async def test_server_that_left_is_forgotten() -> None:
    """Its parcels are gone with it."""
    async with rig() as made:
        await made.parcel()
        made.transfer.forget("p")
        assert made.transfer.unfetched("p") == 0


async def test_parcel_that_was_named_and_not_fetched_counts_until_its_lease_is_over() -> None:
    """It lies on the prefill server as one that was never named does, and is still not handed out twice."""
    clock = Clock()
    async with rig(clock) as made:
        parcel = await made.parcel()
        await made.transfer.deliver(parcel, view(made.decode, "d"), deadline_s=0.0)
        named = made.transfer.unfetched("p")
        made.transfer.not_fetched(parcel)
        given_up = made.transfer.unfetched("p")
        with pytest.raises(HandOverError, match="given up before"):
            await made.transfer.deliver(parcel, view(made.decode, "d"), deadline_s=0.0)
        clock.ahead_s = 31.0
        await made.parcel("another")
        kept = (len(made.transfer._unfetched), len(made.transfer._given_up))
    assert (named, given_up, kept) == (0, 1, (1, 0))


async def test_overlapping_looks_are_told_the_same() -> None:
    """The first to read the page takes all that was counted; the second gets the mean of the same fetches."""
    async with rig() as made:
        made.decode.fetched = [100, 300]
        target = view(made.decode, "d")
        first, second = await asyncio.gather(*(made.transfer.moved(target) for _ in range(2)))
    assert first is not None
    assert (first, first.transfers) == (second, 2)
