"""Gates over request records: each declared question is answered pass, fail, hold or error, with its reason.

Law: harm is candidate over baseline less one (for throughput, one less that ratio; for rates, the difference).
    gain     passes when harm.high <= -margin, fails when harm.low > 0
    no_harm  passes when harm.high <= margin,  fails when harm.low > margin
    veto     fails when harm.low > margin; holds while it is likely, early or with few units; else passes
The interval holds at every look. A pass needs the declared requests in each arm and the declared units; until
then it is hold, with what is lacking. A fail does not wait. What cannot be measured is error.

A gain is asked of all blocks, everything else only of those from `extras.fresh_from_block` on, and only complete
blocks count (`rollout.look` says which those are); errors count at once.

Failure modes: bounds that contradict each other (the ratio moved while it was measured) pass only if the
latest estimate agrees; counts of tail values and errors treat requests as independent, so that bursts weigh
more than they should, towards fail.
"""

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import assert_never

import msgspec

from trimtab.core.cuts import Cut
from trimtab.core.gate import GateResult, GateSpec, Metric, Question, Statistic
from trimtab.core.lever import LeverRecord
from trimtab.core.record import RequestRecord
from trimtab.core.stats import Interval, difference_bounds, percentile, ratio_estimate
from trimtab.core.types import RolloutState, Technique, Verdict
from trimtab.rollout.answer import ArmExtras, Measured, judge, result_of
from trimtab.rollout.comparison import (
    Pairing,
    Sample,
    arm_counts,
    computed_share,
    is_servers_error,
    output_tokens_per_s,
    own_output_tokens_per_s,
    pair_blocks,
    pair_requests,
    request_value,
    sample_of,
)
from trimtab.rollout.vetoes import automatic_vetoes

__all__ = ["ArmExtras", "evaluate", "kept_cuts"]

# Bounds take 10 ms, and most looks see the counts of the one before.
_difference_bounds = lru_cache(maxsize=1024)(difference_bounds)

TAIL_SHARE_EXTRA = 0.05
"""How much more of the candidate's requests than of the baseline's may lie beyond the tail's threshold."""


def evaluate(
    record: LeverRecord,
    state: RolloutState,
    records: Sequence[RequestRecord],
    extras: ArmExtras,
) -> tuple[tuple[GateResult, ...], Verdict]:
    """Answer every gate that the lever asks in this state, and look for harm in all other cuts.

    Fail if anything failed; else error, then hold, if a required gate says so; else pass. A gain asked of a cut
    and not required never fails the lever: it decides whether the cut is kept. A state in which nothing
    required is asked is an error.
    """
    everything = sample_of(record.name, records)
    fresh = everything.between(extras.fresh_from_block, None)
    complete = everything.between(0, extras.complete_before_block)
    fresh_and_complete = fresh.between(0, extras.complete_before_block)

    def sample_for(spec: GateSpec) -> Sample:
        if spec.metric is Metric.ERROR_RATE:
            return fresh
        return complete if spec.question is Question.GAIN else fresh_and_complete

    asked = [spec for spec in record.gates if state in spec.during]
    results = [answer(record, spec, sample_for(spec), extras) for spec in asked]
    results += automatic_vetoes(record, fresh_and_complete)
    return tuple(results), overall(results)


def overall(results: Sequence[GateResult]) -> Verdict:
    """Join the answers of the gates; see `evaluate`."""
    if any(one.verdict is Verdict.FAIL and not _only_for_its_cut(one) for one in results):
        return Verdict.FAIL
    required = [one.verdict for one in results if one.required]
    if not required or Verdict.ERROR in required:
        return Verdict.ERROR
    return Verdict.HOLD if Verdict.HOLD in required else Verdict.PASS


