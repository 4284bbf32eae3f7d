"""What speaks for and against a dominant (phase, resource): each check is independent of the others.

A check whose readings are unknown says nothing. Confidence starts at even odds; every support doubles the odds,
every contradiction quarters them, and few requests pull the result towards zero.
"""

from collections.abc import Callable, Sequence

from trimtab.core.cost import CostModel
from trimtab.core.evidence import Readings, Unknown
from trimtab.core.findings import Finding
from trimtab.core.types import Phase, Resource
from trimtab.diagnosis.binding import (
    BEHIND_PREFILL_MIN_SHARE,
    KV_FULL_SHARE,
    evictions_bind,
    kv_binds,
)
from trimtab.diagnosis.causes import Causes, stalled_part
from trimtab.diagnosis.disputes import disputes
from trimtab.diagnosis.names import Name

SUPPORT_ODDS = 2.0
CONTRADICTION_ODDS = 0.25
CONFIDENCE_MAX = 0.95
HALF_CONFIDENCE_REQUESTS = 10
"""With this many requests half of the confidence is left."""

COST_AGREES_WITHIN = 1.5
"""Observed and calibrated costs agree if neither is more than this many times the other."""

Checked = tuple[bool, Finding] | None
"""(speaks for it, what was found), or None when the readings cannot tell."""


def confidence_of(supports: int, contradictions: int, requests: float) -> float:
    """Return the confidence (0 to 0.95) of a diagnosis; never rises with a contradiction."""
    odds = SUPPORT_ODDS**supports * CONTRADICTION_ODDS**contradictions
    sampled = requests / (requests + HALF_CONFIDENCE_REQUESTS) if requests > 0 else 0.0
    return min(CONFIDENCE_MAX, odds / (1.0 + odds) * sampled)


def corroborate(
    phase: Phase,
    resource: Resource,
    readings: Readings,
    causes: Causes,
    cost: CostModel | None,
) -> tuple[tuple[Finding, ...], tuple[Finding, ...]]:
    """Return (supports, contradicts) of one claimed bottleneck."""
    checks: list[Checked] = [_share(phase, readings, causes), _accounted(readings)]
    match phase:
        case Phase.PREFILL if resource is Resource.COMPUTE:
            checks += [_prefill_runs(readings), _prefill_cost(readings, cost), _gaps(readings)]
        case Phase.PREFILL:
            checks += [_evicted(readings), _prefill_runs(readings)]
        case Phase.DECODE:
            checks += [_step_growth(resource, readings), _step_cost(readings, cost)]
        case Phase.QUEUE if resource is Resource.ADMISSION:
            checks += [_slots_full(readings), _views_full(readings), _deferred(readings)]
            checks += [_not_idle(readings)]
        case Phase.QUEUE:
            checks += [_kv(readings)]
        case Phase.TRANSFER:
            pass
    return weighed(checks, readings)


def weighed(
    checks: Sequence[Checked], readings: Readings
) -> tuple[tuple[Finding, ...], tuple[Finding, ...]]:
    """Return (supports, contradicts) of checks; a disputed reading that one of them rests on contradicts as well."""
    told = [check for check in checks if check is not None]
    against = disputes([finding for _, finding in told], readings)
    return (
        tuple(finding for speaks_for, finding in told if speaks_for),
        (*(finding for speaks_for, finding in told if not speaks_for), *against),
    )


def _found(speaks_for: bool, text: str, readings: Readings, *names: Name) -> Checked:
    return speaks_for, Finding(text=text, evidence=readings.ids(*names))


