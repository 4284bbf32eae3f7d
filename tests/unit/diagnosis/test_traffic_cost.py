"""Costs learned from traffic, where nobody may load a server for a measurement."""

import random

import pytest
from events_kit import request

from trimtab.core.cost import START_COST, CostModel
from trimtab.core.events import RequestServed
from trimtab.core.record import RequestRecord, Tokens
from trimtab.core.types import ErrorClass
from trimtab.diagnosis.traffic_cost import cost_from_traffic, differs


def record(
    prompt: int, ttft_ms: float, *, batch: int = 1, tpot_ms: float | None = 10.0, **fields: object
) -> RequestRecord:
    event = request(1)
    assert isinstance(event, RequestServed)
    values: dict[str, object] = {
        "stream": True,
        "status": 200,
        "error": ErrorClass.NONE,
        "client_aborted": False,
        "ttft_ms": ttft_ms,
        "tpot_ms": tpot_ms,
        "batch_at_admission": batch,
        "tokens": Tokens(prompt=prompt, delivered=0, output=20),
    }
    known = {name: getattr(event.record, name) for name in event.record.__struct_fields__}
    return RequestRecord(**(known | values | fields))


def traffic(*, waits: bool = True) -> list[RequestRecord]:
    """Return requests on servers whose prefill costs 20 ms and 0.1 ms a token; many wait in a queue."""
    rng = random.Random(5)
    found = []
    for _ in range(300):
        tokens, batch = rng.randrange(50, 8000), rng.randrange(1, 17)
        wait_ms = rng.choice([0.0, 0.0, rng.uniform(0.0, 2000.0)]) if waits else 0.0
        found.append(
            record(tokens, 20.0 + 0.1 * tokens + wait_ms, batch=batch, tpot_ms=8.0 + 0.5 * batch)
        )
    return found


def test_costs_are_those_of_the_requests_that_did_not_wait() -> None:
    """A queue can only add time: the line lies under the points."""
    cost = cost_from_traffic(traffic())
    assert cost is not None
    assert cost.prefill_ms(4000) == pytest.approx(420.0, rel=0.10)
    assert cost.step_ms(8) == pytest.approx(12.0, rel=0.05)
    assert cost.prefill_samples >= 3
    assert cost.source == "learned from 300 prefills of the fleet's traffic"


def test_reused_tokens_are_not_counted_as_computed() -> None:
    """A prompt that was almost all in the cache shows the cost of its rest."""
    cached = [
        record(4000 + n, 20.0 + 0.1 * (500 + n), tokens=Tokens(prompt=4000 + n, delivered=3500))
        for n in range(40)
    ]
    cost = cost_from_traffic([*traffic(waits=False), *cached])
    assert cost is not None
    assert cost.prefill_ms(4000) == pytest.approx(420.0, rel=0.05)


def test_engine_that_tells_no_reuse_teaches_by_fresh_prompts_only() -> None:
    """Where a replica was believed to hold something, nobody knows what was computed."""
    held = [
        record(5000, 1.0, tokens=Tokens(prompt=5000, held_best=4900, output=9)) for _ in range(50)
    ]
    fresh = [
        record(
            each.tokens.prompt or 0,
            each.ttft_ms or 0.0,
            tokens=Tokens(prompt=each.tokens.prompt, held_best=0, output=9),
        )
        for each in traffic(waits=False)
    ]
    cost = cost_from_traffic([*fresh, *held])
    assert cost is not None
    assert cost.prefill_ms(4000) == pytest.approx(420.0, rel=0.05)


@pytest.mark.parametrize(
    "records",
    [
        traffic()[:10],
        [record(1000, 120.0) for _ in range(100)],
        [record(40 * n, 50.0, status=500) for n in range(1, 100)],
        [record(40 * n, 50.0, stream=False) for n in range(1, 100)],
        [record(40 * n, 50.0, tpot_ms=None) for n in range(1, 100)],
    ],
    ids=["few", "one size", "failed", "no streams", "no steps"],
)
def test_too_little_teaches_nothing(records: list[RequestRecord]) -> None:
    """What is routed with stays."""
    assert cost_from_traffic(records) is None


def cost(per_token: float) -> CostModel:
    return CostModel(
        prefill_base_ms=20.0,
        prefill_ms_per_token=per_token,
        step_base_ms=8.0,
        step_ms_per_stream=0.5,
        prefill_samples=9,
        step_samples=9,
        source="test",
    )


def test_small_moves_are_no_news() -> None:
    """Routing follows costs that moved by more than a tenth."""
    assert not differs(cost(0.10), cost(0.105))
    assert differs(cost(0.10), cost(0.13))
    assert differs(START_COST, cost(0.10))


@pytest.mark.parametrize(("batches", "learns"), [((4,), False), ((4, 5), True), ((1,), True)])
def test_batches_of_one_size_do_not_tell_what_a_stream_alone_takes(
    batches: tuple[int, ...], learns: bool
) -> None:
    """Their line would go through the origin, and a stream alone would cost a quarter of four together."""
    found = [
        record(500 + 20 * at, 70.0 + 2.0 * at, batch=batches[at % len(batches)], tpot_ms=25.0)
        for at in range(100)
    ]
    assert (cost_from_traffic(found) is not None) is learns
