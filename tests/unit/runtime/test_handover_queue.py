"""What waits on a prefill replica counts by what it still has to compute, not by the length of its prompt."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest
from control_kit import HandClock, SpySink
from router_kit import router

from trimtab.core.config_handover import HandOverConfig
from trimtab.core.handover import HandOverCause, HandOverError, Parcel
from trimtab.core.ports import Prefill
from trimtab.policies.local_prefill import PrefillRules
from trimtab.policies.prefill_turns import Lane
from trimtab.runtime.handovers import HandOvers
from trimtab.runtime.prefill_turn import PrefillTurn

REPLICA = SimpleNamespace(id="a")


def prompt(tokens: int, held: int) -> Prefill:
    return Prefill(
        request_id="q",
        path="/chat/completions",
        body=b"{}",
        headers=(),
        blocks=(1, 2),
        prompt_tokens=tokens,
        held_tokens=held,
    )


@pytest.mark.parametrize(("held", "counted"), [(0, 1000), (900, 100), (1000, 1)])
async def test_prompt_counts_on_its_prefill_replica_by_what_that_does_not_hold(
    held: int, counted: int
) -> None:
    """In the queue that predictions look at and in the load; the last token is computed in any case."""
    clock, made = HandClock(), router("a")
    guard = SimpleNamespace(sent=lambda *_: None, saw=lambda *_: None)
    over = HandOvers(
        made,
        cast(Any, guard),
        SpySink(clock),
        clock,
        HandOverConfig(),
        rules=PrefillRules(chunk_tokens=64),
        transfer_of=lambda _: None,
    )
    seen: list[tuple[dict[str, int], float]] = []

    async def prefill(what: Prefill, source: object, *, holds: object) -> Parcel:
        replica = made.load.replica("a")
        assert replica is not None
        seen.append((dict(over.pool._computing["a"]), replica.prefill_tokens_outstanding))
        raise HandOverError(HandOverCause.EXPORT_FAILED, "a test")

    transfer = SimpleNamespace(prefill=prefill)
    passage = SimpleNamespace(source=REPLICA, transfer=transfer, began_s=0.0)
    with pytest.raises(HandOverError):
        await over._carry(cast(Any, passage), prompt(1000, held), cast(Any, None))
    assert seen == [({"q": counted}, counted)]


@pytest.mark.parametrize(("held", "lanes"), [(0, [Lane.PASSING]), (900, [])])
async def test_prompt_that_is_nearly_computed_is_not_passed(held: int, lanes: list[Lane]) -> None:
    """It ends sooner than what would pass it."""
    turn, found = PrefillTurn(passes=True), []

    async def short() -> None:
        async with turn.taken(200) as lane:
            found.append(lane)

    async with turn.taken(1000, held=held) as first:
        waiting = asyncio.create_task(short())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert (first, found) == (Lane.MAIN, lanes)
    await waiting
    assert len(found) == 1
