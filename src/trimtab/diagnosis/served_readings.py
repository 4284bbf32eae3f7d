"""From windows of servers that somebody else runs to named evidence.

`readings_of` gives every name of `ServedName` once: measured, with unit, source, window and samples, or unknown with
the reason. Its notes say whether a value is of the window or of the server's life ("since start"). With several
sources the plain names speak of all of them together and `of_source` of one alone; with several ranks `of_rank` gives
the load of each. The order of windows, ranks and families changes nothing.
"""

import math
from collections.abc import Mapping, Sequence

import msgspec

from trimtab.core.evidence import Evidence, Reading, Readings, Unknown
from trimtab.core.served import Gauge, Note, ServerWindow
from trimtab.diagnosis.served_names import ServedName, of_source
from trimtab.diagnosis.served_readings_load import load_readings
from trimtab.diagnosis.served_readings_notes import (
    contradictions,
    disputed_names,
    throughput_conflict,
)
from trimtab.diagnosis.served_readings_pool import Pool, pool_of
from trimtab.diagnosis.served_readings_shares import share_readings
from trimtab.diagnosis.served_readings_times import times_readings
from trimtab.diagnosis.served_readings_work import work_readings


class ServedReadingsError(ValueError):
    """Windows that cannot be read together: none, or two of one source."""


def readings_of(
    windows: ServerWindow | Sequence[ServerWindow], *, id_prefix: str = "served"
) -> Readings:
    """Return what one or several servers say, by name.

    Raises `ServedReadingsError` without a window, or with two windows of the same source.
    """
    pool = _pool(windows, id_prefix)
    items = list(_read(pool))
    if len(pool.windows) > 1:
        for window in pool.windows:
            items.extend(_named_for(window.source, item) for item in _alone(window, id_prefix))
    return Readings(tuple(items))


def notes_of(windows: ServerWindow | Sequence[ServerWindow]) -> tuple[Note, ...]:
    """Return the notes of all windows and what their readings contradict; raises as `readings_of` does."""
    pool = _pool(windows, "served")
    found = [note for window in pool.windows for note in window.notes]
    found.extend(contradictions(pool, Readings(tuple(_read(pool)))))
    return tuple(dict.fromkeys(found))


def _pool(windows: ServerWindow | Sequence[ServerWindow], id_prefix: str) -> Pool:
    given = (windows,) if isinstance(windows, ServerWindow) else tuple(windows)
    if not given:
        raise ServedReadingsError("readings need a window")
    if len({window.source for window in given}) < len(given):
        raise ServedReadingsError("two windows have the same source")
    return pool_of(given, id_prefix)


def _read(pool: Pool) -> tuple[Reading, ...]:
    items = [
        *load_readings(pool),
        *work_readings(pool),
        *times_readings(pool),
        *share_readings(pool),
    ]
    items.append(_implied(pool, Readings(tuple(items))))
    whole = Readings(tuple(items))
    conflict = throughput_conflict(pool, whole)
    disputed = disputed_names(pool, whole)
    return tuple(_disputed(_warned(_finite(item), conflict), disputed) for item in items)


def _disputed(item: Reading, disputed: Mapping[str, str]) -> Reading:
    """Mark a figure that is trusted although another source of it says otherwise."""
    said = disputed.get(item.name, "")
    if not said or isinstance(item, Unknown):
        return item
    return msgspec.structs.replace(item, disputed=said)


def _finite(item: Reading) -> Reading:
    """Refuse what overflowed: parts that no server has, such as a sum of 1e-300 seconds, make it."""
    if isinstance(item, Unknown) or math.isfinite(item.value):
        return item
    return Unknown(item.name, f"the page's values make {item.value}, which no server has")


def _warned(item: Reading, conflict: str) -> Reading:
    wanted = item.name == ServedName.OUTPUT_GAUGE_TOKENS_PER_S
    if not conflict or not wanted or isinstance(item, Unknown):
        return item
    return msgspec.structs.replace(item, note=f"{conflict}; {item.note}")


def _implied(pool: Pool, readings: Readings) -> Reading:
    """Return running requests over time per token: what the counters would have to show."""
    name = ServedName.OUTPUT_IMPLIED_TOKENS_PER_S
    running = readings.get(ServedName.RUNNING_MEAN)
    tpot = readings.get(ServedName.TPOT_MS_MEAN)
    for needed in (running, tpot):
        if isinstance(needed, Unknown):
            return Unknown(name, f"{needed.name}: {needed.reason}")
    origin = pool.origin(Gauge.RUNNING)
    assert isinstance(running, Evidence), running
    assert isinstance(tpot, Evidence), tpot
    assert origin is not None, name
    if tpot.value <= 0:
        return Unknown(name, "the time per token reads zero")
    value = running.value / (tpot.value / 1_000.0)
    note = f"running requests over time per token ({tpot.note})"
    return pool.evidence(
        name, value, "tokens/s", origin, samples=running.samples, note=note, of_gauge=True
    )


def _alone(window: ServerWindow, id_prefix: str) -> tuple[Reading, ...]:
    """Return a source's own readings, leaving out what it does not tell and the ranks, which have names."""
    known = {name.value for name in ServedName} | {
        f"{name.value}{end}" for name in ServedName for end in ("_low", "_high")
    }
    items = _read(pool_of((window,), id_prefix))
    return tuple(item for item in items if item.name in known and isinstance(item, Evidence))


def _named_for(source: str, item: Reading) -> Reading:
    name = of_source(item.name, source)
    if isinstance(item, Unknown):
        return Unknown(name, item.reason)
    return msgspec.structs.replace(item, name=name, id=of_source(item.id, source))
