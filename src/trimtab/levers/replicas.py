"""One more replica: relieves queueing, spends hardware. Assessed here; added and removed when somebody asks for it.

Before one is removed: with N - 1 of N replicas each gets N / (N - 1) of its load. That must stay below where another
replica would be asked for (else the two would take turns), and the streams of the busiest moment must find slots.
"""

import msgspec

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

QUEUE_MIN_SHARE = 0.20
BUSY_MIN_SHARE = 0.70
"""Another replica helps only if the present ones are this busy: checked as share x N / (N + 1)."""


class Removal(msgspec.Struct, frozen=True, kw_only=True):
    """Whether one of `replicas` may leave. Shares are 0 to 1; None is unknown."""

    allowed: bool
    because: str
    replicas: int
    busy_share: float | None
    busy_share_after: float | None
    streams_max: int
    slots_after: int


def judge_removal(
    *, replicas: int, busy_share: float | None, streams_max: int, slots_after: int
) -> Removal:
    """Judge by N / (N - 1) whether one replica fewer carries what `replicas` carry now.

    `busy_share`: mean of the replicas; `streams_max`: most requests in flight at once lately; `slots_after`: of those
    that stay.
    """
    left = replicas - 1
    after = None if busy_share is None or left < 1 else busy_share * replicas / left
    told = f"{left} of {replicas} get {replicas / left:.2f} of their load" if left else ""
    busy = (
        "how busy they are is unknown"
        if busy_share is None or after is None
        else f"busy {busy_share:.0%} becomes {after:.0%} (at most {BUSY_MIN_SHARE:.0%})"
    )
    streams = f"{streams_max} requests at once lately on {slots_after} slots"
    if left < 1:
        allowed, because = False, "it is the only one: nothing would serve"
    elif after is None:
        allowed, because = False, f"{told}; {busy}"
    else:
        allowed = after <= BUSY_MIN_SHARE and streams_max <= slots_after
        because = f"{told}: {busy}, {streams}"
    return Removal(
        allowed=allowed,
        because=because,
        replicas=replicas,
        busy_share=busy_share,
        busy_share_after=after,
        streams_max=streams_max,
        slots_after=slots_after,
    )


class AddReplica:
    """The lever: start one more replica of the same revision."""

    name = "add_replica"

    def assess(self, situation: Situation) -> Assessment:
        """Premise: requests queue and the replicas there are have no time left."""
        queue = situation.readings.value(Name.QUEUE_SHARE)
        busy = situation.readings.value(Name.CPU_BUSY_SHARE)
        if busy is None:
            busy = situation.readings.value(Name.BUSY_SHARE)
        n = situation.replicas
        after = None if busy is None else busy * n / (n + 1)
        holds = (
            queue is not None
            and busy is not None
            and queue >= QUEUE_MIN_SHARE
            and busy >= BUSY_MIN_SHARE
        )
        return not_moved(
            situation,
            name=self.name,
            technique=Technique.REPLICAS,
            premise=(
                f"queueing is {quote(situation, Name.QUEUE_SHARE)} of request time (needs {QUEUE_MIN_SHARE:.0%}) "
                f"and replicas are busy {'unknown' if busy is None else f'{busy:.0%}'} "
                f"(needs {BUSY_MIN_SHARE:.0%}), {'unknown' if after is None else f'{after:.0%}'} with {n + 1}"
            ),
            premise_holds=holds,
            moves=(
                BudgetMove(
                    budget=Budget.COMPUTE,
                    spends=False,
                    delta_share=None if busy is None or after is None else after - busy,
                    because=f"the same work on {n + 1} replicas, if they get threads of their own",
                ),
                BudgetMove(
                    budget=Budget.MEMORY,
                    spends=True,
                    delta_share=_memory(situation),
                    because="one more copy of weights and KV",
                ),
            ),
            narrowness=Narrowness(
                quality=QualityExposure.NONE,
                dependency=Dependency.ANOTHER_REPLICA,
                actuation=Actuation.RESTART,
                scope=Scope.EVERYTHING,
                reverse_s=30.0,
            ),
            because=(
                "the threads of this node are shared out already and no replica is added without being asked for: "
                "`trimtab fleet add` starts one, and it shares cores with the others"
            ),
        )

    def propose(self, situation: Situation, assessment: Assessment, because: str) -> LeverRecord:
        """Raise `LeverRecordError`: this version does not move it."""
        return refuse_to_propose(self.name, assessment)


def _memory(situation: Situation) -> float | None:
    used = situation.diagnosis.budgets.use(Budget.MEMORY).used_share
    return None if used is None else used / situation.replicas