def _share(phase: Phase, readings: Readings, causes: Causes) -> Checked:
    match phase:
        case Phase.PREFILL:
            text = (
                f"prefills cause {causes.by_prefill:.1%} of request time: {causes.prefill:.1%} themselves, "
                f"{causes.queued_behind_prefill:.1%} queued behind one, {causes.stalled_decode:.1%} stalled by one"
            )
            names = (Name.PREFILL_SHARE, Name.QUEUE_SHARE, Name.QUEUE_BEHIND_PREFILL_SHARE)
        case Phase.DECODE:
            text = f"decode itself takes {causes.by_decode:.1%} of request time"
            names = (Name.DECODE_SHARE, Name.DECODE_BESIDE_PREFILL_SHARE, Name.DECODE_MS_PER_TOKEN)
        case Phase.QUEUE:
            text = f"{causes.by_admission:.1%} of request time is queueing that no prefill causes"
            names = (Name.QUEUE_SHARE, Name.QUEUE_BEHIND_PREFILL_SHARE, Name.QUEUE_SLOTS_FULL_SHARE)
        case Phase.TRANSFER:
            text = f"transfer takes {causes.transfer:.1%} of request time"
            names = (Name.TRANSFER_SHARE, Name.TRANSFER_MS_MEAN, Name.REQUEST_MS_TOTAL)
    return _found(True, text, readings, *names)


def _accounted(readings: Readings) -> Checked:
    missing = readings.value(Name.UNACCOUNTED_SHARE)
    if missing is None or missing < 0.10:
        return None
    text = f"{missing:.0%} of end-to-end time is in no phase: the shares may blame the wrong one"
    return _found(False, text, readings, Name.UNACCOUNTED_SHARE)


def _prefill_runs(readings: Readings) -> Checked:
    running = readings.value(Name.PREFILL_RUNNING_SHARE)
    if running is None or 0.25 <= running < 0.5:
        return None
    text = f"a replica has a prefill running {running:.0%} of the time"
    return _found(running >= 0.5, text, readings, Name.PREFILL_RUNNING_SHARE)


def _prefill_cost(readings: Readings, cost: CostModel | None) -> Checked:
    observed = readings.value(Name.PREFILL_MS_PER_TOKEN)
    if cost is None or not observed or cost.prefill_ms_per_token <= 0:
        return None
    ratio = observed / cost.prefill_ms_per_token
    # Prefills that share a batch are cheaper than one alone: that speaks for nothing and against nothing.
    if ratio <= 1.0 / COST_AGREES_WITHIN or COST_AGREES_WITHIN <= ratio < 2.0 * COST_AGREES_WITHIN:
        return None
    agrees = ratio < COST_AGREES_WITHIN
    text = (
        f"prefill costs {observed:.2f} ms per computed token under load "
        f"against {cost.prefill_ms_per_token:.2f} ms alone"
    )
    return _found(agrees, text, readings, Name.PREFILL_MS_PER_TOKEN)


def _gaps(readings: Readings) -> Checked:
    beside = readings.value(Name.CHUNK_GAP_MS_BESIDE_PREFILL)
    alone = readings.value(Name.CHUNK_GAP_MS_ALONE)
    if beside is None or not alone or 1.0 <= beside / alone < 2.0:
        return None
    text = (
        f"the longest gap of a stream is {beside:.0f} ms when a prefill runs beside it "
        f"and {alone:.0f} ms when none does"
    )
    names = (Name.CHUNK_GAP_MS_BESIDE_PREFILL, Name.CHUNK_GAP_MS_ALONE)
    return _found(beside >= 2.0 * alone, text, readings, *names)


def _evicted(readings: Readings) -> Checked:
    text = evictions_bind(readings)
    if text is None:
        return None
    names = (Name.DELIVERED_OVER_PREDICTED, Name.PREDICTED_TOKENS, Name.DELIVERED_TOKENS)
    return _found(True, text, readings, *names)


def _kv(readings: Readings) -> Checked:
    used = readings.value(Name.KV_RUNNING_SHARE_P95)
    if used is None:
        return None
    text = kv_binds(readings)
    if text is not None:
        return _found(True, text, readings, Name.KV_RUNNING_SHARE_P95, Name.PREEMPTIONS_PER_S)
    if used < KV_FULL_SHARE / 2.0:
        text = f"only {used:.0%} of the KV cache is in use by running requests"
        return _found(False, text, readings, Name.KV_RUNNING_SHARE_P95)
    return None


def _step_growth(resource: Resource, readings: Readings) -> Checked:
    growth = readings.value(Name.TPOT_GROWTH_PER_STREAM)
    if growth is None:
        return None
    flat = growth < 0.25
    text = f"TPOT grows by {growth:.0%} of its smallest value per added stream"
    bandwidth = resource is Resource.MEMORY_BANDWIDTH
    return _found(flat is bandwidth, text, readings, Name.TPOT_GROWTH_PER_STREAM)


