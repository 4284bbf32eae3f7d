"""One of every event, and the whole story of one lever, for tests of the ledger, the fold and the report."""

import math

from trimtab.core.budgets import BudgetMove, Budgets, BudgetUse
from trimtab.core.cost import CostModel, SpeculationTable, StepPoint
from trimtab.core.cuts import Cut, Dimension
from trimtab.core.decision import Candidate, FleetView, ReplicaView, RouteReason, RoutingDecision
from trimtab.core.events import (
    GENESIS_HASH,
    AnyEvent,
    BudgetsRead,
    Calibrated,
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
)
from trimtab.core.evidence import Evidence, Readings, Unknown, Window
from trimtab.core.findings import Ceiling, Diagnosis, Finding, PhaseFinding
from trimtab.core.gate import GateResult, GateSpec, Metric, Question
from trimtab.core.handover import HandOver, HandOverCause, HandOverOutcome
from trimtab.core.lever import (
    Actuation,
    Assessment,
    Bottleneck,
    Comparison,
    Dependency,
    ExpectedEffect,
    LeverRecord,
    Narrowness,
    QualityExposure,
    RampPlan,
    Scope,
    TriggerSignal,
    TriggerSpec,
)
from trimtab.core.quality_scores import CutScores, Scores
from trimtab.core.record import Phases, RequestRecord, Tokens
from trimtab.core.revision import Model, Revision, Speculation, SpeculationMethod
from trimtab.core.roles import RoleAction, RoleReason, RolesDecision
from trimtab.core.stats_types import Interval
from trimtab.core.traffic import CandidatePlan, Preference, TrafficPlan
from trimtab.core.types import (
    Budget,
    FleetAction,
    Health,
    HealthReason,
    Phase,
    ReplicaState,
    Resource,
    Role,
    RolloutState,
    Technique,
    Verdict,
)

LEVER = "prefix_affine_routing"
OTHER = "ngram_speculation"
EDITS = Cut(Dimension.LABEL, "edit")
REVISION = Revision(
    engine="llamacpp",
    engine_version="b1",
    model=Model(path="model.gguf", sha256="ab" * 32, name="small"),
)
NARROW = Narrowness(
    quality=QualityExposure.NONE,
    dependency=Dependency.NONE,
    actuation=Actuation.LIVE,
    scope=Scope.SLICE,
    reverse_s=1.0,
)
TRIGGER = TriggerSpec(
    name="batch over break-even",
    signal=TriggerSignal.BATCH,
    off_at=4.0,
    on_at=2.5,
    off_when_above=True,
    because="verification costs more than it saves from batch 4 on",
)
MOVES = (
    BudgetMove(budget=Budget.COMPUTE, spends=False, delta_share=-0.2, because="prompts are reused"),
    BudgetMove(budget=Budget.MEMORY, spends=True, delta_share=None, because="hot replicas"),
)


class SteppingClock:
    """A clock that steps by a fixed amount at each look, so that times are known."""

    def __init__(self, start_s: float = 1_800_000_000.0, step_s: float = 0.5) -> None:
        self.now_s = start_s
        self._step_s = step_s

    def wall_s(self) -> float:
        """The time after one more step."""
        self.now_s += self._step_s
        return self.now_s

    def mono_s(self) -> float:
        """The same time."""
        return self.now_s


def request(number: int = 0, **changes: object) -> RequestServed:
    """A request that replica r0 or r1 served, with the decision and the view behind it."""
    replica = f"r{number % 2}"
    request_id = f"q{number}"
    values: dict[str, object] = {
        "request_id": request_id,
        "arrived_at_s": 10.0 + number,
        "finished_at_s": 11.0 + number,
        "endpoint": "chat",
        "stream": True,
        "replica": replica,
        "revision": REVISION.id,
        "ttft_ms": 100.0 + number,
        "tpot_ms": 20.0,
        "e2e_ms": 900.0,
        "phases": Phases(queue_ms=1.0, prefill_ms=80.0, transfer_ms=0.0, decode_ms=600.0),
        "tokens": Tokens(prompt=400, predicted=300, delivered=288, held_best=320, output=40),
        "status": 200,
        "unknown": {"phases.queue_ms": "the engine does not say"},
    }
    view = FleetView(
        at_s=10.0,
        replicas=tuple(
            ReplicaView(
                id=f"r{index}",
                url=f"http://127.0.0.1:{9000 + index}",
                role=Role.MIXED,
                revision=REVISION.id,
                state=ReplicaState.READY,
                slots=4,
            )
            for index in range(2)
        ),
    )
    decision = RoutingDecision(
        request_id=request_id,
        at_s=10.0,
        policy="round_robin",
        replica=replica,
        reason=RouteReason.ROUND_ROBIN_TURN,
        candidates=(Candidate(replica=replica, load_tokens=10.0, held_tokens=300),),
        predicted_cached_tokens=300,
        held_best_tokens=320,
        sequence=number,
    )
    return RequestServed(
        record=RequestRecord(**{**values, **changes}), decision=decision, view=view
    )


