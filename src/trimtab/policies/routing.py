"""Which replica gets a request: in turn, to the least loaded, or where its prefix lies within a load bound.

Load of a replica, in tokens of prefill:
    load = prefill tokens outstanding + weight * decode tokens outstanding
    weight = (step_ms(slots) / slots) / prefill_ms_per_token
One output token costs a full replica step_ms(slots) / slots, so the weight turns it into prompt tokens.

Bound: a replica may take a request if load + its cost there <= load_bound * mean load + the cost of the
request with nothing cached, so that balanced replicas always may; or if its load is below that one
request's cost; and if its KV use, where known, is not above both 0.8 and load_bound * mean. The mean is
over the replicas that are ready and allowed. Counting requests instead would miss a few long ones that
fill a replica.

Score of a replica within the bound, in predicted milliseconds, the lowest wins:
    wait      prefill outstanding * ms per token, and the time until a slot is free if none is
    prefill   of the tokens that the replica does not hold
    decode    expected output tokens * step time with this request in the batch
    displaced half the prefill of other prompts' tokens that the engine would overwrite
    preferred a bonus for replicas on which an adopted lever wants this request
A session stays where its prefix is because its prefill is shorter there. A prefix that all sessions share
counts only by the difference in tokens to be computed, against waiting and against what it displaces.

Failure modes: held tokens that are not there (the index then distrusts the replica); expected output
tokens far off; removing a replica moves the mean, which can move another one over the bound or back.
"""

from collections.abc import Callable, Sequence
from operator import attrgetter

import msgspec

from trimtab.core.cost import CostModel
from trimtab.core.decision import (
    Candidate,
    Exclusion,
    FleetView,
    ReplicaView,
    RouteReason,
    RouteRequest,
    RoutingDecision,
)
from trimtab.core.traffic import hashed_place
from trimtab.core.types import ReplicaState

LOAD_BOUND = 1.25
MIN_MATCH_TOKENS = 32
PREFERRED_BONUS_MS = 250.0
KV_TRIVIAL_SHARE = 0.8
REUSE_PROBABILITY = 0.5
"""How likely a displaced prompt would have been asked for again; not measured."""


class RoundRobin(msgspec.Struct, frozen=True, kw_only=True):
    """Each ready replica in turn, by id; among the preferred ones if any of them is ready."""

    name: str = "round_robin"

    def decide(self, view: FleetView, request: RouteRequest, rng_draw: float) -> RoutingDecision:
        """Choose by the decision's sequence number alone."""
        eligible = _eligible(view, request)
        turns = [one for one in eligible if one.id in request.preferred] or eligible
        winner = turns[view.sequence % len(turns)].id if turns else None
        reason = _reason_for_few(eligible) or RouteReason.ROUND_ROBIN_TURN
        return _decision(self.name, view, request, winner, reason, ())


class LeastLoaded(msgspec.Struct, frozen=True, kw_only=True):
    """The replica with the least predicted time to finish what it already has."""

    cost: CostModel
    name: str = "least_loaded"

    def decide(self, view: FleetView, request: RouteRequest, rng_draw: float) -> RoutingDecision:
        """Choose the least load; preferred replicas win ties."""
        eligible = _eligible(view, request)
        judged = [self._judge(one) for one in eligible]
        winner = _best(judged, request)
        reason = _reason_for_few(eligible) or RouteReason.LEAST_LOADED
        return _decision(self.name, view, request, winner, reason, judged)

    def _judge(self, replica: ReplicaView) -> Candidate:
        load = load_tokens(replica, self.cost)
        outstanding_ms = load * self.cost.prefill_ms_per_token
        return Candidate(
            replica=replica.id,
            load_tokens=load,
            held_tokens=0,
            terms={"outstanding": outstanding_ms},
            score_ms=outstanding_ms,
        )


