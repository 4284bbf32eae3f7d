"""What a gateway knows of its prefill replicas and their links, and what it asks `policies.local_prefill` with.

Deciding is pure; this shell gathers what it looks at (the load state's pool, what the prefix index believes, rates
learned per pair) and folds outcomes back. The same object serves a live gateway and a simulated one.

Failure mode: a pair that never handed anything over has the rate it was told, or none, and then nothing travels there.
"""

import heapq
from collections.abc import Callable
from typing import Final

import msgspec

from trimtab.core.cost import CostModel
from trimtab.core.decision import ReplicaView
from trimtab.core.handover import NO_LABELS, HandOverCause, HandOverOutcome
from trimtab.policies.links import LinkRate as LinkRate
from trimtab.policies.links import Links, Passage, likeness
from trimtab.policies.loadstate import LoadState
from trimtab.policies.local_prefill import (
    Corrections,
    DecodeSide,
    PrefillDecision,
    PrefillPlace,
    PrefillReason,
    PrefillRequest,
    PrefillRules,
    PrefillSide,
    decide,
    scored,
)
from trimtab.policies.pair_breaker import PairBreakers, kind_of
from trimtab.policies.prefill_refusals import PrefillRefusals
from trimtab.policies.prefill_turns import PASS_RATIO, tokens_waited_for
from trimtab.policies.recent_arrivals import Arrivals, RecentArrivals
from trimtab.policies.router import Routed

POOL_LOOKED_AT: Final = 16
"""Prefill replicas that a decision weighs: those with the fewest prompt tokens before them."""


