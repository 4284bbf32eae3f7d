"""Which replica gets a request: in turn, to the least loaded, or where its prefix lies within a load bound.

Load of a replica, in tokens of prefill:
    load = prefill tokens outstanding + weight * decode tokens outstanding
    weight = (step_ms(slots) / slots) / prefill_ms_per_token
One output token costs a full replica step_ms(slots) / slots, so the weight turns it into prompt tokens.

Bound: a replica may take a request if load + its cost there <= load_bound * mean load + the cost of the
request with nothing cached, so that balanced replicas always may; or if its load is below that one
request's cost; and if its KV use, where known, is not above both 0.8 and load_bound * the mean of those known.
Means are over the replicas that are ready and allowed. Counting requests instead would miss a few long ones that
fill a replica.

Score of a replica within the bound, in predicted milliseconds, the lowest wins:
    wait      prefill outstanding * ms per token, and the time until a slot is free if none is
    prefill   of the tokens that the replica does not hold
    decode    expected output tokens * step time with this request in the batch
    displaced half the prefill of other prompts' tokens that the engine would overwrite
    preferred a bonus for replicas on which an adopted lever wants this request
A session stays where its prefix is because its prefill is shorter there. A prefix that all sessions share
counts only by the difference in tokens to be computed, against waiting and against what it displaces.

Hot prefix: if so many requests in flight begin alike that the request says so (`hot_tokens`), one replica alone holds
that beginning, would win, and its load is over replicate_at * mean, the best of the others gets the request. It
computes the beginning once, and from then on there are two.

Failure modes: held tokens that are not there (the index then distrusts the replica); expected output
tokens far off; removing a replica moves the mean, which can move another one over the bound or back.
"""

from collections.abc import Callable, Sequence

import msgspec
import numpy as np

from trimtab.core.cost import CostModel
from trimtab.core.decision import (
    Candidate,
    Exclusion,
    FleetView,
    RouteReason,
    RouteRequest,
    RoutingDecision,
    with_chosen,
)
from trimtab.policies.routing_few import FEW_MAX, Few, least_loaded_few, prefix_affine_few
from trimtab.policies.routing_home import homed
from trimtab.policies.routing_many import (
    Many,
    least_loaded_many,
    load_tokens,
    prefix_affine_many,
    scores_of,
)
from trimtab.policies.routing_outcome import Bounds, Outcome
from trimtab.policies.routing_quick import prefix_affine_quick
from trimtab.policies.routing_terms import (
    LOAD_BOUND,
    MIN_MATCH_TOKENS,
    PREFERRED_BONUS_MS,
    TERM_NAMES,
)

REPLICATE_AT = 1.0
"""Load over the mean from which on a hot prefix gets a second holder: before the bound on load sends requests off."""

CANDIDATES_MAX = 32
CANDIDATES_KEPT = 8
"""Fleets up to CANDIDATES_MAX replicas keep every candidate in a decision; of larger ones the winner is kept with the
CANDIDATES_KEPT that have the best scores and the longest prefixes, and how many were left out."""

_FEW = (RouteReason.NONE_READY, RouteReason.ONLY_ONE_READY)

Judged = tuple[dict[str, float], float | None]
"""Terms and score of one candidate."""


class RoundRobin(msgspec.Struct, frozen=True, kw_only=True):
    """Each ready replica in turn, by id; among the preferred ones if any of them is ready."""

    name: str = "round_robin"

    def decide(self, view: FleetView, request: RouteRequest, rng_draw: float) -> RoutingDecision:
        """Choose by the decision's sequence number alone."""
        many = Many(view, request)
        turns = np.flatnonzero(many.able & many.preferred) if request.preferred else None
        if turns is None or not turns.size:
            turns = np.flatnonzero(many.able)
        winner = int(turns[view.sequence % turns.size]) if turns.size else None
        outcome = Outcome(
            winner=winner, eligible=many.eligible, reason=RouteReason.ROUND_ROBIN_TURN
        )
        return _decision(self.name, view, request, outcome, None, lambda few, at: ({}, None))


