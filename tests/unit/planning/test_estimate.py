"""What a replica is expected to do: every term against step times that follow a plain law."""

import math

import msgspec
import pytest
from times_kit import LawTimes

from trimtab.core.layout import Demand, EstimateSource, Layout
from trimtab.planning.estimate import Bounds, Extra, Replica
from trimtab.planning.server_pace import Pace

PACE = Pace(
    step_ms=1.0, stream_ms=0.01, first_ms=20.0, client_ms=0.5, prefill_factor=1.2, wait_share=0.25
)
BARE = Pace(
    step_ms=0.0, stream_ms=0.0, first_ms=0.0, client_ms=0.0, prefill_factor=1.0, wait_share=0.0
)
ROOM = Bounds(kv_tokens=1e9)
DEMAND = Demand(input_tokens=1000, output_tokens=100, concurrency=1.0)


def replica(
    layout: Layout | None = None,
    *,
    pace: Pace = BARE,
    bounds: Bounds = ROOM,
    extra: Extra | None = None,
    times: LawTimes | None = None,
) -> Replica:
    return Replica(times or LawTimes(), layout or Layout(), pace, bounds, extra)


def with_streams(clients: float) -> Demand:
    return msgspec.structs.replace(DEMAND, concurrency=clients)


def at_rate(rate_per_s: float) -> Demand:
    return msgspec.structs.replace(DEMAND, concurrency=None, rate_per_s=rate_per_s)


def test_one_stream_takes_a_step_for_each_token_and_a_prefill_for_the_first() -> None:
    """Alone nothing waits: TPOT is a step and TTFT a prefill."""
    found = replica().expected(DEMAND)
    assert found.tpot_ms.value == pytest.approx(10.1)
    assert found.ttft_ms.value == pytest.approx(50.0)
    assert found.queue_ms == 0.0


def test_server_adds_its_pace_to_steps_and_first_tokens() -> None:
    """Host time of the step, of the stream, of the first token, and a prefill that takes a fifth more."""
    found = replica(pace=PACE).expected(DEMAND)
    assert found.tpot_ms.value == pytest.approx(10.1 + 1.0 + 0.01)
    assert found.ttft_ms.value == pytest.approx(1.2 * 50.0 + 20.0 + 0.5)


def test_each_stream_sees_the_prompts_of_the_others_once_in_its_life() -> None:
    """Eleven streams: ten prompts of 50 ms over a life of 100 tokens are 5 ms a token."""
    found = replica().expected(with_streams(11))
    assert found.tpot_ms.value == pytest.approx(10.0 + 1.1 + 10 * 50.0 / 100)


def test_first_token_waits_for_a_share_of_the_other_streams_prompts() -> None:
    """A quarter of ten prompts of 50 ms."""
    found = replica(pace=PACE).expected(with_streams(11))
    assert found.queue_ms == pytest.approx(0.25 * 10 * 50.0)


def test_streams_that_memory_does_not_hold_queue_for_a_life() -> None:
    """Twice as many clients as fit: each waits as long as a request lives."""
    mean_context = 1000 + 100 / 2
    found = replica(bounds=Bounds(kv_tokens=10 * mean_context)).expected(with_streams(20))
    life = found.ttft_ms.value - found.queue_ms + 99 * found.tpot_ms.value
    assert found.batch == pytest.approx(10.0)
    assert found.queue_ms == pytest.approx(life)


def test_throughput_of_a_closed_loop_is_streams_over_their_life() -> None:
    """Little's law."""
    found = replica(pace=PACE).expected(with_streams(8))
    life_s = (found.ttft_ms.value + 99 * found.tpot_ms.value) / 1000.0
    assert found.output_tokens_per_s == pytest.approx(8 / life_s * 100)


def test_cached_prefix_saves_its_prefill_for_everyone() -> None:
    """Half of the input cached: half of the prefill, and half of what streams do to each other."""
    demand = msgspec.structs.replace(with_streams(11), prefix_share=0.5)
    found = replica().expected(demand)
    assert found.prefill_ms == pytest.approx(25.0)
    assert found.tpot_ms.value == pytest.approx(10.0 + 1.1 + 10 * 25.0 / 100)


def test_long_prompt_is_computed_in_chunks_that_add_up() -> None:
    """A prompt of three and a half chunks costs four chunks' worth beside decoding."""
    demand = Demand(input_tokens=3500, output_tokens=100, concurrency=2.0)
    found = replica(bounds=Bounds(kv_tokens=1e9, chunk_tokens=1000)).expected(demand)
    assert found.tpot_ms.value == pytest.approx(10.2 + 4 * 50.0 / 100)


def test_few_arrivals_are_served_as_if_each_were_alone() -> None:
    """One request in a thousand seconds meets nobody; only half a step is waited for on average."""
    found = replica().expected(at_rate(0.001))
    assert found.tpot_ms.value == pytest.approx(10.1, rel=0.01)
    assert found.ttft_ms.value == pytest.approx(50.0 + 10.1 / 2, rel=0.01)


