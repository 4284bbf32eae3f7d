"""What would do where nothing meets the targets: less load on these devices, more of them, or what no number mends.

Looked for in this order: the most load that these devices carry within the targets; the fewest devices that carry the
load that was asked, as copies of the replica that takes the fewest; where not even a single stream meets the targets,
the layout that comes nearest and what it misses; where the model does not fit, the fewest devices that hold it, more
nodes like those there are.
"""

import math
from collections.abc import Sequence
from typing import Final

import msgspec

from trimtab.core.layout import Layout, PlanInputError
from trimtab.planning.candidates import Candidate, Standing, judge
from trimtab.planning.choose import LOWEST_RATE, capacity_of
from trimtab.planning.layouts import DEVICES_MAX, possible_layouts
from trimtab.planning.plan_ask import Ask
from trimtab.planning.plan_ports import Estimator
from trimtab.planning.rules import Fits, Force

NODES_TRIED: Final = (2, 3, 4, 6, 8, 12, 16, 24, 32)


class Relief(msgspec.Struct, frozen=True, kw_only=True):
    """What would do. `carries`: load of all devices there are within the targets (`unit`) in `layout`; None: none is.

    `devices`: how many would carry what was asked, as copies of `devices_layout`; None: no number of them.
    """

    unit: str
    carries: float | None
    layout: Layout | None
    devices: int | None
    devices_layout: Layout | None
    because: str


def relief_of(ranked: Sequence[Candidate], ask: Ask, fits: Fits, estimator: Estimator) -> Relief:
    """Return what would do where none of the ranked layouts meets the targets."""
    counts_rate = ask.demand.rate_per_s is not None
    unit = "requests per second" if counts_rate else "streams"
    usable = [each for each in ranked if each.standing is Standing.MISSES]
    if not usable:
        return _nothing_fits(ranked, ask, estimator, unit)
    start = LOWEST_RATE if counts_rate else 1.0
    found = [
        (capacity_of(one, ask, estimator, start=start), each.layout.replicas, one)
        for each in usable
        for one in (msgspec.structs.replace(each.layout, replicas=1),)
    ]
    able = [(carried, room, one) for carried, room, one in found if carried > 0.0]
    if not able:
        return _too_slow(usable, ask, fits, estimator, unit)
    most, room, one = max(able, key=lambda each: (each[0] * each[1], -each[2].devices_per_replica))
    load = ask.demand.rate_per_s or ask.demand.concurrency or 1.0
    needed, copies, small = min(
        (math.ceil(load / carried - 1e-9) * one.devices, math.ceil(load / carried - 1e-9), one)
        for carried, _, one in able
    )
    carried = most * room if counts_rate else float(math.floor(most) * room)
    whole = msgspec.structs.replace(one, replicas=room)
    wanted = msgspec.structs.replace(small, replicas=copies)
    return Relief(
        unit=unit,
        carries=carried,
        layout=whole,
        devices=needed,
        devices_layout=wanted,
        because=(
            f"within the targets these {_count(ask.cluster.total)} carry {carried:.3g} {unit} ({whole.label}); "
            f"{load:.3g} take {needed} ({wanted.label})"
        ),
    )


def _too_slow(
    usable: Sequence[Candidate], ask: Ask, fits: Fits, estimator: Estimator, unit: str
) -> Relief:
    """Say what the layout that comes nearest misses with a single stream: no number of copies mends that."""
    alone = msgspec.structs.replace(
        ask, demand=msgspec.structs.replace(ask.demand, concurrency=1.0, rate_per_s=None)
    )
    judged = [
        judge(msgspec.structs.replace(each.layout, replicas=1), alone, fits, estimator)
        for each in usable
    ]
    nearest = min(
        (each for each in judged if each.verdict is not None),
        key=lambda each: each.verdict.excess if each.verdict else math.inf,
    )
    return Relief(
        unit=unit,
        carries=None,
        layout=None,
        devices=None,
        devices_layout=None,
        because=(
            f"not even one stream meets the targets, so no number of replicas does; nearest is "
            f"{nearest.layout.label}: {nearest.because}"
        ),
    )


def _nothing_fits(ranked: Sequence[Candidate], ask: Ask, estimator: Estimator, unit: str) -> Relief:
    barred = next(
        (each for each in ranked if any(note.force is Force.FORBIDS for note in each.remarks)), None
    )
    if barred is not None and barred.memory.fits:
        because = f"the model fits as {barred.layout.label}, which a rule forbids: {barred.because}"
        return Relief(
            unit=unit, carries=None, layout=None, devices=None, devices_layout=None, because=because
        )
    held = _devices_that_hold(ask, estimator)
    because = (
        f"no layout of up to {DEVICES_MAX} such devices holds one stream"
        if held is None
        else f"{_count(held.devices)} of these would hold one stream ({held.label})"
    )
    return Relief(
        unit=unit,
        carries=None,
        layout=None,
        devices=None if held is None else held.devices,
        devices_layout=held,
        because=because,
    )


def _devices_that_hold(ask: Ask, estimator: Estimator) -> Layout | None:
    """Return the layout of the fewest devices that holds one stream of the longest context, on more such nodes."""
    one = msgspec.structs.replace(ask.demand, concurrency=1.0, rate_per_s=None)
    for times in NODES_TRIED:
        small = ask.cluster.nodes == 1 and ask.cluster.devices * times <= 8
        cluster = msgspec.structs.replace(
            ask.cluster,
            devices=ask.cluster.devices * (times if small else 1),
            nodes=ask.cluster.nodes * (1 if small else times),
        )
        if cluster.total > DEVICES_MAX:
            return None
        try:
            layouts = possible_layouts(ask.model, cluster, ask.sizes).layouts
        except PlanInputError:
            continue
        for layout in layouts:
            if estimator.fit(layout, one).fits:
                return layout
    return None


def _count(devices: int) -> str:
    return "one device" if devices == 1 else f"{devices} devices"
