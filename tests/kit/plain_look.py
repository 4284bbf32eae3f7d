"""The look at a rollout as it is defined: everything again from all records, the yardstick for `rollout.look.Judge`.

Slow and plain on purpose: no state, no marks, nothing remembered between looks.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise

import msgspec

from trimtab.core.cuts import Cut, batch_bucket, belongs, cuts_of
from trimtab.core.gate import GateResult, GateSpec, Metric, Question, Statistic
from trimtab.core.lever import Comparison, LeverRecord
from trimtab.core.record import RequestRecord
from trimtab.core.stats import (
    Interval,
    Observation,
    Unit,
    difference_bounds,
    difference_e_value,
    e_value_above,
    pair_units,
    percentile,
    ratio_estimate,
)
from trimtab.core.traffic import OUTSIDE_SLICE, CandidatePlan
from trimtab.core.types import Arm, RolloutState, Technique, Verdict
from trimtab.rollout.answer import ArmExtras, Measured, judge, result_of
from trimtab.rollout.bounds import StopBounds, stop_bounds
from trimtab.rollout.comparison import (
    UNIT_REQUESTS_MIN,
    computed_share,
    is_servers_error,
    output_tokens_per_s,
    own_output_tokens_per_s,
    request_value,
)
from trimtab.rollout.gates import overall
from trimtab.rollout.look import BLOCKS_OF_LAG, first_block, first_warm_block
from trimtab.rollout.machine import BALANCED_SHARE, Rollout, Step
from trimtab.rollout.sources import TAIL_SHARE_EXTRA
from trimtab.rollout.vetoes import (
    MOVED_BY,
    SUSPECT_ALPHA,
    VETO_MARGIN,
    VETO_METRICS,
    VETO_REQUESTS_MIN,
    VETO_UNITS_MIN,
    load_cut,
)


def plain_look_at(
    record: LeverRecord,
    rollout: Rollout,
    candidate: CandidatePlan,
    records: Iterable[RequestRecord],
    extras: ArmExtras,
    now_s: float,
) -> tuple[tuple[GateResult, ...], Verdict]:
    """Answer the gates of a rollout over all records of the lever so far."""
    running = int(max(0.0, now_s - candidate.started_at_s) // candidate.block_s)
    judged = _judged_from(rollout, candidate)
    warm = first_warm_block(record, rollout, candidate)
    end = running - BLOCKS_OF_LAG
    everything = _sample_of(_comparable(rollout, candidate, records))
    fresh = everything.between(first_block(judged, candidate), None)
    complete = everything.between(warm, end)
    both = fresh.between(warm, end)
    stops = stop_bounds(record, judged.share)
    state = RolloutState.PROVING if _asks_everything(record, rollout) else rollout.state

    def sample_for(spec: GateSpec) -> "Sample":
        if spec.metric is Metric.ERROR_RATE:
            return fresh
        return complete if spec.question is Question.GAIN else both

    asked = [spec for spec in record.gates if state in spec.during]
    results = [_answer(record, spec, sample_for(spec), extras, stops) for spec in asked]
    results += _vetoes(record, both, stops.cut)
    return tuple(results), overall(results, record)


def _asks_everything(record: LeverRecord, rollout: Rollout) -> bool:
    shares, at = record.ramp.shares, rollout.share_index
    if record.ramp.comparison is not Comparison.SIDE_BY_SIDE or at + 1 >= len(shares):
        return False
    return shares[at] <= BALANCED_SHARE < shares[at + 1]


def _judged_from(rollout: Rollout, candidate: CandidatePlan) -> Step:
    balanced = [step for step in rollout.steps if step.share >= BALANCED_SHARE]
    if candidate.comparison is Comparison.SIDE_BY_SIDE and balanced:
        return balanced[0]
    return rollout.steps[-1]


def _comparable(
    rollout: Rollout, candidate: CandidatePlan, records: Iterable[RequestRecord]
) -> list[RequestRecord]:
    mixed: set[int] = set()
    for step in rollout.steps[1:]:
        start = first_block(step, candidate)
        at_block = (step.entered_at_s - candidate.started_at_s) / candidate.block_s
        if abs(at_block - start) > 1e-9:
            mixed |= {start - 1, start - 2}
    first = first_block(rollout.steps[0], candidate)
    matched = candidate.comparison is Comparison.SWITCHBACK

    def speaks(one: RequestRecord) -> bool:
        if one.lever != rollout.lever or one.block is None:
            return False
        if one.block < first or one.block in mixed:
            return False
        if candidate.cuts and not any(belongs(one, cut) for cut in candidate.cuts):
            return False
        return not (matched and one.arm is Arm.BASELINE and one.slice == OUTSIDE_SLICE)

    return [one for one in records if speaks(one)]


def _answer(
    record: LeverRecord, spec: GateSpec, sample: "Sample", extras: ArmExtras, stops: StopBounds
) -> GateResult:
    inside = sample.within(spec.cut)
    ok = [one for one in inside if one.ok]
    stop = None if spec.question is Question.GAIN and not spec.required else stops.gate
    match spec.metric:
        case Metric.OUTPUT_TOKENS_PER_S:
            pairing = (
                pair_requests(ok, own_output_tokens_per_s, matched_batch=True)
                if spec.matched_batch
                else pair_blocks(ok, output_tokens_per_s)
            )
            measured = _ratio(spec, pairing, stop, higher_is_better=True)
        case Metric.PROMPT_TOKENS_COMPUTED:
            measured = _ratio(spec, pair_blocks(ok, computed_share), stop)
        case Metric.ERROR_RATE:
            measured = _errors(spec, inside, stop)
        case Metric.MEMORY_BYTES:
            measured = _memory(inside, extras)
        case Metric.OUTPUT_DIFFERENCE:
            counts = (extras.floor_differs, extras.floor_n, extras.outputs_differ, extras.outputs_n)
            measured = _rate(spec, counts, spec.margin, stop, blocks=None)
        case _:
            measured = _latency(record, spec, ok, stop)
    return result_of(spec, measured, judge(spec, measured, stop))


def _latency(
    record: LeverRecord, spec: GateSpec, ok: list[RequestRecord], stop: float | None
) -> Measured:
    value_of = request_value(spec.metric)
    assert value_of is not None, "only latencies come here"
    note = ""
    if record.technique is Technique.SPECULATION and spec.metric is Metric.TPOT_MS:
        loops = sum(one.looping is True for one in ok)
        ok = [one for one in ok if one.looping is not True]
        note = f"{loops} looping outputs left out" if loops else ""
    if spec.statistic is Statistic.TAIL_P95:
        return _tail(spec, ok, value_of, stop)
    pairing = pair_requests(ok, value_of, matched_batch=spec.matched_batch)
    return msgspec.structs.replace(_ratio(spec, pairing, stop), note=note)


def _ratio(
    spec: GateSpec, pairing: "Pairing", stop: float | None, *, higher_is_better: bool = False
) -> Measured:
    estimate = ratio_estimate(pairing.units, alpha=spec.alpha)
    interval = estimate.interval
    low, high = (interval.low, interval.high) if interval else (0.0, math.inf)
    ratio, sign = estimate.ratio, -1.0 if higher_is_better else 1.0
    any_harm = stop is None
    if stop is not None and pairing.units:
        strict = ratio_estimate(pairing.units, alpha=stop).interval
        assert strict is not None, "there are units"
        any_harm = strict.high < 1.0 if higher_is_better else strict.low > 1.0
    harm = sorted((sign * (low - 1.0), sign * (high - 1.0)))
    return Measured(
        n_baseline=pairing.n_baseline,
        n_candidate=pairing.n_candidate,
        n_units=estimate.n_units,
        value=ratio,
        interval=interval,
        harm_low=harm[0],
        harm_high=harm[1],
        harm_now=None if ratio is None else sign * (ratio - 1.0),
        may_stop=any_harm,
        drifted=estimate.drifted,
        unmeasured=pairing.unmeasured,
    )


def _tail(
    spec: GateSpec,
    ok: list[RequestRecord],
    value_of: Callable[[RequestRecord], float | None],
    stop: float | None,
) -> Measured:
    found = [(one, value) for one in ok if (value := value_of(one)) is not None]
    baseline = [value for one, value in found if one.arm is Arm.BASELINE]
    edge = percentile(baseline, 0.95) * (1.0 + spec.margin) if baseline else math.inf
    beyond = {id(one) for one, value in found if value > edge}
    counts = _arm_counts([one for one, _ in found], lambda one: id(one) in beyond)
    blocks = _blocks_of([one for one, _ in found])
    note = f"of shares beyond {1.0 + spec.margin:.2f} x the baseline's p95, {TAIL_SHARE_EXTRA:.0%} more allowed"
    measured = _rate(spec, counts, TAIL_SHARE_EXTRA, stop, blocks=blocks)
    return msgspec.structs.replace(measured, note=note, unmeasured=len(ok) - len(found))


def _errors(spec: GateSpec, inside: Sequence[RequestRecord], stop: float | None) -> Measured:
    stayed = [one for one in inside if not one.client_aborted]
    left_b, all_b, left_c, all_c = _arm_counts(inside, lambda one: one.client_aborted)
    counts = _arm_counts(stayed, is_servers_error)
    measured = _rate(spec, counts, spec.margin, stop, blocks=_blocks_of(stayed))
    if not left_b and not left_c:
        return measured
    note = f"clients left: baseline {left_b} of {all_b}, candidate {left_c} of {all_c}"
    return msgspec.structs.replace(measured, note=note)


def _rate(
    spec: GateSpec,
    counts: tuple[int, int, int, int],
    allowed: float,
    stop: float | None,
    *,
    blocks: int | None,
) -> Measured:
    bad_b, n_b, bad_c, n_c = counts
    bounds = difference_bounds(bad_b, n_b, bad_c, n_c, alpha=spec.alpha)
    now = bad_c / n_c - bad_b / n_b if n_b and n_c else None
    shift = spec.margin - allowed
    low = bounds.low + shift
    any_harm = stop is None or (
        low > spec.margin and difference_e_value(bad_b, n_b, bad_c, n_c, margin=0.0) >= 1.0 / stop
    )
    return Measured(
        n_baseline=n_b,
        n_candidate=n_c,
        n_units=blocks,
        value=now,
        interval=bounds if n_b and n_c else None,
        harm_low=low,
        harm_high=bounds.high + shift,
        harm_now=None if now is None else now + shift,
        may_stop=any_harm,
    )


def _memory(inside: Sequence[RequestRecord], extras: ArmExtras) -> Measured:
    _, n_b, _, n_c = _arm_counts(inside, lambda one: False)
    before, after = extras.memory_bytes_baseline, extras.memory_bytes_candidate
    ratio = after / before if before and after is not None else None
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


def _with_load(sample: "Sample") -> "Sample":
    """Each record of a pair of blocks also belongs to the cut by the requests of the pair before."""
    in_pair: dict[int, int] = defaultdict(int)
    for one in sample.records:
        in_pair[_block(one) // 2] += 1
    pairs = sorted(in_pair)
    cut_of = {pair: load_cut(in_pair[before]) for before, pair in pairwise(pairs)}
    loads = [cut_of.get(_block(one) // 2) for one in sample.records]
    cuts = [
        cuts if load is None else cuts | {load}
        for cuts, load in zip(sample.cuts, loads, strict=True)
    ]
    return Sample(records=sample.records, cuts=tuple(cuts))


def _vetoes(record: LeverRecord, sample: "Sample", alpha: float) -> list[GateResult]:
    sample = _with_load(sample)
    matched = record.ramp.comparison is Comparison.SIDE_BY_SIDE
    counts: dict[tuple[Cut, Arm], int] = {}
    for one, cuts in zip(sample.records, sample.cuts, strict=True):
        for cut in cuts if one.ok else ():
            counts[cut, one.arm] = counts.get((cut, one.arm), 0) + 1
    seen = sorted({cut for cut, _ in counts if cut.dimension not in MOVED_BY[record.technique]})
    enough = [c for c in seen if all(counts.get((c, arm), 0) >= VETO_REQUESTS_MIN for arm in Arm)]
    found = []
    for metric in VETO_METRICS:
        for cut in enough:
            if any(spec.metric is metric and spec.cut == cut for spec in record.gates):
                continue
            result = _veto(sample, metric, cut, alpha, matched=matched)
            found += [] if result is None else [result]
    return found


def _veto(
    sample: "Sample", metric: Metric, cut: Cut, alpha: float, *, matched: bool
) -> GateResult | None:
    value_of = request_value(metric)
    assert value_of is not None, "vetoes look at latencies"
    ok = [one for one in sample.within(cut) if one.ok]
    pairing = pair_requests(ok, value_of, matched_batch=matched)
    estimate = ratio_estimate(pairing.units, alpha=alpha)
    beyond = estimate.ratio is not None and estimate.ratio > 1.0 + VETO_MARGIN
    if not beyond or estimate.n_units < VETO_UNITS_MIN or estimate.interval is None:
        return None
    failed = estimate.interval.low > 1.0
    if not failed and e_value_above(pairing.units, 1.0) < 1.0 / SUSPECT_ALPHA * (1.0 - 1e-9):
        return None
    spec = GateSpec(
        name=f"veto {metric.value} in {cut}",
        metric=metric,
        question=Question.VETO,
        margin=VETO_MARGIN,
        cut=cut,
        alpha=alpha,
        matched_batch=matched,
        required=not failed,
    )
    shown = "is shown" if failed else "is likely, but not shown"
    reason = (
        f"worse in a cut that nobody declared {shown} at alpha {alpha:.2g}, "
        f"and what is seen lies beyond {VETO_MARGIN:.0%}"
    )
    measured = _ratio(spec, pairing, None)
    return result_of(spec, measured, (Verdict.FAIL if failed else Verdict.HOLD, reason))


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    """The records of a comparison, in complete blocks, each with its cuts."""

    records: tuple[RequestRecord, ...]
    cuts: tuple[frozenset[Cut], ...]

    def within(self, cut: Cut | None) -> tuple[RequestRecord, ...]:
        """Return the records of a cut, all of them for None."""
        if cut is None:
            return self.records
        return tuple(
            record for record, cuts in zip(self.records, self.cuts, strict=True) if cut in cuts
        )

    def between(self, first: int, end: int | None) -> "Sample":
        """Return the part in blocks from `first` on and before `end`."""
        kept = [
            (record, cuts)
            for record, cuts in zip(self.records, self.cuts, strict=True)
            if first <= _block(record) and (end is None or _block(record) < end)
        ]
        return Sample(
            records=tuple(record for record, _ in kept), cuts=tuple(cuts for _, cuts in kept)
        )


class Pairing(msgspec.Struct, frozen=True, kw_only=True):
    """Units with the counts of requests behind them. `unmeasured`: requests without a value."""

    units: tuple[Unit, ...]
    n_baseline: int
    n_candidate: int
    unmeasured: int


def _sample_of(records: Iterable[RequestRecord]) -> Sample:
    mine = tuple(records)
    return Sample(records=mine, cuts=tuple(frozenset(cuts_of(one)) for one in mine))


def pair_requests(
    records: Sequence[RequestRecord],
    value_of: Callable[[RequestRecord], float | None],
    *,
    matched_batch: bool,
) -> Pairing:
    """Pair a metric that every request has; values that are unknown or not above 0 are left out."""
    rows: list[tuple[RequestRecord, float]] = []
    for record in records:
        value = value_of(record)
        if value is not None and value > 0.0 and math.isfinite(value):
            rows.append((record, value))
    if matched_batch:
        rows = [row for row in rows if row[0].batch_at_admission is not None]
        units = matched_units(rows)
    else:
        units = pair_units(
            (
                Observation(_block(record), record.arm.value, value, record.arrived_at_s)
                for record, value in rows
            ),
            min_per_arm=UNIT_REQUESTS_MIN,
        )
    return _pairing(units, [record for record, _ in rows], len(records))


def pair_blocks(
    records: Sequence[RequestRecord],
    total_of: Callable[[Sequence[RequestRecord]], float | None],
) -> Pairing:
    """Pair a metric that only the requests of an arm in a block, or in a few blocks, have together."""
    groups: dict[int, dict[Arm, list[RequestRecord]]] = {}
    for record in records:
        groups.setdefault(_block(record), defaultdict(list))[record.arm].append(record)
    used: list[RequestRecord] = []
    units: list[Unit] = []
    kept: dict[Arm, list[RequestRecord]] = {Arm.BASELINE: [], Arm.CANDIDATE: []}
    first: int | None = None
    for block, arms in sorted(groups.items()):
        first = block if first is None else first
        for arm, group in arms.items():
            if (total_of(group) or 0.0) > 0.0:
                kept[arm] += group
                used += group
        unit = _block_unit(first, block, kept, total_of)
        if unit is not None:
            units.append(unit)
            kept, first = {Arm.BASELINE: [], Arm.CANDIDATE: []}, None
    return _pairing(tuple(units), used, len(records))


def matched_units(rows: Sequence[tuple[RequestRecord, float]]) -> tuple[Unit, ...]:
    """Close a unit after each block by which some batch bucket has both arms; only counts decide."""
    by_block: dict[int, list[tuple[RequestRecord, float]]] = defaultdict(list)
    for row in rows:
        by_block[_block(row[0])].append(row)
    units: list[Unit] = []
    buckets: dict[str, dict[Arm, list[float]]] = {}
    first: int | None = None
    for block in sorted(by_block):
        first = block if first is None else first
        for record, value in by_block[block]:
            assert record.batch_at_admission is not None, "unmatched rows are left out before"
            arms = buckets.setdefault(batch_bucket(record.batch_at_admission), defaultdict(list))
            arms[record.arm].append(math.log(value))
        unit = _matched_unit(first, block, buckets)
        if unit is not None:
            units.append(unit)
            buckets, first = {}, None
    return tuple(units)


def _arm_counts(
    records: Iterable[RequestRecord], is_bad: Callable[[RequestRecord], bool]
) -> tuple[int, int, int, int]:
    """Return (bad, all) of the baseline and (bad, all) of the candidate."""
    bad = {Arm.BASELINE: 0, Arm.CANDIDATE: 0}
    n = {Arm.BASELINE: 0, Arm.CANDIDATE: 0}
    for record in records:
        n[record.arm] += 1
        bad[record.arm] += is_bad(record)
    return bad[Arm.BASELINE], n[Arm.BASELINE], bad[Arm.CANDIDATE], n[Arm.CANDIDATE]


def _blocks_of(records: Sequence[RequestRecord]) -> int:
    by_arm: dict[Arm, set[int]] = {arm: set() for arm in Arm}
    for one in records:
        by_arm[one.arm].add(_block(one))
    return min(len(blocks) for blocks in by_arm.values())


def _block_unit(
    first: int,
    last: int,
    kept: dict[Arm, list[RequestRecord]],
    total_of: Callable[[Sequence[RequestRecord]], float | None],
) -> Unit | None:
    baseline, candidate = kept[Arm.BASELINE], kept[Arm.CANDIDATE]
    if min(len(baseline), len(candidate)) < UNIT_REQUESTS_MIN:
        return None
    before, after = total_of(baseline), total_of(candidate)
    if not before or not after:
        return None
    return Unit(first, last, len(baseline), len(candidate), math.log(after / before))


def _matched_unit(first: int, last: int, buckets: dict[str, dict[Arm, list[float]]]) -> Unit | None:
    weights: list[float] = []
    ratios: list[float] = []
    n_baseline = n_candidate = 0
    for arms in buckets.values():
        baseline, candidate = arms[Arm.BASELINE], arms[Arm.CANDIDATE]
        if not baseline or not candidate:
            continue
        weights.append(len(baseline) * len(candidate) / (len(baseline) + len(candidate)))
        ratios.append(math.fsum(candidate) / len(candidate) - math.fsum(baseline) / len(baseline))
        n_baseline += len(baseline)
        n_candidate += len(candidate)
    if not weights:
        return None
    weighted = math.fsum(weight * ratio for weight, ratio in zip(weights, ratios, strict=True))
    return Unit(first, last, n_baseline, n_candidate, weighted / math.fsum(weights))


def _pairing(units: tuple[Unit, ...], used: Sequence[RequestRecord], asked: int) -> Pairing:
    n_candidate = sum(one.arm is Arm.CANDIDATE for one in used)
    return Pairing(
        units=units,
        n_baseline=len(used) - n_candidate,
        n_candidate=n_candidate,
        unmeasured=asked - len(used),
    )


def _block(record: RequestRecord) -> int:
    assert record.block is not None, "records outside blocks are left out before"
    return record.block
