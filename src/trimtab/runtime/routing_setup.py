"""The routing policies of a system, by its configuration, what replicas cost, and how much affinity may weigh now."""

from collections.abc import Mapping
from typing import Final

from trimtab.core.config import RoutingConfig
from trimtab.core.cost import CostModel
from trimtab.core.decision import RoutingPolicy
from trimtab.policies.routing import build_policies

LOWERED: Final = 0.5
"""Part of what the load bound leaves to affinity while it is lowered."""


class Affinity:
    """How far the load bound lets a replica be over the mean for the sake of its cache."""

    def __init__(self) -> None:
        self.lowered = False

    def policies(self, routing: RoutingConfig, cost: CostModel) -> Mapping[str, RoutingPolicy]:
        """Return every policy by name."""
        share = LOWERED if self.lowered else 1.0
        bound = 1.0 + (routing.load_bound - 1.0) * share
        return build_policies(cost, load_bound=bound, min_match_tokens=routing.min_match_tokens)
