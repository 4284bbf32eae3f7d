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

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import msgspec
import numpy as np
import xxhash

from trimtab.core.columns import Flags, FleetColumns, Floats
from trimtab.core.cost import CostModel
from trimtab.core.decision import (
    Candidate,
    Exclusion,
    FleetView,
    RouteReason,
    RouteRequest,
    RoutingDecision,
)

LOAD_BOUND = 1.25
MIN_MATCH_TOKENS = 32
PREFERRED_BONUS_MS = 250.0
KV_TRIVIAL_SHARE = 0.8
REUSE_PROBABILITY = 0.5
"""How likely a displaced prompt would have been asked for again; not measured."""

EQUAL_MS = 1e-6
"""Scores, and loads in tokens, no further apart than this are equal."""

CANDIDATES_MAX = 32
CANDIDATES_KEPT = 8
"""Fleets up to CANDIDATES_MAX replicas keep every candidate in a decision; of larger ones the winner is kept with the
CANDIDATES_KEPT that have the best scores and the longest prefixes, and how many were left out."""


class RoundRobin(msgspec.Struct, frozen=True, kw_only=True):
    """Each ready replica in turn, by id; among the preferred ones if any of them is ready."""

    name: str = "round_robin"

    def decide(self, view: FleetView, request: RouteRequest, rng_draw: float) -> RoutingDecision:
        """Choose by the decision's sequence number alone."""
        sweep = _Sweep(view, request)
        turns = np.flatnonzero(sweep.able & sweep.preferred) if request.preferred else None
        if turns is None or not turns.size:
            turns = np.flatnonzero(sweep.able)
        winner = int(turns[view.sequence % turns.size]) if turns.size else None
        return sweep.decision(self.name, winner, RouteReason.ROUND_ROBIN_TURN, {}, None)


class LeastLoaded(msgspec.Struct, frozen=True, kw_only=True):
    """The replica with the least predicted time to finish what it already has."""

    cost: CostModel
    name: str = "least_loaded"

    def decide(self, view: FleetView, request: RouteRequest, rng_draw: float) -> RoutingDecision:
        """Choose the least load; preferred replicas win ties."""
        sweep = _Sweep(view, request)
        loads = load_tokens(view.columns, self.cost)
        terms = {"outstanding": loads * self.cost.prefill_ms_per_token}
        scores = terms["outstanding"]
        winner = sweep.best(sweep.able, scores, loads)
        sweep.loads = loads
        return sweep.decision(self.name, winner, RouteReason.LEAST_LOADED, terms, scores)


