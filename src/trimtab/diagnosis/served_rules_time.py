"""Where the time of all requests goes, from whatever a server tells of it; and what prefills stall.

Laws, in the order in which they are tried:
    shares      as counted, by phase
    times       mean times by phase over the mean end-to-end time; TPOT * (output tokens - 1) for decode, TTFT less
                the queue for prefill where the phases themselves are not told
    queue       where nothing else tells it, or where it is the larger: waiting / (waiting + running), which is the
                queue's part of request time by Little's law while both hold steady. Histograms count a wait when it
                has ended, so that a queue which grows is in none of them yet
Stalled part of decode = min(prefill's part of the engine's work, 1 - predicted / observed time per token); where the
work is not predicted, each phase counts by the time in which requests are in it.
Failure modes: Little's law on one scrape speaks of a moment and not of the window; both gauges must come from it.
"""

import msgspec

from trimtab.core.evidence import Readings
from trimtab.diagnosis.served_names import ServedName
from trimtab.diagnosis.served_rules_costs import Costs

QUEUE_OF_TTFT_MAX = 0.5
"""Up to this part of TTFT the queue is taken off it to give the prefill."""

QUEUE_GROWS_SHARE = 0.05
"""Where gauges tell so much more of a queue than histograms do, it has grown since the waits that they hold began."""


class Times(msgspec.Struct, frozen=True, kw_only=True):
    """Shares (0 to 1) of the time of all requests, None where unknown, with how each came to be known.

    `by_gauges`: the queue's share is that of requests in flight and not of their times. `stalled_decode`: part of
    request time in which prefills hold up decodes, None if it cannot be told.
    """

    queue: float | None
    prefill: float | None
    transfer: float
    decode: float | None
    stalled_decode: float | None
    basis: str
    by_gauges: bool
    names: tuple[str, ...]

    @property
    def by_prefill(self) -> float | None:
        """Share that prefills cause: their own time and the decodes they stall."""
        return None if self.prefill is None else self.prefill + (self.stalled_decode or 0.0)

    @property
    def by_decode(self) -> float | None:
        """Share of decode that decoding itself takes."""
        return None if self.decode is None else max(0.0, self.decode - (self.stalled_decode or 0.0))


def times_of(readings: Readings, costs: Costs) -> Times:
    """Return the time accounting; unknown parts stay None."""
    queue, by_gauges = _queue(readings)
    prefill, decode, names = _work(readings, queue)
    transfer = readings.value(ServedName.TRANSFER_SHARE) or 0.0
    if queue is not None and prefill is not None and decode is not None:
        left = max(0.0, 1.0 - queue - transfer)
        both = prefill + decode
        # Phases that leave out the queue, or overlap, are shares of what the queue leaves.
        if by_gauges or both > left * 1.02:
            prefill, decode = (left * prefill / both, left * decode / both) if both else (0.0, 0.0)
    elif queue is not None and decode is not None:
        decode = min(decode, max(0.0, 1.0 - queue - transfer))
    basis = "phase times of the server"
    if by_gauges:
        basis = "waiting and running requests (Little's law)"
        names = (ServedName.WAITING_MEAN, ServedName.RUNNING_MEAN, *names)
    stalled = None if decode is None else _stalled(readings, costs, prefill, decode)
    return Times(
        queue=queue,
        prefill=prefill,
        transfer=transfer,
        decode=decode,
        stalled_decode=stalled,
        basis=basis,
        by_gauges=by_gauges,
        names=names,
    )


def waiting_part(readings: Readings) -> float | None:
    """Return waiting / (waiting + running), None while either is unknown or nothing is in flight."""
    waiting = readings.value(ServedName.WAITING_MEAN)
    running = readings.value(ServedName.RUNNING_MEAN)
    if waiting is None or running is None or waiting + running <= 0:
        return None
    return waiting / (waiting + running)


def _queue(readings: Readings) -> tuple[float | None, bool]:
    """Return the queue's share and whether gauges tell it."""
    ended, waits = _ended_share(readings), waiting_part(readings)
    if ended is None:
        return waits, True
    if waits is not None and waits > ended + QUEUE_GROWS_SHARE:
        return waits, True
    return ended, False


