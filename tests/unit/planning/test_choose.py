"""The fewest devices that meet the targets, the order among equals, and what is measured to be sure."""

import itertools
from collections.abc import Callable

import msgspec
import pytest
from plan_kit import DEVICE, NO_PEER, LawEstimator, cluster, dense, mixture, table

from trimtab.core.layout import Cluster, Demand, Layout, Targets
from trimtab.core.served import ModelShape
from trimtab.diagnosis.served_facts import ExpertExchange
from trimtab.planning.candidates import Standing
from trimtab.planning.layouts import Sizes
from trimtab.planning.plan import Plan, plan
from trimtab.planning.plan_ask import Ask


def planned(
    model: ModelShape,
    where: Cluster,
    *,
    concurrency: float | None = None,
    rate: float | None = None,
    tpot: float | None = None,
    ttft: float | None = None,
    estimator: LawEstimator | None = None,
    **more: object,
) -> Plan:
    demand = Demand(input_tokens=1000, output_tokens=200, concurrency=concurrency, rate_per_s=rate)
    ask = Ask(
        model=model,
        accelerator=DEVICE,
        cluster=where,
        demand=demand,
        targets=Targets(tpot_ms=tpot, ttft_ms=ttft),
    )
    return plan(msgspec.structs.replace(ask, **more), estimator or LawEstimator(model))


def label(found: Plan) -> str:
    assert found.chosen is not None, found.because
    return found.chosen.layout.label


def slopes(start: dict[int, float], slope: dict[int, float]) -> Callable[[Layout, float], float]:
    """Time per token of TP sizes as a line over the batch."""

    def tpot_ms(layout: Layout, batch: float) -> float:
        if layout.tp not in start or layout.pp > 1:
            return 10_000.0
        return start[layout.tp] + slope[layout.tp] * (batch - 1.0)

    return tpot_ms


# 32B on eight devices: 36, 50, 63 tokens/s at batch 1 and 528, 660, 760 at batch 16 for TP2, TP4, TP8.
LINES = slopes({2: 27.8, 4: 20.0, 8: 15.9}, {2: 0.17, 4: 0.28, 8: 0.34})


def measured(streams: float = 64.0) -> LawEstimator:
    model = dense(weight_gb=100.0)
    return LawEstimator(model, tpot_ms=LINES, streams=lambda _: streams, spread=0.05)


@pytest.mark.parametrize(
    ("concurrency", "expected"), [(64, "TP2"), (256, "TP2 x4"), (150, "TP2 x3")]
)
def test_throughput_within_a_loose_target_is_replicas_of_the_smallest_that_fits(
    concurrency: float, expected: str
) -> None:
    """It fits two devices and 40 ms are met there: replicas of TP2, as many as the load needs."""
    found = planned(dense(), cluster(8), concurrency=concurrency, tpot=40, estimator=measured())
    assert label(found) == expected


def test_without_a_load_all_devices_make_the_most_tokens() -> None:
    """Eight devices within 40 ms: four replicas of TP2 make more than two of TP4 or one of TP8."""
    found = planned(dense(), cluster(8), tpot=40, estimator=measured())
    assert label(found) == "TP2 x4"


def test_single_stream_target_takes_the_size_that_meets_it_and_states_its_price() -> None:
    """17 ms for one stream need TP8 (15.9 ms; TP4 20 ms); tokens per second and device fall to 63% of TP4's."""
    found = planned(dense(), cluster(8), concurrency=1, tpot=17, estimator=measured())
    assert label(found) == "TP8"
    rows = {each.devices: each for each in found.growth}
    ratio = rows[8].output_tokens_per_s_device / rows[4].output_tokens_per_s_device
    assert ratio == pytest.approx(20.0 / 15.9 / 2)


def test_one_device_without_peer_access_is_never_cut() -> None:
    """13B fits one device, and its link has no peer access: no tensor parallelism even for a target that misses."""
    model = dense(heads=40, kv_heads=40, layers=40, weight_gb=26)
    where = cluster(2, link=NO_PEER)
    assert label(planned(model, where, concurrency=8, tpot=40)) == "one device"
    missed = planned(model, where, concurrency=8, tpot=6)
    assert missed.chosen is None
    assert missed.ranked[0].layout.tp == 1


def test_model_that_fits_nowhere_says_how_much_is_missing() -> None:
    """No layout holds 4 TB on eight devices of 80 GB."""
    found = planned(dense(weight_gb=4000), cluster(8), concurrency=1)
    assert found.chosen is None
    assert "does not fit on 8 accelerators" in found.because
    assert {each.standing for each in found.ranked} == {Standing.DOES_NOT_FIT}
    assert found.ranked[0].layout.devices_per_replica == 8
    lacking = [-each.memory.kv_bytes for each in found.ranked]
    assert lacking == sorted(lacking)


def test_stages_across_nodes_come_when_nothing_else_fits() -> None:
    """900 GB need two nodes: TP8 in each and two stages between them."""
    found = planned(dense(weight_gb=900, layers=80), cluster(8, 2), concurrency=4)
    assert label(found) == "TP8 PP2"


