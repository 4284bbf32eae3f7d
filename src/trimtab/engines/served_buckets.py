"""A histogram's series into cumulative counts at finite edges.

Series of one rank that differ in other labels are added at the edges that all of them have, where their counts are
exact. What cannot be is not repaired: buckets that fall, or counts that are no numbers, are left out, and count and
sum are kept where they can still be told.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

from trimtab.core.served import Buckets
from trimtab.engines.prom import Sample
from trimtab.engines.served_notes import NoteBook

Group = frozenset[tuple[str, str]]
_FALLS = "its buckets fall from one edge to the next: only count and sum were read"
_NOT_NUMBERS = "a bucket has no number that a count can be: only count and sum were read"
_NO_INF = "there is no +Inf bucket: the count was read as all there is"
_COUNTS_DIFFER = "its +Inf bucket and its count differ: the bucket was read"
_NO_COUNT = "neither a count nor a +Inf bucket: left out"
_BAD_SUM = "its sum is not a number that a sum can be: no mean"


def buckets_of(
    parts: Mapping[str, Sequence[Sample]], *, scale: float, metric: str, notes: NoteBook
) -> Buckets | None:
    """Return the histogram of one rank; None if not even its count is told.

    `scale` turns edges and sum into our unit.
    """
    groups = _grouped(parts.get("_bucket", ()))
    finite = _cumulative(groups, metric, notes)
    infinite = _infinite(groups)
    count = _added(parts.get("_count", ()))
    total = infinite if infinite is not None else count
    if total is None:
        notes.add("broken", _NO_COUNT, metric)
        return None
    if groups and infinite is None:
        notes.add("broken", _NO_INF, metric)
    elif infinite is not None and count is not None and infinite != count:
        notes.add("broken", _COUNTS_DIFFER, metric)
    edges = sorted(finite)
    cumulative = [finite[edge] for edge in edges]
    if any(now < before for before, now in pairwise([*cumulative, total])):
        notes.add("broken", _FALLS, metric)
        edges, cumulative = [], []
    sums = parts.get("_sum", ())
    added = _added(sums)
    if sums and added is None:
        notes.add("broken", _BAD_SUM, metric)
    return Buckets(
        edges=tuple(edge * scale for edge in edges),
        cumulative=tuple(cumulative),
        total=total,
        sum=None if added is None else added * scale,
    )


def _grouped(samples: Sequence[Sample]) -> dict[Group, dict[float, float]]:
    """Return counts by edge for each set of other labels."""
    groups: dict[Group, dict[float, float]] = {}
    for sample in samples:
        try:
            edge = float(sample.labels["le"])
        except (KeyError, ValueError):
            continue
        if math.isnan(edge):
            continue
        group = frozenset(item for item in sample.labels.items() if item[0] != "le")
        counts = groups.setdefault(group, {})
        # Two spellings of one edge are one edge; the larger count holds the smaller.
        counts[edge] = max(sample.value, counts.get(edge, sample.value))
    return groups


def _cumulative(
    groups: Mapping[Group, Mapping[float, float]], metric: str, notes: NoteBook
) -> dict[float, float]:
    if not groups:
        return {}
    common = set.intersection(*(set(counts) for counts in groups.values()))
    finite = {
        edge: math.fsum(counts[edge] for counts in groups.values())
        for edge in common
        if math.isfinite(edge) and _all_count(counts[edge] for counts in groups.values())
    }
    if len(finite) < sum(math.isfinite(edge) for edge in common):
        notes.add("broken", _NOT_NUMBERS, metric)
        return {}
    return finite


def _infinite(groups: Mapping[Group, Mapping[float, float]]) -> float | None:
    counts = [group.get(math.inf, math.nan) for group in groups.values()]
    return math.fsum(counts) if counts and _all_count(counts) else None


def _added(samples: Sequence[Sample]) -> float | None:
    values = [sample.value for sample in samples]
    return math.fsum(values) if values and _all_count(values) else None


def _all_count(values: Iterable[float]) -> bool:
    return all(0 <= value < math.inf for value in values)
