"""The sentences of `core.narrate`: one function per noun, numbers with unit, window and n."""

import math
from collections.abc import Sequence

from trimtab.core.budgets import BudgetMove, Budgets
from trimtab.core.cost import SpeculationTable
from trimtab.core.decision import RoutingDecision
from trimtab.core.events import (
    Effect,
    GatesEvaluated,
    LeversAssessed,
    TriggerMoved,
    VerificationDue,
)
from trimtab.core.evidence import Evidence, Reading, Readings
from trimtab.core.findings import Diagnosis, Finding, PhaseFinding
from trimtab.core.gate import GateResult, GateSpec, Question
from trimtab.core.lever import (
    Actuation,
    Assessment,
    Comparison,
    Dependency,
    ExpectedEffect,
    LeverRecord,
    QualityExposure,
    TriggerSpec,
)
from trimtab.core.quality_scores import Scores
from trimtab.core.record import RequestRecord
from trimtab.core.stats_types import Interval
from trimtab.core.traffic import TrafficPlan

UNKNOWN = "unknown"


def duration(seconds: float) -> str:
    """Say a duration in its largest unit, such as "3.5 h"."""
    for size, unit in ((86_400.0, "d"), (3600.0, "h"), (60.0, "min"), (1.0, "s")):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return "under a second"


def share(value: float | None) -> str:
    """Say a share (0 to 1) in per cent; one decimal where whole per cents would hide it."""
    if value is None:
        return UNKNOWN
    percent = 100.0 * value
    return f"{percent:.1f}%" if 0.05 <= abs(percent) < 10.0 and percent % 1 else f"{percent:.0f}%"


def used(value: float | None) -> str:
    """Say how much of a budget or a resource is used."""
    return "use unknown" if value is None else f"{share(value)} used"


def clause(text: str) -> str:
    """Return a reason so that it fits into a sentence, whoever wrote it with a full stop."""
    return text.strip().rstrip(".")


def number(value: float | None, unit: str = "") -> str:
    """Say a number with four significant digits and its unit, or that it is unknown; a share in per cent."""
    if value is None:
        return UNKNOWN
    if unit == "share" or unit.startswith("share of"):
        return f"{share(value)}{unit.removeprefix('share')}"
    text = f"{value:.4g}" if abs(value) < 1e3 else f"{value:,.0f}"
    return f"{text} {unit}".rstrip()


def ratio_interval(interval: Interval | None, unit: str = "") -> str:
    """Say an interval and its level, shares in per cent; an open end is called open."""
    if interval is None:
        return "interval unknown"
    scale = "share" if unit.startswith("share") else ""
    low = number(interval.low, scale) if math.isfinite(interval.low) else "open"
    high = number(interval.high, scale) if math.isfinite(interval.high) else "open"
    return f"{interval.level:.0%} interval {low} to {high}"


def tell_reading(reading: Reading) -> str:
    """Say one reading: value, unit, window, n and source, or why it is unknown."""
    if not isinstance(reading, Evidence):
        return f"{reading.name}: {UNKNOWN} ({reading.reason})"
    n = "" if reading.samples is None else f", n={reading.samples}"
    spread = f", {ratio_interval(reading.interval, reading.unit)}" if reading.interval else ""
    note = f"; {reading.note}" if reading.note else ""
    return (
        f"{reading.name} = {number(reading.value, reading.unit)} "
        f"(over {reading.window.length_s:.0f} s{n}{spread}, from {reading.source}{note})"
    )


def tell_readings(readings: Readings, what: str, cited: Sequence[str]) -> str:
    """Say readings, narrowed to the cited evidence ids if there are any."""
    wanted = [item for item in readings.items if not cited or getattr(item, "id", None) in cited]
    return "\n".join([f"Measured: {what}.", *(f"  {tell_reading(item)}" for item in wanted)])


