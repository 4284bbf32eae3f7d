"""A host whose cores several simulated replicas share: how much slower each gets while others are at work.

Law: b replicas at work with `threads` threads each on `cores` cores take

    pace = max(1, b * threads / cores) * (1 + contention * (b - 1))

times as long for everything as one alone would. The first factor is the cores' share; the second is what threads on
cores of their own still take from each other: memory bandwidth, and the gateway, which has no core of its own.

Failure mode: processes that the fleet does not know slow all replicas and are not modelled.
"""

from collections.abc import Callable

from trimtab.sim.jobs import HostSpec

Repace = Callable[[float, float], None]
"""Told (now, pace) when the pace of a replica at work changes."""


class Host:
    """Keeps who is at work. A replica says `begin` when it gets work and `end` when it has none left."""

    def __init__(self, spec: HostSpec) -> None:
        self.spec = spec
        self._at_work: dict[int, Repace] = {}

    @property
    def pace(self) -> float:
        """Times as long as a replica alone would take, now."""
        busy, spec = len(self._at_work), self.spec
        shared = max(1.0, busy * spec.threads / spec.cores)
        return shared * (1.0 + spec.contention * max(0, busy - 1))

    def begin(self, now_s: float, who: int, repace: Repace) -> None:
        """Count a replica as at work; the others are told their new pace."""
        self._at_work[who] = repace
        self._tell(now_s, who)

    def end(self, now_s: float, who: int) -> None:
        """Count a replica as idle; the others are told their new pace. One that is not at work changes nothing."""
        if self._at_work.pop(who, None) is not None:
            self._tell(now_s, who)

    def _tell(self, now_s: float, but: int) -> None:
        pace = self.pace
        for who, repace in list(self._at_work.items()):
            if who != but:
                repace(now_s, pace)
