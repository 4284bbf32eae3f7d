"""Routes one request: what it meets by the traffic plan, then where the policy sends it.

Deciding itself is pure (`core.traffic`, the policies). This shell gathers what they look at and folds the
outcome back: the load state counts the request, and at dispatch the prefix index learns where its prompt went.
"""

import random
from collections.abc import Mapping
from typing import Final

import msgspec

from trimtab.core.columns import HeldColumns
from trimtab.core.cuts import Cut
from trimtab.core.decision import (
    FleetView,
    Held,
    ReplicaView,
    RouteRequest,
    RoutingDecision,
    RoutingPolicy,
    with_holdings,
)
from trimtab.core.ports import RequestFacts
from trimtab.core.prefix import PrefixIndex
from trimtab.core.traffic import Exposure, TrafficPlan, expose
from trimtab.core.types import Arm
from trimtab.policies.estimates import OutputExpectation, TokenRatio, cuts_before_serving
from trimtab.policies.loadstate import Admission, LoadState
from trimtab.policies.places import Places
from trimtab.policies.routing import CANDIDATES_MAX

START_PLAN: Final = TrafficPlan(policy="round_robin")


class RouteQuery(msgspec.Struct, frozen=True, kw_only=True):
    """What the gateway knows of a request when it asks for a replica.

    `blocks` are its hashed prompt blocks; `now_s` is of the monotonic clock, as the traffic plan's times are.
    """

    request_id: str
    facts: RequestFacts
    blocks: tuple[int, ...]
    prompt_size: int
    session: str
    label: str | None
    repetition: float | None
    now_s: float


class Routed(msgspec.Struct, frozen=True, kw_only=True):
    """A decision with all it was made from. `replica` and `admission` are None when none could serve."""

    query: RouteQuery
    request: RouteRequest
    draw: float
    decision: RoutingDecision
    view: FleetView
    exposure: Exposure
    prompt_tokens: int
    replica: ReplicaView | None
    admission: Admission | None


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
    ) -> None:
        """Take what it looks at. Not `explained`: nobody keeps its decisions, so they come without candidates."""
        self.load = load
        self.index = index
        self.plan = plan
        self.ratio = TokenRatio()
        self.expectation = OutputExpectation()
        self._policies = dict(policies)
        self._rng = rng
        self._sequence = 0
        self._places = Places()
        self._explained = explained
        self._met: tuple[str, ...] = ()

    def route(self, query: RouteQuery) -> Routed:
        """Decide what a request meets and where it goes, and count it on its replica.

        Where the arm's replicas are all away, the request is served by any other and left out of the comparison:
        service comes before proof.
        """
        plan = self.plan
        prompt_tokens = self.ratio.tokens(query.prompt_size)
        exposure = expose(
            plan,
            place=self._place(plan, query),
            # Cuts matter to slices and preferences only.
            cuts=_cuts(query, prompt_tokens) if plan.candidate or plan.preferences else (),
            now_s=query.now_s,
            replicas=self.load.ready(),
        )
        routed = self._decide(query, exposure, prompt_tokens)
        if routed.replica is None and exposure.allowed is not None and self.load.ready():
            routed = self._decide(query, _detached(plan, None), prompt_tokens)
        return self._admit(routed)

    def set_policies(self, policies: Mapping[str, RoutingPolicy]) -> None:
        """Decide with these policies from the next request on."""
        self._policies = dict(policies)

    def _place(self, plan: TrafficPlan, query: RouteQuery) -> float:
        """Sessions keep to one arm where the arms have replicas of their own; a routing lever takes any request."""
        candidate = plan.candidate
        if candidate is None:
            return 1.0
        key = query.session if candidate.replicas else query.request_id
        return self._places.of(key, candidate.lever)

    def reroute(self, routed: Routed, *, may_repeat: bool) -> Routed:
        """Decide again after a dispatch in vain, without that replica; the request leaves the comparison.

        `may_repeat`: where no other is ready, the same replica may be tried once more. The load counts the request
        anew. The caller has not sent a byte to its client.
        """
        assert routed.replica is not None
        failed = routed.replica.id
        self.load.finished(routed.query.request_id)
        self.index.finished(failed, routed.query.blocks)
        ready = self.load.ready()
        others = tuple(replica for replica in ready if replica != failed)
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
        self.index.record(replica, query.blocks, query.now_s)
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
        if routed.replica is not None and captured is not None:
            replica, blocks = routed.replica.id, routed.query.blocks
            self.index.finished(replica, blocks)
            if delivered is not None:
                self.index.correct(replica, blocks, captured, delivered)
        if output_tokens is not None:
            self.expectation.learn(routed.query.label, output_tokens)

    def forget(self, replica: str) -> None:
        """Note that a replica lost its cache, as a restart without its KV does."""
        self.index.forget(replica)

    def _decide(self, query: RouteQuery, exposure: Exposure, prompt_tokens: int) -> Routed:
        self._sequence += 1
        look = self.load.view if self._explained else self.load.glance
        view = look(query.now_s, sequence=self._sequence)
        if view.columns.ids is not self._met:
            self._met = view.columns.ids
            self.index.meet(self._met)
        holdings = self.index.held_columns(query.blocks, prompt_tokens, query.prompt_size)
        request = RouteRequest(
            request_id=query.request_id,
            prompt_tokens=prompt_tokens,
            output_tokens_expected=self.expectation.tokens(query.label, query.facts.max_tokens),
            session=query.session,
            label=query.label,
            temperature=query.facts.temperature,
            constraint=query.facts.constraint,
            repetition=query.repetition,
            held=_listed(holdings, view) if self._explained else (),
            allowed=exposure.allowed,
            preferred=exposure.preferred,
            arm=exposure.arm,
            lever=exposure.lever,
        )
        draw = self._rng.random()
        decision = self._policies[exposure.policy].decide(
            view, with_holdings(request, holdings, explained=self._explained), draw
        )
        return Routed(
            query=query,
            request=request,
            draw=draw,
            decision=decision,
            view=view,
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
            decode_tokens=self.expectation.tokens(query.label, query.facts.max_tokens),
        )
        return msgspec.structs.replace(routed, admission=admission)


def _listed(holdings: HeldColumns, view: FleetView) -> tuple[Held, ...]:
    """Return what replicas hold as values that the ledger keeps; of a large fleet nothing."""
    if len(view.replicas) > CANDIDATES_MAX:
        return ()
    found = (
        Held(replica=one.id, tokens=holdings.by(one.id), displaced=holdings.displaced_by(one.id))
        for one in view.replicas
    )
    return tuple(held for held in found if held.tokens or held.displaced)


def _cuts(query: RouteQuery, prompt_tokens: int) -> tuple[Cut, ...]:
    return cuts_before_serving(
        query.facts,
        label=query.label,
        repetition=query.repetition,
        prompt_tokens=prompt_tokens,
    )


def _detached(plan: TrafficPlan, allowed: tuple[str, ...] | None) -> Exposure:
    """Return the exposure of a request that is served outside every comparison."""
    return Exposure(arm=Arm.BASELINE, policy=plan.policy, allowed=allowed)
