"""Two sources of one figure that disagree: the reading that is kept says so, and a claim that rests on it is less sure.

Law: two readings of one name and of one stretch of time disagree where their intervals do not meet; one without an
interval is taken to be within `SLACK` of its value. Readings of a moment and of a window are two figures, not one.
Failure mode: both sources may be wrong in the same way; that they agree proves nothing, so it adds no support.
"""

from collections.abc import Sequence
from typing import Final

from trimtab.core.evidence import Evidence, Readings, Window
from trimtab.core.findings import Finding

SLACK: Final = 0.10
"""How far off a figure without an interval may be, as a part of it."""

SAME_STRETCH_MIN: Final = 0.5
"""Two windows are of one stretch if they share at least this part of the longer one."""


def disagreement(kept: Evidence, other: Evidence) -> str:
    """Return in words what `other` says of the figure of `kept`, empty where both agree or speak of other times."""
    if not _is_same_stretch(kept.window, other.window):
        return ""
    (low, high), (other_low, other_high) = _range(kept), _range(other)
    if other_low <= high and low <= other_high:
        return ""
    return f"{kept.value:.4g} by {kept.source}, {other.value:.4g} by {other.source}"


def _range(reading: Evidence) -> tuple[float, float]:
    if reading.interval is not None:
        return reading.interval.low, reading.interval.high
    slack = SLACK * abs(reading.value)
    return reading.value - slack, reading.value + slack


def _is_same_stretch(one: Window, other: Window) -> bool:
    longer = max(one.length_s, other.length_s)
    if longer == 0.0:
        return True
    shared = min(one.end_s, other.end_s) - max(one.start_s, other.start_s)
    return shared >= SAME_STRETCH_MIN * longer


def disputes(findings: Sequence[Finding], readings: Readings) -> tuple[Finding, ...]:
    """Return one finding against for each disputed reading that some findings of a claim rest on."""
    cited = {each for finding in findings for each in finding.evidence}
    return tuple(
        Finding(text=f"two sources of {item.name} disagree: {item.disputed}", evidence=(item.id,))
        for item in readings.items
        if isinstance(item, Evidence) and item.disputed and item.id in cited
    )
