"""Prefill and decode on different replicas: relieves interference, spends transfer. Assessed, not moved here."""

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
from trimtab.diagnosis.causes import split_causes
from trimtab.diagnosis.names import Name
from trimtab.levers.shape import not_moved, quote, refuse_to_propose

STALLED_MIN_SHARE = 0.10
BUSY_MIN_SHARE = 0.40
"""Below this busy share roles of their own would leave replicas idle."""


class SplitRoles:
    """The lever: give replicas the roles prefill and decode."""

    name = "split_prefill_and_decode"

    def assess(self, situation: Situation) -> Assessment:
        """Premise: prefills stall decode for a good part of request time, under steady load."""
        causes = split_causes(situation.readings, situation.cost)
        busy = situation.readings.value(Name.BUSY_SHARE)
        stalled = None if causes is None else causes.stalled_decode
        holds = (
            stalled is not None
            and busy is not None
            and stalled >= STALLED_MIN_SHARE
            and busy >= BUSY_MIN_SHARE
        )
        return not_moved(
            situation,
            name=self.name,
            technique=Technique.DISAGGREGATION,
            premise=(
                f"prefills stall decode for {'unknown' if stalled is None else f'{stalled:.1%}'} of request time "
                f"(needs {STALLED_MIN_SHARE:.0%}); replicas are busy {quote(situation, Name.BUSY_SHARE)} "
                f"(needs {BUSY_MIN_SHARE:.0%})"
            ),
            premise_holds=holds,
            moves=(
                BudgetMove(
                    budget=Budget.COMMUNICATION,
                    spends=True,
                    delta_share=None,
                    because="the KV of every prompt moves from a prefill to a decode replica",
                ),
            ),
            narrowness=Narrowness(
                quality=QualityExposure.LOSSLESS_UP_TO_NUMERICS,
                dependency=Dependency.ANOTHER_REPLICA,
                actuation=Actuation.ROUTING,
                scope=Scope.SLICE,
                reverse_s=10.0,
            ),
            because="this version has mixed replicas only and does not hand KV over per request",
        )

    def propose(self, situation: Situation, assessment: Assessment, because: str) -> LeverRecord:
        """Raise `LeverRecordError`: this version does not move it."""
        return refuse_to_propose(self.name, assessment)