class PrefixAffine(msgspec.Struct, frozen=True, kw_only=True):
    """The least predicted time, cached prefixes counted, among the replicas within the load bound."""

    cost: CostModel
    load_bound: float = LOAD_BOUND
    min_match_tokens: int = MIN_MATCH_TOKENS
    preferred_bonus_ms: float = PREFERRED_BONUS_MS
    name: str = "prefix_affine"

    def decide(self, view: FleetView, request: RouteRequest, rng_draw: float) -> RoutingDecision:
        """Choose within the bound; only if no replica is within it, among all that are ready."""
        sweep = _Sweep(view, request)
        sweep.loads = loads = load_tokens(view.columns, self.cost)
        if not sweep.eligible:
            return sweep.decision(self.name, None, RouteReason.NONE_READY, {}, None)
        sweep.held = held = self._held(sweep, request)
        sweep.over = over = self._over_bound(sweep, loads, held, request)
        terms = self._terms(sweep, held, request)
        # In the order of the terms, so that a decision's terms sum to its score to the last digit.
        scores = terms["wait"] + terms["prefill"] + terms["decode"]
        for name in ("displaced", "preferred"):
            if terms[name] is not sweep.zeros:
                scores = scores + terms[name]
        # Only those that may take the request can be over, so the rest are the difference.
        winner = sweep.best(sweep.able ^ over, scores, loads)
        if winner is None:
            winner = sweep.best(sweep.able, scores, loads)
        reason = self._reason(sweep, held, over, winner)
        return sweep.decision(self.name, winner, reason, terms, scores)

    def _held(self, sweep: "_Sweep", request: RouteRequest) -> Floats:
        if request.holdings.best < self.min_match_tokens:
            return sweep.zeros
        long_enough = np.where(sweep.held < self.min_match_tokens, 0.0, sweep.held)
        if request.holdings.best > request.prompt_tokens:
            long_enough = np.minimum(long_enough, request.prompt_tokens)
        return long_enough

    def _over_bound(
        self, sweep: "_Sweep", loads: Floats, held: Floats, request: RouteRequest
    ) -> Flags:
        able, columns = sweep.able, sweep.columns
        weight = float(_decode_weights(columns, self.cost)[int(able.argmax())])
        trivial = request.prompt_tokens + weight * request.output_tokens_expected
        bound = self.load_bound * sweep.sum(loads) / sweep.eligible
        # Uncached cost here less uncached cost anywhere: what is held here makes room for load.
        most = max(trivial, bound) if held is sweep.zeros else np.maximum(trivial, bound + held)
        over: Flags = loads > most
        kv = columns.kv
        kv_bound = self.load_bound * sweep.sum(kv) / sweep.eligible
        if not math.isnan(kv_bound):
            over |= kv > max(KV_TRIVIAL_SHARE, kv_bound)
        if not sweep.all_able:
            over &= able
        return over

    def _terms(self, sweep: "_Sweep", held: Floats, request: RouteRequest) -> dict[str, Floats]:
        cost, columns = self.cost, sweep.columns
        batch = np.minimum(columns.running + 1, columns.slots)
        step = cost.step_base_ms + cost.step_ms_per_stream * np.maximum(1.0, batch)
        new = request.prompt_tokens - held
        prefill = cost.prefill_base_ms + cost.prefill_ms_per_token * new
        if request.holdings.best >= request.prompt_tokens:
            prefill[new <= 0] = 0.0
        return {
            "wait": wait_ms(columns, cost),
            "prefill": prefill,
            "decode": max(0.0, request.output_tokens_expected) * step,
            "displaced": REUSE_PROBABILITY * (cost.prefill_ms_per_token * sweep.displaced)
            if request.holdings.displaces
            else sweep.zeros,
            "preferred": np.where(sweep.preferred, -self.preferred_bonus_ms, 0.0)
            if request.preferred
            else sweep.zeros,
        }

    def _reason(
        self, sweep: "_Sweep", held: Floats, over: Flags, winner: int | None
    ) -> RouteReason:
        able = sweep.able
        most = 0.0 if held is sweep.zeros else float((held if sweep.all_able else held[able]).max())
        if most == 0.0:
            return RouteReason.LEAST_LOADED_NO_PREFIX
        if winner is not None and held[winner] == most:
            return RouteReason.LONGEST_PREFIX_WITHIN_BOUND
        if over[able & (held == most)].all():
            return RouteReason.PREFIX_OVER_BOUND_NEXT_BEST
        return RouteReason.SHORTER_TIME_BEATS_PREFIX


