"""One layout under one load: what it holds, what it is expected to do, what rules say, and whether targets are met.

Means are compared with targets, as estimates are means. `sure` asks more: that the whole interval meets them.
"""

import math
from enum import StrEnum

import msgspec

from trimtab.core.layout import Demand, Expected, Layout, MemoryFit, Span, Targets
from trimtab.planning.plan_ask import Ask, demand_of_replica
from trimtab.planning.plan_ports import Estimator
from trimtab.planning.rules import Fits, Force, Remark, Rule, load_remarks, size_remarks

RUNNING_MIN_SHARE = 0.95
"""Below this part of the streams that are to run at once, the KV cache does not hold the load."""

UTILISATION_MAX = 0.95
"""Above this a queue does not come to rest in any useful time."""

BUSY_SAID = 2.0
"""From twice of what it serves on, what a replica serves says more than how busy it would be."""

ENDLESS = "without end"
"""What is said of a time under more load than is served."""


class Standing(StrEnum):
    """Where a layout ends up in a plan."""

    CHOSEN = "chosen"
    NEXT = "next"
    MEETS = "meets"
    MISSES = "misses"
    FORBIDDEN = "forbidden"
    DOES_NOT_FIT = "does_not_fit"


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """Whether expected times meet targets: at the expected value, over the whole interval, at its best end.

    `carries`: the load is carried at all, whatever the times. `sure` None: an interval is unknown. `because`: each
    target with what is expected. `excess`: the largest factor by which a target or the load is missed; below 1 none is.
    """

    carries: bool
    meets: bool
    sure: bool | None
    possible: bool
    excess: float
    because: str


class Candidate(msgspec.Struct, frozen=True, kw_only=True):
    """A layout with its replicas and everything that is known of it.

    `expected` is of all replicas together; None where it was not asked because the layout cannot serve. `canary`: a
    rule asks to try it on a slice of traffic first. `capacity`: the most one replica carries within the targets, in
    streams or requests per second as the demand counts them.
    """

    layout: Layout
    standing: Standing
    memory: MemoryFit
    expected: Expected | None
    remarks: tuple[Remark, ...]
    verdict: Verdict | None
    because: str
    canary: bool = False
    capacity: float | None = None

    @property
    def forbidden(self) -> Remark | None:
        """The first rule that forbids it."""
        return next((each for each in self.remarks if each.force is Force.FORBIDS), None)

    @property
    def against(self) -> int:
        """How many rules speak against it."""
        return sum(each.force is Force.AGAINST for each in self.remarks)


def judge(layout: Layout, ask: Ask, fits: Fits, estimator: Estimator) -> Candidate:
    """Judge a layout with its replicas under the demand of the ask, or without one at a single stream each."""
    demand = demand_of_replica(ask.demand, layout.replicas)
    if demand.concurrency is None and demand.rate_per_s is None:
        demand = msgspec.structs.replace(demand, concurrency=1.0)
    one = msgspec.structs.replace(layout, replicas=1)
    memory = estimator.fit(one, demand)
    remarks = tuple(size_remarks(layout, ask, fits))
    if not memory.fits:
        return Candidate(
            layout=layout,
            standing=Standing.DOES_NOT_FIT,
            memory=memory,
            expected=None,
            remarks=remarks,
            verdict=None,
            because=memory.because,
        )
    single = estimator.expected(one, demand)
    expected = of_all_replicas(single, layout, _times(ask.demand, demand, layout.replicas))
    remarks = (*remarks, *load_remarks(layout, ask, single))
    verdict = verdict_on(single, demand, ask.targets)
    forbidden = next((each for each in remarks if each.force is Force.FORBIDS), None)
    if forbidden is not None:
        standing, because = Standing.FORBIDDEN, forbidden.text
    else:
        standing = Standing.MEETS if verdict.meets else Standing.MISSES
        because = verdict.because
    return Candidate(
        layout=layout,
        standing=standing,
        memory=memory,
        expected=expected,
        remarks=remarks,
        verdict=verdict,
        because=because,
        canary=any(each.rule is Rule.EXPERTS_CANDIDATE for each in remarks),
    )


def _times(whole: Demand, one: Demand, replicas: int) -> float:
    """Return how often the load of one replica is there; fewer streams than replicas leave some without."""
    if whole.concurrency is None or one.concurrency is None:
        return float(replicas)
    return min(float(replicas), whole.concurrency / one.concurrency)


def of_all_replicas(single: Expected, layout: Layout, times: float) -> Expected:
    """Return what all replicas do together, as `times` one of them: times stay, tokens per second add up."""
    return msgspec.structs.replace(
        single, layout=layout, output_tokens_per_s=single.output_tokens_per_s * times
    )


def verdict_on(expected: Expected, demand: Demand, targets: Targets) -> Verdict:
    """Compare what is expected of one replica with the targets and with the load it is to carry."""
    load, problem = _load_excess(expected, demand)
    pairs = [
        (name, span, target)
        for name, span, target in (
            ("TTFT", expected.ttft_ms, targets.ttft_ms),
            ("TPOT", expected.tpot_ms, targets.tpot_ms),
        )
        if target is not None
    ]
    told = [f"{name} {said(span)} for {target:g} ms" for name, span, target in pairs]
    carries = not problem
    highs = [(span.high, target) for _, span, target in pairs]
    surely = None if any(high is None for high, _ in highs) else True
    if any(high is not None and high > target for high, target in highs):
        surely = False
    lows = [(span.value if span.low is None else span.low, target) for _, span, target in pairs]
    return Verdict(
        carries=carries,
        meets=carries and all(span.value <= target for _, span, target in pairs),
        sure=carries and surely if surely is not None else None,
        possible=carries and all(low <= target for low, target in lows),
        excess=max([load, *(span.value / target for _, span, target in pairs)]),
        because="; ".join([*told, *problem])
        or f"{_nothing_to_judge(demand)}, and it carries the load",
    )


def _nothing_to_judge(demand: Demand) -> str:
    if demand.output_tokens == 1:
        return "no target to judge an answer of one token by"
    return "no target to meet"


def said(span: Span) -> str:
    """Say an expected time with its interval; one that grows for as long as the load lasts has none."""
    if not math.isfinite(span.value):
        return ENDLESS
    value = f"{span.value:.3g}" if span.value < 1000 else f"{span.value:,.0f}"
    if span.low is None or span.high is None:
        return f"{value} ms (interval unknown)"
    return f"{value} ms ({_short(span.low)} to {_short(span.high)})"


def _short(value: float) -> str:
    return f"{value:.3g}" if value < 1000 else f"{value:,.0f}"


def _load_excess(expected: Expected, demand: Demand) -> tuple[float, list[str]]:
    """Return the load over what a replica carries, and in words why it does not carry it; no words where it does."""
    streams = demand.concurrency
    if streams is not None and expected.batch < RUNNING_MIN_SHARE * streams:
        ran = f"{expected.batch:.0f} of {streams:.0f} streams"
        return streams / max(1e-9, expected.batch), [
            f"{ran} of a replica run at once, as KV cache and engine allow"
        ]
    used = expected.utilisation
    if demand.rate_per_s is not None and used is not None and used > UTILISATION_MAX:
        asked = f"{demand.rate_per_s:.3g} requests per second"
        if used < BUSY_SAID:
            return used / UTILISATION_MAX, [f"a replica would be {used:.0%} busy at {asked}"]
        serves = demand.rate_per_s / used
        return used / UTILISATION_MAX, [f"{asked} come to a replica that serves {serves:.3g}"]
    return 0.0, []
