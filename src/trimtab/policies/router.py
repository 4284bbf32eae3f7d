"""Routes one request: what it meets by the traffic plan, then where the policy sends it.

Deciding itself is pure (`core.traffic`, the policies). This shell gathers what they look at and folds the
outcome back: the load state counts the request, and at dispatch the prefix index learns where its prompt went.
"""

import random
from collections.abc import Callable, Collection, Mapping
from typing import Final

import msgspec

from trimtab.core.decision import (
    FleetView,
    Held,
    ReplicaView,
    RouteRequest,
    RoutingDecision,
    RoutingPolicy,
    listed,
    with_chosen,
    with_holdings,
)
from trimtab.core.holdings import HeldColumns
from trimtab.core.kv_blocks import KvBatch, KvBlocks, KvNews, KvRemoved
from trimtab.core.ports import RequestFacts
from trimtab.core.prefix import PrefixIndex
from trimtab.core.prefix_trust import BROKEN_BELOW, KeyTrust
from trimtab.core.traffic import Exposure, TrafficPlan, expose
from trimtab.core.types import Arm
from trimtab.policies.estimates import OutputExpectation, TokenRatio
from trimtab.policies.flights import Admission
from trimtab.policies.home_keys import HomeKeys
from trimtab.policies.hot_prefixes import TOKENS_MIN, HotPrefixes
from trimtab.policies.loadstate import LoadState
from trimtab.policies.places import HashedPlaces, Places
from trimtab.policies.route_query import RouteQuery as RouteQuery
from trimtab.policies.route_query import asks_cuts, cuts_of_query, key_of
from trimtab.policies.routing import CANDIDATES_MAX

START_PLAN: Final = TrafficPlan(policy="round_robin")


class Routed(msgspec.Struct, frozen=True, kw_only=True):
    """A decision with all it was made from. `replica` and `admission` are None when none could serve.

    The decision comes without candidates and `seen` without replicas: `explained` makes both whole, later.
    """

    query: RouteQuery
    request: RouteRequest
    draw: float
    decision: RoutingDecision
    seen: FleetView
    policy: RoutingPolicy
    exposure: Exposure
    prompt_tokens: int
    replica: ReplicaView | None
    admission: Admission | None


class Explained(msgspec.Struct, frozen=True, kw_only=True):
    """A decision with its candidates, the fleet as it was (of a large one the candidates alone), and what was asked."""

    decision: RoutingDecision
    view: FleetView
    asked: RouteRequest


def explained(routed: Routed) -> Explained:
    """Return a decision with every term of its candidates.

    What was chosen stands; its terms are worked out from the same values, and written down. That is done when a request
    has ended; on its way to its replica nobody waits for it.
    """
    holdings, seen = routed.request.holdings, routed.seen
    asked = msgspec.structs.replace(routed.request, held=_listed(holdings, seen.columns.ids))
    with_chosen(with_holdings(asked, holdings), routed.request.chosen)
    decision = routed.policy.decide(seen, asked, routed.draw)
    named = {one.replica for one in decision.candidates} if decision.omitted else None
    return Explained(decision=decision, view=listed(seen, named), asked=asked)


