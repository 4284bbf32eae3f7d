"""A lever's causal record told in words: what bound, what was predicted, what every look said, what came of it.

`chain` selects the events that belong to a lever: its own but whom it was shown to, the diagnosis and the readings its
record cites, the choice that picked it, the traffic plans that carried it, the causes of all these, and what they
caused. `tell` says one of them in plain sentences with numbers, windows and sample counts; what is unknown is called
unknown.
"""

from collections.abc import Iterable, Sequence
from typing import assert_never

import msgspec

from trimtab.core.cost import CostModel
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
    lever_of,
)
from trimtab.core.lever import LeverRecord
from trimtab.core.narrate_roles import tell_hand_over, tell_roles
from trimtab.core.narrate_words import (
    clause,
    number,
    share,
    tell_assessed,
    tell_budgets,
    tell_diagnosis,
    tell_effect,
    tell_gates,
    tell_plan,
    tell_readings,
    tell_record,
    tell_request,
    tell_scores,
    tell_speculation,
    tell_trigger,
    tell_verification,
)
from trimtab.core.types import Health, Role, RolloutState


class ChainStep(msgspec.Struct, frozen=True, kw_only=True):
    """One event of a lever's causal record. `cited`: the evidence ids in it that the record rests on."""

    lever: str
    envelope: Envelope
    cited: tuple[str, ...] = ()


def cited_evidence(lever: str, envelopes: Iterable[Envelope]) -> frozenset[str]:
    """Return the evidence ids that a lever's records, and the diagnoses they name, cite."""
    everything = list(envelopes)
    records = _records(lever, everything)
    diagnoses = {record.bottleneck.diagnosis for record in records}
    found = {cited for record in records for cited in record.bottleneck.evidence}
    for envelope in everything:
        event = envelope.event
        if isinstance(event, Diagnosed) and event.diagnosis.id in diagnoses:
            found.update(event.diagnosis.evidence)
    return frozenset(found)


def chain(lever: str, envelopes: Iterable[Envelope]) -> tuple[ChainStep, ...]:
    """Return everything that belongs to a lever's causal record, in order; empty if nothing does."""
    everything = sorted(envelopes, key=lambda each: each.seq)
    cited = cited_evidence(lever, everything)
    diagnoses = {record.bottleneck.diagnosis for record in _records(lever, everything)}
    own = {each.id for each in everything if _is_about(each.event, lever, diagnoses, cited)}
    if not any(lever_of(each.event) == lever for each in everything):
        return ()
    wanted = own | _causes(own, everything, lever) | _consequences(own, everything, lever)
    return tuple(
        ChainStep(lever=lever, envelope=each, cited=_cited_in(each.event, cited))
        for each in everything
        if each.id in wanted
    )


def tell(step: ChainStep) -> str:
    """Say one step in words; several lines where there is much to say, the first of them a summary."""
    return tell_event(step.envelope.event, cited=step.cited)


def tell_event(event: AnyEvent, *, cited: Sequence[str] = ()) -> str:
    """Say one event in words. `cited` narrows readings to those evidence ids."""
    match event:
        case RequestServed() | Measured() | Calibrated() | Diagnosed():
            return _tell_seen(event, cited)
        case RunStarted() | RunEnded() | StageStarted() | StageEnded():
            return _tell_run(event)
        case ReplicaChanged() | ReplicaCrashed() | FleetSized() | ConfigReloaded() | KVMoved():
            return _tell_machine(event)
        case HandedOver():
            return tell_hand_over(event.hand_over)
        case HealthChanged():
            return _tell_health(event)
        case RolesDecided():
            return tell_roles(event)
        case LedgerGap() | Checkpoint():
            return _tell_ledger(event)
        case LeversAssessed() | LeverProposed() | RolloutMoved() | GatesEvaluated():
            return _tell_rollout(event)
        case (
            CutsKept()
            | SessionsExposed()
            | VerificationDue()
            | QualityScored()
            | TriggerMoved()
            | BudgetsRead()
            | Effect()
            | TrafficPlanned()
            | Frozen()
        ):
            return _tell_outcome(event)
        case _:
            assert_never(event)


def _records(lever: str, envelopes: Iterable[Envelope]) -> list[LeverRecord]:
    events = (each.event for each in envelopes)
    return [
        event.record
        for event in events
        if isinstance(event, LeverProposed) and event.record.name == lever
    ]


