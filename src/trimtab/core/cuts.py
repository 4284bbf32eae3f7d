"""Cuts: the subgroups by which results are judged, so that no average hides harm."""

import bisect
from enum import StrEnum

import msgspec

from trimtab.core.record import RequestRecord


class Dimension(StrEnum):
    """What a cut divides requests by."""

    INPUT_TOKENS = "input_tokens"
    OUTPUT_TOKENS = "output_tokens"
    CACHE = "cache"
    BATCH = "batch"
    CONCURRENCY = "concurrency"
    TEMPERATURE = "temperature"
    CONSTRAINT = "constraint"
    LABEL = "label"
    REPETITION = "repetition"
    HARDWARE = "hardware"
    TOPOLOGY = "topology"


class Cut(msgspec.Struct, frozen=True, order=True):
    """A subgroup of requests: one dimension and one of its values."""

    dimension: Dimension
    value: str

    def __str__(self) -> str:
        return f"{self.dimension.value}={self.value}"


TOKEN_EDGES = (256, 1024, 4096, 16384, 65536)
OUTPUT_EDGES = (16, 64, 256, 1024)
COUNT_EDGES = (2, 3, 5, 9, 17, 33, 65)
REPETITION_EDGES = (0.25, 0.5, 0.75)
HIT_SHARE = 0.5
"""From this share of the prompt on a request counts as a cache hit."""


def _bucket(value: float, edges: tuple[float, ...]) -> str:
    at = bisect.bisect_right(edges, value)
    low = "0" if at == 0 else f"{edges[at - 1]:g}"
    return f"{low}+" if at == len(edges) else f"{low}-{edges[at]:g}"


def batch_bucket(batch: int) -> str:
    """Return the bucket name of a batch size (`1` is "0-2": fewer than two streams)."""
    return _bucket(batch, COUNT_EDGES)


def cuts_of(record: RequestRecord) -> tuple[Cut, ...]:
    """Return every cut a request belongs to; a dimension whose value is unknown gives no cut."""
    tokens = record.tokens
    found: list[tuple[Dimension, str | None]] = [
        (Dimension.INPUT_TOKENS, _maybe(tokens.prompt, TOKEN_EDGES)),
        (Dimension.OUTPUT_TOKENS, _maybe(tokens.output, OUTPUT_EDGES)),
        (Dimension.CACHE, _cache(tokens.prompt, tokens.delivered)),
        (Dimension.BATCH, _maybe(record.batch_at_admission, COUNT_EDGES)),
        (Dimension.CONCURRENCY, _maybe(record.concurrency_at_admission, COUNT_EDGES)),
        (Dimension.TEMPERATURE, _temperature(record.temperature)),
        (Dimension.CONSTRAINT, record.constraint.value),
        (Dimension.LABEL, record.label),
        (Dimension.REPETITION, _maybe(record.repetition, REPETITION_EDGES)),
        (Dimension.HARDWARE, record.hardware or None),
        (Dimension.TOPOLOGY, record.topology or None),
    ]
    return tuple(Cut(dimension, value) for dimension, value in found if value is not None)


def belongs(record: RequestRecord, cut: Cut | None) -> bool:
    """Say whether a request belongs to a cut; every request belongs to None (all traffic)."""
    return cut is None or cut in cuts_of(record)


def _maybe(value: float | None, edges: tuple[float, ...]) -> str | None:
    return None if value is None else _bucket(value, edges)


def _cache(prompt: int | None, delivered: int | None) -> str | None:
    if prompt is None or delivered is None or prompt == 0:
        return None
    return "hit" if delivered / prompt >= HIT_SHARE else "miss"


def _temperature(temperature: float | None) -> str | None:
    if temperature is None:
        return None
    return "0" if temperature == 0 else "sampled"
