"""Everything that can happen, as values. The ledger stores these and nothing else; all state is a fold over them.

Every event has an id and the id of the event that caused it. No event carries prompt or output text.
"""

import hashlib

import msgspec

from trimtab.core.budgets import Budgets
from trimtab.core.cost import CostModel, SpeculationTable
from trimtab.core.decision import FleetView, RouteRequest, RoutingDecision
from trimtab.core.events_fleet import ConfigReloaded as ConfigReloaded
from trimtab.core.events_fleet import Event as Event
from trimtab.core.events_fleet import FleetSized as FleetSized
from trimtab.core.events_fleet import HealthChanged as HealthChanged
from trimtab.core.events_fleet import KVMoved as KVMoved
from trimtab.core.events_fleet import ReplicaChanged as ReplicaChanged
from trimtab.core.events_fleet import ReplicaCrashed as ReplicaCrashed
from trimtab.core.events_fleet import RolesDecided as RolesDecided
from trimtab.core.evidence import Readings
from trimtab.core.findings import Diagnosis
from trimtab.core.gate import GateResult
from trimtab.core.handover import HandOver, PrefillScore
from trimtab.core.lever import Assessment, LeverRecord, TriggerSpec
from trimtab.core.quality_scores import Scores
from trimtab.core.record import RequestRecord
from trimtab.core.traffic import TrafficPlan
from trimtab.core.types import (
    Budget,
    Phase,
    RolloutState,
    Verdict,
)


class RunStarted(Event, frozen=True, kw_only=True, tag="run_started"):
    """A gateway or a tune began. `settings` names every setting that shaped it."""

    run_id: str
    command: str
    version: str
    settings: dict[str, str | int | float | bool]


class RunEnded(Event, frozen=True, kw_only=True, tag="run_ended"):
    """A run came to its end, with the reason."""

    run_id: str
    reason: str


class StageStarted(Event, frozen=True, kw_only=True, tag="stage_started"):
    """A stage of a tune began; `load` says in words which arrivals it uses."""

    stage: str
    load: str


class StageEnded(Event, frozen=True, kw_only=True, tag="stage_ended"):
    """A stage of a tune ended; `summary` are its figures by name."""

    stage: str
    summary: dict[str, float | int | str | None]


class RequestServed(Event, frozen=True, kw_only=True, tag="request_served"):
    """One request with the decision that routed it, what was asked, and the fleet as that decision saw it.

    `draw`: the number in [0, 1) that the policy got. With `asked`, `draw` and `view` it can be decided again.
    `prefill`: where its prompt was to be prefilled and why, None in a fleet without prefill replicas.
    """

    record: RequestRecord
    decision: RoutingDecision | None
    view: FleetView | None
    asked: RouteRequest | None = None
    draw: float | None = None
    prefill: PrefillScore | None = None


class HandedOver(Event, frozen=True, kw_only=True, tag="handed_over"):
    """A prompt's KV went from one replica to another, or was to: what was sent, what arrived, and the cause if not."""

    hand_over: HandOver


class Measured(Event, frozen=True, kw_only=True, tag="measured"):
    """Readings taken from engines or requests."""

    readings: Readings
    what: str


class Calibrated(Event, frozen=True, kw_only=True, tag="calibrated"):
    """Costs measured on the engine itself."""

    revision: str
    cost: CostModel | None = None
    speculation: SpeculationTable | None = None


class Diagnosed(Event, frozen=True, kw_only=True, tag="diagnosed"):
    """A diagnosis was made; `scope` says of what (baseline, after a lever, burst)."""

    diagnosis: Diagnosis
    scope: str


class LeversAssessed(Event, frozen=True, kw_only=True, tag="levers_assessed"):
    """Every lever was assessed in narrowest-first order; `chosen` is None if none is worth it."""

    assessments: tuple[Assessment, ...]
    chosen: str | None
    because: str


class LeverProposed(Event, frozen=True, kw_only=True, tag="lever_proposed"):
    """A complete lever record was accepted as a proposal."""

    record: LeverRecord


class RolloutMoved(Event, frozen=True, kw_only=True, tag="rollout_moved"):
    """A rollout changed state or share. `share` is the part of traffic in the candidate slice."""

    lever: str
    before: RolloutState | None
    after: RolloutState
    share: float
    verdict: Verdict | None = None
    reason: str


class GatesEvaluated(Event, frozen=True, kw_only=True, tag="gates_evaluated"):
    """The gates of a lever were evaluated; `look` counts the looks so far."""

    lever: str
    state: RolloutState
    share: float
    look: int
    verdict: Verdict
    results: tuple[GateResult, ...]


class SessionsExposed(Event, frozen=True, kw_only=True, tag="sessions_exposed"):
    """Sessions (or tenants) that met an arm of a lever for the first time; in one proof each is told once an arm.

    They are keyed hashes. A lever that is drawn by request tells none: each request's own record says its arm.
    """

    lever: str
    share: float
    candidate: tuple[str, ...] = ()
    baseline: tuple[str, ...] = ()


class CutsKept(Event, frozen=True, kw_only=True, tag="cuts_kept"):
    """The cuts for which a lever was adopted, and those it was refused for, with reasons."""

    lever: str
    kept: tuple[str, ...]
    refused: dict[str, str]


