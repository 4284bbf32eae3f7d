"""From requests to units of evidence: what a metric's value is, and how arms are paired.

Throughput and the share of prompt tokens computed give one value per arm and unit, since they are quotients of sums:
    output tokens per second = output tokens / union of [arrival, end] of the arm's requests in the unit's blocks
    prompt tokens computed   = computed / prompt tokens of the arm's requests in the unit's blocks
At matched batch throughput is that of single requests instead, as arms on replicas of their own differ in load: a
batch of b streams has b times one stream's rate.
"""

import math
from collections.abc import Callable, Iterable, Sequence

from trimtab.core.gate import Metric
from trimtab.core.record import RequestRecord
from trimtab.core.stats import Unit
from trimtab.core.stats_running import PENDING_MAX
from trimtab.core.types import ErrorClass

UNIT_REQUESTS_MIN = 3
"""Requests of each arm in a unit: one or two say more about themselves than about their arm."""

CLIENTS_OWN = frozenset({ErrorClass.BAD_REQUEST, ErrorClass.CONTEXT_OVERFLOW})
"""Errors that a request brings along; they say nothing about an arm."""


class MatchedUnits:
    """Closes a unit after each block by which some batch bucket has both arms; only counts decide."""

    __slots__ = ("_buckets", "_first")

    def __init__(self) -> None:
        self._first: int | None = None
        # Per bucket the logarithms of the baseline's values and of the candidate's.
        self._buckets: dict[str, tuple[list[float], list[float]]] = {}

    def take(self, block: int, rows: Sequence[tuple[str, bool, float]]) -> Unit | None:
        """Take a whole block as (batch bucket, candidate or not, log of the value); return the unit it closes."""
        if not rows:
            return None
        self._first = block if self._first is None else self._first
        for bucket, candidate, log_value in rows:
            self._buckets.setdefault(bucket, ([], []))[candidate].append(log_value)
        unit = self._unit(self._first, block)
        if unit is not None:
            self._first, self._buckets = None, {}
            return unit
        for arms in self._buckets.values():
            for values in arms:
                del values[:-PENDING_MAX]
        return None

    def copy(self) -> "MatchedUnits":
        """Return one that goes on from here by itself."""
        made = MatchedUnits()
        made._first = self._first
        made._buckets = {name: (list(b), list(c)) for name, (b, c) in self._buckets.items()}
        return made

    def _unit(self, first: int, last: int) -> Unit | None:
        weights: list[float] = []
        ratios: list[float] = []
        n_baseline = n_candidate = 0
        for baseline, candidate in self._buckets.values():
            if not baseline or not candidate:
                continue
            weights.append(len(baseline) * len(candidate) / (len(baseline) + len(candidate)))
            means = math.fsum(candidate) / len(candidate), math.fsum(baseline) / len(baseline)
            ratios.append(means[0] - means[1])
            n_baseline += len(baseline)
            n_candidate += len(candidate)
        if not weights:
            return None
        weighted = math.fsum(weight * ratio for weight, ratio in zip(weights, ratios, strict=True))
        return Unit(first, last, n_baseline, n_candidate, weighted / math.fsum(weights))


class BlockUnits:
    """Closes a unit after each block by which both arms have enough requests and a total above 0."""

    __slots__ = ("_baseline", "_candidate", "_first", "_min", "_total_of")

    def __init__(
        self,
        total_of: Callable[[Sequence[RequestRecord]], float | None],
        min_per_arm: int = UNIT_REQUESTS_MIN,
    ) -> None:
        self._total_of = total_of
        self._min = min_per_arm
        self._first: int | None = None
        self._baseline: list[RequestRecord] = []
        self._candidate: list[RequestRecord] = []

    def take(
        self,
        block: int,
        baseline: Sequence[RequestRecord],
        candidate: Sequence[RequestRecord],
    ) -> tuple[Unit | None, int, int]:
        """Take a whole block; return the unit it closes, and how many requests of each arm could be measured."""
        self._first = block if self._first is None else self._first
        used = [0, 0]
        for at, (kept, group) in enumerate(
            ((self._baseline, baseline), (self._candidate, candidate))
        ):
            if group and (self._total_of(group) or 0.0) > 0.0:
                kept += group
                used[at] = len(group)
        return self._unit(self._first, block), used[0], used[1]

    def copy(self) -> "BlockUnits":
        """Return one that goes on from here by itself."""
        made = BlockUnits(self._total_of, self._min)
        made._first = self._first
        made._baseline, made._candidate = list(self._baseline), list(self._candidate)
        return made

    def _unit(self, first: int, last: int) -> Unit | None:
        baseline, candidate = self._baseline, self._candidate
        if min(len(baseline), len(candidate)) < self._min:
            del baseline[:-PENDING_MAX], candidate[:-PENDING_MAX]
            return None
        before, after = self._total_of(baseline), self._total_of(candidate)
        if not before or not after:
            return None
        self._first, self._baseline, self._candidate = None, [], []
        return Unit(first, last, len(baseline), len(candidate), math.log(after / before))


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


def is_servers_error(record: RequestRecord) -> bool:
    """Say whether a request ended badly for a reason that is not the client's."""
    if record.client_aborted or record.error in CLIENTS_OWN:
        return False
    return record.error is not ErrorClass.NONE
