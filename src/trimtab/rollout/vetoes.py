"""Harm in cuts that nobody declared: they cannot pass a lever, but they can stop it.

Law: every cut that both arms have met is looked at, for each metric; each look asks at
VETO_ALPHA / (cuts * metrics looked at), so that all together stop a harmless lever with probability at most
VETO_ALPHA. Only shown harm beyond VETO_MARGIN is returned.

Left out are the dimensions that the technique itself moves requests between: with better caching the requests
that still miss are not those that missed before, so comparing misses with misses would compare other requests.
Where arms run side by side on replicas of their own, equal batches are compared, as their loads differ.
"""

from trimtab.core.cuts import Cut, Dimension
from trimtab.core.gate import GateResult, GateSpec, Metric, Question
from trimtab.core.lever import Comparison, LeverRecord
from trimtab.core.stats import ratio_estimate
from trimtab.core.types import Arm, Technique, Verdict
from trimtab.rollout.answer import Measured, judge, result_of
from trimtab.rollout.comparison import Sample, pair_requests, request_value

VETO_MARGIN = 0.25
VETO_ALPHA = 0.05
VETO_REQUESTS_MIN = 20
VETO_UNITS_MIN = 6
VETO_METRICS = (Metric.TTFT_MS, Metric.TPOT_MS)

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


def automatic_vetoes(record: LeverRecord, sample: Sample) -> list[GateResult]:
    """Return a failed, not required result for each undeclared cut in which harm is shown."""
    cuts = _enough(record, sample)
    looked_at = [
        (metric, cut)
        for metric in VETO_METRICS
        for cut in cuts
        if not _declared(record, metric, cut)
    ]
    if not looked_at:
        return []
    alpha = VETO_ALPHA / len(looked_at)
    found = [_look(record, sample, metric, cut, alpha) for metric, cut in looked_at]
    return [result for result in found if result.verdict is Verdict.FAIL]


def _look(
    record: LeverRecord, sample: Sample, metric: Metric, cut: Cut, alpha: float
) -> GateResult:
    matched = record.ramp.comparison is Comparison.SIDE_BY_SIDE
    value_of = request_value(metric)
    assert value_of is not None, "vetoes look at latencies"
    ok = [one for one in sample.within(cut) if one.ok]
    pairing = pair_requests(ok, value_of, matched_batch=matched)
    estimate = ratio_estimate(pairing.units, alpha=alpha)
    spec = GateSpec(
        name=f"veto {metric.value} in {cut}",
        metric=metric,
        question=Question.VETO,
        margin=VETO_MARGIN,
        cut=cut,
        alpha=alpha,
        min_requests=VETO_REQUESTS_MIN,
        min_units=VETO_UNITS_MIN,
        matched_batch=matched,
        required=False,
    )
    interval = estimate.interval
    measured = Measured(
        n_baseline=pairing.n_baseline,
        n_candidate=pairing.n_candidate,
        n_units=estimate.n_units,
        value=estimate.ratio,
        interval=interval,
        harm_low=interval.low - 1.0 if interval else -1.0,
        harm_high=interval.high - 1.0 if interval else 1.0,
        harm_now=None,
        note=f"undeclared cut, asked at alpha {alpha:.2g}",
    )
    return result_of(spec, measured, judge(spec, measured))


def _enough(record: LeverRecord, sample: Sample) -> list[Cut]:
    counts: dict[tuple[Cut, Arm], int] = {}
    for one, cuts in zip(sample.records, sample.cuts, strict=True):
        for cut in cuts if one.ok else ():
            counts[cut, one.arm] = counts.get((cut, one.arm), 0) + 1
    seen = sorted({cut for cut, _ in counts if cut.dimension not in MOVED_BY[record.technique]})
    return [
        cut for cut in seen if all(counts.get((cut, arm), 0) >= VETO_REQUESTS_MIN for arm in Arm)
    ]


def _declared(record: LeverRecord, metric: Metric, cut: Cut) -> bool:
    return any(spec.metric is metric and spec.cut == cut for spec in record.gates)
