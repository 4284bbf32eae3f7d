"""What a fleet carries, what one replica fewer leaves, and what tokens cost."""

import msgspec
import pytest
from plan_kit import DEVICE, LawEstimator, cluster, dense, table

from trimtab.core.layout import Demand, PlanInputError, Targets
from trimtab.planning.layouts import Sizes
from trimtab.planning.plan import Plan, plan
from trimtab.planning.plan_ask import Ask, find_exchange
from trimtab.workloads.trace_load import TraceLoad

MODEL = dense(weight_gb=30)
TRACE = TraceLoad(
    source="trace",
    requests=600,
    span_s=240.0,
    input_tokens=1000,
    output_tokens=200,
    context_tokens_max=1200,
    rate_per_s_mean=2.5,
    rate_per_s_max=4.0,
    window_s=60.0,
    rates_per_s=(1.0, 2.0, 4.0, 3.0),
    prefix_share_max=0.0,
)


def planned(
    *, replicas: int | None = None, concurrency: float | None = 30.0, rate: float | None = None,
    price: float | None = None, trace: TraceLoad | None = None,
) -> Plan:  # fmt: skip
    """Ten streams a device and no more, 20 ms each."""
    estimator = LawEstimator(
        MODEL, tpot_ms=table({"one device": 20.0}), streams=lambda _: 10.0, spread=0.05
    )
    ask = Ask(
        model=MODEL,
        accelerator=DEVICE,
        cluster=cluster(8),
        demand=Demand(
            input_tokens=1000, output_tokens=200, concurrency=concurrency, rate_per_s=rate
        ),
        targets=Targets(tpot_ms=25.0),
        sizes=Sizes(replicas=replicas),
        price_per_h=price,
    )
    return plan(ask, estimator, trace=trace)


@pytest.mark.parametrize(
    ("replicas", "holds", "spare"), [(None, False, 4), (3, False, 4), (4, True, 4), (5, True, 5)]
)
def test_one_replica_away_is_checked_at_n_over_n_minus_one(
    replicas: int | None, holds: bool, spare: int
) -> None:
    """30 streams at 10 a replica need three, and four to be without one of them."""
    found = planned(replicas=replicas)
    assert found.capacity is not None
    away = found.capacity.one_away
    assert (away.holds, away.replicas_for_spare) == (holds, spare)
    assert away.load_factor == pytest.approx(away.replicas / (away.replicas - 1))


def test_single_replica_has_no_spare() -> None:
    """With one replica away nothing serves; two would be needed."""
    found = planned(concurrency=5)
    assert found.capacity is not None
    away = found.capacity.one_away
    assert (away.replicas, away.holds, away.load_factor, away.replicas_for_spare) == (
        1, False, None, 2,
    )  # fmt: skip


def test_tokens_cost_the_price_of_all_devices() -> None:
    """30 streams at 20 ms are 1,500 tokens per second on three devices at 2 an hour; inputs are five times as many."""
    found = planned(price=2.0)
    assert found.capacity is not None
    cost = found.capacity.cost
    assert cost is not None
    assert cost.per_h == 6.0
    assert cost.per_million_output_tokens == pytest.approx(6.0 / (1500 * 3600) * 1e6)
    assert cost.per_million_tokens == pytest.approx(6.0 / (9000 * 3600) * 1e6)


def test_cost_without_a_price_is_unknown() -> None:
    """Nothing is made up."""
    found = planned()
    assert found.capacity is not None
    assert found.capacity.cost is None


def test_trace_says_how_many_replicas_each_window_needs() -> None:
    """One replica carries about 2.4 requests per second; the busiest window needs two, the others one or two."""
    found = planned(concurrency=None, rate=4.0, trace=TRACE)
    assert found.capacity is not None
    assert found.chosen is not None
    assert found.chosen.layout.replicas == 2
    assert found.capacity.per_replica == pytest.approx(2.4, rel=0.1)
    hours = found.capacity.hours
    assert hours is not None
    assert (hours.replicas_min, hours.replicas_mean, hours.replicas_max) == (1, 1.5, 2)
    assert hours.spared_share == pytest.approx(0.25)


