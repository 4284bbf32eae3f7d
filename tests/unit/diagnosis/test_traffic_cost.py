"""Costs learned from traffic, where nobody may load a server for a measurement."""

import random

import pytest
from events_kit import request

from trimtab.core.cost import START_COST, CostModel
from trimtab.core.events import RequestServed
from trimtab.core.evidence import Unknown
from trimtab.core.record import Drafting, RequestRecord, Tokens
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
    assert isinstance(cost, CostModel)
    assert cost.prefill_ms(4000) == pytest.approx(420.0, rel=0.10)
    assert cost.step_ms(8) == pytest.approx(12.0, rel=0.05)
    assert cost.prefill_samples >= 3
    assert cost.source.startswith("learned from the fleet's traffic: 300 prefills of ")
    assert cost.source.endswith("300 answers in batches of 1 to 16")


def test_reused_tokens_are_not_counted_as_computed() -> None:
    """A prompt that was almost all in the cache shows the cost of its rest."""
    cached = [
        record(4000 + n, 20.0 + 0.1 * (500 + n), tokens=Tokens(prompt=4000 + n, delivered=3500))
        for n in range(40)
    ]
    cost = cost_from_traffic([*traffic(waits=False), *cached])
    assert isinstance(cost, CostModel)
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
    assert isinstance(cost, CostModel)
    assert cost.prefill_ms(4000) == pytest.approx(420.0, rel=0.05)


@pytest.mark.parametrize(
    ("records", "name"),
    [
        (traffic()[:10], "prefill_ms"),
        ([record(1000, 120.0) for _ in range(100)], "prefill_ms_per_token"),
        ([record(1000 + 5 * n, 120.0 + n) for n in range(100)], "prefill_ms_per_token"),
        ([record(40 * n, 50.0, status=500) for n in range(1, 100)], "prefill_ms"),
        ([record(40 * n, 50.0, stream=False) for n in range(1, 100)], "prefill_ms"),
        ([record(40 * n, 50.0, tpot_ms=None) for n in range(1, 100)], "step_ms"),
        ([record(40 * n, 50.0 + n, batch=n) for n in range(1, 100)], "step_ms"),
    ],
    ids=["few", "one size", "near sizes", "failed", "no streams", "no steps", "each batch once"],
)
def test_too_little_teaches_nothing_and_says_what_lacks(
    records: list[RequestRecord], name: str
) -> None:
    """What is routed with stays."""
    found = cost_from_traffic(records)
    assert isinstance(found, Unknown)
    assert found.name == name


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


def in_batches(*batches: int, tpot_ms: float = 25.0, **fields: object) -> list[RequestRecord]:
    """A hundred requests of many sizes, in turn in these batches."""
    sizes = ((500 + 20 * at, 70.0 + 2.0 * at, batches[at % len(batches)]) for at in range(100))
    return [
        record(size, ttft_ms, batch=batch, tpot_ms=tpot_ms, **fields)
        for size, ttft_ms, batch in sizes
    ]


@pytest.mark.parametrize(
    ("batches", "learns"),
    [
        ((4,), False),
        ((4, 5), False),
        ((4, 5, 6, 7), False),
        ((30, 31), False),
        ((4, 8), True),
        ((1, 2), True),
        ((1,), True),
    ],
)
def test_batches_close_together_do_not_tell_what_a_stream_alone_takes(
    batches: tuple[int, ...], learns: bool
) -> None:
    """Their line would be carried farther down than it is wide, and noise between neighbours decides all of it."""
    found = cost_from_traffic(in_batches(*batches))
    assert isinstance(found, CostModel) is learns
    if isinstance(found, Unknown):
        low, high = min(batches), max(batches)
        assert f"batches of {low} to {high} streams lie too close together" in found.reason


def test_batch_that_hardly_any_answer_met_spreads_no_line() -> None:
    """Its fastest may have met anything else."""
    rare = [record(600, 90.0, batch=16, tpot_ms=200.0) for _ in range(2)]
    assert isinstance(cost_from_traffic([*in_batches(4, 5), *rare]), Unknown)


def test_steps_of_drafting_answers_are_learned_as_steps() -> None:
    """A token costs what tokens cost there, a step what steps do; a lucky answer is no faster machine."""
    lucky = Drafting(drafted=60, accepted=15)
    plain = in_batches(1, 2, 4, tpot_ms=20.0, drafting=Drafting(drafted=60, accepted=0))
    drafted = in_batches(1, 2, 4, tpot_ms=20.0 * 4 / 19, drafting=lucky)
    found = cost_from_traffic([*plain, *drafted])
    assert isinstance(found, CostModel)
    per_step = (1.0 + 19 / 4) / 2
    assert found.tokens_per_step == pytest.approx(per_step)
    assert found.step_ms(1.0) == pytest.approx(20.0 / per_step)
    assert found.idle_step_ms == pytest.approx(20.0)


def test_tokens_per_step_that_nobody_counted_are_unknown() -> None:
    """Tokens cost what they cost, and what a step takes is not made up; who knows that none drafts may say so."""
    uncounted = in_batches(1, 2, 4)
    found = cost_from_traffic(uncounted)
    told = cost_from_traffic(uncounted, lambda _: 1.0)
    assert isinstance(found, CostModel)
    assert isinstance(told, CostModel)
    assert (found.idle_step_ms, told.idle_step_ms) == (None, pytest.approx(25.0))
    assert found.step_ms(1.0) == told.step_ms(1.0)
    assert differs(found, told)
