"""Sources of evidence: what a gate's metric is measured from, taken in block by block.

Each source takes blocks that are over, in order, and says at any time what it measured (`Measured`). Latencies give
one value per request, and units compare their means. Throughput and the share of prompt tokens computed give one value
per arm and unit, since they are quotients of sums (`rollout.comparison`). `version` grows with whatever could change an
answer; `copy` goes on from here by itself, so that a block can be taken again when a request of it ends late.

With matched batch, arms are compared within equal batch buckets and the differences of a unit are averaged, weighted by
n_b * n_c / (n_b + n_c): one unit for all buckets, because buckets of one block share its load and would count it
several times.

Failure modes: where arms hardly ever meet equal batches, matched units are few and gates hold. A tail is of the latest
`TAIL_VALUES_MAX` requests of each arm.
"""

import math
from bisect import bisect_left, bisect_right, insort
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from trimtab.core.cuts import Cut, batch_bucket
from trimtab.core.gate import GateSpec
from trimtab.core.record import RequestRecord
from trimtab.core.stats import Interval, PairBuilder, RunningRatio, Unit
from trimtab.rollout.answer import ArmExtras, Measured
from trimtab.rollout.blocks import Block, Row
from trimtab.rollout.comparison import UNIT_REQUESTS_MIN, BlockUnits, MatchedUnits
from trimtab.rollout.rates import measured_rate

TAIL_VALUES_MAX = 20_000
TAIL_QUANTILE = 0.95
TAIL_SHARE_EXTRA = 0.05
"""How much more of the candidate's requests than of the baseline's may lie beyond the tail's threshold."""


class Source(Protocol):
    """Takes blocks in order, and measures."""

    version: int

    def take(self, block: Block) -> None:
        """Take the next block."""
        ...

    def measured(self, spec: GateSpec, stop_alpha: float | None, extras: ArmExtras) -> Measured:
        """Return what was measured so far, for a gate; `stop_alpha`: see `rollout.bounds`."""
        ...

    def copy(self) -> "Source":
        """Return one that goes on from here by itself."""
        ...


class Ratio:
    """What sources of ratios share: bounds, and counts of the requests behind them."""

    def __init__(self, cut: Cut | None, alphas: Iterable[float]) -> None:
        self.cut = cut
        self.version = 0
        self.asked = self.n_baseline = self.n_candidate = 0
        self.running = RunningRatio(alphas)

    def add(self, unit: Unit | None) -> None:
        """Take a unit, if there is one."""
        if unit is not None:
            self.running.add(unit)

    def ratio(
        self, spec: GateSpec, stop_alpha: float | None, *, higher_is_better: bool, note: str = ""
    ) -> Measured:
        """Return candidate over baseline, and the harm that this is."""
        running, estimate = self.running, self.running.estimate(spec.alpha)
        interval = estimate.interval
        low, high = (0.0, math.inf) if interval is None else (interval.low, interval.high)
        ratio = estimate.ratio
        if higher_is_better:
            harm = (1.0 - high, 1.0 - low)
            harm_now = None if ratio is None else 1.0 - ratio
            any_harm = stop_alpha is None or running.log_high(stop_alpha) < 0.0
        else:
            harm = (low - 1.0, high - 1.0)
            harm_now = None if ratio is None else ratio - 1.0
            any_harm = stop_alpha is None or running.log_low(stop_alpha) > 0.0
        return Measured(
            n_baseline=self.n_baseline,
            n_candidate=self.n_candidate,
            n_units=estimate.n_units,
            value=ratio,
            interval=interval,
            harm_low=harm[0],
            harm_high=harm[1],
            harm_now=harm_now,
            may_stop=any_harm,
            drifted=estimate.drifted,
            unmeasured=self.asked - self.n_baseline - self.n_candidate,
            note=note,
        )

    def _copied_into(self, made: "Ratio") -> None:
        made.version = self.version
        made.asked = self.asked
        made.n_baseline, made.n_candidate = self.n_baseline, self.n_candidate
        made.running = self.running.copy()


