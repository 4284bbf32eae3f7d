"""The law of routing over many replicas: a few sweeps over columns find the winner.

Every sweep costs about as much over 16 replicas as over 256, so what counts is how few there are. Terms that are equal
for all replicas are left out here; `routing_terms` has them for the explanation.
"""

import math
from functools import partial
from typing import Final

import msgspec
import numpy as np
import xxhash
from numpy.typing import NDArray

from trimtab.core.columns import Flags, FleetColumns, Floats, Rows
from trimtab.core.cost import CostModel
from trimtab.core.decision import FleetView, RouteReason, RouteRequest
from trimtab.policies.routing_outcome import Bounds, Outcome, reason_of
from trimtab.policies.routing_terms import (
    EQUAL_MS,
    KV_TRIVIAL_SHARE,
    REUSE_PROBABILITY,
    decode_weight,
    times_ms,
)

_sum = np.add.reduce
_any = np.logical_or.reduce
_max = np.maximum.reduce
_min = np.minimum.reduce
_INF: Final = math.inf


class Many:
    """One request and the replicas of a view, in order of id, as columns."""

    def __init__(self, view: FleetView, request: RouteRequest) -> None:
        columns = view.columns
        self.columns, self.request = columns, request
        if request.allowed is None:
            self.able, self.eligible = columns.ready, columns.ready_count
        else:
            self.able = columns.ready & columns.mask(request.allowed)
            self.eligible = int(np.count_nonzero(self.able))
        self.all_able = self.eligible == len(columns.ids)
        self.preferred = columns.mask(request.preferred) if request.preferred else columns.none

    def masked(self, scores: Floats) -> Floats:
        """Return scores with no end for those that may not serve."""
        return scores if self.all_able else np.where(self.able, scores, np.inf)

    def best(self, scores: Floats, loads: Floats) -> int | None:
        """Return the lowest score; ties go to preferred, then the least load, then a place of the session's own.

        The last is rendezvous hashing: it spreads new sessions over equal replicas, keeps each on its own, and does
        not depend on which other replicas there are. Whoever may not be chosen has a score without end.
        """
        least = float(_min(scores)) if scores.size else _INF
        if least == _INF:
            return None
        # Sums of equal terms may differ in their last digits.
        close = scores <= least + EQUAL_MS
        if np.count_nonzero(close) == 1:
            return int(close.argmax())
        return self.settled(close.nonzero()[0], loads)

    def settled(self, ties: NDArray[np.intp], loads: Floats) -> int:
        """Return the best of several with equal scores, by their places; there is at least one."""
        if self.request.preferred and self.preferred[ties].any():
            ties = ties[self.preferred[ties]]
        if ties.size > 1:
            values = loads[ties]
            ties = ties[values <= _min(values) + EQUAL_MS]
        if ties.size == 1:
            return int(ties[0])
        key = self.request.session or self.request.request_id
        places = self.columns.session_places(xxhash.xxh3_64_intdigest(key.encode()), ties)
        return int(ties[places.argmin()])

    def sum(self, values: Floats) -> float:
        """Return the sum over the replicas that may take the request."""
        return float(_sum(values if self.all_able else values[self.able]))


def least_loaded_many(many: Many, cost: CostModel) -> Outcome:
    """Choose the least load."""
    loads = load_tokens(many.columns, cost)
    winner = many.best(many.masked(loads * cost.prefill_ms_per_token), loads)
    return Outcome(winner=winner, eligible=many.eligible)


def prefix_affine_many(many: Many, bounds: Bounds) -> Outcome:
    """Choose the least predicted time within the load bound, else the least of all."""
    if not many.eligible:
        return Outcome(winner=None, eligible=0)
    held = _credible(many, bounds)
    loads, scores = _swept(many, bounds, held)
    mean = many.sum(loads) / many.eligible
    over = _over(many, bounds, loads, held, bounds.load_bound * mean)
    within = many.masked(scores)
    if over is not None:
        within = np.where(over, np.inf, within)
    winner = many.best(within, loads)
    if winner is None:
        winner = many.best(many.masked(scores), loads)
    assert winner is not None
    reason = RouteReason.LEAST_LOADED_NO_PREFIX
    if held is not None:
        winner, reason = _with_prefix(many, bounds, held, winner, (loads, within, mean, over))
    return Outcome(
        winner=winner, eligible=many.eligible, reason=reason, over=() if over is None else over
    )