class Router:
    """Prefix index, load state and traffic plan brought together; `plan` is replaced as a whole."""

    def __init__(
        self,
        load: LoadState,
        index: PrefixIndex,
        policies: Mapping[str, RoutingPolicy],
        rng: random.Random,
        *,
        plan: TrafficPlan = START_PLAN,
        explained: bool = True,
        places: Places | HashedPlaces | None = None,
    ) -> None:
        """Take what it looks at. Not `explained`: nobody asks why later, so what it saw need not be kept.

        `places`: where sessions stand in slices; None: dealt out in order of appearance.
        """
        self.load = load
        self.index = index
        self.plan = plan
        self.ratio = TokenRatio()
        self.expectation = OutputExpectation()
        self._policies = dict(policies)
        self._rng = rng
        self._sequence = 0
        self.key_trust = KeyTrust()
        self.kv = KvBlocks()
        self._kv_used = False
        self._hot = HotPrefixes()
        self._homes = HomeKeys()
        self._places = places or Places()
        self._explained = explained
        self._plain: tuple[TrafficPlan, Exposure] | None = None
        self._met: tuple[str, ...] = ()

    def route(self, query: RouteQuery, plan: TrafficPlan | None = None) -> Routed:
        """Decide what a request meets, by the standing plan if none is given, and where it goes; count it there.

        Where the arm's replicas are all away, the request is served by any other and left out of the comparison:
        service comes before proof.
        """
        plan = plan or self.plan
        prompt_tokens = self.ratio.tokens(query.prompt_size)
        exposure = self._exposure(
            plan, query, prompt_tokens, self._place(plan, query, self._places.of)
        )
        routed = self._decide(query, exposure, prompt_tokens)
        if routed.replica is None and exposure.allowed is not None and self.load.ready():
            routed = self._decide(query, _detached(plan, None), prompt_tokens)
        return self._admit(routed)

    def preview(self, query: RouteQuery) -> tuple[Routed, Explained]:
        """Return what `route` would decide now and why, and change nothing; a draw is taken as 0.5."""
        plan = self.plan
        prompt_tokens = self.ratio.tokens(query.prompt_size)
        place = self._place(plan, query, self._places.peek)
        exposure = self._exposure(plan, query, prompt_tokens, place)
        routed = self._decided(query, exposure, prompt_tokens, self._sequence + 1, 0.5)
        if routed.replica is None and exposure.allowed is not None and self.load.ready():
            exposure = _detached(plan, None)
            routed = self._decided(query, exposure, prompt_tokens, self._sequence + 1, 0.5)
        return routed, explained(routed)

    def _exposure(
        self, plan: TrafficPlan, query: RouteQuery, prompt_tokens: int, place: float
    ) -> Exposure:
        if self._plain is not None and self._plain[0] is plan:
            return self._plain[1]
        asks = asks_cuts(plan)
        exposure = expose(
            plan,
            place=place,
            cuts=cuts_of_query(query, prompt_tokens) if asks else (),
            now_s=query.now_s,
            replicas=self.load.ready(),
            session=query.session,
        )
        if not asks:
            # Without slices, preferences and reserves every request meets the same.
            self._plain = plan, exposure
        return exposure

    def set_policies(self, policies: Mapping[str, RoutingPolicy]) -> None:
        """Decide with these policies from the next request on."""
        self._policies = dict(policies)

    def _place(
        self, plan: TrafficPlan, query: RouteQuery, place_of: Callable[[str, str], float]
    ) -> float:
        """Return where a request stands in the slice of the lever that is being proven; 1: in none."""
        candidate = plan.candidate
        return 1.0 if candidate is None else place_of(key_of(query, candidate), candidate.lever)

    def reroute(self, routed: Routed, *, may_repeat: bool, tried: Collection[str] = ()) -> Routed:
        """Decide again after a dispatch in vain, without that replica; the request leaves the comparison.

        `tried`: replicas that were sent it before, in vain too. `may_repeat`: where no other is ready, the same replica
        may be tried once more. The load counts the request anew. The caller has not sent a byte to its client.
        """
        assert routed.replica is not None
        failed = routed.replica.id
        self.load.finished(routed.query.request_id)
        self._hot.ended(routed.query.blocks)
        self.index.finished(failed, routed.query.blocks)
        ready = self.load.ready()
        others = tuple(replica for replica in ready if replica != failed and replica not in tried)
        if not others and may_repeat:
            others = ready
        wanted = routed.exposure.allowed
        allowed = tuple(replica for replica in others if wanted is None or replica in wanted)
        exposure = (
            msgspec.structs.replace(routed.exposure, allowed=allowed, block=None)
            if allowed
            else _detached(self.plan, others)
        )
        return self._admit(self._decide(routed.query, exposure, routed.prompt_tokens))

    def dispatched(self, routed: Routed) -> int:
        """Note that a request is being sent; return the tokens its replica is believed to hold right now."""
        assert routed.replica is not None
        query, replica = routed.query, routed.replica.id
        captured = self.index.believed(
            replica, query.blocks, routed.prompt_tokens, query.prompt_size
        )
        self.index.record(replica, query.blocks)
        return captured

    def finished(
        self,
        routed: Routed,
        *,
        captured: int | None,
        delivered: int | None,
        output_tokens: int | None,
    ) -> None:
        """Fold a finished request back. `captured`: what `dispatched` returned, None if it was not sent.

        `delivered` and `output_tokens` None are unknown and teach nothing.
        """
        self.load.finished(routed.query.request_id)
        if routed.replica is not None:
            self._hot.ended(routed.query.blocks)
        if routed.replica is not None and captured is not None:
            self.index.finished(routed.replica.id, routed.query.blocks)
            if delivered is not None:
                self._correct(routed, captured, delivered)
        if output_tokens is not None:
            self.expectation.learn(routed.query.label, output_tokens)

    def _correct(self, routed: Routed, captured: int, delivered: int) -> None:
        """Hold a promise against its delivery, for the class of keys and for the replica."""
        query = routed.query
        assert routed.replica is not None
        self.key_trust.learn(
            query.key_class,
            promised_tokens=captured,
            delivered_tokens=delivered,
            prompt_tokens=routed.prompt_tokens,
        )
        # Where a whole class of keys fails, its key is to blame and not the replica.
        suspect = self.key_trust.of(query.key_class).kept_share < BROKEN_BELOW
        if query.key_class == "plain" or not suspect:
            self.index.correct(routed.replica.id, query.blocks, captured, delivered)

    def forget(self, replica: str) -> None:
        """Note that a replica lost its cache, as a restart without its KV does."""
        self.index.forget(replica)
        self.kv.forget(replica)

    def leave(self, replica: str) -> None:
        """Note that a replica left the fleet."""
        self.index.leave(replica)
        self.kv.leave(replica)

    def heard(self, replica: str, batch: KvBatch) -> KvNews:
        """Take in what an engine says of its own cache (KV events); return what that means for what was known.

        For prompts of token ids it is exact. Of others it says how much the engine holds in all: what the index
        believes beyond that was evicted, the least recently used first, as in the engine.
        """
        if self.load.replica(replica) is None:
            # A publisher may be heard before its server joined, and after it left.
            return KvNews.IN_ORDER
        self._kv_used = True
        news = self.kv.take(replica, batch)
        if news is KvNews.RESTARTED or news is KvNews.CLEARED:
            self.index.forget(replica)
        elif news is KvNews.IN_ORDER and any(isinstance(one, KvRemoved) for one in batch.events):
            size = self.kv.held_tokens(replica) * self.ratio.bytes_per_token
            self.index.limit(replica, size)
        return news

    def kv_exact(self) -> tuple[str, ...]:
        """Return the replicas of which KV events were heard, in order of id."""
        return tuple(id_ for id_ in self._met if self.kv.exact(id_))

    def _holdings(
        self, query: RouteQuery, blocks: tuple[int, ...], prompt_tokens: int, ids: tuple[str, ...]
    ) -> HeldColumns:
        """Return what replicas hold: by their own word for token ids, where they tell; else by the index."""
        holdings = self.index.held_columns(blocks, prompt_tokens, query.prompt_size)
        tokens = _token_ids(query.facts) if self._kv_used and blocks else ()
        if not tokens:
            return holdings
        extras = (msgspec.msgpack.encode([query.salt]), b"") if query.salt else ()
        found = self.kv.held(tokens, extras)
        # An engine computes at least the last token of a prompt anew.
        exact = {id_: min(found.get(id_, 0), len(tokens) - 1) for id_ in ids if self.kv.exact(id_)}
        return holdings.corrected(exact, ids)

    def _decide(self, query: RouteQuery, exposure: Exposure, prompt_tokens: int) -> Routed:
        self._sequence += 1
        return self._decided(query, exposure, prompt_tokens, self._sequence, self._rng.random())

    def _decided(
        self, query: RouteQuery, exposure: Exposure, prompt_tokens: int, sequence: int, draw: float
    ) -> Routed:
        """Decide and change nothing but what lookups keep to be quicker."""
        whole = exposure.whole
        seen = self.load.glance(query.now_s, sequence=sequence, whole=whole)
        if seen.columns.ids is not self._met:
            self._met = seen.columns.ids
            self.index.meet(self._met)
        mismatch = self.key_trust.mismatched(query.key_class)
        blocks, size = query.blocks, query.prompt_size
        ids = seen.columns.ids
        holdings = self._holdings(query, () if mismatch else blocks, prompt_tokens, ids)
        hot = self.index.tokens_of(self._hot.hot_blocks(blocks), prompt_tokens, size)
        policy = self._policies[exposure.policy]
        home_key = None
        if policy.name == "prefix_home":
            home_key = self._homes.key(blocks, seen.columns.ready_count)
        request = RouteRequest(
            request_id=query.request_id,
            prompt_tokens=prompt_tokens,
            output_tokens_expected=self.expectation.tokens(query.label, query.facts.max_tokens),
            session=query.session,
            label=query.label,
            temperature=query.facts.temperature,
            constraint=query.facts.constraint,
            repetition=query.repetition,
            allowed=exposure.allowed,
            preferred=exposure.preferred,
            arm=exposure.arm,
            lever=exposure.lever,
            hot_tokens=hot if hot >= TOKENS_MIN else 0,
            home_key=home_key,
            key_mismatch=mismatch,
        )
        decision = policy.decide(seen, with_holdings(request, holdings, explained=False), draw)
        if self._explained:
            # What was looked at changes when the request is counted; whoever asks why needs it as it was.
            seen = self.load.snapshot(query.now_s, sequence=sequence, whole=whole)
        return Routed(
            query=query,
            request=request,
            draw=draw,
            decision=decision,
            seen=seen,
            policy=policy,
            exposure=exposure,
            prompt_tokens=prompt_tokens,
            replica=None if decision.replica is None else self.load.replica(decision.replica),
            admission=None,
        )

    def _admit(self, routed: Routed) -> Routed:
        if routed.replica is None:
            return routed
        query = routed.query
        admission = self.load.admitted(
            query.request_id,
            routed.replica.id,
            prefill_tokens=routed.prompt_tokens - routed.decision.predicted_cached_tokens,
            decode_tokens=routed.request.output_tokens_expected,
        )
        self._hot.began(query.blocks)
        if routed.policy.name == "prefix_home":
            self._homes.saw(query.blocks)
        # Nobody else has seen it yet, and a copy of it costs more than counting the request.
        msgspec.structs.force_setattr(routed, "admission", admission)
        return routed


def _token_ids(facts: RequestFacts) -> tuple[int, ...]:
    """Return the prompt's token ids where the request came with them and with nothing else."""
    if len(facts.segments) != 1 or facts.segments[0][0] != "prompt_ids":
        return ()
    return tuple(int(each) for each in facts.segments[0][1].split())


def _listed(holdings: HeldColumns, ids: tuple[str, ...]) -> tuple[Held, ...]:
    """Return what replicas hold as values that the ledger keeps; of a large fleet nothing."""
    if len(ids) > CANDIDATES_MAX:
        return ()
    found = (
        Held(replica=id_, tokens=holdings.by(id_), displaced=holdings.displaced_by(id_))
        for id_ in ids
    )
    return tuple(held for held in found if held.tokens or held.displaced)


def _detached(plan: TrafficPlan, allowed: tuple[str, ...] | None) -> Exposure:
    """Return the exposure of a request that is served outside every comparison."""
    return Exposure(arm=Arm.BASELINE, policy=plan.policy, allowed=allowed)
