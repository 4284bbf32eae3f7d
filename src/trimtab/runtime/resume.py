"""What a start does with what the ledger says: every lever is where it was.

Adopted levers stay on and disabled ones off, watched by their triggers. A lever that was being proven goes on in its
state and at its share; its clock and its evidence begin anew, since what it had measured ended with the process. A
lever that cannot be served as before goes back, with an event that says why, written before any traffic is served.
"""

from collections.abc import Callable

import msgspec

from trimtab.core.cuts import Cut
from trimtab.core.events import RolloutMoved
from trimtab.core.lever import LeverRecord, TriggerAction
from trimtab.core.quality_scores import Scores
from trimtab.core.revision import Model, Revision
from trimtab.core.state import LeverStatus, State
from trimtab.core.traffic import Preference, TrafficPlan
from trimtab.core.types import ReplicaState, RolloutState, Technique
from trimtab.rollout.answer import ALL_TRAFFIC
from trimtab.rollout.machine import RUNNING
from trimtab.rollout.plans import own_replicas
from trimtab.rollout.short_record import parse_cut
from trimtab.runtime.adopted import ASKED, PERSON

STOPPED_WITH_FLEET = "fleet stopped"
"""Why a replica that was there at a run's end is stopped; one that left before says another reason."""

PROVING = RUNNING | {RolloutState.PAUSED}


class Unfinished(msgspec.Struct, frozen=True, kw_only=True):
    """A lever that was being proven, where it was; `proposal_id`: the event that proposed it; `out`: cuts it lost."""

    record: LeverRecord
    state: RolloutState
    share: float
    proposal_id: str
    out: dict[Cut, str] = {}


class Off(msgspec.Struct, frozen=True, kw_only=True):
    """An adopted lever that was held off. `by`: its triggers, or a person; `cuts`: those it was adopted for.

    `narrowed_by`: triggers that hold back a part of it besides.
    """

    record: LeverRecord
    by: frozenset[str]
    cuts: tuple[Cut, ...]
    without: tuple[Cut, ...] = ()
    narrowed_by: frozenset[str] = frozenset()


class Narrowed(msgspec.Struct, frozen=True, kw_only=True):
    """What triggers took from an adopted lever that is on: a cut, or part of its affinity.

    `by`: those triggers; `cuts`: those it was adopted for; `without`: those that it never gets.
    """

    by: frozenset[str]
    cuts: tuple[Cut, ...]
    without: tuple[Cut, ...] = ()


class Resumed(msgspec.Struct, frozen=True, kw_only=True):
    """How to start: the plan, the revision of each replica, and the moves to record first.

    `proving`: at most one lever, whose slice is exposed once the fleet serves; `due`: those to verify again;
    `narrowed`: adopted levers that triggers hold back in part.
    """

    plan: TrafficPlan
    revisions: dict[str, Revision]
    moves: tuple[RolloutMoved, ...]
    adopted: tuple[LeverRecord, ...]
    disabled: tuple[Off, ...] = ()
    proving: Unfinished | None = None
    frozen_because: str | None = None
    due: tuple[str, ...] = ()
    scores: dict[str, tuple[Scores, ...]] = {}
    narrowed: dict[str, Narrowed] = {}


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


def resume(
    state: State,
    *,
    replicas: tuple[str, ...],
    baseline: Revision,
    policy: str,
    has_artifact: Callable[[Model], bool] = lambda _: True,
) -> Resumed:
    """Decide how to start after whatever ended the last run. A ledger without levers gives a plain start.

    `has_artifact` says whether a lever's own model, such as one at another precision, lies whole where it did.
    """

    def can_serve(record: LeverRecord) -> bool:
        return _can_serve(record, baseline, has_artifact)

    plan = state.plan or TrafficPlan(policy=policy)
    adopted = {
        name: lever.record
        for name, lever in state.levers.items()
        if lever.state is RolloutState.ADOPTED and lever.record is not None
    }
    preferences = _preferences(plan, adopted, replicas, can_serve)
    lost = {name: _why_lost(record, plan, preferences) for name, record in adopted.items()}
    unfinished, moves = _unfinished(state, replicas, can_serve)
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
    if unfinished is not None and _wants_replica(unfinished):
        kept_plan = TrafficPlan(policy=policy, preferences=kept)
        theirs = own_replicas(kept_plan, unfinished.record.name, replicas)
        revisions.update(dict.fromkeys(theirs, unfinished.record.revision or baseline))
    return Resumed(
        plan=TrafficPlan(
            policy=plan.policy if stays else policy,
            preferences=kept,
            reserves=tuple(each for each in plan.reserves if each.lever in stays),
        ),
        revisions=revisions,
        moves=tuple(moves),
        adopted=tuple(stays.values()),
        disabled=_disabled(state),
        proving=unfinished,
        frozen_because=state.frozen_because if state.frozen else None,
        due=tuple(name for name in stays if state.levers[name].verification is not None),
        scores={name: lever.scores for name, lever in state.levers.items() if lever.scores},
        narrowed=_narrowed(state, stays),
    )