def _step_cost(readings: Readings, cost: CostModel | None) -> Checked:
    observed = readings.value(Name.DECODE_MS_PER_TOKEN)
    batch = readings.value(Name.DECODE_BATCH_MEAN)
    if cost is None or batch is None or not observed:
        return None
    predicted = cost.tpot_ms(batch, readings.value(Name.ACCEPTED_PER_STEP))
    own = observed * (1.0 - stalled_part(readings, cost))
    ratio = own / predicted if predicted > 0 else float("inf")
    agrees = 1.0 / COST_AGREES_WITHIN < ratio < COST_AGREES_WITHIN
    text = f"a token takes {own:.1f} ms apart from stalls, against {predicted:.1f} ms calibrated at that batch"
    return _found(agrees, text, readings, Name.DECODE_MS_PER_TOKEN, Name.DECODE_BATCH_MEAN)


def _slots_full(readings: Readings) -> Checked:
    full = readings.value(Name.QUEUE_SLOTS_FULL_SHARE)
    if full is None:
        return None
    text = f"{full:.0%} of the queued time every slot of the replica was taken"
    return _found(full >= BEHIND_PREFILL_MIN_SHARE, text, readings, Name.QUEUE_SLOTS_FULL_SHARE)


def _views_full(readings: Readings) -> Checked:
    full = readings.value(Name.WAITING_SLOTS_FULL_SHARE)
    if full is None:
        return None
    text = f"in {full:.0%} of the moments with a waiting request its replica had no free slot"
    return _found(full >= 0.5, text, readings, Name.WAITING_SLOTS_FULL_SHARE, Name.WAITING_SHARE)


def _deferred(readings: Readings) -> Checked:
    deferred = readings.value(Name.REQUESTS_DEFERRED)
    if not deferred:
        return None
    text = f"the engines say that {deferred:.0f} requests wait for a slot"
    return _found(True, text, readings, Name.REQUESTS_DEFERRED)


def _not_idle(readings: Readings) -> Checked:
    busy = readings.value(Name.BUSY_SHARE)
    if busy is None or busy >= 0.3:
        return None
    text = (
        f"replicas are busy only {busy:.0%} of the time: more of them would not shorten the queue"
    )
    return _found(False, text, readings, Name.BUSY_SHARE)


RuledOut = tuple[Name, Callable[[float], bool], str]

_RULED_OUT: tuple[RuledOut, ...] = (
    (
        Name.KV_RUNNING_SHARE_P95,
        lambda used: used <= KV_FULL_SHARE,
        "KV capacity: {:.0%} is in use",
    ),
    (Name.QUEUE_SHARE, lambda share: share < 0.05, "queueing: {:.1%} of request time"),
    (
        Name.TRANSFER_SHARE,
        lambda share: share == 0.0,
        "communication: {:.0%} of request time is transfer",
    ),
    (Name.ERROR_SHARE, lambda share: share < 0.01, "errors: {:.1%} of requests"),
    (
        Name.QUEUE_SLOTS_FULL_SHARE,
        lambda full: full < 0.10,
        "too few slots: for {:.0%} of the queued time all were taken",
    ),
)


def ruled_out(readings: Readings) -> tuple[Finding, ...]:
    """Return what the readings exclude as a bottleneck."""
    found: list[Finding] = []
    for name, excludes, text in _RULED_OUT:
        value = readings.value(name)
        if (
            value is not None
            and excludes(value)
            and not (name is Name.KV_RUNNING_SHARE_P95 and kv_binds(readings))
        ):
            found.append(Finding(text=text.format(value), evidence=readings.ids(name)))
    return tuple(found)


def unknowns(readings: Readings, names: Sequence[str]) -> tuple[Finding, ...]:
    """Return what is not known, with the reasons."""
    found = (readings.get(name) for name in names)
    return tuple(
        Finding(text=f"{item.name}: {item.reason}") for item in found if isinstance(item, Unknown)
    )