def _is_about(event: AnyEvent, lever: str, diagnoses: set[str], cited: frozenset[str]) -> bool:
    match event:
        case Diagnosed():
            return event.diagnosis.id in diagnoses
        case Measured():
            return bool(_cited_in(event, cited))
        case LeversAssessed():
            return event.chosen == lever
        case SessionsExposed():
            return False
        case TrafficPlanned():
            candidate = event.plan.candidate
            levers = {preference.lever for preference in event.plan.preferences}
            return lever == (candidate.lever if candidate else None) or lever in levers
        case _:
            return lever_of(event) == lever


def _cited_in(event: AnyEvent, cited: frozenset[str]) -> tuple[str, ...]:
    if not isinstance(event, Measured):
        return ()
    ids = (getattr(item, "id", None) for item in event.readings.items)
    return tuple(found for found in ids if found is not None and found in cited)


def _causes(own: set[str], everything: Sequence[Envelope], lever: str) -> set[str]:
    """Climb from the lever's events to their causes; another lever's event is named but not climbed past."""
    by_id = {each.id: each for each in everything}
    found: set[str] = set()
    climbing = list(own)
    while climbing:
        cause_id = by_id[climbing.pop()].cause_id
        if cause_id is None or cause_id not in by_id or cause_id in found:
            continue
        found.add(cause_id)
        if lever_of(by_id[cause_id].event) in (None, lever):
            climbing.append(cause_id)
    return found


def _consequences(own: set[str], everything: Sequence[Envelope], lever: str) -> set[str]:
    """Follow what the lever's events caused, up to where another lever or the traffic takes over."""
    reached = set(own)
    flow = RequestServed | Measured | SessionsExposed
    for each in everything:
        if each.cause_id not in reached or isinstance(each.event, flow):
            continue
        other = lever_of(each.event) not in (None, lever)
        proposes = isinstance(each.event, LeversAssessed) and each.event.chosen != lever
        if not other and not proposes:
            reached.add(each.id)
    return reached - own


def _tell_seen(
    event: RequestServed | Measured | Calibrated | Diagnosed, cited: Sequence[str]
) -> str:
    match event:
        case RequestServed():
            return tell_request(event.record, event.decision)
        case Measured():
            return tell_readings(event.readings, event.what, cited)
        case Calibrated():
            lines = [f"Costs were measured on revision {event.revision}."]
            if event.cost is not None:
                cost = event.cost
                lines.append(
                    f"Prefill: {cost.prefill_base_ms:.1f} ms + {cost.prefill_ms_per_token:.2f} ms per uncached token "
                    f"(n={cost.prefill_samples}). Decode step: {cost.step_base_ms:.1f} ms + "
                    f"{cost.step_ms_per_stream:.2f} ms per stream (n={cost.step_samples}){_drafted(cost)}."
                )
            if event.speculation is not None:
                lines.append(tell_speculation(event.speculation))
            return "\n".join(lines)
        case Diagnosed():
            return tell_diagnosis(event.diagnosis, event.scope)
        case _:
            assert_never(event)


def _tell_run(event: RunStarted | RunEnded | StageStarted | StageEnded) -> str:
    match event:
        case RunStarted():
            return f"Run {event.run_id} began: {event.command} (version {event.version})."
        case RunEnded():
            return f"Run {event.run_id} ended: {clause(event.reason)}."
        case StageStarted():
            return f"Stage {event.stage} began; load: {event.load}."
        case StageEnded():
            figures = ", ".join(
                f"{name} {value if isinstance(value, str) else number(value)}"
                for name, value in event.summary.items()
            )
            return f"Stage {event.stage} ended: {figures or 'no figures'}."
        case _:
            assert_never(event)


def _tell_reload(event: ConfigReloaded) -> str:
    if event.refused:
        return f"The configuration was read again and refused: {clause(event.refused)}."
    changed = "; ".join(f"{key} {values}" for key, values in event.changed.items())
    later = f" {', '.join(event.needs_restart)}: at the next start." if event.needs_restart else ""
    return f"The configuration was read again: {changed or 'nothing changed'}.{later}"


