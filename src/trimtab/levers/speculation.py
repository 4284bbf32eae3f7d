"""N-gram speculation: draft from the prompt's own text and verify several tokens in one step.

Relieves decode iterations (TPOT); spends the compute of verification. Right while reading the weights is a good part
of a step and the batch is below the break-even measured on *aggregate* tokens per second: per-stream TPOT can still
look better where throughput is already lost. It stays off where drafting costs more than the steps it saves.
"""

from trimtab.core.break_even import ROUNDS_MIN, BreakEven
from trimtab.core.budgets import BudgetMove
from trimtab.core.cost import SpeculationTable
from trimtab.core.cuts import Cut, Dimension
from trimtab.core.lever import (
    Actuation,
    Assessment,
    Bottleneck,
    Comparison,
    Dependency,
    LeverRecord,
    LeverRecordError,
    Narrowness,
    QualityExposure,
    Scope,
    Situation,
    check_record,
)
from trimtab.core.types import Budget, Phase, Resource, Technique
from trimtab.diagnosis.calibration import speedup_at
from trimtab.diagnosis.causes import split_causes, step_batch
from trimtab.diagnosis.names import Name
from trimtab.levers.shape import (
    EXPIRES_AFTER_S,
    QUALITY_GATE,
    status_of,
)
from trimtab.levers.speculation_cuts import LabelPromise, promises
from trimtab.levers.speculation_record import (
    condition_of,
    expected_effects,
    gates_of,
    off_batch,
    triggers_of,
)

SPEEDUP_MIN = 1.05
"""Below this measured speed-up at the observed batch the restart is not worth it."""

_NARROWNESS = Narrowness(
    quality=QualityExposure.LOSSLESS_UP_TO_NUMERICS,
    dependency=Dependency.NONE,
    actuation=Actuation.RESTART,
    scope=Scope.SLICE,
    reverse_s=10.0,
)


class NgramSpeculation:
    """The lever: a revision on a replica of its own, compared side by side at matched batch."""

    name = "ngram_speculation"

    def assess(self, situation: Situation) -> Assessment:
        """Judge by the measured table at the observed batch; gain = decode of promising cuts x (1 - 1/speed-up)."""
        table = situation.speculation
        refusal = _refusal(situation, table)
        status = status_of(self.name, situation) or _not_here(situation)
        status = status or ("" if refusal else _too_little(situation, table))
        return Assessment(
            lever=self.name,
            technique=Technique.SPECULATION,
            premise=_premise(situation, table),
            premise_holds=not refusal,
            gain_share=_gain(situation, table),
            moves=_moves(situation, table),
            narrowness=_NARROWNESS,
            available=not status,
            because=status or refusal or _gain_in_words(situation, table),
        )

    def propose(self, situation: Situation, assessment: Assessment, because: str) -> LeverRecord:
        """Write the record; raises `LeverRecordError` without a table or a promising cut."""
        table = situation.speculation
        if table is None:
            raise LeverRecordError("$.premise: no table of speculation was measured")
        phase = situation.diagnosis.phase(Phase.DECODE)
        judged = promises(situation.readings, table)
        cuts = tuple(Cut(Dimension.LABEL, each.label) for each in judged if each.promising)
        tried = tuple(Cut(Dimension.LABEL, each.label) for each in judged)
        record = LeverRecord(
            name=self.name,
            technique=Technique.SPECULATION,
            bottleneck=Bottleneck(
                phase=Phase.DECODE,
                resource=_bound_by(situation),
                share=None if phase is None else phase.share,
                diagnosis=situation.diagnosis.id,
                evidence=situation.readings.ids(
                    Name.DECODE_SHARE,
                    Name.DECODE_BATCH_PER_STEP,
                    Name.DECODE_BATCH_MEAN,
                    Name.DECODE_BATCH_P95,
                    Name.DECODE_MS_PER_TOKEN,
                    Name.TPOT_MS_MEAN,
                ),
            ),
            premise=assessment.premise,
            condition=condition_of(judged, off_batch(table)),
            moves=assessment.moves,
            expected=expected_effects(situation, table),
            failure_modes=(
                "a batch over the break-even: verification costs more than it saves and throughput falls",
                "answers that repeat nothing: drafts are rejected and every step is longer",
                "tokens come in lumps: the longest gap between chunks grows though tokens come faster",
                "outputs differ in rounding from those of other batch shapes",
            ),
            gates=gates_of(cuts, judged, table),
            quality_gate=QUALITY_GATE,
            triggers=triggers_of(table),
            reverse=(
                "route the cuts to plain replicas at once, then restart the replica in the baseline revision with "
                "its slots' KV saved and restored, so that the prefix cache survives"
            ),
            ramp=situation.ramp.compared(Comparison.SIDE_BY_SIDE),
            cuts=tried,
            revision=situation.revision.replace(speculation=table.speculation),
            mode=situation.mode,
            owner=situation.owner,
            created_at_s=situation.now_s,
            expires_at_s=situation.now_s + EXPIRES_AFTER_S,
            narrowness=assessment.narrowness,
            chosen_because=because,
        )
        return check_record(record)


def _bound_by(situation: Situation) -> Resource:
    """Return what binds decode as diagnosed; the premise is the measured table, whatever that is called."""
    phase = situation.diagnosis.phase(Phase.DECODE)
    if phase is None or phase.resource is None:
        return Resource.MEMORY_BANDWIDTH
    return phase.resource


