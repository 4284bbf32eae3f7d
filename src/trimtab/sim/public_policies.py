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

from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from trimtab.core.decision import (
    Candidate,
    FleetView,
    ReplicaView,
    RouteReason,
    RouteRequest,
    RoutingDecision,
    RoutingPolicy,
)
from trimtab.core.traffic import hashed_place
from trimtab.core.types import ReplicaState

POWER_CHOICES: Final = 2


class PowerOfTwo(msgspec.Struct, frozen=True, kw_only=True):
    """The less busy of two replicas drawn at random."""

    name: str = "power_of_two"

    def decide(self, view: FleetView, request: RouteRequest, rng_draw: float) -> RoutingDecision:
        """Draw both from one number: the pair's place among all ordered pairs."""
        ready = _ready(view, request)
        if len(ready) < POWER_CHOICES:
            return _decision(self.name, view, request, ready[0] if ready else None)
        pair = int(rng_draw * len(ready) * (len(ready) - 1))
        first, other = divmod(pair, len(ready) - 1)
        second = other if other < first else other + 1
        winner = min(ready[first], ready[second], key=lambda one: (one.in_flight, one.id))
        return _decision(self.name, view, request, winner)


class SessionHash(msgspec.Struct, frozen=True, kw_only=True):
    """The replica that a session hashes to, unless it is over its bound of requests."""

    load_bound: float = 1.25
    name: str = "session_hash"

    def decide(self, view: FleetView, request: RouteRequest, rng_draw: float) -> RoutingDecision:
        """Rendezvous hashing: the order of all replicas for a session, the first one within the bound."""
        ready = _ready(view, request)
        if not ready:
            return _decision(self.name, view, request, None)
        key = request.session or request.request_id
        total = sum(one.in_flight for one in ready) + 1
        bound = max(1.0, self.load_bound * total / len(ready))
        order = sorted(ready, key=lambda one: (hashed_place(key, one.id), one.id))
        winner = next((one for one in order if one.in_flight + 1 <= bound), order[0])
        return _decision(self.name, view, request, winner)


class CacheTree(msgspec.Struct, frozen=True, kw_only=True):
    """The longest match if it is long enough and requests are balanced."""

    threshold: float = 0.3
    abs_requests: int = 64
    rel: float = 1.5
    name: str = "cache_tree"

    def decide(self, view: FleetView, request: RouteRequest, rng_draw: float) -> RoutingDecision:
        """Balance counts requests, as the public rule does."""
        ready = _ready(view, request)
        if not ready:
            return _decision(self.name, view, request, None)
        loads = [one.in_flight for one in ready]
        most, least = max(loads), min(loads)
        if most - least > self.abs_requests and most > self.rel * least:
            return _decision(self.name, view, request, _least(ready))
        held = {one.replica: one.tokens for one in request.held}
        best = max(ready, key=lambda one: (held.get(one.id, 0), -one.in_flight, one.id))
        if held.get(best.id, 0) > self.threshold * max(1, request.prompt_tokens):
            return _decision(self.name, view, request, best)
        # The public rule asks for the smallest tree; what a replica has in flight stands for how much it was sent.
        return _decision(self.name, view, request, _least(ready))


class OverlapCost(msgspec.Struct, frozen=True, kw_only=True):
    """The lowest sum of work to prefill and work in hand, in tokens."""

    weight: float = 1.0
    name: str = "overlap_cost"

    def decide(self, view: FleetView, request: RouteRequest, rng_draw: float) -> RoutingDecision:
        """Tokens instead of blocks: the same order at any block size."""
        ready = _ready(view, request)
        if not ready:
            return _decision(self.name, view, request, None)
        held = {one.replica: one.tokens for one in request.held}

        def cost(one: ReplicaView) -> float:
            new = request.prompt_tokens - held.get(one.id, 0)
            in_use = one.prefill_tokens_outstanding + one.decode_tokens_outstanding
            return self.weight * (new + one.prefill_tokens_outstanding) + in_use

        return _decision(self.name, view, request, min(ready, key=lambda one: (cost(one), one.id)))


def _ready(view: FleetView, request: RouteRequest) -> list[ReplicaView]:
    return [
        one
        for one in view.replicas
        if one.state is ReplicaState.READY
        and (request.allowed is None or one.id in request.allowed)
    ]


def _least(ready: Sequence[ReplicaView]) -> ReplicaView:
    return min(ready, key=lambda one: (one.in_flight, one.id))


def _decision(
    policy: str, view: FleetView, request: RouteRequest, winner: ReplicaView | None
) -> RoutingDecision:
    chosen = () if winner is None else (winner,)
    return RoutingDecision(
        request_id=request.request_id,
        at_s=view.at_s,
        policy=policy,
        replica=None if winner is None else winner.id,
        reason=RouteReason.NONE_READY if winner is None else RouteReason.OTHER_POLICY,
        candidates=tuple(
            Candidate(
                replica=one.id,
                load_tokens=float(one.prefill_tokens_outstanding + one.decode_tokens_outstanding),
                held_tokens=request.held_by(one.id),
            )
            for one in chosen
        ),
        predicted_cached_tokens=0 if winner is None else request.held_by(winner.id),
        held_best_tokens=max((held.tokens for held in request.held), default=0),
        sequence=view.sequence,
    )


PUBLIC: Final[dict[str, Callable[[], RoutingPolicy]]] = {
    "power_of_two": PowerOfTwo,
    "session_hash": SessionHash,
    "cache_tree": CacheTree,
    "overlap_cost": OverlapCost,
}
"""From a public policy's name to its constructor with the documented defaults."""
