"""Decides a recorded day again under another policy, one request at a time, and says what would have differed.

Each decision is made from the view and the request that the ledger keeps with it, by the very function that routes live
traffic. What follows from a different choice (other caches, other queues) is not replayed: every decision meets the
fleet as it was recorded. So the answer is about decisions, and the cost is the prediction of one cost model for both
choices, not a measured time. To see what follows, simulate.

The recorded policy is made anew with the settings of the run that recorded it, the other one with those given. Before
a run has calibrated, both have the costs that a gateway starts with.

Only where a request went is decided again. What the ledger keeps of a local-prefill decision is its predictions, not
what they were made from (link, transfers, streams of both sides), so other rules for it, for roles or for drafts cannot
be replayed.

A decision of a fleet too large for the ledger to keep whole, and one recorded before requests were kept, cannot be made
again; they are counted.
"""

from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from trimtab.core.cost import START_COST, CostModel
from trimtab.core.decision import RoutingPolicy
from trimtab.core.events import AnyEvent, Calibrated, RequestServed, RunStarted
from trimtab.core.types import ErrorClass
from trimtab.policies.routing import PrefixAffine, build_policies
from trimtab.policies.routing_terms import LOAD_BOUND, MIN_MATCH_TOKENS
from trimtab.sim.scenario import ScenarioError

DIFFERENCES_MAX: Final = 1_000
"""Differing decisions that are kept with their terms; all of them are counted."""


class Differing(msgspec.Struct, frozen=True, kw_only=True):
    """One decision that would have been another. Milliseconds as the cost model predicts them for each choice.

    `extra_ms`: predicted time of the other choice less that of the recorded one; None where one of them was not judged.
    """

    request_id: str
    at_s: float
    label: str | None
    recorded: str | None
    recorded_policy: str
    other: str | None
    reason: str
    extra_ms: float | None
    ttft_ms: float | None


class Replayed(msgspec.Struct, frozen=True, kw_only=True):
    """What came of replaying a ledger. `same` and `different` count decisions; `left_out` could not be made again.

    `extra_ms_mean`: over the differing decisions whose cost is predicted for both choices; None without any.
    `faithful`: of the decisions made again under the policy that was recorded, how many came out as recorded.
    `not_replayed`: sections of the policy's file that decide nothing here.
    """

    policy: str
    requests: int
    same: int
    different: int
    left_out: int
    by_policy: dict[str, int]
    extra_ms_mean: float | None
    extra_samples: int
    faithful: int
    refaithful: int
    differing: tuple[Differing, ...]
    not_replayed: tuple[str, ...] = ()


class _Tally:
    def __init__(self) -> None:
        self.requests = self.same = self.different = self.left_out = 0
        self.faithful = self.unfaithful = 0
        self.by_policy: dict[str, int] = {}
        self.extra: list[float] = []
        self.differing: list[Differing] = []


def replay(
    events: Iterable[AnyEvent],
    policy: str,
    *,
    load_bound: float,
    min_match_tokens: int,
    public: Mapping[str, RoutingPolicy] = {},
) -> Replayed:
    """Decide every recorded request again under a policy by name; costs are those last calibrated before it.

    Raises `ScenarioError` for a policy that is not known.
    """
    tally = _Tally()
    cost, then = START_COST, (LOAD_BOUND, MIN_MATCH_TOKENS)
    policies = _policies(cost, load_bound, min_match_tokens, public)
    recorded = _policies(cost, *then, public)
    if policy not in policies:
        raise ScenarioError(
            f"no policy {policy!r} is known; known are: {', '.join(sorted(policies))}"
        )
    for event in events:
        if isinstance(event, RequestServed):
            _again(event, policies[policy], policies, recorded, tally)
            continue
        if isinstance(event, Calibrated) and event.cost is not None:
            cost = event.cost
        elif isinstance(event, RunStarted):
            cost, then = START_COST, _bounds(event)
        else:
            continue
        policies = _policies(cost, load_bound, min_match_tokens, public)
        recorded = _policies(cost, *then, public)
    extra = sum(tally.extra) / len(tally.extra) if tally.extra else None
    return Replayed(
        policy=policy,
        requests=tally.requests,
        same=tally.same,
        different=tally.different,
        left_out=tally.left_out,
        by_policy=tally.by_policy,
        extra_ms_mean=extra,
        extra_samples=len(tally.extra),
        faithful=tally.faithful,
        refaithful=tally.faithful + tally.unfaithful,
        differing=tuple(tally.differing),
    )


def _policies(
    cost: CostModel, load_bound: float, min_match_tokens: int, public: Mapping[str, RoutingPolicy]
) -> dict[str, RoutingPolicy]:
    own = build_policies(cost, load_bound=load_bound, min_match_tokens=min_match_tokens)
    return {**own, **public}


def _bounds(run: RunStarted) -> tuple[float, int]:
    """Return the load bound and the shortest match that a run routed with; defaults where it does not say."""
    bound = run.settings.get("routing.load_bound", LOAD_BOUND)
    match = run.settings.get("routing.min_match_tokens", MIN_MATCH_TOKENS)
    return float(bound), int(match)


def _again(
    event: RequestServed,
    policy: RoutingPolicy,
    policies: Mapping[str, RoutingPolicy],
    recorded: Mapping[str, RoutingPolicy],
    tally: _Tally,
) -> None:
    tally.requests += 1
    decision, view, asked = event.decision, event.view, event.asked
    if decision is None or view is None or asked is None or decision.omitted:
        tally.left_out += 1
        return
    draw = event.draw or 0.0
    tally.by_policy[decision.policy] = tally.by_policy.get(decision.policy, 0) + 1
    if decision.policy in recorded:
        if recorded[decision.policy].decide(view, asked, draw).replica == decision.replica:
            tally.faithful += 1
        else:
            tally.unfaithful += 1
    other = policy.decide(view, asked, draw)
    if other.replica == decision.replica:
        tally.same += 1
        return
    tally.different += 1
    affine = policies["prefix_affine"]
    assert isinstance(affine, PrefixAffine)
    scores = {one.replica: one.score_ms for one in affine.decide(view, asked, draw).candidates}
    before, after = scores.get(decision.replica or ""), scores.get(other.replica or "")
    extra = None if before is None or after is None else after - before
    if extra is not None:
        tally.extra.append(extra)
    if len(tally.differing) < DIFFERENCES_MAX:
        ok = event.record.error is ErrorClass.NONE
        tally.differing.append(
            Differing(
                request_id=decision.request_id,
                at_s=decision.at_s,
                label=event.record.label,
                recorded=decision.replica,
                recorded_policy=decision.policy,
                other=other.replica,
                reason=other.reason.value,
                extra_ms=extra,
                ttft_ms=event.record.ttft_ms if ok else None,
            )
        )
