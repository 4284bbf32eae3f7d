"""What a start does with what the ledger says: adopted levers stay on, a lever still being proven goes back.

A proof lost its clock and its traffic with the crash, so its evidence is not continued; the lever can be proposed
again. Taking it back is an event with its reason, written before any traffic is served.
"""

import msgspec

from trimtab.core.events import RolloutMoved
from trimtab.core.lever import LeverRecord
from trimtab.core.revision import Revision
from trimtab.core.state import State
from trimtab.core.traffic import TrafficPlan
from trimtab.core.types import RolloutState

PROVING = frozenset(
    {
        RolloutState.PROPOSED,
        RolloutState.CANARY,
        RolloutState.RAMPING,
        RolloutState.PROVING,
        RolloutState.PAUSED,
    }
)


class Resumed(msgspec.Struct, frozen=True, kw_only=True):
    """How to start: the plan, the revision of each replica, and the moves to record first."""

    plan: TrafficPlan
    revisions: dict[str, Revision]
    moves: tuple[RolloutMoved, ...]
    adopted: tuple[LeverRecord, ...]


def resume(state: State, *, replicas: tuple[str, ...], baseline: Revision, policy: str) -> Resumed:
    """Decide how to start after whatever ended the last run. A ledger without levers gives a plain start."""
    moves = tuple(
        RolloutMoved(
            lever=name,
            before=lever.state,
            after=RolloutState.ROLLED_BACK,
            share=0.0,
            reason="the gateway ended while the lever was being proven: back to the baseline",
        )
        for name, lever in state.levers.items()
        if lever.state in PROVING
    )
    adopted: dict[str, LeverRecord] = {
        name: lever.record
        for name, lever in state.levers.items()
        if lever.state is RolloutState.ADOPTED and lever.record is not None
    }
    revisions = dict.fromkeys(replicas, baseline)
    plan = state.plan
    if plan is None or not adopted:
        return Resumed(
            plan=TrafficPlan(policy=policy), revisions=revisions, moves=moves, adopted=()
        )
    kept = []
    for preference in plan.preferences:
        record = adopted.get(preference.lever)
        theirs = tuple(replica for replica in preference.replicas if replica in revisions)
        if record is None or record.revision is None or not theirs:
            continue
        # The artifact may have moved or changed: only a revision of the same model comes back.
        if record.revision.model.sha256 != baseline.model.sha256:
            continue
        revisions.update(dict.fromkeys(theirs, record.revision))
        kept.append(msgspec.structs.replace(preference, replicas=theirs))
    resumed = TrafficPlan(policy=plan.policy, preferences=tuple(kept))
    return Resumed(plan=resumed, revisions=revisions, moves=moves, adopted=tuple(adopted.values()))
