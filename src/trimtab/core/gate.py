"""Gates as declared in a lever record, and the results they give.

A gate asks one question about one metric in one cut. Which cuts must pass, with which margin and sample size,
is declared before the first request of the candidate; every other cut can only veto.
"""

from enum import StrEnum
from typing import Annotated

import msgspec
from msgspec import Meta

from trimtab.core.cuts import Cut
from trimtab.core.stats import Interval
from trimtab.core.types import RolloutState, Verdict


class Metric(StrEnum):
    """What a gate can ask about.

    unit_cost: price of a replica's time over output tokens. prompt_tokens_computed is the complement of skipped tokens.
    invalid_output_rate: outputs that are no JSON though JSON was asked for. quality_loss: part of scored items lost.
    slice_share is asked of every rollout by itself: did as many sessions meet the candidate as were meant to?
    """

    TTFT_MS = "ttft_ms"
    TPOT_MS = "tpot_ms"
    CHUNK_GAP_MS = "chunk_gap_ms"
    E2E_MS = "e2e_ms"
    OUTPUT_TOKENS_PER_S = "output_tokens_per_s"
    PROMPT_TOKENS_COMPUTED = "prompt_tokens_computed"
    ERROR_RATE = "error_rate"
    MEMORY_BYTES = "memory_bytes"
    OUTPUT_DIFFERENCE = "output_difference"
    UNIT_COST = "unit_cost"
    INVALID_OUTPUT_RATE = "invalid_output_rate"
    QUALITY_LOSS = "quality_loss"
    SLICE_SHARE = "slice_share"


class Question(StrEnum):
    """What a gate asks.

    GAIN: is the candidate better by at least the margin? NO_HARM: is harm beyond the margin excluded?
    VETO: is harm beyond the margin shown? A veto gate passes as long as it is not, once it has its samples.
    """

    GAIN = "gain"
    NO_HARM = "no_harm"
    VETO = "veto"


class Statistic(StrEnum):
    """What of the metric is compared: its typical value, or its tail (share beyond the baseline's p95)."""

    TYPICAL = "typical"
    TAIL_P95 = "tail_p95"


class GateSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One declared gate. `cut` None means all traffic of the slice.

    For latencies `margin` is relative (0.10 = 10% worse, or for GAIN 10% better); for rates and shares it is
    absolute. `during`: the rollout states in which it is asked. A gate that is not `required` can only veto.
    """

    name: Annotated[str, Meta(min_length=1)]
    metric: Metric
    question: Question
    margin: Annotated[float, Meta(ge=0.0, le=10.0)]
    statistic: Statistic = Statistic.TYPICAL
    cut: Cut | None = None
    alpha: Annotated[float, Meta(gt=0.0, lt=0.5)] = 0.05
    min_requests: Annotated[int, Meta(ge=1)] = 20
    min_units: Annotated[int, Meta(ge=1)] = 6
    matched_batch: bool = False
    during: tuple[RolloutState, ...] = (
        RolloutState.CANARY,
        RolloutState.RAMPING,
        RolloutState.PROVING,
    )
    required: bool = True


class GateResult(msgspec.Struct, frozen=True, kw_only=True):
    """What a gate answered, with everything needed to believe it.

    `value` is candidate over baseline for latencies and throughput, candidate minus baseline for rates.
    """

    gate: str
    metric: Metric
    question: Question
    cut: str
    verdict: Verdict
    n_baseline: int
    n_candidate: int
    n_units: int = 0
    value: float | None = None
    interval: Interval | None = None
    margin: float
    reason: str
    required: bool = True
