"""What another prefill chunk costs on the same replica: every chunk is a step, and every step has its base once."""

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


def test_prompt_token_never_costs_less_than_nothing() -> None:
    """A base that was overestimated takes off no more than there is."""
    assert COST.at_chunk(4, 4096).prefill_ms_per_token == 0.0
