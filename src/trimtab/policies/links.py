"""What moving KV from one replica to another costs: learned per pair, guessed from pairs as near, else as told.

Law: a hand-over of n tokens takes set-up + n * ms per token when it is alone on its link. Both are smoothed over
hand-overs of the pair, and over those of all pairs alike: that is what a pair that never handed anything over is
expected to cost, and what its own hand-overs are smoothed into; without any of these, what it was told, which may be
nothing: then it is unknown, and nothing travels.

The first hand-over of a pair also makes its connection. A first set-up of `CONNECTION_MS` and more is that: it is kept
apart and excluded, because no later one has it.

Pairs are alike that are as near and go from the same kind of accelerator to the same kind: what copies the bytes out
and in is the device's, whatever joins them. Nearness is read from labels: replicas of one host are nearest, then those
of one named link, then those apart. An empty label says nothing; the same accelerator makes no two replicas near.

Failure modes: a pair whose route changes without a new label is followed at the pace of the smoothing; few hand-overs
of a size say little about what does not depend on it.
"""

from enum import IntEnum
from typing import Final

import msgspec

from trimtab.core.handover import ReplicaLabels

RATE_SMOOTHING: Final = 0.2
CONNECTION_MS: Final = 1000.0
PAIRS_MAX: Final = 65_536
KINDS_MAX: Final = 1024


class Nearness(IntEnum):
    """How near two replicas are, the nearest first."""

    SAME_HOST = 0
    SAME_LINK = 1
    UNKNOWN = 2
    APART = 3


class Likeness(msgspec.Struct, frozen=True, kw_only=True):
    """What makes pairs alike. `source`, `target`: accelerators as labels name them; empty is a kind of its own."""

    near: Nearness
    source: str = ""
    target: str = ""


class LinkRate(msgspec.Struct, frozen=True, kw_only=True):
    """What a hand-over costs between two replicas: set-up, and milliseconds per token when it is alone on its link.

    `connection_ms`: the set-up of the first one where that made a connection, in no other figure; `bytes_per_s`: while
    bytes moved; both None where unknown.
    """

    setup_ms: float
    ms_per_token: float
    samples: int = 0
    connection_ms: float | None = None
    bytes_per_s: float | None = None


class Passage(msgspec.Struct, frozen=True, kw_only=True):
    """One hand-over as it was measured. `transfer_ms`: as if it had been alone on its link, beside the set-up."""

    tokens: float
    setup_ms: float
    transfer_ms: float
    bytes: float | None = None


def nearness(one: ReplicaLabels, other: ReplicaLabels) -> Nearness:
    """Return how near two replicas are by their labels."""
    if one.host and one.host == other.host:
        return Nearness.SAME_HOST
    if one.link and one.link == other.link:
        return Nearness.SAME_LINK
    apart_by_host = bool(one.host and other.host) and not (one.link or other.link)
    apart_by_link = bool(one.link and other.link)
    return Nearness.APART if apart_by_host or apart_by_link else Nearness.UNKNOWN


def likeness(source: ReplicaLabels, target: ReplicaLabels) -> Likeness:
    """Return which pairs a pair is like, by its labels."""
    near = nearness(source, target)
    return Likeness(near=near, source=source.accelerator, target=target.accelerator)


def learned(before: LinkRate | None, seen: Passage) -> LinkRate:
    """Take in one hand-over of at least one token; `before` may be what was told (no samples)."""
    ms_per_token = seen.transfer_ms / seen.tokens
    setup_ms, connection_ms = seen.setup_ms, None if before is None else before.connection_ms
    is_first = before is None or before.samples == 0
    if is_first and setup_ms >= CONNECTION_MS:
        connection_ms = setup_ms
        setup_ms = 0.0 if before is None else before.setup_ms
    rate = _bytes_per_s(seen)
    if before is None:
        return LinkRate(
            setup_ms=setup_ms,
            ms_per_token=ms_per_token,
            samples=1,
            connection_ms=connection_ms,
            bytes_per_s=rate,
        )
    if rate is not None and before.bytes_per_s is not None:
        rate = before.bytes_per_s + RATE_SMOOTHING * (rate - before.bytes_per_s)
    return LinkRate(
        setup_ms=before.setup_ms + RATE_SMOOTHING * (setup_ms - before.setup_ms),
        ms_per_token=before.ms_per_token + RATE_SMOOTHING * (ms_per_token - before.ms_per_token),
        samples=before.samples + 1,
        connection_ms=connection_ms,
        bytes_per_s=before.bytes_per_s if rate is None else rate,
    )


def _bytes_per_s(seen: Passage) -> float | None:
    if seen.bytes is None or seen.transfer_ms <= 0.0:
        return None
    return 1000.0 * seen.bytes / seen.transfer_ms


class Links:
    """The pairs of one fleet, the same for a live gateway and a simulated one."""

    def __init__(self, told: LinkRate | None = None) -> None:
        """Begin with nothing but what was `told` of pairs that have not handed anything over yet."""
        self.told = told
        self._rates: dict[tuple[str, str], LinkRate] = {}
        self._alike: dict[Likeness, LinkRate] = {}

    def rate(self, source: str, target: str, like: Likeness) -> LinkRate | None:
        """Return what a hand-over of a pair is expected to cost, None where nothing says it."""
        return self._rates.get((source, target)) or self._alike.get(like) or self.told

    def learn(self, source: str, target: str, like: Likeness, seen: Passage) -> None:
        """Take in one hand-over of a pair; one without tokens teaches nothing."""
        pair = (source, target)
        if seen.tokens <= 0.0 or (pair not in self._rates and len(self._rates) >= PAIRS_MAX):
            return
        known = self._rates.get(pair)
        if known is None:
            known = self._expected(like)
        own = self._rates[pair] = learned(known, seen)
        if own.samples == 1 and own.connection_ms is not None:
            # A connection was made: pairs alike have that as little as this one's later hand-overs.
            seen = msgspec.structs.replace(seen, setup_ms=own.setup_ms)
        if like in self._alike or len(self._alike) < KINDS_MAX:
            self._alike[like] = learned(self._alike.get(like, self.told), seen)

    def _expected(self, like: Likeness) -> LinkRate | None:
        """Return what a pair's own hand-overs begin from: what those alike cost, as a thing that was told of it."""
        alike = self._alike.get(like)
        if alike is None:
            return self.told
        return LinkRate(setup_ms=alike.setup_ms, ms_per_token=alike.ms_per_token)

    def forget(self, replica: str) -> None:
        """Drop the pairs of a replica that left."""
        for pair in [pair for pair in self._rates if replica in pair]:
            del self._rates[pair]

    def rates(self) -> tuple[tuple[str, str, LinkRate], ...]:
        """Return what was learned, by source and target."""
        return tuple((source, target, rate) for (source, target), rate in self._rates.items())
