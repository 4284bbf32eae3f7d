"""Comments in a stream that is silent for long, so that no hop on the way to the client takes it for dead.

Off unless configured. A comment is sent only between two events: while a replica is in the middle of one, silence stays
silence.
"""

import asyncio
from collections.abc import Callable
from typing import Final

COMMENT: Final = b": keep-alive\n\n"


class Heartbeat:
    """Calls `beat` whenever a stream was silent for `every_s`; never at 0.

    `seen_s` says when the replica last said something, by the loop's clock.
    """

    def __init__(
        self,
        every_s: float,
        *,
        seen_s: Callable[[], float],
        may_beat: Callable[[], bool],
        beat: Callable[[bytes], None],
    ) -> None:
        self._every_s = every_s
        self._seen_s = seen_s
        self._may_beat = may_beat
        self._beat = beat
        self._loop = asyncio.get_running_loop()
        self._beaten_s = self._loop.time()
        self._timer: asyncio.TimerHandle | None = None
        if every_s > 0:
            self._timer = self._loop.call_later(every_s, self._look)

    def stop(self) -> None:
        """Beat no more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self) -> None:
        now_s = self._loop.time()
        left_s = max(self._seen_s(), self._beaten_s) + self._every_s - now_s
        if left_s <= 0:
            left_s = self._every_s
            if self._may_beat():
                self._beaten_s = now_s
                self._beat(COMMENT)
        self._timer = self._loop.call_later(left_s, self._look)
