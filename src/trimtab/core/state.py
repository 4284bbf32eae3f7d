"""The state of a fleet as a fold over its events: nothing else holds state that outlives a process.

    state(n) = fold(state(n - 1), envelope(n)),  state(0) = EMPTY

Folding is pure and deterministic, so that a restart, a replay and the live controller agree. Requests and
readings only count: what they say is computed from the events themselves. A `Checkpoint` carries the state of
everything up to its `through_seq`, so `rebuild` starts there and skips what is older.
"""

import itertools
from collections.abc import Iterable
from typing import assert_never

import msgspec

from trimtab.core.budgets import Budgets
from trimtab.core.events import (
    AnyEvent,
    BudgetsRead,
    Calibrated,
    Checkpoint,
    ConfigReloaded,
    CutsKept,
    Diagnosed,
    Effect,
    Envelope,
    FleetSized,
    Frozen,
    GatesEvaluated,
    HandedOver,
    HealthChanged,
    KVMoved,
    LedgerGap,
    LeverProposed,
    LeversAssessed,
    Measured,
    QualityScored,
    ReplicaChanged,
    ReplicaCrashed,
    RequestServed,
    RolesDecided,
    RolloutMoved,
    RunEnded,
    RunStarted,
    SessionsExposed,
    StageEnded,
    StageStarted,
    TrafficPlanned,
    TriggerMoved,
    VerificationDue,
    kind_of,
    lever_of,
)
from trimtab.core.findings import Diagnosis
from trimtab.core.gate import GateResult
from trimtab.core.lever import LeverRecord
from trimtab.core.quality_scores import Scores
from trimtab.core.revision import Revision
from trimtab.core.traffic import TrafficPlan
from trimtab.core.trigger_status import TriggerStatus, trigger_after, triggers_after
from trimtab.core.types import Arm, ReplicaState, Role, RolloutState, Verdict

FLOW_KINDS = frozenset({"request_served", "measured"})
"""Events that come with the traffic: they only count in the state, and retention folds them first."""


class ReplicaStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A replica as its last events left it. `crashes` counts those of this run."""

    state: ReplicaState
    revision: Revision
    url: str | None = None
    pid: int | None = None
    reason: str = ""
    crashes: int = 0
    since_s: float = 0.0
    role: Role = Role.MIXED


class LeverStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A lever: its record, where its rollout is, what the last look said, what was kept, what it did.

    `proposal_id` is the id of the event that proposed it; `effects` has the latest per metric and cut.
    `verification`: why it is to be verified again, None once it was. `scores`: its evaluations, the last ones.
    `exposed`: how many sessions met each arm in its present or last proof.
    """

    record: LeverRecord | None = None
    proposal_id: str | None = None
    state: RolloutState = RolloutState.PROPOSED
    share: float = 0.0
    verdict: Verdict | None = None
    reason: str = ""
    moved_at_s: float = 0.0
    look: int = 0
    look_verdict: Verdict | None = None
    results: tuple[GateResult, ...] = ()
    kept: tuple[str, ...] = ()
    refused: dict[str, str] = {}
    triggers: dict[str, TriggerStatus] = {}
    effects: dict[str, Effect] = {}
    verification: VerificationDue | None = None
    scores: tuple[Scores, ...] = ()
    exposed: dict[Arm, int] = {}

    @property
    def is_held_off(self) -> bool:
        """Whether a trigger keeps the lever off now."""
        return any(trigger.fired for trigger in self.triggers.values())


