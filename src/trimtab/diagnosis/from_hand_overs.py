"""Readings from hand-overs: how many failed, and what moving KV took of those that arrived, set-up apart from bytes.

The same for what a gateway moves itself (slot files) and for what engines fetch and tell of afterwards (NIXL); one of
which nobody told the time counts among the hand-overs and in no mean.
"""

import math
from collections.abc import Sequence

from trimtab.core.evidence import Readings, Window
from trimtab.core.handover import HandOver, HandOverOutcome
from trimtab.diagnosis.names import Name
from trimtab.diagnosis.tally import Tally


def readings_from_hand_overs(
    hand_overs: Sequence[HandOver], *, window: Window, id_prefix: str
) -> Readings:
    """Turn the hand-overs that ended in a window into readings: milliseconds, bytes, bytes a second while they move."""
    tally = Tally(window=window, source="hand-overs", id_prefix=id_prefix)
    delivered = [one for one in hand_overs if one.outcome is HandOverOutcome.DELIVERED]
    failed = sum(one.outcome is HandOverOutcome.FAILED for one in hand_overs)
    tally.add(Name.HAND_OVERS, len(hand_overs), "hand-overs", samples=len(hand_overs))
    if not hand_overs:
        return tally.done()
    tally.ratio(
        Name.HAND_OVER_FAILED_SHARE,
        failed,
        len(delivered) + failed,
        "share",
        samples=len(hand_overs),
        reason="no hand-over ended",
    )
    timed = [one for one in delivered if one.moving_ms is not None]
    untimed = f"of {len(delivered)} hand-overs that arrived nobody told the time"
    moving_ms = math.fsum(one.moving_ms or 0.0 for one in timed)
    tally.ratio(
        Name.HAND_OVER_MS_MEAN, moving_ms, len(timed), "ms", samples=len(timed), reason=untimed
    )
    apart = [one for one in timed if one.setup_ms is not None]
    tally.ratio(
        Name.HAND_OVER_SETUP_MS_MEAN,
        math.fsum(one.setup_ms or 0.0 for one in apart),
        len(apart),
        "ms",
        samples=len(apart),
        reason=untimed,
    )
    _add_bytes(tally, timed)
    return tally.done()


def _add_bytes(tally: Tally, timed: Sequence[HandOver]) -> None:
    sized = [one for one in timed if one.bytes is not None]
    total = sum(one.bytes or 0 for one in sized)
    spent_ms = math.fsum((one.moving_ms or 0.0) - (one.setup_ms or 0.0) for one in sized)
    reason = "of no hand-over that arrived both bytes and time are known"
    tally.ratio(
        Name.HAND_OVER_BYTES_MEAN, total, len(sized), "bytes", samples=len(sized), reason=reason
    )
    tally.ratio(
        Name.HAND_OVER_BYTES_PER_S,
        1000.0 * total,
        spent_ms,
        "bytes/s",
        samples=len(sized),
        reason=reason,
    )