def tell_request(record: RequestRecord, decision: RoutingDecision | None) -> str:
    """Say one request and where it went."""
    tokens = record.tokens
    end = "ended well" if record.ok else f"ended with {record.error.value} (status {record.status})"
    why = f" ({decision.reason.value})" if decision else ""
    return (
        f"Request {record.request_id} went to {record.replica or 'no replica'}{why} and {end}. "
        f"Prompt {number(tokens.prompt)} tokens, {number(tokens.delivered)} of them from cache; "
        f"output {number(tokens.output)}. "
        f"TTFT {number(record.ttft_ms, 'ms')}, TPOT {number(record.tpot_ms, 'ms')}."
    )


def tell_diagnosis(diagnosis: Diagnosis, scope: str) -> str:
    """Say what binds each phase, what speaks for and against it, and what each technique could gain."""
    if diagnosis.dominant_phase is None or diagnosis.dominant_resource is None:
        head = f"Diagnosis ({scope}): what binds cannot be told"
    else:
        head = (
            f"Diagnosis ({scope}): {diagnosis.dominant_phase.value} is bound by "
            f"{_words(diagnosis.dominant_resource.value)}"
        )
    head += (
        f" (confidence {share(diagnosis.confidence)}, n={diagnosis.samples} requests "
        f"over {diagnosis.window_s:.0f} s)."
    )
    lines = [head, *(f"  {_phase(found)}" for found in diagnosis.phases)]
    for label, findings in (
        ("for it", diagnosis.supports),
        ("against it", diagnosis.contradicts),
        ("ruled out", diagnosis.ruled_out),
        ("unknown", diagnosis.unknown),
    ):
        lines += [f"  {label}: {_finding(found)}" for found in findings]
    for ceiling in diagnosis.ceilings:
        gain = share(ceiling.gain_share)
        lines.append(
            f"  at most {gain} of request time from {_words(ceiling.technique.value)}: {ceiling.because}"
        )
    return "\n".join(lines)


def tell_assessed(event: LeversAssessed) -> str:
    """Say which lever was chosen among which, and why."""
    chosen = f"Chosen: {event.chosen}" if event.chosen else "No lever was chosen"
    lines = [f"{chosen}, because {clause(event.because)}. Assessed, narrowest first:"]
    return "\n".join([*lines, *(f"  {_assessment(each)}" for each in event.assessments)])


def tell_record(record: LeverRecord) -> str:
    """Say the whole head of the record: bottleneck, premise, budgets, prediction, risks, gates, way back."""
    bottleneck = record.bottleneck
    ramp = record.ramp
    steps = ", ".join(share(each) for each in ramp.shares)
    how = (
        f"switchback in blocks of {ramp.block_s:g} s with {ramp.edge_s:g} s edges dropped"
        if ramp.comparison is Comparison.SWITCHBACK
        else "side by side"
    )
    scope = ", ".join(str(cut) for cut in record.cuts) or "all traffic"
    lines = [
        f"Proposed {record.name} ({_words(record.technique.value)}), because {clause(record.chosen_because)}.",
        f"  bottleneck: {bottleneck.phase.value}, bound by {_words(bottleneck.resource.value)}, "
        f"{share(bottleneck.share)} of request time (diagnosis {bottleneck.diagnosis})",
        f"  premise: {record.premise}",
        f"  on while: {record.condition}",
        *(f"  budget {_move(move)}" for move in record.moves),
        *(f"  predicted {_expected(effect)}" for effect in record.expected),
        *(f"  new failure mode: {mode}" for mode in record.failure_modes),
        *(f"  gate {_gate(gate)}" for gate in record.gates),
        f"  quality: {record.quality_gate}",
        *(f"  trigger {_trigger(trigger)}" for trigger in record.triggers),
        f"  way back: {record.reverse}",
        f"  ramp: {steps} of sessions, {how}; a full peak cycle is {ramp.peak_is} ({ramp.peak_cycle_s:g} s)",
        f"  for: {scope}; {_narrowness(record)}",
        f"  owner {record.owner}, mode {record.mode.value}, expires "
        f"{(record.expires_at_s - record.created_at_s) / 3600:.1f} h after the proposal",
    ]
    return "\n".join(lines)


