"""Prefill and decode on different replicas: relieves interference that chunking leaves, spends transfer.

The last replica prefills for the others; each prompt goes there only where that is predicted to be faster
(`policies.local_prefill`). It is compared by switchback on the same replicas: in the baseline's blocks all of them
serve whole requests, so the hardware is the same in both arms.

What stalls decode is relieved as far as the prompts are long enough to travel: by the share of uncached tokens that
are of such prompts. It is open once the smaller chunk, which is narrower, is not: tried, or out of the choice by what
was measured.

Failure modes: few long prompts leave the prefill replica idle; a slow link costs more than the interference; whatever
the decode side lacks in slots shows as a queue.

Source: Zhong et al., "DistServe", OSDI 2024; Patel et al., "Splitwise", ISCA 2024.
"""

from typing import Final

from trimtab.core.budgets import BudgetMove
from trimtab.core.cuts import TOKEN_EDGES, Cut, Dimension
from trimtab.core.findings import Ceiling
from trimtab.core.gate import GateSpec, Metric, Question, Statistic
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
    Scope,
    Situation,
    TriggerSignal,
    TriggerSpec,
    check_record,
)
from trimtab.core.types import Budget, Phase, Resource, RolloutState, Technique
from trimtab.diagnosis.causes import split_causes
from trimtab.diagnosis.names import Name
from trimtab.levers.choice import why_not
from trimtab.levers.prefill_chunking import CHUNK_GAP_GAIN_MARGIN, SmallerPrefillChunk
from trimtab.levers.shape import (
    EXPIRES_AFTER_S,
    QUALITY_GATE,
    clamp_ratio,
    quote,
    status_of,
)
from trimtab.rollout.defaults import (
    PROVEN_REQUESTS_MIN,
    TAIL_PROVEN_MARGIN,
    technique_gain,
    technique_vetoes,
    veto,
)

STALLED_MIN_SHARE: Final = 0.10
BUSY_MIN_SHARE: Final = 0.40
"""Below this busy share roles of their own would leave replicas idle."""

LONG_MIN_SHARE: Final = 0.30
"""Share of uncached tokens in prompts that may travel, below which a prefill replica would have little to do."""

RELIEVED_PART: Final = (0.3, 0.6, 1.0)
"""Part of the stall that goes with the prompts sent ahead: low, expected, high. Short prompts stay."""

SHORT_TTFT_HARM_MARGIN: Final = 0.10
TRANSFER_OFF_AT: Final = 0.5
"""Part of the time to the first token that a transfer takes: off above it. Once off nothing shows when it is over."""

LOAD_OFF_AT, LOAD_ON_AT = 0.25, 1.0
"""Requests in flight per replica: roles merge below the first and may come back above the second."""

SHORT_INPUTS: Final = Cut(Dimension.INPUT_TOKENS, f"0-{TOKEN_EDGES[0]}")

_NARROWNESS = Narrowness(
    quality=QualityExposure.LOSSLESS_UP_TO_NUMERICS,
    dependency=Dependency.ANOTHER_REPLICA,
    actuation=Actuation.ROUTING,
    scope=Scope.SLICE,
    reverse_s=10.0,
)


