"""What a tune is going to do is planned from sizes, a seed and measured costs."""

import msgspec
import pytest
from control_kit import routing_lever
from routing_kit import COST

from trimtab.core.lever import Comparison, RampPlan, check_record
from trimtab.runtime.sources import standard_library
from trimtab.runtime.tune_plan import (
    EVEN,
    TunePlan,
    affine_capacity,
    make_workload,
    ramp_of,
    round_robin_capacity,
    service_s,
)
from trimtab.workloads.base import Workload, WorkloadError, estimate_tokens

SOURCES = standard_library()
# Parsing all of them takes a second, so most stages are made of some, in functions of more tokens.
SOME = dict(list(SOURCES.items())[:12])
PLAN = TunePlan(block_tokens=80, repository_tokens=200)
CONTEXT_TOKENS = 2048


def made(plan: TunePlan, *, seed: int = 3, **changes: object) -> Workload:
    """The arrivals of a stage of twenty requests at two per second."""
    wanted: dict[str, object] = {"rate_per_s": 2.0, "requests": 20, **changes}
    return make_workload(plan, SOME, seed=seed, context_tokens=CONTEXT_TOKENS, **wanted)  # type: ignore[arg-type]


def test_ramp_is_productions_but_for_its_cycle_and_blocks() -> None:
    """The shares are those of a real rollout, and the cycle says that it is a compressed one."""
    plan = TunePlan()
    ramp = ramp_of(plan)
    assert ramp.shares == RampPlan().shares
    assert (ramp.peak_cycle_s, ramp.block_s, ramp.edge_s) == (
        plan.peak_cycle_s,
        plan.block_s,
        plan.edge_s,
    )
    assert "the workload's own compressed peak cycle of 20 s" in ramp.peak_is
    assert ramp.comparison is Comparison.SWITCHBACK


def test_ramp_of_a_tune_is_accepted_in_a_record() -> None:
    """Edges leave something of a block, and a cycle has whole pairs of blocks."""
    ramp = ramp_of(TunePlan())
    check_record(msgspec.structs.replace(routing_lever(), ramp=ramp))
    assert ramp.peak_cycle_s >= 4 * ramp.block_s


def test_time_of_a_request_is_its_prefill_and_its_part_of_the_decode_steps() -> None:
    """100 tokens at 10 ms, and 10 steps of 30 ms shared by two streams."""
    found = service_s(COST, computed_tokens=100, output_tokens=10, batch=2.0)
    assert found == pytest.approx(1.0 + 0.15)


def test_affine_routing_serves_more_than_round_robin_and_the_more_so_the_more_replicas() -> None:
    """Round robin computes the turns again that other replicas saw; one replica loses least."""
    gains = [affine_capacity(COST, n) / round_robin_capacity(COST, n) for n in (1, 2, 4)]
    assert gains == sorted(gains)
    assert gains[0] > 1.0


@pytest.mark.parametrize("workload", ["coding", "chat", "mixed"])
def test_stage_is_the_same_for_the_same_seed_and_another_for_another(workload: str) -> None:
    """The number of requests and their order of arrival are as asked."""
    plan = msgspec.structs.replace(PLAN, workload=workload)
    stage = made(plan)
    assert made(plan) == stage
    assert made(plan, seed=4) != stage
    assert len(stage.requests) == 20
    times = [request.send_at_s for request in stage.requests]
    assert times == sorted(times)


@pytest.mark.parametrize("workload", ["coding", "chat", "mixed"])
def test_every_prompt_fits_the_context(workload: str) -> None:
    """With its output: an overflow would measure errors, not the lever."""
    for request in made(msgspec.structs.replace(PLAN, workload=workload), requests=60).requests:
        body = msgspec.json.decode(request.body)
        prompt = sum(estimate_tokens(message["content"]) for message in body["messages"])
        assert prompt + body["max_tokens"] <= CONTEXT_TOKENS


@pytest.mark.parametrize("workload", ["coding", "mixed"])
def test_stages_share_repositories_but_not_sessions(workload: str) -> None:
    """The first message about a repository recurs in another stage of the tune."""

    def heads(stage: Workload) -> set[str]:
        coding = [each for each in stage.requests if each.label in ("edit", "question")]
        bodies = [msgspec.json.decode(request.body) for request in coding]
        return {body["messages"][1]["content"] for body in bodies}

    plan = msgspec.structs.replace(PLAN, workload=workload)
    one, two = made(plan, seed=3), made(plan, seed=4)
    assert heads(one) & heads(two) != set()
    assert heads(one) & heads(made(msgspec.structs.replace(plan, seed=9), seed=3)) == set()


def test_stage_of_a_duration_ends_within_it() -> None:
    """As many requests as the rate gives."""
    stage = made(PLAN, requests=None, duration_s=30.0)
    assert all(request.send_at_s <= 30.0 for request in stage.requests)
    assert len(stage.requests) > 10
    assert stage.peak == EVEN


def test_unknown_or_impossible_workload_is_refused_with_the_parameter() -> None:
    """Before anything is started."""
    foreign = msgspec.structs.replace(PLAN, workload="tea")
    with pytest.raises(WorkloadError, match="'tea' is unknown: take coding, chat or mixed"):
        made(foreign)
    with pytest.raises(WorkloadError, match="rate_per_s"):
        made(PLAN, rate_per_s=-1.0)
    with pytest.raises(msgspec.ValidationError, match="users"):
        msgspec.convert({"users": 0}, TunePlan)


def test_default_plan_is_made_of_the_library_that_is_here() -> None:
    """`trimtab tune` needs nothing else for its traffic."""
    stage = make_workload(
        TunePlan(), SOURCES, rate_per_s=2.0, seed=1, requests=20, context_tokens=CONTEXT_TOKENS
    )
    assert {request.label for request in stage.requests} == {"edit", "question"}
