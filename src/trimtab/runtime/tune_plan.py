"""What a tune will do, decided before it begins: stages, arrivals, the ramp with its compressed peak cycle.

A real peak cycle is a day. A tune brings its own traffic, and with it a cycle of that traffic's own: the workload's
compressed peak, named as such wherever it counts for one.
"""

import random
from collections.abc import Mapping
from typing import Annotated

import msgspec
from msgspec import Meta

from trimtab.core.cost import CostModel
from trimtab.core.lever import Comparison, RampPlan
from trimtab.workloads.base import PeakShape, Workload, WorkloadError
from trimtab.workloads.chat import ChatParams, MixedParams, chat, mixed
from trimtab.workloads.coding import CodingParams, coding

EVEN = PeakShape(period_s=3600.0, low=1.0, high=1.0)
OUTPUT_TOKENS_MEAN = 30.0
TURN_TOKENS = 60.0
"""New prompt tokens per turn of the generated workloads."""


class TunePlan(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Sizes of a tune. Times in seconds, rates in requests per second; rate 0: chosen from measured costs."""

    workload: Annotated[str, Meta(pattern="^(coding|chat|mixed)$")] = "coding"
    seed: Annotated[int, Meta(ge=0)] = 1
    users: Annotated[int, Meta(ge=2, le=1000)] = 5
    think_s: Annotated[float, Meta(ge=0.0)] = 0.5
    repository_tokens: Annotated[int, Meta(ge=40)] = 50
    edit_share: Annotated[float, Meta(ge=0.0, le=1.0)] = 0.7
    block_tokens: Annotated[int, Meta(ge=16, le=200)] = 36
    question_tokens: Annotated[int, Meta(ge=1)] = 16
    turns_per_session: Annotated[int, Meta(ge=1)] = 8
    baseline_requests: Annotated[int, Meta(ge=10, le=10_000)] = 40
    rate_per_s: Annotated[float, Meta(ge=0.0)] = 0.0
    peak_cycle_s: Annotated[float, Meta(gt=0.0)] = 20.0
    block_s: Annotated[float, Meta(gt=0.0)] = 5.0
    edge_s: Annotated[float, Meta(ge=0.0)] = 0.5
    rollout_s_max: Annotated[float, Meta(gt=0.0)] = 300.0
    burst_s: Annotated[float, Meta(gt=0.0)] = 20.0
    calm_s: Annotated[float, Meta(gt=0.0)] = 25.0
    total_s: Annotated[float, Meta(gt=0.0)] = 540.0
    levers_max: Annotated[int, Meta(ge=0, le=10)] = 2


class Rates(msgspec.Struct, frozen=True, kw_only=True):
    """Requests per second of the stages, and what they were chosen from."""

    saturating: float
    affine_capacity: float
    round_robin_capacity: float


def ramp_of(plan: TunePlan) -> RampPlan:
    """Return the ramp of a tune: production's shares, and the workload's own peak cycle instead of a day."""
    return RampPlan(
        peak_cycle_s=plan.peak_cycle_s,
        peak_is=f"the workload's own compressed peak cycle of {plan.peak_cycle_s:g} s",
        comparison=Comparison.SWITCHBACK,
        block_s=plan.block_s,
        edge_s=plan.edge_s,
        # A tune hurts nobody and is short: each veto stops at its own alpha.
        harm_alpha=None,
    )


def service_s(
    cost: CostModel, *, computed_tokens: float, output_tokens: float, batch: float
) -> float:
    """Return the seconds of one replica that a request takes, its decode steps shared by `batch` streams."""
    decode_ms = output_tokens * cost.step_ms(batch) / batch
    return (cost.prefill_ms(computed_tokens) + decode_ms) / 1000.0


def round_robin_capacity(cost: CostModel, replicas: int) -> float:
    """Estimate the requests per second that round robin serves of a workload with growing sessions.

    A session's next turn lands on a replica that last saw it `replicas` turns ago on average, so about that many
    turns' tokens are computed again.
    """
    one = service_s(
        cost,
        computed_tokens=TURN_TOKENS * (replicas + 1),
        output_tokens=OUTPUT_TOKENS_MEAN,
        batch=2.0,
    )
    return replicas / one


def affine_capacity(cost: CostModel, replicas: int) -> float:
    """Estimate the same where every turn finds its session's prefix."""
    one = service_s(
        cost, computed_tokens=TURN_TOKENS * 1.5, output_tokens=OUTPUT_TOKENS_MEAN, batch=2.0
    )
    return replicas / one


def make_workload(
    plan: TunePlan,
    sources: Mapping[str, str],
    *,
    rate_per_s: float,
    seed: int,
    requests: int | None = None,
    duration_s: float | None = None,
    peak: PeakShape = EVEN,
    users: int | None = None,
    turns: int | None = None,
    context_tokens: int,
) -> Workload:
    """Make one stage's arrivals; raises `WorkloadError` naming the parameter that does not fit."""
    rng = random.Random(seed)
    shared = {
        "rate_per_s": rate_per_s,
        "requests": requests,
        "duration_s": duration_s,
        "seed": seed,
        "peak": peak,
        "users": users or plan.users,
    }
    sized = {
        **shared,
        "context_tokens": context_tokens,
        "repository_tokens": plan.repository_tokens,
        # All stages work in the same repositories, as people do; their sessions differ.
        "repository_seed": plan.seed,
        "think_s_min": plan.think_s,
        "edit_share": plan.edit_share,
        "block_tokens_max": plan.block_tokens,
        "edit_output_tokens_max": plan.block_tokens * 3 // 2,
        "question_output_tokens_max": plan.question_tokens,
        "turns_per_session": turns or plan.turns_per_session,
    }
    try:
        match plan.workload:
            case "coding":
                return coding(msgspec.convert(sized, CodingParams), sources, rng)
            case "chat":
                return chat(msgspec.convert(shared, ChatParams), rng)
            case "mixed":
                # Half of the arrivals each; both halves share seed and peak.
                half = {"rate_per_s": rate_per_s / 2.0, "requests": requests and requests // 2}
                both = MixedParams(
                    coding=msgspec.convert({**sized, **half}, CodingParams),
                    chat=msgspec.convert({**shared, **half}, ChatParams),
                )
                return mixed(both, sources, rng)
            case name:
                raise WorkloadError(f"workload {name!r} is unknown: take coding, chat or mixed")
    except msgspec.ValidationError as error:
        raise WorkloadError(f"workload {plan.workload}: {error}") from error
