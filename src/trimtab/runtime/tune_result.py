"""Builds a tune's result as a query over the ledger: whatever is not an event cannot appear in the report."""

import math
from collections.abc import Sequence

import msgspec

from trimtab.core.events import (
    AnyEvent,
    BudgetsRead,
    CutsKept,
    Diagnosed,
    Effect,
    Envelope,
    GatesEvaluated,
    KVMoved,
    LeverProposed,
    LeversAssessed,
    RequestServed,
    RolloutMoved,
    RunStarted,
    StageEnded,
    StageStarted,
    TriggerMoved,
)
from trimtab.core.gate import Metric
from trimtab.core.lever import Assessment, ExpectedEffect, LeverRecord
from trimtab.core.record import RequestRecord
from trimtab.core.stats import Interval
from trimtab.core.types import RolloutState, Verdict
from trimtab.runtime.result import (
    BudgetsAt,
    LedgerInfo,
    LeverResult,
    Measured,
    ScopedDiagnosis,
    TimelinePoint,
    TriggerResult,
    TuneResult,
    distributions,
    summarise,
)

BASELINE_STAGE = "baseline"
FINAL_STAGE = "final"
HELD_WINDOW_S = 30.0
"""How far around a trigger's switch the held share of prompts is compared."""


class TuneFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What the result needs beside the events."""

    machine: str
    workload: str
    ledger: LedgerInfo
    duration_s: float
    chains: dict[str, tuple[str, ...]]
    notes: tuple[str, ...] = ()


def build_result(envelopes: Sequence[Envelope], facts: TuneFacts) -> TuneResult:
    """Build the result of one run from its events, in order; raises ValueError without a `RunStarted` event."""
    started = next((e for e in envelopes if isinstance(e.event, RunStarted)), None)
    if started is None or not isinstance(started.event, RunStarted):
        raise ValueError("the ledger has no run_started event: nothing was run")
    begin_s = started.at_s
    baseline, final = records_of(envelopes, BASELINE_STAGE), records_of(envelopes, FINAL_STAGE)
    return TuneResult(
        version=started.event.version,
        started_at_s=begin_s,
        duration_s=facts.duration_s,
        machine=facts.machine,
        workload=facts.workload,
        settings=started.event.settings,
        baseline=summarise(
            BASELINE_STAGE, baseline, lateness_ms_p95=_lateness(envelopes, BASELINE_STAGE)
        ),
        final=summarise(FINAL_STAGE, final, lateness_ms_p95=_lateness(envelopes, FINAL_STAGE)),
        diagnoses=tuple(
            ScopedDiagnosis(scope=e.event.scope, diagnosis=e.event.diagnosis)
            for e in envelopes
            if isinstance(e.event, Diagnosed)
        ),
        budgets=tuple(
            BudgetsAt(when=e.event.when, lever=e.event.lever, uses=e.event.budgets.uses)
            for e in envelopes
            if isinstance(e.event, BudgetsRead)
        ),
        levers=lever_results(envelopes, facts.chains),
        triggers=trigger_results(envelopes, begin_s),
        timeline=timeline(envelopes, begin_s),
        distributions=distributions(baseline, final),
        ledger=facts.ledger,
        notes=facts.notes,
    )


def records_of(envelopes: Sequence[Envelope], stage: str) -> list[RequestRecord]:
    """Return the records of the requests that belong to one stage."""
    served = (e.event.record for e in envelopes if isinstance(e.event, RequestServed))
    return [record for record in served if record.stage == stage]


def lever_results(
    envelopes: Sequence[Envelope], chains: dict[str, tuple[str, ...]]
) -> tuple[LeverResult, ...]:
    """Tell what became of every lever that was assessed, the tried ones first."""
    assessments: dict[str, Assessment] = {}
    chosen_for: dict[str, str] = {}
    for envelope in envelopes:
        if isinstance(envelope.event, LeversAssessed):
            _take_assessments(envelope.event, assessments, chosen_for)
    results = [
        _lever_result(envelopes, found, chosen_for, chains) for found in assessments.values()
    ]
    return tuple(sorted(results, key=lambda result: (not result.gates, result.name)))


def _take_assessments(
    event: LeversAssessed, found: dict[str, Assessment], chosen_for: dict[str, str]
) -> None:
    for assessment in event.assessments:
        # What was said when the lever was chosen stands; later looks at it do not rewrite it.
        if assessment.lever not in chosen_for:
            found[assessment.lever] = assessment
    if event.chosen is not None:
        chosen_for.setdefault(event.chosen, event.because)


def _lever_result(
    envelopes: Sequence[Envelope],
    assessment: Assessment,
    chosen_for: dict[str, str],
    chains: dict[str, tuple[str, ...]],
) -> LeverResult:
    name = assessment.lever
    mine = [e.event for e in envelopes if getattr(e.event, "lever", None) == name]
    record = next(
        (
            e.event.record
            for e in envelopes
            if isinstance(e.event, LeverProposed) and e.event.record.name == name
        ),
        None,
    )
    looks = [event for event in mine if isinstance(event, GatesEvaluated)]
    kept = next((event for event in reversed(mine) if isinstance(event, CutsKept)), None)
    verdict, because = _outcome(mine, assessment, kept, name in chosen_for)
    return LeverResult(
        name=name,
        technique=assessment.technique.value,
        premise=record.premise if record else assessment.premise,
        premise_holds=assessment.premise_holds,
        predicted_gain_share=assessment.gain_share,
        verdict=verdict,
        because=because,
        moves=record.moves if record else assessment.moves,
        measured=tuple(_measured(event, record) for event in mine if isinstance(event, Effect)),
        gates=looks[-1].results if looks else (),
        cuts_kept=kept.kept if kept else (),
        cuts_refused=kept.refused if kept else {},
        chain=chains.get(name, ()),
    )


def _outcome(
    mine: Sequence[AnyEvent], assessment: Assessment, kept: CutsKept | None, chosen: bool
) -> tuple[str, str]:
    moves = [event for event in mine if isinstance(event, RolloutMoved)]
    adopted = next((event for event in moves if event.after is RolloutState.ADOPTED), None)
    # A trigger may have it off at the end; what was rolled back after all was not adopted.
    if adopted is not None and moves[-1].after in (RolloutState.ADOPTED, RolloutState.DISABLED):
        return ("adopted for cuts" if kept and kept.refused else "adopted"), adopted.reason
    if moves:
        return moves[-1].after.value.replace("_", " "), moves[-1].reason
    if not assessment.available:
        return "not available", assessment.because
    return ("chosen, not started" if chosen else "not chosen"), assessment.because


def _measured(event: Effect, record: LeverRecord | None) -> Measured:
    expected = _expected(event, record)
    known = event.low is not None and event.high is not None
    return Measured(
        metric=event.metric,
        cut=event.cut,
        ratio=event.ratio,
        interval=Interval(event.low, event.high, 0.90) if known else None,  # type: ignore[arg-type]
        n_baseline=event.n_baseline,
        n_candidate=event.n_candidate,
        n_units=event.n_units,
        predicted_ratio=expected.ratio if expected else event.predicted_ratio,
        predicted_low=expected.low if expected else None,
        predicted_high=expected.high if expected else None,
    )


def _expected(event: Effect, record: LeverRecord | None) -> ExpectedEffect | None:
    if record is None or event.metric not in {metric.value for metric in Metric}:
        return None
    return next((effect for effect in record.expected if effect.metric.value == event.metric), None)


def trigger_results(envelopes: Sequence[Envelope], begin_s: float) -> tuple[TriggerResult, ...]:
    """Tell every firing of a trigger, when it came back, and whether the prefix cache lived through it."""
    moved = [(e.at_s, e.event) for e in envelopes if isinstance(e.event, TriggerMoved)]
    served = [e.event.record for e in envelopes if isinstance(e.event, RequestServed)]
    results = []
    for at_s, event in moved:
        if not event.fired:
            continue
        recovered = next((t for t, e in moved if t > at_s and _is_return(e, event)), None)
        before = [r for r in served if at_s - HELD_WINDOW_S <= r.arrived_at_s < at_s]
        after = [r for r in served if at_s <= r.arrived_at_s < at_s + HELD_WINDOW_S]
        saved, restored = _kv_through(envelopes, at_s, recovered)
        results.append(
            TriggerResult(
                lever=event.lever,
                trigger=event.trigger.name,
                because=event.trigger.because,
                value=event.value,
                threshold=event.trigger.off_at,
                fired_at_s=at_s - begin_s,
                action=event.action,
                recovered_at_s=None if recovered is None else recovered - begin_s,
                held_share_before=held_share(before),
                held_share_after=held_share(after),
                n_before=len(before),
                n_after=len(after),
                kv_tokens_saved=saved,
                kv_tokens_restored=restored,
            )
        )
    return tuple(results)


def _kv_through(
    envelopes: Sequence[Envelope], fired_at_s: float, recovered_at_s: float | None
) -> tuple[int | None, int | None]:
    """Return the tokens that restarts between a firing and its return saved, and got back."""
    until_s = math.inf if recovered_at_s is None else recovered_at_s
    moved = [
        e.event
        for e in envelopes
        if isinstance(e.event, KVMoved) and fired_at_s <= e.at_s < until_s
    ]
    if not moved:
        return None, None
    saved = sum(each.tokens for each in moved if each.action == "saved")
    return saved, sum(each.tokens for each in moved if each.action == "restored")


def _is_return(later: TriggerMoved, fired: TriggerMoved) -> bool:
    same = (later.lever, later.trigger.name) == (fired.lever, fired.trigger.name)
    return same and not later.fired


def held_share(records: Sequence[RequestRecord]) -> float | None:
    """Return the part of the prompt tokens that the engines did not have to compute; None without any."""
    known = [
        r.tokens for r in records if r.ok and r.tokens.prompt and r.tokens.delivered is not None
    ]
    prompt = sum(tokens.prompt or 0 for tokens in known)
    return sum(tokens.delivered or 0 for tokens in known) / prompt if prompt else None


def timeline(envelopes: Sequence[Envelope], begin_s: float) -> tuple[TimelinePoint, ...]:
    """Return stages, moves of rollouts and triggers in order of time."""
    points = (_point(envelope.event, envelope.at_s - begin_s) for envelope in envelopes)
    return tuple(point for point in points if point is not None)


def _point(event: AnyEvent, at_s: float) -> TimelinePoint | None:
    match event:
        case StageStarted():
            return TimelinePoint(at_s=at_s, lane="stage", what=event.stage, detail=event.load)
        case RolloutMoved():
            verdict = None if event.verdict is None else event.verdict.value
            return TimelinePoint(
                at_s=at_s,
                lane=event.lever,
                what=event.after.value,
                share=event.share,
                verdict=verdict,
                detail=event.reason,
            )
        case TriggerMoved():
            what = "trigger fired" if event.fired else "trigger recovered"
            detail = f"{event.trigger.name}: {event.trigger.signal.value} at {event.value:.3g}; {event.action}"
            verdict = Verdict.FAIL.value if event.fired else Verdict.PASS.value
            return TimelinePoint(
                at_s=at_s, lane=event.lever, what=what, verdict=verdict, detail=detail
            )
        case _:
            return None


def _lateness(envelopes: Sequence[Envelope], stage: str) -> float | None:
    ended = (
        e.event for e in envelopes if isinstance(e.event, StageEnded) and e.event.stage == stage
    )
    value = next((event.summary.get("lateness_ms_p95") for event in ended), None)
    return value if isinstance(value, float) else None
