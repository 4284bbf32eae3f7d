"""What ran when on each replica, rebuilt from request records: who waited behind what.

Each request with known phases gives three spans on its replica, in this order: queue, prefill, decode (which
ends when the request finished; what lies between prefill and decode is transfer). Overlaps of the spans of
different requests then tell causes that no single request can: time queued while another prefill ran, time
queued while every slot was taken, decode time beside a prefill, how many streams decoded at once.
Regime: exact as far as the engine's phase times are; a request still running at the end of the window is not
seen, so the last second or so looks less busy than it was.
"""

import bisect
from collections import defaultdict
from collections.abc import Iterable, Sequence

import msgspec

from trimtab.core.evidence import Window
from trimtab.core.record import RequestRecord


class Span(msgspec.Struct, frozen=True, order=True):
    """A stretch of time in seconds."""

    start_s: float
    end_s: float

    @property
    def length_s(self) -> float:
        """Length in seconds, never negative."""
        return max(0.0, self.end_s - self.start_s)


class RequestSpans(msgspec.Struct, frozen=True, kw_only=True):
    """One request's spans on its replica."""

    record: RequestRecord
    queue: Span
    prefill: Span
    decode: Span


Timeline = dict[str, tuple[RequestSpans, ...]]
"""Spans by replica."""


def build_timeline(records: Iterable[RequestRecord]) -> Timeline:
    """Return the spans of all requests whose replica and phases are known; the others are left out."""
    by_replica: dict[str, list[RequestSpans]] = defaultdict(list)
    for record in records:
        spans = _spans(record)
        if spans is not None and record.replica is not None:
            by_replica[record.replica].append(spans)
    return {replica: tuple(found) for replica, found in sorted(by_replica.items())}


def _spans(record: RequestRecord) -> RequestSpans | None:
    phases = record.phases
    if phases.queue_ms is None or phases.prefill_ms is None or phases.decode_ms is None:
        return None
    start = record.arrived_at_s + phases.queue_ms / 1000.0
    first = start + phases.prefill_ms / 1000.0
    return RequestSpans(
        record=record,
        queue=Span(record.arrived_at_s, start),
        prefill=Span(start, first),
        decode=Span(
            max(first, record.finished_at_s - phases.decode_ms / 1000.0), record.finished_at_s
        ),
    )


def union(spans: Iterable[Span]) -> tuple[Span, ...]:
    """Return the disjoint, sorted stretches that at least one span covers."""
    joined: list[Span] = []
    for span in sorted(span for span in spans if span.length_s > 0):
        if joined and span.start_s <= joined[-1].end_s:
            joined[-1] = Span(joined[-1].start_s, max(joined[-1].end_s, span.end_s))
        else:
            joined.append(span)
    return tuple(joined)


def overlap_s(span: Span, disjoint: Sequence[Span]) -> float:
    """Return the seconds of `span` that the sorted, disjoint stretches cover."""
    at = bisect.bisect_right(disjoint, span.start_s, key=lambda other: other.end_s)
    total = 0.0
    for other in disjoint[at:]:
        if other.start_s >= span.end_s:
            break
        total += min(span.end_s, other.end_s) - max(span.start_s, other.start_s)
    return total


def levels(spans: Iterable[Span]) -> tuple[tuple[Span, int], ...]:
    """Return how many spans cover each stretch between two changes, stretches of none left out."""
    return weighted_levels((span, 1) for span in spans)


def weighted_levels(spans: Iterable[tuple[Span, int]]) -> tuple[tuple[Span, int], ...]:
    """Return the summed weight of the spans that cover each stretch between two changes, zeros left out."""
    changes: dict[float, int] = defaultdict(int)
    for span, weight in spans:
        if span.length_s > 0:
            changes[span.start_s] += weight
            changes[span.end_s] -= weight
    found: list[tuple[Span, int]] = []
    count, since = 0, 0.0
    for at in sorted(changes):
        if count > 0:
            found.append((Span(since, at), count))
        count += changes[at]
        since = at
    return tuple(found)