class PrefixAffine(msgspec.Struct, frozen=True, kw_only=True):
    """The least predicted time, cached prefixes counted, among the replicas within the load bound."""

    cost: CostModel
    load_bound: float = LOAD_BOUND
    min_match_tokens: int = MIN_MATCH_TOKENS
    preferred_bonus_ms: float = PREFERRED_BONUS_MS
    name: str = "prefix_affine"

    def decide(self, view: FleetView, request: RouteRequest, rng_draw: float) -> RoutingDecision:
        """Choose within the bound; only if no replica is within it, among all that are ready."""
        eligible = _eligible(view, request)
        over = self._over_bound(eligible, request)
        judged = [self._judge(one, request, one.id in over) for one in eligible]
        within = [one for one in judged if one.excluded is None]
        winner = _best(within or judged, request)
        reason = _reason_for_few(eligible) or self._reason(judged, winner)
        return _decision(self.name, view, request, winner, reason, judged)

    def _held(self, replica: str, request: RouteRequest) -> int:
        held = request.held_by(replica)
        return min(held, request.prompt_tokens) if held >= self.min_match_tokens else 0

    def _over_bound(self, eligible: Sequence[ReplicaView], request: RouteRequest) -> set[str]:
        if not eligible:
            return set()
        loads = {one.id: load_tokens(one, self.cost) for one in eligible}
        trivial = _cost_tokens(request, eligible[0].slots, self.cost)
        mean_load = sum(loads.values()) / len(loads)
        kv = [one.kv_used_share for one in eligible if one.kv_used_share is not None]
        mean_kv = sum(kv) / len(kv) if len(kv) == len(eligible) else None
        over = set()
        for one in eligible:
            # Uncached cost here less uncached cost anywhere: what is held here makes room for load.
            room = self._held(one.id, request)
            crowded = loads[one.id] > max(trivial, self.load_bound * mean_load + room)
            if crowded or _kv_over(one.kv_used_share, mean_kv, self.load_bound):
                over.add(one.id)
        return over

    def _judge(self, replica: ReplicaView, request: RouteRequest, over: bool) -> Candidate:
        cost = self.cost
        held = self._held(replica.id, request)
        batch = min(replica.running + 1, replica.slots)
        displaced = cost.prefill_ms_per_token * request.displaced_on(replica.id)
        terms = {
            "wait": wait_ms(replica, cost),
            "prefill": cost.prefill_ms(request.prompt_tokens - held),
            "decode": cost.decode_ms(request.output_tokens_expected, batch),
            "displaced": REUSE_PROBABILITY * displaced,
            "preferred": -self.preferred_bonus_ms if replica.id in request.preferred else 0.0,
        }
        return Candidate(
            replica=replica.id,
            load_tokens=load_tokens(replica, cost),
            held_tokens=held,
            excluded=Exclusion.OVER_LOAD_BOUND if over else None,
            terms=terms,
            score_ms=sum(terms.values()),
        )

    def _reason(self, judged: Sequence[Candidate], winner: str | None) -> RouteReason:
        most = max(one.held_tokens for one in judged)
        if most == 0:
            return RouteReason.LEAST_LOADED_NO_PREFIX
        longest = [one for one in judged if one.held_tokens == most]
        if any(one.replica == winner for one in longest):
            return RouteReason.LONGEST_PREFIX_WITHIN_BOUND
        if all(one.excluded is not None for one in longest):
            return RouteReason.PREFIX_OVER_BOUND_NEXT_BEST
        return RouteReason.SHORTER_TIME_BEATS_PREFIX


def load_tokens(replica: ReplicaView, cost: CostModel) -> float:
    """Return a replica's load in tokens of prefill; the law is in the module's docstring."""
    weight = _decode_weight(replica.slots, cost)
    return replica.prefill_tokens_outstanding + weight * replica.decode_tokens_outstanding


def wait_ms(replica: ReplicaView, cost: CostModel) -> float:
    """Return the predicted milliseconds before a new request's prefill begins.

    Outstanding prefill comes first. If no slot is free, slots become free at the rate
    slots / (mean remaining output tokens * step_ms(slots)), one for each request ahead and one for this.
    """
    queued = replica.prefill_tokens_outstanding * cost.prefill_ms_per_token
    in_flight = replica.in_flight
    if in_flight < replica.slots:
        return queued
    remaining = replica.decode_tokens_outstanding / max(1, in_flight)
    ahead = in_flight - replica.slots + 1
    return queued + ahead * remaining * cost.step_ms(replica.slots) / max(1, replica.slots)