class LeastLoaded(msgspec.Struct, frozen=True, kw_only=True):
    """The replica with the least predicted time to finish what it already has."""

    cost: CostModel
    name: str = "least_loaded"

    def decide(self, view: FleetView, request: RouteRequest, rng_draw: float) -> RoutingDecision:
        """Choose the least load; preferred replicas win ties."""
        outcome = _chosen_before(request)
        if outcome is None and len(view.columns.ids) <= FEW_MAX:
            outcome = least_loaded_few(Few(view, request), self.cost)
        elif outcome is None:
            outcome = least_loaded_many(Many(view, request), self.cost)

        def judged(few: Few, at: int) -> Judged:
            outstanding = few.load(at, self.cost) * self.cost.prefill_ms_per_token
            return {"outstanding": outstanding}, outstanding

        return _decision(self.name, view, request, outcome, self.cost, judged)


class PrefixAffine(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """The least predicted time, cached prefixes counted, among the replicas within the load bound."""

    cost: CostModel
    load_bound: float = LOAD_BOUND
    min_match_tokens: int = MIN_MATCH_TOKENS
    preferred_bonus_ms: float = PREFERRED_BONUS_MS
    replicate_at: float = REPLICATE_AT
    name: str = "prefix_affine"

    def decide(self, view: FleetView, request: RouteRequest, rng_draw: float) -> RoutingDecision:
        """Choose within the bound; only if no replica is within it, among all that are ready."""
        bounds = self.bounds
        outcome = _chosen_before(request)
        if outcome is None and len(view.columns.ids) <= FEW_MAX:
            outcome = prefix_affine_few(Few(view, request), bounds)
        elif outcome is None:
            outcome = prefix_affine_quick(view, request, bounds)
            if outcome is None:
                outcome = prefix_affine_many(Many(view, request), bounds)
        if request.key_mismatch and outcome.winner is not None:
            outcome = msgspec.structs.replace(outcome, reason=RouteReason.ROUTER_KEY_MISMATCH)
        return _decision(self.name, view, request, outcome, bounds, self.judged)

    def judged(self, few: Few, at: int) -> Judged:
        """Return the terms of one replica and their sum."""
        terms = few.terms(at, self.bounds, few.credible(at, self.bounds))
        return dict(zip(TERM_NAMES, terms, strict=True)), sum(terms)

    @property
    def bounds(self) -> Bounds:
        """Costs and limits, always the same object, so that what was worked out with it can be kept."""
        found = self.__dict__.get("_bounds")
        if found is None:
            found = self.__dict__["_bounds"] = Bounds(
                cost=self.cost,
                load_bound=self.load_bound,
                min_match_tokens=self.min_match_tokens,
                preferred_bonus_ms=self.preferred_bonus_ms,
                replicate_at=self.replicate_at,
            )
        assert isinstance(found, Bounds)
        return found


class PrefixHome(PrefixAffine, frozen=True, kw_only=True, dict=True):
    """The home of the request's key within a bound on engine-side load: for several gateways that share nothing."""

    name: str = "prefix_home"

    def decide(self, view: FleetView, request: RouteRequest, rng_draw: float) -> RoutingDecision:
        """Choose by the key and by what engines tell, not by what this gateway has in flight."""
        bounds = self.bounds
        outcome = _chosen_before(request) or homed(view, request, bounds)
        return _decision(self.name, view, request, outcome, bounds, self.judged)


def _chosen_before(request: RouteRequest) -> Outcome | None:
    return request.chosen if request.explained and isinstance(request.chosen, Outcome) else None


def _decision(
    policy: str,
    view: FleetView,
    request: RouteRequest,
    outcome: Outcome,
    by: Bounds | CostModel | None,
    judged: Callable[[Few, int], Judged],
) -> RoutingDecision:
    """Return the decision, if asked with every candidate, or of a large fleet with those that matter most."""
    ids, holdings = view.columns.ids, request.holdings
    replica = None if outcome.winner is None else ids[outcome.winner]
    candidates: tuple[Candidate, ...] = ()
    if request.explained:
        candidates = _candidates(view, request, outcome, by, judged)
    else:
        with_chosen(request, outcome)
    return RoutingDecision(
        request_id=request.request_id,
        at_s=view.at_s,
        policy=policy,
        replica=replica,
        reason=_FEW[outcome.eligible] if outcome.eligible < 2 else outcome.reason,
        candidates=candidates,
        omitted=len(ids) - len(candidates),
        predicted_cached_tokens=0 if replica is None else holdings.by(replica),
        held_best_tokens=holdings.best,
        sequence=view.sequence,
    )


def _candidates(
    view: FleetView,
    request: RouteRequest,
    outcome: Outcome,
    by: Bounds | CostModel | None,
    judged: Callable[[Few, int], Judged],
) -> tuple[Candidate, ...]:
    places = _kept(view, request, outcome, by)
    few = Few(view, request, places)
    able = set(few.able)
    cost = by.cost if isinstance(by, Bounds) else by
    made = []
    for at, place in enumerate(places):
        is_able = at in able
        terms, score = judged(few, at) if is_able else ({}, None)
        held = few.credible(at, by) if is_able and isinstance(by, Bounds) else few.held[at]
        load = few.prefill[at] + few.decode[at]
        if is_able and cost is not None:
            load = few.load(at, cost)
        excluded = None
        if not is_able:
            excluded = Exclusion.OTHER_ARM if few.ready[at] else Exclusion.NOT_READY
        elif outcome.is_over(place, load, held):
            excluded = Exclusion.OVER_LOAD_BOUND
        made.append(
            Candidate(
                replica=few.ids[at],
                load_tokens=load,
                held_tokens=int(held),
                excluded=excluded,
                terms=terms,
                score_ms=score,
            )
        )
    return tuple(made)


def _kept(
    view: FleetView, request: RouteRequest, outcome: Outcome, by: Bounds | CostModel | None
) -> Sequence[int]:
    columns = view.columns
    count = len(columns.ids)
    if count <= CANDIDATES_MAX:
        return range(count)
    kept = {0} if outcome.winner is None else {outcome.winner}
    half = CANDIDATES_KEPT // 2
    scores = outcome.scores
    if scores is None and by is not None:
        many = Many(view, request)
        scores = many.masked(
            scores_of(many, by) if isinstance(by, Bounds) else load_tokens(columns, by)
        )
    if scores is not None:
        kept.update(np.argpartition(scores, half)[:half].tolist())
    kept.update(_holders(view, request, half))
    return sorted(kept)


def _holders(view: FleetView, request: RouteRequest, most: int) -> list[int]:
    """Return where the replicas that hold most of the prompt stand, so many at most."""
    holdings, found = request.holdings, list[int]()
    matches = holdings.matches(view.columns, 1)
    if matches is None:
        held = holdings.over(view.columns)[0]
        holders = held.nonzero()[0]
        if holders.size > most:
            holders = holders[np.argpartition(-held[holders], most)[:most]]
        found += holders.tolist()
        return found
    for match in reversed(matches):
        if len(found) >= most:
            break
        found += match.places(most - len(found))
    return found


Policy = RoundRobin | LeastLoaded | PrefixAffine | PrefixHome

POLICIES: dict[str, Callable[[CostModel, float, int], Policy]] = {
    "round_robin": lambda cost, bound, match: RoundRobin(),
    "least_loaded": lambda cost, bound, match: LeastLoaded(cost=cost),
    "prefix_affine": lambda cost, bound, match: PrefixAffine(
        cost=cost, load_bound=bound, min_match_tokens=match
    ),
    "prefix_home": lambda cost, bound, match: PrefixHome(
        cost=cost, load_bound=bound, min_match_tokens=match
    ),
}
"""From a policy's name in the configuration to its constructor (cost, load bound, shortest match)."""


def build_policies(
    cost: CostModel, *, load_bound: float = LOAD_BOUND, min_match_tokens: int = MIN_MATCH_TOKENS
) -> dict[str, Policy]:
    """Return every policy by name, with these bounds and costs."""
    return {name: build(cost, load_bound, min_match_tokens) for name, build in POLICIES.items()}