class RequestRatio(Ratio):
    """A value that every request has, such as a latency; unknown ones and those not above 0 are left out.

    `drops_loops`: outputs that repeat themselves do not count (nobody wants those faster), and are counted.
    """

    def __init__(
        self,
        value_of: Callable[[RequestRecord], float | None],
        *,
        cut: Cut | None,
        alphas: Iterable[float],
        matched: bool,
        higher_is_better: bool = False,
        drops_loops: bool = False,
    ) -> None:
        super().__init__(cut, alphas)
        self._value_of = value_of
        self._higher = higher_is_better
        self._drops_loops = drops_loops
        self._loops = 0
        self._pairs = None if matched else PairBuilder(UNIT_REQUESTS_MIN)
        self._matched = MatchedUnits() if matched else None

    def take(self, block: Block) -> None:
        """Take the values of the block's good requests."""
        self.take_rows(block, block.within(self.cut))

    def take_rows(self, block: Block, rows: Sequence[Row]) -> None:
        """Take the values of those of the block's requests that are in the cut."""
        self.version += 1
        values = self._values(rows)
        if self._matched is not None:
            known = [
                (row, value) for row, value in values if row.record.batch_at_admission is not None
            ]
            self._count(known)
            logs = [
                (batch_bucket(row.record.batch_at_admission or 0), row.candidate, math.log(value))
                for row, value in known
            ]
            self.add(self._matched.take(block.number, logs))
        elif self._pairs is not None:
            self._count(values)
            if block.tied:
                values.sort(key=_arrival_and_value)
            baseline = [value for row, value in values if not row.candidate]
            candidate = [value for row, value in values if row.candidate]
            self.add(self._pairs.take(block.number, baseline, candidate))

    def measured(self, spec: GateSpec, stop_alpha: float | None, extras: ArmExtras) -> Measured:
        """Return candidate over baseline."""
        note = f"{self._loops} looping outputs left out" if self._loops else ""
        return self.ratio(spec, stop_alpha, higher_is_better=self._higher, note=note)

    def copy(self) -> "RequestRatio":
        """Return one that goes on from here by itself."""
        made = RequestRatio(
            self._value_of,
            cut=self.cut,
            alphas=(),
            matched=self._matched is not None,
            higher_is_better=self._higher,
            drops_loops=self._drops_loops,
        )
        self._copied_into(made)
        made._loops = self._loops
        made._pairs = None if self._pairs is None else self._pairs.copy()
        made._matched = None if self._matched is None else self._matched.copy()
        return made

    def _values(self, rows: Sequence[Row]) -> list[tuple[Row, float]]:
        found: list[tuple[Row, float]] = []
        for row in rows:
            if not row.ok:
                continue
            if self._drops_loops and row.record.looping is True:
                self._loops += 1
                continue
            self.asked += 1
            value = self._value_of(row.record)
            if value is not None and 0.0 < value < math.inf:
                found.append((row, value))
        return found

    def _count(self, values: Sequence[tuple[Row, float]]) -> None:
        theirs = sum(row.candidate for row, _ in values)
        self.n_candidate += theirs
        self.n_baseline += len(values) - theirs


class BlockRatio(Ratio):
    """A value that only the requests of an arm in a block, or in a few blocks, have together."""

    def __init__(
        self,
        total_of: Callable[[Sequence[RequestRecord]], float | None],
        *,
        cut: Cut | None,
        alphas: Iterable[float],
        higher_is_better: bool = False,
    ) -> None:
        super().__init__(cut, alphas)
        self._total_of = total_of
        self._higher = higher_is_better
        self._units = BlockUnits(total_of)

    def take(self, block: Block) -> None:
        """Take the block's good requests of each arm."""
        self.version += 1
        ok = [row for row in block.within(self.cut) if row.ok]
        if not ok:
            return
        self.asked += len(ok)
        baseline = [row.record for row in ok if not row.candidate]
        candidate = [row.record for row in ok if row.candidate]
        unit, used_baseline, used_candidate = self._units.take(block.number, baseline, candidate)
        self.n_baseline += used_baseline
        self.n_candidate += used_candidate
        self.add(unit)

    def measured(self, spec: GateSpec, stop_alpha: float | None, extras: ArmExtras) -> Measured:
        """Return candidate over baseline."""
        return self.ratio(spec, stop_alpha, higher_is_better=self._higher)

    def copy(self) -> "BlockRatio":
        """Return one that goes on from here by itself."""
        made = BlockRatio(self._total_of, cut=self.cut, alphas=(), higher_is_better=self._higher)
        self._copied_into(made)
        made._units = self._units.copy()
        return made


