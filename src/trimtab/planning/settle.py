"""What is uncertain about a choice of layout, and which two short measurements would settle it.

The chosen layout is worth measuring where its interval crosses a target. After it comes the rival that most likely
should have been chosen: one of fewer devices that misses a target at the expected value but may meet it. The chance is
that of a normal difference of logarithms within the interval that the estimate states.
"""

import math
from collections.abc import Sequence
from typing import Final

import msgspec

from trimtab.core.layout import Expected, Layout, Span, Targets
from trimtab.planning.candidates import Candidate, Standing, judge, said
from trimtab.planning.plan_ask import Ask, demand_of_replica
from trimtab.planning.plan_ports import Estimator
from trimtab.planning.rules import Fits, Force

MEASUREMENTS: Final = 2
CHANCE_MIN: Final = 0.05
"""A rival less likely than this is not worth a measurement."""

_NORMAL_90: Final = 1.645


class Measurement(msgspec.Struct, frozen=True, kw_only=True):
    """One run of a benchmark on one replica: closed loop at `concurrency`, or arrivals at `rate_per_s`.

    `chance`: how likely the layout meets the targets as far as is known; None where no interval is.
    """

    layout: Layout
    concurrency: float | None
    rate_per_s: float | None
    input_tokens: int
    output_tokens: int
    settles: str
    chance: float | None


def rivals_of(
    chosen: Candidate, candidates: Sequence[Candidate], ask: Ask, fits: Fits, estimator: Estimator
) -> list[Candidate]:
    """Return layouts of fewer devices that miss at the expected value and may yet meet the targets."""
    found: list[Candidate] = []
    for each in candidates:
        if each.forbidden or each.expected is None:
            continue
        replicas = (chosen.layout.devices - 1) // each.layout.devices_per_replica
        if not replicas or ask.sizes.replicas not in (None, replicas):
            continue
        fewer = msgspec.structs.replace(each.layout, replicas=replicas)
        judged = judge(fewer, ask, fits, estimator)
        possible = judged.verdict is not None and judged.verdict.possible
        if judged.standing is Standing.MISSES and possible:
            found.append(judged)
    return found


def measurements(
    ranked: Sequence[Candidate], rivals: Sequence[Candidate], ask: Ask
) -> tuple[Measurement, ...]:
    """Return up to two measurements, the most telling first; one that only confirms where nothing is uncertain."""
    open_ones = [each for each in ranked if each.standing in (Standing.CHOSEN, Standing.NEXT)]
    if not open_ones:
        near = [each for each in ranked if each.verdict and each.verdict.possible]
        return tuple(
            _measure(each, ask, "whether it meets the targets after all, as its interval allows")
            for each in near[:MEASUREMENTS]
            if each.standing is Standing.MISSES
        )
    chosen = open_ones[0]
    told = [_measure(chosen, ask, _why_chosen(chosen, ask.targets))]
    scored = sorted(
        ((chance_of(each, ask.targets) or 0.0, each) for each in rivals),
        key=lambda pair: (-pair[0], pair[1].layout.devices, pair[1].layout),
    )
    for chance, rival in scored:
        if chance < CHANCE_MIN or len(told) == MEASUREMENTS:
            break
        spared = chosen.layout.devices - rival.layout.devices
        why = f"whether {spared} fewer accelerators do: {chance:.0%} likely, {rival.because}"
        told.append(_measure(rival, ask, why))
    for each in open_ones[1:]:
        if len(told) == MEASUREMENTS:
            break
        told.append(_measure(each, ask, f"whether it is the better of the two: {each.because}"))
    return tuple(told)


def _why_chosen(chosen: Candidate, targets: Targets) -> str:
    if chosen.verdict is not None and chosen.verdict.sure:
        return f"confirms the choice: {chosen.because}"
    chance = chance_of(chosen, targets)
    likely = "how likely is unknown" if chance is None else f"{chance:.0%} likely"
    return f"whether it meets the targets: {likely}, {chosen.because}"


def _measure(each: Candidate, ask: Ask, settles: str) -> Measurement:
    one = demand_of_replica(ask.demand, each.layout.replicas)
    streams = one.concurrency
    if streams is None and one.rate_per_s is None and each.expected is not None:
        streams = each.expected.batch
    return Measurement(
        layout=msgspec.structs.replace(each.layout, replicas=1),
        concurrency=None if streams is None else float(math.ceil(streams)),
        rate_per_s=one.rate_per_s,
        input_tokens=one.input_tokens,
        output_tokens=one.output_tokens,
        settles=settles,
        chance=chance_of(each, ask.targets),
    )


def chance_of(each: Candidate, targets: Targets) -> float | None:
    """Return how likely a layout meets the targets; None where an interval is unknown."""
    if each.expected is None:
        return None
    chances = [
        _chance(span, target)
        for span, target in _pairs(each.expected, targets)
        if target is not None
    ]
    known = [chance for chance in chances if chance is not None]
    if len(known) < len(chances):
        return None
    return math.prod(known)


def _pairs(expected: Expected, targets: Targets) -> tuple[tuple[Span, float | None], ...]:
    return ((expected.ttft_ms, targets.ttft_ms), (expected.tpot_ms, targets.tpot_ms))


def _chance(span: Span, limit_ms: float) -> float | None:
    if span.low is None or span.high is None or span.value <= 0.0:
        return None
    if not math.isfinite(span.value):
        return 0.0
    if span.high <= span.low or span.low <= 0.0 or not math.isfinite(span.high):
        return float(span.value <= limit_ms)
    spread = math.log(span.high / span.low) / (2.0 * _NORMAL_90)
    ahead = math.log(limit_ms / span.value) / spread
    return 0.5 * (1.0 + math.erf(ahead / math.sqrt(2.0)))


def uncertain(ranked: Sequence[Candidate], ask: Ask) -> tuple[str, ...]:
    """Say what is not known of the best layout: intervals across a target, facts that rules lack, notes."""
    if not ranked:
        return ()
    first = ranked[0]
    told: list[str] = []
    if first.expected is not None:
        for name, (span, target) in zip(
            ("TTFT", "TPOT"), _pairs(first.expected, ask.targets), strict=True
        ):
            if target is not None and _crosses(span, target):
                told.append(
                    f"{name} of {first.layout.label}: {said(span)} around the target {target:g} ms"
                )
        told += first.expected.notes
    told += [each.text for each in first.remarks if each.force is Force.UNKNOWN]
    return tuple(told)


def _crosses(span: Span, target: float) -> bool:
    if span.low is None or span.high is None:
        return True
    return span.low <= target < span.high