class SplitRoles:
    """The lever: one replica prefills for the others."""

    name = "split_prefill_and_decode"

    def assess(self, situation: Situation) -> Assessment:
        """Premise: long prompts that stall decode for a good part of request time, under steady load."""
        causes = split_causes(situation.readings, situation.cost)
        busy = situation.readings.value(Name.BUSY_SHARE)
        stalled = None if causes is None else causes.stalled_decode
        long = situation.readings.value(Name.LONG_UNCACHED_SHARE)
        holds = (
            stalled is not None
            and busy is not None
            and long is not None
            and long >= LONG_MIN_SHARE
            and stalled >= STALLED_MIN_SHARE
            and busy >= BUSY_MIN_SHARE
        )
        narrower = _why_not_narrower(situation)
        status = status_of(self.name, situation) or _not_here(situation, narrower)
        ceiling = situation.diagnosis.ceiling(Technique.DISAGGREGATION)
        premise = (
            f"prefills stall decode for {'unknown' if stalled is None else f'{stalled:.1%}'} of request time "
            f"(needs {STALLED_MIN_SHARE:.0%}); replicas are busy {quote(situation, Name.BUSY_SHARE)} "
            f"(needs {BUSY_MIN_SHARE:.0%}); uncached tokens in prompts that may travel: "
            f"{quote(situation, Name.LONG_UNCACHED_SHARE)} (needs {LONG_MIN_SHARE:.0%})"
        )
        return Assessment(
            lever=self.name,
            technique=Technique.DISAGGREGATION,
            premise=premise,
            premise_holds=holds,
            gain_share=_gain(stalled, long),
            moves=_moves(situation),
            narrowness=_NARROWNESS,
            available=not status,
            because=status or (_because(ceiling, narrower) if holds else premise),
        )

    def propose(self, situation: Situation, assessment: Assessment, because: str) -> LeverRecord:
        """Write the record; raises `LeverRecordError` where evidence for a field is missing."""
        phase = situation.diagnosis.phase(Phase.DECODE)
        record = LeverRecord(
            name=self.name,
            technique=Technique.DISAGGREGATION,
            bottleneck=Bottleneck(
                phase=Phase.DECODE,
                resource=Resource.COMPUTE,
                share=None if phase is None else phase.share,
                diagnosis=situation.diagnosis.id,
                evidence=situation.readings.ids(
                    Name.DECODE_BESIDE_PREFILL_SHARE,
                    Name.DECODE_MS_PER_TOKEN,
                    Name.DECODE_BATCH_MEAN,
                    Name.COMPUTED_TOKENS,
                    Name.LONG_UNCACHED_SHARE,
                    Name.BUSY_SHARE,
                ),
            ),
            premise=assessment.premise,
            condition=(
                "prompts with more uncached tokens than a chunk, whose queue, prefill and transfer elsewhere are "
                "predicted to be faster; all others are prefilled where they are decoded"
            ),
            moves=assessment.moves,
            expected=_expected(situation),
            failure_modes=(
                "the prefill replica idles while the others queue: fewer replicas answer",
                "the transfer costs more than the interference that it saves",
                "KV arrives in part or not at all, and the prompt is computed twice",
                "the decode side has no slot or no room when the KV is there",
            ),
            gates=_gates(),
            quality_gate=QUALITY_GATE,
            triggers=_triggers(),
            reverse=(
                "let the prefill replica take whole requests again: by routing alone, once its hand-overs are over; "
                "nothing restarts and what the caches hold stays"
            ),
            ramp=situation.ramp.compared(Comparison.SWITCHBACK),
            prefill=1,
            mode=situation.mode,
            owner=situation.owner,
            created_at_s=situation.now_s,
            expires_at_s=situation.now_s + EXPIRES_AFTER_S,
            narrowness=assessment.narrowness,
            chosen_because=because,
        )
        return check_record(record)


def _why_not_narrower(situation: Situation) -> str:
    """Return why the smaller chunk is out of the choice here, empty while it may still be chosen."""
    return why_not(SmallerPrefillChunk().assess(situation), situation.diagnosis.budgets)


def _not_here(situation: Situation, narrower: str) -> str:
    """Return why the lever is not open: hardware, or a narrower lever that is. `narrower`: why that one is not."""
    if situation.replicas < 2:
        return "with one replica nobody would be left to decode"
    if situation.prefill_replicas:
        return f"{situation.prefill_replicas} replicas prefill for the others already"
    if situation.prefill_restarts:
        return (
            "roles.prefill_engine gives replicas that prefill settings of their own: in the baseline's blocks one "
            "would serve whole requests with them, and be no baseline; give the role by hand (trimtab fleet role)"
        )
    if not narrower:
        return f"{SmallerPrefillChunk.name} is narrower and was not tried: roles are for what it leaves"
    return ""


