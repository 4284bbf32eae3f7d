"""Harm in cuts that nobody declared: they cannot pass a lever, but they can stop it, and hold it while harm is likely.

Law: every cut that both arms have met is looked at, for each metric, once it has its requests; at most
`CUT_TESTS_MAX` of them, in the order in which they had. A cut fails when the candidate is shown to be worse there at
all, at its part of the rollout's bound for stopping (`rollout.bounds`), and the ratio seen lies beyond VETO_MARGIN. It
holds the lever while the ratio seen lies beyond the margin and the same is shown at SUSPECT_ALPHA for this cut alone:
the average of all traffic is known long before a cut of a few percent of it, and would have the lever adopted.

The load is a cut of its own: how many requests the comparison had in the two blocks before, which neither arm of this
pair could change. A lever that pays by night and harms at the peak is seen by it, whatever a day is on average.

Left out are the dimensions that the technique itself moves requests between: with better caching the requests
that still miss are not those that missed before, so comparing misses with misses would compare other requests.
Where arms run side by side on replicas of their own, equal batches are compared, as their loads differ.

Failure mode: a cut that is met too rarely to be suspected before all traffic shows its gain is not caught; declare a
gate for it.
"""

import math

from trimtab.core.cuts import Cut, Dimension
from trimtab.core.gate import GateResult, GateSpec, Metric, Question
from trimtab.core.lever import Comparison, LeverRecord
from trimtab.core.stats_betting import wins_needed
from trimtab.core.types import Technique, Verdict
from trimtab.rollout.answer import ArmExtras, result_of
from trimtab.rollout.blocks import Block, Row
from trimtab.rollout.bounds import CUT_TESTS_MAX, all_stop_bounds
from trimtab.rollout.comparison import request_value
from trimtab.rollout.sources import RequestRatio

VETO_MARGIN = 0.10
SUSPECT_ALPHA = 0.1
"""To hold takes little: a lever that is held in vain loses time, one that is let go harms a cut until it is seen."""

VETO_REQUESTS_MIN = 20
VETO_UNITS_MIN = 6
VETO_METRICS = (Metric.TTFT_MS, Metric.TPOT_MS)

CUTS_MAX = 400
"""Cuts that are followed; a label that is another in every request makes no more."""

_BY_LOAD = frozenset({Dimension.BATCH, Dimension.CONCURRENCY})
MOVED_BY: dict[Technique, frozenset[Dimension]] = {
    Technique.PREFIX_CACHING: _BY_LOAD | {Dimension.CACHE},
    Technique.SPECULATION: frozenset(),
    Technique.QUANTIZATION: frozenset({Dimension.OUTPUT_TOKENS}),
    Technique.PREFILL_CHUNKING: frozenset(),
    Technique.DISAGGREGATION: _BY_LOAD | {Dimension.TOPOLOGY},
    Technique.PARALLEL_LAYOUT: frozenset({Dimension.TOPOLOGY, Dimension.HARDWARE}),
    Technique.REPLICAS: _BY_LOAD,
}
"""Dimensions between whose cuts a technique moves requests."""

_LOG_MARGIN = math.log1p(VETO_MARGIN)


def load_cut(requests: int) -> Cut:
    """Return the cut of blocks that follow two blocks with so many requests; each cut is twice the one before."""
    low = 1 << (max(1, requests).bit_length() - 1)
    return Cut(Dimension.LOAD, f"{low}-{2 * low}")


