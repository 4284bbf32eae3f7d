"""From how many uncached tokens on prompts travel, in times of the usual mark: doubled while transfers are dear.

Law: where the P90 of dearness is above 1 the mark doubles, up to eight times; where it is below a half, or nothing was
handed over, it halves again: with nothing handed over nobody knows, until something travels. It moves once a window at
most. A rise soon after a fall took the fall back: each time that happens the next fall waits twice as long, up to
`BACK_OFF_MAX` windows, so that under one load the mark does not go to and fro with the window.

Failure mode: transfers that are cheap again after many such turns are found out late, by as much as half an hour at a
window of a minute.
"""

from typing import Final

import msgspec

FACTOR_MAX: Final = 8.0
BACK_OFF_MAX: Final = 32.0
SOON_WINDOWS: Final = 8.0
"""A fall that stood for this many windows was right: what comes after is another load."""


class TravelMark(msgspec.Struct, frozen=True, kw_only=True):
    """What is remembered of the mark. `factor`: in times of the usual one; `moved_at_s`: None before the first step.

    `fell`: whether the last step was down; `back_off`: windows before the next step down.
    """

    factor: float = 1.0
    moved_at_s: float | None = None
    fell: bool = False
    back_off: float = 1.0


def moved_mark(
    mark: TravelMark, dearness: float | None, *, now_s: float, window_s: float
) -> TravelMark:
    """Return the mark after a tick. `dearness`: P90 over the window's hand-overs, None where there were none."""
    since_s = float("inf") if mark.moved_at_s is None else now_s - mark.moved_at_s
    if since_s < window_s:
        return mark
    if dearness is not None and dearness > 1.0:
        return _raised(mark, now_s, is_soon=since_s < SOON_WINDOWS * window_s)
    is_cheap = dearness is None or dearness < 0.5
    if is_cheap and mark.factor > 1.0 and since_s >= mark.back_off * window_s:
        return msgspec.structs.replace(
            mark, factor=max(1.0, mark.factor / 2.0), moved_at_s=now_s, fell=True
        )
    return mark


def _raised(mark: TravelMark, now_s: float, *, is_soon: bool) -> TravelMark:
    if mark.factor >= FACTOR_MAX:
        return mark
    back_off = mark.back_off
    if mark.fell:
        back_off = min(BACK_OFF_MAX, 2.0 * back_off) if is_soon else 1.0
    return TravelMark(
        factor=min(FACTOR_MAX, 2.0 * mark.factor), moved_at_s=now_s, back_off=back_off
    )