class _Sweep:
    """One request over all replicas at once, as columns in order of id."""

    def __init__(self, view: FleetView, request: RouteRequest) -> None:
        self.view = view
        self.request = request
        self.columns = columns = view.columns
        self.held, self.displaced = request.holdings.over(columns)
        self.able = columns.ready
        if request.allowed is not None:
            self.able = columns.ready & columns.mask(request.allowed)
        self.eligible = int(np.count_nonzero(self.able))
        self.all_able = self.eligible == self.able.size
        self.zeros = columns.zeros
        self.preferred = columns.mask(request.preferred) if request.preferred else columns.none
        self.loads: Floats = columns.prefill + columns.decode
        self.over: Flags | None = None

    def best(self, among: Flags, scores: Floats, loads: Floats) -> int | None:
        """Return the lowest score; ties go to preferred, then the least load, then a place of the session's own.

        The last is rendezvous hashing: it spreads new sessions over equal replicas, keeps each on its own, and does
        not depend on which other replicas there are.
        """
        able = np.where(among, scores, np.inf)
        least = float(able.min()) if able.size else math.inf
        if math.isinf(least):
            return None
        # Sums of equal terms may differ in their last digits.
        ties = (able <= least + EQUAL_MS).nonzero()[0]
        if ties.size > 1 and self.request.preferred and self.preferred[ties].any():
            ties = ties[self.preferred[ties]]
        if ties.size > 1:
            values = loads[ties]
            ties = ties[values <= values.min() + EQUAL_MS]
        if ties.size == 1:
            return int(ties[0])
        key = self.request.session or self.request.request_id
        places = self.columns.session_places(xxhash.xxh3_64_intdigest(key.encode()), ties)
        return int(ties[np.argmin(places)])

    def sum(self, values: Floats) -> float:
        """Return the sum over the replicas that may take the request."""
        return float((values if self.all_able else values[self.able]).sum())

    def decision(
        self,
        policy: str,
        winner: int | None,
        reason: RouteReason,
        terms: Mapping[str, Floats],
        scores: Floats | None,
    ) -> RoutingDecision:
        """Return the decision with every candidate, or of a large fleet with those that matter most."""
        few = (RouteReason.NONE_READY, RouteReason.ONLY_ONE_READY)
        if self.eligible < 2:
            reason = few[self.eligible]
        kept = self._kept(winner, scores) if self.request.explained else ()
        ids = self.columns.ids
        return RoutingDecision(
            request_id=self.request.request_id,
            at_s=self.view.at_s,
            policy=policy,
            replica=None if winner is None else ids[winner],
            reason=reason,
            candidates=self._candidates(kept, terms, scores) if kept else (),
            omitted=len(ids) - len(kept),
            predicted_cached_tokens=0 if winner is None else self.request.held_by(ids[winner]),
            held_best_tokens=self.request.holdings.best,
            sequence=self.view.sequence,
        )

    def _kept(self, winner: int | None, scores: Floats | None) -> Sequence[int]:
        count = len(self.columns.ids)
        if count <= CANDIDATES_MAX:
            return range(count)
        kept = {0} if winner is None else {winner}
        half = CANDIDATES_KEPT // 2
        if scores is not None:
            able = np.where(self.able, scores, np.inf)
            kept.update(np.argpartition(able, half)[:half].tolist())
        if self.held is not self.zeros:
            holders = self.held.nonzero()[0]
            if holders.size > half:
                holders = holders[np.argpartition(-self.held[holders], half)[:half]]
            kept.update(holders.tolist())
        return sorted(kept)

    def _candidates(
        self, kept: Sequence[int], terms: Mapping[str, Floats], scores: Floats | None
    ) -> tuple[Candidate, ...]:
        """Return the candidates at these places; the numbers leave numpy column by column, not one by one."""
        places = np.array(kept, dtype=np.intp)
        rows = zip(*(values[places].tolist() for values in terms.values()), strict=True)
        each = list(rows) if terms else [()] * len(kept)
        total = [None] * len(kept) if scores is None else scores[places].tolist()
        loads, held = self.loads[places].tolist(), self.held[places].tolist()
        over = [False] * len(kept) if self.over is None else self.over[places].tolist()
        able = self.able[places].tolist()
        return tuple(
            Candidate(
                replica=self.columns.ids[at],
                load_tokens=loads[place],
                held_tokens=int(held[place]),
                excluded=Exclusion.OVER_LOAD_BOUND if over[place] else None,
                terms=dict(zip(terms, each[place], strict=True)),
                score_ms=total[place],
            )
            if able[place]
            else self._away(at)
            for place, at in enumerate(kept)
        )

    def _away(self, at: int) -> Candidate:
        replica, columns = self.columns.ids[at], self.columns
        return Candidate(
            replica=replica,
            load_tokens=float(columns.prefill[at] + columns.decode[at]),
            held_tokens=self.request.held_by(replica),
            excluded=Exclusion.OTHER_ARM if columns.ready[at] else Exclusion.NOT_READY,
        )


def load_tokens(columns: FleetColumns, cost: CostModel) -> Floats:
    """Return each replica's load in tokens of prefill; the law is in the module's docstring."""
    return columns.prefill + _decode_weights(columns, cost) * columns.decode


def wait_ms(columns: FleetColumns, cost: CostModel) -> Floats:
    """Return the predicted milliseconds before a new request's prefill begins, for each replica.

    Outstanding prefill comes first. If no slot is free, slots become free at the rate
    slots / (mean remaining output tokens * step_ms(slots)), one for each request ahead and one for this.
    """
    queued = columns.prefill * cost.prefill_ms_per_token
    in_flight = columns.running + columns.waiting
    full = in_flight >= columns.slots
    if not full.any():
        return queued
    slots = np.maximum(1.0, columns.slots)
    remaining = columns.decode / np.maximum(1.0, in_flight)
    step = cost.step_base_ms + cost.step_ms_per_stream * slots
    return queued + np.where(full, (in_flight - columns.slots + 1) * remaining * step / slots, 0.0)


def _decode_weights(columns: FleetColumns, cost: CostModel) -> Floats:
    """Return what one output token costs on each replica, in tokens of prefill."""
    return columns.of_slots(cost, partial(_decode_weight, cost=cost))


def _decode_weight(slots: Floats, cost: CostModel) -> Floats:
    if cost.prefill_ms_per_token <= 0.0:
        return np.ones_like(slots)
    whole = np.maximum(1.0, slots)
    step = cost.step_base_ms + cost.step_ms_per_stream * whole
    return step / whole / cost.prefill_ms_per_token


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
