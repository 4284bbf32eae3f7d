"""The weights of a model by what they are for, as far as that decides who holds them and at which precision.

What is dealt out over ranks and what every rank holds whole differs by part: a projection is cut by heads, the
compressions of latent attention and the norms are not; keys and values are cut until there is one KV head a rank.
"""

from enum import StrEnum

import msgspec


class PartName(StrEnum):
    """What weights are for."""

    EMBEDDING = "embedding"
    HEAD = "output matrix"
    ATTENTION = "attention"
    KEY_VALUE = "key and value projections"
    LATENT = "latent compressions"
    INDEXER = "sparse attention index"
    LINEAR = "linear attention"
    DENSE = "feed forward"
    SHARED_EXPERTS = "shared experts"
    EXPERTS = "routed experts"
    ROUTER = "router"
    NORMS = "norms"


class WeightPart(msgspec.Struct, frozen=True, kw_only=True):
    """Parameters of one part over the whole model, and the bits that each is stored at, scales included.

    `first_layer`, `layers`: the layers over which they lie evenly; 0 layers: none (embedding, output matrix).
    """

    name: PartName
    parameters: float
    bits: float
    first_layer: int = 0
    layers: int = 0

    @property
    def bytes(self) -> float:
        """Bytes as stored."""
        return self.parameters * self.bits / 8.0
