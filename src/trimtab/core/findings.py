"""The nouns of a diagnosis: what binds each phase, what dominates, how sure that is, what could be gained."""

import msgspec

from trimtab.core.budgets import Budgets
from trimtab.core.types import Phase, Resource, Technique


class PhaseFinding(msgspec.Struct, frozen=True, kw_only=True):
    """What binds one phase. `share` is its part of the time of all requests (0 to 1), None if unknown.

    `used_share` is how much of the binding resource is used (0 to 1), None if unknown.
    """

    phase: Phase
    resource: Resource | None
    share: float | None
    mean_ms: float | None
    used_share: float | None = None
    samples: int = 0
    because: str


class Ceiling(msgspec.Struct, frozen=True, kw_only=True):
    """The most a technique could gain: the time of all requests if what it relieves cost nothing.

    `gain_share` is the part (0 to 1) of mean end-to-end time that would vanish.
    """

    technique: Technique
    gain_share: float | None
    because: str


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One statement for or against a diagnosis, with the evidence ids behind it."""

    text: str
    evidence: tuple[str, ...] = ()


class Diagnosis(msgspec.Struct, frozen=True, kw_only=True):
    """Per phase its binding resource, and the dominant (phase, resource) or None when it cannot be told."""

    id: str
    at_s: float
    window_s: float
    samples: int
    phases: tuple[PhaseFinding, ...]
    dominant_phase: Phase | None
    dominant_resource: Resource | None
    confidence: float
    supports: tuple[Finding, ...] = ()
    contradicts: tuple[Finding, ...] = ()
    ruled_out: tuple[Finding, ...] = ()
    unknown: tuple[Finding, ...] = ()
    ceilings: tuple[Ceiling, ...] = ()
    budgets: Budgets = Budgets(())
    evidence: tuple[str, ...] = ()

    def phase(self, phase: Phase) -> PhaseFinding | None:
        """Return the finding of one phase, None if it was not judged."""
        return next((found for found in self.phases if found.phase is phase), None)

    def ceiling(self, technique: Technique) -> Ceiling | None:
        """Return the ceiling of one technique, None if it was not computed."""
        return next((found for found in self.ceilings if found.technique is technique), None)
