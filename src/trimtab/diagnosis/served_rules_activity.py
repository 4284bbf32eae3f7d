"""Working, idle, saturated or stale: four states of a server that a single gauge cannot tell apart."""

from trimtab.core.evidence import Evidence, Readings, Unknown
from trimtab.diagnosis.served_advice import Activity
from trimtab.diagnosis.served_names import ServedName
from trimtab.diagnosis.served_rules_phases import QUEUE_MIN_SHARE, kv_full
from trimtab.diagnosis.served_rules_time import Times
from trimtab.diagnosis.served_rules_warnings import is_since_start

STALE_MIN_S = 60.0
"""Nothing younger is called stale."""

STALE_WINDOWS = 2.0
"""Readings whose window ended more than this many windows ago are stale."""


def at_of(readings: Readings) -> float:
    """Return the end of the latest window, 0 without evidence."""
    return max(
        (item.window.end_s for item in readings.items if isinstance(item, Evidence)), default=0.0
    )


def activity_of(readings: Readings, times: Times, at_s: float | None) -> tuple[Activity, str]:
    """Return the state with its reason; a rank that vanished makes a quiet server unknown and not idle."""
    stale = _stale(readings, at_s)
    if stale is not None:
        return Activity.STALE, stale
    running, waiting = (
        readings.value(ServedName.RUNNING_MAX),
        readings.value(ServedName.WAITING_MAX),
    )
    running = readings.value(ServedName.RUNNING_MEAN) if running is None else running
    waiting = readings.value(ServedName.WAITING_MEAN) if waiting is None else waiting
    output = readings.value(ServedName.OUTPUT_TOKENS_PER_S)
    moved = bool(output) and not is_since_start(readings.get(ServedName.OUTPUT_TOKENS_PER_S))
    if running is None:
        return (
            (Activity.WORKING, "tokens come out")
            if moved
            else (
                Activity.UNKNOWN,
                "running requests are not told",
            )
        )
    if running == 0 and not waiting and not moved:
        if readings.value(ServedName.RANKS_LOST):
            return Activity.UNKNOWN, "nothing runs on the ranks that are left, and others vanished"
        if waiting is None:
            return Activity.UNKNOWN, "nothing runs; whether requests wait is not told"
        return Activity.IDLE, "nothing runs or waits"
    if kv_full(readings) is not None or (
        times.queue is not None and times.queue >= QUEUE_MIN_SHARE
    ):
        return Activity.SATURATED, "requests wait"
    return Activity.WORKING, "requests run and hardly wait"


def _stale(readings: Readings, at_s: float | None) -> str | None:
    newest = at_of(readings)
    lengths = [item.window.length_s for item in readings.items if isinstance(item, Evidence)]
    limit = max(STALE_MIN_S, STALE_WINDOWS * max(lengths, default=0.0))
    if at_s is not None and lengths and at_s - newest > limit:
        return f"the newest reading is {at_s - newest:.0f} s old"
    running, grown = (
        readings.value(ServedName.RUNNING_MEAN),
        readings.value(ServedName.COUNTERS_GROWN),
    )
    if running and grown == 0.0:
        return f"{running:.0f} requests run, but no counter moves: the page is stale or the engine hangs"
    return None


_OF_A_MOMENT = (
    ServedName.RUNNING_MEAN,
    ServedName.RUNNING_MAX,
    ServedName.WAITING_MEAN,
    ServedName.WAITING_MAX,
    ServedName.KV_USED_SHARE_MEAN,
    ServedName.KV_USED_SHARE_MAX,
    ServedName.RANKS_SATURATED,
    ServedName.OUTPUT_GAUGE_TOKENS_PER_S,
    ServedName.OUTPUT_IMPLIED_TOKENS_PER_S,
)


def without_idle_moment(readings: Readings) -> Readings | None:
    """Return readings since start without the gauges of an idle moment, which say nothing of the time before it.

    None where no histogram or counter speaks of the time since start.
    """
    moment = {str(name) for name in _OF_A_MOMENT}
    told = [item for item in readings.items if item.name not in moment]
    if not any(is_since_start(item) for item in told):
        return None
    reason = "idle at the only scrape: a scrape under load, or two of them, would tell"
    hidden = (Unknown(name, reason) for name in sorted(moment))
    return Readings((*told, *hidden))