class State(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that is true after the event `seq`. JSON-encodable; `counts` is by event kind.

    `diagnoses` has the latest by scope, `budgets` the latest by moment (`budgets_key`), `calibrations` the latest by
    revision id. `lost` counts the events that the ledger could not store.
    """

    seq: int = 0
    at_s: float = 0.0
    counts: dict[str, int] = {}
    lost: int = 0
    run: RunStarted | None = None
    run_ended: str | None = None
    stage: str | None = None
    stages: dict[str, dict[str, float | int | str | None]] = {}
    replicas: dict[str, ReplicaStatus] = {}
    levers: dict[str, LeverStatus] = {}
    plan: TrafficPlan | None = None
    frozen: bool = False
    frozen_because: str = ""
    diagnoses: dict[str, Diagnosis] = {}
    diagnosed_scope: str | None = None
    assessed: LeversAssessed | None = None
    budgets: dict[str, Budgets] = {}
    calibrations: dict[str, Calibrated] = {}


EMPTY = State()

SCORES_MAX = 64
"""Evaluations of one lever that are remembered."""

_VERIFYING = frozenset({RolloutState.RAMPING, RolloutState.PROVING, RolloutState.PAUSED})
_GONE = frozenset({RolloutState.ROLLED_BACK, RolloutState.EXPIRED})


def answers_verification(moved: RolloutMoved) -> bool:
    """Whether a move answers what was to be verified: the gates were asked, or the lever went back or expired."""
    return moved.before in _VERIFYING or moved.after in _GONE


def begins_proof(moved: RolloutMoved) -> bool:
    """Whether an adopted lever begins to be proven again: whom it is shown to is told anew."""
    return moved.before is RolloutState.ADOPTED and moved.after in _VERIFYING


def budgets_key(when: str, lever: str | None) -> str:
    """Return the key of `State.budgets` for a moment, and for a lever if it is about one."""
    return when if lever is None else f"{when}/{lever}"


def fold(state: State, envelope: Envelope) -> State:
    """Return the state after one more event; `state` itself is left as it was."""
    counted = count(state, kind_of(envelope.event), seq=envelope.seq, at_s=envelope.at_s)
    return _apply(counted, envelope, envelope.event)


def fold_all(state: State, envelopes: Iterable[Envelope]) -> State:
    """Return the same as `fold` over each in order, without copying all levers for every event of one of them."""
    levers = dict(state.levers)
    bare = msgspec.structs.replace(state, levers={})
    for envelope in envelopes:
        name = lever_of(envelope.event)
        known = levers.get(name) if name is not None else None
        mine = {} if name is None or known is None else {name: known}
        after = fold(msgspec.structs.replace(bare, levers=mine), envelope)
        levers.update(after.levers)
        bare = msgspec.structs.replace(after, levers={})
    return msgspec.structs.replace(bare, levers=levers)


def count(state: State, kind: str, *, seq: int, at_s: float, n: int = 1) -> State:
    """Count `n` events of one kind, the last of which is `seq`: all that events of `FLOW_KINDS` do."""
    counts = {**state.counts, kind: state.counts.get(kind, 0) + n}
    return msgspec.structs.replace(state, seq=seq, at_s=at_s, counts=counts)


def rebuild(envelopes: Iterable[Envelope]) -> State:
    """Return the state after all envelopes, which must be in order of `seq`.

    Starts from the last `Checkpoint` among them, if there is one. Raises `msgspec.ValidationError` if its state
    cannot be read.
    """
    everything = list(envelopes)
    state, through_seq = EMPTY, 0
    for envelope in reversed(everything):
        if isinstance(envelope.event, Checkpoint):
            state, through_seq = decode_state(envelope.event.state), envelope.event.through_seq
            break
    return fold_all(state, itertools.dropwhile(lambda each: each.seq <= through_seq, everything))


def encode_state(state: State) -> str:
    """Encode a state as deterministic JSON text, as checkpoints carry it."""
    return msgspec.json.encode(state, order="deterministic").decode()


def decode_state(text: str) -> State:
    """Decode a state; raises `msgspec.ValidationError` with the path of what is wrong."""
    return msgspec.json.decode(text, type=State)


def _apply(state: State, envelope: Envelope, event: AnyEvent) -> State:
    match event:
        case RequestServed() | HandedOver() | Measured() | KVMoved() | Checkpoint():
            return state
        case FleetSized() | ConfigReloaded() | HealthChanged() | RolesDecided():
            return state
        case LedgerGap():
            return msgspec.structs.replace(state, lost=state.lost + event.lost)
        case RunStarted() | RunEnded() | StageStarted() | StageEnded():
            return _apply_run(state, event)
        case ReplicaChanged() | ReplicaCrashed():
            return _apply_replica(state, envelope.at_s, event)
        case Calibrated():
            known = {**state.calibrations, event.revision: event}
            return msgspec.structs.replace(state, calibrations=known)
        case Diagnosed():
            diagnoses = {**state.diagnoses, event.scope: event.diagnosis}
            return msgspec.structs.replace(state, diagnoses=diagnoses, diagnosed_scope=event.scope)
        case LeversAssessed():
            return msgspec.structs.replace(state, assessed=event)
        case BudgetsRead():
            budgets = {**state.budgets, budgets_key(event.when, event.lever): event.budgets}
            return msgspec.structs.replace(state, budgets=budgets)
        case TrafficPlanned():
            return msgspec.structs.replace(state, plan=event.plan)
        case Frozen():
            return msgspec.structs.replace(state, frozen=event.frozen, frozen_because=event.reason)
        case LeverProposed():
            earlier = state.levers.get(event.record.name, LeverStatus())
            anew = _proposed(envelope, event.record, earlier)
            return _with_lever(state, event.record.name, anew)
        case (
            RolloutMoved()
            | GatesEvaluated()
            | SessionsExposed()
            | CutsKept()
            | VerificationDue()
            | QualityScored()
            | TriggerMoved()
            | Effect()
        ):
            before = state.levers.get(event.lever, LeverStatus())
            return _with_lever(state, event.lever, _apply_lever(before, envelope.at_s, event))
        case _:
            assert_never(event)


def _apply_run(state: State, event: RunStarted | RunEnded | StageStarted | StageEnded) -> State:
    match event:
        case RunStarted():
            # The processes of an earlier run are gone; what it decided is not.
            return msgspec.structs.replace(
                state, run=event, run_ended=None, stage=None, stages={}, replicas={}
            )
        case RunEnded():
            return msgspec.structs.replace(state, run_ended=event.reason, stage=None)
        case StageStarted():
            return msgspec.structs.replace(state, stage=event.stage)
        case StageEnded():
            stages = {**state.stages, event.stage: event.summary}
            return msgspec.structs.replace(state, stage=None, stages=stages)
        case _:
            assert_never(event)


def _apply_replica(state: State, at_s: float, event: ReplicaChanged | ReplicaCrashed) -> State:
    before = state.replicas.get(event.replica)
    match event:
        case ReplicaChanged():
            after = ReplicaStatus(
                state=event.state,
                revision=event.revision,
                url=event.url,
                pid=event.pid,
                reason=event.reason,
                crashes=before.crashes if before else 0,
                since_s=at_s,
                role=event.role,
            )
        case ReplicaCrashed():
            if before is None:
                return state
            after = msgspec.structs.replace(
                before,
                state=ReplicaState.FAILED,
                pid=None,
                reason=f"its process ended with code {event.exit_code}",
                crashes=event.crashes,
                since_s=at_s,
            )
        case _:
            assert_never(event)
    return msgspec.structs.replace(state, replicas={**state.replicas, event.replica: after})


def _with_lever(state: State, name: str, status: LeverStatus) -> State:
    return msgspec.structs.replace(state, levers={**state.levers, name: status})


def _proposed(envelope: Envelope, record: LeverRecord, earlier: LeverStatus) -> LeverStatus:
    was = earlier.record
    is_alike = was is not None and (was.revision, was.policy) == (record.revision, record.policy)
    return LeverStatus(
        # What was scored is what the lever runs: drawn from another slice it answers the same.
        scores=earlier.scores if is_alike else (),
        record=record,
        proposal_id=envelope.id,
        moved_at_s=envelope.at_s,
        triggers={spec.name: TriggerStatus(spec=spec) for spec in record.triggers},
    )


def _apply_lever(
    status: LeverStatus,
    at_s: float,
    event: RolloutMoved
    | GatesEvaluated
    | SessionsExposed
    | CutsKept
    | VerificationDue
    | QualityScored
    | TriggerMoved
    | Effect,
) -> LeverStatus:
    match event:
        case RolloutMoved():
            return msgspec.structs.replace(
                status,
                state=event.after,
                share=event.share,
                verdict=event.verdict,
                reason=event.reason,
                moved_at_s=at_s,
                verification=None if answers_verification(event) else status.verification,
                exposed={} if begins_proof(event) else status.exposed,
                triggers=triggers_after(status.triggers, event),
            )
        case GatesEvaluated():
            return msgspec.structs.replace(
                status, look=event.look, look_verdict=event.verdict, results=event.results
            )
        case SessionsExposed():
            more = {Arm.BASELINE: len(event.baseline), Arm.CANDIDATE: len(event.candidate)}
            met = {arm: status.exposed.get(arm, 0) + n for arm, n in more.items()}
            return msgspec.structs.replace(status, exposed=met)
        case VerificationDue():
            return msgspec.structs.replace(status, verification=event)
        case QualityScored():
            kept = (*status.scores, event.scores)[-SCORES_MAX:]
            return msgspec.structs.replace(status, scores=kept)
        case CutsKept():
            # What was refused stays so, whichever cut left last, until a proof keeps it.
            refused = {**status.refused, **event.refused}
            still = {cut: why for cut, why in refused.items() if cut not in event.kept}
            return msgspec.structs.replace(status, kept=event.kept, refused=still)
        case TriggerMoved():
            name = event.trigger.name
            after = trigger_after(status.triggers.get(name), at_s, event)
            return msgspec.structs.replace(status, triggers={**status.triggers, name: after})
        case Effect():
            effects = {**status.effects, f"{event.metric}/{event.cut}": event}
            return msgspec.structs.replace(status, effects=effects)
        case _:
            assert_never(event)