def _ended_share(readings: Readings) -> float | None:
    """Return the queue's share of the time of requests whose wait has ended, None if it is not told."""
    share = readings.value(ServedName.QUEUE_SHARE)
    if share is not None:
        return min(1.0, share)
    queue, whole = (
        readings.value(ServedName.QUEUE_MS_MEAN),
        readings.value(ServedName.E2E_MS_MEAN),
    )
    return min(1.0, queue / whole) if queue is not None and whole else None


def _work(
    readings: Readings, queue: float | None
) -> tuple[float | None, float | None, tuple[str, ...]]:
    """Return prefill's and decode's share and the names behind them."""
    prefill = readings.value(ServedName.PREFILL_SHARE)
    decode = readings.value(ServedName.DECODE_SHARE)
    names: tuple[str, ...] = (ServedName.PREFILL_SHARE, ServedName.DECODE_SHARE)
    if prefill is not None and decode is not None:
        return prefill, decode, names
    whole = readings.value(ServedName.E2E_MS_MEAN)
    prefill_ms, decode_ms = prefill_ms_of(readings), decode_ms_of(readings)
    total = whole or _sum(readings.value(ServedName.TTFT_MS_MEAN), decode_ms)
    if prefill is None and prefill_ms is None and total and queue is not None:
        # TTFT holds the queue: what it has beyond it is prefill, unless the queue is so large that its error is too.
        first = readings.value(ServedName.TTFT_MS_MEAN)
        if first is not None and queue * total <= QUEUE_OF_TTFT_MAX * first:
            prefill_ms = first - queue * total
    names = (
        ServedName.PREFILL_MS_MEAN,
        ServedName.DECODE_MS_MEAN,
        ServedName.TTFT_MS_MEAN,
        ServedName.TPOT_MS_MEAN,
        ServedName.OUTPUT_LENGTH_MEAN,
        ServedName.E2E_MS_MEAN,
    )
    if not total:
        return prefill, decode, names
    return (
        min(1.0, prefill_ms / total) if prefill is None and prefill_ms is not None else prefill,
        min(1.0, decode_ms / total) if decode is None and decode_ms is not None else decode,
        names,
    )


def _sum(one: float | None, other: float | None) -> float | None:
    return None if one is None or other is None else one + other


def decode_ms_of(readings: Readings) -> float | None:
    """Return mean milliseconds of decode: as told, else TPOT * (output tokens - 1), else E2E - TTFT."""
    told = readings.value(ServedName.DECODE_MS_MEAN)
    if told is not None:
        return told
    per_token = readings.value(ServedName.TPOT_MS_MEAN)
    tokens = readings.value(ServedName.OUTPUT_LENGTH_MEAN)
    if per_token is not None and tokens is not None:
        return per_token * max(0.0, tokens - 1.0)
    whole, first = (
        readings.value(ServedName.E2E_MS_MEAN),
        readings.value(ServedName.TTFT_MS_MEAN),
    )
    return None if whole is None or first is None or whole < first else whole - first


def prefill_ms_of(readings: Readings) -> float | None:
    """Return mean milliseconds of prefill: as told, else TTFT less the queue where TTFT holds it."""
    told = readings.value(ServedName.PREFILL_MS_MEAN)
    first, queue = (
        readings.value(ServedName.TTFT_MS_MEAN),
        readings.value(ServedName.QUEUE_MS_MEAN),
    )
    if told is not None or first is None or queue is None:
        return told
    # A TTFT that leaves out the wait is shorter than it: then it is the prefill.
    return first if queue > first else first - queue


def _stalled(
    readings: Readings, costs: Costs, prefill: float | None, decode: float
) -> float | None:
    observed = readings.value(ServedName.TPOT_MS_MEAN)
    if costs.token_ms is None or not observed:
        return None
    work, own = costs.prefill_busy_share, costs.decode_busy_share
    if work is None or own is None:
        work, own = _present(readings, prefill), _present(readings, decode)
    if work is None or own is None:
        return None
    part = work / (work + own) if work + own > 0 else 0.0
    return decode * min(part, max(0.0, 1.0 - costs.token_ms / observed))


def _present(readings: Readings, share: float | None) -> float | None:
    """Return the part of the time in which a rank has a request in a phase, at most: share * requests in flight."""
    running, waiting = (
        readings.value(ServedName.RUNNING_MEAN),
        readings.value(ServedName.WAITING_MEAN),
    )
    if share is None or running is None:
        return None
    ranks = max(1.0, readings.value(ServedName.RANKS) or 1.0)
    return min(1.0, share * (running + (waiting or 0.0)) / ranks)