def _because(ceiling: Ceiling | None, narrower: str) -> str:
    """Say what could be gained at most, and why the narrower lever does not come first."""
    told = "" if ceiling is None else f"{ceiling.because}; "
    return f"{told}{SmallerPrefillChunk.name} is not open: {narrower}"


def _gain(stalled: float | None, long: float | None) -> float | None:
    if stalled is None or long is None:
        return None
    return min(RELIEVED_PART[1], long) * stalled


def _moves(situation: Situation) -> tuple[BudgetMove, ...]:
    n = situation.replicas
    busy = situation.readings.value(Name.BUSY_SHARE)
    decode = situation.readings.value(Name.DECODE_RUNNING_SHARE)
    after = None if busy is None or decode is None or n < 2 else decode * n / (n - 1) - busy
    return (
        BudgetMove(
            budget=Budget.COMMUNICATION,
            spends=True,
            delta_share=None,
            because="the KV of every prompt that is sent ahead moves from a prefill to a decode replica",
        ),
        BudgetMove(
            budget=Budget.COMPUTE,
            spends=True,
            delta_share=after,
            because=f"{n - 1} of {n} replicas decode: each gets {n}/{n - 1} of the answers, and no long prompt",
        ),
    )


def _expected(situation: Situation) -> tuple[ExpectedEffect, ...]:
    causes = split_causes(situation.readings, situation.cost)
    if causes is None or causes.decode <= 0.0:
        return ()
    part = causes.stalled_decode / causes.decode
    low, likely, high = (clamp_ratio(1.0 - each * part) for each in reversed(RELIEVED_PART))
    return (
        ExpectedEffect(
            metric=Metric.TPOT_MS,
            ratio=likely,
            low=low,
            high=max(1.0, high),
            because=f"{part:.0%} of decode time is stalled by prefills, of which {RELIEVED_PART[1]:.0%} should go",
        ),
        ExpectedEffect(
            metric=Metric.CHUNK_GAP_MS,
            ratio=likely,
            low=clamp_ratio(0.1),
            high=max(1.0, high),
            because="the longest gaps are those behind long prompts, which are computed elsewhere",
        ),
    )


def _gates() -> tuple[GateSpec, ...]:
    return (
        technique_gain("chunk-gap-gain", Metric.CHUNK_GAP_MS, CHUNK_GAP_GAIN_MARGIN),
        GateSpec(
            name="short-inputs-ttft",
            metric=Metric.TTFT_MS,
            question=Question.NO_HARM,
            margin=SHORT_TTFT_HARM_MARGIN,
            cut=SHORT_INPUTS,
            min_requests=PROVEN_REQUESTS_MIN,
            during=(RolloutState.PROVING,),
        ),
        veto(Metric.TTFT_MS, TAIL_PROVEN_MARGIN, statistic=Statistic.TAIL_P95),
        veto(Metric.TPOT_MS, TAIL_PROVEN_MARGIN),
        *technique_vetoes(matched_batch=False),
    )


def _triggers() -> tuple[TriggerSpec, ...]:
    return (
        TriggerSpec(
            name="transfer-too-dear",
            signal=TriggerSignal.TRANSFER_SHARE,
            off_at=TRANSFER_OFF_AT,
            on_at=None,
            off_when_above=True,
            ticks=5,
            because="half of the time to the first token goes by on the link: better computed where it is decoded",
        ),
        TriggerSpec(
            name="low-traffic",
            signal=TriggerSignal.LOAD_PER_REPLICA,
            off_at=LOAD_OFF_AT,
            on_at=LOAD_ON_AT,
            off_when_above=False,
            ticks=30,
            min_samples=10,
            lockout_s=60.0,
            because="nobody is kept waiting by prompts of others: all replicas may serve whole requests",
        ),
    )