def _tell_health(event: HealthChanged) -> str:
    why = event.reason.value.replace("_", " ")
    match event.health:
        case Health.EJECTED:
            length = "" if event.out_for_s is None else f" for {event.out_for_s:g} s"
            return f"Replica {event.replica} gets no requests{length} ({why}, ejection {event.ejections})."
        case Health.HALF_OPEN:
            return f"Replica {event.replica} is tried again, a few requests at a time ({why})."
        case Health.HEALTHY:
            return f"Replica {event.replica} gets requests as before ({why})."
        case _:
            assert_never(event.health)


def _tell_machine(
    event: ReplicaChanged | ReplicaCrashed | FleetSized | ConfigReloaded | KVMoved,
) -> str:
    match event:
        case ReplicaChanged():
            why = f": {clause(event.reason)}" if event.reason else ""
            role = "" if event.role is Role.MIXED else f" for {event.role.value}"
            return f"Replica {event.replica} is {event.state.value}{role} (revision {event.revision.id}){why}."
        case ReplicaCrashed():
            return (
                f"Replica {event.replica} crashed (exit code {event.exit_code}, crash {event.crashes}); "
                f"it restarts after {event.backoff_s:g} s."
            )
        case FleetSized():
            done = "is carried out" if event.allowed else "is refused"
            forced = " (forced)" if event.forced else ""
            return (
                f"To {event.action.value} replica {event.replica} with {event.replicas} there {done}{forced}: "
                f"{clause(event.because)}."
            )
        case ConfigReloaded():
            return _tell_reload(event)
        case KVMoved():
            return (
                f"KV of replica {event.replica}: {event.action}, {event.tokens} tokens in {event.slots} slots "
                f"({event.bytes / 1e6:.1f} MB) took {event.took_ms:.0f} ms."
            )
        case _:
            assert_never(event)


def _tell_ledger(event: LedgerGap | Checkpoint) -> str:
    match event:
        case LedgerGap():
            return f"{event.lost} events could not be stored: {clause(event.reason)}."
        case Checkpoint():
            return f"Events up to {event.through_seq} were folded; lever chains stayed."
        case _:
            assert_never(event)


def _tell_rollout(event: LeversAssessed | LeverProposed | RolloutMoved | GatesEvaluated) -> str:
    match event:
        case LeversAssessed():
            return tell_assessed(event)
        case LeverProposed():
            return tell_record(event.record)
        case RolloutMoved():
            origin = f"from {_words(event.before)} " if event.before else ""
            verdict = f" on verdict {event.verdict.value}" if event.verdict else ""
            return (
                f"The rollout moved {origin}to {_words(event.after)}, "
                f"{share(event.share)} of traffic in the slice{verdict}: {clause(event.reason)}."
            )
        case GatesEvaluated():
            return tell_gates(event)
        case _:
            assert_never(event)


def _words(state: RolloutState) -> str:
    return state.value.replace("_", " ")


def _tell_outcome(
    event: CutsKept
    | SessionsExposed
    | VerificationDue
    | QualityScored
    | TriggerMoved
    | BudgetsRead
    | Effect
    | TrafficPlanned
    | Frozen,
) -> str:
    match event:
        case CutsKept():
            kept = ", ".join(event.kept) or "none"
            refused = [f"  refused {cut}: {why}" for cut, why in sorted(event.refused.items())]
            lost = f"; not {', '.join(sorted(event.refused))}" if event.refused else ""
            return "\n".join([f"Cuts kept: {kept}{lost}.", *refused])
        case SessionsExposed():
            met = f"{len(event.candidate)} the candidate, {len(event.baseline)} the baseline"
            return f"Sessions that met an arm for the first time, {share(event.share)} in the slice: {met}."
        case VerificationDue():
            return tell_verification(event)
        case QualityScored():
            return tell_scores(event.scores)
        case TriggerMoved():
            return tell_trigger(event)
        case BudgetsRead():
            return tell_budgets(event.budgets, event.when)
        case Effect():
            return tell_effect(event)
        case TrafficPlanned():
            return tell_plan(event.plan)
        case Frozen():
            verb = "frozen: nothing is promoted" if event.frozen else "no longer frozen"
            return f"Levers are {verb} ({event.reason})."
        case _:
            assert_never(event)


def _drafted(cost: CostModel) -> str:
    """Say what a step's tokens make of its cost; nothing where each gave one."""
    if cost.tokens_per_step is None:
        return " a token of a stream, of how many a step gives is unknown"
    if cost.tokens_per_step == 1.0:
        return ""
    return f" a token of a stream, of {cost.tokens_per_step:.2f} that a step gave with drafts"
