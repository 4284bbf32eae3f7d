"""A parallel layout (tensor, pipeline, expert): relieves fit and single-stream latency, spends communication.

Assessed, not moved by this version.
"""

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
from trimtab.levers.shape import not_moved, refuse_to_propose

FIT_MAX_SHARE = 0.90


class ParallelLayout:
    """The lever: spread one model over several accelerators."""

    name = "parallel_layout"

    def assess(self, situation: Situation) -> Assessment:
        """Premise: the model does not fit one replica's memory; one that fits is served better by replicas."""
        used = situation.diagnosis.budgets.use(Budget.MEMORY).used_share
        tight = used is not None and used > FIT_MAX_SHARE
        shown = "unknown" if used is None else f"{used:.0%}"
        return not_moved(
            situation,
            name=self.name,
            technique=Technique.PARALLEL_LAYOUT,
            premise=(
                f"the model does not fit one replica: memory used {shown} (needs more than {FIT_MAX_SHARE:.0%}); "
                "a model that fits is served better by replicas than by a layout"
            ),
            premise_holds=tight,
            moves=(
                BudgetMove(
                    budget=Budget.COMMUNICATION,
                    spends=True,
                    delta_share=None,
                    because="every layer exchanges activations between accelerators",
                ),
            ),
            narrowness=Narrowness(
                quality=QualityExposure.LOSSLESS_UP_TO_NUMERICS,
                dependency=Dependency.NEW_HARDWARE,
                actuation=Actuation.RESTART,
                scope=Scope.EVERYTHING,
                reverse_s=60.0,
            ),
            because=(
                "a replica here is one process on this node's threads: there is no second accelerator "
                "to spread it over"
            ),
        )

    def propose(self, situation: Situation, assessment: Assessment, because: str) -> LeverRecord:
        """Raise `LeverRecordError`: this version does not move it."""
        return refuse_to_propose(self.name, assessment)