def _wants_replica(unfinished: Unfinished) -> bool:
    return unfinished.state in RUNNING and unfinished.record.revision is not None


def _can_serve(
    record: LeverRecord, baseline: Revision, has_artifact: Callable[[Model], bool]
) -> bool:
    """Whether a lever's revision is of the model that is served, or of its own artifact of that model."""
    revision = record.revision
    if revision is None or revision.model.sha256 == baseline.model.sha256:
        return True
    if record.technique is not Technique.QUANTIZATION:
        return False
    return revision.model.name == baseline.model.name and has_artifact(revision.model)


def _unfinished(
    state: State, replicas: tuple[str, ...], can_serve: Callable[[LeverRecord], bool]
) -> tuple[Unfinished | None, list[RolloutMoved]]:
    """Return the lever that goes on being proven, and the moves of those that cannot."""
    found: Unfinished | None = None
    moves: list[RolloutMoved] = []
    for name, lever in state.levers.items():
        if lever.state not in PROVING:
            continue
        reason = _why_not_proven(lever, replicas, can_serve)
        if found is not None:
            reason = f"{found.record.name} is being proven: one lever at a time"
        if reason is None and lever.record is not None:
            found = Unfinished(
                record=lever.record,
                state=lever.state,
                share=lever.share,
                proposal_id=lever.proposal_id or "",
                out={parse_cut(cut): why for cut, why in lever.refused.items()},
            )
        else:
            moves.append(
                _rolled_back(name, lever.state, reason or "its record is not in the ledger")
            )
    return found, moves


def _why_not_proven(
    lever: LeverStatus, replicas: tuple[str, ...], can_serve: Callable[[LeverRecord], bool]
) -> str | None:
    record = lever.record
    if record is None:
        return "its record is not in the ledger"
    if record.revision is None:
        return None
    if not can_serve(record):
        return "it was being proven with another model"
    if len(replicas) < 2:
        return "it was being proven on a replica of its own, and there is only one now"
    return None


def _narrowed(state: State, adopted: dict[str, LeverRecord]) -> dict[str, Narrowed]:
    found = {}
    for name, record in adopted.items():
        lever = state.levers[name]
        by = _narrowed_by(lever)
        if by:
            found[name] = Narrowed(by=by, cuts=_kept(lever), without=_never(record, lever))
    return found


def _narrowed_by(lever: LeverStatus) -> frozenset[str]:
    """Return the triggers that hold back a part of a lever: what holds off all of it is told by its state."""
    return frozenset(
        name
        for name, trigger in lever.triggers.items()
        if trigger.fired and trigger.spec.action is not TriggerAction.DISABLE
    )


def _kept(lever: LeverStatus) -> tuple[Cut, ...]:
    """Return the cuts that a lever was adopted for, none for all traffic.

    One that lost every cut was adopted for those that it lost: all of them are among what it never gets.
    """
    kept = lever.kept or tuple(lever.refused)
    return tuple(parse_cut(text) for text in kept if text != ALL_TRAFFIC)


def _never(record: LeverRecord, lever: LeverStatus) -> tuple[Cut, ...]:
    return (*record.without, *(parse_cut(text) for text in lever.refused))


def _disabled(state: State) -> tuple[Off, ...]:
    return tuple(
        Off(
            record=lever.record,
            by=_held_by(lever),
            cuts=_kept(lever),
            without=_never(lever.record, lever),
            narrowed_by=_narrowed_by(lever),
        )
        for lever in state.levers.values()
        if lever.state is RolloutState.DISABLED and lever.record is not None
    )


def _held_by(lever: LeverStatus) -> frozenset[str]:
    """A person holds it off who said so last, also where a trigger fired while it was off."""
    fired = frozenset(
        name
        for name, trigger in lever.triggers.items()
        if trigger.fired and trigger.spec.action is TriggerAction.DISABLE
    )
    by_person = not fired or lever.reason.startswith(ASKED)
    return fired | {PERSON} if by_person else fired


def _preferences(
    plan: TrafficPlan,
    adopted: dict[str, LeverRecord],
    replicas: tuple[str, ...],
    can_serve: Callable[[LeverRecord], bool],
) -> tuple[Preference, ...]:
    """Keep what can be served as before: by a lever that is adopted, on replicas that are started."""
    kept = []
    for preference in plan.preferences:
        record = adopted.get(preference.lever)
        theirs = tuple(replica for replica in preference.replicas if replica in replicas)
        if record is None or record.revision is None or not theirs:
            continue
        # The artifact may have moved or changed: only a revision of the same model comes back.
        if not can_serve(record):
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
