"""What the page says, as values ready for JSON. Computed from live state and the fold of the ledger, never stored.

Every figure carries the window it speaks about and its number of samples; what is not known is None.
"""

from collections.abc import Iterable, Sequence

import msgspec

from trimtab.core.budgets import Budgets, BudgetUse
from trimtab.core.cuts import Cut
from trimtab.core.decision import FleetView
from trimtab.core.events import Effect
from trimtab.core.findings import Diagnosis, Finding, PhaseFinding
from trimtab.core.gate import GateResult
from trimtab.core.narrate_words import tell_plan, tell_verification
from trimtab.core.state import LeverStatus, State, budgets_key
from trimtab.core.traffic import TrafficPlan
from trimtab.core.types import Budget, Phase, ReplicaState, Resource, Role, RolloutState, Verdict
from trimtab.interfaces.web.recent import Recent
from trimtab.runtime.fleet import ReplicaInfo


class PageState(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that the page shows at one moment of the wall clock."""

    at_s: float
    run: "RunPart"
    fleet: "tuple[ReplicaPart, ...]"
    traffic: "TrafficPart"
    diagnosis: "DiagnosisPart | None"
    levers: "tuple[LeverPart, ...]"
    requests: Recent
    ledger: "LedgerPart"


class RunPart(msgspec.Struct, frozen=True, kw_only=True):
    """Which run this is, and on what."""

    id: str
    version: str
    model: str
    machine: str
    up_s: float
    stage: str | None
    draining: bool


class ReplicaPart(msgspec.Struct, frozen=True, kw_only=True):
    """One replica. Load is the gateway's own count at `PageState.at_s`, None for a replica it does not know yet."""

    id: str
    state: ReplicaState
    role: Role
    revision: str
    speculation: str
    crashes: int
    reason: str
    slots: int
    running: int | None
    waiting: int | None
    prefill_tokens_outstanding: int | None
    decode_tokens_outstanding: int | None


class ProvingPart(msgspec.Struct, frozen=True, kw_only=True):
    """The lever that is being proven, and on how much of the traffic."""

    lever: str
    share: float
    comparison: str
    replicas: tuple[str, ...]
    cuts: tuple[str, ...]


class AdoptedPart(msgspec.Struct, frozen=True, kw_only=True):
    """An adopted lever with the cuts it is kept for; `replicas` are those that its requests belong on."""

    lever: str
    kept: tuple[str, ...]
    held_off_by: tuple[str, ...]
    replicas: tuple[str, ...]


class TrafficPart(msgspec.Struct, frozen=True, kw_only=True):
    """The plan that the gateway follows now."""

    words: str
    policy: str
    proving: ProvingPart | None
    adopted: tuple[AdoptedPart, ...]
    frozen: bool
    frozen_because: str


class DiagnosisPart(msgspec.Struct, frozen=True, kw_only=True):
    """The latest diagnosis, `made_ago_s` before the page's moment, with the budgets it read in the same window."""

    id: str
    scope: str
    made_ago_s: float
    window_s: float
    n: int
    dominant_phase: Phase | None
    dominant_resource: Resource | None
    confidence: float
    phases: tuple[PhaseFinding, ...]
    supports: tuple[Finding, ...]
    contradicts: tuple[Finding, ...]
    unknown: tuple[Finding, ...]
    budgets: tuple[BudgetUse, ...]


class BudgetCourse(msgspec.Struct, frozen=True, kw_only=True):
    """The used share of one budget before a lever, as predicted with it, and after it; None is unknown."""

    budget: Budget
    before: float | None
    predicted: float | None
    after: float | None


class LeverPart(msgspec.Struct, frozen=True, kw_only=True):
    """A lever. `state` None: it was assessed and not proposed. `results` are the gates of look `look`.

    `due`: why it is to be verified again, empty if it is not; `budgets`: empty where they were not read for it.
    """

    name: str
    technique: str | None
    state: RolloutState | None
    share: float
    premise: str
    premise_holds: bool | None
    gain_share: float | None
    reason: str
    look: int
    look_verdict: Verdict | None
    results: tuple[GateResult, ...]
    kept: tuple[str, ...]
    refused: dict[str, str]
    held_off_by: tuple[str, ...]
    effects: tuple[Effect, ...]
    reverse: str = ""
    due: str = ""
    budgets: tuple[BudgetCourse, ...] = ()


class LedgerPart(msgspec.Struct, frozen=True, kw_only=True):
    """The ledger. `events` and `lost` are None while it cannot be read, for `read_error`."""

    path: str
    events: int | None
    lost: int | None
    healthy: bool
    unhealthy_reason: str | None
    read_error: str | None


def replica_parts(infos: Iterable[ReplicaInfo], view: FleetView) -> tuple[ReplicaPart, ...]:
    """Join what the fleet knows of its replicas with the load that the gateway counts."""
    return tuple(_replica(info, view) for info in sorted(infos, key=lambda info: info.id))


def _replica(info: ReplicaInfo, view: FleetView) -> ReplicaPart:
    load = view.replica(info.id)
    return ReplicaPart(
        id=info.id,
        state=info.state,
        role=info.role,
        revision=info.revision.id,
        speculation=info.revision.speculation.method.value,
        crashes=info.crashes,
        reason=info.reason,
        slots=info.revision.slots,
        running=load.running if load else None,
        waiting=load.waiting if load else None,
        prefill_tokens_outstanding=load.prefill_tokens_outstanding if load else None,
        decode_tokens_outstanding=load.decode_tokens_outstanding if load else None,
    )


def traffic_part(plan: TrafficPlan, state: State) -> TrafficPart:
    """Say the plan, the lever being proven with its share, and which levers are in force for which cuts."""
    candidate = plan.candidate
    proving = None
    if candidate is not None:
        proving = ProvingPart(
            lever=candidate.lever,
            share=candidate.share,
            comparison=candidate.comparison.value,
            replicas=candidate.replicas,
            cuts=_names(candidate.cuts),
        )
    adopted = (
        AdoptedPart(
            lever=name,
            kept=status.kept,
            held_off_by=_held_off_by(status),
            replicas=tuple(
                replica
                for preference in plan.preferences
                if preference.lever == name
                for replica in preference.replicas
            ),
        )
        for name, status in sorted(state.levers.items())
        if status.state is RolloutState.ADOPTED
    )
    return TrafficPart(
        words=tell_plan(plan),
        policy=plan.policy,
        proving=proving,
        adopted=tuple(adopted),
        frozen=state.frozen,
        frozen_because=state.frozen_because,
    )


def diagnosis_part(state: State, now_s: float) -> DiagnosisPart | None:
    """Return the latest diagnosis, None if none was made yet."""
    scope = state.diagnosed_scope
    found: Diagnosis | None = state.diagnoses.get(scope) if scope is not None else None
    if scope is None or found is None:
        return None
    return DiagnosisPart(
        id=found.id,
        scope=scope,
        made_ago_s=max(0.0, now_s - found.at_s),
        window_s=found.window_s,
        n=found.samples,
        dominant_phase=found.dominant_phase,
        dominant_resource=found.dominant_resource,
        confidence=found.confidence,
        phases=found.phases,
        supports=found.supports,
        contradicts=found.contradicts,
        unknown=found.unknown,
        budgets=tuple(found.budgets.use(budget) for budget in Budget),
    )


def lever_parts(state: State) -> tuple[LeverPart, ...]:
    """Return every lever that was proposed, the latest move first, then those that were only assessed."""
    moved = sorted(state.levers.items(), key=lambda item: (-item[1].moved_at_s, item[0]))
    proposed = tuple(_lever(name, status, state) for name, status in moved)
    return proposed + tuple(_only_assessed(state))


def _lever(name: str, status: LeverStatus, state: State) -> LeverPart:
    record = status.record
    return LeverPart(
        name=name,
        technique=record.technique.value if record else None,
        state=status.state,
        share=status.share,
        premise=record.premise if record else "",
        premise_holds=None,
        gain_share=None,
        reason=status.reason,
        look=status.look,
        look_verdict=status.look_verdict,
        results=status.results,
        kept=status.kept,
        refused=status.refused,
        held_off_by=_held_off_by(status),
        effects=tuple(status.effects.values()),
        reverse=record.reverse if record else "",
        due=tell_verification(status.verification) if status.verification else "",
        budgets=_course(name, state),
    )


def _course(name: str, state: State) -> tuple[BudgetCourse, ...]:
    """The budgets around a lever; nothing where neither a prediction nor a reading was made for it."""
    before = state.budgets.get(budgets_key("before", None))
    predicted = state.budgets.get(budgets_key("predicted", name))
    after = state.budgets.get(budgets_key("after", name))
    if predicted is None and after is None:
        return ()

    def used(read: Budgets | None, budget: Budget) -> float | None:
        return None if read is None else read.use(budget).used_share

    return tuple(
        BudgetCourse(
            budget=budget,
            before=used(before, budget),
            predicted=used(predicted, budget),
            after=used(after, budget),
        )
        for budget in Budget
    )


def _only_assessed(state: State) -> Iterable[LeverPart]:
    for each in state.assessed.assessments if state.assessed else ():
        if each.lever in state.levers:
            continue
        yield LeverPart(
            name=each.lever,
            technique=each.technique.value,
            state=None,
            share=0.0,
            premise=each.premise,
            premise_holds=each.premise_holds,
            gain_share=each.gain_share,
            reason=each.because,
            look=0,
            look_verdict=None,
            results=(),
            kept=(),
            refused={},
            held_off_by=(),
            effects=(),
        )


def _held_off_by(status: LeverStatus) -> tuple[str, ...]:
    return tuple(name for name, trigger in sorted(status.triggers.items()) if trigger.fired)


def _names(cuts: Sequence[Cut]) -> tuple[str, ...]:
    return tuple(str(cut) for cut in cuts)
