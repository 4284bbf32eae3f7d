"""The numbers that triggers watch, over a window of recent requests and fleet views.

    batch                     busy slots (decoding or prefilling) of the lever's busiest replica, mean over the views
    net_tpot_ratio            median over requests of TPOT / the baseline's TPOT at the same batch bucket
    draft_acceptance          accepted / drafted tokens
    draft_coverage            accepted / output tokens
    load_over_bound           part of the views in which a replica's load is over load_bound * mean
    delivered_over_predicted  cached tokens the engines reported / tokens the index promised
    transfer_share            median over requests sent ahead of transfer / TTFT
    load_per_replica          requests in flight per ready replica, mean over the views
    invalid_output_rate       answers that had to be JSON and are not / those that had to be
    quality_loss              part of the items of the lever's evaluations that it lost, in the trigger's cut
    effective_mismatch        part of the lever's replicas that run another revision than it asked for, over the views

The batch is a mean over time, not over requests: requests of a burst meet the batch that they make, but few are
admitted while it lasts. A signal without any sample is None, never 0.

At a high temperature fewer drafts are accepted, by design. So a signal that is watched for each temperature apart is,
without a cut, that of the temperature at which the lever does best (`Watched.by_temperature`): a change of the mix
moves no signal, and a temperature that does badly is the matter of the trigger that has it as its cut.
"""

from collections.abc import Callable, Mapping, Sequence
from statistics import median

import msgspec

from trimtab.core.cuts import Cut, batch_bucket, belongs, temperature_bucket
from trimtab.core.decision import FleetView, ReplicaView
from trimtab.core.evidence import Window
from trimtab.core.lever import TriggerSignal
from trimtab.core.quality_scores import Scores
from trimtab.core.record import RequestRecord
from trimtab.core.types import ReplicaState
from trimtab.rollout.answer import ALL_TRAFFIC
from trimtab.rollout.quality import joined

IN_FLIGHT_TRIVIAL = 2
"""A replica with fewer requests is not over a load bound, however idle the others are."""


class Signal(msgspec.Struct, frozen=True):
    """A value with its number of samples; None is unknown."""

    value: float | None
    samples: int


class Watched(msgspec.Struct, frozen=True, kw_only=True):
    """What the signals of one lever are about.

    `replicas`: where the lever acts, None for all. `baseline_tpot_ms`: TPOT without the lever by batch bucket
    (`tpot_by_batch`). `cut`: only requests of this cut count. `revision`: what its replicas were to run, None if it is
    not about one. `scores`: the evaluations of what it moves. `by_temperature`: other triggers watch this signal
    for each temperature apart.
    """

    replicas: tuple[str, ...] | None = None
    load_bound: float = 1.25
    baseline_tpot_ms: Mapping[str, float] = {}
    cut: Cut | None = None
    revision: str | None = None
    scores: tuple[Scores, ...] = ()
    by_temperature: bool = False


def signals(
    records: Sequence[RequestRecord],
    views: Sequence[FleetView],
    window: Window,
    watched: Watched,
) -> dict[TriggerSignal, Signal]:
    """Return every signal over the window: requests that ended in it, views that were taken in it."""
    recent = [
        one
        for one in records
        if window.start_s <= one.finished_at_s <= window.end_s
        and one.ok
        and _is_mine(one.replica, watched)
        and belongs(one, watched.cut)
    ]
    seen = [view for view in views if window.start_s <= view.at_s <= window.end_s]
    return {
        TriggerSignal.BATCH: _batch(seen, watched),
        TriggerSignal.NET_TPOT_RATIO: _best(
            recent, watched, lambda some: _net_tpot_ratio(some, watched.baseline_tpot_ms), min
        ),
        TriggerSignal.DRAFT_ACCEPTANCE: _best(recent, watched, _acceptance, max),
        TriggerSignal.DRAFT_COVERAGE: _best(recent, watched, _coverage, max),
        TriggerSignal.LOAD_OVER_BOUND: _load_over_bound(seen, watched.load_bound),
        TriggerSignal.DELIVERED_OVER_PREDICTED: _delivered(recent),
        TriggerSignal.TRANSFER_SHARE: _transfer_share(recent),
        TriggerSignal.LOAD_PER_REPLICA: _load_per_replica(seen),
        TriggerSignal.INVALID_OUTPUT_RATE: _invalid(recent),
        TriggerSignal.QUALITY_LOSS: _quality_loss(watched),
        TriggerSignal.EFFECTIVE_MISMATCH: _mismatch(seen, watched),
    }


def tpot_by_batch(records: Sequence[RequestRecord], *, min_requests: int = 5) -> dict[str, float]:
    """Return the median TPOT by batch bucket of requests served without the lever, where there are enough."""
    found: dict[str, list[float]] = {}
    for one in records:
        if one.ok and one.tpot_ms is not None and one.batch_at_admission is not None:
            found.setdefault(batch_bucket(one.batch_at_admission), []).append(one.tpot_ms)
    return {
        bucket: median(values)
        for bucket, values in sorted(found.items())
        if len(values) >= min_requests
    }


