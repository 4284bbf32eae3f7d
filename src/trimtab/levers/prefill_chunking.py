"""A smaller prefill chunk: relieves decode stalls behind long prefills. Assessed, not moved by this version."""

from trimtab.core.budgets import BudgetMove
from trimtab.core.lever import (
    Actuation,
    Assessment,
    Dependency,
    LeverRecord,
    Narrowness,
    QualityExposure,
    Scope,
    Situation,
)
from trimtab.core.types import Budget, Technique
from trimtab.diagnosis.names import Name
from trimtab.levers.shape import not_moved, quote, refuse_to_propose

GAP_RATIO_MIN = 2.0
"""The longest chunk gap beside a prefill over the one without, from which on chunking is worth trying."""


class SmallerPrefillChunk:
    """The lever: restart replicas with a smaller largest prefill batch."""

    name = "smaller_prefill_chunk"

    def assess(self, situation: Situation) -> Assessment:
        """Premise: the longest gap of running streams rises while a prefill runs beside them."""
        beside = situation.readings.value(Name.CHUNK_GAP_MS_BESIDE_PREFILL)
        alone = situation.readings.value(Name.CHUNK_GAP_MS_ALONE)
        holds = beside is not None and bool(alone) and beside >= GAP_RATIO_MIN * (alone or 0.0)
        return not_moved(
            situation,
            name=self.name,
            technique=Technique.PREFILL_CHUNKING,
            premise=(
                "longest chunk gap in ms beside a prefill: "
                f"{quote(situation, Name.CHUNK_GAP_MS_BESIDE_PREFILL, '.0f')}, "
                f"without one: {quote(situation, Name.CHUNK_GAP_MS_ALONE, '.0f')} (needs {GAP_RATIO_MIN:.0f} times)"
            ),
            premise_holds=holds,
            moves=(
                BudgetMove(
                    budget=Budget.COMPUTE,
                    spends=True,
                    delta_share=None,
                    because="smaller batches of prompt tokens use the cores less well",
                ),
            ),
            narrowness=Narrowness(
                quality=QualityExposure.LOSSLESS_UP_TO_NUMERICS,
                dependency=Dependency.NONE,
                actuation=Actuation.RESTART,
                scope=Scope.SLICE,
                reverse_s=10.0,
            ),
            because=(
                "this version does not move the chunk: set engine.chunk_tokens by hand; it smooths gaps and "
                "shortens no request by itself"
            ),
        )

    def propose(self, situation: Situation, assessment: Assessment, because: str) -> LeverRecord:
        """Raise `LeverRecordError`: this version does not move it."""
        return refuse_to_propose(self.name, assessment)
