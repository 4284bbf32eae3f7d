"""Readings from request records: time by phase, tokens by kind, batches, drafts, who waited behind what."""

import math
from collections import defaultdict
from collections.abc import Sequence

from trimtab.core.cuts import batch_bucket
from trimtab.core.evidence import Readings, Window
from trimtab.core.record import RequestRecord
from trimtab.core.stats import StatsError, percentile
from trimtab.diagnosis.names import TPOT_MS_BY_BATCH, FleetFacts, Name
from trimtab.diagnosis.tally import Tally, block_of, share_of
from trimtab.diagnosis.timeline import (
    build_timeline,
    mean_streams,
    measure_overlaps,
    weighted_quantile,
)
from trimtab.diagnosis.token_readings import add_costs, add_drafts, add_labels, add_tokens

KNOWN_SHARE_MIN = 0.5
"""Below this share of requests with known phases the time by phase counts as unknown."""

BATCH_SAMPLES_MIN = 3
"""A batch bucket with fewer requests is not reported."""


def readings_from_records(
    records: Sequence[RequestRecord],
    *,
    window: Window,
    id_prefix: str,
    fleet: FleetFacts | None = None,
) -> Readings:
    """Turn request records into readings; failed and aborted requests count only as such.

    Shares are 0 to 1, latencies milliseconds, sums in tokens. Intervals are over ten blocks of the window.
    What the records do not say is `Unknown` with the reason. With `fleet` the wait for slots, the part of the window
    in which a replica was busy and which prompts are long can be told too.
    """
    tally = Tally(window=window, source="request records", id_prefix=id_prefix)
    good = [record for record in records if record.ok]
    _add_outcomes(tally, records, good)
    _add_phases(tally, good, window)
    _add_latencies(tally, good, window)
    travel_tokens = None if fleet is None else fleet.travel_tokens
    add_tokens(tally, good, window, travel_tokens=travel_tokens)
    add_costs(tally, good)
    _add_batches(tally, good)
    add_drafts(tally, good)
    _add_overlaps(tally, good, window, fleet)
    add_labels(tally, good)
    return tally.done()


def _add_outcomes(
    tally: Tally, records: Sequence[RequestRecord], good: Sequence[RequestRecord]
) -> None:
    n = len(records)
    aborted = sum(record.client_aborted for record in records)
    looping = [record.looping for record in good if record.looping is not None]
    tally.add(Name.REQUESTS, len(good), "requests", samples=n)
    reason = "no request ended in the window"
    tally.ratio(Name.ERROR_SHARE, n - len(good) - aborted, n, "share", samples=n, reason=reason)
    tally.ratio(Name.ABORT_SHARE, aborted, n, "share", samples=n, reason=reason)
    tally.ratio(
        Name.LOOPING_SHARE,
        sum(looping),
        len(looping),
        "share",
        samples=len(looping),
        reason="no output was checked for loops",
    )


def _add_phases(tally: Tally, good: Sequence[RequestRecord], window: Window) -> None:
    names = (
        (Name.QUEUE_SHARE, Name.QUEUE_MS_MEAN, "queue_ms"),
        (Name.PREFILL_SHARE, Name.PREFILL_MS_MEAN, "prefill_ms"),
        (Name.TRANSFER_SHARE, Name.TRANSFER_MS_MEAN, "transfer_ms"),
        (Name.DECODE_SHARE, Name.DECODE_MS_MEAN, "decode_ms"),
    )
    known = [record for record in good if _phase_total_ms(record) is not None]
    if not known or len(known) < KNOWN_SHARE_MIN * len(good):
        reason = f"phases are known for {len(known)} of {len(good)} requests"
        for share_name, mean_name, _ in names:
            tally.unknown(share_name, reason)
            tally.unknown(mean_name, reason)
        tally.unknown(Name.REQUEST_MS_TOTAL, reason)
        tally.unknown(Name.UNACCOUNTED_SHARE, reason)
        return
    totals = [_phase_total_ms(record) or 0.0 for record in known]
    blocks = [block_of(record.arrived_at_s, window) for record in known]
    tally.add(Name.REQUEST_MS_TOTAL, math.fsum(totals), "ms", samples=len(known))
    for share_name, mean_name, field in names:
        untold = _untold(known, field)
        if untold:
            tally.unknown(share_name, untold)
            tally.unknown(mean_name, untold)
            continue
        parts = [float(getattr(record.phases, field) or 0.0) for record in known]
        tally.mean(mean_name, parts, blocks, "ms", reason="no request")
        share = share_of(parts, totals, blocks)
        if share is None:
            tally.unknown(share_name, "requests took no time")
        else:
            tally.add(share_name, share.value, "share", samples=len(known), interval=share.interval)
    seen = [(total, r.e2e_ms) for total, r in zip(totals, known, strict=True) if r.e2e_ms]
    whole = math.fsum(e2e for _, e2e in seen)
    missing = math.fsum(abs(e2e - total) for total, e2e in seen)
    tally.ratio(
        Name.UNACCOUNTED_SHARE,
        missing,
        whole,
        "share",
        samples=len(seen),
        reason="end-to-end times are unknown",
    )