def tell_gates(event: GatesEvaluated) -> str:
    """Say one look: its verdict, and every gate with n, value and interval."""
    head = (
        f"Look {event.look} ({event.state.value}, {share(event.share)} in the slice): "
        f"{event.verdict.value}."
    )
    return "\n".join([head, *(f"  {_result(result)}" for result in event.results)])


def tell_scores(scores: Scores) -> str:
    """Say what an evaluation found."""
    floor = ""
    if scores.floor is not None:
        floor = (
            f"; the baseline differs by {scores.floor:.1%} from itself in {scores.floor_runs} runs"
        )
    lines = [f"Evaluation {scores.evaluation} scored revision {scores.revision}{floor}."]
    lines += [
        f"  {each.cut}: {each.candidate_passed} of {each.n} passed, {each.baseline_passed} with the baseline"
        for each in scores.cuts
    ]
    return "\n".join(lines)


def tell_verification(event: VerificationDue) -> str:
    """Say why a lever is to be verified again, and what both levers touch."""
    both = [*(budget.value for budget in event.budgets), *(phase.value for phase in event.phases)]
    return (
        f"To verify again: {event.changed} is {event.moved_to.value} now; both touch {', '.join(both)} "
        f"of {', '.join(event.cuts)}."
    )


def tell_trigger(event: TriggerMoved) -> str:
    """Say that a trigger fired or let go, at which value against which threshold."""
    spec = event.trigger
    signal = _words(spec.signal.value)
    where = f" in {spec.cut}" if spec.cut else ""
    value = f"{number(event.value)} (n={event.samples})"
    if event.fired:
        side = "above" if spec.off_when_above else "below"
        return (
            f"Trigger {spec.name} fired{where}: {signal} was {value}, {side} {number(spec.off_at)} "
            f"for {spec.ticks} ticks. Action: {clause(event.action)}."
        )
    return (
        f"Trigger {spec.name} let go{where}: {signal} is {value}, back beyond "
        f"{number(spec.on_at)}. Action: {clause(event.action)}."
    )


def tell_budgets(budgets: Budgets, when: str) -> str:
    """Say the four budgets at a moment."""
    uses = [f"  {use.budget.value}: {used(use.used_share)} ({use.basis})" for use in budgets.uses]
    return "\n".join([f"Budgets, {when}:", *uses])


def tell_effect(event: Effect) -> str:
    """Say a measured effect against its prediction."""
    if event.ratio is None:
        measured = UNKNOWN
    else:
        bounds = "interval unknown"
        if event.low is not None and event.high is not None:
            bounds = f"interval {number(event.low)} to {number(event.high)}"
        measured = f"{number(event.ratio)} of the baseline ({bounds})"
    return (
        f"Effect on {event.metric}, {event.cut}: {measured}, n={event.n_candidate} against "
        f"{event.n_baseline}; predicted {number(event.predicted_ratio)}."
    )


def tell_plan(plan: TrafficPlan) -> str:
    """Say how traffic is treated from here on."""
    parts = [f"Traffic: {_words(plan.policy)}"]
    if plan.candidate is not None:
        where = ", ".join(plan.candidate.replicas) or "every replica"
        parts.append(
            f"{share(plan.candidate.share)} of sessions try {plan.candidate.lever} on {where} "
            f"({_words(plan.candidate.comparison.value)})"
        )
    for preference in plan.preferences:
        cuts = ", ".join(str(cut) for cut in preference.cuts) or "all requests"
        parts.append(f"{cuts} belong on {', '.join(preference.replicas)} ({preference.lever})")
    return "; ".join(parts) + "."


def tell_speculation(table: SpeculationTable) -> str:
    """Say measured speeds by batch and the batch from which speculation does not pay."""
    ratios = ", ".join(one.told for one in table.gains())
    where = table.break_even().told if table.ratios() else "unknown"
    return f"Speculation against none, output tokens per second on {table.content}: {ratios}. Break-even: {where}."


