"""Local or remote, per request: prefill a prompt where it will be decoded, or on a prefill replica that hands KV over.

Law, in predicted milliseconds:
    local    queue + prefill(uncached on the decode side) + shared + stall_weight * streams * stall + coming
    remote   queue + prefill(uncached on the prefill side) + set-up + transfer(uncached on the decode side) + room
             + one step + coming
    shared   the tokens that running streams get in the steps of its chunks, which it waits for
    room     what is left by then of the prompts that the decode side computes before it: they fill its steps
    stall    what a running stream waits more than for its usual steps while the prefill runs in chunks
    coming   what those who come meanwhile wait for it: arrivals a second there * busy^2 / 2, over the replicas that
             could have their prompts; busy: the prefill, on the decode side less what they compute elsewhere meanwhile
Steps are whole ones: where drafts give a stream several tokens a step, a step takes as much longer than a token.
Remote only if it is faster by `margin` of the local prediction. A prompt that is cached on the decode side or shorter
than a chunk never travels, nor does one with next to no answer where it keeps nobody waiting; without a prefill replica
that pairs, with an unknown on either side, from a replica that may hand nothing over now, and after a hand-over that
failed, it is local. Both predictions are kept with the reason.

Without `coming` a prompt of seconds stays on a decode side that happens to be idle when it comes, and all whose
requests come in those seconds wait for it. Others go past a busy replica where there is another, so each is charged
its part of its arrivals alone: a decode replica that of all that decode, a prefill replica that of all replicas.

`stall_weight` turns a stream's delay into one request's. With 1 a second that somebody's answer stands still counts as
much as a second that somebody waits for a first token. Against targets of TTFT and TPOT alone it is less: a stall of s
spread over the rest of an answer of n tokens moves TPOT by s / n, so it weighs TTFT target / (n * TPOT target).

Predictions are scored against outcomes (`scored`); the correction stays within [0.5, 2] and counts how often it pegs.

Failure modes: costs fitted on another context length; links whose rate was learned from few transfers; a queue that
grew since it was seen (the pool is judged by what this gateway sent there); costs timed without drafts for replicas
that draft, whose steps are longer; where nobody counted the tokens of steps no stall is claimed, and nothing is handed
over for its sake.

Source: NVIDIA Dynamo's conditional disaggregation (short or cached prompts local, long queues local); the stall of
decodes behind prefill chunks as in Agrawal et al., "Sarathi-Serve", 2024.
"""

import math
from collections.abc import Sequence
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from trimtab.core.cost import CostModel
from trimtab.core.handover import PrefillDecision as PrefillDecision
from trimtab.core.handover import PrefillPlace as PrefillPlace
from trimtab.core.handover import PrefillPrediction as PrefillPrediction
from trimtab.core.handover import PrefillReason as PrefillReason
from trimtab.policies.recent_arrivals import NONE as NO_ARRIVALS
from trimtab.policies.recent_arrivals import Arrivals

CORRECTION_LIMITS: Final = (0.5, 2.0)
CORRECTION_SMOOTHING: Final = 0.1
ANSWER_TOKENS_MIN: Final = 2
"""An answer of one token needs no decode: where no stream runs that its prompt would stall, nothing is handed over."""

CANDIDATES_MAX: Final = 8
"""Prefill replicas that a decision keeps: those with the best predictions."""