class Overlaps(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds summed over requests (queued, decoded) or over replicas (running), inside a window.

    `prefill_union_s`: replica time with a prefill running, in or out of the window; `prefill_tokens`: computed in it.
    `batch_weights`: seconds of decoding streams by the number of streams that decoded at once. `kv_weights`: seconds of
    replicas by the tokens of the requests that held a slot then.
    """

    queued_s: float
    queued_behind_prefill_s: float
    queued_slots_full_s: float | None
    decoded_s: float
    decoded_beside_prefill_s: float
    prefill_running_s: float
    prefill_union_s: float
    prefill_tokens: int
    decode_running_s: float
    busy_s: float
    batch_weights: dict[int, float]
    kv_weights: dict[int, float]
    gaps_beside_prefill: tuple[float, ...]
    gaps_alone: tuple[float, ...]


def measure_overlaps(timeline: Timeline, window: Window, slots: int | None) -> Overlaps:
    """Measure who waited behind what. `slots` per replica; None leaves the wait for slots unknown."""
    parts = [_of_replica(spans, window, slots) for spans in timeline.values()]
    return Overlaps(
        queued_s=sum(part.queued_s for part in parts),
        queued_behind_prefill_s=sum(part.queued_behind_prefill_s for part in parts),
        queued_slots_full_s=None
        if slots is None
        else sum(part.queued_slots_full_s or 0.0 for part in parts),
        decoded_s=sum(part.decoded_s for part in parts),
        decoded_beside_prefill_s=sum(part.decoded_beside_prefill_s for part in parts),
        prefill_running_s=sum(part.prefill_running_s for part in parts),
        prefill_union_s=sum(part.prefill_union_s for part in parts),
        prefill_tokens=sum(part.prefill_tokens for part in parts),
        decode_running_s=sum(part.decode_running_s for part in parts),
        busy_s=sum(part.busy_s for part in parts),
        batch_weights=_added(part.batch_weights for part in parts),
        kv_weights=_added(part.kv_weights for part in parts),
        gaps_beside_prefill=tuple(gap for part in parts for gap in part.gaps_beside_prefill),
        gaps_alone=tuple(gap for part in parts for gap in part.gaps_alone),
    )


def _added(parts: Iterable[dict[int, float]]) -> dict[int, float]:
    total: dict[int, float] = defaultdict(float)
    for part in parts:
        for key, seconds in part.items():
            total[key] += seconds
    return dict(sorted(total.items()))


def _of_replica(requests: Sequence[RequestSpans], window: Window, slots: int | None) -> Overlaps:
    prefills = union(request.prefill for request in requests)
    decodes = union(request.decode for request in requests)
    held = levels(Span(request.queue.end_s, request.decode.end_s) for request in requests)
    full = union(span for span, count in held if slots is not None and count >= slots)
    weights: dict[int, float] = defaultdict(float)
    for span, count in levels(request.decode for request in requests):
        weights[count] += count * span.length_s
    beside: list[float] = []
    alone: list[float] = []
    for request in requests:
        gap = request.record.chunk_gap_ms_max
        if gap is not None:
            (beside if overlap_s(request.decode, prefills) > 0 else alone).append(gap)
    inside = (Span(window.start_s, window.end_s),)
    return Overlaps(
        queued_s=sum(request.queue.length_s for request in requests),
        queued_behind_prefill_s=sum(overlap_s(request.queue, prefills) for request in requests),
        queued_slots_full_s=sum(overlap_s(request.queue, full) for request in requests),
        decoded_s=sum(request.decode.length_s for request in requests),
        decoded_beside_prefill_s=sum(overlap_s(request.decode, prefills) for request in requests),
        prefill_running_s=sum(overlap_s(span, inside) for span in prefills),
        prefill_union_s=sum(span.length_s for span in prefills),
        prefill_tokens=sum(request.record.tokens.computed or 0 for request in requests),
        decode_running_s=sum(overlap_s(span, inside) for span in decodes),
        busy_s=sum(overlap_s(span, inside) for span in union((*prefills, *decodes))),
        batch_weights=dict(weights),
        kv_weights=_kv_weights(requests),
        gaps_beside_prefill=tuple(beside),
        gaps_alone=tuple(alone),
    )


def _kv_weights(requests: Sequence[RequestSpans]) -> dict[int, float]:
    held = [
        (Span(request.prefill.start_s, request.decode.end_s), _kv_tokens(request.record))
        for request in requests
    ]
    weights: dict[int, float] = defaultdict(float)
    for span, tokens in weighted_levels(held):
        weights[tokens] += span.length_s
    return weights


def _kv_tokens(record: RequestRecord) -> int:
    return (record.tokens.prompt or 0) + (record.tokens.output or 0)


def mean_streams(batch_weights: dict[int, float]) -> tuple[float, float] | None:
    """Return (batch that a stream meets, streams per step) from stream seconds by batch; None without any.

    A stream meets large batches more often than a step has them, because large batches are many streams.
    """
    stream_s = sum(batch_weights.values())
    step_s = sum(weight / batch for batch, weight in batch_weights.items() if batch > 0)
    if stream_s <= 0 or step_s <= 0:
        return None
    met = sum(batch * weight for batch, weight in batch_weights.items()) / stream_s
    return met, stream_s / step_s


def weighted_quantile(weights: dict[int, float], q: float) -> float | None:
    """Return the smallest key at which the weight up to it reaches `q` of all; None without weight."""
    total = sum(weights.values())
    if total <= 0:
        return None
    seen = 0.0
    for key in sorted(weights):
        seen += weights[key]
        if seen >= q * total:
            return float(key)
    return float(max(weights))
