"""The law of routing over few replicas: plain numbers, one replica after the other.

Up to FEW_MAX replicas this is faster than columns, and it is the same law: what it chooses, columns choose too.
"""

from collections.abc import Sequence
from typing import Final

import xxhash

from trimtab.core.cost import CostModel
from trimtab.core.decision import FleetView, RouteRequest
from trimtab.policies.routing_outcome import Bounds, Outcome, reason_of
from trimtab.policies.routing_terms import (
    EQUAL_MS,
    KV_TRIVIAL_SHARE,
    REUSE_PROBABILITY,
    Terms,
    decode_weight,
    times_ms,
)

FEW_MAX: Final = 8


class Few:
    """One request and the replicas of a view, or some of them, in order of id, as lists."""

    def __init__(
        self, view: FleetView, request: RouteRequest, among: Sequence[int] | None = None
    ) -> None:
        """Take the replicas at the places `among`, or all."""
        columns = view.columns
        self.columns, self.request = columns, request
        some = slice(None) if among is None else list(among)
        rows: list[list[float]] = columns.block[:, some].tolist()
        self.running, self.waiting, self.prefill, self.decode, self.kv = rows[:5]
        self.slots: list[float] = columns.slots[some].tolist()
        self.ready: list[bool] = columns.ready[some].tolist()
        self.ids = columns.ids if among is None else tuple(columns.ids[at] for at in among)
        allowed = request.allowed
        self.able = [
            at
            for at, ready in enumerate(self.ready)
            if ready and (allowed is None or self.ids[at] in allowed)
        ]
        preferred, holdings = request.preferred, request.holdings
        self.preferred = [id_ in preferred for id_ in self.ids] if preferred else []
        self.held: list[float] = [holdings.by(id_) for id_ in self.ids]
        self.displaced = [0.0] * len(self.ids)
        if holdings.displaces:
            self.displaced = [holdings.displaced_by(id_) for id_ in self.ids]

    def load(self, at: int, cost: CostModel) -> float:
        """Return one replica's load in tokens of prefill."""
        return self.prefill[at] + decode_weight(self.slots[at], cost) * self.decode[at]

    def loads(self, cost: CostModel) -> list[float]:
        """Return each replica's load in tokens of prefill."""
        return [self.load(at, cost) for at in range(len(self.ids))]

    def credible(self, at: int, bounds: Bounds) -> float:
        """Return what one replica holds of the prompt, nothing for a match that is too short to count."""
        held = self.held[at]
        return min(held, self.request.prompt_tokens) if held >= bounds.min_match_tokens else 0.0

    def terms(self, at: int, bounds: Bounds, held: float) -> Terms:
        """Return what one replica would cost the request, in milliseconds."""
        request, cost = self.request, bounds.cost
        wait, prefill, decode = times_ms(
            cost,
            self.slots[at],
            self.running[at],
            self.waiting[at],
            self.prefill[at],
            self.decode[at],
            request.prompt_tokens - held,
            max(0.0, request.output_tokens_expected),
        )
        return (
            wait,
            prefill,
            decode,
            REUSE_PROBABILITY * (cost.prefill_ms_per_token * self.displaced[at]),
            -bounds.preferred_bonus_ms if self.preferred and self.preferred[at] else 0.0,
        )

    def best(self, among: list[int], scores: list[float], loads: list[float]) -> int | None:
        """Return the lowest score; ties as in `routing_many`."""
        if not among:
            return None
        least = min(scores[at] for at in among)
        ties = [at for at in among if scores[at] <= least + EQUAL_MS]
        if len(ties) > 1 and self.preferred and any(self.preferred[at] for at in ties):
            ties = [at for at in ties if self.preferred[at]]
        if len(ties) > 1:
            fewest = min(loads[at] for at in ties)
            ties = [at for at in ties if loads[at] <= fewest + EQUAL_MS]
        if len(ties) == 1:
            return ties[0]
        key = self.request.session or self.request.request_id
        places = self.columns.session_places(xxhash.xxh3_64_intdigest(key.encode())).tolist()
        return min(ties, key=places.__getitem__)


def least_loaded_few(few: Few, cost: CostModel) -> Outcome:
    """Choose the least load."""
    loads = few.loads(cost)
    scores = [load * cost.prefill_ms_per_token for load in loads]
    return Outcome(winner=few.best(few.able, scores, loads), eligible=len(few.able))


def prefix_affine_few(few: Few, bounds: Bounds) -> Outcome:
    """Choose the least predicted time within the load bound, else the least of all."""
    able, request = few.able, few.request
    if not able:
        return Outcome(winner=None, eligible=0)
    loads = few.loads(bounds.cost)
    held = [few.credible(at, bounds) for at in range(len(few.ids))]
    over = _over(few, bounds, loads, held)
    scores = [sum(few.terms(at, bounds, held[at])) for at in range(len(few.ids))]
    within = [at for at in able if at not in over]
    winner = few.best(within or able, scores, loads)
    holders = [at for at in able if held[at] >= request.hot_tokens > 0]
    replicated = False
    if len(holders) == 1 and winner == holders[0] and len(within) > 1:
        mean = sum(loads[at] for at in able) / len(able)
        if loads[winner] > bounds.replicate_at * mean:
            winner = few.best([at for at in within if at != winner], scores, loads)
            replicated = True
    most = max(held[at] for at in able)
    reason = reason_of(
        most=most,
        mine=0.0 if winner is None else held[winner],
        all_over=all(at in over for at in able if held[at] == most),
        replicated=replicated,
    )
    return Outcome(winner=winner, eligible=len(able), reason=reason, over=over)


def _over(few: Few, bounds: Bounds, loads: list[float], held: list[float]) -> set[int]:
    able, request = few.able, few.request
    weight = decode_weight(few.slots[able[0]], bounds.cost)
    trivial = request.prompt_tokens + weight * request.output_tokens_expected
    bound = bounds.load_bound * sum(loads[at] for at in able) / len(able)
    # Uncached cost here less uncached cost anywhere: what is held here makes room for load.
    over = {at for at in able if loads[at] > max(trivial, bound + held[at])}
    known = [few.kv[at] for at in able if few.kv[at] == few.kv[at]]
    if known and max(known) > KV_TRIVIAL_SHARE:
        most = max(KV_TRIVIAL_SHARE, bounds.load_bound * sum(known) / len(known))
        over |= {at for at in able if few.kv[at] > most}
    return over