class CutWatch:
    """Follows every undeclared cut of the blocks it takes."""

    def __init__(self, record: LeverRecord) -> None:
        self._record = record
        self._matched = record.ramp.comparison is Comparison.SIDE_BY_SIDE
        self._alphas = frozenset(bound.cut for bound in all_stop_bounds(record))
        self._declared = frozenset((gate.metric, gate.cut) for gate in record.gates)
        self._left_out = MOVED_BY[record.technique]
        # Per cut: good requests of the baseline and of the candidate, and a ratio for each metric.
        self._counts: dict[Cut, list[int]] = {}
        self._ratios: dict[tuple[Metric, Cut], RequestRatio] = {}
        self._looked_at: list[tuple[Metric, Cut]] = []
        self._known: tuple[float, list[GateResult]] | None = None
        # The pair of blocks that is being taken, its requests so far, and the cut by the load of the pair before.
        self._pair: int | None = None
        self._in_pair = 0
        self._load: Cut | None = None

    def take(self, block: Block) -> None:
        """Take the next block."""
        self._known = None
        enough: list[Cut] = []
        for cut, rows in (*block.by_cut().items(), *self._by_load(block)):
            if cut.dimension not in self._left_out and self._take_cut(block, cut, rows):
                enough.append(cut)
        for metric in VETO_METRICS if enough else ():
            for cut in sorted(enough):
                fits = len(self._looked_at) < CUT_TESTS_MAX
                if fits and (metric, cut) in self._ratios:
                    self._looked_at.append((metric, cut))

    def results(self, stop_alpha: float) -> list[GateResult]:
        """Return what failed, and what holds the lever; `stop_alpha`: for each cut and metric."""
        if self._known is None or self._known[0] != stop_alpha:
            self._known = stop_alpha, self._found(stop_alpha)
        return self._known[1]

    def _found(self, stop_alpha: float) -> list[GateResult]:
        found: list[GateResult] = []
        order = sorted(self._looked_at, key=lambda test: (VETO_METRICS.index(test[0]), test[1]))
        for metric, cut in order:
            running = self._ratios[metric, cut].running
            median = running.log_median()
            n = running.n_units
            if median is None or median <= _LOG_MARGIN or n < VETO_UNITS_MIN:
                continue
            if running.log_low(stop_alpha) > 0.0:
                found.append(self._result(metric, cut, stop_alpha, Verdict.FAIL))
            elif running.units_above_one() >= wins_needed(n, SUSPECT_ALPHA):
                found.append(self._result(metric, cut, stop_alpha, Verdict.HOLD))
        return found

    def copy(self) -> "CutWatch":
        """Return one that goes on from here by itself."""
        made = CutWatch(self._record)
        made._counts = {cut: list(counts) for cut, counts in self._counts.items()}
        made._ratios = {key: ratio.copy() for key, ratio in self._ratios.items()}
        made._looked_at = list(self._looked_at)
        made._pair, made._in_pair, made._load = self._pair, self._in_pair, self._load
        return made

    def _by_load(self, block: Block) -> list[tuple[Cut, list[Row]]]:
        """Return the block's rows under the load before it, once there was any."""
        pair = block.number // 2
        if pair != self._pair:
            self._load = None if self._pair is None else load_cut(self._in_pair)
            self._pair, self._in_pair = pair, 0
        self._in_pair += len(block.rows)
        return [] if self._load is None else [(self._load, block.rows)]

    def _take_cut(self, block: Block, cut: Cut, rows: list[Row]) -> bool:
        """Take a cut's requests; say whether it has enough of them now, and had not before."""
        counts = self._counts.get(cut)
        if counts is None:
            if len(self._counts) >= CUTS_MAX:
                return False
            counts = self._counts[cut] = [0, 0]
            self._follow(cut)
        for metric in VETO_METRICS:
            ratio = self._ratios.get((metric, cut))
            if ratio is not None:
                ratio.take_rows(block, rows)
        had = min(counts) >= VETO_REQUESTS_MIN
        for row in rows:
            counts[row.candidate] += row.ok
        return not had and min(counts) >= VETO_REQUESTS_MIN

    def _follow(self, cut: Cut) -> None:
        for metric in VETO_METRICS:
            value_of = request_value(metric)
            if value_of is not None and (metric, cut) not in self._declared:
                self._ratios[metric, cut] = RequestRatio(
                    value_of, cut=cut, alphas=self._alphas, matched=self._matched
                )

    def _result(self, metric: Metric, cut: Cut, alpha: float, verdict: Verdict) -> GateResult:
        spec = GateSpec(
            name=f"veto {metric.value} in {cut}",
            metric=metric,
            question=Question.VETO,
            margin=VETO_MARGIN,
            cut=cut,
            alpha=alpha,
            min_requests=VETO_REQUESTS_MIN,
            min_units=VETO_UNITS_MIN,
            matched_batch=self._matched,
            required=verdict is Verdict.HOLD,
        )
        measured = self._ratios[metric, cut].measured(spec, None, ArmExtras())
        shown = "is shown" if verdict is Verdict.FAIL else "is likely, but not shown"
        reason = (
            f"worse in a cut that nobody declared {shown} at alpha {alpha:.2g}, "
            f"and what is seen lies beyond {VETO_MARGIN:.0%}"
        )
        return result_of(spec, measured, (verdict, reason))
