"""The layout with the fewest devices that meets the targets, the next ones, and why each of the others is not it.

For every layout of one replica that sizes and memory allow, the most load that a replica carries within the targets is
searched; the load over that is the number of replicas. Of the layouts that meet the targets the order is: fewest
devices; fewest rules against it; no pipeline; the smallest replica, as replicas share nothing and spend no
communication; one that a rule asks to try; the lowest expected TPOT. Without a load, all devices are used and most
output tokens per second win; within 10% of the most, the order above decides.

Failure mode: times are assumed to grow with the load. Where an estimate has a dip the search may stop before it, and
finds fewer streams than there are, never more.
"""

import math
from collections.abc import Sequence
from typing import Final

import msgspec

from trimtab.core.layout import Demand, Layout
from trimtab.planning.candidates import Candidate, Standing, judge, verdict_on
from trimtab.planning.layouts import placed_replicas, tensor_spans_nodes
from trimtab.planning.plan_ask import Ask, Goal
from trimtab.planning.plan_ports import Estimator
from trimtab.planning.rules import Fits, Force, size_remarks

STREAMS_MAX: Final = 4096.0
"""No engine is asked to run more streams in one replica."""

RATE_MAX: Final = 1e5
NEAR_SHARE: Final = 0.10
"""Differences below the usual error of an estimate decide nothing."""

_CLOSE: Final = 1.03
"""A capacity is searched to within this factor."""

LOWEST_RATE: Final = 1e-3
"""Requests per second that count as hardly any load."""