def _decode_weight(slots: int, cost: CostModel) -> float:
    if cost.prefill_ms_per_token <= 0.0:
        return 1.0
    return cost.step_ms(slots) / max(1, slots) / cost.prefill_ms_per_token


def _cost_tokens(request: RouteRequest, slots: int, cost: CostModel) -> float:
    return request.prompt_tokens + _decode_weight(slots, cost) * request.output_tokens_expected


def _kv_over(share: float | None, mean: float | None, bound: float) -> bool:
    if share is None or mean is None:
        return False
    return share > KV_TRIVIAL_SHARE and share > bound * mean


def _eligible(view: FleetView, request: RouteRequest) -> list[ReplicaView]:
    found = [one for one in view.replicas if _exclusion(one, request) is None]
    return sorted(found, key=attrgetter("id"))


def _exclusion(replica: ReplicaView, request: RouteRequest) -> Exclusion | None:
    if replica.state is not ReplicaState.READY:
        return Exclusion.NOT_READY
    if request.allowed is not None and replica.id not in request.allowed:
        return Exclusion.OTHER_ARM
    return None


def _reason_for_few(eligible: Sequence[ReplicaView]) -> RouteReason | None:
    if not eligible:
        return RouteReason.NONE_READY
    return RouteReason.ONLY_ONE_READY if len(eligible) == 1 else None


def _best(judged: Sequence[Candidate], request: RouteRequest) -> str | None:
    """Return the lowest score; ties go to preferred, then the least load, then a place of the session's own.

    The last is rendezvous hashing: it spreads new sessions over equal replicas, keeps each on its own, and
    does not depend on which other replicas there are.
    """
    if not judged:
        return None
    key = request.session or request.request_id

    def rank(one: Candidate) -> tuple[float, bool, float, float, str]:
        score = one.score_ms if one.score_ms is not None else 0.0
        # Sums of equal terms may differ in their last digits.
        return (
            round(score, 6),
            one.replica not in request.preferred,
            round(one.load_tokens, 6),
            hashed_place(key, one.replica),
            one.replica,
        )

    return min(judged, key=rank).replica


def _decision(
    policy: str,
    view: FleetView,
    request: RouteRequest,
    winner: str | None,
    reason: RouteReason,
    judged: Sequence[Candidate],
) -> RoutingDecision:
    by_id = {one.replica: one for one in judged}
    return RoutingDecision(
        request_id=request.request_id,
        at_s=view.at_s,
        policy=policy,
        replica=winner,
        reason=reason,
        candidates=tuple(
            by_id.get(one.id) or _plain(one, request)
            for one in sorted(view.replicas, key=attrgetter("id"))
        ),
        predicted_cached_tokens=request.held_by(winner) if winner is not None else 0,
        held_best_tokens=max((held.tokens for held in request.held), default=0),
        sequence=view.sequence,
    )


def _plain(replica: ReplicaView, request: RouteRequest) -> Candidate:
    outstanding = replica.prefill_tokens_outstanding + replica.decode_tokens_outstanding
    return Candidate(
        replica=replica.id,
        load_tokens=float(outstanding),
        held_tokens=request.held_by(replica.id),
        excluded=_exclusion(replica, request),
    )


Policy = RoundRobin | LeastLoaded | PrefixAffine

POLICIES: dict[str, Callable[[CostModel, float, int], Policy]] = {
    "round_robin": lambda cost, bound, match: RoundRobin(),
    "least_loaded": lambda cost, bound, match: LeastLoaded(cost=cost),
    "prefix_affine": lambda cost, bound, match: PrefixAffine(
        cost=cost, load_bound=bound, min_match_tokens=match
    ),
}
"""From a policy's name in the configuration to its constructor (cost, load bound, shortest match)."""


def build_policies(
    cost: CostModel, *, load_bound: float = LOAD_BOUND, min_match_tokens: int = MIN_MATCH_TOKENS
) -> dict[str, Policy]:
    """Return every policy by name, with these bounds and costs."""
    return {name: build(cost, load_bound, min_match_tokens) for name, build in POLICIES.items()}
