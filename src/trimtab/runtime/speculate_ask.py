"""What `trimtab speculate` is asked to measure."""

import math

import msgspec

from trimtab.core.config import EngineConfig
from trimtab.workloads.draft_samples import DraftSample

DEPTHS = (4, 8, 16)
BATCHES = (1, 2, 4, 8, 16, 32)
TEMPERATURES = (0.0, 0.7, 1.0)
MATCHES = (3, 4, 6, 8, 12)
"""Lengths of n-grams that are tried on the recorded answers."""
ABOVE_PART = 0.25
"""How much larger than the batch asked about the largest measured one is at least, as a part of it."""
SEQUENCES_MAX = 256
"""More streams a llama.cpp replica does not take."""


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
        """The batches to measure, the one that is asked about, and where none is larger one above it.

        So its answer is measured and not its neighbour's; and since drafting goes off above the largest batch measured,
        streams that come and go around the batch asked about do not turn it off.
        """
        found = {*self.batches, self.batch}
        if max(found) == self.batch:
            found.add(min(SEQUENCES_MAX, self.batch + math.ceil(ABOVE_PART * self.batch)))
        return tuple(sorted(found))