class PrefillPool:
    """Decides local or remote for routed requests. `cost` None: nothing was measured, so everything stays local."""

    def __init__(
        self,
        load: LoadState,
        rules: PrefillRules,
        *,
        cost: CostModel | None,
        told: LinkRate | None = None,
        sends_whole: bool = False,
        passing: bool = False,
    ) -> None:
        """Take the load state; `told`: the rate of pairs that have not handed anything over yet.

        `sends_whole`: a hand-over moves all of a prompt's KV, also what the decode side holds. `passing`: a short
        prompt passes long ones on its prefill replica (`policies.prefill_turns`).
        """
        self.load = load
        self.rules = rules
        self.cost = cost
        self.cost_there: CostModel | None = None
        """What a prefill replica costs, where one was measured because it runs other threads than those that decode."""
        self.corrections = Corrections()
        self.links = Links(told)
        self.sends_whole = sends_whole
        self._passing = passing
        self.bar: Callable[[ReplicaView, int], PrefillReason | None] = lambda _source, _tokens: None
        """Why a prefill replica may hand over no prompt of so many tokens now, None if it may."""
        self.breakers = PairBreakers()
        self.refusals = PrefillRefusals()
        self._moving: dict[str, int] = {}
        self.moving: Callable[[str], int] = lambda replica: self._moving.get(replica, 0)
        """How many hand-overs share a prefill replica's link now: those that `sent` and `ended` tell of."""
        self._computing: dict[str, dict[str, int]] = {}
        self._came, self._came_ahead = RecentArrivals(), RecentArrivals()

    def forget(self, replica: str) -> None:
        """Note that a replica left: what was learned of its links, and what came to it, goes with it."""
        self.links.forget(replica)
        self.breakers.forget(replica)
        self.refusals.forget(replica)
        self._came.forget(replica)
        self._came_ahead.forget(replica)

    def choose(
        self, routed: Routed, *, failed_before: bool = False, can_travel: bool = True
    ) -> PrefillDecision:
        """Decide where the prompt of a routed request is prefilled; its decode side is where routing sent it."""
        assert routed.replica is not None
        decode = routed.replica
        held = routed.request.holdings
        request = PrefillRequest(
            request_id=routed.request.request_id,
            prompt_tokens=routed.prompt_tokens,
            output_tokens=routed.request.output_tokens_expected,
            failed_before=failed_before,
            can_travel=can_travel,
        )
        # Routing looked before it counted this request, so its own prompt is not among those before it.
        side = DecodeSide(
            replica=decode.id,
            held_tokens=held.by(decode.id),
            queued_tokens=decode.prefill_tokens_outstanding,
            streams=decode.running,
            cost=self.cost,
        )
        now_s, tokens = routed.query.now_s, routed.prompt_tokens
        coming = self._came.seen(decode.id, now_s)
        self._came.note(decode.id, request.request_id, now_s, tokens - side.held_tokens)
        self._came_ahead.begin(now_s)
        if failed_before or not (
            self.rules.always or tokens - side.held_tokens > self.rules.chunk_tokens
        ):
            return decide(request, side, (), self.rules, self.corrections)
        found = self.load.prefill_pool()
        others = max(1, len(self.load.ready()) - len(found))
        side = msgspec.structs.replace(side, coming=_shared(coming, others))
        weighed = found
        if len(found) > POOL_LOOKED_AT:
            weighed = heapq.nsmallest(POOL_LOOKED_AT, found, key=lambda one: (one[1], one[0]))
        pool = [
            msgspec.structs.replace(
                self._side(one, decode, held.by(one), queued, tokens, now_s),
                coming=_shared(self._coming(one, now_s, tokens), len(found) + others),
            )
            for one, queued in weighed
        ]
        return decide(request, side, pool, self.rules, self.corrections)

    def _coming(self, replica: str, now_s: float, tokens: int) -> Arrivals:
        """Prompts that would wait for one of so many tokens on a prefill replica."""
        passing = tokens / PASS_RATIO if self._passing else 0.0
        return self._came_ahead.seen(replica, now_s, above_tokens=passing)

    def cost_ahead(self, cost: CostModel) -> CostModel:
        """Return what a prefill replica costs where those that decode cost `cost`: measured, else by its own chunk."""
        if self.cost_there is not None:
            return self.cost_there
        rules = self.rules
        if not rules.prefill_chunk_tokens:
            return cost
        return cost.at_chunk(rules.stall_chunk, rules.prefill_chunk_tokens)

    def _side(
        self,
        replica: str,
        decode: ReplicaView,
        held: int,
        queued: float,
        prompt_tokens: int,
        now_s: float,
    ) -> PrefillSide:
        known = self.load.replica(replica)
        like = likeness(NO_LABELS if known is None else known.labels, decode.labels)
        rate = self.links.rate(replica, decode.id, like)
        if self._passing:
            before = self._computing.get(replica, {}).values()
            queued = tokens_waited_for(prompt_tokens, before, self.rules.prefill_chunk)
        return PrefillSide(
            replica=replica,
            held_tokens=held,
            queued_tokens=queued,
            cost=None if self.cost is None else self.cost_ahead(self.cost),
            setup_ms=None if rate is None else rate.setup_ms,
            transfer_ms_per_token=None if rate is None else rate.ms_per_token,
            transfers=self.moving(replica),
            pairs=known is not None and bool(known.kv_key) and known.kv_key == decode.kv_key,
            barred=None if known is None else self._barred(known, decode.id, prompt_tokens, now_s),
            sends_whole=self.sends_whole,
            nearness=like.near,
        )

    def _barred(
        self, source: ReplicaView, target: str, prompt_tokens: int, now_s: float
    ) -> PrefillReason | None:
        reason = self.bar(source, prompt_tokens)
        # Where every prompt is told to travel, to be compared with, what fails is part of the comparison.
        if reason is not None or self.rules.always is not None:
            return reason
        computing = source.id in self._computing
        if self.refusals.is_left_out(source.id, now_s, computing=computing):
            return PrefillReason.PREFILL_REFUSES
        left_out = self.breakers.is_left_out(source.id, target, now_s)
        return PrefillReason.PAIR_FAILS if left_out else None

    def computing(self, replica: str, request_id: str, tokens: int) -> None:
        """Note that a prompt waits for its turn on a prefill replica, with so many tokens to compute there.

        `computed` must follow once.
        """
        self._computing.setdefault(replica, {})[request_id] = tokens

    def computed(self, replica: str, request_id: str) -> None:
        """Note that a prompt is computed there no more, however that went."""
        there = self._computing[replica]
        del there[request_id]
        if not there:
            del self._computing[replica]

    def sent(self, decision: PrefillDecision) -> None:
        """Note that KV leaves a prefill replica; `ended` must follow once."""
        assert decision.place is PrefillPlace.REMOTE
        self._moving[decision.replica] = self._moving.get(decision.replica, 0) + 1

    def ended(self, decision: PrefillDecision) -> None:
        """Note that KV is on the link no more, however that went."""
        self._moving[decision.replica] -= 1

    def begun(self, decision: PrefillDecision, routed: Routed) -> None:
        """Note that a hand-over to where a request was routed begins; `judged` must follow once."""
        assert routed.replica is not None
        query = routed.query
        self._came_ahead.note(decision.replica, query.request_id, query.now_s, routed.prompt_tokens)
        self.breakers.begun(decision.replica, routed.replica.id, decision.request_id)

    def judged(
        self,
        decision: PrefillDecision,
        decode: str,
        now_s: float,
        *,
        outcome: HandOverOutcome,
        cause: HandOverCause | None,
        has_parcel: bool,
    ) -> None:
        """Note how a hand-over ended. `has_parcel`: its prompt was computed ahead.

        Of a replica that left meanwhile nothing is kept: nobody would ever drop it again.
        """
        if self.load.replica(decision.replica) is None or self.load.replica(decode) is None:
            return
        self.breakers.ended(
            decision.replica,
            decode,
            decision.request_id,
            now_s,
            outcome=outcome,
            failed=kind_of(cause, has_parcel=has_parcel),
        )

    def moved(
        self,
        decision: PrefillDecision,
        decode: str,
        *,
        tokens: float,
        setup_ms: float,
        ms: float,
        size_bytes: float | None = None,
    ) -> None:
        """Learn from a hand-over: `ms` for its bytes, as if it had been alone on its link, beside the set-up.

        One that is told once either side has left teaches nothing, as in `judged`.
        """
        seen = Passage(tokens=tokens, setup_ms=setup_ms, transfer_ms=ms, bytes=size_bytes)
        source, target = self.load.replica(decision.replica), self.load.replica(decode)
        if source is None or target is None:
            return
        like = likeness(source.labels, target.labels)
        self.links.learn(decision.replica, decode, like, seen)

    def observed(self, decision: PrefillDecision, waited_ms: float) -> None:
        """Score a decision by how long its request waited for its first token."""
        self.corrections = scored(self.corrections, decision, waited_ms)


def _shared(coming: Arrivals, replicas: int) -> Arrivals:
    """Each of so many replicas is charged its part: those who come go past one that is busy."""
    return msgspec.structs.replace(coming, per_s=coming.per_s / replicas)