@pytest.mark.parametrize(
    ("skew", "exchange", "expert_parallel"),
    [
        (1.2, ExpertExchange.ALL_TO_ALL, True),
        (3.5, ExpertExchange.ALL_TO_ALL, False),
        (1.2, ExpertExchange.ALL_REDUCE, False),
        (None, None, False),
    ],
)
def test_experts_are_dealt_out_only_with_even_load_and_an_all_to_all(
    skew: float | None, exchange: ExpertExchange | None, expert_parallel: bool
) -> None:
    """4,000 streams over 16 devices: expert parallel is chosen on a canary, or not at all."""
    model = mixture()
    found = planned(
        model,
        cluster(8, 2),
        concurrency=4000,
        estimator=LawEstimator(model, device_gb=140),
        expert_skew=skew,
        exchange=exchange,
    )
    assert found.chosen is not None
    assert (found.chosen.layout.moe_ep > 1, found.chosen.canary) == (
        expert_parallel,
        expert_parallel,
    )


def test_small_batch_of_few_experts_is_tensor_parallel() -> None:
    """8 experts, top 2, 16 streams: no expert parallel, whatever the link."""
    model = mixture(experts=8, per_token=2, latent=False, weight_gb=90)
    found = planned(
        model, cluster(8), concurrency=16, tpot=12, expert_skew=1.1,
        exchange=ExpertExchange.ALL_TO_ALL,
    )  # fmt: skip
    assert found.chosen is not None
    assert found.chosen.layout.moe_ep == 1
    barred = [each for each in found.ranked if each.layout.moe_ep > 1]
    assert {each.standing for each in barred} <= {Standing.FORBIDDEN, Standing.DOES_NOT_FIT}


def test_chosen_layout_has_fewest_devices_of_all_that_meet_the_targets() -> None:
    """Whatever the load, nothing that meets the targets with fewest rules against it has fewer devices."""
    for concurrency, tpot in itertools.product((1, 16, 128, 600), (8, 15, 40)):
        found = planned(dense(), cluster(8, 2), concurrency=concurrency, tpot=tpot)
        meeting = [each for each in found.ranked if each.verdict and each.verdict.meets]
        allowed = [each.layout.devices for each in meeting if not each.forbidden]
        if found.chosen is not None:
            assert found.chosen.layout.devices == min(allowed)
        else:
            assert allowed == []


def test_fixed_sizes_are_the_only_ones_planned() -> None:
    """Two replicas of TP4 were asked for, and nothing else is judged."""
    found = planned(dense(), cluster(8), concurrency=64, tpot=40, sizes=Sizes(tp=4, replicas=2))
    assert {
        (each.layout.tp, each.layout.replicas) for each in found.ranked if each.layout.pp == 1
    } == {(4, 2)}


def test_uncertain_choice_is_measured_with_the_rival_that_needs_fewer_devices() -> None:
    """TP8 meets 20 ms, TP4 misses it by less than its interval: both are measured, and a sure one is among the next."""
    model = dense()
    times = table({"TP4": 21.0, "TP8": 14.0})
    estimator = LawEstimator(model, tpot_ms=times, spread=0.3)
    found = planned(model, cluster(8), concurrency=4, tpot=20, estimator=estimator)
    assert label(found) == "TP8"
    assert [each.layout.label for each in found.measurements] == ["TP8", "TP4"]
    rival = found.measurements[1]
    assert "4 fewer accelerators" in rival.settles
    assert rival.chance is not None
    assert 0.2 < rival.chance < 0.5


def test_unknown_interval_is_never_called_sure() -> None:
    """Without an interval a plan says so instead of promising."""
    model = dense()
    estimator = LawEstimator(model, spread=None)
    found = planned(model, cluster(8), concurrency=4, tpot=20, estimator=estimator)
    assert found.chosen is not None
    assert found.chosen.verdict is not None
    assert found.chosen.verdict.sure is None
    assert any("interval unknown" in each for each in found.uncertain)


def test_growth_that_reverses_is_named() -> None:
    """TP8 slower than TP4 is said to reverse the gain."""
    model = dense()
    estimator = LawEstimator(model, tpot_ms=table({"TP2": 30.0, "TP4": 20.0, "TP8": 24.0}))
    found = planned(model, cluster(8), concurrency=4, tpot=25, estimator=estimator)
    assert {each.devices: each.reverses for each in found.growth} == {4: False, 8: True}


def test_plan_for_64_devices_asks_few_times() -> None:
    """The search stays small enough for a plan within a second at half a millisecond an answer."""
    model = mixture()
    estimator = LawEstimator(model, device_gb=140)
    planned(model, cluster(8, 8), concurrency=4000, tpot=60, estimator=estimator)
    assert estimator.calls < 2000


def test_replicas_without_a_stream_make_no_tokens() -> None:
    """One stream on four replicas makes as many tokens as on one."""
    found = planned(
        dense(), cluster(8), concurrency=1, tpot=40, estimator=measured(), sizes=Sizes(tp=2)
    )
    four = planned(
        dense(), cluster(8), concurrency=1, tpot=40, estimator=measured(),
        sizes=Sizes(tp=2, replicas=4),
    )  # fmt: skip
    tokens = [
        each.chosen.expected.output_tokens_per_s
        for each in (found, four)
        if each.chosen is not None and each.chosen.expected is not None
    ]
    assert tokens == [pytest.approx(1000 / 27.8)] * 2