def test_trace_costs_more_than_its_busiest_window() -> None:
    """Two replicas at 2 an hour: 800 output tokens a second in the busiest window, 500 over the trace."""
    found = planned(concurrency=None, rate=4.0, price=2.0, trace=TRACE)
    assert found.capacity is not None
    assert found.capacity.cost is not None
    cost, over = found.capacity.cost, found.capacity.cost.over_trace
    assert over is not None
    assert cost.per_million_output_tokens == pytest.approx(4.0 / (800 * 3600) * 1e6)
    assert over.per_million_output_tokens == pytest.approx(4.0 / (500 * 3600) * 1e6)
    assert over.per_million_tokens == pytest.approx(4.0 / (3000 * 3600) * 1e6)
    assert over.following_per_million_output_tokens == pytest.approx(3.0 / (500 * 3600) * 1e6)
    assert over.following_per_million_tokens == pytest.approx(3.0 / (3000 * 3600) * 1e6)


def test_streams_that_a_replica_carries_are_not_taken_for_a_traces_arrivals() -> None:
    """A load in streams leaves open how many replicas the trace's requests need."""
    found = planned(concurrency=30.0, price=2.0, trace=TRACE)
    assert found.capacity is not None
    assert found.capacity.cost is not None
    assert (found.capacity.hours, found.capacity.cost.over_trace) == (None, None)


@pytest.mark.parametrize(
    ("changed", "field"),
    [
        ({"price_per_h": -1.0}, "price"),
        ({"expert_skew": 0.5}, "expert_skew"),
        ({"targets": Targets(tpot_ms=0.0)}, "tpot_ms"),
        ({"targets": Targets(ttft_ms=-5.0)}, "ttft_ms"),
        ({"demand": Demand(input_tokens=0, output_tokens=1)}, "isl"),
        ({"demand": Demand(input_tokens=1, output_tokens=-1)}, "osl"),
        ({"demand": Demand(input_tokens=1, output_tokens=1, concurrency=0.0)}, "concurrency"),
        ({"demand": Demand(input_tokens=1, output_tokens=1, rate_per_s=-2.0)}, "rate"),
        ({"demand": Demand(input_tokens=1, output_tokens=1, concurrency=1, rate_per_s=1)}, "rate"),
        ({"demand": Demand(input_tokens=1, output_tokens=1, prefix_share=1.5)}, "prefix_share"),
        ({"demand": Demand(input_tokens=1, output_tokens=1, draft_tokens=-1)}, "draft_tokens"),
        ({"demand": Demand(input_tokens=9, output_tokens=1, context_tokens=5)}, "context"),
    ],
)
def test_value_that_cannot_be_names_its_field(changed: dict[str, object], field: str) -> None:
    """Each value of an ask that no plan can be made for is refused by its name."""
    ask = Ask(
        model=MODEL,
        accelerator=DEVICE,
        cluster=cluster(8),
        demand=Demand(input_tokens=10, output_tokens=10),
    )
    with pytest.raises(PlanInputError) as caught:
        plan(msgspec.structs.replace(ask, **changed), LawEstimator(MODEL))
    assert caught.value.field == field


def test_context_beyond_the_model_is_refused_with_the_longest_input() -> None:
    """8,192 tokens hold 192 of output and 8,000 of input."""
    ask = Ask(
        model=msgspec.structs.replace(MODEL, context_tokens_max=8192),
        accelerator=DEVICE,
        cluster=cluster(8),
        demand=Demand(input_tokens=20_000, output_tokens=192),
    )
    with pytest.raises(PlanInputError, match=r"isl: .* nearest valid: 8000"):
        plan(ask, LawEstimator(MODEL))


def test_collective_is_found_by_the_names_of_engines() -> None:
    """DeepEP is an all-to-all, all-gather with reduce-scatter sends everything everywhere; others are refused."""
    assert find_exchange("DeepEP_low_latency").value == "all-to-all"
    assert find_exchange("allgather_reducescatter").value == "all-reduce"
    with pytest.raises(PlanInputError, match=r"collective: .*deepep"):
        find_exchange("deepeep")