def _with_prefix(
    many: Many,
    bounds: Bounds,
    held: Floats,
    winner: int,
    found: tuple[Floats, Floats, float, Flags | None],
) -> tuple[int, RouteReason]:
    """Return the winner and why, where somebody holds a part of the prompt: a hot one is to be held twice."""
    loads, within, mean, over = found
    most, mine, hot = _longest(many, held), float(held[winner]), many.request.hot_tokens
    if 0 < hot <= mine and loads[winner] > bounds.replicate_at * mean:
        other = _relief(many, within, held >= hot, winner, loads)
        if other is not None:
            return other, RouteReason.HOT_PREFIX_REPLICATED
    all_over = mine != most and over is not None and bool(over[many.able & (held == most)].all())
    return winner, reason_of(most=most, mine=mine, all_over=all_over, replicated=False)


def _relief(many: Many, within: Floats, holds: Flags, winner: int, loads: Floats) -> int | None:
    """Return who is to hold a hot prefix too, None while another one does already."""
    if np.count_nonzero(holds & many.able) != 1:
        return None
    others = within.copy()
    others[winner] = np.inf
    return many.best(others, loads)


def _credible(many: Many, bounds: Bounds) -> Floats | None:
    """Return what replicas hold of the prompt, without matches that are too short to count; None: nobody holds any."""
    holdings, prompt = many.request.holdings, many.request.prompt_tokens
    if holdings.best < max(1, bounds.min_match_tokens):
        return None
    held = holdings.over(many.columns)[0]
    if holdings.shortest < bounds.min_match_tokens:
        held = np.where(held < bounds.min_match_tokens, 0.0, held)
    return np.minimum(held, prompt) if holdings.best > prompt else held


def _longest(many: Many, held: Floats) -> float:
    """Return the longest match among those that may serve."""
    return float(_max(held if many.all_able else held[many.able]))


def _over(
    many: Many, bounds: Bounds, loads: Floats, held: Floats | None, bound: float
) -> Flags | None:
    """Return who is over the bound, None for nobody; of those that may not serve it says nothing."""
    columns, request = many.columns, many.request
    trivial = trivial_tokens(columns, many.able, request, bounds)
    # Uncached cost here less uncached cost anywhere: what is held here makes room for load.
    over: Flags
    if held is None:
        over = loads > max(trivial, bound)
    elif bound >= trivial:
        over = loads - held > bound
    else:
        over = loads > np.maximum(trivial, bound + held)
    by_kv = (
        columns.of_kv(bounds, partial(kv_over, bounds.load_bound))
        if request.allowed is None
        else kv_over(bounds.load_bound, columns.kv, many.able)
    )
    if by_kv is not None:
        over |= by_kv
    return over if _any(over) else None


def trivial_tokens(
    columns: FleetColumns, able: Flags, request: RouteRequest, bounds: Bounds
) -> float:
    """Return what the request alone is as a load; whoever has less may always take it. At least one may serve."""
    alike = columns.of_slots("alike", None, _alike)
    slots = alike.item(0) if alike.size else columns.slots.item(int(able.argmax()))
    return (
        request.prompt_tokens + decode_weight(slots, bounds.cost) * request.output_tokens_expected
    )


def kv_over(load_bound: float, shares: Floats, able: Flags) -> Flags | None:
    """Return who has too much of its KV in use, of those of which it is known; None for nobody."""
    known = shares[able & ~np.isnan(shares)]
    if not known.size or float(known.max()) <= KV_TRIVIAL_SHARE:
        return None
    most = max(KV_TRIVIAL_SHARE, load_bound * float(known.mean()))
    return (shares > most) & able


def scores_of(many: Many, bounds: Bounds) -> Floats:
    """Return the sums of the terms, but for what is equal for all replicas."""
    return _swept(many, bounds, _credible(many, bounds))[1]