def measured(evidence_id: str, value: float = 0.61) -> Measured:
    """A reading with that id, and one that is unknown."""
    return Measured(
        readings=Readings(
            (
                Evidence(
                    id=evidence_id,
                    name="skipped_lost_share",
                    value=value,
                    unit="share",
                    source="requests",
                    window=Window(0.0, 60.0),
                    samples=120,
                ),
                Unknown("kv_used_share", "the engine has no gauge"),
            )
        ),
        what="the baseline's requests",
    )


def diagnosis(diagnosis_id: str, *evidence: str) -> Diagnosis:
    """A diagnosis that prefill is bound by compute."""
    return Diagnosis(
        id=diagnosis_id,
        at_s=70.0,
        window_s=60.0,
        samples=120,
        phases=(
            PhaseFinding(
                phase=Phase.PREFILL,
                resource=Resource.COMPUTE,
                share=0.7,
                mean_ms=800.0,
                samples=120,
                because="prompts are computed again",
            ),
        ),
        dominant_phase=Phase.PREFILL,
        dominant_resource=Resource.COMPUTE,
        confidence=0.9,
        supports=(Finding(text="61% of the prompt was held elsewhere", evidence=evidence),),
        ceilings=(
            Ceiling(technique=Technique.PREFIX_CACHING, gain_share=0.4, because="skipped lost"),
        ),
        budgets=budgets(0.8),
        evidence=evidence,
    )


def budgets(compute: float) -> Budgets:
    """Budgets of which one is unknown."""
    return Budgets(
        (
            BudgetUse(budget=Budget.COMPUTE, used_share=compute, basis="busy threads"),
            BudgetUse(budget=Budget.MEMORY, used_share=0.3, basis="resident memory"),
            BudgetUse(budget=Budget.COMMUNICATION, used_share=0.0, basis="nothing is moved"),
            BudgetUse(budget=Budget.QUALITY, used_share=None, basis="not measured"),
        )
    )


def lever_record(
    name: str = LEVER, *, diagnosis_id: str = "dg-1", evidence: tuple[str, ...] = ("ev-1",)
) -> LeverRecord:
    """A complete lever record."""
    return LeverRecord(
        name=name,
        technique=Technique.PREFIX_CACHING if name == LEVER else Technique.SPECULATION,
        bottleneck=Bottleneck(
            phase=Phase.PREFILL,
            resource=Resource.COMPUTE,
            share=0.7,
            diagnosis=diagnosis_id,
            evidence=evidence,
        ),
        premise="61% of prompt tokens are computed although another replica holds them",
        condition="skipped tokens lost above 10% of the prompt",
        moves=MOVES,
        expected=(
            ExpectedEffect(metric=Metric.TTFT_MS, ratio=0.6, low=0.4, high=0.8, because="reuse"),
        ),
        failure_modes=("a hot replica draws everything",),
        gates=(
            GateSpec(name="ttft gain", metric=Metric.TTFT_MS, question=Question.GAIN, margin=0.1),
            GateSpec(
                name="tpot harm",
                metric=Metric.TPOT_MS,
                question=Question.VETO,
                margin=0.1,
                cut=EDITS,
                required=False,
            ),
        ),
        quality_gate="outputs equal at temperature 0",
        triggers=(TRIGGER,),
        reverse="swap the routing policy back: live, 1 s",
        ramp=RampPlan(
            comparison=Comparison.SWITCHBACK,
            peak_cycle_s=30.0,
            peak_is="30 s peak",
            harm_alpha=None,
        ),
        owner="operator",
        created_at_s=100.0,
        expires_at_s=100.0 + 86_400.0,
        narrowness=NARROW,
        chosen_because="it is the narrowest lever whose predicted gain meets the target",
    )


def gates_evaluated(name: str = LEVER, look: int = 3) -> GatesEvaluated:
    """A look whose second gate has an interval that is open above."""
    return GatesEvaluated(
        lever=name,
        state=RolloutState.CANARY,
        share=0.10,
        look=look,
        verdict=Verdict.PASS,
        results=(
            GateResult(
                gate="ttft gain",
                metric=Metric.TTFT_MS,
                question=Question.GAIN,
                cut="all traffic",
                verdict=Verdict.PASS,
                n_baseline=140,
                n_candidate=150,
                n_units=9,
                value=0.58,
                interval=Interval(low=0.5, high=0.7, level=0.9),
                margin=0.1,
                reason="better by at least 10%",
            ),
            GateResult(
                gate="tpot harm",
                metric=Metric.TPOT_MS,
                question=Question.VETO,
                cut=str(EDITS),
                verdict=Verdict.HOLD,
                n_baseline=3,
                n_candidate=2,
                value=None,
                interval=Interval(low=0.0, high=math.inf, level=0.9),
                margin=0.1,
                reason="too few samples",
                required=False,
            ),
        ),
    )


