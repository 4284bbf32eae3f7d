"""Growth of counters and histograms between neighbouring scrapes of one rank.

Law: what grows is counted bucket by bucket; a histogram whose edges changed, or of which any bucket went back, did
not grow and gives None. A series that is absent at one end of a stretch says nothing of that stretch: absent is not
zero, for a page that was cut short looks the same as a series that begins at its first event.
"""

import math
from collections.abc import Sequence
from itertools import pairwise

import msgspec

from trimtab.core.served import Buckets, RankSample

_ROUNDING = 1e-9
"""Relative fall of a counter that is rounding on the page and no reset."""

VALUE_MAX = 1e24
"""No count, size or time of a server is larger; what is would only make sums overflow."""

COVERED_SHARE_MIN = 0.5
"""A series must be told at both ends of stretches that make up this share of the window."""


class Stretch(msgspec.Struct, frozen=True):
    """One rank at both ends of a stretch between two scrapes, and how long it lasted in seconds."""

    then: RankSample
    now: RankSample
    length_s: float


def can_be(value: float) -> bool:
    """Say whether a value can be that of a gauge or counter of ours: a number, and none of them goes below zero."""
    return 0.0 <= value <= VALUE_MAX


def went_back(then: float, now: float) -> bool:
    """Say whether a counter fell by more than rounding."""
    return now < then - _ROUNDING * abs(then)


def readable(buckets: Buckets) -> Buckets | None:
    """Return a histogram that can be one, None otherwise; a sum that is no number is left out.

    It can be one with ascending edges from zero on and counts that never fall on the way to the whole.
    """
    numbers = (*buckets.edges, *buckets.cumulative, buckets.total)
    if len(buckets.edges) != len(buckets.cumulative) or not all(map(can_be, numbers)):
        return None
    counts = (0.0, *buckets.cumulative, buckets.total)
    if any(went_back(low, high) for low, high in pairwise(counts)):
        return None
    if any(low >= high for low, high in pairwise(buckets.edges)):
        return None
    told = buckets.sum is None or can_be(buckets.sum)
    return buckets if told else msgspec.structs.replace(buckets, sum=None)


def fell_and_counted(then: RankSample, now: RankSample) -> tuple[int, int]:
    """Return how many counters and histograms went back, and how many had counted anything before."""
    before, after = _counted(then), _counted(now)
    both = [(before[key], after[key]) for key in before.keys() & after.keys() if before[key] > 0]
    return sum(went_back(old, new) for old, new in both), len(both)


def _counted(rank: RankSample) -> dict[str, float]:
    counted: dict[str, float] = {key.value: value for key, value in rank.counters.items()}
    counted.update((key.value, one.total) for key, one in rank.distributions.items())
    return counted


def covers(told: Sequence[Stretch], stretches: Sequence[Stretch]) -> bool:
    """Say whether the stretches that tell a series make up enough of the window."""
    length_s = math.fsum(one.length_s for one in stretches)
    covered_s = math.fsum(one.length_s for one in told)
    return bool(told) and covered_s >= COVERED_SHARE_MIN * length_s


def grown_buckets(pairs: Sequence[tuple[Buckets, Buckets]]) -> Buckets | None:
    """Return the growth of a histogram over stretches given as (then, now), None if it did not only grow.

    The sum is None where it is not told at each end or went back.
    """
    edges = pairs[-1][1].edges
    if any(then.edges != edges or now.edges != edges for then, now in pairs):
        return None
    steps = [_step(then, now) for then, now in pairs]
    if any(readable(step) is None for step in steps):
        return None
    sums = [step.sum for step in steps if step.sum is not None]
    return Buckets(
        edges=edges,
        cumulative=tuple(
            math.fsum(step.cumulative[at] for step in steps) for at in range(len(edges))
        ),
        total=math.fsum(step.total for step in steps),
        sum=math.fsum(sums) if len(sums) == len(steps) else None,
    )


def _step(then: Buckets, now: Buckets) -> Buckets:
    told = then.sum is not None and now.sum is not None
    grown = (now.sum or 0.0) - (then.sum or 0.0)
    return Buckets(
        edges=now.edges,
        cumulative=tuple(
            _risen(old, new) for old, new in zip(then.cumulative, now.cumulative, strict=True)
        ),
        total=_risen(then.total, now.total),
        sum=grown if told and can_be(grown) else None,
    )


def _risen(then: float, now: float) -> float:
    """Return the growth of a count; a fall by rounding is none, any other stays negative and is refused."""
    return now - then if went_back(then, now) else max(0.0, now - then)


def grown_positions(stretches: Sequence[Stretch]) -> tuple[float, ...]:
    """Return the growth of the accepted tokens at each draft position, none if one of them went back."""
    ranks = [rank for one in stretches for rank in (one.then, one.now)]
    width = min((len(rank.accepted_by_position) for rank in ranks), default=0)
    grown = tuple(
        math.fsum(
            one.now.accepted_by_position[at] - one.then.accepted_by_position[at]
            for one in stretches
        )
        for at in range(width)
    )
    return grown if all(can_be(value) for value in grown) else ()