def _not_here(situation: Situation) -> str:
    if situation.replicas < 2:
        return "with one replica no plain arm would be left to compare with"
    if situation.revision.speculation.is_on:
        return "the baseline revision speculates already"
    return ""


def _refusal(situation: Situation, table: SpeculationTable | None) -> str:
    """Return why the premise does not hold, or an empty text."""
    if table is None:
        return "speculation was not measured on this engine: no table of throughput by batch"
    if not table.ratios():
        return "no batch was measured with and without drafts"
    even = table.break_even()
    if even.off_at == 0.0:
        return _nothing_shown(table, even)
    batch = step_batch(situation.readings)
    if batch is None:
        return "the decode batch is unknown, so nothing says on which side of the break-even it is"
    if batch > even.off_at:
        return (
            f"the batch is {batch:.1f}, over {even.off_at:.1f}, up to where a gain is shown; "
            f"break-even: {even.told}"
        )
    judged = promises(situation.readings, table)
    if judged and not any(each.promising for each in judged):
        return "no label promises a gain: " + _judged_in_words(judged)
    return ""


def _too_little(situation: Situation, table: SpeculationTable | None) -> str:
    """Return that a gain is shown and too small to restart a replica for it, or an empty text."""
    batch = step_batch(situation.readings)
    speedup = None if table is None or batch is None else speedup_at(table, batch)
    if batch is None or speedup is None or speedup >= SPEEDUP_MIN:
        return ""
    return f"speed at batch {batch:.1f} is {speedup:.2f}x: at least {SPEEDUP_MIN:.2f}x is worth a restart"


def _nothing_shown(table: SpeculationTable, even: BreakEven) -> str:
    """Say why drafts are off at every batch: too few rounds, a loss beyond noise, or a gain within it."""
    smallest = table.gains()[0]
    if smallest.high is None:
        return f"the measurement cannot tell whether drafts gain: {smallest.told}, which needs {ROUNDS_MIN}"
    if smallest.high <= 1.0:
        return f"drafting costs more than the steps it saves at the smallest batch: {smallest.told}"
    return f"no gain beyond noise is shown at the smallest batch: {smallest.told}; break-even: {even.told}"


def _judged_in_words(judged: tuple[LabelPromise, ...]) -> str:
    return "; ".join(f"{each.label}: {each.because}" for each in judged)


def _premise(situation: Situation, table: SpeculationTable | None) -> str:
    if table is None:
        return "decode is bound by memory bandwidth and the batch is below a measured break-even: not measured"
    ratios = ", ".join(one.told for one in table.gains())
    shown = table.break_even().told if table.ratios() else "unknown"
    batch = step_batch(situation.readings)
    seen = "unknown" if batch is None else f"{batch:.1f}"
    decode = situation.diagnosis.phase(Phase.DECODE)
    bound = "unknown" if decode is None or decode.resource is None else decode.resource.value
    return (
        f"aggregate throughput with drafting on {table.content}, measured: {ratios}; break-even batch, on straight "
        f"lines between those: {shown}; observed decode batch {seen}; decode is bound by {bound}; "
        + _judged_in_words(promises(situation.readings, table))
    ).rstrip("; ")


def _reach(situation: Situation, table: SpeculationTable) -> float:
    """Return the part of decode time (0 to 1) that the promising labels have; all of it without labels."""
    judged = promises(situation.readings, table)
    if not judged:
        return 1.0
    return min(1.0, sum(each.decode_share or 0.0 for each in judged if each.promising))


def _gain(situation: Situation, table: SpeculationTable | None) -> float | None:
    causes = split_causes(situation.readings, situation.cost)
    batch = step_batch(situation.readings)
    if table is None or causes is None or batch is None:
        return None
    speedup = speedup_at(table, batch)
    if speedup is None:
        return None
    saved = 1.0 - 1.0 / speedup if speedup > 1.0 else 0.0
    return causes.by_decode * _reach(situation, table) * saved


def _gain_in_words(situation: Situation, table: SpeculationTable | None) -> str:
    gain = _gain(situation, table)
    if table is None or gain is None:
        return "the gain cannot be told"
    return (
        f"{gain:.1%} of request time could be saved: {_reach(situation, table):.0%} of decode time is in cuts "
        "that promise a gain"
    )


def _moves(situation: Situation, table: SpeculationTable | None) -> tuple[BudgetMove, ...]:
    running = situation.readings.value(Name.DECODE_RUNNING_SHARE)
    batch = step_batch(situation.readings)
    speedup = None if table is None or batch is None else speedup_at(table, batch)
    delta = None
    if table is not None and running is not None and speedup:
        delta = running * _reach(situation, table) * (1.0 / speedup - 1.0)
    return (
        BudgetMove(
            budget=Budget.COMPUTE,
            spends=True,
            delta_share=delta,
            because=(
                "verifying drafts costs compute; as busy time of the threads it nets against the reads of weights "
                "that are saved, below the break-even a relief, above it a loss"
            ),
        ),
        BudgetMove(
            budget=Budget.MEMORY,
            spends=False,
            delta_share=0.0,
            because=(
                "weights are read once per several tokens, which relieves bandwidth; what memory holds stays "
                "the same but for a few MB of n-gram tables"
            ),
        ),
    )