def kept_cuts(
    record: LeverRecord, results: Sequence[GateResult]
) -> tuple[tuple[Cut, ...], dict[str, str]]:
    """Return the cuts for which the lever is kept, and those refused with the reason.

    Of the cuts that a gain was asked of, those in which it was shown and no gate failed. A lever that asks its
    gain of all traffic only is kept for its whole slice: () is all cuts of the record.
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
    return (tuple(kept) if gains else record.cuts), refused


def answer(record: LeverRecord, spec: GateSpec, sample: Sample, extras: ArmExtras) -> GateResult:
    """Answer one declared gate."""
    inside = sample.within(spec.cut)
    match spec.metric:
        case Metric.TTFT_MS | Metric.TPOT_MS | Metric.CHUNK_GAP_MS | Metric.E2E_MS:
            measured = _latency(record, spec, inside)
        case Metric.OUTPUT_TOKENS_PER_S:
            ok = [one for one in inside if one.ok]
            measured = _ratio(spec, _throughput(spec, ok), higher_is_better=True)
        case Metric.PROMPT_TOKENS_COMPUTED:
            ok = [one for one in inside if one.ok]
            measured = _ratio(spec, pair_blocks(ok, computed_share))
        case Metric.ERROR_RATE:
            measured = _errors(spec, inside)
        case Metric.MEMORY_BYTES:
            measured = _memory(inside, extras)
        case Metric.OUTPUT_DIFFERENCE:
            measured = _outputs(spec, extras)
        case _:
            assert_never(spec.metric)
    return result_of(spec, measured, judge(spec, measured))


def _latency(record: LeverRecord, spec: GateSpec, inside: Sequence[RequestRecord]) -> Measured:
    value_of = request_value(spec.metric)
    assert value_of is not None, "only latencies come here"
    ok = [one for one in inside if one.ok]
    note = ""
    if record.technique is Technique.SPECULATION and spec.metric is Metric.TPOT_MS:
        # A model that repeats itself is easy to draft for; nobody wants that output faster.
        loops = sum(one.looping is True for one in ok)
        ok = [one for one in ok if one.looping is not True]
        note = f"{loops} looping outputs left out" if loops else ""
    if spec.statistic is Statistic.TAIL_P95:
        values = [(one, value_of(one)) for one in ok]
        return _tail(spec, [(one, value) for one, value in values if value is not None], len(ok))
    measured = _ratio(spec, pair_requests(ok, value_of, matched_batch=spec.matched_batch))
    return msgspec.structs.replace(measured, note=note)


def _throughput(spec: GateSpec, ok: Sequence[RequestRecord]) -> Pairing:
    if spec.matched_batch:
        return pair_requests(ok, own_output_tokens_per_s, matched_batch=True)
    return pair_blocks(ok, output_tokens_per_s)


def _ratio(spec: GateSpec, pairing: Pairing, *, higher_is_better: bool = False) -> Measured:
    estimate = ratio_estimate(pairing.units, alpha=spec.alpha)
    low, high = (
        (estimate.interval.low, estimate.interval.high) if estimate.interval else (0.0, math.inf)
    )
    ratio = estimate.ratio
    if higher_is_better:
        harm = (1.0 - high, 1.0 - low)
        harm_now = None if ratio is None else 1.0 - ratio
    else:
        harm = (low - 1.0, high - 1.0)
        harm_now = None if ratio is None else ratio - 1.0
    return Measured(
        n_baseline=pairing.n_baseline,
        n_candidate=pairing.n_candidate,
        n_units=estimate.n_units,
        value=ratio,
        interval=estimate.interval,
        harm_low=harm[0],
        harm_high=harm[1],
        harm_now=harm_now,
        drifted=estimate.drifted,
        unmeasured=pairing.unmeasured,
    )


def _tail(spec: GateSpec, values: Sequence[tuple[RequestRecord, float]], asked: int) -> Measured:
    """Compare the shares beyond the baseline's p95 * (1 + margin).

    Harm is what the candidate's share has beyond the baseline's and TAIL_SHARE_EXTRA, moved by the margin so
    that the common rule applies.
    """
    baseline = [value for one, value in values if one.arm.value == "baseline"]
    edge = percentile(baseline, 0.95) * (1.0 + spec.margin) if baseline else math.inf
    beyond = {one.request_id for one, value in values if value > edge}
    counts = arm_counts([one for one, _ in values], lambda one: one.request_id in beyond)
    measured = _rate(spec, counts, allowed=TAIL_SHARE_EXTRA, asked=asked, blocks=_blocks(values))
    note = f"of shares beyond {1.0 + spec.margin:.2f} x the baseline's p95, {TAIL_SHARE_EXTRA:.0%} more allowed"
    return msgspec.structs.replace(measured, note=note)


def _errors(spec: GateSpec, inside: Sequence[RequestRecord]) -> Measured:
    stayed = [one for one in inside if not one.client_aborted]
    counts = arm_counts(stayed, is_servers_error)
    aborts = arm_counts(inside, lambda one: one.client_aborted)
    note = ""
    if aborts[0] or aborts[2]:
        note = f"clients left: baseline {aborts[0]} of {aborts[1]}, candidate {aborts[2]} of {aborts[3]}"
    measured = _rate(
        spec, counts, allowed=spec.margin, asked=len(stayed), blocks=_blocks_of(stayed)
    )
    return msgspec.structs.replace(measured, note=note)


def _rate(
    spec: GateSpec,
    counts: tuple[int, int, int, int],
    *,
    allowed: float,
    asked: int,
    blocks: int,
) -> Measured:
    bad_b, n_b, bad_c, n_c = counts
    bounds = _difference_bounds(bad_b, n_b, bad_c, n_c, alpha=spec.alpha)
    now = bad_c / n_c - bad_b / n_b if n_b and n_c else None
    shift = spec.margin - allowed
    return Measured(
        n_baseline=n_b,
        n_candidate=n_c,
        n_units=blocks,
        value=now,
        interval=bounds if n_b and n_c else None,
        harm_low=bounds.low + shift,
        harm_high=bounds.high + shift,
        harm_now=None if now is None else now + shift,
        unmeasured=asked - n_b - n_c,
    )


def _memory(inside: Sequence[RequestRecord], extras: ArmExtras) -> Measured:
    _, n_b, _, n_c = arm_counts(inside, lambda one: False)
    before, after = extras.memory_bytes_baseline, extras.memory_bytes_candidate
    ratio = after / before if before and after is not None else None
    # Read, not sampled: the interval is the point.
    interval = None if ratio is None else Interval(low=ratio, high=ratio, level=0.99)
    return Measured(
        n_baseline=n_b,
        n_candidate=n_c,
        n_units=None,
        value=ratio,
        interval=interval,
        harm_low=-math.inf if ratio is None else ratio - 1.0,
        harm_high=math.inf if ratio is None else ratio - 1.0,
        harm_now=None if ratio is None else ratio - 1.0,
        unmeasured=n_b + n_c if ratio is None else 0,
    )


def _outputs(spec: GateSpec, extras: ArmExtras) -> Measured:
    counts = (extras.floor_differs, extras.floor_n, extras.outputs_differ, extras.outputs_n)
    measured = _rate(spec, counts, allowed=spec.margin, asked=0, blocks=0)
    return msgspec.structs.replace(measured, n_units=None, unmeasured=0)


def _blocks(values: Sequence[tuple[RequestRecord, float]]) -> int:
    return _blocks_of([one for one, _ in values])


def _blocks_of(records: Sequence[RequestRecord]) -> int:
    """Return how many pairs of blocks both arms could have been seen in, the units of a rate."""
    by_arm: dict[str, set[int]] = {"baseline": set(), "candidate": set()}
    for one in records:
        if one.block is not None:
            by_arm[one.arm.value].add(one.block)
    return min(len(blocks) for blocks in by_arm.values())


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
