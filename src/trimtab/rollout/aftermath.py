"""Whether switching a lever off did harm: then it is undone.

Law: a trigger acts on a sign (a batch, an acceptance, a load), not on what users get. So requests before its action are
compared with requests after it, at equal batch. Of each metric, a request after counts against the action if it is
slower than the median before in its batch bucket by more than UNDO_MARGIN. If the action does no such harm, at most
half of them do; the capital of a bettor on "more than half" (`core.stats_betting`) reaches 1/UNDO_ALPHA with
probability at most UNDO_ALPHA, whenever it is looked at. One metric that is shown worse is enough, unless the other is
better by as much: then the action moved pressure, as it was to.

Regimes: watched for WATCH_S after the replicas have followed; buckets with fewer than BEFORE_MIN requests before say
nothing. Failure modes: traffic that changes in that minute (longer prompts, another mix) is taken for harm; then the
lever comes back, its trigger rests for UNDO_REST_S and fires again if its sign is still there.

Never undone: what a trigger did for quality or for what is really configured (`NEVER_UNDONE`).
"""

from collections.abc import Sequence
from statistics import median
from typing import Final

import msgspec

from trimtab.core.cuts import Cut, batch_bucket, belongs
from trimtab.core.gate import Metric
from trimtab.core.lever import TriggerSignal
from trimtab.core.record import RequestRecord
from trimtab.core.stats_betting import log_wealth
from trimtab.core.stats_types import exp_clamped

UNDO_MARGIN: Final = 0.25
UNDO_ALPHA: Final = 0.01
BEFORE_MIN: Final = 5
WATCH_S: Final = 60.0
UNDO_REST_S: Final = 600.0
METRICS: Final = (Metric.TTFT_MS, Metric.TPOT_MS)

NEVER_UNDONE: Final = frozenset(
    {
        TriggerSignal.DELIVERED_OVER_PREDICTED,
        TriggerSignal.EFFECTIVE_MISMATCH,
        TriggerSignal.INVALID_OUTPUT_RATE,
        TriggerSignal.QUALITY_LOSS,
    }
)


class Before(msgspec.Struct, frozen=True, kw_only=True):
    """What requests met before an action: medians by metric and batch bucket. `cut`: what the action was about."""

    trigger: str
    cut: Cut | None
    medians: dict[tuple[Metric, str], float]


class Harm(msgspec.Struct, frozen=True, kw_only=True):
    """Harm of an action that is shown: `worse` of `n` requests after it are slower than the median before."""

    metric: Metric
    worse: int
    n: int
    reason: str


def before_action(trigger: str, cut: Cut | None, records: Sequence[RequestRecord]) -> Before:
    """Return what the action of a trigger is to be held against, from the requests that ended before it."""
    found: dict[tuple[Metric, str], list[float]] = {}
    for one in records:
        for metric in METRICS:
            value = _value(one, metric, cut)
            if value is not None:
                found.setdefault((metric, value[0]), []).append(value[1])
    medians = {key: median(values) for key, values in found.items() if len(values) >= BEFORE_MIN}
    return Before(trigger=trigger, cut=cut, medians=medians)


def harm_of(before: Before, records: Sequence[RequestRecord]) -> Harm | None:
    """Return the harm that an action did to the requests that arrived after it, None if none is shown."""
    shown = [_harm(before, records, metric) for metric in METRICS]
    better = [_is_better(before, records, metric) for metric in METRICS]
    for at, harm in enumerate(shown):
        if harm is not None and not better[1 - at]:
            return harm
    return None


def _harm(before: Before, records: Sequence[RequestRecord], metric: Metric) -> Harm | None:
    ratios = _ratios(before, records, metric)
    worse = sum(ratio > 1.0 + UNDO_MARGIN for ratio in ratios)
    if exp_clamped(log_wealth(worse, len(ratios) - worse)) < 1.0 / UNDO_ALPHA:
        return None
    return Harm(
        metric=metric,
        worse=worse,
        n=len(ratios),
        reason=(
            f"{metric.value} of {worse} of {len(ratios)} requests since is over {1.0 + UNDO_MARGIN:.2f} x the median "
            f"before at equal batch (typically {median(ratios):.2f} x)"
        ),
    )


def _is_better(before: Before, records: Sequence[RequestRecord], metric: Metric) -> bool:
    ratios = _ratios(before, records, metric)
    return bool(ratios) and median(ratios) < 1.0 / (1.0 + UNDO_MARGIN)


def _ratios(before: Before, records: Sequence[RequestRecord], metric: Metric) -> list[float]:
    found = []
    for one in records:
        value = _value(one, metric, before.cut)
        typical = None if value is None else before.medians.get((metric, value[0]))
        if value is not None and typical:
            found.append(value[1] / typical)
    return found


def _value(one: RequestRecord, metric: Metric, cut: Cut | None) -> tuple[str, float] | None:
    value = one.ttft_ms if metric is Metric.TTFT_MS else one.tpot_ms
    if not one.ok or not value or one.batch_at_admission is None or not belongs(one, cut):
        return None
    return batch_bucket(one.batch_at_admission), value
