"""Prefix-affine routing: send a request to the replica that holds its prefix, within a load bound.

Relieves prefill compute and TTFT; spends balance (a hot replica) and cache memory. Its premise is *skipped tokens
lost*, prompt tokens computed although some replica held them, never a hit rate: a high hit rate can go with nothing
left to gain, and a low one with nothing to share.
"""

from trimtab.core.budgets import BudgetMove
from trimtab.core.evidence import Evidence
from trimtab.core.gate import GateSpec, Metric, Statistic
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
    TriggerAction,
    TriggerSignal,
    TriggerSpec,
    check_record,
)
from trimtab.core.types import Budget, Phase, Resource, Technique
from trimtab.diagnosis.binding import evictions_bind, kv_binds
from trimtab.diagnosis.causes import split_causes
from trimtab.diagnosis.ceilings import lost_part
from trimtab.diagnosis.names import Name
from trimtab.levers.shape import (
    EXPIRES_AFTER_S,
    QUALITY_GATE,
    clamp_ratio,
    quote,
    status_of,
)
from trimtab.rollout.defaults import (
    CHUNK_GAP_MARGIN,
    TAIL_PROVEN_MARGIN,
    TPOT_MARGIN,
    technique_gain,
    technique_vetoes,
    veto,
)

LOST_MIN_SHARE = 0.10
"""The premise holds from this part of computed prompt tokens lost on."""

CAPTURED_PART = (0.5, 0.8, 1.0)
"""Part of the lost tokens that routing captures: low, expected, high. The load bound sends some elsewhere."""

TTFT_GAIN_MARGIN = 0.05
COMPUTED_HARM_MARGIN = 0.10
"""Users feel TTFT, so that must gain; tokens computed are the mechanism, which must not speak against it."""

LOAD_OFF_AT, LOAD_ON_AT = 0.95, 0.60
"""Part of the time in which a replica is over its load bound: off above the first, back below the second."""

DELIVERED_OFF_AT, DELIVERED_ON_AT = 0.5, 0.8
"""Delivered over predicted tokens: distrust the index below the first, trust it again above the second."""

_NARROWNESS = Narrowness(
    quality=QualityExposure.NONE,
    dependency=Dependency.NONE,
    actuation=Actuation.LIVE,
    scope=Scope.SLICE,
    reverse_s=0.1,
)


class PrefixAffineRouting:
    """The lever: a routing policy swapped in live, compared by switchback because arms share the caches."""

    name = "prefix_affine_routing"
    policy = "prefix_affine"

    def assess(self, situation: Situation) -> Assessment:
        """Judge the premise by tokens lost; predicted gain = expected capture x ceiling."""
        part = lost_part(situation.readings)
        evicted = evictions_bind(situation.readings) or kv_binds(situation.readings)
        holds = part is not None and part >= LOST_MIN_SHARE and evicted is None
        ceiling = situation.diagnosis.ceiling(Technique.PREFIX_CACHING)
        best = None if ceiling is None else ceiling.gain_share
        status = status_of(self.name, situation)
        alone = "one replica holds everything there is" if situation.replicas < 2 else ""
        known = part is not None and best is not None
        premise = _premise(situation, part, evicted)
        reason = ceiling.because if holds and ceiling is not None else premise
        return Assessment(
            lever=self.name,
            technique=Technique.PREFIX_CACHING,
            premise=premise,
            premise_holds=holds,
            gain_share=CAPTURED_PART[1] * best if known and best is not None else None,
            moves=_moves(situation),
            narrowness=_NARROWNESS,
            available=not (status or alone),
            because=status or alone or reason,
        )

    def propose(self, situation: Situation, assessment: Assessment, because: str) -> LeverRecord:
        """Write the record; raises `LeverRecordError` where evidence for a field is missing."""
        diagnosis = situation.diagnosis
        phase = diagnosis.phase(Phase.PREFILL)
        record = LeverRecord(
            name=self.name,
            technique=Technique.PREFIX_CACHING,
            bottleneck=Bottleneck(
                phase=Phase.PREFILL,
                resource=Resource.COMPUTE,
                share=None if phase is None else phase.share,
                diagnosis=diagnosis.id,
                evidence=situation.readings.ids(
                    Name.SKIPPED_TOKENS_LOST,
                    Name.SKIPPED_LOST_SHARE,
                    Name.COMPUTED_TOKENS,
                    Name.PREFILL_SHARE,
                    Name.QUEUE_BEHIND_PREFILL_SHARE,
                ),
            ),
            premise=assessment.premise,
            condition=(
                "requests whose prompts share a prefix with earlier ones (sessions, system prompts, repositories); "
                "others are routed by load as before"
            ),
            moves=assessment.moves,
            expected=_expected(situation, assessment),
            failure_modes=(
                "a prefix that everybody shares pulls all traffic to one replica",
                "the index promises tokens that the engine has evicted: affinity without reuse",
                "a session follows a slow or restarting replica longer than load alone would",
                "new replicas stay cold because no prefix leads to them",
            ),
            gates=_gates(),
            quality_gate=QUALITY_GATE,
            triggers=_triggers(),
            reverse=(
                "swap the routing policy back in one plan change: the next request is routed as before; "
                "nothing restarts and what the caches hold stays"
            ),
            ramp=situation.ramp.compared(Comparison.SWITCHBACK),
            policy=self.policy,
            mode=situation.mode,
            owner=situation.owner,
            created_at_s=situation.now_s,
            expires_at_s=situation.now_s + EXPIRES_AFTER_S,
            narrowness=assessment.narrowness,
            chosen_because=because,
        )
        return check_record(record)


