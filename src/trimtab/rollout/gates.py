"""Gates over request records: each declared question is answered pass, fail, hold or error, with its reason.

Law: harm is candidate over baseline less one (for throughput, one less that ratio; for rates, the difference).
    gain     passes when harm.high <= -margin, fails when harm.low > 0
    no_harm  passes when harm.high <= margin,  fails when harm.low > margin
    veto     fails when harm.low > margin; holds while it is likely, early or with few units; else passes
A fail takes more: that there is any harm at all must be shown at the rollout's bound for stopping (`rollout.bounds`);
until then it holds.
The interval holds at every look. A pass needs the declared requests in each arm and the declared units; until
then it is hold, with what is lacking. A fail does not wait. What cannot be measured is error.

A gain is asked of all blocks, everything else only of those from `extras.fresh_from_block` on, and only complete
blocks count (`rollout.look` says which those are); errors count at once.

Failure modes: bounds that contradict each other (the ratio moved while it was measured) pass only if the
latest estimate agrees; counts of tail values and errors treat requests as independent, so that bursts weigh
more than they should, towards fail.
"""

from collections.abc import Iterable, Sequence

import msgspec

from trimtab.core.cuts import Cut, Dimension
from trimtab.core.gate import GateResult, GateSpec, Metric, Question, Statistic
from trimtab.core.lever import LeverRecord
from trimtab.core.record import RequestRecord
from trimtab.core.types import RolloutState, Verdict
from trimtab.rollout.answer import ALL_TRAFFIC, ArmExtras, Measured, judge, result_of
from trimtab.rollout.blocks import Row
from trimtab.rollout.bounds import StopBounds, proven_share, stop_bounds
from trimtab.rollout.closing import Closing, Frame
from trimtab.rollout.evidence import key_of
from trimtab.rollout.leaving import divided_by, leaving
from trimtab.rollout.quality import quality_results
from trimtab.rollout.rates import measured_outputs
from trimtab.rollout.saturation import without_saturated
from trimtab.rollout.trades import with_causes
from trimtab.rollout.vetoes import VETO_METRICS

__all__ = ["ArmExtras", "answers", "evaluate", "harmed_cut", "kept_cuts", "overall", "spared"]

WHOLE_SHARE = 0.95
"""Of the compared requests: a cut of more of them is the traffic itself, and harm in it stops the lever."""

Divided = tuple[Metric, tuple[Dimension, frozenset[str]]]
"""A metric, and what cuts divide the traffic by."""

PART_SHARE = 0.5
"""Of the compared requests: where harm is shown everywhere, so many may leave and still leave enough to judge."""


def evaluate(
    record: LeverRecord,
    state: RolloutState,
    records: Iterable[RequestRecord],
    extras: ArmExtras,
) -> tuple[tuple[GateResult, ...], Verdict]:
    """Answer the gates of a state from all records at once; see `answers`."""
    closing = Closing(record)
    for one in records:
        if one.lever == record.name and one.block is not None:
            closing.take(one.block, Row(one))
    closing.advance(
        Frame(
            fresh_from=extras.fresh_from_block,
            warm_from=extras.warm_from_block,
            end=extras.complete_before_block,
        )
    )
    return answers(record, state, closing, extras, stop_bounds(record, proven_share(record)))


def answers(
    record: LeverRecord,
    state: RolloutState,
    closing: Closing,
    extras: ArmExtras,
    stops: StopBounds,
) -> tuple[tuple[GateResult, ...], Verdict]:
    """Answer every gate that the lever asks in this state, and look for harm in all other cuts.

    Fail if anything failed; else error, then hold, if a required gate says so; else pass. A gain asked of a cut
    and not required never fails the lever: it decides whether the cut is kept; where none of them is shown, the lever
    is held at its last share. A state in which nothing required is asked is an error.
    """
    results: list[GateResult] = []
    for spec in record.gates:
        if state not in spec.during:
            continue
        if spec.metric is Metric.QUALITY_LOSS:
            tokens = closing.evidence.prompt_tokens.by_cut
            results += quality_results(record, spec, tokens, extras.scores)
        else:
            results.append(_answer(spec, closing, extras, stops))
    cold = closing.cold_note()
    if cold:
        results = [_with_cold(one, cold) for one in results]
    results += closing.evidence.cuts.results(stops.cut)
    results += closing.validity.vetoes(stops.gate)
    results = with_causes(record, without_saturated(record, results, closing.waiting))
    verdict = overall(results, record)
    if (
        verdict is Verdict.PASS
        and state is RolloutState.PROVING
        and _gains_nowhere(record, results)
    ):
        verdict = Verdict.HOLD
    return tuple(results), verdict