def where_it_fits(layouts: Sequence[Layout], ask: Ask, estimator: Estimator) -> Fits:
    """Return the fewest devices that hold the model without stages, with one stream of the longest context."""
    one = msgspec.structs.replace(ask.demand, concurrency=1.0, rate_per_s=None)
    held = [(layout, memory) for layout in layouts if (memory := estimator.fit(layout, one)).fits]
    whole = [pair for pair in held if pair[0].pp == 1]
    if not whole:
        uncut = any(not tensor_spans_nodes(layout, ask.cluster) for layout, _ in held)
        return Fits(devices=None, in_node=False, uncut=uncut, streams=0.0, enough=False)
    count = min(layout.devices_per_replica for layout, _ in whole)
    streams = max(fit.streams for layout, fit in whole if layout.devices_per_replica == count)
    each = (ask.demand.concurrency or 0.0) / (ask.cluster.total // count)
    return Fits(
        devices=count,
        in_node=count <= ask.cluster.devices,
        uncut=any(not tensor_spans_nodes(layout, ask.cluster) for layout, _ in held),
        streams=streams,
        enough=streams >= each,
    )


def capacity_of(layout: Layout, ask: Ask, estimator: Estimator, *, start: float) -> float:
    """Return the most load of one replica within the targets, 0 where not even `start` is.

    In streams at once, or requests per second where the demand counts those.
    """

    def carries(load: float) -> bool:
        demand = _loaded(ask.demand, load)
        return verdict_on(estimator.expected(layout, demand), demand, ask.targets).meets

    if not carries(start):
        return 0.0
    most = RATE_MAX if ask.demand.rate_per_s is not None else STREAMS_MAX
    low, high = start, start
    while high < most:
        high = min(most, high * 2.0)
        if not carries(high):
            break
        low = high
    else:
        return low
    while high > low * _CLOSE:
        middle = math.sqrt(low * high)
        if carries(middle):
            low = middle
        else:
            high = middle
    return low


def _loaded(demand: Demand, load: float) -> Demand:
    if demand.rate_per_s is not None:
        return msgspec.structs.replace(demand, rate_per_s=load)
    return msgspec.structs.replace(demand, concurrency=load)


def candidate_of(layout: Layout, ask: Ask, fits: Fits, estimator: Estimator) -> Candidate:
    """Return a layout of one replica with as many replicas as the load needs, or as there is room for."""
    room = placed_replicas(layout, ask.cluster)
    wanted = ask.sizes.replicas
    most = min(room, wanted) if wanted else room
    full = msgspec.structs.replace(layout, replicas=most)
    one = _loaded(ask.demand, 1.0 if ask.demand.rate_per_s is None else LOWEST_RATE)
    memory = estimator.fit(layout, one)
    remarks = tuple(size_remarks(layout, ask, fits))
    barred = next((each for each in remarks if each.force is Force.FORBIDS), None)
    if memory.fits and barred is not None:
        # its times would change nothing, and asking for them takes most of a plan's time
        return Candidate(
            layout=full,
            standing=Standing.FORBIDDEN,
            memory=memory,
            expected=None,
            remarks=remarks,
            verdict=None,
            because=barred.text,
        )
    if not memory.fits:
        return judge(full, ask, fits, estimator)
    if ask.goal is Goal.THROUGHPUT:
        return _filled(full, ask, fits, estimator)
    load = ask.demand.concurrency or ask.demand.rate_per_s or 1.0
    each = max(1.0, load / most) if ask.demand.concurrency else load / most
    capacity = capacity_of(layout, ask, estimator, start=each)
    if not capacity:
        return judge(full, ask, fits, estimator)
    replicas = wanted or min(most, max(1, math.ceil(load / capacity - 1e-9)))
    found = judge(msgspec.structs.replace(layout, replicas=replicas), ask, fits, estimator)
    return msgspec.structs.replace(found, capacity=capacity)


def _filled(full: Layout, ask: Ask, fits: Fits, estimator: Estimator) -> Candidate:
    """Return a layout on all devices at the most load that it carries within the targets."""
    one = msgspec.structs.replace(full, replicas=1)
    capacity = capacity_of(one, ask, estimator, start=1.0)
    streams = max(1.0, math.floor(capacity)) * full.replicas
    loaded = msgspec.structs.replace(ask, demand=_loaded(ask.demand, streams))
    return msgspec.structs.replace(judge(full, loaded, fits, estimator), capacity=capacity or None)


def ordered(candidates: Sequence[Candidate], goal: Goal) -> list[Candidate]:
    """Return the candidates that meet the targets, the best first."""
    meeting = [each for each in candidates if each.standing is Standing.MEETS]
    if goal is Goal.FEWEST:
        return sorted(meeting, key=_order)
    most = max((_tokens(each) for each in meeting), default=0.0)
    near = [each for each in meeting if _tokens(each) >= most * (1.0 - NEAR_SHARE)]
    far = [each for each in meeting if _tokens(each) < most * (1.0 - NEAR_SHARE)]
    return sorted(near, key=_order) + sorted(far, key=lambda each: (-_tokens(each), _order(each)))


def _tokens(each: Candidate) -> float:
    return each.expected.output_tokens_per_s if each.expected else 0.0


def _order(each: Candidate) -> tuple[float, ...]:
    layout = each.layout
    tpot = each.expected.tpot_ms.value if each.expected else math.inf
    return (
        layout.devices,
        each.against,
        layout.pp,
        layout.devices_per_replica,
        not each.canary,
        tpot,
        layout.tp,
        layout.attention_dp,
        layout.moe_ep,
    )


def choose(candidates: Sequence[Candidate], goal: Goal, *, others: int = 2) -> list[Candidate]:
    """Mark the chosen layout and the next ones; return all, the best first, those that cannot serve last.

    Where the chosen one is not sure to meet the targets, the first that is sure is among the next.
    """
    best = ordered(candidates, goal)
    if not best:
        return sorted(candidates, key=_distance)
    chosen, rest = best[0], best[1:]
    following = rest[:others]
    sure = next((each for each in rest if each.verdict and each.verdict.sure), None)
    uncertain = not (chosen.verdict and chosen.verdict.sure)
    if uncertain and sure is not None and sure not in following and following:
        following = [*following[:-1], sure]
    marked = [msgspec.structs.replace(chosen, standing=Standing.CHOSEN)]
    marked += [msgspec.structs.replace(each, standing=Standing.NEXT) for each in following]
    marked += [each for each in rest if each not in following]
    return marked + sorted((each for each in candidates if each not in best), key=_distance)


_RANKS: Final = (Standing.MISSES, Standing.FORBIDDEN, Standing.DOES_NOT_FIT)


def _distance(each: Candidate) -> tuple[float, ...]:
    """Order those that do not meet the targets: those that come nearest first."""
    rank = _RANKS.index(each.standing) if each.standing in _RANKS else len(_RANKS)
    # of those that do not fit, the one whose fullest rank lacks the least says what is missing
    lacking = -each.memory.kv_bytes if each.standing is Standing.DOES_NOT_FIT else 0.0
    return (rank, each.verdict.excess if each.verdict else math.inf, lacking, *_order(each))
