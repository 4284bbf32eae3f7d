"""How many requests may be sent a second time: a share of what is asked, so that a failing fleet is not asked twice.

Every request earns a share of a retry for a window; a small number is free in each window, so that a quiet gateway may
retry at all. A retry spends one. Without a budget every client's request becomes two just when the replicas fail, and
the second kills what the first left. Times are seconds of a clock that never goes back.

Source of the rule: Finagle's retry budget (a share of requests over a window, and a free minimum).
"""

from collections import deque
from typing import Final

RETRY_SHARE: Final = 0.2
RETRY_FREE: Final = 10
RETRY_WINDOW_S: Final = 10.0
_SLICES: Final = 10


class RetryBudget:
    """Counts requests and retries of the last window in slices of a tenth, which leave whole."""

    def __init__(
        self,
        share: float = RETRY_SHARE,
        free: int = RETRY_FREE,
        window_s: float = RETRY_WINDOW_S,
    ) -> None:
        """Take retries per request, free retries per window, the window; raises ValueError out of range."""
        if not 0.0 <= share <= 1.0 or free < 0 or window_s <= 0.0:
            raise ValueError(
                f"a retry budget needs share in [0, 1], free >= 0, window_s > 0: {share}, {free}, {window_s}"
            )
        self._share = share
        self._free = free
        self._slice_s = window_s / _SLICES
        self._slices: deque[list[int]] = deque()
        self._requests = 0
        self._retries = 0

    def saw_request(self, now_s: float) -> None:
        """Count a request that was admitted, not the retries of it."""
        self._slice(now_s)[1] += 1
        self._requests += 1

    def left(self, now_s: float) -> int:
        """Return how many retries may be made now."""
        self._slice(now_s)
        return max(0, self._free + int(self._share * self._requests) - self._retries)

    def may_retry(self, now_s: float) -> bool:
        """Spend one retry if there is one, and say whether there was."""
        if self.left(now_s) < 1:
            return False
        self._slice(now_s)[2] += 1
        self._retries += 1
        return True

    def _slice(self, now_s: float) -> list[int]:
        """Return [number, requests, retries] of now's slice; those out of the window are let go of."""
        number = int(now_s // self._slice_s)
        slices = self._slices
        if slices and slices[-1][0] >= number:
            return slices[-1]
        while slices and slices[0][0] <= number - _SLICES:
            _, requests, retries = slices.popleft()
            self._requests -= requests
            self._retries -= retries
        slices.append([number, 0, 0])
        return slices[-1]