def _untold(known: Sequence[RequestRecord], field: str) -> str:
    """Say why the mean of a phase cannot be told of requests whose other phases are known, "" where it can."""
    if field != "transfer_ms":
        return ""
    ahead = sum(one.prefill_replica is not None and one.phases.transfer_ms is None for one in known)
    return (
        f"the engine moved the KV of {ahead} requests by itself, and how long that took is in their queue"
        if ahead
        else ""
    )


def _phase_total_ms(record: RequestRecord) -> float | None:
    phases = record.phases
    parts = (phases.queue_ms, phases.prefill_ms, phases.decode_ms)
    if any(part is None for part in parts):
        return None
    return math.fsum(part or 0.0 for part in (*parts, phases.transfer_ms))


def _add_latencies(tally: Tally, good: Sequence[RequestRecord], window: Window) -> None:
    fields = (
        (Name.TTFT_MS_MEAN, "ttft_ms"),
        (Name.TPOT_MS_MEAN, "tpot_ms"),
        (Name.E2E_MS_MEAN, "e2e_ms"),
        (Name.CHUNK_GAP_MS_MEAN, "chunk_gap_ms_max"),
    )
    for name, field in fields:
        pairs = [
            (float(value), block_of(record.arrived_at_s, window))
            for record in good
            if (value := getattr(record, field)) is not None
        ]
        values, blocks = [value for value, _ in pairs], [block for _, block in pairs]
        tally.mean(name, values, blocks, "ms", reason=f"no request has a known {field}")


def _add_batches(tally: Tally, good: Sequence[RequestRecord]) -> None:
    by_bucket: dict[str, list[float]] = defaultdict(list)
    pairs: list[tuple[float, float]] = []
    for record in good:
        if record.tpot_ms is not None and record.batch_at_admission is not None:
            by_bucket[batch_bucket(record.batch_at_admission)].append(record.tpot_ms)
            pairs.append((float(record.batch_at_admission), record.tpot_ms))
    for bucket, values in sorted(by_bucket.items()):
        if len(values) >= BATCH_SAMPLES_MIN:
            name = f"{TPOT_MS_BY_BATCH}:{bucket}"
            tally.add(name, math.fsum(values) / len(values), "ms", samples=len(values))
    growth = _relative_slope(pairs)
    if growth is None:
        tally.unknown(
            Name.TPOT_GROWTH_PER_STREAM, "requests were admitted at too few different batches"
        )
    else:
        tally.add(
            Name.TPOT_GROWTH_PER_STREAM,
            growth,
            "share of TPOT at the smallest batch",
            samples=len(pairs),
        )


def _relative_slope(pairs: Sequence[tuple[float, float]]) -> float | None:
    """Return the growth of TPOT per added stream over the TPOT at the smallest batch.

    Of bucket medians, because one request that met a long prefill would tilt a line through all.
    """
    by_batch: dict[float, list[float]] = defaultdict(list)
    for batch, tpot in pairs:
        by_batch[batch].append(tpot)
    points = [
        (batch, percentile(values, 0.5))
        for batch, values in sorted(by_batch.items())
        if len(values) >= BATCH_SAMPLES_MIN
    ]
    if len(points) < 2 or points[0][1] <= 0:
        return None
    (first, low), (last, high) = points[0], points[-1]
    return (high - low) / (last - first) / low