def _gains_nowhere(record: LeverRecord, results: Sequence[GateResult]) -> bool:
    """Whether a lever that asks its gain cut by cut has shown none: it would be kept for nothing."""
    asked = [one for one in results if one.question is Question.GAIN]
    by_cut = any(spec.cut is not None and spec.question is Question.GAIN for spec in record.gates)
    return by_cut and all(one.verdict is not Verdict.PASS for one in asked)


def overall(results: Sequence[GateResult], record: LeverRecord | None = None) -> Verdict:
    """Join the answers of the gates; see `evaluate`. A fail that only takes its cut out does not fail the lever."""
    if any(
        one.verdict is Verdict.FAIL
        and not _only_for_its_cut(one)
        and (record is None or harmed_cut(record, one, results) is None)
        for one in results
    ):
        return Verdict.FAIL
    required = [one.verdict for one in results if one.required]
    if not required or Verdict.ERROR in required:
        return Verdict.ERROR
    return Verdict.HOLD if Verdict.HOLD in required else Verdict.PASS


def harmed_cut(
    record: LeverRecord, result: GateResult, results: Sequence[GateResult]
) -> Cut | None:
    """Return the cut that a failed gate takes out of the lever, None if it fails the lever itself.

    `results`: all of the look. Nothing leaves where that would leave no lever: not a cut of nearly all that was
    compared. Where harm is shown in cuts that divide the traffic and are together nearly all of it, only cuts of at
    most half of it leave, as their harm may be all there is; the next look says so, or stops the lever.
    """
    if result.verdict is not Verdict.FAIL or result.required:
        return None
    compared = _compared(record, result.metric, results)
    is_counted_alike = result.metric in VETO_METRICS
    if is_counted_alike and _requests(result) > WHOLE_SHARE * compared > 0.0:
        return None
    found = leaving(record, result.cut)
    if found is None:
        return None
    harmed = _harmed_shares(record, results)
    is_everywhere = any(share > WHOLE_SHARE for share in harmed.values())
    mine = harmed.get((result.metric, divided_by(found)), 1.0)
    return None if is_everywhere and mine > PART_SHARE else found


def spared(record: LeverRecord, results: Sequence[GateResult]) -> Verdict:
    """Return the verdict of a look by which a cut leaves: its requests go with it, and may be all that is harmed.

    What a cut that nobody declared shows, such as that of short answers where long prompts have those, is judged anew
    by the next look, without the requests that left. A gate that was declared fails the lever as ever.
    """
    declared = {(gate.name, gate.metric) for gate in record.gates}
    rest = [
        one
        for one in results
        if one.verdict is not Verdict.FAIL or one.required or (one.gate, one.metric) in declared
    ]
    verdict = overall(rest, record)
    return verdict if verdict in (Verdict.FAIL, Verdict.ERROR) else Verdict.HOLD


def kept_cuts(
    record: LeverRecord, results: Sequence[GateResult]
) -> tuple[tuple[Cut, ...], dict[str, str]]:
    """Return the cuts for which the lever is kept, and those refused with the reason.

    Of the cuts that a gain was asked of, those in which it was shown and no gate failed. A lever that asks its
    gain of all traffic only, or that a person adopts with no gain shown, is kept for its whole slice.
    """
    gains = {
        str(spec.cut): spec
        for spec in record.gates
        if spec.cut is not None and spec.question is Question.GAIN
    }
    kept: list[Cut] = []
    refused: dict[str, str] = {}
    for name, spec in gains.items():
        reason = _refusal(name, spec, results)
        if reason is None and spec.cut is not None:
            kept.append(spec.cut)
        elif reason is not None:
            refused[name] = reason
    return tuple(kept) or record.cuts, refused


