"""Holds decisions against what came of them: predicted milliseconds against the wait for the first token."""

import msgspec

from trimtab.core.handover import HandOverOutcome, PrefillPlace
from trimtab.core.record import RequestRecord
from trimtab.policies.prefill_pool import PrefillPool
from trimtab.runtime.recorder import Measurement


def score(pool: PrefillPool, seen: Measurement, record: RequestRecord) -> None:
    """Score the decision of a request that has ended, if it went as decided, and correct predictions by it."""
    waited_ms = _waited_ms(seen, record)
    if seen.prefill is None or waited_ms is None:
        return
    decision = seen.prefill.decision
    is_local = decision.place is PrefillPlace.LOCAL
    predicted = decision.local if is_local else decision.remote
    pool.observed(decision, waited_ms)
    error = None if predicted is None else abs(predicted.own_ms - waited_ms) / waited_ms
    seen.prefill = msgspec.structs.replace(seen.prefill, waited_ms=waited_ms, error=error)


def _waited_ms(seen: Measurement, record: RequestRecord) -> float | None:
    """Return how long a request waited for its first token after it was decided, None if it went another way."""
    passage = seen.passage
    if not record.ok or not record.stream or seen.first_s is None:
        return None
    if passage is not None and passage.outcome is not HandOverOutcome.DELIVERED:
        return None
    waited_ms = (seen.first_s - seen.decided_s) * 1000.0
    return waited_ms if waited_ms > 0.0 else None
