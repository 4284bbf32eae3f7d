"""What the page says, as values ready for JSON. Computed from live state and the fold of the ledger, never stored.

Every figure carries the window it speaks about and its number of samples; what is not known is None.
"""

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from trimtab.core.budgets import BudgetUse
from trimtab.core.cuts import Cut
from trimtab.core.decision import FleetView
from trimtab.core.findings import Diagnosis, Finding, PhaseFinding
from trimtab.core.narrate_words import tell_plan
from trimtab.core.state import State
from trimtab.core.traffic import TrafficPlan
from trimtab.core.types import Budget, Phase, ReplicaState, Resource, Role, RolloutState
from trimtab.interfaces.web.levers import LeverPart, held_off_by
from trimtab.interfaces.web.recent import Recent, Reused
from trimtab.runtime.fleet import ReplicaInfo


class PageState(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that the page shows at one moment of the wall clock. `lever_counts`: of all levers, by state."""

    at_s: float
    run: "RunPart"
    fleet: "tuple[ReplicaPart, ...]"
    traffic: "TrafficPart"
    diagnosis: "DiagnosisPart | None"
    levers: tuple[LeverPart, ...]
    lever_counts: dict[str, int]
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
    """One replica. Load is the gateway's own count at `PageState.at_s`, None for a replica it does not know yet.

    `kv_used_share`: of its KV cache by its engine's own metrics, None where they do not say; `reused`: what it reported
    as reused of recent prompts. `settings`: chunk and threads where replicas differ in them, empty where none does.
    """

    id: str
    state: ReplicaState
    role: Role
    revision: str
    speculation: str
    crashes: int
    reason: str
    slots: int
    settings: str
    running: int | None
    waiting: int | None
    prefill_tokens_outstanding: int | None
    decode_tokens_outstanding: int | None
    kv_used_share: float | None
    reused: Reused


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


class LedgerPart(msgspec.Struct, frozen=True, kw_only=True):
    """The ledger. `events` and `lost` are None while it cannot be read, for `read_error`."""

    path: str
    events: int | None
    lost: int | None
    healthy: bool
    unhealthy_reason: str | None
    read_error: str | None


def replica_parts(
    infos: Iterable[ReplicaInfo],
    view: FleetView,
    kv_used: Mapping[str, float | None],
    reused: Mapping[str, Reused],
) -> tuple[ReplicaPart, ...]:
    """Join what the fleet knows of its replicas with the load that the gateway counts, and with their caches.

    `kv_used`: share of the KV cache in use by replica; `reused`: see `recent.reused_by_replica`.
    """
    told = sorted(infos, key=lambda info: info.id)
    return tuple(
        _replica(
            info,
            view,
            kv_used.get(info.id),
            reused.get(info.id, Reused(n=0)),
            own_settings(info, told),
        )
        for info in told
    )


def own_settings(info: ReplicaInfo, all_: Sequence[ReplicaInfo]) -> str:
    """Say a replica's chunk and threads where replicas differ in them: a role may have its own; empty where none does.

    Its speculation is shown of every replica.
    """
    said = []
    if len({one.revision.chunk_tokens for one in all_}) > 1:
        said.append(f"chunk {info.revision.chunk_tokens}")
    if len({one.threads for one in all_}) > 1:
        said.append("1 thread" if info.threads == 1 else f"{info.threads} threads")
    return ", ".join(said)


def _replica(
    info: ReplicaInfo, view: FleetView, kv_used_share: float | None, reused: Reused, settings: str
) -> ReplicaPart:
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
        settings=settings,
        running=load.running if load else None,
        waiting=load.waiting if load else None,
        prefill_tokens_outstanding=load.prefill_tokens_outstanding if load else None,
        decode_tokens_outstanding=load.decode_tokens_outstanding if load else None,
        kv_used_share=kv_used_share,
        reused=reused,
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
            held_off_by=held_off_by(status),
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


def _names(cuts: Sequence[Cut]) -> tuple[str, ...]:
    return tuple(str(cut) for cut in cuts)
