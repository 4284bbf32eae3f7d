"""What each accelerator adds: to one replica as it grows, and to the fleet as replicas are added.

A larger replica is compared under one load: efficiency is tokens per second and device against the smallest replica
that carries it, under the same streams. Where the expected time per token rises with more devices the gain has reversed
there. A larger fleet is compared by the load that it carries within the targets.
"""

import math
from collections.abc import Iterator, Sequence

import msgspec

from trimtab.core.layout import Layout, Span
from trimtab.planning.candidates import Candidate, Standing, judge
from trimtab.planning.plan_ask import Ask, demand_of_replica
from trimtab.planning.plan_ports import Estimator
from trimtab.planning.rules import Fits


class Growth(msgspec.Struct, frozen=True, kw_only=True):
    """One replica of a size under the load of one replica of the plan.

    `carries`: its KV lets all those streams run. `adds_tokens_per_s`: output tokens per second that each device added
    since the row before brings, `efficiency`: tokens per second and device over those of the first row that carries the
    load; both None before there is such a row. `reverses`: slower than the row before.
    """

    devices: int
    layout: Layout
    ttft_ms: Span
    tpot_ms: Span
    output_tokens_per_s: float
    output_tokens_per_s_device: float
    carries: bool
    adds_tokens_per_s: float | None
    efficiency: float | None
    communication_share: float | None
    meets: bool
    reverses: bool


class Spread(msgspec.Struct, frozen=True, kw_only=True):
    """The best that so many devices do within the targets. `carries`: streams, or requests per second, of all of them.

    `adds`: what each device added since the row before brings; None in the first row.
    """

    devices: int
    layout: Layout
    carries: float
    adds: float | None
    efficiency: float


def growth(
    candidates: Sequence[Candidate], ask: Ask, fits: Fits, estimator: Estimator, *, replicas: int
) -> tuple[Growth, ...]:
    """Return one row for each size of replica, with its fastest layout, under the load of one of `replicas`."""
    one = demand_of_replica(ask.demand, replicas)
    alone = msgspec.structs.replace(ask, demand=one)
    best: dict[int, Candidate] = {}
    for layout in _shapes(candidates):
        found = judge(layout, alone, fits, estimator)
        if found.expected is None or found.standing is Standing.FORBIDDEN:
            continue
        other = best.get(layout.devices)
        if other is None or _tpot(found) < _tpot(other):
            best[layout.devices] = found
    return tuple(_growth_rows([best[devices] for devices in sorted(best)]))


def _shapes(candidates: Sequence[Candidate]) -> list[Layout]:
    serving = [each for each in candidates if each.expected is not None]
    shapes = {msgspec.structs.replace(each.layout, replicas=1) for each in serving}
    return sorted(shapes, key=lambda layout: (layout.devices, layout))


def _tpot(found: Candidate) -> float:
    return found.expected.tpot_ms.value if found.expected else math.inf


def _growth_rows(found: Sequence[Candidate]) -> Iterator[Growth]:
    first: Growth | None = None
    before: Growth | None = None
    for each in found:
        expected, verdict = each.expected, each.verdict
        if expected is None or verdict is None:
            continue
        tokens, devices = expected.output_tokens_per_s, each.layout.devices
        row = Growth(
            devices=devices,
            layout=each.layout,
            ttft_ms=expected.ttft_ms,
            tpot_ms=expected.tpot_ms,
            output_tokens_per_s=tokens,
            output_tokens_per_s_device=tokens / devices,
            carries=verdict.carries,
            adds_tokens_per_s=None
            if first is None or before is None
            else _added(before, tokens, devices),
            efficiency=_efficiency(first, tokens / devices, carries=verdict.carries),
            communication_share=expected.communication_share,
            meets=verdict.meets,
            reverses=before is not None
            and before.carries
            and expected.tpot_ms.value > before.tpot_ms.value,
        )
        first = first or (row if row.carries else None)
        before = row
        yield row


def _added(before: Growth, tokens: float, devices: int) -> float:
    return (tokens - before.output_tokens_per_s) / (devices - before.devices)


def _efficiency(first: Growth | None, each: float, *, carries: bool) -> float | None:
    if first is None:
        return 1.0 if carries else None
    return each / first.output_tokens_per_s_device


def spread(candidates: Sequence[Candidate], total: int, chosen: int | None) -> tuple[Spread, ...]:
    """Return what doubling numbers of devices carry within the targets, each with its best layout.

    Only layouts whose capacity was found take part: those that cannot meet the targets at all carry nothing.
    """
    able = [each for each in candidates if each.capacity and each.standing in _ABLE]
    counts = {chosen} if chosen else set()
    size = 1
    while size <= total:
        counts.add(size)
        size *= 2
    rows: list[Spread] = []
    for devices in sorted({*counts, total}):
        best = _best_on(able, devices)
        if best is None:
            continue
        carries, layout = best
        before = rows[-1] if rows else None
        each = carries / devices
        rows.append(
            Spread(
                devices=devices,
                layout=layout,
                carries=carries,
                adds=(carries - before.carries) / (devices - before.devices) if before else None,
                efficiency=each / (rows[0].carries / rows[0].devices) if rows else 1.0,
            )
        )
    return tuple(rows)


_ABLE = (Standing.CHOSEN, Standing.NEXT, Standing.MEETS)


def _best_on(able: Sequence[Candidate], devices: int) -> tuple[float, Layout] | None:
    found = [
        (each.capacity * replicas, -each.layout.devices_per_replica, each.layout, replicas)
        for each in able
        if each.capacity and (replicas := devices // each.layout.devices_per_replica)
    ]
    if not found:
        return None
    carries, _, layout, replicas = max(found, key=lambda row: (row[0], row[1]))
    return carries, msgspec.structs.replace(layout, replicas=replicas)
