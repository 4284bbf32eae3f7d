"""Laws of planning that hold for any model, cluster and load."""

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st
from plan_kit import DEVICE, LawEstimator, cluster, dense, mixture

from trimtab.core.layout import Demand, Targets
from trimtab.core.served import ModelShape
from trimtab.planning.candidates import Standing
from trimtab.planning.layouts import placed_replicas, possible_layouts
from trimtab.planning.plan import Plan, plan
from trimtab.planning.plan_ask import Ask

models = st.one_of(
    st.builds(
        dense,
        heads=st.sampled_from([8, 28, 40, 52, 64, 96]),
        kv_heads=st.sampled_from([1, 2, 4, 8]),
        layers=st.integers(1, 80),
        weight_gb=st.floats(1.0, 900.0),
    ),
    st.builds(
        mixture,
        experts=st.sampled_from([8, 60, 64, 128, 256]),
        per_token=st.integers(1, 8),
        latent=st.booleans(),
        layers=st.integers(1, 80),
        weight_gb=st.floats(10.0, 900.0),
    ),
)
clusters = st.builds(cluster, st.sampled_from([1, 2, 4, 8]), st.integers(1, 4))


def planned(
    model: ModelShape, where: object, concurrency: float, tpot: float, *, spread: float = 0.2
) -> Plan:
    ask = Ask(
        model=model,
        accelerator=DEVICE,
        cluster=where,
        demand=Demand(input_tokens=1000, output_tokens=100, concurrency=concurrency),
        targets=Targets(tpot_ms=tpot),
    )
    return plan(ask, LawEstimator(model, spread=spread))


@given(model=models, where=clusters)
def test_every_possible_layout_divides_and_is_placed(model: ModelShape, where: object) -> None:
    """Heads and experts divide, every stage has a layer, and at least one replica lies on the cluster."""
    for each in possible_layouts(model, where).layouts:
        assert model.heads % each.tp == 0
        assert each.pp <= model.layers
        assert placed_replicas(each, where) >= 1
        assert each.moe_ep == 1 or model.experts % each.moe_ep == 0
        if model.experts:
            assert each.moe_tp * each.moe_ep == each.tp * each.attention_dp


@settings(max_examples=60)
@given(
    model=models,
    where=clusters,
    concurrency=st.floats(1.0, 3000.0),
    tpot=st.floats(2.0, 200.0),
)
def test_chosen_layout_meets_targets_is_allowed_and_lies_on_the_cluster(
    model: ModelShape, where: object, concurrency: float, tpot: float
) -> None:
    """It fits, no rule forbids it, its expected time keeps the target, and no allowed one has fewer devices."""
    found = planned(model, where, concurrency, tpot)
    if found.chosen is None:
        assert [each for each in found.ranked if each.standing is Standing.MEETS] == []
        return
    layout, expected = found.chosen.layout, found.chosen.expected
    assert found.chosen.memory.fits
    assert found.chosen.forbidden is None
    assert expected.tpot_ms.value <= tpot
    assert layout.replicas <= placed_replicas(layout, where)
    meeting = [each for each in found.ranked if each.verdict and each.verdict.meets]
    assert layout.devices == min(each.layout.devices for each in meeting if not each.forbidden)


@settings(max_examples=40)
@given(
    model=models,
    where=clusters,
    concurrency=st.floats(1.0, 1000.0),
    more=st.floats(1.0, 4.0),
    tpot=st.floats(5.0, 200.0),
)
def test_more_load_never_takes_fewer_devices(
    model: ModelShape, where: object, concurrency: float, more: float, tpot: float
) -> None:
    """With a model whose layouts no rule on load forbids, devices grow with the load or nothing is found."""
    model = msgspec.structs.replace(model, experts=None, experts_per_token=None, expert_bytes=0.0)
    small = planned(model, where, concurrency, tpot)
    large = planned(model, where, concurrency * more, tpot)
    if large.chosen is not None:
        assert small.chosen is not None
        assert small.chosen.layout.devices <= large.chosen.layout.devices


@settings(max_examples=30)
@given(model=models, where=clusters, concurrency=st.floats(1.0, 500.0), tpot=st.floats(5.0, 100.0))
def test_same_question_has_the_same_answer(
    model: ModelShape, where: object, concurrency: float, tpot: float
) -> None:
    """A plan depends on its question alone."""
    assert planned(model, where, concurrency, tpot) == planned(model, where, concurrency, tpot)