def _answer(spec: GateSpec, closing: Closing, extras: ArmExtras, stops: StopBounds) -> GateResult:
    """Answer one declared gate."""
    # A gain asked of a cut and not required decides about the cut alone: it stops nothing.
    stop = None if spec.question is Question.GAIN and not spec.required else stops.gate
    source = closing.evidence.sources.get(key_of(spec))
    follows_from = None if source is None else (id(source), source.version, stop, extras)
    known = closing.remembered.get(spec.name)
    if known is not None and follows_from is not None and known[0] == follows_from:
        return known[1]
    measured = _measured(spec, closing, extras, stop)
    result = result_of(spec, measured, judge(spec, measured, stop))
    closing.remembered[spec.name] = follows_from, result
    return result


def _measured(spec: GateSpec, closing: Closing, extras: ArmExtras, stop: float | None) -> Measured:
    if spec.metric is Metric.ERROR_RATE:
        return closing.errors[spec.cut].measured(spec, stop)
    if spec.metric is Metric.OUTPUT_DIFFERENCE:
        return measured_outputs(spec, stop, extras)
    source = closing.evidence.sources.get(key_of(spec))
    if source is None:
        raise AssertionError(f"{spec.metric.value} is not answered from request records")
    return source.measured(spec, stop, extras)


def _with_cold(result: GateResult, cold: str) -> GateResult:
    if result.metric is not Metric.TTFT_MS or result.cut != ALL_TRAFFIC:
        return result
    return msgspec.structs.replace(result, reason=f"{result.reason}; {cold}")


def _requests(result: GateResult) -> int:
    return result.n_baseline + result.n_candidate


def _compared(record: LeverRecord, metric: Metric, results: Sequence[GateResult]) -> int:
    """Return how many requests of all traffic could have shown harm in this metric.

    Not every request has every metric: an answer of one token has no TPOT. Of a tail only its values are counted.
    """
    tails = {gate.name for gate in record.gates if gate.statistic is Statistic.TAIL_P95}
    known = [one for one in results if _of_all_traffic(one) and one.gate not in tails]
    same = [one for one in known if one.metric is metric]
    return max(map(_requests, same or known), default=0)


def _of_all_traffic(result: GateResult) -> bool:
    """Whether a result tells how many requests of all traffic could have shown harm in a cut.

    Not a gain, which adds up over earlier shares, nor what counts other things, as errors and quality do.
    """
    is_harm = result.question is not Question.GAIN
    return result.cut == ALL_TRAFFIC and is_harm and result.metric in VETO_METRICS


def _harmed_shares(record: LeverRecord, results: Sequence[GateResult]) -> dict[Divided, float]:
    """Return which part of what was compared lies in cuts that show harm, by metric and what divides them.

    Not of a single cut of nearly all requests: its harm may come from another cut that is in it.
    """
    parts: dict[Divided, dict[Cut, int]] = {}
    for one in results:
        fails = one.verdict is Verdict.FAIL and not one.required
        is_counted = one.metric in VETO_METRICS and one.question is not Question.GAIN
        cut = leaving(record, one.cut) if fails and is_counted else None
        if cut is not None:
            part = parts.setdefault((one.metric, divided_by(cut)), {})
            part[cut] = max(part.get(cut, 0), _requests(one))
    shares: dict[Divided, float] = {}
    for (metric, by), part in parts.items():
        compared = _compared(record, metric, results)
        share = sum(part.values()) / compared if compared else 0.0
        if len(part) > 1 or share <= WHOLE_SHARE:
            shares[metric, by] = share
    return shares


def _only_for_its_cut(result: GateResult) -> bool:
    return not result.required and result.question is Question.GAIN


def _refusal(name: str, spec: GateSpec, results: Sequence[GateResult]) -> str | None:
    mine = [one for one in results if one.cut == name]
    failed = next((one for one in mine if one.verdict is Verdict.FAIL), None)
    if failed is not None:
        return f"{failed.gate}: {failed.reason}"
    gain = next((one for one in mine if one.gate == spec.name), None)
    if gain is None:
        return f"{spec.name} was not asked"
    return None if gain.verdict is Verdict.PASS else f"{gain.gate}: {gain.reason}"
