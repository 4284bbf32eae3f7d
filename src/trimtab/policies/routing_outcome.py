"""What a policy chose, before anybody asks why: the few facts from which a decision is explained later."""

from collections.abc import Collection

import msgspec
import numpy as np

from trimtab.core.columns import Flags, Floats
from trimtab.core.cost import CostModel
from trimtab.core.decision import RouteReason


class Bounds(msgspec.Struct, frozen=True, kw_only=True):
    """Costs and limits of a policy.

    `replicate_at`: load over the mean above which the only holder of a hot prefix is relieved by a second one.
    """

    cost: CostModel
    load_bound: float
    min_match_tokens: int
    preferred_bonus_ms: float
    replicate_at: float


class Limit(msgspec.Struct, frozen=True):
    """The bound on load of one decision, in tokens: `trivial` is the request alone, `bound` comes from the mean."""

    trivial: float
    bound: float

    def exceeded(self, load: float, held: float) -> bool:
        """Return whether a replica with a load that holds so much of the prompt is over the bound."""
        if not held:
            return load > max(self.trivial, self.bound)
        if self.bound >= self.trivial:
            return load - held > self.bound
        return load > max(self.trivial, self.bound + held)


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """A choice over replicas in order of id. `over`: places of those over the load bound, or a flag for each.

    Where `limit` is given, it says that instead. `scores`: what was compared, if it is kept.
    """

    winner: int | None
    eligible: int
    reason: RouteReason = RouteReason.LEAST_LOADED
    over: Collection[int] | Flags = ()
    limit: Limit | None = None
    scores: Floats | None = None

    def is_over(self, at: int, load: float, held: float) -> bool:
        """Return whether the replica at a place, with this load, was over the bound."""
        if self.limit is not None:
            return self.limit.exceeded(load, held)
        return bool(self.over[at]) if isinstance(self.over, np.ndarray) else at in self.over


def reason_of(*, most: float, mine: float, all_over: bool, replicated: bool) -> RouteReason:
    """Return why the winner was chosen.

    `most`: the longest match among those that may serve; `mine`: the winner's; `all_over`: whether all that hold the
    longest are over the bound.
    """
    if replicated:
        return RouteReason.HOT_PREFIX_REPLICATED
    if most <= 0.0:
        return RouteReason.LEAST_LOADED_NO_PREFIX
    if mine == most:
        return RouteReason.LONGEST_PREFIX_WITHIN_BOUND
    if all_over:
        return RouteReason.PREFIX_OVER_BOUND_NEXT_BEST
    return RouteReason.SHORTER_TIME_BEATS_PREFIX
