"""A smaller prefill chunk: relieves decode stalls behind long prefills, spends prefill efficiency.

Law: a chunk that takes no longer than `GAP_RATIO_MIN` times the longest gap of streams that no prefill runs beside,
chunk = GAP_RATIO_MIN * gap / (ms per prompt token), as a power of two, at least `CHUNK_MIN` and at most half of what it
is. It smooths gaps and removes no work, so its gain is the stall that it spreads, and it is proven on gaps.

Failure modes: more steps for the same prompt (fixed cost of a step each); a batch too small for the kernels.

Source: chunked prefill between decode steps as in Agrawal et al., "Sarathi-Serve", 2024.
"""

import math
from typing import Final

from trimtab.core.budgets import BudgetMove
from trimtab.core.gate import GateSpec, Metric, Statistic
from trimtab.core.lever import (
    Actuation,
    Assessment,
    Bottleneck,
    Comparison,
    Dependency,
    ExpectedEffect,
    LeverRecord,
    LeverRecordError,
    Narrowness,
    QualityExposure,
    Scope,
    Situation,
    TriggerSignal,
    TriggerSpec,
    check_record,
)
from trimtab.core.types import Budget, Phase, Resource, Technique
from trimtab.diagnosis.causes import split_causes
from trimtab.diagnosis.names import Name
from trimtab.levers.shape import (
    EXPIRES_AFTER_S,
    QUALITY_GATE,
    clamp_ratio,
    quote,
    status_of,
)
from trimtab.rollout.defaults import (
    TAIL_PROVEN_MARGIN,
    technique_gain,
    technique_vetoes,
    veto,
)

GAP_RATIO_MIN: Final = 2.0
"""The longest chunk gap beside a prefill over the one without, from which on chunking is worth trying."""

CHUNK_MIN: Final = 64
CHUNK_GAP_GAIN_MARGIN: Final = 0.20
TTFT_HARM_MARGIN: Final = 0.10
TPOT_OFF_AT: Final = 1.15

_NARROWNESS = Narrowness(
    quality=QualityExposure.LOSSLESS_UP_TO_NUMERICS,
    dependency=Dependency.NONE,
    actuation=Actuation.RESTART,
    scope=Scope.SLICE,
    reverse_s=10.0,
)


class SmallerPrefillChunk:
    """The lever: a revision with a smaller largest prefill batch, on a replica of its own, compared side by side."""

    name = "smaller_prefill_chunk"

    def assess(self, situation: Situation) -> Assessment:
        """Premise: the longest gap of running streams rises while a prefill runs beside them."""
        beside = situation.readings.value(Name.CHUNK_GAP_MS_BESIDE_PREFILL)
        alone = situation.readings.value(Name.CHUNK_GAP_MS_ALONE)
        holds = beside is not None and bool(alone) and beside >= GAP_RATIO_MIN * (alone or 0.0)
        chunk = smaller_chunk(situation)
        ceiling = situation.diagnosis.ceiling(Technique.PREFILL_CHUNKING)
        gain = None if ceiling is None else ceiling.gain_share
        status = status_of(self.name, situation) or _not_here(situation, chunk)
        gains = f"chunks of {chunk} instead of {situation.revision.chunk_tokens} tokens"
        if ceiling is not None:
            gains += f"; ceiling {'unknown' if gain is None else f'{gain:.1%}'}: {ceiling.because}"
        premise = (
            "longest chunk gap in ms beside a prefill: "
            f"{quote(situation, Name.CHUNK_GAP_MS_BESIDE_PREFILL, '.0f')}, "
            f"without one: {quote(situation, Name.CHUNK_GAP_MS_ALONE, '.0f')} (needs {GAP_RATIO_MIN:.0f} times)"
        )
        return Assessment(
            lever=self.name,
            technique=Technique.PREFILL_CHUNKING,
            premise=premise,
            premise_holds=holds,
            gain_share=gain,
            moves=_moves(situation, chunk),
            narrowness=_NARROWNESS,
            available=not status,
            because=status or (gains if holds else premise),
        )

    def propose(self, situation: Situation, assessment: Assessment, because: str) -> LeverRecord:
        """Write the record; raises `LeverRecordError` without a smaller chunk or without gaps to compare."""
        chunk = smaller_chunk(situation)
        if chunk is None:
            raise LeverRecordError(
                "$.revision: no smaller chunk can be told from what was measured"
            )
        phase = situation.diagnosis.phase(Phase.DECODE)
        record = LeverRecord(
            name=self.name,
            technique=Technique.PREFILL_CHUNKING,
            bottleneck=Bottleneck(
                phase=Phase.DECODE,
                resource=Resource.COMPUTE,
                share=None if phase is None else phase.share,
                diagnosis=situation.diagnosis.id,
                evidence=situation.readings.ids(
                    Name.CHUNK_GAP_MS_BESIDE_PREFILL,
                    Name.CHUNK_GAP_MS_ALONE,
                    Name.DECODE_BESIDE_PREFILL_SHARE,
                    Name.DECODE_MS_PER_TOKEN,
                    Name.PREFILL_MS_PER_TOKEN,
                ),
            ),
            premise=assessment.premise,
            condition="streams that run while other prompts are prefilled on their replica",
            moves=assessment.moves,
            expected=_expected(situation, chunk),
            failure_modes=(
                "each step has a fixed cost, so that a long prompt of many chunks gets its first token later",
                "a batch too small for the kernels: prefill takes more compute and the queue behind it grows",
                "answers between the chunks slow the prompt down while many streams run",
                "outputs differ in rounding from those of other batch shapes",
            ),
            gates=_gates(),
            quality_gate=QUALITY_GATE,
            triggers=_triggers(),
            reverse=(
                "route to plain replicas at once, then restart the replica in the baseline revision with its slots' KV "
                "saved and restored"
            ),
            ramp=situation.ramp.compared(Comparison.SIDE_BY_SIDE),
            revision=situation.revision.replace(chunk_tokens=chunk),
            mode=situation.mode,
            owner=situation.owner,
            created_at_s=situation.now_s,
            expires_at_s=situation.now_s + EXPIRES_AFTER_S,
            narrowness=assessment.narrowness,
            chosen_because=because,
        )
        return check_record(record)


