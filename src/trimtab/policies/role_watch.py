"""What the role control looks at, kept over its window; the same for a live fleet and a simulated one.

Told are requests of all gateways: TTFT at the first token, TPOT and tokens per step at the end, hand-overs with what
computing the same prompt would take, and prompts longer than a chunk with the milliseconds that computing them takes,
on the decode side or sent ahead. The share of KV, preemptions of the decode side and requests under way come with each
tick; a tick at which nobody told of preemptions anew is no look at them.

A quantile is of the values of single requests: of hand-overs, each is first held against its own prompt. Failure mode:
of fewer than ten, the P90 is near the largest.
"""

from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, TypeVar

import msgspec
import numpy as np

from trimtab.core.cost import TOLD_SHARE_MIN
from trimtab.core.roles import RoleAction, RolesDecision, RolesSeen
from trimtab.core.types import Role

PERCENTILE: Final = 90.0

DEAR_PART: Final = 0.5
"""Part of the time to compute a prompt up to which moving its KV is no reason to compute it elsewhere."""

Kept = deque[tuple[float, float]]


class _Answer(NamedTuple):
    """An answer that ended. `tokens_per_step` None: not measured."""

    at_s: float
    tpot_ms: float
    tokens_per_step: float | None


class _HandOver(NamedTuple):
    """A hand-over that arrived. `dearness`: above 1 it was dear, as `policies.roles` says."""

    at_s: float
    ms: float
    dearness: float


_Timed = TypeVar("_Timed", bound=tuple[float, ...] | _Answer | _HandOver)


class RoleTargets(msgspec.Struct, frozen=True, kw_only=True):
    """What users are to get: milliseconds to the first token, and for each after it. `transfer_ms`: of a hand-over."""

    ttft_ms: float
    tpot_ms: float
    transfer_ms: float


