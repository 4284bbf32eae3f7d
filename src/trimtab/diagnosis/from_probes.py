"""Readings from what engines and processes report: counters as rates, gauges as they are, slots from views.

A counter that went back means that the engine restarted: its rate is unknown for that window, never zero and
never negative. Ratios are of the window, not of the engine's whole life.
"""

from collections.abc import Mapping, Sequence

from trimtab.core.decision import FleetView, ReplicaView
from trimtab.core.evidence import Evidence, Readings, Unknown, Window
from trimtab.core.types import ReplicaState
from trimtab.diagnosis.names import FleetFacts, Name
from trimtab.diagnosis.tally import Tally

COUNTER_END = "_total"

_MEANS = frozenset({"busy_slots_per_decode", "sequence_tokens_max"})
"""Gauges that are no sum over engines though they are no share."""


def readings_from_probes(previous: Readings, current: Readings, *, id_prefix: str) -> Readings:
    """Turn two reads of one engine into rates per second; gauges pass as they are.

    A reading is a counter if its name ends in `_total`: `prompt_tokens_total` gives `prompt_tokens_per_s` with the
    growth itself in the note. Unknown where either read lacks it, where no time passed, or where it went back.
    """
    found: list[Evidence | Unknown] = []
    for item in current.items:
        if item.name.endswith(COUNTER_END):
            found.append(_rate(previous, item, id_prefix))
        else:
            found.append(item)
    return Readings(tuple(found))


def _rate(previous: Readings, item: Evidence | Unknown, id_prefix: str) -> Evidence | Unknown:
    name = item.name.removesuffix(COUNTER_END) + "_per_s"
    before = previous.get(item.name)
    if isinstance(item, Unknown):
        return Unknown(name, item.reason)
    if isinstance(before, Unknown):
        return Unknown(name, f"earlier read: {before.reason}")
    return _rate_between(name, before, item, id_prefix)


def _rate_between(name: str, then: Evidence, now: Evidence, id_prefix: str) -> Evidence | Unknown:
    window = Window(then.window.end_s, now.window.end_s)
    grown = now.value - then.value
    if grown < 0:
        return Unknown(
            name,
            f"the counter went back from {then.value:g} to {now.value:g}: the engine restarted",
        )
    if window.length_s <= 0:
        return Unknown(name, "no time passed between the two reads")
    return Evidence(
        id=f"{id_prefix}/{name}",
        name=name,
        value=grown / window.length_s,
        unit=f"{now.unit}/s",
        source=now.source,
        window=window,
        note=f"grew by {grown:g}",
    )


def window_share(previous: Readings, current: Readings, *, part: str, rest: str) -> float | Unknown:
    """Return part / (part + rest) of two counters' growth between two reads, e.g. cached against computed tokens.

    A share of the window, not of the engine's life; Unknown when a counter is missing, went back or did not grow.
    """
    grown: list[float] = []
    for name in (part, rest):
        then, now = previous.value(name), current.value(name)
        if then is None or now is None:
            return Unknown(part, f"{name} is not known at both ends of the window")
        if now < then:
            return Unknown(part, f"{name} went back from {then:g} to {now:g}: the engine restarted")
        grown.append(now - then)
    if sum(grown) <= 0:
        return Unknown(part, f"neither {part} nor {rest} grew in the window")
    return grown[0] / sum(grown)


def readings_from_views(views: Sequence[FleetView], *, window: Window, id_prefix: str) -> Readings:
    """Turn what the gateway saw of its ready replicas into shares: slots busy, someone waiting, waiting for a slot."""
    tally = Tally(window=window, source="fleet views", id_prefix=id_prefix)
    ready = [
        [replica for replica in view.replicas if replica.state is ReplicaState.READY]
        for view in views
    ]
    seen = [replica for replicas in ready for replica in replicas]
    n, reason = len(views), "no view of a ready replica in the window"
    slots = sum(replica.slots for replica in seen)
    busy = sum(min(replica.running, replica.slots) for replica in seen)
    waiting = [replicas for replicas in ready if any(replica.waiting for replica in replicas)]
    full = [replicas for replicas in waiting if any(_waits_for_slot(each) for each in replicas)]
    tally.ratio(Name.SLOTS_BUSY_SHARE, busy, slots, "share", samples=n, reason=reason)
    tally.ratio(
        Name.WAITING_SHARE, len(waiting), n if seen else 0, "share", samples=n, reason=reason
    )
    tally.ratio(
        Name.WAITING_SLOTS_FULL_SHARE,
        len(full),
        len(waiting),
        "share",
        samples=n,
        reason="no view shows a waiting request",
    )
    return tally.done()


def _waits_for_slot(replica: ReplicaView) -> bool:
    return replica.waiting > 0 and replica.running >= replica.slots


def fleet_readings(per_replica: Sequence[Readings], *, id_prefix: str) -> Readings:
    """Join the readings of several engines: shares and means are averaged, everything else is summed.

    A reading that one engine lacks is unknown for the fleet: a vanished engine is not a fall in load.
    """
    names = dict.fromkeys(item.name for part in per_replica for item in part.items)
    return Readings(tuple(_joined(per_replica, name, id_prefix) for name in names))


def _joined(parts: Sequence[Readings], name: str, id_prefix: str) -> Evidence | Unknown:
    readings = [part.get(name) for part in parts]
    known = [reading for reading in readings if isinstance(reading, Evidence)]
    if len(known) < len(parts):
        return Unknown(name, f"known for {len(known)} of {len(parts)} engines")
    values = [reading.value for reading in known]
    averaged = name.endswith("_share") or name in _MEANS
    return Evidence(
        id=f"{id_prefix}/{name}",
        name=name,
        value=sum(values) / len(values) if averaged else sum(values),
        unit=known[0].unit,
        source=f"{len(known)} engines",
        window=Window(
            min(reading.window.start_s for reading in known),
            max(reading.window.end_s for reading in known),
        ),
        note=f"{'mean' if averaged else 'sum'}; at most {max(values):g} on one engine",
    )


def readings_from_processes(
    cpu_s_before: Mapping[str, float | None],
    cpu_s_after: Mapping[str, float | None],
    memory_bytes: Mapping[str, int | None],
    *,
    fleet: FleetFacts,
    window: Window,
    id_prefix: str,
) -> Readings:
    """Turn CPU seconds at both ends of a window and resident bytes, each by replica, into readings.

    A replica without both CPU readings, or whose counter went back, makes the busy share unknown.
    """
    tally = Tally(window=window, source="process table", id_prefix=id_prefix)
    used: list[float] = []
    for replica, after in sorted(cpu_s_after.items()):
        before = cpu_s_before.get(replica)
        if after is not None and before is not None and after >= before:
            used.append(after - before)
    room = fleet.threads * len(used) * window.length_s
    if used and len(used) == len(cpu_s_after) and room > 0:
        share = min(1.0, sum(used) / room)
        tally.add(Name.CPU_BUSY_SHARE, share, "share", samples=len(used))
    else:
        tally.unknown(
            Name.CPU_BUSY_SHARE,
            f"CPU time is known at both ends for {len(used)} of {len(cpu_s_after)} replicas",
        )
    sizes = [size for size in memory_bytes.values() if size is not None]
    if sizes and len(sizes) == len(memory_bytes):
        tally.add(Name.MEMORY_RESIDENT_BYTES, sum(sizes), "bytes", samples=len(sizes))
    else:
        tally.unknown(
            Name.MEMORY_RESIDENT_BYTES,
            f"resident memory is known for {len(sizes)} of {len(memory_bytes)} replicas",
        )
    return tally.done()