def test_streams_of_an_open_loop_are_arrivals_times_their_life() -> None:
    """Little's law again, found by iteration."""
    found = replica(pace=PACE).expected(at_rate(5.0))
    life_s = (found.ttft_ms.value + 99 * found.tpot_ms.value) / 1000.0
    assert found.batch == pytest.approx(5.0 * life_s, rel=0.02)


def test_arrivals_beyond_what_is_served_never_end() -> None:
    """No finite first token, a use of 1 or more, and a note with what it could serve."""
    found = replica(bounds=Bounds(kv_tokens=1050 * 8)).expected(at_rate(50.0))
    assert math.isinf(found.ttft_ms.value)
    assert found.utilisation is not None
    assert found.utilisation >= 1.0
    assert "arrivals outrun it" in found.notes[-1]


def test_use_is_the_part_of_the_arrivals_that_could_be_served() -> None:
    """Twice the rate is twice the use."""
    slow, fast = replica().expected(at_rate(1.0)), replica().expected(at_rate(2.0))
    assert slow.utilisation is not None
    assert fast.utilisation == pytest.approx(2 * slow.utilisation)


def test_accepted_drafts_divide_a_wider_step() -> None:
    """Three drafts always accepted: a step of four tokens a stream yields four tokens."""
    demand = msgspec.structs.replace(DEMAND, draft_tokens=3, draft_acceptance=1.0)
    assert replica().expected(demand).tpot_ms.value == pytest.approx((10.0 + 0.1 * 4) / 4)


def test_rejected_drafts_only_widen_the_step() -> None:
    """Nothing accepted: the same tokens for more work."""
    demand = msgspec.structs.replace(DEMAND, draft_tokens=3, draft_acceptance=0.0)
    assert replica().expected(demand).tpot_ms.value == pytest.approx(10.0 + 0.1 * 4)


def test_attention_groups_divide_the_streams_of_a_step() -> None:
    """Sixteen streams over four groups are a batch of four, and only three others' prompts."""
    layout = Layout(tp=1, attention_dp=4, moe_ep=4)
    found = replica(layout).expected(with_streams(16))
    assert found.tpot_ms.value == pytest.approx(10.0 + 0.4 + 3 * 50.0 / 100)


def test_stages_divide_the_streams_of_a_step_and_what_a_prompt_holds_up() -> None:
    """Sixteen streams over two stages are microbatches of eight; each prompt holds a stage up half as long."""
    found = replica(Layout(pp=2)).expected(with_streams(16))
    assert found.tpot_ms.value == pytest.approx(10.0 + 0.8 + 15 * 25.0 / 100)


def test_batch_between_whole_numbers_lies_between_their_steps() -> None:
    """Two and a half streams on average."""
    found = replica().expected(with_streams(2.5))
    assert found.step_ms == pytest.approx(10.25)


def test_slower_link_adds_to_steps_prompts_and_the_share_of_communication() -> None:
    """One stream: 2 ms a step and 0.01 ms for each token of it."""
    slow = replica(extra=Extra(step_ms=2.0, token_ms=0.01)).expected(DEMAND)
    assert slow.step_ms == pytest.approx(10.1 + 2.01)
    assert slow.prefill_ms == pytest.approx(50.0 + 2.0 + 0.01 * 1000)
    assert slow.communication_share == pytest.approx((1.0 + 2.01) / 12.11)


def test_unknown_communication_stays_unknown() -> None:
    """Tables that let collectives overlap tell no share, and none is made up."""
    found = replica(times=LawTimes(communication=None)).expected(DEMAND)
    assert found.communication_share is None


def test_estimate_says_what_it_rests_on() -> None:
    """Source and notes are those of the step times."""
    found = replica().expected(DEMAND)
    assert found.source is EstimateSource.KERNEL_TABLES
    assert found.notes == ("a law of 10 ms",)


def test_single_output_token_needs_no_decode() -> None:
    """One token is the first one; nothing divides by zero."""
    demand = Demand(input_tokens=1000, output_tokens=1, concurrency=4.0)
    assert math.isfinite(replica().expected(demand).output_tokens_per_s)


def test_demand_without_tokens_is_refused() -> None:
    """There is nothing to estimate."""
    with pytest.raises(ValueError, match="input and output tokens"):
        replica().expected(Demand(input_tokens=0, output_tokens=1))


@pytest.mark.parametrize("clients", [1.0, 1.5, 2.0, 2.7, 3.0, 5.0, 7.9, 8.0, 100.0, 700.5])
def test_step_of_any_batch_lies_between_those_of_the_sizes_around_it(clients: float) -> None:
    """Times are asked of few sizes only; a law that is straight comes out exactly."""
    asked: list[int] = []

    class Watched(LawTimes):
        def decode_ms(self, batch: int, context_tokens: int) -> float:
            asked.append(batch)
            return super().decode_ms(batch, context_tokens)

    found = replica(times=Watched()).expected(with_streams(clients))
    assert found.step_ms == pytest.approx(10.0 + 0.1 * clients)
    assert min(asked) <= clients <= max(asked)
    assert max(asked) <= max(2.0, 1.5 * clients)
