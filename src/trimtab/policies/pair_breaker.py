"""Which pairs of replicas are left out because their hand-overs keep failing: a circuit breaker for each pair.

Law: after `IN_A_ROW` failures of one kind in a row a pair is left out for `PAUSE_S`; then one hand-over at a time goes
as a probe. One that fails doubles the pause, up to `PAUSE_MAX_S`; one that is delivered ends it and all that was
counted. Kinds are counted apart, so that causes that alternate do not add up to a broken pair.

Counted is what the decode side or the transfer did. A prefill replica that cannot be reached or breaks off is left out
of all pairs by the gateway's guard; what a client did, or what a prefill replica refuses, says nothing of a pair.

Failure modes: a pair that fails two times of three is never left out; a probe takes as long as its answer, because
only its end says what was reused.

Source: the half-open state of Nygard, "Release It!", 2007 (circuit breaker).
"""

from enum import StrEnum
from typing import Final

import msgspec

from trimtab.core.handover import HandOverCause, HandOverOutcome

IN_A_ROW: Final = 3
PAUSE_S: Final = 10.0
PAUSE_MAX_S: Final = 600.0
PAIRS_MAX: Final = 4096
"""Pairs that are counted at once; of more, those whose failures began longest ago are forgotten."""

Pair = tuple[str, str]


class FailureKind(StrEnum):
    """What part of a hand-over failed beyond its prefill."""

    ROOM = "room"
    REFUSED = "refused"
    TRANSFER = "transfer"


_KINDS: Final = {
    HandOverCause.NO_ROOM_FOR_PARCEL: FailureKind.ROOM,
    HandOverCause.DECODE_FULL: FailureKind.ROOM,
    HandOverCause.DECODE_REFUSED: FailureKind.REFUSED,
    HandOverCause.DECODE_LOST: FailureKind.REFUSED,
    HandOverCause.TRANSFER_FAILED: FailureKind.TRANSFER,
    HandOverCause.TIMED_OUT: FailureKind.TRANSFER,
    HandOverCause.EXPIRED: FailureKind.TRANSFER,
    HandOverCause.SHORTFALL: FailureKind.TRANSFER,
}


def kind_of(cause: HandOverCause | None, *, has_parcel: bool) -> FailureKind | None:
    """Return what a failure counts as, None if it says nothing of the pair. `has_parcel`: the prompt was computed."""
    if cause is HandOverCause.TIMED_OUT and not has_parcel:
        return None
    return None if cause is None else _KINDS.get(cause)


class Failures(msgspec.Struct, frozen=True, kw_only=True):
    """Failures of one kind in a row. `pause_s`: how long the pair was left out last, 0 if never."""

    count: int = 0
    pause_s: float = 0.0
    until_s: float = 0.0

    @property
    def is_open(self) -> bool:
        """Whether the pair waits, or for a probe."""
        return self.pause_s > 0.0


def after_failure(before: Failures, now_s: float) -> Failures:
    """Take in one more failure. Those that were under way when the pair was left out do not lengthen the pause."""
    count = before.count + 1
    if count < IN_A_ROW or (before.is_open and now_s < before.until_s):
        return msgspec.structs.replace(before, count=count)
    pause_s = min(PAUSE_MAX_S, 2.0 * before.pause_s) if before.is_open else PAUSE_S
    return Failures(count=count, pause_s=pause_s, until_s=now_s + pause_s)


class PairBreakers:
    """The pairs that failed of late. Each request that was `begun` must have `ended` once."""

    def __init__(self) -> None:
        self._failures: dict[Pair, dict[FailureKind, Failures]] = {}
        self._probes: dict[Pair, str] = {}

    def is_left_out(self, source: str, target: str, now_s: float) -> bool:
        """Say whether nothing is to be handed over between two replicas now."""
        kinds = self._failures.get((source, target))
        if kinds is None:
            return False
        open_ = [one for one in kinds.values() if one.is_open]
        return bool(open_) and (
            (source, target) in self._probes or any(now_s < one.until_s for one in open_)
        )

    def begun(self, source: str, target: str, request_id: str) -> None:
        """Note a hand-over that begins: of a pair that was left out it is the probe."""
        kinds = self._failures.get((source, target), {})
        if any(one.is_open for one in kinds.values()):
            self._probes.setdefault((source, target), request_id)

    def ended(
        self,
        source: str,
        target: str,
        request_id: str,
        now_s: float,
        *,
        outcome: HandOverOutcome,
        failed: FailureKind | None,
    ) -> None:
        """Take in how a hand-over ended; `failed`: as what it counts."""
        pair = (source, target)
        if self._probes.get(pair) == request_id:
            del self._probes[pair]
        if outcome is HandOverOutcome.DELIVERED:
            self._failures.pop(pair, None)
        elif outcome is HandOverOutcome.FAILED and failed is not None:
            if pair not in self._failures and len(self._failures) >= PAIRS_MAX:
                self._drop(next(iter(self._failures)))
            kinds = self._failures.setdefault(pair, {})
            kinds[failed] = after_failure(kinds.get(failed, Failures()), now_s)

    def forget(self, replica: str) -> None:
        """Drop the pairs of a replica that left."""
        for pair in [pair for pair in self._failures if replica in pair]:
            self._drop(pair)

    def _drop(self, pair: Pair) -> None:
        del self._failures[pair]
        self._probes.pop(pair, None)