def _swept(many: Many, bounds: Bounds, held: Floats | None) -> tuple[Floats, Floats]:
    """Return loads in tokens, and the sums of the terms but for what is equal for all replicas."""
    cost, columns, request = bounds.cost, many.columns, many.request
    loads, waits, batches = columns.of_work(cost, Work)
    scores = batches * (cost.step_ms_per_stream * max(0.0, request.output_tokens_expected))
    scores += waits
    if held is not None:
        scores -= held * cost.prefill_ms_per_token
        if request.holdings.best >= request.prompt_tokens:
            scores[held >= request.prompt_tokens] -= cost.prefill_base_ms
    if request.holdings.displaces:
        displaced = request.holdings.over(columns)[1]
        scores += displaced * (REUSE_PROBABILITY * cost.prefill_ms_per_token)
    if request.preferred:
        scores[many.preferred] -= bounds.preferred_bonus_ms
    return loads, scores


def _alike(slots: Floats) -> Floats:
    """Return the slots of every replica if all have as many, else nothing."""
    return slots[:1] if slots.size and (slots == slots[0]).all() else slots[:0]


class Work(msgspec.Struct, frozen=True):
    """Loads in tokens, waits in milliseconds and the batch with one more request, of replicas (`columns.of_work`)."""

    cost: CostModel

    def whole(self, columns: FleetColumns) -> Rows:
        """Return the three rows over all replicas."""
        load, wait, batch = rows = tuple(np.empty((3, len(columns.ids))))
        np.multiply(columns.decode, decode_weights(columns, self.cost), out=load)
        np.add(load, columns.prefill, out=load)
        wait_ms(columns, self.cost, out=wait)
        np.add(columns.running, 1.0, out=batch)
        np.minimum(batch, columns.slots, out=batch)
        np.maximum(batch, 1.0, out=batch)
        return rows

    def one(
        self, running: float, waiting: float, prefill: float, decode: float, slots: float
    ) -> tuple[float, ...]:
        """Return the three figures of one replica."""
        cost = self.cost
        load = prefill + decode_weight(slots, cost) * decode
        wait, _, _ = times_ms(cost, slots, running, waiting, prefill, decode, 0.0, 0.0)
        return load, wait, max(1.0, min(running + 1.0, slots))


def load_tokens(columns: FleetColumns, cost: CostModel) -> Floats:
    """Return each replica's load in tokens of prefill; the law is in the docstring of `routing`."""
    loads: Floats = columns.decode * decode_weights(columns, cost)
    loads += columns.prefill
    return loads


def wait_ms(columns: FleetColumns, cost: CostModel, out: Floats | None = None) -> Floats:
    """Return the predicted milliseconds before a new request's prefill begins, for each replica, in `out` if given."""
    queued: Floats = np.multiply(columns.prefill, cost.prefill_ms_per_token, out=out)
    full = (columns.running + columns.waiting >= columns.slots).nonzero()[0]
    if full.size:
        queued[full] += _full_ms(columns, cost, full)
    return queued


def _full_ms(columns: FleetColumns, cost: CostModel, full: NDArray[np.intp]) -> Floats:
    """Return how long a request waits for a slot on the replicas at these places, which have none free."""
    running, waiting, _, decode = columns.block[:4, full]
    in_flight = running + waiting
    freed = columns.of_slots("freed", cost, partial(_freed_ms, cost=cost))[full]
    wait: Floats = (
        (in_flight - columns.slots[full] + 1.0) * (decode / np.maximum(1.0, in_flight)) * freed
    )
    return wait


def _freed_ms(slots: Floats, *, cost: CostModel) -> Floats:
    """Return the time of a step over the slots that it serves."""
    whole = np.maximum(1.0, slots)
    freed: Floats = (cost.step_base_ms + cost.step_ms_per_stream * whole) / whole
    return freed


def decode_weights(columns: FleetColumns, cost: CostModel) -> Floats:
    """Return what one output token costs on each replica, in tokens of prefill."""
    return columns.of_slots("weight", cost, partial(_decode_weight, cost=cost))


def _decode_weight(slots: Floats, *, cost: CostModel) -> Floats:
    if cost.prefill_ms_per_token <= 0.0:
        return np.ones_like(slots)
    return _freed_ms(slots, cost=cost) / cost.prefill_ms_per_token
