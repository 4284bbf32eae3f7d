"""One layout under one load: what it holds, what it is expected to do, what rules say, and whether targets are met.

Means are compared with targets, as estimates are means. `sure` asks more: that the whole interval meets them.
"""

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

    `sure` None: an interval is unknown. `because`: each target with what is expected.
    """

    meets: bool
    sure: bool | None
    possible: bool
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
    expected = of_all_replicas(single, layout)
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


def of_all_replicas(single: Expected, layout: Layout) -> Expected:
    """Return what all replicas do together: times stay, tokens per second add up."""
    return msgspec.structs.replace(
        single,
        layout=layout,
        output_tokens_per_s=single.output_tokens_per_s * layout.replicas,
    )


def verdict_on(expected: Expected, demand: Demand, targets: Targets) -> Verdict:
    """Compare what is expected of one replica with the targets and with the load it is to carry."""
    sustained, parts = _sustained(expected, demand)
    told: list[str] = []
    ends: list[tuple[bool, bool | None, bool]] = []
    for name, span, target in (
        ("TTFT", expected.ttft_ms, targets.ttft_ms),
        ("TPOT", expected.tpot_ms, targets.tpot_ms),
    ):
        if target is None:
            continue
        told.append(f"{name} {said(span)} for {target:g} ms")
        sure = None if span.high is None else span.high <= target
        low = span.value if span.low is None else span.low
        ends.append((span.value <= target, sure, low <= target))
    sures = [sure for _, sure, _ in ends]
    surely = False if False in sures else None if None in sures else True
    return Verdict(
        meets=sustained and all(meets for meets, _, _ in ends),
        sure=sustained and surely if surely is not None else None,
        possible=sustained and all(possible for _, _, possible in ends),
        because="; ".join([*told, *parts]) or "no target to meet, and it carries the load",
    )


def said(span: Span) -> str:
    """Say an expected time with its interval."""
    value = f"{span.value:.3g}" if span.value < 1000 else f"{span.value:,.0f}"
    if span.low is None or span.high is None:
        return f"{value} ms (interval unknown)"
    return f"{value} ms ({_short(span.low)} to {_short(span.high)})"


def _short(value: float) -> str:
    return f"{value:.3g}" if value < 1000 else f"{value:,.0f}"


def _sustained(expected: Expected, demand: Demand) -> tuple[bool, list[str]]:
    """Say whether the load is carried at all, and in words why not."""
    streams = demand.concurrency
    if streams is not None and expected.batch < RUNNING_MIN_SHARE * streams:
        return False, [
            f"the KV cache lets {expected.batch:.0f} of {streams:.0f} streams of a replica run at once"
        ]
    used = expected.utilisation
    if demand.rate_per_s is not None and used is not None and used > UTILISATION_MAX:
        return False, [
            f"a replica would be {used:.0%} busy at {demand.rate_per_s:.3g} requests per second"
        ]
    return True, []
