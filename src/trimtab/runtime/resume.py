"""What a start does with what the ledger says: adopted levers stay on, a lever still being proven goes back.

A proof lost its clock and its traffic with the crash, so its evidence is not continued; the lever can be proposed
again. An adopted lever that cannot be started as it was proven goes back too. Taking back is an event with its
reason, written before any traffic is served.
"""

import msgspec

from trimtab.core.events import RolloutMoved
from trimtab.core.lever import LeverRecord
from trimtab.core.revision import Revision
from trimtab.core.state import State
from trimtab.core.traffic import Preference, TrafficPlan
from trimtab.core.types import ReplicaState, RolloutState

STOPPED_WITH_FLEET = "fleet stopped"
"""Why a replica that was there at a run's end is stopped; one that left before says another reason."""

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


def remembered(state: State, configured: int) -> tuple[str, ...]:
    """Return the replicas to start: those of the last run's end, where the same number was configured for it.

    So a replica that was added while the fleet served is there again, and one that was removed is not. Another number
    in the configuration, or on the command line, counts as the newer word.
    """
    plain = tuple(f"r{index}" for index in range(configured))
    run = state.run
    if run is None or run.command != "up" or run.settings.get("fleet.replicas") != configured:
        return plain
    there = tuple(
        name
        for name, status in state.replicas.items()
        if status.state is not ReplicaState.STOPPED or status.reason == STOPPED_WITH_FLEET
    )
    return there or plain


def resume(state: State, *, replicas: tuple[str, ...], baseline: Revision, policy: str) -> Resumed:
    """Decide how to start after whatever ended the last run. A ledger without levers gives a plain start."""
    plan = state.plan or TrafficPlan(policy=policy)
    adopted = {
        name: lever.record
        for name, lever in state.levers.items()
        if lever.state is RolloutState.ADOPTED and lever.record is not None
    }
    preferences = _preferences(plan, adopted, replicas, baseline)
    lost = {name: _why_lost(record, plan, preferences) for name, record in adopted.items()}
    moves = [
        _rolled_back(name, lever.state, "the gateway ended while the lever was being proven")
        for name, lever in state.levers.items()
        if lever.state in PROVING
    ]
    moves += [
        _rolled_back(name, RolloutState.ADOPTED, reason)
        for name, reason in lost.items()
        if reason is not None
    ]
    stays = {name: record for name, record in adopted.items() if lost[name] is None}
    revisions = dict.fromkeys(replicas, baseline)
    kept = tuple(preference for preference in preferences if preference.lever in stays)
    for preference in kept:
        revisions.update(
            dict.fromkeys(preference.replicas, stays[preference.lever].revision or baseline)
        )
    return Resumed(
        plan=TrafficPlan(policy=plan.policy if stays else policy, preferences=kept),
        revisions=revisions,
        moves=tuple(moves),
        adopted=tuple(stays.values()),
    )


def _preferences(
    plan: TrafficPlan,
    adopted: dict[str, LeverRecord],
    replicas: tuple[str, ...],
    baseline: Revision,
) -> tuple[Preference, ...]:
    """Keep what can be served as before: by a lever that is adopted, on replicas that are started."""
    kept = []
    for preference in plan.preferences:
        record = adopted.get(preference.lever)
        theirs = tuple(replica for replica in preference.replicas if replica in replicas)
        if record is None or record.revision is None or not theirs:
            continue
        # The artifact may have moved or changed: only a revision of the same model comes back.
        if record.revision.model.sha256 != baseline.model.sha256:
            continue
        kept.append(msgspec.structs.replace(preference, replicas=theirs))
    return tuple(kept)


def _why_lost(
    record: LeverRecord, plan: TrafficPlan, preferences: tuple[Preference, ...]
) -> str | None:
    if plan.candidate is not None and plan.candidate.lever == record.name:
        return "the gateway ended before the adoption was carried out"
    if record.revision is not None and all(each.lever != record.name for each in preferences):
        return "it cannot come back with this model, these replicas and the cuts it had left"
    return None


def _rolled_back(name: str, before: RolloutState, reason: str) -> RolloutMoved:
    return RolloutMoved(
        lever=name,
        before=before,
        after=RolloutState.ROLLED_BACK,
        share=0.0,
        reason=f"{reason}: back to the baseline",
    )