def _batch(views: Sequence[FleetView], watched: Watched) -> Signal:
    running: dict[str, list[int]] = {}
    for view in views:
        for replica in view.replicas:
            if _is_mine(replica.id, watched):
                busy = min(replica.slots, replica.in_flight)
                running.setdefault(replica.id, []).append(busy)
    means = [sum(values) / len(values) for values in running.values()]
    return Signal(max(means, default=None), len(views) if means else 0)


def _best(
    records: Sequence[RequestRecord],
    watched: Watched,
    signal_of: Callable[[Sequence[RequestRecord]], Signal],
    best: Callable[..., Signal],
) -> Signal:
    """Return a signal over all requests, or over those of the temperature at which it is best."""
    if not watched.by_temperature or watched.cut is not None:
        return signal_of(records)
    groups: dict[str | None, list[RequestRecord]] = {}
    for one in records:
        groups.setdefault(temperature_bucket(one.temperature), []).append(one)
    found = [each for each in map(signal_of, groups.values()) if each.value is not None]
    return best(found, key=lambda each: each.value, default=Signal(None, 0))


def _net_tpot_ratio(records: Sequence[RequestRecord], baseline: Mapping[str, float]) -> Signal:
    ratios = []
    for one in records:
        if one.tpot_ms is None or one.batch_at_admission is None or one.looping is True:
            continue
        before = baseline.get(batch_bucket(one.batch_at_admission))
        if before:
            ratios.append(one.tpot_ms / before)
    return Signal(median(ratios) if ratios else None, len(ratios))


def _acceptance(records: Sequence[RequestRecord]) -> Signal:
    pairs = [
        (one.drafting.accepted, one.drafting.drafted)
        for one in records
        if one.drafting.accepted is not None and one.drafting.drafted
    ]
    drafted = sum(all_ for _, all_ in pairs)
    return Signal(sum(good for good, _ in pairs) / drafted if drafted else None, len(pairs))


def _coverage(records: Sequence[RequestRecord]) -> Signal:
    pairs = [
        (one.drafting.accepted, one.tokens.output)
        for one in records
        if one.drafting.accepted is not None and one.tokens.output
    ]
    output = sum(all_ for _, all_ in pairs)
    return Signal(sum(good for good, _ in pairs) / output if output else None, len(pairs))


def _load_over_bound(views: Sequence[FleetView], bound: float) -> Signal:
    if not views:
        return Signal(None, 0)
    over = sum(any(_is_over(one, view, bound) for one in view.replicas) for view in views)
    return Signal(over / len(views), len(views))


def _is_over(replica: ReplicaView, view: FleetView, bound: float) -> bool:
    mean = sum(_load(one) for one in view.replicas) / len(view.replicas)
    return replica.in_flight >= IN_FLIGHT_TRIVIAL and _load(replica) > bound * mean


def _load(replica: ReplicaView) -> int:
    return replica.prefill_tokens_outstanding + replica.decode_tokens_outstanding


def _delivered(records: Sequence[RequestRecord]) -> Signal:
    pairs = [
        (one.tokens.delivered, one.tokens.predicted)
        for one in records
        if one.tokens.delivered is not None and one.tokens.predicted
    ]
    predicted = sum(all_ for _, all_ in pairs)
    return Signal(
        sum(min(got, all_) for got, all_ in pairs) / predicted if predicted else None, len(pairs)
    )


def _transfer_share(records: Sequence[RequestRecord]) -> Signal:
    shares = [
        one.phases.transfer_ms / one.ttft_ms
        for one in records
        if one.prefill_replica is not None and one.phases.transfer_ms is not None and one.ttft_ms
    ]
    return Signal(median(shares) if shares else None, len(shares))


def _load_per_replica(views: Sequence[FleetView]) -> Signal:
    loads = []
    for view in views:
        ready = [one for one in view.replicas if one.state is ReplicaState.READY]
        if ready:
            loads.append(sum(one.in_flight for one in ready) / len(ready))
    return Signal(sum(loads) / len(loads) if loads else None, len(loads))


def _invalid(records: Sequence[RequestRecord]) -> Signal:
    known = [one.output_valid for one in records if one.output_valid is not None]
    return Signal(known.count(False) / len(known) if known else None, len(known))


def _quality_loss(watched: Watched) -> Signal:
    cut = ALL_TRAFFIC if watched.cut is None else str(watched.cut)
    found = joined(watched.scores).get(cut)
    return Signal(None, 0) if found is None else Signal(found.loss, found.n)


def _mismatch(views: Sequence[FleetView], watched: Watched) -> Signal:
    if watched.revision is None or watched.replicas is None:
        return Signal(None, 0)
    seen = [
        replica.revision != watched.revision
        for view in views
        for replica in view.replicas
        if replica.state is ReplicaState.READY and _is_mine(replica.id, watched)
    ]
    return Signal(seen.count(True) / len(seen) if seen else None, len(seen))


def _is_mine(replica: str | None, watched: Watched) -> bool:
    return watched.replicas is None or replica in watched.replicas
