"""What a fleet of a layout carries, what one replica fewer leaves, and what tokens cost.

With one of N replicas away (restarted, updated or lost) the others get N/(N-1) of their load; a fleet keeps its targets
then only if they are met at that load. Cost per million tokens is the price of all devices over the tokens that the
demand makes, not over what they could make at most. Of a trace the demand is its busiest window, in which tokens are
the cheapest: over the whole trace the same fleet makes fewer, so that cost is told too, with all replicas kept and
with as many as each window needs.
"""

import math
from collections.abc import Sequence

import msgspec

from trimtab.core.layout import Demand
from trimtab.planning.candidates import Candidate, judge
from trimtab.planning.plan_ask import Ask
from trimtab.planning.plan_ports import Estimator
from trimtab.planning.rules import Fits
from trimtab.workloads.trace_load import TraceLoad


class OneAway(msgspec.Struct, frozen=True, kw_only=True):
    """What holds while one replica of N is away. `replicas_for_spare`: how many would keep the targets then."""

    replicas: int
    holds: bool
    load_factor: float | None
    because: str
    replicas_for_spare: int | None


class TraceCost(msgspec.Struct, frozen=True, kw_only=True):
    """Cost per million tokens over a whole trace: the fleet kept throughout, and `following` the load by windows."""

    per_million_output_tokens: float
    per_million_tokens: float
    following_per_million_output_tokens: float
    following_per_million_tokens: float


class Cost(msgspec.Struct, frozen=True, kw_only=True):
    """What the fleet costs. Per million tokens at the demand; None where no rate of tokens is expected."""

    price_per_h: float
    per_h: float
    per_million_output_tokens: float | None
    per_million_tokens: float | None
    over_trace: TraceCost | None = None


class Hours(msgspec.Struct, frozen=True, kw_only=True):
    """How many replicas each window of a trace needs: at most, on average, and what following the load would spare."""

    window_s: float
    replicas_max: int
    replicas_mean: float
    replicas_min: int
    spared_share: float


class Capacity(msgspec.Struct, frozen=True, kw_only=True):
    """What the chosen fleet carries within the targets, in `unit`, and how much of that the demand is."""

    unit: str
    per_replica: float | None
    whole: float | None
    used_share: float | None
    one_away: OneAway
    cost: Cost | None
    hours: Hours | None = None


def unit_of(demand: Demand) -> str:
    """Return what a load of the demand counts."""
    return "requests per second" if demand.rate_per_s is not None else "streams"


def capacity(
    chosen: Candidate, ask: Ask, fits: Fits, estimator: Estimator, trace: TraceLoad | None = None
) -> Capacity:
    """Return what the chosen layout carries, its spare and its cost."""
    each, replicas = chosen.capacity, chosen.layout.replicas
    whole = None if each is None else each * replicas
    load = ask.demand.concurrency or ask.demand.rate_per_s
    # what a replica carries in streams says nothing of a trace's arrivals
    arrivals = each if ask.demand.rate_per_s is not None else None
    hours = None if trace is None or not arrivals else _hours(arrivals, trace)
    return Capacity(
        unit=unit_of(ask.demand),
        per_replica=each,
        whole=whole,
        used_share=load / whole if whole and load else None,
        one_away=_one_away(chosen, ask, fits, estimator),
        cost=_cost(chosen, ask, trace, hours),
        hours=hours,
    )


def _one_away(chosen: Candidate, ask: Ask, fits: Fits, estimator: Estimator) -> OneAway:
    count = chosen.layout.replicas
    load = ask.demand.concurrency or ask.demand.rate_per_s
    spare = None
    if chosen.capacity and load:
        spare = max(2, math.ceil(load / chosen.capacity - 1e-9) + 1)
    if count < 2:
        return OneAway(
            replicas=count,
            holds=False,
            load_factor=None,
            because="there is one replica: while it is away nothing serves",
            replicas_for_spare=spare,
        )
    fewer = msgspec.structs.replace(chosen.layout, replicas=count - 1)
    judged = judge(fewer, ask, fits, estimator)
    holds = bool(judged.verdict and judged.verdict.meets)
    return OneAway(
        replicas=count,
        holds=holds,
        load_factor=count / (count - 1),
        because=f"{count - 1} of {count} get {count / (count - 1):.2f} times their load: {judged.because}",
        replicas_for_spare=count if holds else spare,
    )


def _cost(chosen: Candidate, ask: Ask, trace: TraceLoad | None, hours: Hours | None) -> Cost | None:
    if ask.price_per_h is None:
        return None
    per_h = ask.price_per_h * chosen.layout.devices
    output = chosen.expected.output_tokens_per_s if chosen.expected else 0.0
    whole = output * (1.0 + ask.demand.input_tokens / ask.demand.output_tokens)
    return Cost(
        price_per_h=ask.price_per_h,
        per_h=per_h,
        per_million_output_tokens=per_h / (output * 3600.0) * 1e6 if output else None,
        per_million_tokens=per_h / (whole * 3600.0) * 1e6 if whole else None,
        over_trace=None
        if trace is None or hours is None
        else _trace_cost(chosen, ask, trace, hours),
    )


def _trace_cost(chosen: Candidate, ask: Ask, trace: TraceLoad, hours: Hours) -> TraceCost:
    """Return the cost of a trace's requests at the demand's lengths; those of a broken last window are left out."""
    demand = ask.demand
    rate_per_s = sum(trace.rates_per_s) / len(trace.rates_per_s)
    output = rate_per_s * demand.output_tokens * 3600.0 / 1e6
    whole = rate_per_s * (demand.input_tokens + demand.output_tokens) * 3600.0 / 1e6
    price = (ask.price_per_h or 0.0) * chosen.layout.devices
    following = price * hours.replicas_mean / chosen.layout.replicas
    return TraceCost(
        per_million_output_tokens=price / output,
        per_million_tokens=price / whole,
        following_per_million_output_tokens=following / output,
        following_per_million_tokens=following / whole,
    )


def _hours(per_replica: float, trace: TraceLoad) -> Hours:
    needed = [max(1, math.ceil(rate / per_replica - 1e-9)) for rate in trace.rates_per_s]
    mean = _mean(needed)
    return Hours(
        window_s=trace.window_s,
        replicas_max=max(needed),
        replicas_mean=mean,
        replicas_min=min(needed),
        spared_share=1.0 - mean / max(needed),
    )


def _mean(values: Sequence[int]) -> float:
    return sum(values) / len(values)