def smaller_chunk(situation: Situation) -> int | None:
    """Return the chunk in tokens that the law gives, None where it cannot be told or would not be smaller."""
    alone = situation.readings.value(Name.CHUNK_GAP_MS_ALONE)
    per_token = situation.cost.prefill_ms_per_token
    most = situation.revision.chunk_tokens // 2
    if not alone or per_token <= 0.0 or most < CHUNK_MIN:
        return None
    wanted = min(float(most), max(float(CHUNK_MIN), GAP_RATIO_MIN * alone / per_token))
    return int(2 ** math.floor(math.log2(wanted)))


def _not_here(situation: Situation, chunk: int | None) -> str:
    if situation.replicas < 2:
        return "with one replica no plain arm would be left to compare with"
    if situation.revision.chunk_tokens < 2 * CHUNK_MIN:
        return f"the chunk is {situation.revision.chunk_tokens} tokens already"
    return "" if chunk is not None else "how long gaps are without a prefill is unknown"


def _moves(situation: Situation, chunk: int | None) -> tuple[BudgetMove, ...]:
    running = situation.readings.value(Name.PREFILL_RUNNING_SHARE)
    delta = None
    if running is not None and chunk is not None and situation.cost.prefill_ms_per_token > 0.0:
        one_ms = chunk * situation.cost.prefill_ms_per_token
        delta = running * situation.cost.prefill_base_ms / one_ms
    return (
        BudgetMove(
            budget=Budget.COMPUTE,
            spends=True,
            delta_share=delta,
            because="smaller batches of prompt tokens use the cores less well, and each chunk has the cost of a step",
        ),
    )


def _expected(situation: Situation, chunk: int) -> tuple[ExpectedEffect, ...]:
    beside = situation.readings.value(Name.CHUNK_GAP_MS_BESIDE_PREFILL)
    alone = situation.readings.value(Name.CHUNK_GAP_MS_ALONE)
    if not beside or alone is None:
        return ()
    gap = alone + chunk * situation.cost.prefill_ms_per_token
    causes = split_causes(situation.readings, situation.cost)
    part = 1.0 if causes is None or causes.decode <= 0.0 else causes.stalled_decode / causes.decode
    ratio = clamp_ratio(min(1.0, gap / beside))
    return (
        ExpectedEffect(
            metric=Metric.CHUNK_GAP_MS,
            ratio=ratio,
            low=clamp_ratio(min(ratio, alone / beside)),
            high=max(ratio, clamp_ratio(1.0 - 0.5 * part * (1.0 - ratio))),
            because=f"a chunk of {chunk} tokens takes {chunk * situation.cost.prefill_ms_per_token:.0f} ms",
        ),
        ExpectedEffect(
            metric=Metric.TTFT_MS,
            ratio=1.0,
            low=0.9,
            high=1.0 + TTFT_HARM_MARGIN,
            because="the same prompt tokens are computed, with a step's fixed cost for each chunk",
        ),
    )


def _gates() -> tuple[GateSpec, ...]:
    return (
        technique_gain(
            "chunk-gap-gain", Metric.CHUNK_GAP_MS, CHUNK_GAP_GAIN_MARGIN, matched_batch=True
        ),
        veto(Metric.TTFT_MS, TTFT_HARM_MARGIN, matched_batch=True),
        veto(Metric.TTFT_MS, TAIL_PROVEN_MARGIN, statistic=Statistic.TAIL_P95),
        veto(Metric.TPOT_MS, TAIL_PROVEN_MARGIN, matched_batch=True),
        *technique_vetoes(matched_batch=True),
    )


def _triggers() -> tuple[TriggerSpec, ...]:
    return (
        TriggerSpec(
            name="net-tpot-worse",
            signal=TriggerSignal.NET_TPOT_RATIO,
            off_at=TPOT_OFF_AT,
            on_at=None,
            off_when_above=True,
            min_samples=10,
            because="tokens take longer than with the larger chunk at matched batch: the chunks' own cost is felt",
        ),
    )