class VerificationDue(Event, frozen=True, kw_only=True, tag="verification_due"):
    """A lever is to be verified again, because another that shares budgets, phases and traffic with it changed.

    `changed` is the other lever and `moved_to` what became of it; `cuts`: the traffic that both touch.
    """

    lever: str
    changed: str
    moved_to: RolloutState
    budgets: tuple[Budget, ...]
    phases: tuple[Phase, ...]
    cuts: tuple[str, ...]


class QualityScored(Event, frozen=True, kw_only=True, tag="quality_scored"):
    """An evaluation asked both arms of a lever the same items; what passed, by cut, as counts."""

    lever: str
    scores: Scores


class TriggerMoved(Event, frozen=True, kw_only=True, tag="trigger_moved"):
    """A trigger disabled a lever or let it come back. `value` is the watched signal when it did."""

    lever: str
    trigger: TriggerSpec
    fired: bool
    value: float
    samples: int
    action: str


class BudgetsRead(Event, frozen=True, kw_only=True, tag="budgets_read"):
    """The four budgets at a moment: before, predicted for a lever, or after it."""

    when: str
    lever: str | None
    budgets: Budgets


class Effect(Event, frozen=True, kw_only=True, tag="effect"):
    """What a lever did, measured: the ratio of a metric with its interval, against the prediction."""

    lever: str
    metric: str
    cut: str
    ratio: float | None
    low: float | None
    high: float | None
    n_baseline: int
    n_candidate: int
    n_units: int = 0
    predicted_ratio: float | None = None


class TrafficPlanned(Event, frozen=True, kw_only=True, tag="traffic_planned"):
    """The gateway follows this plan from here on; after a restart the last one says where a rollout was."""

    plan: TrafficPlan


class Frozen(Event, frozen=True, kw_only=True, tag="frozen"):
    """Promotions stopped (or go on again); taking back is always allowed."""

    frozen: bool
    reason: str


class LedgerGap(Event, frozen=True, kw_only=True, tag="ledger_gap"):
    """Events that could not be stored: how many, the first and the last id, and why."""

    lost: int
    first_id: str
    last_id: str
    reason: str


class Checkpoint(Event, frozen=True, kw_only=True, tag="checkpoint"):
    """Retention: up to `through_seq` only what a lever's chain needs is left.

    `state` is the fold of everything up to `through_seq`, as JSON text, and `state_hash` its SHA-256;
    `through_id` and `chain_hash` are the id and the hash of that last event. `removed` are the runs of
    seqs (first, last) that are gone, and `kept_hash` covers the seqs and hashes of what stayed, so that
    neither can be changed unseen.
    """

    through_seq: int
    through_id: str
    chain_hash: str
    state_hash: str
    state: str
    removed: tuple[tuple[int, int], ...]
    kept_hash: str


AnyEvent = (
    RunStarted
    | RunEnded
    | StageStarted
    | StageEnded
    | ReplicaChanged
    | RolesDecided
    | ReplicaCrashed
    | HealthChanged
    | FleetSized
    | ConfigReloaded
    | KVMoved
    | RequestServed
    | HandedOver
    | Measured
    | Calibrated
    | Diagnosed
    | LeversAssessed
    | LeverProposed
    | RolloutMoved
    | GatesEvaluated
    | SessionsExposed
    | CutsKept
    | VerificationDue
    | QualityScored
    | TriggerMoved
    | BudgetsRead
    | Effect
    | TrafficPlanned
    | Frozen
    | LedgerGap
    | Checkpoint
)


class Envelope(msgspec.Struct, frozen=True, kw_only=True):
    """An event at its place in the ledger.

    `at_s` is wall-clock time (seconds since 1970, UTC). `hash` = SHA-256 over the previous hash and the encoded
    rest, so that nothing can be changed, dropped or moved unseen.
    """

    seq: int
    id: str
    cause_id: str | None
    at_s: float
    event: AnyEvent
    prev_hash: str
    hash: str


def kind_of(event: AnyEvent) -> str:
    """Return the kind of an event as it stands in the ledger."""
    return str(event.__struct_config__.tag)


def lever_of(event: AnyEvent) -> str | None:
    """Return the name of the one lever an event is about, None if it is about none or about all."""
    if isinstance(event, LeverProposed):
        return event.record.name
    about = (
        RolloutMoved | GatesEvaluated | CutsKept | VerificationDue | TriggerMoved | QualityScored
    )
    if isinstance(event, about | SessionsExposed | BudgetsRead | Effect):
        return event.lever
    return None


GENESIS_HASH = "0" * 64


# Made once: looking through the union of all events takes several times longer than decoding one.
_ENCODER = msgspec.json.Encoder(order="deterministic")
_DECODER: msgspec.json.Decoder[AnyEvent] = msgspec.json.Decoder(AnyEvent)


def encode_event(event: AnyEvent) -> bytes:
    """Encode an event as deterministic JSON."""
    return _ENCODER.encode(event)


def decode_event(data: bytes | str) -> AnyEvent:
    """Decode an event; raises msgspec.ValidationError with the path of what is wrong."""
    return _DECODER.decode(data)


def chain_hash(
    *, prev_hash: str, seq: int, event_id: str, cause_id: str | None, at_s: float, body: bytes
) -> str:
    """Return the hash that links an event to the one before it."""
    head = msgspec.json.encode([prev_hash, seq, event_id, cause_id, at_s])
    return hashlib.sha256(head + b"\n" + body).hexdigest()