def _premise(situation: Situation, part: float | None, evicted: str | None) -> str:
    if part is None:
        missing = situation.readings.get(Name.SKIPPED_TOKENS_LOST)
        reason = "" if isinstance(missing, Evidence) else f": {missing.reason}"
        return f"skipped tokens lost cannot be told{reason}"
    text = (
        f"{situation.readings.value(Name.SKIPPED_TOKENS_LOST) or 0.0:,.0f} of "
        f"{situation.readings.value(Name.COMPUTED_TOKENS) or 0.0:,.0f} computed prompt tokens were held by some "
        f"replica: {quote(situation, Name.SKIPPED_LOST_SHARE)}, the premise needs {LOST_MIN_SHARE:.0%}"
    )
    return text if evicted is None else f"{text}; but memory capacity binds: {evicted}"


def _moves(situation: Situation) -> tuple[BudgetMove, ...]:
    return (
        BudgetMove(
            budget=Budget.COMPUTE,
            spends=False,
            delta_share=_compute_saved(situation),
            because=(
                f"{CAPTURED_PART[1]:.0%} of the tokens lost at {situation.cost.prefill_ms_per_token:.2f} ms each "
                "are no longer computed"
            ),
        ),
        BudgetMove(
            budget=Budget.MEMORY,
            spends=True,
            delta_share=0.0,
            because=(
                "the cache pays: prefixes are kept where they are asked for. The slots' KV is allocated at start, "
                "so the share does not grow; balance pays too and is watched by a trigger"
            ),
        ),
    )


def _compute_saved(situation: Situation) -> float | None:
    lost = situation.readings.get(Name.SKIPPED_TOKENS_LOST)
    if not isinstance(lost, Evidence) or lost.window.length_s <= 0 or situation.replicas < 1:
        return None
    saved_s = CAPTURED_PART[1] * lost.value * situation.cost.prefill_ms_per_token / 1000.0
    return -min(1.0, saved_s / (lost.window.length_s * situation.replicas))


def _expected(situation: Situation, assessment: Assessment) -> tuple[ExpectedEffect, ...]:
    part = lost_part(situation.readings)
    causes = split_causes(situation.readings, situation.cost)
    if part is None or causes is None or assessment.gain_share is None:
        return ()
    least, likely, most = CAPTURED_PART
    before_first = max(1e-9, causes.queue + causes.prefill)
    moved = part * (causes.prefill + causes.queued_behind_prefill) / before_first
    # A queue shrinks more than in proportion once the replica is no longer saturated.
    moved_most = (part * causes.prefill + causes.queued_behind_prefill) / before_first
    gain = assessment.gain_share
    return (
        ExpectedEffect(
            metric=Metric.PROMPT_TOKENS_COMPUTED,
            ratio=clamp_ratio(1.0 - likely * part),
            low=clamp_ratio(1.0 - most * part),
            high=clamp_ratio(1.0 - least * part),
            because=f"{part:.0%} of computed tokens are lost, of which {likely:.0%} should be captured",
        ),
        ExpectedEffect(
            metric=Metric.TTFT_MS,
            ratio=clamp_ratio(1.0 - likely * moved),
            low=clamp_ratio(min(1.0 - most * moved, 1.0 - moved_most)),
            high=clamp_ratio(1.0 - least * moved),
            because="prefill and the queue behind it shrink with the tokens computed; a queue may shrink faster",
        ),
        ExpectedEffect(
            metric=Metric.E2E_MS,
            ratio=clamp_ratio(1.0 - gain),
            low=clamp_ratio(1.0 - max(gain, moved_most * before_first)),
            high=clamp_ratio(1.0 - gain * least / likely),
            because="the same time over whole requests",
        ),
    )


def _gates() -> tuple[GateSpec, ...]:
    return (
        technique_gain("ttft-gain", Metric.TTFT_MS, TTFT_GAIN_MARGIN),
        veto(Metric.PROMPT_TOKENS_COMPUTED, COMPUTED_HARM_MARGIN),
        veto(Metric.TTFT_MS, TAIL_PROVEN_MARGIN, statistic=Statistic.TAIL_P95),
        veto(Metric.TPOT_MS, TPOT_MARGIN),
        veto(Metric.CHUNK_GAP_MS, CHUNK_GAP_MARGIN),
        *technique_vetoes(matched_batch=False),
    )


def _triggers() -> tuple[TriggerSpec, ...]:
    return (
        TriggerSpec(
            name="hot-replica",
            signal=TriggerSignal.LOAD_OVER_BOUND,
            off_at=LOAD_OFF_AT,
            on_at=LOAD_ON_AT,
            off_when_above=True,
            ticks=5,
            min_samples=20,
            action=TriggerAction.LOWER_AFFINITY,
            because="affinity makes a hot spot: one replica is over its load bound nearly all the time",
        ),
        TriggerSpec(
            name="index-not-credible",
            signal=TriggerSignal.DELIVERED_OVER_PREDICTED,
            off_at=DELIVERED_OFF_AT,
            on_at=DELIVERED_ON_AT,
            off_when_above=False,
            action=TriggerAction.DISTRUST_INDEX,
            because="engines deliver far fewer tokens than the index promises",
        ),
    )
