"""Whose fault each phase's time is: a queue behind a prefill and a decode stalled by one are the prefill's.

A replica that computes one prefill at a time serialises everything else behind it, so raw shares of time would
blame the queue and the decode for what the prefill does. The split uses measured overlaps, never a guess: where
the overlap is unknown nothing is moved, and the diagnosis lists it as unknown.
"""

import msgspec

from trimtab.core.cost import CostModel
from trimtab.core.evidence import Readings
from trimtab.diagnosis.names import Name


class Causes(msgspec.Struct, frozen=True, kw_only=True):
    """Shares (0 to 1) of the time of all requests.

    queue, prefill, transfer, decode: as measured, adding up to 1; queued_behind_prefill and stalled_decode: the
    parts of queue and decode that a prefill on the same replica causes.
    """

    queue: float
    prefill: float
    transfer: float
    decode: float
    queued_behind_prefill: float
    stalled_decode: float

    @property
    def by_prefill(self) -> float:
        """Share caused by prefills: their own time, the queue behind them, the decode they stall."""
        return self.prefill + self.queued_behind_prefill + self.stalled_decode

    @property
    def by_admission(self) -> float:
        """Share of the queue that is not behind a prefill."""
        return max(0.0, self.queue - self.queued_behind_prefill)

    @property
    def by_decode(self) -> float:
        """Share of decode that decoding itself takes."""
        return max(0.0, self.decode - self.stalled_decode)


def split_causes(readings: Readings, cost: CostModel | None) -> Causes | None:
    """Split the time of all requests by cause; None while a phase's share is unknown.

    Stalled part of decode = min(decode time beside a prefill, 1 - predicted / observed ms per token), predicted
    at the observed batch and accepted tokens per step; 0 without a cost model.
    """
    queue = readings.value(Name.QUEUE_SHARE)
    prefill = readings.value(Name.PREFILL_SHARE)
    decode = readings.value(Name.DECODE_SHARE)
    if queue is None or prefill is None or decode is None:
        return None
    behind = readings.value(Name.QUEUE_BEHIND_PREFILL_SHARE) or 0.0
    return Causes(
        queue=queue,
        prefill=prefill,
        transfer=readings.value(Name.TRANSFER_SHARE) or 0.0,
        decode=decode,
        queued_behind_prefill=queue * behind,
        stalled_decode=decode * stalled_part(readings, cost),
    )


def step_batch(readings: Readings) -> float | None:
    """Return the streams of a decode step: measured per step, else as met by a stream; None if unknown."""
    per_step = readings.value(Name.DECODE_BATCH_PER_STEP)
    return readings.value(Name.DECODE_BATCH_MEAN) if per_step is None else per_step


def stalled_part(readings: Readings, cost: CostModel | None) -> float:
    """Return the part (0 to 1) of decode time that prefills on the same replica stall; 0 if it cannot be told."""
    beside = readings.value(Name.DECODE_BESIDE_PREFILL_SHARE)
    observed = readings.value(Name.DECODE_MS_PER_TOKEN)
    batch = readings.value(Name.DECODE_BATCH_MEAN)
    if cost is None or beside is None or batch is None or not observed:
        return 0.0
    predicted = cost.tpot_ms(batch, readings.value(Name.ACCEPTED_PER_STEP))
    return min(beside, max(0.0, 1.0 - predicted / observed))