def _add_overlaps(
    tally: Tally, good: Sequence[RequestRecord], window: Window, fleet: FleetFacts | None
) -> None:
    timeline = build_timeline(good)
    seen = sum(len(spans) for spans in timeline.values())
    found = measure_overlaps(timeline, window, None if fleet is None else fleet.slots)
    replicas = len(timeline) if fleet is None else fleet.replicas
    replica_s = replicas * window.length_s
    n, queued, decoded = seen, found.queued_s, found.decoded_s
    shares = (
        (Name.PREFILL_RUNNING_SHARE, found.prefill_running_s, replica_s, "no replica time"),
        (Name.DECODE_RUNNING_SHARE, found.decode_running_s, replica_s, "no replica time"),
        (Name.BUSY_SHARE, found.busy_s, replica_s, "no replica time"),
        (
            Name.QUEUE_BEHIND_PREFILL_SHARE,
            found.queued_behind_prefill_s,
            queued,
            "nothing was queued",
        ),
        (
            Name.DECODE_BESIDE_PREFILL_SHARE,
            found.decoded_beside_prefill_s,
            decoded,
            "nothing was decoded",
        ),
    )
    for name, part, whole, reason in shares:
        if seen:
            tally.ratio(name, part, whole, "share", samples=n, reason=reason)
        else:
            tally.unknown(name, "no request has both a replica and known phases")
    if found.queued_slots_full_s is None:
        tally.unknown(Name.QUEUE_SLOTS_FULL_SHARE, "the number of slots is unknown")
    else:
        tally.ratio(
            Name.QUEUE_SLOTS_FULL_SHARE,
            found.queued_slots_full_s,
            queued,
            "share",
            samples=n,
            reason="nothing was queued",
        )
    # Prefills that share a batch each report its whole time, so their sum would count it several times.
    tally.ratio(
        Name.PREFILL_MS_PER_TOKEN,
        1000.0 * found.prefill_union_s,
        found.prefill_tokens,
        "ms/token",
        samples=n,
        reason="no prefill with a known time and a known token count",
    )
    _add_gaps(tally, found.gaps_beside_prefill, found.gaps_alone)
    _add_decode_batch(tally, found.batch_weights, n)
    _add_kv(tally, found.kv_weights, fleet, replica_s, n)


def _add_gaps(tally: Tally, beside: tuple[float, ...], alone: tuple[float, ...]) -> None:
    pairs = ((Name.CHUNK_GAP_MS_BESIDE_PREFILL, beside), (Name.CHUNK_GAP_MS_ALONE, alone))
    for name, gaps in pairs:
        if gaps:
            tally.add(name, math.fsum(gaps) / len(gaps), "ms", samples=len(gaps))
        else:
            tally.unknown(name, "no stream with a known chunk gap was in this situation")


def _add_decode_batch(tally: Tally, weights: dict[int, float], n: int) -> None:
    quantiles = ((Name.DECODE_BATCH_P50, 0.50), (Name.DECODE_BATCH_P95, 0.95))
    means = mean_streams(weights)
    if means is None:
        names = (Name.DECODE_BATCH_MEAN, Name.DECODE_BATCH_PER_STEP)
        for name in (*names, *(name for name, _ in quantiles)):
            tally.unknown(name, "no request has both a replica and a known decode time")
        return
    note = "streams decoding at once on a replica, as met by a stream"
    tally.add(Name.DECODE_BATCH_MEAN, means[0], "streams", samples=n, note=note)
    per_step = "streams decoding at once on a replica, over the time in which any does"
    tally.add(Name.DECODE_BATCH_PER_STEP, means[1], "streams", samples=n, note=per_step)
    for name, q in quantiles:
        value = weighted_quantile(weights, q)
        if value is None:
            raise StatsError(f"batches with a mean of {means[0]} have no quantile {q}")
        tally.add(name, value, "streams", samples=n, note=note)


def _add_kv(
    tally: Tally,
    weights: dict[int, float],
    fleet: FleetFacts | None,
    replica_s: float,
    n: int,
) -> None:
    """Add KV held by running requests over the context of all slots; finished prompts can be evicted."""
    names = (Name.KV_RUNNING_SHARE, Name.KV_RUNNING_SHARE_P95)
    if fleet is None or n == 0 or replica_s <= 0:
        for name in names:
            tally.unknown(name, "slots, context or the replicas' timeline are unknown")
        return
    capacity = fleet.slots * fleet.context_tokens
    idle = max(0.0, replica_s - math.fsum(weights.values()))
    over_time = {0: idle, **weights}
    mean = math.fsum(tokens * seconds for tokens, seconds in weights.items()) / replica_s
    p95 = weighted_quantile(over_time, 0.95) or 0.0
    note = "prompt and output tokens of the requests in slots, at their final size"
    tally.add(names[0], min(1.0, mean / capacity), "share", samples=n, note=note)
    tally.add(names[1], min(1.0, p95 / capacity), "share", samples=n, note=note)