class Tail:
    """The shares of requests beyond the baseline's p95 * (1 + margin).

    Harm is what the candidate's share has beyond the baseline's and TAIL_SHARE_EXTRA, moved by the margin so that the
    common rule applies.
    """

    def __init__(
        self,
        value_of: Callable[[RequestRecord], float | None],
        *,
        cut: Cut | None,
        drops_loops: bool,
    ) -> None:
        self.cut = cut
        self.version = 0
        self._value_of = value_of
        self._drops_loops = drops_loops
        self._asked = 0
        self._arms = (_Latest(), _Latest())

    def take(self, block: Block) -> None:
        """Take the values of the block's good requests."""
        self.version += 1
        for row in block.within(self.cut):
            if not row.ok or (self._drops_loops and row.record.looping is True):
                continue
            self._asked += 1
            value = self._value_of(row.record)
            if value is not None:
                self._arms[row.candidate].add(value, block.number)

    def measured(self, spec: GateSpec, stop_alpha: float | None, extras: ArmExtras) -> Measured:
        """Return the difference of the shares."""
        baseline, candidate = self._arms
        p95 = baseline.quantile(TAIL_QUANTILE)
        edge = math.inf if p95 is None else p95 * (1.0 + spec.margin)
        counts = (baseline.beyond(edge), baseline.n, candidate.beyond(edge), candidate.n)
        return measured_rate(
            spec,
            counts,
            allowed=TAIL_SHARE_EXTRA,
            stop_alpha=stop_alpha,
            n_units=min(baseline.blocks, candidate.blocks),
            unmeasured=self._asked - baseline.n - candidate.n,
            note=f"of shares beyond {1.0 + spec.margin:.2f} x the baseline's p95, {TAIL_SHARE_EXTRA:.0%} more allowed",
        )

    def copy(self) -> "Tail":
        """Return one that goes on from here by itself."""
        made = Tail(self._value_of, cut=self.cut, drops_loops=self._drops_loops)
        made.version, made._asked = self.version, self._asked
        made._arms = (self._arms[0].copy(), self._arms[1].copy())
        return made


class Memory:
    """Peak memory of a replica of each arm: read once a look, beside the counts of requests."""

    def __init__(self, cut: Cut | None) -> None:
        self.cut = cut
        self.version = 0
        self._n_baseline = self._n_candidate = 0

    def take(self, block: Block) -> None:
        """Count the block's requests."""
        self.version += 1
        rows = block.within(self.cut)
        theirs = sum(row.candidate for row in rows)
        self._n_candidate += theirs
        self._n_baseline += len(rows) - theirs

    def measured(self, spec: GateSpec, stop_alpha: float | None, extras: ArmExtras) -> Measured:
        """Return candidate over baseline; what is read, not sampled, has its point as interval."""
        before, after = extras.memory_bytes_baseline, extras.memory_bytes_candidate
        ratio = after / before if before and after is not None else None
        asked = self._n_baseline + self._n_candidate
        return Measured(
            n_baseline=self._n_baseline,
            n_candidate=self._n_candidate,
            n_units=None,
            value=ratio,
            interval=None if ratio is None else Interval(low=ratio, high=ratio, level=0.99),
            harm_low=-math.inf if ratio is None else ratio - 1.0,
            harm_high=math.inf if ratio is None else ratio - 1.0,
            harm_now=None if ratio is None else ratio - 1.0,
            unmeasured=asked if ratio is None else 0,
        )

    def copy(self) -> "Memory":
        """Return one that goes on from here by itself."""
        made = Memory(self.cut)
        made.version = self.version
        made._n_baseline, made._n_candidate = self._n_baseline, self._n_candidate
        return made


class _Latest:
    """The latest values of one arm, sorted, and in how many blocks there were any."""

    __slots__ = ("_in_order", "_last", "_sorted", "blocks")

    def __init__(self) -> None:
        self._in_order: deque[float] = deque()
        self._sorted: list[float] = []
        self._last: int | None = None
        self.blocks = 0

    @property
    def n(self) -> int:
        return len(self._sorted)

    def add(self, value: float, block: int) -> None:
        if block != self._last:
            self._last = block
            self.blocks += 1
        insort(self._sorted, value)
        self._in_order.append(value)
        if len(self._in_order) > TAIL_VALUES_MAX:
            del self._sorted[bisect_left(self._sorted, self._in_order.popleft())]

    def beyond(self, edge: float) -> int:
        return len(self._sorted) - bisect_right(self._sorted, edge)

    def quantile(self, q: float) -> float | None:
        """Like `core.stats.percentile`, of values that are sorted already."""
        if not self._sorted:
            return None
        rank = q * (len(self._sorted) - 1)
        below = math.floor(rank)
        above = min(below + 1, len(self._sorted) - 1)
        low, high = self._sorted[below], self._sorted[above]
        return low + (rank - below) * (high - low)

    def copy(self) -> "_Latest":
        made = _Latest()
        made._in_order, made._sorted = self._in_order.copy(), list(self._sorted)
        made._last, made.blocks = self._last, self.blocks
        return made


def _arrival_and_value(pair: tuple[Row, float]) -> tuple[float, float]:
    return pair[0].record.arrived_at_s, pair[1]
