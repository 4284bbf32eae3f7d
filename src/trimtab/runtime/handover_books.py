"""Writes hand-overs down once they are over, and learns from them what their links take.

An engine that moves KV by itself tells of it on its metrics page only: that is read in a task of its own, off the
request's way.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final

import msgspec

from trimtab.core.events import HandedOver
from trimtab.core.handover import HandOver, HandOverOutcome
from trimtab.core.ports import LedgerSink
from trimtab.policies.prefill_pool import PrefillPool
from trimtab.runtime.handover_passage import MeasuresLater, Passage

RECENT_MAX: Final = 4096
"""Hand-overs that diagnoses look back at."""


class HandOverBooks:
    """Takes hand-overs that have ended. `close` it in the end."""

    def __init__(self, pool: PrefillPool, sink: LedgerSink, wall_s: Callable[[], float]) -> None:
        """Take whom to teach, where to write, and the wall clock by which `since` asks."""
        self._pool = pool
        self._sink = sink
        self._wall_s = wall_s
        self._recent: deque[tuple[float, HandOver]] = deque(maxlen=RECENT_MAX)
        self._tasks: set[asyncio.Task[None]] = set()
        self._listeners: list[Callable[[HandOver], None]] = []

    def listen(self, heard: Callable[[HandOver], None]) -> None:
        """Tell somebody of every hand-over that has ended, with its bytes and times where anybody knows them."""
        self._listeners.append(heard)

    def since(self, wall_s: float) -> list[HandOver]:
        """Return the hand-overs that were written down at or after a moment of the wall clock; bounded."""
        return [one for at_s, one in self._recent if at_s >= wall_s]

    @property
    def unfinished(self) -> int:
        """Hand-overs whose bytes are still being asked for."""
        return len(self._tasks)

    def tell(self, passage: Passage, told: HandOver, cause_id: str) -> None:
        """Write a hand-over down, after asking for its bytes where the engine alone knows them."""
        transfer = passage.transfer
        if isinstance(transfer, MeasuresLater) and told.outcome is HandOverOutcome.DELIVERED:
            task = asyncio.create_task(self._tell_later(passage, transfer, told, cause_id))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
            return
        self._write(passage, told, cause_id)

    async def close(self) -> None:
        """Ask no engine any more; what was not answered is not written."""
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _tell_later(
        self, passage: Passage, transfer: MeasuresLater, told: HandOver, cause_id: str
    ) -> None:
        moved = await transfer.moved(passage.target)
        if moved is not None:
            told = msgspec.structs.replace(
                told,
                bytes=_whole(moved.bytes),
                setup_ms=moved.setup_ms,
                transfer_ms=moved.transfer_ms,
                descriptors=_whole(moved.descriptors),
            )
        self._write(passage, told, cause_id)

    def _write(self, passage: Passage, told: HandOver, cause_id: str) -> None:
        if told.outcome is HandOverOutcome.DELIVERED and told.transfer_ms is not None:
            self._pool.moved(
                passage.decision,
                told.target,
                tokens=self._moved_tokens(told),
                setup_ms=told.setup_ms or 0.0,
                # A prompt is saved alone; on the link others may have had their part of the time.
                ms=(told.export_ms or 0.0) + told.transfer_ms / (1 + passage.sharing),
                size_bytes=told.bytes,
            )
        self._recent.append((self._wall_s(), told))
        for heard in self._listeners:
            heard(told)
        self._sink.append(HandedOver(hand_over=told), cause_id=cause_id)

    def _moved_tokens(self, told: HandOver) -> float:
        """Return the tokens whose KV was on the link, as predictions count them: without what was there already."""
        sent = told.tokens_sent or 0
        return float(sent if self._pool.sends_whole else max(0, sent - (told.held_tokens or 0)))


def _whole(value: float | None) -> int | None:
    return None if value is None else round(value)