def _words(value: str) -> str:
    return value.replace("_", " ")


def _phase(found: PhaseFinding) -> str:
    resource = _words(found.resource.value) if found.resource else UNKNOWN
    return (
        f"{found.phase.value}: {share(found.share)} of time, mean {number(found.mean_ms, 'ms')}, bound by {resource} "
        f"({used(found.used_share)}, n={found.samples}): {found.because}"
    )


def _finding(found: Finding) -> str:
    cited = f" [{', '.join(found.evidence)}]" if found.evidence else ""
    return f"{found.text}{cited}"


def _assessment(each: Assessment) -> str:
    premise = "holds" if each.premise_holds else "does not hold"
    there = "" if each.available else " Not available here."
    return (
        f"{each.lever} ({_words(each.technique.value)}): premise {premise} ({each.premise}); predicted gain "
        f"{share(each.gain_share)} of request time. {each.because}.{there}"
    )


def _move(move: BudgetMove) -> str:
    verb = "spends" if move.spends else "relieves"
    size = (
        f"size {UNKNOWN}" if move.delta_share is None else f"{100 * move.delta_share:+.1f} points"
    )
    return f"{move.budget.value}: {verb} ({size}), {move.because}"


def _expected(effect: ExpectedEffect) -> str:
    return (
        f"{effect.metric.value}: {number(effect.ratio)} of the baseline "
        f"({number(effect.low)} to {number(effect.high)}), {effect.because}"
    )


def _gate(gate: GateSpec) -> str:
    asks = {
        Question.GAIN: "must be better by",
        Question.NO_HARM: "must not be worse by",
        Question.VETO: "is refused if shown worse by",
    }[gate.question]
    cut = str(gate.cut) if gate.cut else "all traffic"
    need = "required" if gate.required else "veto only"
    return (
        f"{gate.name}: {gate.metric.value} ({_words(gate.statistic.value)}) of {cut} {asks} {share(gate.margin)}, "
        f"n>={gate.min_requests} per arm and {gate.min_units} units, alpha {gate.alpha:g}, {need}"
    )


def _trigger(spec: TriggerSpec) -> str:
    side = "above" if spec.off_when_above else "below"
    back = "does not come back by itself" if spec.on_at is None else f"back at {number(spec.on_at)}"
    return (
        f"{spec.name}: {_words(spec.action.value)} when {_words(spec.signal.value)} is {side} "
        f"{number(spec.off_at)} for {spec.ticks} ticks (n>={spec.min_samples}), {back}; {spec.because}"
    )


def _narrowness(record: LeverRecord) -> str:
    narrow = record.narrowness
    quality = {
        QualityExposure.NONE: "no quality exposure",
        QualityExposure.LOSSLESS_UP_TO_NUMERICS: "lossless up to numerics",
        QualityExposure.LOSSY: "lossy",
    }[narrow.quality]
    needs = {
        Dependency.NONE: "nothing new needed",
        Dependency.ANOTHER_REPLICA: "needs another replica",
        Dependency.NEW_HARDWARE: "needs new hardware",
    }[narrow.dependency]
    moved = {
        Actuation.LIVE: "moved live",
        Actuation.ROUTING: "moved by routing",
        Actuation.RESTART: "moved by restarting a replica",
    }[narrow.actuation]
    return f"{quality}, {needs}, {moved}, reversed in {narrow.reverse_s:g} s"


def _result(result: GateResult) -> str:
    # Only rates are differences; everything else is candidate over baseline.
    need = "" if result.required else " (veto only)"
    return (
        f"{result.verdict.value} {result.gate}{need}: {result.metric.value} of {result.cut} = {number(result.value)} "
        f"({ratio_interval(result.interval)}, margin {share(result.margin)}, n={result.n_candidate} against "
        f"{result.n_baseline}, {result.n_units} units); {result.reason}"
    )
