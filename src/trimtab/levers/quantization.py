"""Lower precision of weights, activations or KV: relieves memory, spends quality. Assessed, not moved here."""

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
from trimtab.core.types import Budget, Phase, Resource, Technique
from trimtab.levers.shape import not_moved, refuse_to_propose


class LowerPrecision:
    """The lever: a revision with fewer bits, weights first, then activations, then KV."""

    name = "lower_precision"

    def assess(self, situation: Situation) -> Assessment:
        """Premise: decode bandwidth or memory capacity is the dominant bottleneck."""
        phase, resource = (
            situation.diagnosis.dominant_phase,
            situation.diagnosis.dominant_resource,
        )
        bandwidth = phase is Phase.DECODE and resource is Resource.MEMORY_BANDWIDTH
        capacity = resource is Resource.MEMORY_CAPACITY
        shown = (
            "nothing" if phase is None or resource is None else f"{phase.value} by {resource.value}"
        )
        return not_moved(
            situation,
            name=self.name,
            technique=Technique.QUANTIZATION,
            premise=f"decode bandwidth or memory capacity binds; dominant: {shown}",
            premise_holds=bandwidth or capacity,
            moves=(
                BudgetMove(
                    budget=Budget.MEMORY,
                    spends=False,
                    delta_share=None,
                    because="fewer bytes per weight or per token of KV",
                ),
                BudgetMove(
                    budget=Budget.QUALITY,
                    spends=True,
                    delta_share=None,
                    because="rounding changes outputs; how much has to be measured by cut",
                ),
            ),
            narrowness=Narrowness(
                quality=QualityExposure.LOSSY,
                dependency=Dependency.NONE,
                actuation=Actuation.RESTART,
                scope=Scope.SLICE,
                reverse_s=10.0,
            ),
            because=(
                "it can change what users get: a person proposes it, with scored items that hold it "
                "within noise; it is never moved by itself"
            ),
        )

    def propose(self, situation: Situation, assessment: Assessment, because: str) -> LeverRecord:
        """Raise `LeverRecordError`: this version does not move it."""
        return refuse_to_propose(self.name, assessment)
