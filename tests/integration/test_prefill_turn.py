"""Waiting for a turn on a prefill replica: nobody is forgotten, whoever leaves."""

import asyncio

from trimtab.policies.prefill_turns import Lane
from trimtab.runtime.prefill_turn import PrefillTurn


class Prompt:
    """A prompt that takes its turn and ends when told."""

    def __init__(self, turn: PrefillTurn, tokens: int) -> None:
        self.lane: Lane | None = None
        self.may_end = asyncio.Event()
        self.task = asyncio.create_task(self._run(turn, tokens))

    async def _run(self, turn: PrefillTurn, tokens: int) -> None:
        async with turn.taken(tokens) as lane:
            self.lane = lane
            await self.may_end.wait()

    async def end(self) -> None:
        """Let it end, and whoever waited begin."""
        self.may_end.set()
        await self.task
        await asyncio.sleep(0)


async def begun(turn: PrefillTurn, *tokens: int) -> list[Prompt]:
    """Prompts that came in this order."""
    prompts = [Prompt(turn, each) for each in tokens]
    for _ in range(4):
        await asyncio.sleep(0)
    return prompts


async def test_short_prompt_is_computed_beside_a_long_one_and_the_next_long_one_after_it() -> None:
    """Lanes are given in the order in which prompts came."""
    long, other, short = await begun(PrefillTurn(passes=True), 1000, 900, 100)
    assert [one.lane for one in (long, other, short)] == [Lane.MAIN, None, Lane.PASSING]
    await long.end()
    assert other.lane is Lane.MAIN
    await short.end()
    await other.end()


async def test_replica_that_cannot_compute_two_takes_one_after_the_other() -> None:
    """A short one waits too."""
    long, short = await begun(PrefillTurn(passes=False), 1000, 100)
    assert (long.lane, short.lane) == (Lane.MAIN, None)
    await long.end()
    assert short.lane is Lane.MAIN
    await short.end()


async def test_prompt_that_is_given_up_frees_its_turn_or_its_place() -> None:
    """While it is computed and while it waits."""
    long, gone, other = await begun(PrefillTurn(passes=True), 1000, 900, 800)
    gone.task.cancel()
    long.task.cancel()
    await asyncio.gather(gone.task, long.task, return_exceptions=True)
    await asyncio.sleep(0)
    assert (gone.lane, other.lane) == (None, Lane.MAIN)
    await other.end()


async def test_prompt_cancelled_in_the_moment_of_its_turn_passes_the_turn_on() -> None:
    """The turn was given and not begun yet."""
    turn = PrefillTurn(passes=True)
    first, second, third = await begun(turn, 1000, 900, 800)
    first.may_end.set()
    await first.task
    second.task.cancel()
    await asyncio.gather(second.task, return_exceptions=True)
    for _ in range(3):
        await asyncio.sleep(0)
    assert third.lane is Lane.MAIN
    await third.end()