def moved(
    after: RolloutState, share: float, *, before: RolloutState | None = None, name: str = LEVER
) -> RolloutMoved:
    """A move of a rollout."""
    return RolloutMoved(
        lever=name,
        before=before,
        after=after,
        share=share,
        verdict=Verdict.PASS if before else None,
        reason="all required gates passed" if before else "first slice",
    )


def assessed(chosen: str | None = LEVER) -> LeversAssessed:
    """An assessment of one lever."""
    return LeversAssessed(
        assessments=(
            Assessment(
                lever=LEVER,
                technique=Technique.PREFIX_CACHING,
                premise="skipped tokens lost above 10%",
                premise_holds=True,
                gain_share=0.35,
                moves=MOVES,
                narrowness=NARROW,
                available=True,
                because="61% are lost",
            ),
        ),
        chosen=chosen,
        because="it is the narrowest that meets the target",
    )


def trigger_moved(fired: bool, value: float, name: str = LEVER) -> TriggerMoved:
    """A trigger that fires or lets go."""
    return TriggerMoved(
        lever=name,
        trigger=TRIGGER,
        fired=fired,
        value=value,
        samples=40,
        action="routing keeps requests off the speculating replica",
    )


def plan(share: float | None = 0.10) -> TrafficPlan:
    """A plan with a candidate slice, or one with a settled preference."""
    if share is None:
        settled = Preference(lever=LEVER, cuts=(EDITS,), replicas=("r1",))
        return TrafficPlan(policy="prefix_affine", preferences=(settled,))
    candidate = CandidatePlan(
        lever=LEVER,
        share=share,
        policy="prefix_affine",
        replicas=(),
        comparison=Comparison.SWITCHBACK,
        started_at_s=100.0,
        block_s=5.0,
        edge_s=1.0,
    )
    return TrafficPlan(policy="round_robin", candidate=candidate, stage="prove")


def effect(ratio: float | None = 0.58) -> Effect:
    """A measured effect, or one that could not be told."""
    return Effect(
        lever=LEVER,
        metric="ttft_ms",
        cut="all traffic",
        ratio=ratio,
        low=None if ratio is None else 0.5,
        high=None if ratio is None else 0.7,
        n_baseline=140,
        n_candidate=150,
        predicted_ratio=0.6,
    )


CALIBRATED = Calibrated(
    revision=REVISION.id,
    cost=CostModel(
        prefill_base_ms=4.0,
        prefill_ms_per_token=9.5,
        step_base_ms=20.0,
        step_ms_per_stream=2.0,
        prefill_samples=12,
        step_samples=30,
        source="timed on the engine",
    ),
    speculation=SpeculationTable(
        speculation=Speculation(method=SpeculationMethod.NGRAM_SIMPLE),
        off=(StepPoint(batch=1, tokens_per_s=40.0, samples=3),),
        on=(StepPoint(batch=1, tokens_per_s=60.0, samples=3, accepted_per_step=1.8),),
        content="code edits",
    ),
)


