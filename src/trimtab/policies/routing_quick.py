"""The law of routing over many replicas where the prefix index answers in groups: the usual case, with fewer sweeps.

What is left out is what cannot change the winner. Who is over the bound on load is asked of the replica with the best
score, of the next one if it is, and of nobody else. What is held is taken off the scores of those that hold something;
most of the others are never looked at one by one. Where more is to be weighed (slots whose prompts are overwritten,
preferred replicas, KV nearly full, a hot prefix, many equals, many over the bound), there is no answer here and
`routing_many` gives it, from the same numbers by the same operations, so that both choose alike to the last digit.
"""

import math
from functools import partial
from typing import Final

import numpy as np
import xxhash

from trimtab.core.columns import FleetColumns, Floats
from trimtab.core.decision import FleetView, RouteReason, RouteRequest
from trimtab.core.holdings import Match
from trimtab.policies.routing_many import Work, kv_over, trivial_tokens
from trimtab.policies.routing_outcome import Bounds, Limit, Outcome, reason_of
from trimtab.policies.routing_terms import EQUAL_MS

OVER_MAX: Final = 4
"""So many replicas over the bound are passed over one by one; where there are more, all are judged in one sweep."""

EQUALS_MAX: Final = 24
"""So many replicas with equal scores are told apart in plain numbers; more of them by columns."""

_sum = np.add.reduce


def prefix_affine_quick(view: FleetView, request: RouteRequest, bounds: Bounds) -> Outcome | None:
    """Choose as `prefix_affine_many` does; None: more is to be weighed."""
    columns, holdings = view.columns, request.holdings
    if request.allowed is not None or request.preferred or holdings.displaces:
        return None
    if holdings.best >= request.prompt_tokens or not columns.ready_count:
        return None
    if columns.of_kv(bounds, partial(kv_over, bounds.load_bound)) is not None:
        return None
    matches = holdings.matches(columns, bounds.min_match_tokens)
    if matches is None:
        return None
    cost, able = bounds.cost, columns.ready
    loads, waits, batches = columns.of_work(cost, Work)
    scores: Floats = batches * (cost.step_ms_per_stream * max(0.0, request.output_tokens_expected))
    scores += waits
    for match in matches:
        gain = match.tokens * cost.prefill_ms_per_token
        if match.flags is None:
            scores[match.first] -= gain
        else:
            np.subtract(scores, gain, out=scores, where=match.flags)
    if columns.ready_count == len(columns.ids):
        mean = float(_sum(loads)) / columns.ready_count
    else:
        scores[~able] = math.inf
        mean = float(_sum(loads[able])) / columns.ready_count
    trivial = trivial_tokens(columns, able, request, bounds)
    limit = Limit(trivial, bounds.load_bound * mean)
    winner = _winner(columns, request, bounds, limit, (loads, scores))
    if winner is None:
        return None
    mine = _held(columns, request, bounds, winner)
    if 0 < request.hot_tokens <= mine and loads[winner] > bounds.replicate_at * mean:
        return None
    reason = _reason(columns, limit, matches, loads, mine)
    return Outcome(
        winner=winner, eligible=columns.ready_count, reason=reason, limit=limit, scores=scores
    )


def _winner(
    columns: FleetColumns,
    request: RouteRequest,
    bounds: Bounds,
    limit: Limit,
    figures: tuple[Floats, Floats],
) -> int | None:
    """Return the best replica within the bound, None where that is not found by looking at a few."""
    loads, scores = figures
    passed: list[tuple[int, float]] = []
    found: int | None = None
    for _ in range(OVER_MAX):
        at = int(scores.argmin())
        least = scores.item(at)
        if least == math.inf:
            break
        held = _held(columns, request, bounds, at)
        if not limit.exceeded(loads.item(at), held):
            found = _equals(columns, request, limit, (at, least), figures)
            break
        passed.append((at, least))
        scores[at] = math.inf
    for at, score in passed:
        scores[at] = score
    return found


def _equals(
    columns: FleetColumns,
    request: RouteRequest,
    limit: Limit,
    best: tuple[int, float],
    figures: tuple[Floats, Floats],
) -> int | None:
    """Return the best of all whose scores equal the least, by the law of `Many.best`.

    None: one of them may be over the bound, or there are too many to look at one by one.
    """
    loads, scores = figures
    at, least = best
    ties: list[int] = (scores <= least + EQUAL_MS).nonzero()[0].tolist()
    if len(ties) == 1:
        return at
    if len(ties) > EQUALS_MAX:
        return None
    values = [loads.item(one) for one in ties]
    # Whoever has no more load than this request alone would be is within the bound.
    if max(values) > limit.trivial:
        return None
    fewest = min(values) + EQUAL_MS
    ties = [one for one, load in zip(ties, values, strict=True) if load <= fewest]
    if len(ties) == 1:
        return ties[0]
    key = request.session or request.request_id
    return columns.session_first(xxhash.xxh3_64_intdigest(key.encode()), ties)


def _reason(
    columns: FleetColumns, limit: Limit, matches: list[Match], loads: Floats, mine: float
) -> RouteReason:
    """Return why, by who holds the longest match of those that may serve."""
    if not matches:
        return RouteReason.LEAST_LOADED_NO_PREFIX
    if mine == matches[-1].tokens:
        return RouteReason.LONGEST_PREFIX_WITHIN_BOUND
    most, all_over = 0, True
    for match in reversed(matches):
        if match.tokens < most:
            break
        able = [at for at in match.places() if columns.ready[at]]
        if able:
            most = match.tokens
            all_over = all_over and all(limit.exceeded(loads.item(at), most) for at in able)
    return reason_of(most=most, mine=mine, all_over=all_over, replicated=False)


def _held(columns: FleetColumns, request: RouteRequest, bounds: Bounds, at: int) -> int:
    """Return what the replica at a place holds, nothing for a match that is too short to count."""
    held = request.holdings.by(columns.ids[at])
    return held if held >= bounds.min_match_tokens else 0
