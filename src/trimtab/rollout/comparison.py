"""From request records to units of evidence: what a metric's value is, and how arms are paired.

Latencies give one value per request, and units compare their means. Throughput and the share of prompt tokens computed
give one value per arm and block, since they are quotients of sums:
    output tokens per second = output tokens / union of [arrival, end] of the arm's requests in the block
    prompt tokens computed   = computed / prompt tokens of the arm's requests in the block
At matched batch throughput is that of single requests instead, as arms on replicas of their own differ in load: a
batch of b streams has b times one stream's rate.
With matched batch, arms are compared within equal batch buckets and the differences of a unit are averaged,
weighted by n_b * n_c / (n_b + n_c): one unit for all buckets, because buckets of one block share its load and
would count it several times.

Failure mode: where arms hardly ever meet equal batches, matched units are few and gates hold.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence

import msgspec

from trimtab.core.cuts import Cut, batch_bucket, cuts_of
from trimtab.core.gate import Metric
from trimtab.core.record import RequestRecord
from trimtab.core.stats import Observation, Unit, pair_units
from trimtab.core.types import Arm, ErrorClass

UNIT_REQUESTS_MIN = 3
"""Requests of each arm in a unit: one or two say more about themselves than about their arm."""

CLIENTS_OWN = frozenset({ErrorClass.BAD_REQUEST, ErrorClass.CONTEXT_OVERFLOW})
"""Errors that a request brings along; they say nothing about an arm."""


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


def sample_of(lever: str, records: Iterable[RequestRecord]) -> Sample:
    """Return the lever's records that belong to a block of the comparison."""
    mine = tuple(one for one in records if one.lever == lever and one.block is not None)
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


def request_value(metric: Metric) -> Callable[[RequestRecord], float | None] | None:
    """Return how to read a latency from a request, None for metrics that are no latency."""
    match metric:
        case Metric.TTFT_MS:
            return lambda record: record.ttft_ms
        case Metric.TPOT_MS:
            return lambda record: record.tpot_ms
        case Metric.CHUNK_GAP_MS:
            return lambda record: record.chunk_gap_ms_max
        case Metric.E2E_MS:
            return lambda record: record.e2e_ms
        case _:
            return None


def output_tokens_per_s(group: Sequence[RequestRecord]) -> float | None:
    """Return the output tokens per second in which the group had a request; None if unknown."""
    tokens = [one.tokens.output for one in group if one.tokens.output is not None]
    busy_s = union_s((one.arrived_at_s, one.finished_at_s) for one in group)
    return sum(tokens) / busy_s if tokens and busy_s > 0.0 else None


def own_output_tokens_per_s(record: RequestRecord) -> float | None:
    """Return a request's output tokens per second of its whole time; at equal batch it stands for all streams."""
    if record.tokens.output is None or not record.e2e_ms:
        return None
    return 1000.0 * record.tokens.output / record.e2e_ms


def computed_share(group: Sequence[RequestRecord]) -> float | None:
    """Return the part of the prompt tokens that was computed; at least one token counts as computed."""
    known = [
        (one.tokens.computed, one.tokens.prompt)
        for one in group
        if one.tokens.computed is not None and one.tokens.prompt
    ]
    prompt = sum(tokens for _, tokens in known if tokens is not None)
    computed = sum(tokens for tokens, _ in known if tokens is not None)
    return max(1, computed) / prompt if prompt else None


def union_s(intervals: Iterable[tuple[float, float]]) -> float:
    """Return the length of the union of intervals."""
    total = 0.0
    reached = -math.inf
    for start, end in sorted(intervals):
        total += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return total


def arm_counts(
    records: Iterable[RequestRecord], is_bad: Callable[[RequestRecord], bool]
) -> tuple[int, int, int, int]:
    """Return (bad, all) of the baseline and (bad, all) of the candidate."""
    bad = {Arm.BASELINE: 0, Arm.CANDIDATE: 0}
    n = {Arm.BASELINE: 0, Arm.CANDIDATE: 0}
    for record in records:
        n[record.arm] += 1
        bad[record.arm] += is_bad(record)
    return bad[Arm.BASELINE], n[Arm.BASELINE], bad[Arm.CANDIDATE], n[Arm.CANDIDATE]


def is_servers_error(record: RequestRecord) -> bool:
    """Say whether a request ended badly for a reason that is not the client's."""
    if record.client_aborted or record.error in CLIENTS_OWN:
        return False
    return record.error is not ErrorClass.NONE


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
