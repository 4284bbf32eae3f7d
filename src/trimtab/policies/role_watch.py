"""What the role control looks at, kept over its window; the same for a live fleet and a simulated one.

Told are requests of all gateways: TTFT at the first token, TPOT at the end, hand-overs, and prompts longer than a chunk
with the milliseconds that computing them takes, on the decode side or sent ahead. The share of KV and preemptions of
the decode side come with each tick.
"""

import math
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

import msgspec
import numpy as np

from trimtab.core.roles import RoleAction, RolesDecision, RolesSeen
from trimtab.core.types import Role

PERCENTILE: Final = 90.0

Kept = deque[tuple[float, float]]


class RoleTargets(msgspec.Struct, frozen=True, kw_only=True):
    """What users are to get: milliseconds to the first token, and for each after it."""

    ttft_ms: float
    tpot_ms: float


class RoleSides(msgspec.Struct, frozen=True, kw_only=True):
    """Ready replicas by role at a tick, mixed ones under `decode`; `moving`: changing role now.

    `kv_used_share`: mean of the decode side; `preemptions`: since the last tick; None is unknown.
    """

    prefill: tuple[str, ...]
    decode: tuple[str, ...]
    moving: int
    kv_used_share: float | None
    preemptions: int | None


class RoleWatch:
    """Collects what one tick sees. Times are seconds of one clock."""

    def __init__(self, targets: RoleTargets, window_s: float, lasts_s: float) -> None:
        """Take the window of percentiles; `lasts_s`: how long a move lasts at least, the window of work if longer.

        A few long prompts are much of a short window's work, and no reason for what cannot be undone for longer.
        """
        self._targets = targets
        self._window_s = window_s
        self._work_window_s = max(window_s, lasts_s)
        self._ttft: Kept = deque()
        self._tpot: Kept = deque()
        self._answers: Kept = deque()
        self._transfers: Kept = deque()
        self._here: Kept = deque()
        self._ahead: Kept = deque()

    def first_token(self, now_s: float, ttft_ms: float) -> None:
        """Take in a first token."""
        self._ttft.append((now_s, ttft_ms))

    def ended(self, now_s: float, tpot_ms: float) -> None:
        """Take in the end of an answer of more than one token."""
        self._tpot.append((now_s, tpot_ms))
        self._answers.append((now_s, tpot_ms))

    def moved(self, now_s: float, ms: float) -> None:
        """Take in a hand-over that arrived, from its set-up to its last byte."""
        self._transfers.append((now_s, ms))

    def long_prompt(self, now_s: float, work_ms: float, *, ahead: bool) -> None:
        """Take in a prompt longer than a chunk. `work_ms`: to compute it; `ahead`: on a prefill replica."""
        (self._ahead if ahead else self._here).append((now_s, work_ms))

    def seen(
        self, now_s: float, sides: RoleSides, *, tpot_idle_ms: float | None, since_s: float = 0.0
    ) -> RolesSeen:
        """Return what a tick sees. `since_s`: when watching began; work and lost are unknown for a window from then.

        `tpot_idle_ms`: time per token of a stream that is alone on a replica, None where no cost is known.
        """
        for kept in (self._ttft, self._tpot, self._transfers):
            _drop(kept, now_s - self._window_s)
        for kept in (self._answers, self._here, self._ahead):
            _drop(kept, now_s - self._work_window_s)
        length_s = min(self._work_window_s, now_s - since_s)
        # Over less than a window, a prompt or two would be all of the work there is.
        is_long = length_s >= self._window_s
        return RolesSeen(
            at_s=now_s,
            prefill=len(sides.prefill),
            decode=len(sides.decode),
            moving=sides.moving,
            ttft_ms_p90=_p90(self._ttft),
            ttft_target_ms=self._targets.ttft_ms,
            tpot_ms_p90=_p90(self._tpot),
            tpot_target_ms=self._targets.tpot_ms,
            samples=min(len(self._ttft), len(self._tpot)),
            kv_used_share=sides.kv_used_share,
            preemptions=sides.preemptions,
            local_work=_work(self._here, length_s) if is_long else None,
            ahead_work=_work(self._ahead, length_s) if is_long else None,
            lost_share=_lost(self._answers, tpot_idle_ms) if is_long else None,
            transfer_ms_p90=_p90(self._transfers),
            # Of the same time as the transfers, which it is compared with; work is kept for longer.
            ahead_ms_p90=_p90(self._ahead, after_s=now_s - self._window_s),
        )


def chosen(
    made: RolesDecision, sides: RoleSides, in_flight: Callable[[str], int]
) -> tuple[str, Role]:
    """Return the replica that a decision changes, and into what: the one with least to finish, of equal ones the last.

    So the first replicas keep their roles. The decision must not be to hold.
    """
    to_prefill = made.action in {RoleAction.MORE_PREFILL, RoleAction.SPLIT}
    among: Sequence[str] = sides.decode if to_prefill else sides.prefill
    least = min(reversed(among), key=in_flight)
    return least, Role.PREFILL if to_prefill else Role.DECODE


def _drop(kept: Kept, until_s: float) -> None:
    while kept and kept[0][0] <= until_s:
        kept.popleft()


def _p90(kept: Kept, after_s: float = -math.inf) -> float | None:
    values = [value for at_s, value in kept if at_s > after_s]
    return float(np.percentile(values, PERCENTILE)) if values else None


def _lost(tpot: Kept, idle_ms: float | None) -> float | None:
    """Return the part of answers' time beyond that of a stream alone; by the mean, the P90 is of the worst moments."""
    if idle_ms is None or not tpot:
        return None
    mean_ms = sum(ms for _, ms in tpot) / len(tpot)
    return max(0.0, 1.0 - idle_ms / mean_ms) if mean_ms > 0.0 else None


def _work(kept: Kept, length_s: float) -> float:
    """Return how many replicas the prompts kept at work."""
    return sum(ms for _, ms in kept) / 1000.0 / length_s
