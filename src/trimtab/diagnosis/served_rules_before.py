"""Pages of an earlier day or of another arm beside those of now: the comparisons that they make possible.

Law: both sides are read in the same words, so that time per token, chunk gaps, batch and draft acceptance stand beside
each other as the servers counted them. A median is known no finer than its bucket: of two in one bucket only that they
differ by less than its width.
Failure mode: what else changed between the two (prompts, load) is not seen here; only the batch is.
"""

import math

import msgspec

from trimtab.core.evidence import Readings
from trimtab.diagnosis.served_facts import AcceptanceSlice, ArmTimes, GapChange, ServedFacts
from trimtab.diagnosis.served_names import ServedName
from trimtab.diagnosis.served_rules_compare import SLICE_SAME_SHARE
from trimtab.diagnosis.served_rules_costs import batch_of
from trimtab.diagnosis.served_rules_warnings import bounds_of

SAME_BUCKET_PART = 0.5
"""Two medians in one bucket count as equal where its width is below this part of the change of the mean."""


def facts_against(facts: ServedFacts, before: Readings, after: Readings) -> ServedFacts:
    """Return the facts with the comparisons that two sets of readings make; what a person told stands."""
    arms, gaps, acceptance = facts.arms, facts.gaps, facts.acceptance
    if arms is None:
        arms = (_arm(before), _arm(after))
    if gaps is None:
        gaps = _gaps(before, after)
    if not acceptance:
        acceptance = _pooled(before, after)
    return msgspec.structs.replace(facts, arms=arms, gaps=gaps, acceptance=acceptance)


def _arm(readings: Readings) -> ArmTimes:
    return ArmTimes(
        tpot_ms=readings.value(ServedName.TPOT_MS_MEAN),
        chunk_gap_ms=readings.value(ServedName.CHUNK_GAP_MS_MEAN),
        tokens_per_chunk=readings.value(ServedName.TOKENS_PER_CHUNK_MEAN),
        batch=batch_of(readings),
    )


def _gaps(before: Readings, after: Readings) -> GapChange | None:
    """Return how gaps changed at a server that now receives prompts from another one, None if it does not."""
    if after.value(ServedName.TRANSFER_MS_MEAN) is None:
        return None
    for mean, median in (
        (ServedName.CHUNK_GAP_MS_MEAN, ServedName.CHUNK_GAP_MS_P50),
        (ServedName.TPOT_MS_MEAN, ServedName.TPOT_MS_P50),
    ):
        old, new = before.value(mean), after.value(mean)
        if old is None or new is None:
            continue
        middle = _medians(before, after, median, abs(new - old))
        return GapChange(
            mean_before=old,
            mean_after=new,
            median_before=None if middle is None else middle[0],
            median_after=None if middle is None else middle[1],
        )
    return None


def _medians(
    before: Readings, after: Readings, name: str, mean_change: float
) -> tuple[float, float] | None:
    """Return both medians as far as their order is known, None if it is not."""
    old, new = bounds_of(before, name), bounds_of(after, name)
    values = before.value(name), after.value(name)
    if old is None or new is None or values[0] is None or values[1] is None:
        return None
    if old[1] <= new[0] or new[1] <= old[0]:
        return values[0], values[1]
    width = max(old[1], new[1]) - min(old[0], new[0])
    same = math.isfinite(width) and width < SAME_BUCKET_PART * mean_change
    return (old[1], old[1]) if same else None


def _pooled(before: Readings, after: Readings) -> tuple[AcceptanceSlice, ...]:
    """Return the change of acceptance over all traffic as one slice; nothing where it stayed."""
    old, new = (each.value(ServedName.DRAFT_ACCEPTANCE_SHARE) for each in (before, after))
    if old is None or new is None or abs(new - old) <= SLICE_SAME_SHARE:
        return ()
    whole = AcceptanceSlice(
        name="all traffic",
        share_before=1.0,
        share_after=1.0,
        acceptance_before=old,
        acceptance_after=new,
    )
    return (whole,)
