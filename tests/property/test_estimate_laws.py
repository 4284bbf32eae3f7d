"""Laws of estimates, whatever the step times, the load and the layout."""

import math

import msgspec
from hypothesis import given
from hypothesis import strategies as st
from times_kit import LawTimes

from trimtab.core.layout import Demand, Layout
from trimtab.core.served import EngineKind
from trimtab.planning.estimate import Bounds, Replica
from trimtab.planning.server_pace import pace_of

ENGINES = st.sampled_from([EngineKind.VLLM, EngineKind.SGLANG, EngineKind.TRTLLM])
LAYOUTS = st.builds(
    Layout,
    tp=st.sampled_from([1, 2, 4, 8]),
    pp=st.sampled_from([1, 2, 4]),
    attention_dp=st.sampled_from([1, 2, 4]),
)
TIMES = st.builds(
    LawTimes, base=st.floats(1.0, 50.0), stream=st.floats(0.0, 1.0), token=st.floats(0.001, 0.2)
)
REPLICAS = st.builds(
    lambda times, layout, engine, held: Replica(
        times, layout, pace_of(engine), Bounds(kv_tokens=held)
    ),
    TIMES,
    LAYOUTS,
    ENGINES,
    st.floats(0.0, 1e7),
)
LENGTHS = st.builds(
    Demand,
    input_tokens=st.integers(1, 20_000),
    output_tokens=st.integers(1, 4_000),
    prefix_share=st.floats(0.0, 1.0),
)
CLOSE = 1.0 + 1e-6


def closed(demand: Demand, clients: float) -> Demand:
    return msgspec.structs.replace(demand, concurrency=clients)


def arriving(demand: Demand, rate_per_s: float) -> Demand:
    return msgspec.structs.replace(demand, rate_per_s=rate_per_s)


@given(replica=REPLICAS, demand=LENGTHS, clients=st.floats(1.0, 2000.0), more=st.floats(1.0, 8.0))
def test_more_clients_never_shorten_anything(
    replica: Replica, demand: Demand, clients: float, more: float
) -> None:
    """Every stream added costs the others, or waits."""
    few = replica.expected(closed(demand, clients))
    many = replica.expected(closed(demand, clients * more))
    assert few.tpot_ms.value <= many.tpot_ms.value * CLOSE
    assert few.ttft_ms.value <= many.ttft_ms.value * CLOSE


@given(replica=REPLICAS, demand=LENGTHS, clients=st.floats(1.0, 2000.0))
def test_closed_loop_is_finite_and_keeps_littles_law(
    replica: Replica, demand: Demand, clients: float
) -> None:
    """Clients in flight are throughput times the life of a request with its queue."""
    found = replica.expected(closed(demand, clients))
    life_s = (found.ttft_ms.value + (demand.output_tokens - 1) * found.tpot_ms.value) / 1000.0
    per_s = found.output_tokens_per_s / demand.output_tokens
    assert 1.0 <= found.batch <= clients * CLOSE
    assert math.isfinite(life_s)
    assert math.isclose(per_s * life_s, clients, rel_tol=1e-6)


@given(replica=REPLICAS, demand=LENGTHS, rate=st.floats(1e-4, 100.0), more=st.floats(1.0, 8.0))
def test_more_arrivals_use_more_and_never_shorten_a_token(
    replica: Replica, demand: Demand, rate: float, more: float
) -> None:
    """A rate that outruns the replica has no finite first token, and no lower one has a longer time per token."""
    few = replica.expected(arriving(demand, rate))
    many = replica.expected(arriving(demand, rate * more))
    assert few.utilisation is not None
    assert many.utilisation is not None
    assert few.utilisation <= many.utilisation * CLOSE
    assert math.isfinite(few.ttft_ms.value) == (few.utilisation < 0.999)
    if math.isfinite(many.ttft_ms.value):
        assert few.tpot_ms.value <= many.tpot_ms.value * (1.0 + 1e-3)


@given(replica=REPLICAS, demand=LENGTHS, clients=st.floats(1.0, 500.0), share=st.floats(0.0, 1.0))
def test_cached_prefix_never_costs(
    replica: Replica, demand: Demand, clients: float, share: float
) -> None:
    """What is not computed takes no time."""
    without = msgspec.structs.replace(closed(demand, clients), prefix_share=0.0)
    cached = msgspec.structs.replace(without, prefix_share=share)
    assert replica.expected(cached).ttft_ms.value <= (
        replica.expected(without).ttft_ms.value * CLOSE
    )
