"""From timings to a cost model and a table of speculation."""

import pytest
from situations import NGRAM, table

from trimtab.diagnosis.calibration import (
    BatchRun,
    CalibrationError,
    PrefillTiming,
    StepTiming,
    fit_cost,
    speculation_table,
    speedup_at,
)


def run(batch: int, rate: float, *, on: bool, accepted: int | None = None, at: int = 0) -> BatchRun:
    return BatchRun(
        batch=batch,
        round=at,
        speculating=on,
        output_tokens=100,
        wall_s=100.0 / rate,
        accepted_tokens=accepted,
    )


def test_cost_model_is_recovered_from_its_own_timings() -> None:
    """Timings made by a cost model give it back, even with one disturbed probe per point."""
    prefills = [PrefillTiming(n, 5.0 + 10.0 * n) for n in (60, 60, 250, 250)]
    steps = [StepTiming(b, 20.0 + 4.0 * b) for b in (1, 1, 2, 2, 4, 4)]
    disturbed = [PrefillTiming(60, 5_000.0), StepTiming(4, 900.0)]
    cost = fit_cost([*prefills, disturbed[0]], [*steps, disturbed[1]], source="test")
    assert cost.prefill_base_ms == pytest.approx(5.0)
    assert cost.prefill_ms_per_token == pytest.approx(10.0)
    assert cost.step_base_ms == pytest.approx(20.0)
    assert cost.step_ms_per_stream == pytest.approx(4.0)
    assert (cost.prefill_samples, cost.step_samples) == (5, 7)


def test_prompt_tokens_are_never_free() -> None:
    """Where noise hides the cost of added tokens, the longest prompt's own rate stands in."""
    noisy = [PrefillTiming(60, 1_100.0), PrefillTiming(250, 1_000.0)]
    cost = fit_cost(noisy, [StepTiming(1, 20.0)], source="test")
    assert (cost.prefill_base_ms, cost.prefill_ms_per_token) == (0.0, 4.0)


def test_timing_of_unknown_tokens_per_step_leaves_the_mean_of_the_others() -> None:
    """Its time, perhaps that of a lucky draft, is no fast machine; at a batch of its own it is all there is."""
    told = [StepTiming(b, (20.0 + 4.0 * b) / 2.0, 2.0) for b in (1, 2)]
    prefills = [PrefillTiming(60, 600.0)]
    cost = fit_cost(prefills, [*told, StepTiming(1, 3.0, None)], source="test")
    assert cost.tokens_per_step == 2.0
    assert (cost.step_base_ms, cost.step_ms_per_stream) == pytest.approx((10.0, 2.0))
    assert cost.step_samples == 2


def test_tokens_per_step_are_unknown_where_fewer_than_half_of_the_timings_know() -> None:
    """A mean over the few stands for nobody; tokens are timed as they came."""
    steps = [StepTiming(1, 12.0, 2.0), StepTiming(1, 11.0, None), StepTiming(1, 13.0, None)]
    cost = fit_cost([PrefillTiming(60, 600.0)], steps, source="test")
    assert cost.tokens_per_step is None
    assert cost.step_ms(1) == pytest.approx(11.0)


def test_nothing_timed_is_an_error() -> None:
    """A cost model is not made up where a probe failed."""
    with pytest.raises(CalibrationError, match="no prefill"):
        fit_cost([], [StepTiming(1, 20.0)], source="test")
    with pytest.raises(CalibrationError, match="no decode step"):
        fit_cost([PrefillTiming(60, 600.0)], [], source="test")


def test_table_pools_interleaved_runs_by_batch() -> None:
    """Pooled rate = all tokens over all time of a point; accepted tokens give tokens per step."""
    found = speculation_table(
        [
            run(1, 40.0, on=False),
            run(1, 80.0, on=True, accepted=60),
            run(1, 80.0, on=True, accepted=60, at=1),
            run(1, 40.0, on=False, at=1),
            run(4, 100.0, on=False),
            run(4, 50.0, on=True, accepted=60),
        ],
        speculation=NGRAM,
        content="edit",
    )
    assert found.ratios() == ((1, 2.0), (4, 0.5))
    assert found.on[0].samples == 2
    assert found.on[0].accepted_per_step == pytest.approx(2.5)
    assert found.off[0].accepted_per_step is None
    assert found.break_even_batch() == pytest.approx(3.0)
    assert (found.off[0].rounds, found.on[0].rounds) == ((40.0, 40.0), (80.0, 80.0))


def test_rounds_are_paired_and_one_that_a_side_lacks_is_left_out() -> None:
    """Both sides of a round met the same prompt; whichever came first, its ratio is within the round."""
    found = speculation_table(
        [
            run(1, 80.0, on=True, at=1),
            run(1, 40.0, on=False, at=1),
            run(1, 20.0, on=False, at=0),
            run(1, 40.0, on=True, at=0),
            run(1, 500.0, on=True, at=2),
        ],
        speculation=NGRAM,
        content="edit",
    )
    assert (found.off[0].rounds, found.on[0].rounds) == ((20.0, 40.0), (40.0, 80.0))
    (gain,) = found.gains()
    assert (gain.low, gain.high) == pytest.approx((2.0, 2.0))


def test_table_without_a_common_batch_is_an_error() -> None:
    """One-sided measurements cannot say whether drafting pays."""
    with pytest.raises(CalibrationError, match="both with and without"):
        speculation_table(
            [run(1, 40.0, on=False), run(2, 80.0, on=True)], speculation=NGRAM, content="edit"
        )


def test_speedup_is_interpolated_and_never_extrapolated() -> None:
    """Linear between measured batches, the nearest one outside them."""
    measured = table({2: 1.4, 4: 1.0})
    found = [speedup_at(measured, batch) for batch in (1.0, 2.0, 3.0, 4.0, 9.0)]
    assert found == pytest.approx([1.4, 1.4, 1.2, 1.0, 1.0])


def test_first_crossing_is_the_break_even() -> None:
    """A ratio that rises again above the batch where drafts stopped paying does not hide that they did."""
    measured = table({1: 1.3, 2: 0.9, 4: 1.0, 8: 1.4})
    assert measured.break_even_batch() == pytest.approx(1.75)
    assert speedup_at(measured, 2.0) == pytest.approx(0.9)


def test_break_even_says_none_and_zero() -> None:
    """None where drafts paid at every measured batch, 0 where at none."""
    assert table({1: 1.5, 8: 1.1}).break_even_batch() is None
    assert table({1: 0.9, 8: 0.5}).break_even_batch() == 0.0
