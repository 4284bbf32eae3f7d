"""What another prefill chunk costs on the same replica: every chunk is a step, and every step has its base once."""

import msgspec
import pytest

from trimtab.core.cost import CostModel

COST = CostModel(
    prefill_base_ms=10.0,
    prefill_ms_per_token=6.0,
    step_base_ms=32.0,
    step_ms_per_stream=5.0,
    prefill_samples=9,
    step_samples=9,
    source="test",
)


@pytest.mark.parametrize(("other", "per_token"), [(32, 6.0), (128, 5.25), (16, 7.0)])
def test_larger_chunk_reads_the_weights_less_often(other: int, per_token: float) -> None:
    """Measured with chunks of 32; nothing else of the costs changes."""
    found = COST.at_chunk(32, other)
    assert found.prefill_ms_per_token == pytest.approx(per_token)
    assert (found.prefill_base_ms, found.step_ms(3)) == (COST.prefill_base_ms, COST.step_ms(3))


def test_base_of_a_chunk_is_that_of_a_whole_step() -> None:
    """Timed where drafts gave a step 4 tokens: 8 ms a token are the same 32 ms that every chunk has once."""
    drafts = msgspec.structs.replace(
        COST, step_base_ms=8.0, step_ms_per_stream=1.25, tokens_per_step=4.0
    )
    assert drafts.at_chunk(32, 128).prefill_ms_per_token == pytest.approx(5.25)
    assert drafts.whole_step_ms(3) == pytest.approx(COST.step_ms(3))


@pytest.mark.parametrize(
    ("timed", "given", "tpot_ms"),
    [(1.0, None, 42.0), (1.0, 2.0, 21.0), (3.0, 3.0, 42.0), (3.0, 2.0, 63.0), (None, 2.0, 42.0)],
)
def test_time_of_a_token_is_divided_by_what_drafts_give_only_once(
    timed: float | None, given: float | None, tpot_ms: float
) -> None:
    """A cost by the token has its own drafts in it; what nobody counted is left as it came."""
    cost = msgspec.structs.replace(COST, tokens_per_step=timed)
    assert cost.tpot_ms(2, given) == pytest.approx(tpot_ms)


def test_prompt_token_never_costs_less_than_nothing() -> None:
    """A base that was overestimated takes off no more than there is."""
    assert COST.at_chunk(4, 4096).prefill_ms_per_token == 0.0
