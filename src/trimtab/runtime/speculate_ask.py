"""What `trimtab speculate` is asked to measure."""

import msgspec

from trimtab.core.config import EngineConfig
from trimtab.workloads.draft_samples import DraftSample

DEPTHS = (4, 8, 16)
BATCHES = (1, 2, 4, 8, 16, 32)
TEMPERATURES = (0.0, 0.7, 1.0)
MATCHES = (3, 4, 6, 8, 12)
"""Lengths of n-grams that are tried on the recorded answers."""


class SpeculateAsk(msgspec.Struct, frozen=True, kw_only=True):
    """What to measure. `batch`: the streams that a replica of yours decodes at once, for which the depth is chosen.

    `loop_s`: seconds of one closed loop, and a tenth of a second more for each stream.
    """

    engine: EngineConfig
    samples: tuple[DraftSample, ...]
    batch: int = 1
    depths: tuple[int, ...] = DEPTHS
    batches: tuple[int, ...] = BATCHES
    temperatures: tuple[float, ...] = TEMPERATURES
    rounds: int = 3
    loop_s: float = 3.0
    seed: int = 1
    start_timeout_s: float = 120.0

    @property
    def measured_batches(self) -> tuple[int, ...]:
        """The batches to measure, and the one that is asked about: its answer is measured and not its neighbour's."""
        return tuple(sorted({*self.batches, self.batch}))
