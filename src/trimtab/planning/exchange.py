"""What ranks take to send each other the tokens of their experts, for each kind of exchange.

With n ranks in N nodes of m, t tokens on a rank, k experts a token, h values of a hidden state, d and c bytes of a
value on the way to the experts and back, L layers that have experts:

    all-to-all      each token goes to the k ranks that have its experts, but for its own
        inside      t k (m - 1) / n x h (d + c) / (0.9 x rate inside)
        between     t x copies x h (d + c) / (0.9 x rate between)
                    copies: k (n - m) / n; above 256 tokens a rank one for each other node that has any of its experts,
                    (N - 1) (1 - (1 - 1/N)^k), as kernels for many tokens send it once to a node
        together    L x (the longer of the two + 2 x 40 us)
    all-reduce      every rank gets every token, and gives a sum of each back (all-gather and reduce-scatter)
        together    L x ((n - 1) / n x n t x h (2 + 2) / (0.75 x the slower rate) + 2 x 15 us)

The figures 0.9 and 40 us are within 13% of what the authors of DeepEP publish of their kernels for few tokens (128
tokens of 7,168 values, 8 experts a token: EP8 77 us there and 114 us back, EP64 173 and 314 us); 0.75 and 15 us are
what kernel tables hold for groups of eight. Nothing overlaps with computation here, which engines partly do. Fails
where tokens choose experts within few nodes only (the all-to-all is cheaper then), and on a shared network.
"""

from typing import Final

import msgspec

from trimtab.core.layout import Cluster, Layout, Link
from trimtab.core.model_parts import PartName
from trimtab.core.served import ModelShape
from trimtab.diagnosis.served_facts import ExpertExchange

ALL_TO_ALL_SHARE: Final = 0.9
ALL_TO_ALL_US: Final = 40.0
FEW_TOKENS: Final = 256.0
GATHER_SHARE: Final = 0.75
GATHER_US: Final = 15.0

_BACK_BYTES: Final = 2.0


class Exchange(msgspec.Struct, frozen=True, kw_only=True):
    """How the ranks of one replica exchange tokens of experts; see `exchange_of`."""

    kind: ExpertExchange
    ranks: int
    node_ranks: int
    values: int
    layers: int
    experts_per_token: int
    there_bytes: float
    inside_bytes_per_s: float
    between_bytes_per_s: float

    def ms(self, tokens: float) -> float:
        """Return what the exchange adds to a step of so many tokens on each rank."""
        if self.kind is ExpertExchange.ALL_REDUCE:
            slower = min(self.inside_bytes_per_s, self.between_bytes_per_s)
            moved = (self.ranks - 1) * tokens * self.values * 2.0 * _BACK_BYTES
            return self.layers * 1000.0 * (moved / (GATHER_SHARE * slower) + 2e-6 * GATHER_US)
        each = tokens * self.values * (self.there_bytes + _BACK_BYTES) / ALL_TO_ALL_SHARE
        near = self.experts_per_token * (self.node_ranks - 1) / self.ranks
        sent = max(
            near * each / self.inside_bytes_per_s, self._copies(tokens) * each / self.between_bytes_per_s
        )  # fmt: skip
        return self.layers * 1000.0 * (sent + 2e-6 * ALL_TO_ALL_US)

    def _copies(self, tokens: float) -> float:
        """Return how often a token crosses the network between nodes."""
        nodes = self.ranks / self.node_ranks
        each = self.experts_per_token * (1.0 - 1.0 / nodes)
        if tokens <= FEW_TOKENS:
            return each
        once = (nodes - 1.0) * (1.0 - (1.0 - 1.0 / nodes) ** self.experts_per_token)
        return min(each, once)

    @property
    def words(self) -> str:
        """What it is, for a reader."""
        where = f"{self.ranks} ranks"
        if self.ranks > self.node_ranks:
            where += f" in {self.ranks // self.node_ranks} nodes"
        return f"exchange between experts by formula: {self.kind.value} over {where}"


def exchange_of(
    kind: ExpertExchange | None,
    model: ModelShape,
    layout: Layout,
    cluster: Cluster,
    *,
    operand_bits: int = 16,
) -> Exchange | None:
    """Return the exchange of a layout; None where its kind or a link's rate is not known, or there is none to name.

    Without attention groups (`attention_dp` 1) every rank holds every token and sums its experts' parts, as with
    tensor parallelism, whatever was named.
    """
    ranks = layout.tp * layout.attention_dp
    facts = (model.hidden, model.layers, model.experts_per_token)
    if kind is None or layout.moe_ep < 2 or layout.attention_dp < 2 or None in facts:
        return None
    inside = cluster.link.bytes_per_s
    between = _between(cluster.node_link) if ranks > cluster.devices else inside
    if not inside or not between:
        return None
    return Exchange(
        kind=kind,
        ranks=ranks,
        node_ranks=min(ranks, cluster.devices),
        values=model.hidden or 1,
        layers=expert_layers(model),
        experts_per_token=model.experts_per_token or 1,
        there_bytes=1.0 if operand_bits <= 8 else 2.0,
        inside_bytes_per_s=inside,
        between_bytes_per_s=between,
    )


def expert_layers(model: ModelShape) -> int:
    """Return how many layers have routed experts; all of them where the model's parts do not tell."""
    told = [part.layers for part in model.parts if part.name is PartName.EXPERTS and part.layers]
    return sum(told) or model.layers or 1


def _between(link: Link | None) -> float | None:
    return None if link is None else link.bytes_per_s