class PrefillRules(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the decision is told. `margin`: part of the local prediction by which remote must be faster.

    `chunk_tokens`: the mark above which prompts travel; `stall_chunk_tokens`: what the engine computes in one step,
    0: the same; `prefill_chunk_tokens`: what a prefill replica computes in one, 0: as much as the decode side.
    `always`: one place for every request, to be compared with; unknowns and failures stay local. None: by prediction.
    """

    chunk_tokens: Annotated[int, Meta(ge=0)] = 2048
    stall_chunk_tokens: Annotated[int, Meta(ge=0)] = 0
    prefill_chunk_tokens: Annotated[int, Meta(ge=0)] = 0
    stall_weight: Annotated[float, Meta(ge=0.0)] = 0.1
    margin: Annotated[float, Meta(ge=0.0, lt=1.0)] = 0.05
    always: PrefillPlace | None = None

    @property
    def stall_chunk(self) -> int:
        """Prompt tokens that the decode side computes in one step."""
        return max(1, self.stall_chunk_tokens or self.chunk_tokens)

    @property
    def prefill_chunk(self) -> int:
        """Prompt tokens that a prefill replica computes in one step."""
        return self.prefill_chunk_tokens or self.stall_chunk


def with_mark_raised(rules: PrefillRules, factor: float) -> PrefillRules:
    """Return rules by which prompts travel from `factor` times the mark on; what stalls streams stays as it was."""
    return msgspec.structs.replace(
        rules,
        chunk_tokens=round(rules.chunk_tokens * factor),
        stall_chunk_tokens=rules.stall_chunk_tokens or rules.chunk_tokens,
    )


class PrefillRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request that routing has given its decode side. `output_tokens` None: its answer's length is unknown.

    `can_travel`: whether KV could stand for its prompt at all (one prompt, one answer, nothing asked of the prompt).
    """

    request_id: str
    prompt_tokens: int
    output_tokens: int | None = None
    failed_before: bool = False
    can_travel: bool = True


class DecodeSide(msgspec.Struct, frozen=True, kw_only=True):
    """The replica that will decode. `streams`: answers under way there; `queued_tokens`: prompt tokens before this.

    `coming`: the requests that will wait for a prompt computed there (`policies.recent_arrivals`).
    """

    replica: str
    held_tokens: int
    queued_tokens: float
    streams: float
    cost: CostModel | None
    coming: Arrivals = NO_ARRIVALS


class PrefillSide(msgspec.Struct, frozen=True, kw_only=True):
    """A replica that prefills only. `setup_ms`, `transfer_ms_per_token`: of its link to the decode side.

    `transfers`: hand-overs on that link now, which share it. `pairs`: its KV key is the decode side's. `barred`: why
    nothing may be handed over from there now, None if it may.
    `sends_whole`: it sends all of a prompt's KV, also what the decode side holds. `nearness`: of the two, 0 is nearest.
    `coming`: the prompts that will wait for one computed there, those that pass it left out.
    """

    replica: str
    held_tokens: int
    queued_tokens: float
    cost: CostModel | None
    setup_ms: float | None
    transfer_ms_per_token: float | None
    transfers: int = 0
    pairs: bool = True
    barred: PrefillReason | None = None
    sends_whole: bool = False
    nearness: int = 0
    coming: Arrivals = NO_ARRIVALS


class Corrections(msgspec.Struct, frozen=True, kw_only=True):
    """Factors on both predictions, learned from outcomes. `pegged`: outcomes that a factor could not follow.

    `scored`: outcomes taken in, `scored_local` of them of prompts that stayed.
    """

    local: float = 1.0
    remote: float = 1.0
    scored: int = 0
    scored_local: int = 0
    pegged: int = 0
    error_sum: float = 0.0

    @property
    def error_mean(self) -> float | None:
        """Mean of |predicted - observed| / observed over the decisions scored, None without any."""
        return self.error_sum / self.scored if self.scored else None


UNCORRECTED: Final = Corrections()


def decide(
    request: PrefillRequest,
    decode: DecodeSide,
    pool: Sequence[PrefillSide],
    rules: PrefillRules,
    corrections: Corrections = UNCORRECTED,
) -> PrefillDecision:
    """Decide for one request; ties between prefill replicas go to the nearer one, then to the lower id."""
    uncached = request.prompt_tokens - decode.held_tokens
    refusal = _refusal(request, decode, rules)
    if refusal is not None:
        return _local(request, decode, refusal)
    if decode.cost is None:
        return _local(request, decode, PrefillReason.UNKNOWN_COST)
    local = _predict_local(decode, decode.cost, uncached, rules, corrections)
    near = {side.replica: side.nearness for side in pool}
    found = [_predict_remote(request, decode, side, corrections) for side in pool]
    able = sorted(
        (one for one in found if isinstance(one, PrefillPrediction)),
        key=lambda one: (one.ms, near[one.replica], one.replica),
    )
    if not able:
        reasons = [one for one in found if isinstance(one, PrefillReason)]
        reason = reasons[0] if reasons else PrefillReason.NO_PREFILL_REPLICA
        return _local(request, decode, reason, local)
    best = able[0]
    remote = best.ms < local.ms * (1.0 - rules.margin)
    faster = PrefillReason.REMOTE_FASTER if remote else PrefillReason.LOCAL_FASTER
    if rules.always is PrefillPlace.REMOTE:
        remote, faster = True, PrefillReason.AS_TOLD
    return PrefillDecision(
        request_id=request.request_id,
        place=PrefillPlace.REMOTE if remote else PrefillPlace.LOCAL,
        replica=best.replica if remote else decode.replica,
        reason=faster,
        local=local,
        remote=best,
        others=tuple(able[1:CANDIDATES_MAX]),
    )


def scored(corrections: Corrections, decision: PrefillDecision, observed_ms: float) -> Corrections:
    """Take in how long a request really waited for its prompt to be there; unknowns teach nothing."""
    is_local = decision.place is PrefillPlace.LOCAL
    predicted = decision.local if is_local else decision.remote
    if predicted is None or predicted.own_ms <= 0.0 or not 0.0 < observed_ms < math.inf:
        return corrections
    before = corrections.local if is_local else corrections.remote
    low, high = CORRECTION_LIMITS
    sample = before * observed_ms / predicted.own_ms
    taken = corrections.scored_local if is_local else corrections.scored - corrections.scored_local
    # The first few weigh as in a mean that begins at 1: what was measured at the start is soon put right.
    weight = max(CORRECTION_SMOOTHING, 1.0 / (taken + 2))
    after = before + weight * (min(high, max(low, sample)) - before)
    error = abs(predicted.own_ms - observed_ms) / observed_ms
    changed = msgspec.structs.replace(
        corrections,
        scored=corrections.scored + 1,
        scored_local=corrections.scored_local + is_local,
        pegged=corrections.pegged + (not low <= sample <= high),
        error_sum=corrections.error_sum + error,
    )
    if is_local:
        return msgspec.structs.replace(changed, local=after)
    return msgspec.structs.replace(changed, remote=after)


def stall_ms(cost: CostModel, tokens: float, chunk_tokens: int) -> float:
    """Return how much longer a stream waits while `tokens` are prefilled in chunks between its tokens.

    Each chunk's step gives every stream its tokens too, so that only what exceeds a step without a chunk counts. 0
    where nobody counted what a step gives: how long the usual steps are is not known then.
    """
    if cost.tokens_per_step is None:
        return 0.0
    usual_ms = cost.step_base_ms * cost.tokens_of_step
    return max(0.0, cost.prefill_ms(tokens) - _chunks(tokens, chunk_tokens) * usual_ms)


def shared_ms(cost: CostModel, tokens: float, chunk_tokens: int, streams: float) -> float:
    """Return how much longer a prefill of `tokens` takes beside streams: each chunk's step gives each its tokens.

    What the steps cost without streams is in `prefill_ms`, which is measured on the engine with its own chunks.
    """
    return _chunks(tokens, chunk_tokens) * cost.step_ms_per_stream * cost.tokens_of_step * streams


def coming_ms(coming_per_s: float, busy_ms: float) -> float:
    """Return what all who come while a replica is busy wait for the end of that: half of it each, in the mean."""
    return coming_per_s / 1000.0 * max(0.0, busy_ms) ** 2 / 2.0


def _chunks(tokens: float, chunk_tokens: int) -> int:
    return math.ceil(tokens / max(1, chunk_tokens))


def _refusal(
    request: PrefillRequest, decode: DecodeSide, rules: PrefillRules
) -> PrefillReason | None:
    uncached = request.prompt_tokens - decode.held_tokens
    if request.failed_before:
        return PrefillReason.AFTER_FAILURE
    if not request.can_travel:
        return PrefillReason.CANNOT_TRAVEL
    if rules.always is not None:
        return PrefillReason.AS_TOLD if rules.always is PrefillPlace.LOCAL else None
    if request.prompt_tokens <= rules.chunk_tokens:
        return PrefillReason.SHORT_PROMPT
    if uncached <= rules.chunk_tokens:
        return PrefillReason.CACHED
    answer = math.inf if request.output_tokens is None else request.output_tokens
    if answer < ANSWER_TOKENS_MIN and decode.streams <= 0:
        return PrefillReason.SHORT_ANSWER
    return None


def _local(
    request: PrefillRequest,
    decode: DecodeSide,
    reason: PrefillReason,
    local: PrefillPrediction | None = None,
) -> PrefillDecision:
    return PrefillDecision(
        request_id=request.request_id,
        place=PrefillPlace.LOCAL,
        replica=decode.replica,
        reason=reason,
        local=local,
    )


def _predict_local(
    decode: DecodeSide,
    cost: CostModel,
    uncached: int,
    rules: PrefillRules,
    corrections: Corrections,
) -> PrefillPrediction:
    chunk_tokens = rules.stall_chunk
    stall = rules.stall_weight * decode.streams * stall_ms(cost, uncached, chunk_tokens)
    shared = shared_ms(cost, uncached, chunk_tokens, decode.streams)
    factor = corrections.local
    prefill_ms = factor * cost.prefill_ms(uncached)
    elsewhere_ms = cost.prefill_ms(decode.coming.tokens)
    return PrefillPrediction(
        replica=decode.replica,
        terms={
            "queue": factor * cost.prefill_ms(decode.queued_tokens),
            "prefill": prefill_ms,
            "shared": factor * shared,
            "stall": stall,
            "coming": coming_ms(decode.coming.per_s, prefill_ms + factor * shared - elsewhere_ms),
        },
    )


def _predict_remote(
    request: PrefillRequest, decode: DecodeSide, side: PrefillSide, corrections: Corrections
) -> PrefillPrediction | PrefillReason:
    if not side.pairs:
        return PrefillReason.KV_KEYS_DIFFER
    if side.barred is not None:
        return side.barred
    if side.cost is None or decode.cost is None:
        return PrefillReason.UNKNOWN_COST
    if side.setup_ms is None or side.transfer_ms_per_token is None:
        return PrefillReason.UNKNOWN_TRANSFER
    factor = corrections.remote
    moved = request.prompt_tokens - (0 if side.sends_whole else decode.held_tokens)
    computed = max(1, request.prompt_tokens - side.held_tokens)
    queue_ms = factor * side.cost.prefill_ms(side.queued_tokens)
    prefill_ms = factor * side.cost.prefill_ms(computed)
    before_ms = factor * decode.cost.prefill_ms(decode.queued_tokens)
    return PrefillPrediction(
        replica=side.replica,
        terms={
            "queue": queue_ms,
            "prefill": prefill_ms,
            "setup": factor * side.setup_ms,
            "transfer": factor * moved * side.transfer_ms_per_token * (1 + side.transfers),
            "room": max(0.0, before_ms - queue_ms - prefill_ms),
            # The decode side computes the prompt's last token, which gives the first of the answer.
            "step": factor * decode.cost.whole_step_ms(decode.streams + 1.0),
            "coming": coming_ms(side.coming.per_s, prefill_ms),
        },
    )
