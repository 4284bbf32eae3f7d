"""Waits for a prompt's turn on its prefill replica, as `policies.prefill_turns` gives it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from trimtab.policies.prefill_turns import Lane, Turns, Waiting, ended, next_turn


class PrefillTurn:
    """The turns of one prefill replica. `passes`: whether its engine can compute a short prompt beside a long one."""

    def __init__(self, *, passes: bool) -> None:
        self._passes = passes
        self._turns = Turns()
        self._waiting: dict[int, tuple[Waiting, asyncio.Future[Lane]]] = {}
        self._number = 0

    @asynccontextmanager
    async def taken(self, tokens: int, *, held: int = 0) -> AsyncIterator[Lane]:
        """Wait for the turn of a prompt, and yield the lane that is its own until it ends.

        `tokens`: its length; `held`: those of them that are computed already.
        """
        self._number += 1
        number, turn = self._number, asyncio.get_running_loop().create_future()
        self._waiting[number] = (Waiting(number, tokens, held), turn)
        self._give()
        try:
            lane = await turn
        except asyncio.CancelledError:
            if self._waiting.pop(number, None) is None and not turn.cancelled():
                self._end(turn.result())
            raise
        try:
            yield lane
        finally:
            self._end(lane)

    def _end(self, lane: Lane) -> None:
        self._turns = ended(self._turns, lane)
        self._give()

    def _give(self) -> None:
        """Give turns to all who may have one now."""
        while True:
            queue = [waiting for waiting, turn in self._waiting.values() if not turn.done()]
            found = next_turn(self._turns, queue, passes=self._passes)
            if found is None:
                return
            self._turns, number, lane = found
            _, turn = self._waiting.pop(number)
            turn.set_result(lane)
