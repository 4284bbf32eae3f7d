"""How the pace of a replica's core wanders while nothing that the fleet knows of changes.

Law: the time of a step that begins at t is multiplied by

    exp(spread * (|z(t)| - MEDIAN)),    z a stationary Ornstein-Uhlenbeck process of variance 1

whose correlation over d seconds is exp(-d / hold_s). What a neighbour on the machine takes is never negative, so the
logarithm is folded: there is a fastest pace, and slow spells are longer and stronger than fast ones. MEDIAN is the
median of |z|, so that half of the time the pace is below 1 and the costs of steps are those of a usual moment; the mean
pace is above 1. A step keeps the pace it began with. Every replica has a process of its own.

The spread is one for steps that compute prompts and one for steps that only decode: who shares a core's arithmetic
slows what is bound by it more than what waits for memory anyway.

Failure modes: spells that last longer than what was fitted on (a neighbour for half an hour) are not in it, nor are
those that hit all replicas of a host together.

Source: Uhlenbeck, Ornstein, "On the theory of the Brownian motion", 1930; the transition is exact (Gillespie, 1996).
"""

import math
import random
from typing import Final

MEDIAN: Final = 0.6744897501960817


class Unrest:
    """The wandering pace of one replica. Asked at times that never decrease."""

    def __init__(self, hold_s: float, rng: random.Random) -> None:
        """Take how long a pace keeps and where chance comes from."""
        self._hold_s = hold_s
        self._rng = rng
        self._at_s = 0.0
        self._z = rng.gauss(0.0, 1.0)

    def pace(self, now_s: float, spread: float) -> float:
        """Times as long as at the median pace, for a step that begins now and is spread so far."""
        kept = math.exp((self._at_s - now_s) / self._hold_s)
        self._z = kept * self._z + math.sqrt(1.0 - kept * kept) * self._rng.gauss(0.0, 1.0)
        self._at_s = now_s
        return math.exp(spread * (abs(self._z) - MEDIAN))
