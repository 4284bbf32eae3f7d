"""Cuts: the subgroups by which results are judged, so that no average hides harm.

A cut by a header names the header in the clear and its value as a keyed hash, `header=x-team:6f3a...`: what clients put
into headers may be secret, and a record of it must not be readable.
"""

import bisect
from collections.abc import Callable
from enum import StrEnum
from typing import Final

import msgspec

from trimtab.core.record import RequestRecord
from trimtab.core.tenants import ANONYMOUS


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
    TENANT = "tenant"
    MODEL = "model"
    HEADER = "header"
    LOAD = "load"


KNOWN_BEFORE_SERVING: Final = frozenset(
    {
        Dimension.INPUT_TOKENS,
        Dimension.TEMPERATURE,
        Dimension.CONSTRAINT,
        Dimension.LABEL,
        Dimension.REPETITION,
        Dimension.TENANT,
        Dimension.MODEL,
        Dimension.HEADER,
    }
)
"""What a request can be kept off a lever by; the other dimensions are known only when it has been served."""

HEADER_HASH_DIGITS: Final = 16


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


def input_tokens_bucket(tokens: int) -> str:
    """Return the bucket name of a prompt's length in tokens."""
    return _bucket(tokens, TOKEN_EDGES)


def header_mark(name: str, value: str, digest: Callable[[bytes], str]) -> str:
    """Return what stands for a header in cuts and records: its name, and the keyed hash of its value."""
    hashed = digest(f"header {name.lower()}\x00{value}".encode("utf-8", "surrogatepass"))
    return f"{name.lower()}:{hashed[:HEADER_HASH_DIGITS]}"


def hidden(cut: Cut, digest: Callable[[bytes], str]) -> Cut:
    """Return a cut as it may be kept: a header's value hashed, everything else as it is.

    Raises `ValueError` for a cut by a header that does not say `NAME:VALUE`.
    """
    if cut.dimension is not Dimension.HEADER:
        return cut
    name, colon, value = cut.value.partition(":")
    if not name.strip() or not colon or not value.strip():
        raise ValueError(f"{cut} does not say which header: write header=NAME:VALUE")
    return Cut(Dimension.HEADER, header_mark(name.strip(), value.strip(), digest))


def header_names(cuts: tuple[Cut, ...]) -> frozenset[str]:
    """Return the names of the headers that cuts ask about."""
    found = (cut.value.partition(":")[0] for cut in cuts if cut.dimension is Dimension.HEADER)
    return frozenset(found)


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
        (Dimension.TEMPERATURE, temperature_bucket(record.temperature)),
        (Dimension.CONSTRAINT, record.constraint.value),
        (Dimension.LABEL, record.label),
        (Dimension.REPETITION, _maybe(record.repetition, REPETITION_EDGES)),
        (Dimension.HARDWARE, record.hardware or None),
        (Dimension.TOPOLOGY, record.topology or None),
        (Dimension.TENANT, None if record.tenant == ANONYMOUS else record.tenant),
        (Dimension.MODEL, record.model),
        *((Dimension.HEADER, mark) for mark in record.marks),
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


def repetition_bucket(repetition: float) -> str:
    """Return the bucket name of how much of a prompt repeats within it, 0 to 1."""
    return _bucket(repetition, REPETITION_EDGES)


def temperature_bucket(temperature: float | None) -> str | None:
    """Return the bucket name of a sampling temperature: greedy apart from sampled; None where it is unknown."""
    if temperature is None:
        return None
    return "0" if temperature == 0 else "sampled"