def every_event() -> tuple[AnyEvent, ...]:
    """One event of every kind but `Checkpoint`, which only retention writes."""
    return (
        RunStarted(run_id="run-1", command="tune", version="0.1.0", settings={"seed": 1}),
        StageStarted(stage="baseline", load="coding at 2.5 requests per second"),
        ReplicaChanged(
            replica="r0", state=ReplicaState.READY, revision=REVISION, url="http://h:1", pid=7
        ),
        ReplicaCrashed(replica="r0", exit_code=-9, crashes=1, backoff_s=0.5),
        HealthChanged(
            replica="r0",
            health=Health.EJECTED,
            reason=HealthReason.CONSECUTIVE_FAILURES,
            ejections=1,
            out_for_s=10.0,
        ),
        ConfigReloaded(
            changed={"gateway.streams_max": "1024 -> 2048"}, needs_restart=("gateway.port",)
        ),
        FleetSized(
            action=FleetAction.ADD,
            replica="r2",
            replicas=2,
            allowed=True,
            forced=False,
            because="asked for",
        ),
        KVMoved(replica="r0", action="saved", slots=4, tokens=900, bytes=4_000_000, took_ms=31.0),
        CALIBRATED,
        request(1),
        measured("ev-1"),
        Diagnosed(diagnosis=diagnosis("dg-1", "ev-1"), scope="baseline"),
        assessed(),
        LeverProposed(record=lever_record()),
        TrafficPlanned(plan=plan()),
        moved(RolloutState.CANARY, 0.10),
        gates_evaluated(),
        SessionsExposed(lever=LEVER, share=0.10, candidate=("k1",), baseline=("k2", "k3")),
        CutsKept(lever=LEVER, kept=("all traffic",), refused={str(EDITS): "no gain shown"}),
        BudgetsRead(when="before", lever=None, budgets=budgets(0.8)),
        effect(),
        QualityScored(
            lever=LEVER,
            scores=Scores(
                evaluation="items",
                revision=REVISION.id,
                cuts=(CutScores(n=50, baseline_passed=22, candidate_passed=21, losses=3, wins=2),),
            ),
        ),
        trigger_moved(True, 4.6),
        Frozen(frozen=True, reason="asked for"),
        LedgerGap(lost=2, first_id="A", last_id="B", reason="no space"),
        StageEnded(stage="baseline", summary={"requests": 120, "late_ms": None}),
        RunEnded(run_id="run-1", reason="finished"),
        VerificationDue(
            lever=LEVER,
            changed="lower_precision",
            moved_to=RolloutState.ADOPTED,
            budgets=(Budget.MEMORY,),
            phases=(Phase.PREFILL,),
            cuts=("label=edit",),
        ),
        HandedOver(
            hand_over=HandOver(
                request_id="q1",
                source="r1",
                target="r0",
                outcome=HandOverOutcome.FAILED,
                cause=HandOverCause.SHORTFALL,
                prompt_tokens=1400,
                tokens_sent=1400,
                tokens_delivered=0,
                bytes=32_000_000,
                setup_ms=2.0,
                transfer_ms=9.0,
            )
        ),
        RolesDecided(
            decision=RolesDecision(
                at_s=12.0,
                action=RoleAction.MORE_DECODE,
                reason=RoleReason.DECODE_NEEDS,
                ttft_ratio=0.3,
                tpot_ratio=0.8,
            ),
            replica="r1",
            role=Role.DECODE,
        ),
    )


def story() -> tuple[tuple[AnyEvent, int | None], ...]:
    """A lever's whole life among traffic and another lever: (event, index of its cause)."""
    return (
        (RunStarted(run_id="run-1", command="tune", version="0.1.0", settings={}), None),  # 0
        (measured("ev-0"), 0),  # 1: cited by nobody
        (measured("ev-1"), 0),  # 2
        (Diagnosed(diagnosis=diagnosis("dg-0", "ev-0"), scope="warm-up"), 1),  # 3: cited by nobody
        (Diagnosed(diagnosis=diagnosis("dg-1", "ev-1"), scope="baseline"), 2),  # 4
        (BudgetsRead(when="before", lever=None, budgets=budgets(0.8)), 4),  # 5
        (assessed(), 4),  # 6
        (LeverProposed(record=lever_record()), 6),  # 7
        (BudgetsRead(when="predicted", lever=LEVER, budgets=budgets(0.6)), 7),  # 8
        (TrafficPlanned(plan=plan(0.10)), 7),  # 9
        (moved(RolloutState.CANARY, 0.10), 7),  # 10
        (request(1), None),  # 11
        (request(2), None),  # 12
        (gates_evaluated(), 10),  # 13
        (moved(RolloutState.RAMPING, 0.25, before=RolloutState.CANARY), 13),  # 14
        (moved(RolloutState.ADOPTED, 0.95, before=RolloutState.PROVING), 14),  # 15
        (CutsKept(lever=LEVER, kept=("all traffic",), refused={}), 15),  # 16
        (effect(), 15),  # 17
        (TrafficPlanned(plan=plan(None)), 15),  # 18
        (Diagnosed(diagnosis=diagnosis("dg-2"), scope=f"after {LEVER}"), 15),  # 19
        (assessed(OTHER), 19),  # 20: the next lever's
        (LeverProposed(record=lever_record(OTHER, diagnosis_id="dg-2", evidence=("ev-9",))), 20),
        (trigger_moved(True, 4.6), 15),  # 22
        (trigger_moved(False, 2.1), 22),  # 23
        (request(3), None),  # 24
    )


def envelopes(events: tuple[tuple[AnyEvent, int | None], ...]) -> tuple[Envelope, ...]:
    """Put events with cause indices into envelopes, without hashes."""
    return tuple(
        Envelope(
            seq=index + 1,
            id=f"E{index:04d}",
            cause_id=None if cause is None else f"E{cause:04d}",
            at_s=100.0 + index,
            event=event,
            prev_hash=GENESIS_HASH,
            hash=GENESIS_HASH,
        )
        for index, (event, cause) in enumerate(events)
    )
