"""Routing policies of public routers, stated anew from their documentation, to be compared with in simulation.

They see what our own policies see: the same view, the same prefix index. Where the public router keeps a structure
of its own (a radix tree of texts, a count of active blocks) its answer is computed from that view, so a difference
in results is a difference of the rule and not of what was known.

power_of_two    Two replicas drawn at random, the one with fewer requests in flight (Mitzenmacher, 2001; SGLang
                model gateway, `power_of_two`).
session_hash    Consistent hashing of the session with a bound on load: a replica takes no more than `load_bound`
                times the mean of requests, the next one in the session's order is asked then (Mirrokni, Thorup,
                Zadimoghaddam, 2018).
cache_tree      SGLang model gateway, `cache_aware`: if the most and the least loaded differ by more than `abs`
                requests and by more than a factor of `rel`, the least loaded; else the longest match if it covers
                more than `threshold` of the prompt; else the replica that holds least. Defaults 64, 1.5 and 0.3.
overlap_cost    NVIDIA Dynamo, KV router at temperature 0: lowest of weight x blocks to prefill + blocks in use
                after it was added. Default weight 1. The blocks in use are those of requests in flight.
"""

from collections.abc import Callable
from typing import Final

import msgspec
import numpy as np
import xxhash

from trimtab.core.columns import Flags
from trimtab.core.decision import (
    Candidate,
    FleetView,
    RouteReason,
    RouteRequest,
    RoutingDecision,
    RoutingPolicy,
)


class PowerOfTwo(msgspec.Struct, frozen=True, kw_only=True):
    """The less busy of two replicas drawn at random."""

    name: str = "power_of_two"

    def decide(self, view: FleetView, request: RouteRequest, rng_draw: float) -> RoutingDecision:
        """Draw both from one number: the pair's place among all ordered pairs."""
        ready = np.flatnonzero(_ready(view, request))
        count = int(ready.size)
        if count < 2:
            return _decision(self.name, view, request, int(ready[0]) if count else None)
        first, other = divmod(int(rng_draw * count * (count - 1)), count - 1)
        second = other if other < first else other + 1
        busy = view.columns.running + view.columns.waiting
        pair = sorted((int(ready[first]), int(ready[second])))
        return _decision(self.name, view, request, min(pair, key=lambda at: float(busy[at])))


class SessionHash(msgspec.Struct, frozen=True, kw_only=True):
    """The replica that a session hashes to, unless it is over its bound of requests."""

    load_bound: float = 1.25
    name: str = "session_hash"

    def decide(self, view: FleetView, request: RouteRequest, rng_draw: float) -> RoutingDecision:
        """Rendezvous hashing: the order of all replicas for a session, the first one within the bound."""
        ready, columns = _ready(view, request), view.columns
        if not ready.any():
            return _decision(self.name, view, request, None)
        busy = columns.running + columns.waiting
        bound = max(1.0, self.load_bound * (float(busy[ready].sum()) + 1.0) / int(ready.sum()))
        within = ready & (busy + 1.0 <= bound)
        able = np.flatnonzero(within if within.any() else ready)
        key = request.session or request.request_id
        places = columns.session_places(xxhash.xxh3_64_intdigest(key.encode()))
        return _decision(self.name, view, request, int(able[np.argmin(places[able])]))


class CacheTree(msgspec.Struct, frozen=True, kw_only=True):
    """The longest match if it is long enough and requests are balanced."""

    threshold: float = 0.3
    abs_requests: int = 64
    rel: float = 1.5
    name: str = "cache_tree"

    def decide(self, view: FleetView, request: RouteRequest, rng_draw: float) -> RoutingDecision:
        """Balance counts requests, as the public rule does."""
        ready, columns = _ready(view, request), view.columns
        if not ready.any():
            return _decision(self.name, view, request, None)
        busy = columns.running + columns.waiting
        most, least = float(busy[ready].max()), float(busy[ready].min())
        idlest = int(np.argmin(np.where(ready, busy, np.inf)))
        if most - least > self.abs_requests and most > self.rel * least:
            return _decision(self.name, view, request, idlest)
        held = np.where(ready, request.holdings.over(columns)[0], -1.0)
        longest = float(held.max())
        if longest > self.threshold * max(1, request.prompt_tokens):
            best = int(np.argmin(np.where(held == longest, busy, np.inf)))
            return _decision(self.name, view, request, best)
        # The public rule asks for the smallest tree; what a replica has in flight stands for how much it was sent.
        return _decision(self.name, view, request, idlest)


class OverlapCost(msgspec.Struct, frozen=True, kw_only=True):
    """The lowest sum of work to prefill and work in hand, in tokens."""

    weight: float = 1.0
    name: str = "overlap_cost"

    def decide(self, view: FleetView, request: RouteRequest, rng_draw: float) -> RoutingDecision:
        """Tokens instead of blocks: the same order at any block size."""
        ready, columns = _ready(view, request), view.columns
        if not ready.any():
            return _decision(self.name, view, request, None)
        held = request.holdings.over(columns)[0]
        new = request.prompt_tokens - held
        cost = self.weight * (new + columns.prefill) + columns.prefill + columns.decode
        return _decision(self.name, view, request, int(np.argmin(np.where(ready, cost, np.inf))))


def _ready(view: FleetView, request: RouteRequest) -> Flags:
    if request.allowed is None:
        return view.columns.ready
    return view.columns.ready & view.columns.mask(request.allowed)


def _decision(
    policy: str, view: FleetView, request: RouteRequest, winner: int | None
) -> RoutingDecision:
    columns = view.columns
    chosen = () if winner is None else (winner,)
    return RoutingDecision(
        request_id=request.request_id,
        at_s=view.at_s,
        policy=policy,
        replica=None if winner is None else columns.ids[winner],
        reason=RouteReason.NONE_READY if winner is None else RouteReason.OTHER_POLICY,
        candidates=tuple(
            Candidate(
                replica=columns.ids[at],
                load_tokens=float(columns.prefill[at] + columns.decode[at]),
                held_tokens=request.held_by(columns.ids[at]),
            )
            for at in chosen
        ),
        omitted=len(columns.ids) - len(chosen),
        predicted_cached_tokens=0 if winner is None else request.held_by(columns.ids[winner]),
        held_best_tokens=request.holdings.best,
        sequence=view.sequence,
    )


PUBLIC: Final[dict[str, Callable[[], RoutingPolicy]]] = {
    "power_of_two": PowerOfTwo,
    "session_hash": SessionHash,
    "cache_tree": CacheTree,
    "overlap_cost": OverlapCost,
}
"""From a public policy's name to its constructor with the documented defaults."""