class RoleSides(msgspec.Struct, frozen=True, kw_only=True):
    """Ready replicas by role at a tick, mixed ones under `decode`; `moving`: changing role now.

    `kv_used_share`: mean of the decode side; `preemptions`: since the last look; `looked`: whether one was had at this
    tick; `in_flight`: requests on all replicas, those that wait counted. None is unknown.
    """

    prefill: tuple[str, ...]
    decode: tuple[str, ...]
    moving: int
    kv_used_share: float | None
    preemptions: int | None
    looked: bool = True
    in_flight: int | None = None


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
        self._answers: deque[_Answer] = deque()
        self._transfers: deque[_HandOver] = deque()
        self._here: Kept = deque()
        self._ahead: Kept = deque()
        self._failed: Kept = deque()
        self._looks: Kept = deque()
        self._in_flight: Kept = deque()

    def first_token(self, now_s: float, ttft_ms: float) -> None:
        """Take in a first token."""
        self._ttft.append((now_s, ttft_ms))

    def ended(self, now_s: float, tpot_ms: float, tokens_per_step: float | None) -> None:
        """Take in the end of an answer of more than one token; None: nobody knows what a step gave it."""
        self._tpot.append((now_s, tpot_ms))
        self._answers.append(_Answer(now_s, tpot_ms, tokens_per_step))

    def failed(self, now_s: float) -> None:
        """Take in a request that did not end well: it teaches no times, and is traffic all the same."""
        self._failed.append((now_s, 0.0))

    def moved(self, now_s: float, ms: float, work_ms: float | None) -> None:
        """Take in a hand-over that arrived, from its set-up to its last byte.

        `work_ms`: to compute what was moved where it is decoded; None where no cost is known.
        """
        dearness = ms / self._targets.transfer_ms
        if work_ms:
            dearness = min(dearness, ms / (DEAR_PART * work_ms))
        self._transfers.append(_HandOver(now_s, ms, dearness))

    def long_prompt(self, now_s: float, work_ms: float, *, ahead: bool) -> None:
        """Take in a prompt longer than a chunk. `work_ms`: to compute it; `ahead`: on a prefill replica."""
        (self._ahead if ahead else self._here).append((now_s, work_ms))

    def seen(
        self,
        now_s: float,
        sides: RoleSides,
        *,
        step_idle_ms: float | None,
        samples_min: int = 1,
        since_s: float = 0.0,
        idle_unknown: str = "no cost was measured",
    ) -> RolesSeen:
        """Take in a tick and return what it sees.

        `since_s`: when watching began; work and lost are unknown for a window from then.
        `step_idle_ms`: of a step of a stream that is alone on a replica, None where `idle_unknown` says why.
        `samples_min`: answers of known tokens per step that a mean needs.
        """
        if sides.looked and sides.preemptions is not None:
            self._looks.append((now_s, float(sides.preemptions)))
        if sides.in_flight is not None:
            self._in_flight.append((now_s, float(sides.in_flight)))
        for kept in (self._ttft, self._tpot, self._failed, self._looks, self._in_flight):
            _drop(kept, now_s - self._window_s)
        _drop(self._transfers, now_s - self._window_s)
        _drop(self._answers, now_s - self._work_window_s)
        _drop(self._here, now_s - self._work_window_s)
        _drop(self._ahead, now_s - self._work_window_s)
        length_s = min(self._work_window_s, now_s - since_s)
        # Over less than a window, a prompt or two would be all of the work there is.
        is_long = length_s >= self._window_s
        lost = TOO_SHORT
        if is_long:
            lost = _lost(self._answers, step_idle_ms, idle_unknown, samples_min)
        return RolesSeen(
            at_s=now_s,
            prefill=len(sides.prefill),
            decode=len(sides.decode),
            moving=sides.moving,
            ttft_ms_p90=_p90([ms for _, ms in self._ttft]),
            ttft_target_ms=self._targets.ttft_ms,
            tpot_ms_p90=_p90([ms for _, ms in self._tpot]),
            tpot_target_ms=self._targets.tpot_ms,
            samples=min(len(self._ttft), len(self._tpot)),
            kv_used_share=sides.kv_used_share,
            preemptions=sides.preemptions,
            local_work=_work(self._here, length_s) if is_long else None,
            ahead_work=_work(self._ahead, length_s) if is_long else None,
            lost_share=lost.share,
            lost_unknown=lost.unknown,
            tokens_per_step=lost.tokens_per_step,
            transfers=len(self._transfers),
            transfer_ms_p90=_p90([one.ms for one in self._transfers]),
            dearness_p90=_p90([one.dearness for one in self._transfers]),
            window_s=self._window_s,
            work_window_s=length_s,
            answers=lost.answers,
            looks=len(self._looks),
            looks_preempted=sum(count > 0.0 for _, count in self._looks),
            requests=max(len(self._ttft), len(self._tpot)) + len(self._failed),
            in_flight=_mean(self._in_flight),
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


def _drop(kept: deque[_Timed], until_s: float) -> None:
    while kept and kept[0][0] <= until_s:
        kept.popleft()


def _p90(values: Sequence[float]) -> float | None:
    return float(np.percentile(values, PERCENTILE)) if values else None


def _mean(kept: Kept) -> float | None:
    return sum(value for _, value in kept) / len(kept) if kept else None


class _Lost(NamedTuple):
    """What answers lost, or in words why nobody can say."""

    share: float | None = None
    tokens_per_step: float | None = None
    unknown: str = ""
    answers: int | None = None


TOO_SHORT: Final = _Lost(unknown="not watched for a window yet")


def _lost(
    answers: Sequence[_Answer], idle_ms: float | None, idle_unknown: str, samples_min: int
) -> _Lost:
    """Return the part of answers' time beyond that of a stream alone; by the mean, the P90 is of the worst moments.

    Steps are compared, not tokens: drafts that are accepted give a step several, however long it waits for others.
    Of answers that do not tell their tokens per step nothing is used: one of them hides no load that the others show.
    """
    told = [(one.tpot_ms, one.tokens_per_step) for one in answers if one.tokens_per_step]
    untold = len(answers) - len(told)
    if untold and len(told) < max(samples_min, TOLD_SHARE_MIN * len(answers)):
        return _Lost(unknown=f"tokens per step of {untold} of {len(answers)} answers not measured")
    if idle_ms is None:
        return _Lost(unknown=idle_unknown)
    mean_ms = sum(ms * tokens for ms, tokens in told) / len(told) if told else 0.0
    if mean_ms <= 0.0:
        return _Lost(unknown="no answer of several tokens ended")
    tokens_per_step = sum(tokens for _, tokens in told) / len(told)
    share = max(0.0, 1.0 - idle_ms / mean_ms)
    return _Lost(share=share, tokens_per_step=tokens_per_step, answers=len(told))


def _work(kept: Kept, length_s: float) -> float:
    """Return how many replicas the prompts kept at work."""
    return sum(ms for _, ms in kept) / 1000.0 / length_s
